"""A long compile says what it is compiling; a short one, or one whose progress is switched off, says nothing."""

from __future__ import annotations

import io
import logging
import os
import pty
import select
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.observe.progress import shown
from tests.support.compiling import EMPTY, in_python

FOR_EVER = 1e6


class Terminal:
    """A terminal, and what was written to it."""

    def __init__(self) -> None:
        self._reader, writer = pty.openpty()
        self.stream: TextIO = os.fdopen(writer, "w")

    def read_until(self, text: str) -> str:
        """Read the output up to `text`."""
        seen = ""
        while text not in seen:
            assert select.select([self._reader], [], [], 30)[0], f"only {seen!r} was written"
            seen += os.read(self._reader, 4096).decode()
        return seen

    def close(self) -> str:
        """Return all unread output."""
        self.stream.write("END")
        self.stream.close()
        return self.read_until("END").removesuffix("END")


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_long_compile_is_a_live_line_on_a_terminal(terminal: Terminal) -> None:
    """While it runs: what and for how long; at its end: how long it took, on a line that stays."""
    with shown("saxpy for sm_90", 0, terminal.stream):
        assert "numba_kcache: compiling saxpy for sm_90 ... 0 s" in terminal.read_until("0 s")
    last = terminal.close().rpartition("\r\x1b[K")[2]

    assert last.startswith("numba_kcache: compiled saxpy for sm_90 in ")
    assert last.endswith("\n")


def test_failed_compile_leaves_no_line(terminal: Terminal) -> None:
    """The live line is cleared; the error follows."""
    with suppress(ValueError), shown("saxpy for sm_90", 0, terminal.stream):
        terminal.read_until("0 s")
        raise ValueError

    assert terminal.close() == "\r\x1b[K"


def test_long_compile_is_not_shown_elsewhere(tmp_path: Path) -> None:
    """A file or a pipe gets no control characters."""
    with open(tmp_path / "said", "w") as stream, shown("saxpy for sm_90", 0, stream):
        pass

    assert (tmp_path / "said").read_text() == ""


def test_short_compile_is_silent(terminal: Terminal, caplog: pytest.LogCaptureFixture) -> None:
    """A compile of less than a second prints and logs nothing."""
    with caplog.at_level(logging.DEBUG, "numba_kcache"):
        with shown("saxpy for sm_90", FOR_EVER, terminal.stream):
            pass

    assert terminal.close() == ""
    assert not caplog.records


@pytest.mark.parametrize("stream", ["closed", "none", "odd"])
def test_no_stream_to_say_it_on_is_no_error(stream: str) -> None:
    """Standard error is closed, absent, or replaced by another object: the compile succeeds."""
    closed = io.StringIO()
    closed.close()
    given = {"closed": closed, "none": None, "odd": object()}[stream]
    with shown("saxpy for sm_90", 0, given):  # type: ignore[arg-type]
        pass


def test_long_name_fits_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could not be overwritten."""
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((40, 24)))
    with shown("x" * 500, 0, terminal.stream):
        seen = terminal.read_until("x" * 5)
    seen += terminal.close()

    assert max(len(part) for part in seen.replace("\r\n", "").split("\r\x1b[K")) == 39


@pytest.mark.parametrize("wanted", [True, False])
def test_compiles_say_so_if_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal, wanted: bool
) -> None:
    """`progress=False` prints nothing; a hit prints nothing and starts no thread."""
    started, start = list[str](), threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread)))
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    cache = KernelCache(tmp_path, durability="none", progress=wanted)
    cached_kernel(EMPTY, name="k", arch="sm_90", cache=cache).compile()
    again = KernelCache(tmp_path, durability="none", progress=wanted)
    cached_kernel(EMPTY, name="k", arch="sm_90", cache=again).compile()

    assert started.count("numba_kcache progress") == wanted
    assert again.info("process").hits == 1


COMPILE = """
import sys, threading
started, start = [], threading.Thread.start
threading.Thread.start = lambda thread: started.append(thread.name) or start(thread)
if sys.argv[1] == "closed":
    sys.stderr.close()
elif sys.argv[1] == "odd":
    sys.stderr = type("Stream", (), {"isatty": False, "flush": lambda stream: None})()
for name in sys.argv[2:]:
    __import__(name)
from numba_kcache import cached_kernel
cached_kernel('extern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90").compile()
print("numba_kcache progress" in started)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [("open",), ("open", "logging"), ("closed",), ("odd",)], ids=str)
def test_compile_that_nobody_watches_starts_no_thread(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Standard error is no terminal, closed, or another object; the log gets a line at the end of each compile."""
    assert in_python(COMPILE, *how, NUMBA_KCACHE_DIR=str(tmp_path / "cache")).split() == ["False"]
