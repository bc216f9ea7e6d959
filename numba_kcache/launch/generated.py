"""The straight-line function that a kernel's slots make, once it was launched a few times.

Promise     The generated function launches exactly as the interpreted path does, or hands over to it. Its lines accept
            only what `Slot.settle` accepts and give the same values, faster; they are put together from fixed text.
Method      Fixed lines go through `compile`. What is fixed per kernel stands in the namespace; what changes
            with block and stream stands in cells, and so does the grid, in cells of its own: binding a new shape
            makes no code, binding a new grid three cells and a function. The stub closes over the same cells: a
            function made with it takes the generated code later. Each kernel has code objects of its own, since the
            interpreter's inline caches live in them. A line template knows its parameter as {k}: the argument is
            a{k}, the value v{k}, {slow} hands over; what else it needs stands under names in {k} in the namespace.
Not here    The stub (`launcher.over_grids_stub`).
Ground      CPython: `function.__code__` may be set where the numbers of free variables agree; they are in
            alphabetical order, and stub and launch mention all of them. Numba's DeviceNDArray keeps dtype and
            contiguity as plain attributes; its gpu_data knows the address as a ctypes value. torch.dtype and NumPy's
            own dtypes are singletons, so `is` decides the common case and any other goes the general way.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from .arguments import CARRIERS, NUMPY_NAMES, Inline, ParameterSlot, PointerSlot, Settle, Slot
from .devices import NUMBA_DEVICES
from .launcher import MISSING, Launcher
from .memory import torch_stream
from .pointers import TAKE_ANY, alignment_of

_NUMBA_ARRAYS = "numba.cuda.cudadrv.devicearray"

_PLAIN = "function, gx, gy, gz, bx, by, bz, shared, stream, address, 0"
_CONFIGURED = "stream, function, address, 0"
_HERE = "((gx, gy, gz), (bx, by, bz), shared), stream, stream_id, given"
_CELLS = "bx, by, bz, shared, stream, stream_id, given"
_GRID = "gx, gy, gz"

_NUMBER_LINES = """\
            v{k} = a{k} if {exact} else number{k}(a{k})
"""
_POINTER_LINES = """\
            t = type(a{k})
            if (t is NumbaArray and {numba_dtype}a{k}._dummy.flags["C_CONTIGUOUS"]
                    and (not (s := a{k}.stream) or s is given){numba_device}):
                v{k} = a{k}.gpu_data.device_ctypes_pointer.value
            elif t is CupyArray and {numba_dtype}a{k}._c_contiguous{cupy_device}:
                v{k} = a{k}.data.ptr
                cupy = True
            elif (t is Tensor and {torch_dtype}a{k}.is_contiguous() and a{k}.get_device() == device
                    and not a{k}.is_neg(){torch_conj}):
                v{k} = a{k}.data_ptr()
                torch = True
            elif (v{k} := pointer{k}(a{k}, stream_id)) is None:
                {slow}
"""
_ALIGNED_LINES = """\
            if v{k} & {mask}:
                {slow}
"""
_ADDRESS_LINES = """\
            if (v{k} := pointer{k}(a{k}, stream_id)) is None:
                {slow}
