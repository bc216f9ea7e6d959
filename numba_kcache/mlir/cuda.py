"""The stand-in for `numba_cuda_mlir.cuda`: kernels whose code is stored start without importing numba-cuda-mlir.

The gain is for programs whose arrays are CuPy's, PyTorch's, JAX's, or memory of the driver (`numba_kcache.cuda`).
"""

from ..frontends import cached_kernel
from ..frontends.numba.light import stand_in

stand_in("mlir", cached_kernel)
