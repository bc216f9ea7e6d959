"""Adapters to the compilers. The only room, beside launch/, that imports cuda or numba: inside functions."""
