"""Compress the payloads of an entry with zstd, and decompress them to exactly the size in their record.

Not here    The choice of payloads to compress, and their limits (entry). A hit on a small cubin, which is stored
            uncompressed, does not import this module.
"""

from __future__ import annotations

import zstandard

_LEVEL = 3  # cubins and PTX of 1 to 3 MB: a quarter smaller than level 1, as fast; level 9 takes five times as long


def pack(payload: bytes) -> bytes:
    """Compress a payload to a zstd frame."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(payload)


def unpack(frame: memoryview, size_bytes: int) -> bytes:
    """Decompress a frame to its payload.

    Raises:
        ValueError: The frame is damaged, or its payload is not of `size_bytes`.
    """
    try:
        if zstandard.frame_content_size(frame) != size_bytes:  # the size that decompress() would allocate
            raise ValueError(f"a payload is not of {size_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a payload does not unpack: {error}") from None
