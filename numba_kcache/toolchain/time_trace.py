"""A private file in memory that NVRTC writes the trace of one compile to.

Promise     NVRTC can always write it: LLVM aborts the whole process where it cannot write its trace, on a full disk for
            one, so the name that NVRTC gets is a link to a file in memory. Where that cannot be had there is no trace.
Method      `--fdevice-time-trace=NAME` writes NAME.json. NAME.json is a symbolic link, in a private folder, to
            /proc/self/fd/N of a memfd. NVRTC appends to what is there, so the file is emptied before each compile.
Not here    What the trace says (inputs.header_trace).
Ground      NVRTC User Guide, "--fdevice-time-trace"; memfd_create(2). From NVRTC 13.0 on the trace names headers;
            12.8 and 12.9 write one without them, 12.6 fails the compile. Seen with 13.5: after a traced compile that
            failed, the thread's next compile writes `.json` into the working directory (source_build ends that).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

MAX_TRACE_BYTES = 1 << 28


class TimeTrace:
    """Where the trace goes: `flag` for NVRTC, `clear` before and `read` after a compile."""

    def __init__(self, fd: int, flag: str) -> None:
        self._fd, self.flag = fd, flag

    def clear(self) -> None:
        """Empty it, before the next compile."""
        os.ftruncate(self._fd, 0)

    def read(self) -> bytes:
        """What the last compile wrote."""
        size = min(os.fstat(self._fd).st_size, MAX_TRACE_BYTES)
        return os.pread(self._fd, size, 0)


@contextmanager
def time_trace(nvrtc_version: tuple[int, int]) -> Iterator[TimeTrace | None]:
    """A trace for the compiles of this block; None where NVRTC or the system has none to give."""
    folder, fd = None, -1
    try:
        try:
            if nvrtc_version >= (13, 0) and hasattr(os, "memfd_create"):
                fd = os.memfd_create("numba_kcache_trace")
                folder = tempfile.mkdtemp(prefix="numba_kcache_")
                os.symlink(f"/proc/self/fd/{fd}", os.path.join(folder, "trace.json"))
        except OSError:
            folder = None
        yield TimeTrace(fd, f"--fdevice-time-trace={folder}/trace") if folder else None
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        if fd >= 0:
            os.close(fd)
