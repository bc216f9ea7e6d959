"""Where entries live. Knows digests and bytes, not kernels; cannot lie and cannot break a launch."""
