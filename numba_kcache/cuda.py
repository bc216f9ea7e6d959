"""The stand-in for `numba.cuda`: kernels whose code is stored start without importing Numba.

`from numba_kcache import cuda` in place of `from numba import cuda`. The gain is for programs whose arrays are CuPy's,
PyTorch's, JAX's, or memory of the driver: `to_device`, `device_array`, pinned memory and host arrays import Numba.
"""

from .frontends import cached_kernel
from .frontends.numba.light import stand_in

stand_in("numba", cached_kernel)
