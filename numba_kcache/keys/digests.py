"""sha256 of bytes, without OpenSSL where that takes longer to wake than to work.

Promise     The digest is sha256's, whoever computes it; it works where FIPS mode switches hashes off, for it
            says that it is not for security.
Method      Up to 16 KiB by the interpreter's own sha256: importing hashlib loads OpenSSL (3 ms), and its first digest
            in a process takes 30 us where the interpreter's takes 12. Longer bytes, and interpreters built without it,
            go to hashlib, which is five times as fast on a processor with SHA instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _hashlib import HASH

try:
    from _sha2 import sha256 as _own  # type: ignore[import-not-found]  # CPython 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256 as _own  # type: ignore[import-not-found]
    except ImportError:
        _own = None

_OWN_LIMIT_BYTES = 16 << 10


def sha256(data: bytes) -> HASH:
    """The hash object of `data`, as hashlib's."""
    digest: Any = _own
    if digest is None or len(data) > _OWN_LIMIT_BYTES:
        from hashlib import sha256 as digest
    found: HASH = digest(data, usedforsecurity=False)
    return found
