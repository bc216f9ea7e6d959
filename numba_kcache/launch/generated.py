"""The straight-line function that a kernel's slots make, and its stand-in until it is made.

Promise     The generated function launches exactly as the interpreted path does, or hands over to it.
Method      Fixed lines go through `compile`. What is fixed per kernel stands in the namespace; what changes
            with block and stream stands in cells, and so does the grid, in cells of its own: binding a new shape
            makes no code, binding a new grid three cells and a function. The stub closes over the same cells: a
            function made with it takes the generated code later. Each kernel has code objects of its own, since the
            interpreter's inline caches live in them.
Not here    What the lines of a parameter say (`slots`).
Ground      CPython: `function.__code__` may be set where the numbers of free variables agree; they are in
            alphabetical order, and names count that only code behind a return mentions.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from .devices import NUMBA_DEVICES
from .memory import torch_stream
from .slots import Inline

MISSING = object()
"""Stands in the place of an argument that was not given."""

STUB = -1
"""Why the stub hands over; the generated function says 0, or the driver's code."""

_PLAIN = "function, gx, gy, gz, bx, by, bz, shared, stream, address, 0"
_CONFIGURED = "stream, function, address, 0"
_HERE = "((gx, gy, gz), (bx, by, bz), shared), stream, given"
_CELLS = "bx, by, bz, shared, stream, order, given"
_GRID = "gx, gy, gz"


def over_grids_stub(
    bx: int, by: int, bz: int, shared: int, stream: Any, order: int, given: Any
) -> Callable[[int, int, int], FunctionType]:
    """What makes a function for each grid; the function hands every launch over, until it gets the generated code.

    Args:
        bx, by, bz: Threads of a block.
        shared: Bytes of dynamic shared memory.
        stream: What the driver takes: a stream, or the whole configuration.
        order: Of the stream (`streams.same_order`).
        given: The stream as the user gave it.
    """

    def bind(gx: int, gy: int, gz: int) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            slow(arguments, -1, ((gx, gy, gz), (bx, by, bz), shared), stream, given)  # type: ignore[name-defined]  # noqa: F821
            return
            order  # noqa: B018

        return launch

    return bind  # type: ignore[return-value]


def inner_code(outer: CodeType) -> CodeType:
    """The code of the function that a function makes."""
    return next(each for each in outer.co_consts if isinstance(each, CodeType))


def generate(inlines: Sequence[Inline], *, elsewhere: bool, configured: bool, alone: bool = False) -> CodeType:
    """The code of an `over_grids` whose functions launch by themselves wherever they can.

    Args:
        inlines: What it does for each parameter.
        elsewhere: Whether another device may be the current one.
        configured: Whether the driver takes a configuration instead of extents and stream.
        alone: Whether the program does not use Numba yet: as soon as it does, the module has to watch its context.
    """
    names = [f"a{k}" for k in range(len(inlines))]
    listed = "".join(f"{name}, " for name in names)
    given = f"({listed})"
    unusual = f"return slow({given}, 0, {_HERE})"
    values = [each.values.replace("{k}", str(k)) for k, each in enumerate(inlines)]
    text = [
        f"def over_grids({_CELLS}):",
        f"  def bind({_GRID}):",
        f"    def launch({''.join(f'{name}=missing, ' for name in names)}{'/, ' if names else ''}*rest):",
        f"        if {' or '.join(_refusals(names, elsewhere=elsewhere, alone=alone))}:",
        f"            return slow(({listed}*rest,), 0, {_HERE})",
        "        torch = cupy = False",
        "        try:",
        *(each.lines.replace("{slow}", unusual).replace("{k}", str(k)) for k, each in enumerate(inlines)),
        "            if torch and torch_stream(device) != order or cupy and cupy_stream().ptr != order:",
        f"                {unusual}",
        "            try:",
        "                memory, address = buffer = idle.pop()",
        "            except IndexError:",
        "                memory, address = buffer = new_buffer()",
        f"            pack(memory, 0, {', '.join(values)})",
        "        except unusual:",
        f"            {unusual}",
        f"        code = launch_kernel({_CONFIGURED if configured else _PLAIN})[0]",
        "        idle.append(buffer)",
        "        if code:",
        f"            return slow({given}, int(code), {_HERE})",
        "        return",
        f"        {_CELLS}, {_GRID}",
        "    return launch",
        "  return bind",
    ]
    return inner_code(compile("\n".join(text), "<launch>", "exec"))


