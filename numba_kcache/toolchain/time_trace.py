"""Let NVRTC write a trace of the headers that it read, compile by compile, to a private file in memory.

Promise     NVRTC can always write it: LLVM aborts the whole process where it cannot write its trace, on a full disk for
            one, so the name that NVRTC gets is a link to a file in memory. Where that cannot be had there is no trace.
Method      `--fdevice-time-trace=NAME` writes NAME.json. NAME.json is a symbolic link, in a private folder, to
            /proc/self/fd/N of a memfd. NVRTC appends to what is there, so the file is emptied before each compile, and
            what it holds after one that succeeded is kept under the text that was compiled.
Not here    Reading the trace (headers.trace).
Ground      NVRTC User Guide, "--fdevice-time-trace"; memfd_create(2). From NVRTC 13.0 on the trace names headers;
            12.8 and 12.9 write one without them, 12.6 fails the compile. Seen with 13.5: after a traced compile that
            failed, the thread's next compile writes `.json` into the working directory (run_traced ends that).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from ..model.request import LinkInput
from .nvrtc import NvrtcResult, run_nvrtc

MAX_TRACE_BYTES = 1 << 28


class TimeTrace:
    """The file of the traces: `flag` for NVRTC, `clear` before and `read` after a compile.

    `of` holds the traces of the texts that compiled: of link inputs, and under None of the source.
    """

    def __init__(self, fd: int, flag: str) -> None:
        self._fd, self.flag = fd, flag
        self.of: dict[LinkInput | None, bytes] = {}

    def clear(self) -> None:
        """Empty it, before the next compile."""
        os.ftruncate(self._fd, 0)

    def read(self) -> bytes:
        """Read what the last compile wrote."""
        size = min(os.fstat(self._fd).st_size, MAX_TRACE_BYTES)
        return os.pread(self._fd, size, 0)


def run_traced(
    trace: TimeTrace | None,
    of: LinkInput | None,
    source: str,
    program: str,
    flags: Sequence[str],
    outputs: Sequence[str],
    expressions: Sequence[str] = (),
) -> NvrtcResult:
    """Run NVRTC; where a trace is wanted, keep it as the one `of` this text, and leave the tracer stopped.

    After a traced compile that failed the tracer still runs, and the next compile of this thread, Numba's too, writes
    ".json" into the working directory, or aborts the process where it cannot. A traced compile that succeeds stops it.
    """
    if trace is None:
        return run_nvrtc(source, program, flags, outputs, expressions)
    trace.clear()
    is_stopped = False
    try:
        result = run_nvrtc(source, program, [*flags, trace.flag], outputs, expressions)
        if is_stopped := result.ok:
            trace.of[of] = trace.read()
        return result
    finally:
        if not is_stopped:
            run_nvrtc("", program, [trace.flag], ())


@contextmanager
def time_trace(nvrtc_version: tuple[int, int]) -> Iterator[TimeTrace | None]:
    """Give a trace for the compiles of this block; None where NVRTC or the system has none to give."""
    trace = None
    with ExitStack() as stack:
        if nvrtc_version >= (13, 0) and hasattr(os, "memfd_create"):
            with suppress(OSError, UnicodeEncodeError):
                fd = os.memfd_create("numba_kcache_trace")
                stack.callback(os.close, fd)
                private = tempfile.TemporaryDirectory(prefix="numba_kcache_", ignore_cleanup_errors=True)
                folder = stack.enter_context(private)
                folder.encode()  # as the flag will be
                os.symlink(f"/proc/self/fd/{fd}", os.path.join(folder, "trace.json"))
                os.close(os.open(os.path.join(folder, "trace.json"), os.O_WRONLY))  # not so without /proc
                trace = TimeTrace(fd, f"--fdevice-time-trace={folder}/trace")
        yield trace
