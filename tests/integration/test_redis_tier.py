"""A real Redis server behind the local store: the commands, bytes and times, and what is never shared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from numba_kcache import KernelCache, SettingsError, cached_kernel
from numba_kcache.model import EventKind
from numba_kcache.settings import read_settings
from numba_kcache.store import ENTRY, MANIFEST
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers import redis
from numba_kcache.tiers.opening import open_tiers
from numba_kcache.tiers.redis import RedisError, RedisTier
from tests.support.compiling import EMPTY, in_python
from tests.support.programs import program
from tests.support.redis_server import RedisServer, free_port, needs_redis, redis_server
from tests.support.stores import Events, entry_of, file_of, key_of, open_store
from tests.support.tiers import Chain

pytestmark = needs_redis

VARIANT = {"key": key_of(1), "target": "sm_90", "request": key_of(2)}
WAIT_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """The server, empty."""
    running.told("FLUSHALL")
    return running


@pytest.fixture
def events() -> Events:
    return Events()


def chain(directory: Path, tier: RedisTier, events: Events) -> Chain:
    return Chain(open_store(directory), [tier], events)


def test_what_is_put_is_what_is_got(server: RedisServer) -> None:
    """Entries and manifests, byte for byte, small and beyond one read; None for what is not there."""
    tier = RedisTier(server.url)
    large = encode_entry(entry_of(1, 3_000_000))
    tier.put(ENTRY, key_of(1), large)
    tier.put(MANIFEST, key_of(1), b"manifest")

    assert tier.get(ENTRY, key_of(1)) == large
    assert tier.get(MANIFEST, key_of(1)) == b"manifest"
    assert tier.get(ENTRY, key_of(2)) is tier.get(MANIFEST, key_of(2)) is None
    assert list(tier.keys(MANIFEST)) == [key_of(1)]


def test_one_node_fills_the_server_and_another_starts_warm(server: RedisServer, tmp_path: Path, events: Events) -> None:
    """Handed on behind the put, found by an empty directory, kept there byte for byte."""
    first, second = (chain(tmp_path / name, RedisTier(server.url), events) for name in ("a", "b"))
    assert first.put(entry_of(1))
    assert first.add_rows(key_of(9), VARIANT)
    assert first.flush(WAIT_S)

    assert second.get(key_of(1)) == entry_of(1)
    assert second.tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert file_of(second.local, key_of(1)).read_bytes() == encode_entry(entry_of(1))
    assert events.of(EventKind.TROUBLE) == []
    report = first.reports()[0]
    assert (report.errors, report.is_reachable) == (0, True)
    assert report.bytes_written > len(encode_entry(entry_of(1)))


@pytest.mark.parametrize("ttl_s", [None, 1000])
def test_two_nodes_add_to_one_manifest(server: RedisServer, tmp_path: Path, events: Events, ttl_s: int | None) -> None:
    """Each keeps the other's row; a manifest expires like an entry."""
    first, second = (chain(tmp_path / name, RedisTier(server.url, ttl_s=ttl_s), events) for name in ("a", "b"))
    other = {**VARIANT, "key": key_of(3)}
    first.tiers[0].add_rows(key_of(9), other)
    second.tiers[0].add_rows(key_of(9), VARIANT)

    assert first.tiers[0].get_manifest(key_of(9)) == [VARIANT, other]
    assert events.of(EventKind.TROUBLE) == []
    assert server.told("TTL", server.keys()[0]) in ([-1] if ttl_s is None else [999, 1000])


def test_prefix_keeps_teams_apart(server: RedisServer) -> None:
    """The prefix is literal, even if it has characters of a pattern."""
    RedisTier(server.url, prefix="a*").put(ENTRY, key_of(1), b"a")
    RedisTier(server.url, prefix="ab").put(ENTRY, key_of(2), b"b")

    assert list(RedisTier(server.url, prefix="a*").keys(1)) == [key_of(1)]
    assert RedisTier(server.url, prefix="ab").get(ENTRY, key_of(1)) is None


def test_readonly_tier_gets_nothing(server: RedisServer, tmp_path: Path, events: Events) -> None:
    """Neither entries nor lease tokens are written to a read-only tier."""
    tier = RedisTier(server.url)
    tier.readonly = True
    node = chain(tmp_path, tier, events)
    node.put(entry_of(1))
    node.add_rows(key_of(9), VARIANT)
    node.flush(WAIT_S)

    assert server.keys() == []


