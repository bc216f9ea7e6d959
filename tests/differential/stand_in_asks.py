"""A kernel of `from numba_kcache import cuda`, asked with the stand-in and with the Numba for which it stands.

Promise     Both ways read the same modules, which import `cuda` by the variable `PK_REAL`, and launch on the fake
            driver: a signature would need Numba. The PTX is held against a plain compile of `python_asks`.
Method      No process imports Numba before its ask: `serve` runs in one that has none, but hidden, `serve_real` and
            `plain` in children of a process that imported it once.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.support.hidden import hide

from . import cpp_asks, python_asks
from .cpp_asks import Answer, Call
from .processes import Child, alone

_oracle: list[Child] = []


class Memory:
    """A float64 array of the driver's memory."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])
        address = int(driver.cuMemAlloc(512)[1])
        self.__cuda_array_interface__ = {"shape": (64,), "typestr": "<f8", "data": (address, False), "version": 3}


def warm() -> None:
    """Import what a program without Numba has, so that forked processes need not, and hide Numba, which some need."""
    import cuda.bindings.driver  # noqa: F401
    import numpy  # noqa: F401

    import numba_kcache.cuda  # noqa: F401

    sys.dont_write_bytecode, python_asks._state["cuda"] = True, "numba.cuda"
    hide("numba.cuda")
    assert "numba" not in sys.modules


def decorate(call: Call) -> None:
    """Nothing: a kernel is decorated with each ask."""


def serve(call: Call) -> Answer:
    """Launch with the stand-in and return the PTX; `detail` says whether Numba was needed."""
    return _served(call, is_real=False)


def serve_real(call: Call) -> Answer:
    """Launch with Numba in a process of its own and return the PTX."""
    answer: Answer = _with_numba(_served, {**call, "cache": "new"}, True)
    return answer


def plain(call: Call) -> list[Answer]:
    """Compile the program as it is now with Numba alone."""
    answers: list[Answer] = _with_numba(python_asks.plain, call)
    return answers


def end() -> None:
    """End the process that has Numba."""
    while _oracle:
        _oracle.pop().end()


def _with_numba(function: Any, *arguments: Any) -> Any:
    if not _oracle:
        _oracle.append(Child())
        _oracle[0].call(python_asks.warm)
    return _oracle[0].call(_alone_really, function, *arguments)


def _alone_really(function: Any, *arguments: Any) -> Any:
    os.environ["PK_REAL"] = "1"
    return alone(function, *arguments)


def _served(call: Call, is_real: bool) -> Answer:
    python_asks._state["cuda"] = "numba.cuda" if is_real else "numba_kcache.cuda"
    try:
        python_asks.enter(call)
    except Exception as error:
        return Answer(None, failed=f"import: {type(error).__name__}: {error}")
    cache, main = cpp_asks.cache_of(call), sys.modules["pk_main"]
    found: list[Any] = []

    def ask() -> str:
        from numba_kcache import cached_kernel, cuda

        if is_real:
            kernel = cached_kernel(
                vars(main)["k"], kind="numba", arch="sm_90", strict=True, cache=cache, **call["options"]
            )
        else:
            kernel = cuda.jit(vars(main)["k"], arch="sm_90", strict=True, cache=cache, **call["options"])
        kernel[1, 64](Memory(), Memory())
        way = "real" if is_real else "loaded" if "numba" in sys.modules else "light"
        found.extend((kernel.key(), way))
        return python_asks._without_padding(*kernel.ptx().values())

    answer = cpp_asks.answer(cache, ask)
    return answer._replace(key=found[0], way=found[1]) if found else answer
