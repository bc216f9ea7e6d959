"""The fingerprint of a Python function, shared by all front ends that compile Python."""
