"""The tier of object storage without a service: forked children, endless lists, a client that panics."""

from __future__ import annotations

import http.server
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from numba_kcache import KCacheError, KernelCache
from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY
from numba_kcache.tiers import tier
from numba_kcache.tiers.object_store import ObjectTier
from tests.support.compiling import in_python
from tests.support.stores import Events, open_store
from tests.support.tiers import Chain

SCRIPT = """
import os, signal, sys
from numba_kcache.store import ENTRY
from numba_kcache.tiers.object_store import ObjectTier
tier = ObjectTier("s3://bucket/path", endpoint=sys.argv[1], region="x", timeout_s=2.0)
assert tier.get(ENTRY, "0" * 64) == b"abc"
child = os.fork()
if child == 0:
    signal.alarm(8)
    for each in (tier, ObjectTier("s3://bucket/path", endpoint=sys.argv[1], region="x")):
        try:
            each.get(ENTRY, "0" * 64)
        except ConnectionError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in (
            ("Content-Length", "3"),
            ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("ETag", '"a"'),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"abc")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("obstore") is None, reason="no obstore: pip install numba-kcache[object-store]")
def test_child_of_a_process_that_used_object_storage_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child lacks the client's threads and would wait for them for ever: the tier refuses it at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = in_python(SCRIPT, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()

    assert said.split() == ["0"]


class _Echo(_Answer):
    def do_GET(self) -> None:
        data = f"{dict(self.headers)} {self.path}".encode()
        self.send_response(int(self.path.rpartition("/")[2][:3]))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.mark.skipif(find_spec("obstore") is None, reason="no obstore: pip install numba-kcache[object-store]")
@pytest.mark.parametrize("code", [400, 401, 403, 500])
def test_service_that_repeats_a_request_cannot_show_its_token(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The body of the error has all headers of the request; its status is shown, and nothing else."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "codswallop")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tier = ObjectTier("s3://bucket/path", endpoint=f"http://127.0.0.1:{server.server_port}", region="x")
        with pytest.raises(ConnectionError) as raised:
            tier.get(ENTRY, f"{code}".ljust(64, "0"))
        server.shutdown()

    assert str(raised.value).endswith(f"Error: status code: {code}")
    assert "codswallop" not in repr(raised.value)


class _EndlessList(http.server.BaseHTTPRequestHandler):
    keys = 10

    def do_GET(self) -> None:
        rows = (f"<Contents><Key>path/1/entries/{number:064x}</Key>{_ABOUT}</Contents>" for number in range(self.keys))
        page = "<IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>" + "".join(rows)
        data = f"<ListBucketResult><KeyCount>{self.keys}</KeyCount>{page}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


_ABOUT = "<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>a</ETag><Size>3</Size>"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("obstore") is None, reason="no obstore: pip install numba-kcache[object-store]")
@pytest.mark.parametrize(("keys", "why"), [(10, "lists more than 100 "), (0, "lists files without end")])
def test_service_that_lists_without_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keys: int, why: str
) -> None:
    """The service returns page after page, maybe empty ones; the client alone would never return."""
    monkeypatch.setattr(_EndlessList, "keys", keys)
    monkeypatch.setattr(tier, "LISTING_S", 60.0 if keys else 1.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setattr(tier, "MOST_NAMES", 100)
    cache = KernelCache(tmp_path / "own", durability="none")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _EndlessList) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(KCacheError, match=why):
            cache.pull(f"s3://bucket/path?endpoint=http://127.0.0.1:{server.server_port}&region=x")
        server.shutdown()


@pytest.mark.skipif(find_spec("obstore") is None, reason="no obstore: pip install numba-kcache[object-store]")
def test_panic_of_the_client_is_a_miss_and_an_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client's panic is no subclass of Exception, and would end the program; KeyboardInterrupt still passes."""
    import obstore

    def fail(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(obstore, "get", fail)
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    events = Events()
    tiers = [ObjectTier("s3://bucket/path", endpoint="http://127.0.0.1:1", region="x") for _ in range(2)]
    chain = Chain(open_store(tmp_path / "own"), tiers[:1], events)

    raised = panic("no thread can be started")
    assert chain.get("0" * 64) is None
    assert "no thread can be started" in str(events.of(EventKind.TROUBLE)[0].fields["error"])
    raised = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tiers[1].get(ENTRY, "0" * 64)
