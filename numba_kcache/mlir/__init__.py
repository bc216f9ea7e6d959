"""The stand-in for numba-cuda-mlir: `from numba_kcache.mlir import cuda`."""
