"""Object storage behind the local store, against moto's server of the S3 protocol: HTTP, signed requests, no cloud."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from numba_kcache import KernelCache, SettingsError, cached_kernel
from numba_kcache.model.event import EventKind
from numba_kcache.settings import read_settings
from numba_kcache.store.entry import ENTRY, encode_entry
from numba_kcache.tiers.chain import Chain
from numba_kcache.tiers.object_store import ObjectTier
from numba_kcache.tiers.opening import open_tiers
from tests.support.compiling import EMPTY
from tests.support.redis_server import fault_proxy, free_port
from tests.support.stores import Events, entry_of, key_of, open_store

MISSING = [name for name in ("obstore", "moto", "flask") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install obstore moto[server]")

WAIT_S = 30.0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with an empty bucket `kernels`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "codswallop")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="kernels")
    for each in client.list_objects_v2(Bucket="kernels").get("Contents", []):
        client.delete_object(Bucket="kernels", Key=each["Key"])


def tier(endpoint: str, **options: object) -> ObjectTier:
    return ObjectTier("s3://kernels/team", endpoint=endpoint, region="us-east-1", **options)  # type: ignore[arg-type]


def test_what_is_put_is_what_is_got(endpoint: str) -> None:
    """Entries, manifests and signatures; None for what is not there; the keys of each."""
    large = encode_entry(entry_of(1, 3_000_000))
    store = tier(endpoint)
    store.put_entry(key_of(1), large)
    store.put_manifest(key_of(1), b"manifest")
    store.put_signature(ENTRY, key_of(1), b"signature")

    assert store.get_entry(key_of(1)) == large
    assert store.get_manifest(key_of(1)) == b"manifest"
    assert store.get_signature(ENTRY, key_of(1)) == b"signature"
    assert store.get_entry(key_of(2)) is store.get_manifest(key_of(2)) is None
    assert list(store.keys(ENTRY)) == [key_of(1)]


def test_what_is_too_large_is_not_fetched(endpoint: str) -> None:
    """Nor put."""
    tier(endpoint).put_entry(key_of(1), bytes(2000))
    with pytest.raises(ValueError, match="above the limit of 1000"):
        tier(endpoint, limit_bytes=1000).get_entry(key_of(1))
    with pytest.raises(ValueError, match="above the limit of 1000"):
        tier(endpoint, limit_bytes=1000).put_entry(key_of(1), bytes(1001))


def test_kernel_of_one_node_is_a_hit_on_another(endpoint: str, tmp_path: Path) -> None:
    """By the settings; push and pull find it there too."""
    url = f"s3://kernels/team?endpoint={endpoint}&region=us-east-1"
    first, second = (KernelCache(tmp_path / name, tiers=url, durability="none") for name in ("a", "b"))
    cached_kernel(EMPTY, cache=first).compile("sm_90")
    assert first.resolver.store.flush(WAIT_S)  # type: ignore[union-attr]
    cached_kernel(EMPTY, cache=second).compile("sm_90")

    assert (second.info("process").compiles, second.info("process").hits) == (0, 1)
    assert first.push(url).present == 1
    assert KernelCache(tmp_path / "c").pull(url).entries == 1


def test_service_that_is_away_is_a_miss_and_is_left_alone(tmp_path: Path) -> None:
    """Refused: told once, and not tried again in the breaker's period."""
    events = Events()
    chain = Chain(open_store(tmp_path), [tier(f"http://127.0.0.1:{free_port()}")], events)

    assert chain.get(key_of(1)) is chain.get(key_of(2)) is None
    assert len(events.of(EventKind.TROUBLE)) == 1
    assert "codswallop" not in str(events)


def test_black_hole_costs_its_timeout(endpoint: str, tmp_path: Path) -> None:
    """One request, not repeated."""
    events = Events()
    with fault_proxy(1) as proxy:
        proxy.is_silent = True
        chain = Chain(open_store(tmp_path), [tier(f"http://127.0.0.1:{proxy.port}", timeout_s=0.3)], events)
        start = time.monotonic()

        assert chain.get(key_of(1)) is chain.get(key_of(2)) is None
        assert time.monotonic() - start < WAIT_S / 3
        assert proxy.connections == 1
    assert len(events.of(EventKind.TROUBLE)) == 1


@pytest.mark.parametrize(
    "url", ["s3://kernels", "gs://kernels/a", "az://container/a", "s3://k?endpoint=https://h:9000"]
)
def test_urls_of_each_cloud_are_tiers(url: str) -> None:
    """Opened without a request."""
    (opened,) = open_tiers(read_settings({"tiers": url}, {}))

    assert opened.name == url.partition("?")[0]


@pytest.mark.parametrize(
    "url", ["s3://kernels?ttl=3", "s3://kernels?endpoint=ftp://codswallop", "s3://k?key=codswallop"]
)
def test_option_that_it_has_not_is_refused_unseen(url: str) -> None:
    """The message names those there are."""
    with pytest.raises(SettingsError, match="endpoint") as raised:
        read_settings({"tiers": url}, {})

    assert "codswallop" not in str(raised.value)