def test_ttl_is_the_server_s(server: RedisServer) -> None:
    """An entry with a ttl expires by itself; one without stays."""
    RedisTier(server.url, ttl_s=1000).put(ENTRY, key_of(1), b"x")
    RedisTier(server.url).put(ENTRY, key_of(2), b"x")
    names = server.keys()
    lives = {name: server.told("TTL", name) for name in names}

    assert [0 < lives[name] <= 1000 for name in lives if key_of(1) in name] == [True]
    assert [lives[name] for name in lives if key_of(2) in name] == [-1]


def test_what_is_too_large_is_cut_by_the_server(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload above the limit is not read, whatever its size; one at the limit is."""
    server.told("SET", f"numba_kcache:1/entries/{key_of(1)}", b"x" * 1_000_000)
    before = server.told("INFO", "stats")
    tier = RedisTier(server.url)
    monkeypatch.setattr(redis, "MAX_FILE_BYTES", 1000)
    with pytest.raises(RedisError, match="above the limit of 1000"):
        tier.get(ENTRY, key_of(1))
    after = server.told("INFO", "stats")

    assert after["total_net_output_bytes"] - before["total_net_output_bytes"] < 100_000  # type: ignore[index]
    tier.put(ENTRY, key_of(2), bytes(1000))
    assert tier.get(ENTRY, key_of(2)) == bytes(1000)


def test_child_has_connections_of_its_own(server: RedisServer) -> None:
    """A process forked after a request reads no answer to its parent."""
    import os

    tier = RedisTier(server.url)
    tier.put(ENTRY, key_of(1), b"x")
    assert tier.get(ENTRY, key_of(1)) == b"x"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if all(tier.get(ENTRY, key_of(n)) == (b"x" if n == 1 else None) for n in range(50)) else 1)
    found = [tier.get(ENTRY, key_of(n)) for n in range(50)]

    assert os.waitpid(pid, 0)[1] == 0
    assert found == [b"x" if n == 1 else None for n in range(50)]


def test_restarted_server_is_asked_again(server: RedisServer) -> None:
    """The idle connection is closed; the answer comes over a new one."""
    tier = RedisTier(server.url)
    tier.get(ENTRY, key_of(1))
    server.kill()
    server.start()

    assert tier.get(ENTRY, key_of(1)) is None
    tier.put(ENTRY, key_of(1), b"x")
    server.kill()
    server.start()
    tier.put(ENTRY, key_of(1), b"y")
    assert tier.get(ENTRY, key_of(1)) == b"y"


def test_full_memory_is_an_error_that_leaves_reading_alone(server: RedisServer, tmp_path: Path, events: Events) -> None:
    """OOM: told and counted; what is there is served, and no breaker opens."""
    RedisTier(server.url).put(ENTRY, key_of(1), encode_entry(entry_of(1)))
    server.told("CONFIG", "SET", "maxmemory", "1")
    node = chain(tmp_path, RedisTier(server.url), events)
    try:
        assert node.put(entry_of(2))
        assert node.flush(WAIT_S)
        assert node.get(key_of(1)) == entry_of(1)
    finally:
        server.told("CONFIG", "SET", "maxmemory", "0")

    assert ["maxmemory" in str(event.fields["error"]) for event in events.of(EventKind.TROUBLE)] == [True]
    assert node.reports()[0].errors == 1


@pytest.mark.slow
def test_kernel_compiled_on_one_node_is_a_hit_on_another(server: RedisServer, tmp_path: Path) -> None:
    """The tier is a setting; the first process uploads at its end at the latest."""
    code = """
import sys
from numba_kcache import cached_kernel, info
cached_kernel(sys.argv[1], arch="sm_90").compile()
found = info("process")
print(found.compiles, found.hits, found.errors)
"""
    said = [
        in_python(code, EMPTY, NUMBA_KCACHE_DIR=str(tmp_path / node), NUMBA_KCACHE_TIERS=f"{server.url}?ttl=500")
        for node in ("a", "b")
    ]

    assert [each.strip() for each in said] == ["1 0 0", "0 1 0"]


@pytest.mark.slow
def test_info_adds_up_what_all_processes_saw_of_a_tier(server: RedisServer, tmp_path: Path) -> None:
    """One process misses and hands on at its end, another has a hit, both count; this one has seen nothing."""
    code = """
import sys
from numba_kcache import cached_kernel
cached_kernel(sys.argv[1], arch="sm_90").compile()
"""
    for directory in ("a", "b"):
        in_python(code, EMPTY, NUMBA_KCACHE_DIR=str(tmp_path / directory), NUMBA_KCACHE_TIERS=server.url)
    first, second = (KernelCache(tmp_path / name, tiers=server.url).info().tiers[0] for name in ("a", "b"))

    assert (first.hits, second.hits, second.misses, first.errors, second.errors) == (0, 1, 0, 0, 0)
    assert first.misses >= 1
    assert first.bytes_written >= second.bytes_read > 4000
    assert first.bytes_read == second.bytes_written == 0
    assert first.is_reachable is None
    assert KernelCache(tmp_path / "a", tiers=server.url).info("process").tiers[0].misses == 0
    assert KernelCache(tmp_path / "a", tiers=server.url).info("process").tiers[0].bytes_written == 0


@pytest.mark.slow
def test_process_that_ends_at_once_has_handed_on(server: RedisServer, tmp_path: Path) -> None:
    """Without a lease the process connects only at its end, for the upload, and does so without importing redis-py."""
    code = """
import sys
from numba_kcache import KernelCache
from numba_kcache.store import StoredEntry
KernelCache(tiers=[sys.argv[1]]).session.store.put(StoredEntry("0" * 64, {}, {"cubin": b"x"}))
sys.modules["redis"] = None
"""
    in_python(code, server.url, NUMBA_KCACHE_DIR=str(tmp_path))

    assert len(server.keys()) == 1


@pytest.mark.slow
def test_four_cold_processes_of_four_nodes_compile_once(server: RedisServer, tmp_path: Path) -> None:
    """The resolver's own turn, with NVRTC: one compiles, three are hits."""
    code = """
import sys
from numba_kcache import cached_kernel, info
cached_kernel(sys.argv[1], arch="sm_90").compile()
found = info("process")
print(found.compiles, found.hits, found.misses, found.errors)
"""

    def node(number: int) -> str:
        directory = str(tmp_path / str(number))
        return in_python(code, EMPTY, NUMBA_KCACHE_DIR=directory, NUMBA_KCACHE_TIERS=server.url).strip()

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(node, range(4)))

    assert said == ["0 1 0 0"] * 3 + ["1 0 1 0"]


