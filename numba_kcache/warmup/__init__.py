"""Compile many kernels ahead: discovery, a pool of workers, and the worker."""