def _refusals(names: Sequence[str], *, elsewhere: bool, alone: bool) -> list[str]:
    """What sends a launch to the slow path before any argument is looked at."""
    return [
        *(f"{name} is missing" for name in names[-1:]),
        "rest",
        "not live[0]",
        *([f"alone[0] and {NUMBA_DEVICES!r} in modules"] if alone else []),
        *(["(here := get_device()[1]) is None or int(here) != device"] if elsewhere else []),
    ]


def fill(namespace: dict[str, Any], inlines: Sequence[Inline], **fixed: Any) -> None:
    """Put the names that the generated code needs into its namespace.

    Args:
        namespace: Of one kernel.
        inlines: What the code does for each parameter, with the names that it needs.
        fixed: What else is fixed per kernel.
    """
    namespace.update(
        NumbaArray=None,  # until one is seen
        OwnedPointer=None,
        CupyArray=None,
        Tensor=None,
        missing=MISSING,
        unusual=(struct.error, OverflowError, AttributeError, RuntimeError, ReferenceError),
        integers=frozenset(),
        reals=frozenset(),
        type=type,
        int=int,
        float=float,
        IndexError=IndexError,
        **fixed,
    )
    for k, inline in enumerate(inlines):
        for name, value in inline.names.items():
            known = _learning(value, namespace) if name == "pointer{k}" else value
            namespace[name.replace("{k}", str(k))] = known
    if "numpy" in sys.modules:
        _learn_numpy(namespace)
    if "numba.cuda.cudadrv.devicearray" in sys.modules:
        _learn_numba(namespace)


def _learning(read: Callable[[Any, int], int | None], namespace: dict[str, Any]) -> Callable[[Any, int], Any]:
    """Read an argument that the code did not recognise, and let it recognise the next one of its library."""

    def address(value: Any, order: int) -> int | None:
        kind = type(value)
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        numba = sys.modules.get("numba.cuda.cudadrv.devicearray")
        if torch is not None and kind is torch.Tensor and namespace["Tensor"] is not kind:
            _name_dtypes(namespace, "torch_dtype", lambda name: getattr(torch, name, None))
            namespace.update(torch_stream=torch_stream(torch), Tensor=kind)
        elif cupy is not None and kind is cupy.ndarray and hasattr(kind, "_c_contiguous"):
            _learn_numpy(namespace)
            namespace.update(cupy_stream=cupy.cuda.get_current_stream, CupyArray=kind)
        elif numba is not None and kind is numba.DeviceNDArray and namespace["NumbaArray"] is not kind:
            _learn_numpy(namespace)
            _learn_numba(namespace)
        return read(value, order)

    return address


def _name_dtypes(namespace: dict[str, Any], start: str, dtype: Callable[[str], Any]) -> None:
    """Put dtypes in the place of their names."""
    for name, value in list(namespace.items()):
        if name.startswith(start) and isinstance(value, str):
            namespace[name] = dtype(value)


def _learn_numpy(namespace: dict[str, Any]) -> None:
    """Let the code recognise NumPy's scalars and dtypes; a program without NumPy does not import it for them."""
    import numpy

    _name_dtypes(namespace, "dtype", numpy.dtype)
    namespace.update(integers=_numpy_scalars("iu"), reals=_numpy_scalars("iuf"))


def _learn_numba(namespace: dict[str, Any]) -> None:
    """Let the code recognise Numba's arrays, in a program that has imported what makes them."""
    pointers, arrays = sys.modules["numba.cuda.cudadrv.driver"], sys.modules["numba.cuda.cudadrv.devicearray"]
    namespace.update(OwnedPointer=pointers.OwnedPointer, NumbaArray=arrays.DeviceNDArray)


def _numpy_scalars(kinds: str) -> frozenset[type]:
    import numpy

    return frozenset(numpy.dtype(each).type for each in "bhilqBHILQefd" if numpy.dtype(each).kind in kinds)
