"""CUDA C++, PTX, cubin, fatbin and LTO-IR as kernels and modules."""
