"""Constants that forces.py reads: they become part of the kernel's code."""

GRAVITY = 1.0
SOFTENING = 0.25
