"""Which headers NVRTC read, compile by compile: a private file in memory that it writes its traces to.

Promise     NVRTC can always write it: LLVM aborts the whole process where it cannot write its trace, on a full disk for
            one, so the name that NVRTC gets is a link to a file in memory. Where that cannot be had there is no trace.
Method      `--fdevice-time-trace=NAME` writes NAME.json. NAME.json is a symbolic link, in a private folder, to
            /proc/self/fd/N of a memfd. NVRTC appends to what is there, so the file is emptied before each compile, and
            what it holds after one that succeeded is kept under the text that was compiled.
Not here    What the trace says (inputs.header_trace).
Ground      NVRTC User Guide, "--fdevice-time-trace"; memfd_create(2). From NVRTC 13.0 on the trace names headers;
            12.8 and 12.9 write one without them, 12.6 fails the compile. Seen with 13.5: after a traced compile that
            failed, the thread's next compile writes `.json` into the working directory (run_traced ends that).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..model.request import LinkInput
from .nvrtc import NvrtcResult, run_nvrtc

MAX_TRACE_BYTES = 1 << 28


class TimeTrace:
    """Where the traces go: `flag` for NVRTC, `clear` before and `read` after a compile.

    `of` holds the traces of the texts that compiled: of link inputs, and under None of the source.
    """

    def __init__(self, fd: int, flag: str) -> None:
        self._fd, self.flag = fd, flag
        self.of: dict[LinkInput | None, bytes] = {}

    def clear(self) -> None:
        """Empty it, before the next compile."""
        os.ftruncate(self._fd, 0)

    def read(self) -> bytes:
        """What the last compile wrote."""
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
    """A trace for the compiles of this block; None where NVRTC or the system has none to give."""
    folder, fd, trace = "", -1, None
    try:
        try:
            if nvrtc_version >= (13, 0) and hasattr(os, "memfd_create"):
                fd = os.memfd_create("numba_kcache_trace")
                folder = tempfile.mkdtemp(prefix="numba_kcache_")
                os.symlink(f"/proc/self/fd/{fd}", os.path.join(folder, "trace.json"))
                os.close(os.open(os.path.join(folder, "trace.json"), os.O_WRONLY))  # not so without /proc
                folder.encode()  # as the flag will be
                trace = TimeTrace(fd, f"--fdevice-time-trace={folder}/trace")
        except (OSError, UnicodeEncodeError):
            trace = None
        yield trace
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if fd >= 0:
            os.close(fd)
