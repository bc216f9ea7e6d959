"""Print, as JSON, the package's modules that one program imports and its function calls up to the first launch.

Method      Context and arrays are made first. Then this package is imported, the profile of this thread starts, a
            kernel is decorated and launched once, and the profile ends. A call is the start of a function of this
            package; its caller is the nearest function of this package on the stack, "" for the program itself. Bodies
            of modules and classes, the creation of named tuples, comprehensions, and resumed generators are not
            counted.
Run         By .ci/house.py, on the tests' fake driver: python .ci/warm_calls.py KIND
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from inspect import CO_GENERATOR, CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

SOURCE = r"""extern "C" __global__ void saxpy(float a, const float *x, float *y) { y[0] = a * x[0]; }"""
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
MAKES_TUPLES = {"NamedTuple.__init_subclass__", "NamedTuple.__new__", "NamedTuple._replace"}
"""The functions that create the classes of named tuples and the tuples, in numba_kcache/model."""

KIND = sys.argv[1]


class BareArray:
    """Device memory with an array interface, allocated by the driver and not by an array package."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (64,), "typestr": "<f4", "data": (address, False), "version": 3}


def bare_arrays() -> tuple[Any, Any]:
    from cuda.bindings import driver

    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    (_, x), (_, y) = driver.cuMemAlloc(256), driver.cuMemAlloc(256)
    return BareArray(int(x)), BareArray(int(y))


if KIND == "CUDA C++":
    x, y = bare_arrays()
else:
    import numpy as np
    from numba import cuda

    warnings.simplefilter("ignore")  # Numba warns of a grid this small
    x, y = (cuda.to_device(np.ones(64, np.float32)) for _ in range(2))

import numba_kcache  # noqa: E402
from numba_kcache import cached_kernel  # noqa: E402

PACKAGE = os.path.dirname(numba_kcache.__file__)
calls: Counter[tuple[str, str, str]] = Counter()
generators: set[FrameType] = set()


def module_of(code: CodeType) -> str:
    """The module that contains the code: `store.disk`; "" for a file outside the package."""
    if not code.co_filename.startswith(PACKAGE + os.sep):
        return ""
    return code.co_filename[len(PACKAGE) + 1 :].removesuffix(".py").replace(os.sep, ".")


def count(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    callee = module_of(code)
    is_exempt = code.co_name in COMPREHENSIONS or code.co_qualname in MAKES_TUPLES
    if event != "call" or not callee or not code.co_flags & CO_OPTIMIZED or is_exempt:
        return
    if code.co_flags & CO_GENERATOR:
        if frame in generators:
            return
        generators.add(frame)
    caller, outer = "", frame.f_back
    while outer is not None and not caller:
        caller, outer = module_of(outer.f_code), outer.f_back
    calls[caller, callee, code.co_qualname] += 1


if KIND == "Numba":
    sys.setprofile(count)

    @cached_kernel
    def saxpy(a, x, y):  # type: ignore[no-untyped-def]
        y[0] = a * x[0]
else:
    sys.setprofile(count)

    @cached_kernel
    def saxpy():  # type: ignore[no-untyped-def]
        return SOURCE


saxpy[2, 32](2.0, x, y)
sys.setprofile(None)
modules = sorted(name for name in sys.modules if name.split(".")[0] == "numba_kcache")
found = [[*call, count] for call, count in calls.items()]
print(json.dumps({"modules": modules, "calls": found, "compiles": numba_kcache.info("process").compiles}))
