"""Kinds of kernels: each folder is one front end behind the seam in base.py."""