@pytest.mark.slow
def test_reading_needs_no_redis_py(server: RedisServer, tmp_path: Path) -> None:
    """A warm first launch does not import it."""
    cached_kernel(EMPTY, cache=KernelCache(tmp_path / "a", tiers=server.url)).compile("sm_90")
    assert _flushed(tmp_path, server)
    code = """
import sys
from numba_kcache import cached_kernel, info
cached_kernel(sys.argv[1], arch="sm_90").compile()
print(info("process").compiles, "redis" in sys.modules, "ssl" in sys.modules)
"""
    said = in_python(code, EMPTY, NUMBA_KCACHE_DIR=str(tmp_path / "b"), NUMBA_KCACHE_TIERS=server.url)

    assert said.strip() == "0 False False"


def _flushed(directory: Path, server: RedisServer) -> bool:
    from numba_kcache.tiers import upload_queue

    return all(each.flush(WAIT_S) for each in list(upload_queue.queues)) and bool(server.keys())


@pytest.mark.parametrize("password", ["codswallop", "a:b/c@d?e,f%g"])
def test_password_opens_and_is_never_shown(tmp_path: Path, events: Events, password: str) -> None:
    """The right password works; a wrong one is reported and counted, without showing it."""
    from urllib.parse import quote

    with redis_server(tmp_path / "redis", "--requirepass", password) as server:
        urls = [f"redis://:{quote(each, safe='')}@127.0.0.1:{server.port}/2" for each in (password, password + "x")]
        right, wrong = (
            Chain(open_store(tmp_path / name), open_tiers(read_settings({"tiers": [url]}, {})), events)
            for name, url in zip(("a", "b"), urls, strict=True)
        )
        right.put(entry_of(1))
        assert right.flush(WAIT_S)
        assert right.tiers[0].get(key_of(1)) == entry_of(1)
        assert events.of(EventKind.TROUBLE) == []

        assert wrong.get(key_of(1)) is None
        wrong.put(entry_of(2))
        assert wrong.flush(WAIT_S)
        assert wrong.get(key_of(3)) is None

    assert [event.kind for event in events.of(EventKind.TROUBLE)] == [EventKind.TROUBLE]
    shown = f"{events} {right.reports()} {wrong.reports()}"
    assert password not in shown
    assert quote(password, safe="") not in shown
    assert "WRONGPASS" in shown


