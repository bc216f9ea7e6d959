"""A variable of a loaded module as a device array.

Promise     The array lies over the variable itself, is as large, and keeps nothing alive but the module.
Ground      numba-cuda 0.30.4, cudadrv/driver.py: MemoryPointer, as CudaPythonModule.get_global_symbol makes it.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

from ..errors import OptionError
from ..model.artifact import SCALAR_SIZES, Variable
from .arguments import CARRIERS, NUMPY_NAMES
from .devices import current_device, done
from .loader import LoadedKernel


def device_array(kernel: LoadedKernel, variable: Variable, dtype: Any = None) -> Any:
    """The variable on the device of a kernel of its module.

    Args:
        kernel: Any kernel of the module.
        variable: Which.
        dtype: Of the elements; None for what the compiler says, bytes where it has no word for them.

    Raises:
        OptionError: `dtype` means nothing, or does not divide the variable.
        LaunchError: The driver does not know the variable.
    """
    import numpy as np
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import MemoryPointer

    shape, found = _layout(variable)
    if dtype is not None:
        try:
            found = np.dtype(dtype)
        except TypeError as error:
            raise OptionError(f"cannot use dtype={dtype!r}", str(error)) from None
        if math.prod(shape) * found.itemsize != variable.size_bytes:
            shape = (variable.size_bytes // found.itemsize,) if found.itemsize else (0,)
        if math.prod(shape) * found.itemsize != variable.size_bytes:
            raise OptionError(
                f"cannot see {variable.name} as {found}",
                f"{found.itemsize} bytes do not divide its {variable.size_bytes}",
            )
    module, symbol = kernel.module, variable.symbol
    find = module.driver.cuModuleGetGlobal if module.numba is None else module.driver.cuLibraryGetGlobal
    status, address, _size = find(module.handle, symbol.encode())
    done((status,), f"find the variable {symbol} on device {kernel.device.ordinal}")
    memory = MemoryPointer(weakref.proxy(current_device().numba), address, variable.size_bytes)
    strides = np.empty(shape, np.dtype("u1")).strides
    return DeviceNDArray(shape, tuple(each * found.itemsize for each in strides), found, gpu_data=memory)


def _layout(variable: Variable) -> tuple[tuple[int, ...], Any]:
    import numpy as np

    code, shape = variable.code, variable.shape
    if code[0] == "v":
        shape, code = (*shape, int(code[1])), code[2:]
    name = NUMPY_NAMES.get(CARRIERS.get(code, code))
    if name is None or math.prod(shape) * SCALAR_SIZES.get(code, 0) != variable.size_bytes:
        return (variable.size_bytes,), np.dtype("u1")
    return shape, np.dtype(name)