"""
_EXACT = {
    "i": "(t := type(a{k})) is int or t in integers",
    "u": "(t := type(a{k})) is int or t in integers",
    "f": "(t := type(a{k})) is float or t is int or t in reals",
    "b": "a{k} is True or a{k} is False",
    "c": "type(a{k}) is complex",
}


def inline(slot: ParameterSlot) -> Inline:
    """The generated code for one parameter."""
    if isinstance(slot, PointerSlot):
        return _pointer(slot)
    code = slot.code
    exact = "False" if code in CARRIERS else _EXACT.get(code[0], "False")
    convert = (
        slot.convert if exact == "False" else lambda value: slot.convert(value)
    )  # made for the first that needs it
    values = "v{k}.real, v{k}.imag" if code[0] == "c" else "v{k}"
    return _NUMBER_LINES.replace("{exact}", exact), {"number{k}": convert}, values


def _pointer(slot: PointerSlot) -> Inline:
    if slot.code == "?":  # eight bytes of unknown type
        return _ADDRESS_LINES, {"pointer{k}": slot.settle}, "v{k}"
    pointee, alignment = slot.pointee, alignment_of(slot.pointee)
    has_other_devices = slot.launcher.module.device_of is not None
    takes_any = pointee in TAKE_ANY
    element = pointee[2:] if pointee[0] == "v" else pointee
    parts = {
        "{numba_dtype}": "" if takes_any else "a{k}.dtype is dtype{k} and ",
        "{torch_dtype}": "" if takes_any else "a{k}.dtype is torch_dtype{k} and ",
        "{torch_conj}": " and not a{k}.is_conj()" if takes_any or element[0] == "c" else "",
        "{numba_device}": " and type(g := a{k}.gpu_data) is OwnedPointer and g._view.context is context"
        if has_other_devices
        else "",
        "{cupy_device}": " and a{k}.data.device_id == device" if has_other_devices else "",
        "{mask}": str(alignment - 1),
    }
    lines = _POINTER_LINES + (_ALIGNED_LINES if alignment > 1 else "")
    for part, text in parts.items():
        lines = lines.replace(part, text)
    names: dict[str, Any] = {"pointer{k}": slot.settle}
    if not takes_any:
        names |= {"dtype{k}": NUMPY_NAMES[CARRIERS.get(element, element)], "torch_dtype{k}": NUMPY_NAMES[element]}
    return lines, names, "v{k}"


def generate(launcher: Launcher, namespace: dict[str, Any], slots: Sequence[Slot]) -> CodeType:
    """The code of an `over_grids` whose functions launch by themselves wherever they can.

    Args:
        launcher: Of the kernel.
        namespace: Of the function; what the code needs is added.
        slots: Of the kernel.
    """
    inlines = [slot.inline() for slot in slots]
    _fill(namespace, launcher, inlines)
    names = [f"a{k}" for k in range(len(inlines))]
    listed = "".join(f"{name}, " for name in names)
    given = f"({listed})"
    unusual = f"return slow({given}, 0, {_HERE})"
    packed = [values.replace("{k}", str(k)) for k, (_, _, values) in enumerate(inlines)]
    handed_over = [
        *(f"{name} is missing" for name in names[-1:]),
        "rest",
        "not live[0]",
        *([f"awaits_numba[0] and {NUMBA_DEVICES!r} in modules"] if launcher.module.awaits_numba[0] else []),
        *(["(here := get_device()[1]) is None or int(here) != device"] if launcher.module.device_of else []),
    ]
    text = [
        f"def over_grids({_CELLS}):",
        f"  def bind({_GRID}):",
        f"    def launch({''.join(f'{name}=missing, ' for name in names)}{'/, ' if names else ''}*rest):",
        f"        if {' or '.join(handed_over)}:",
        f"            return slow(({listed}*rest,), 0, {_HERE})",
        "        torch = cupy = False",
        "        try:",
        *(lines.replace("{slow}", unusual).replace("{k}", str(k)) for k, (lines, _, _) in enumerate(inlines)),
        "            if torch and torch_stream(device) != stream_id or cupy and cupy_stream().ptr != stream_id:",
        f"                {unusual}",
        "            try:",
        "                memory, address = buffer = idle.pop()",
        "            except IndexError:",
        "                memory, address = buffer = new_buffer()",
        f"            pack(memory, 0, {', '.join(packed)})",
        "        except unusual:",
        f"            {unusual}",
        f"        code = launch_kernel({_CONFIGURED if launcher.attributes else _PLAIN})[0]",
        "        idle.append(buffer)",
        "        if code:",
        f"            return slow({given}, int(code), {_HERE})",
        "    return launch",
        "  return bind",
    ]
    return inner_code(compile("\n".join(text), "<launch>", "exec"))


def inner_code(outer: CodeType) -> CodeType:
    """The code of the function that a function makes."""
    return next(each for each in outer.co_consts if isinstance(each, CodeType))


def _fill(namespace: dict[str, Any], launcher: Launcher, inlines: Sequence[Inline]) -> None:
    driver, module = launcher.driver, launcher.module
    namespace.update(
        live=launcher.live,
        device=module.device.ordinal,
        context=module.numba_context,
        awaits_numba=module.awaits_numba,
        get_device=driver.cuCtxGetDevice,
        function=launcher.function,
        launch_kernel=driver.cuLaunchKernelEx if launcher.attributes else driver.cuLaunchKernel,
        idle=launcher.idle,
        new_buffer=launcher.new_buffer,
        pack=launcher.pack,
        missing=MISSING,
        NumbaArray=None,  # until one is seen
        OwnedPointer=None,
        CupyArray=None,
        Tensor=None,
        unusual=(struct.error, OverflowError, AttributeError, RuntimeError, ReferenceError),
        integers=frozenset(),
        reals=frozenset(),
        modules=sys.modules,
    )
    for k, (_, names, _) in enumerate(inlines):
        for name, value in names.items():
            learns = name == "pointer{k}"
            namespace[name.replace("{k}", str(k))] = _learning(value, namespace) if learns else value
    if "numpy" in sys.modules:
        _learn_numpy(namespace)


def _learning(settle: Settle, namespace: dict[str, Any]) -> Callable[[Any, int], Any]:
    """Settle an argument that the code did not recognise, and let it recognise the next one of its library."""

    def address(value: Any, stream_id: int) -> int | None:
        kind = type(value)
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        numba = sys.modules.get(_NUMBA_ARRAYS)
        if torch is not None and kind is torch.Tensor and namespace["Tensor"] is not kind:
            _name_dtypes(namespace, "torch_dtype", lambda name: getattr(torch, name, None))
            namespace.update(torch_stream=torch_stream(torch), Tensor=kind)
        elif cupy is not None and kind is cupy.ndarray and hasattr(kind, "_c_contiguous"):
            _learn_numpy(namespace)
            namespace.update(cupy_stream=cupy.cuda.get_current_stream, CupyArray=kind)
        elif numba is not None and kind is numba.DeviceNDArray and namespace["NumbaArray"] is not kind:
            _learn_numpy(namespace)
        found: int | None = settle(value, stream_id, None)
        return found

    return address


def _name_dtypes(namespace: dict[str, Any], start: str, dtype: Callable[[str], Any]) -> None:
    """Put dtypes in the place of their names."""
    for name, value in list(namespace.items()):
        if name.startswith(start) and isinstance(value, str):
            namespace[name] = dtype(value)


def _learn_numpy(namespace: dict[str, Any]) -> None:
    """Let the code recognise NumPy's scalars and dtypes, and Numba's arrays; a program without does not import them."""
    import numpy

    _name_dtypes(namespace, "dtype", numpy.dtype)
    reals = [numpy.dtype(letter).type for letter in "bhilqBHILQefd"]
    namespace.update(
        integers=frozenset(each for each in reals if issubclass(each, numpy.integer)), reals=frozenset(reals)
    )
    if _NUMBA_ARRAYS in sys.modules:
        pointer = sys.modules["numba.cuda.cudadrv.driver"].OwnedPointer
        namespace.update(OwnedPointer=pointer, NumbaArray=sys.modules[_NUMBA_ARRAYS].DeviceNDArray)
