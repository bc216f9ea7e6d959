"""Object storage behind the local store: OpenStack Swift by its S3 protocol, and Azurite, both real and on loopback."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from numba_kcache import KernelCache, SettingsError, cached_kernel
from numba_kcache.model import EventKind
from numba_kcache.settings import read_settings
from numba_kcache.store import ENTRY, MANIFEST
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers import object_store
from numba_kcache.tiers.object_store import ObjectTier
from numba_kcache.tiers.opening import open_tiers
from numba_kcache.tiers.trust import SIGNATURE
from tests.support.compiling import EMPTY
from tests.support.object_service import CONTAINER, MISSING, ObjectService, object_service
from tests.support.redis_server import fault_proxy, free_port
from tests.support.stores import Events, entry_of, file_of, key_of, open_store
from tests.support.tiers import Chain

pytestmark = pytest.mark.slow

WAIT_S = 30.0

_number = count()


@pytest.fixture(scope="module", params=list(MISSING))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    missing = MISSING[request.param]()
    if missing:
        pytest.skip(missing)
    with object_service(request.param, tmp_path_factory.mktemp(request.param)) as service:
        yield service


class Place:
    """A path in a service's container, for one test."""

    def __init__(self, service: ObjectService) -> None:
        self.url = f"{service.scheme}://{CONTAINER}/team{next(_number)}"
        self.port, self.endpoint = service.port, service.endpoint

    def tier(self, port: int | None = None, **options: object) -> ObjectTier:
        """A tier at that path, or at another port."""
        endpoint = self.endpoint.replace(str(self.port), str(port or self.port), 1)
        return ObjectTier(self.url, endpoint=endpoint, **options)  # type: ignore[arg-type]


