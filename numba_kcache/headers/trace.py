"""Which headers NVRTC processed, from the trace that it writes with `--fdevice-time-trace`.

Promise     `is_whole` only where nothing known to damage a trace has happened. A file of another shape is no
            trace; reading one never raises.
Method      NVRTC processes its own `__nv_nvrtc_builtin_header.h` in every compile. After a compile that died
            inside a nested header, all later traces of the process lack headers, and lack this one first.
Not here    The flag, the private file and reading it (toolchain). NVRTC appends ".json" to the name it is given,
            appends to a file that exists, and aborts the process where it cannot write.
Ground      NVRTC 13.0 to 13.5; 12.8 and 12.9 write a trace without headers, which is not whole either.
"""

from __future__ import annotations

import json
from typing import NamedTuple

BUILTIN_HEADER = "__nv_nvrtc_builtin_header.h"
_EVENT = "Processing Header File"


class TraceResult(NamedTuple):
    """The headers of one compile.

    Args:
        headers: Paths as NVRTC spelled them, or names of in-memory headers; each once.
        is_whole: Whether none is missing.
    """

    headers: tuple[str, ...] = ()
    is_whole: bool = False


def read_trace(data: bytes) -> TraceResult:
    """Read the trace of one successful compile."""
    try:
        events = json.loads(data)["traceEvents"]
        names = [each["args"]["detail"] for each in events if each and each.get("name") == _EVENT]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return TraceResult()
    if not all(type(each) is str for each in names):
        return TraceResult()
    headers = dict.fromkeys(names)
    is_whole = BUILTIN_HEADER in headers
    headers.pop(BUILTIN_HEADER, None)
    return TraceResult(tuple(headers), is_whole)
