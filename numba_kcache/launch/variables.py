"""A variable of a loaded module as a device array.

Promise     The array is a view of the variable's memory, has its size, and keeps the module alive. Where the program
            uses Numba it is a Numba device array; elsewhere a `DeviceArray`, with the CUDA Array Interface.
Source      numba-cuda 0.30.4, cudadrv/driver.py: MemoryPointer, as CudaPythonModule.get_global_symbol makes it. CUDA
            Array Interface v3.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

from ..errors import OptionError
from ..model import SCALAR_SIZES, Variable
from . import CARRIERS, CODES, NUMPY_NAMES, current_device, done, element_of_dtype
from .launcher import LoadedKernel


class _Layout(NamedTuple):
    """Layout of a variable: extents; type code, typestr and bytes of an element."""

    shape: tuple[int, ...]
    element: str
    typestr: str
    item_bytes: int


class DeviceArray:
    """A variable of a module, for CuPy, PyTorch, kernels and all users of the CUDA Array Interface.

    Attributes:
        shape: Extents; none for a scalar.
        dtype: Name of the element type, `"float64"`; `"V8"` for records of 8 bytes.
        nbytes: Size of the variable in bytes.
    """

    def __init__(self, kernel: LoadedKernel, address: int, layout: _Layout) -> None:
        self._kernel, self._address, self._layout = kernel, address, layout
        self.shape = layout.shape
        self.dtype = NUMPY_NAMES.get(layout.element, layout.typestr[1:])
        self.nbytes = math.prod(layout.shape) * layout.item_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self._layout.typestr, "data": (self._address, False), "version": 3}

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype} {self.shape} at {self._address:#x} on device {self._kernel.device.ordinal}>"


def device_array(kernel: LoadedKernel, variable: Variable, dtype: Any = None) -> Any:
    """Make the array of a variable on the device of a kernel of its module.

    Args:
        kernel: Any kernel of the module.
        variable: The variable.
        dtype: Type of the elements; None for the compiler's type, or bytes where that has no type code.

    Raises:
        OptionError: `dtype` is invalid, or its size does not divide the variable's.
        LaunchError: The driver does not know the variable.
    """
    layout = _layout(variable)
    if dtype is not None:
        layout = _seen_as(variable, layout, dtype)
    module, symbol, numba = kernel.module, variable.symbol, current_device().numba
    find = module.driver.cuModuleGetGlobal_v2 if module.numba is None else module.driver.cuLibraryGetGlobal
    status, address, _size = find(int(module.handle), symbol.encode())
    module.stays[0] = True  # the array is a view of its memory
    done((status,), f"find the variable {symbol} on device {kernel.device.ordinal}")
    if numba is None:
        return DeviceArray(kernel, int(address), layout)
    import numpy
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer, binding

    memory = MemoryPointer(weakref.proxy(numba), binding.CUdeviceptr(address), variable.size_bytes)
    strides = numpy.empty(layout.shape, "u1").strides
    found = numpy.dtype(dtype if layout.element == "o" else layout.typestr)
    return DeviceNDArray(layout.shape, tuple(each * found.itemsize for each in strides), found, gpu_data=memory)


def _layout(variable: Variable) -> _Layout:
    code, shape = variable.code, variable.shape
    if code[0] == "v":
        shape, code = (*shape, int(code[1])), code[2:]
    size = SCALAR_SIZES.get(code, 0)
    if math.prod(shape) * size != variable.size_bytes or not size:
        return _Layout((variable.size_bytes,), "u1", "|u1", 1)
    return _Layout(shape, code, _typestr(code), size)


def _typestr(code: str) -> str:
    carrier, size = CARRIERS.get(code, code), SCALAR_SIZES[code]
    return f"{'|' if size == 1 else '<'}{carrier[0]}{size}"


def _seen_as(variable: Variable, layout: _Layout, dtype: Any) -> _Layout:
    """The layout with elements of the user's type."""
    element, typestr, item_bytes = _read_dtype(dtype)
    shape = layout.shape
    if math.prod(shape) * item_bytes != variable.size_bytes:
        shape = (variable.size_bytes // item_bytes,) if item_bytes else (0,)
    if math.prod(shape) * item_bytes != variable.size_bytes:
        raise OptionError(
            f"cannot view {variable.name} as {dtype}",
            f"its {variable.size_bytes} bytes are not a multiple of {item_bytes}",
            "name a smaller type, or the declared one",
        )
    return _Layout(shape, element, typestr, item_bytes)


def _read_dtype(dtype: Any) -> tuple[str, str, int]:
    """Type code, typestr and bytes of a dtype: the name of a scalar, or anything that NumPy takes."""
    code = CODES.get(str(dtype).removeprefix("torch."))
    if code is not None:
        return code, _typestr(code), SCALAR_SIZES[code]
    try:
        import numpy

        found = numpy.dtype(dtype)
    except (ImportError, TypeError) as error:
        raise OptionError(f"cannot use dtype={dtype!r}", str(error), "write 'float32'") from None
    return element_of_dtype(found), found.str, found.itemsize
