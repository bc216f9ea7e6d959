"""Kernels in Python, of both Numbas: numba-cuda (llvm, by its intermediate code) and numba-cuda-mlir (mlir).

Not here    A module whose full name contains `numba.cuda`: the import hook of numba-cuda answers for all such names.
"""