@pytest.fixture
def place(running: ObjectService, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return Place(running)


def test_what_is_put_is_what_is_got(place: Place) -> None:
    """Entries, manifests and signatures; None for what is not there; the keys of each."""
    large = encode_entry(entry_of(1, 3_000_000))
    store = place.tier()
    store.put(ENTRY, key_of(1), large)
    store.put(MANIFEST, key_of(1), b"manifest")
    store.put(ENTRY + SIGNATURE, key_of(1), b"signature")

    assert store.get(ENTRY, key_of(1)) == large
    assert store.get(MANIFEST, key_of(1)) == b"manifest"
    assert store.get(ENTRY + SIGNATURE, key_of(1)) == b"signature"
    assert store.get(ENTRY, key_of(2)) is store.get(MANIFEST, key_of(2)) is None
    assert list(store.keys(ENTRY)) == [key_of(1)]


def test_what_is_too_large_is_not_fetched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload above the limit."""
    monkeypatch.setattr(object_store, "MAX_FILE_BYTES", 1000)
    place.tier().put(ENTRY, key_of(1), bytes(2000))
    with pytest.raises(ValueError, match="above the limit of 1000"):
        place.tier().get(ENTRY, key_of(1))


def test_kernel_of_one_node_is_a_hit_on_another(place: Place, tmp_path: Path) -> None:
    """A tier in the settings serves the entry; push and pull use it too."""
    url = f"{place.url}?endpoint={place.endpoint}"
    first, second = (KernelCache(tmp_path / name, tiers=url, durability="none") for name in ("a", "b"))
    cached_kernel(EMPTY, cache=first).compile("sm_90")
    assert first.session.chain.uploads.flush(WAIT_S)  # type: ignore[union-attr]
    cached_kernel(EMPTY, cache=second).compile("sm_90")

    assert (second.info("process").compiles, second.info("process").hits) == (0, 1)
    assert first.push(url).present == 1
    assert KernelCache(tmp_path / "c").pull(url).entries == 1


def test_service_that_is_away_is_a_miss_and_is_left_alone(place: Place, tmp_path: Path) -> None:
    """A refused connection is reported once, and not tried again while the breaker is open."""
    events = Events()
    chain = Chain(open_store(tmp_path), [place.tier(free_port())], events)

    assert chain.get(key_of(1)) is chain.get(key_of(2)) is None
    assert len(events.of(EventKind.TROUBLE)) == 1


def test_black_hole_costs_its_timeout(place: Place, tmp_path: Path) -> None:
    """One request is sent, and not repeated."""
    events = Events()
    with fault_proxy(1) as proxy:
        proxy.is_silent = True
        chain = Chain(open_store(tmp_path), [place.tier(proxy.port, timeout_s=0.3)], events)
        start = time.monotonic()

        assert chain.get(key_of(1)) is chain.get(key_of(2)) is None
        assert time.monotonic() - start < WAIT_S / 3
        assert proxy.connections == 1
    assert len(events.of(EventKind.TROUBLE)) == 1


FAULTS: dict[str, Callable[[bytes], bytes | None]] = {
    "hangs up": lambda data: None,
    "cut": lambda data: data[: len(data) // 2] if data.startswith(b"HTTP/") else None,
    "corrupt": lambda data: data[:-100] + bytes((data[-100] ^ 1,)) + data[-99:],
    "garbage": lambda data: b"$5\r\nhello\r\n",
    "busy": lambda data: b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("fault", [*FAULTS, "slow"])
def test_answer_that_is_not_whole_is_a_miss(place: Place, tmp_path: Path, fault: str) -> None:
    """Closed, truncated, flipped, not HTTP, temporarily refused, or in single bytes: reported and counted once, not
    stored."""
    events = Events()
    place.tier().put(ENTRY, key_of(1), encode_entry(entry_of(1, 50_000)))
    with fault_proxy(place.port) as proxy:
        whole = Chain(open_store(tmp_path / "whole"), [place.tier(proxy.port)], events)
        assert whole.get(key_of(1)) == entry_of(1, 50_000)  # else the rest of the test would prove nothing
        proxy.fault, proxy.pieces_s = FAULTS.get(fault, proxy.fault), 0.02 if fault == "slow" else None
        chain = Chain(open_store(tmp_path / "broken"), [place.tier(proxy.port, timeout_s=0.3)], events)

        assert chain.get(key_of(1)) is None
    report = chain.reports()[0]
    assert (report.hits, report.misses, report.errors) == (0, 1, 1)
    assert len(events.of(EventKind.TROUBLE)) == 1
    assert not file_of(chain.local, key_of(1)).exists()


def test_wrong_secret_is_told_and_never_shown(
    place: Place, running: ObjectService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong secret nothing is read or written, and the message contains neither secret."""
    place.tier().put(ENTRY, key_of(1), encode_entry(entry_of(1)))
    (name,) = (each for each in running.environment if "SECRET" in each or "ACCOUNT_KEY" in each)
    wrong = base64.b64encode(b"fiddlesticks").decode()
    monkeypatch.setenv(name, wrong)
    events = Events()
    chain = Chain(open_store(tmp_path), [place.tier()], events)

    assert chain.get(key_of(1)) is None
    (trouble,) = events.of(EventKind.TROUBLE)
    assert wrong not in str(trouble)
    assert running.environment[name] not in str(trouble)


@pytest.mark.parametrize(
    "url", ["s3://kernels", "gs://kernels/a", "az://container/a", "s3://k?endpoint=https://h:9000"]
)
def test_urls_of_each_cloud_are_tiers(url: str) -> None:
    """Opening a tier sends no request."""
    (opened,) = open_tiers(read_settings({"tiers": url}, {}))

    assert opened.name == url.partition("?")[0]


@pytest.mark.parametrize(
    "url", ["s3://kernels?ttl=3", "s3://kernels?endpoint=ftp://codswallop", "s3://k?key=codswallop"]
)
def test_option_that_it_has_not_is_refused_unseen(url: str) -> None:
    """The message lists the options, and does not repeat the value."""
    with pytest.raises(SettingsError, match="endpoint") as raised:
        read_settings({"tiers": url}, {})

    assert "codswallop" not in str(raised.value)