def test_users_need_no_more_rights_than_the_docs_say(server: RedisServer, tmp_path: Path, events: Events) -> None:
    """One who reads, one who writes and is elected; who reads cannot write, which is told."""
    page = (Path(__file__).parents[2] / "docs/how-to/team-cache.md").read_text()
    for user, words in re.findall(r"ACL SETUSER (\w+) on (.*)", page):
        server.told("ACL", "SETUSER", user, "reset", "on", *words.split())
    urls = {user: f"redis://{user}:secret@127.0.0.1:{server.port}/0" for user in ("builder", "reader")}
    writing = chain(tmp_path / "a", RedisTier(urls["builder"]), events)
    writing.put(entry_of(1))
    writing.add_rows(key_of(9), VARIANT)
    with writing.elected(key_of(2)) as election:
        assert election.looks
    assert writing.flush(WAIT_S)
    reader = RedisTier(urls["reader"])
    reader.readonly = True
    reading = chain(tmp_path / "b", reader, events)

    assert reading.get(key_of(1)) == entry_of(1)
    assert reading.tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert sorted(RedisTier(urls["builder"]).keys(ENTRY)) == [key_of(1)]
    assert RedisTier(urls["builder"]).claim(key_of(4), "token", 60.0) == "token"
    assert RedisTier(urls["builder"]).renew(key_of(4), 60.0)
    assert RedisTier(server.url).value_of(key_of(2)) == "over"
    assert events.of(EventKind.TROUBLE) == []
    with pytest.raises(OSError, match="NOPERM"):
        RedisTier(urls["reader"]).claim(key_of(3), "token", 60.0)


def test_tls_is_spoken_and_its_certificate_is_checked(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rediss:// reads and writes if the certificate is trusted; otherwise it reports, counts, and reads nothing."""
    key, certificate, port = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem"), str(free_port())
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run([program("openssl"), *words.split(), *names], check=True, capture_output=True)
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    with redis_server(tmp_path / "redis", "--tls-port", port, "--tls-auth-clients", "no", *files):
        url = f"rediss://localhost:{port}/0"
        assert chain(tmp_path / "a", RedisTier(url), events).get(key_of(1)) is None
        assert "CERTIFICATE_VERIFY_FAILED" in str(events[-1].fields["error"])
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        node = chain(tmp_path / "b", RedisTier(url), events)
        node.put(entry_of(1))
        assert node.flush(WAIT_S)

        assert node.tiers[0].get(key_of(1)) == entry_of(1)
    assert len(events.of(EventKind.TROUBLE)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:codswallop@h:port",
        "redis://u:cods?wallop@h",
        "redis://u:codswallop",
        "redis://u:cods/wallop@h/x",
        "redis://u:codswallop@h/0?codswallop=1",
        "redis://u:codswallop@h/0?ttl=codswallop",
        "redis://u:cods,wallop@h/0",
        "redis://u:cods,wallop@h/0?readonly=2",
        "rediss://u:codswallop@",
    ],
)
def test_refused_url_shows_no_secret(url: str) -> None:
    """A URL that is refused, for any reason, is shown without its user and password."""
    with pytest.raises(SettingsError) as raised:
        open_tiers(read_settings({"tiers": url}, {}))

    assert "cods" not in str(raised.value)
    assert "wallop" not in str(raised.value)


@pytest.mark.slow
def test_what_a_warm_up_compiles_is_handed_on(server: RedisServer, tmp_path: Path) -> None:
    """Workers end after their last compile, and first send their queued writes."""
    cache = KernelCache(tmp_path, durability="none", tiers=server.url)
    sources = [f'extern "C" __global__ void k{number}() {{}}' for number in range(3)]
    report = cache.warm_up([cached_kernel(text, cache=cache) for text in sources], "sm_90", workers=2, progress=False)

    assert len(report.built) == 3
    assert len(set(RedisTier(server.url).keys(ENTRY))) == 3
