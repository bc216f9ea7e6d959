"""Device functions of program.py."""

import math

import units
from numba import cuda


@cuda.jit(device=True)
def softened(distance):
    square = distance * distance + units.SOFTENING * units.SOFTENING
    return square * math.sqrt(square)


@cuda.jit(device=True)
def pull(distance, mass):
    return units.GRAVITY * mass * distance / softened(distance)
