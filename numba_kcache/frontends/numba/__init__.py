"""Numba kernels, compiled by numba-cuda."""
