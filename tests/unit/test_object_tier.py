"""Object storage without a service: what a forked child does."""

from __future__ import annotations

import http.server
import threading
from importlib.util import find_spec

import pytest

from tests.support.compiling import in_python

SCRIPT = """
import os, signal, sys
from numba_kcache.store.entry import ENTRY
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
    """The client would wait for ever for threads that a child does not have: it is refused at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = in_python(SCRIPT, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()

    assert said.split() == ["0"]
