"""Signatures of what a tier hands over: one beside each file, checked before the file is read.

Promise     Where keys are trusted, nothing of a tier is unpacked, kept or run before one of them was found to have
            signed exactly these bytes under exactly this key, and the target in them is the one that was signed.
Method      A record is a signature and the target's name. It stands beside the file, whose bytes are the same
            everywhere. A manifest has no target and a key of its own kind, so that it cannot be taken for an entry.
Not here    Signatures (tiers.signing). A bundle's is over the whole of it (tiers.bundle).
"""

from __future__ import annotations

from ..keys import sha256
from ..settings import Settings
from ..store.entry import ENTRY
from .signing import SIGNATURE_BYTES, TrustedKeys, Unsigned, sign, statement

SIGNATURE = 16
"""Added to the kind of a file: the record that stands beside it."""


class Trust:
    """Keys of which one must have signed, and the key to sign with.

    Args:
        trusted: Keys of which one must have signed; none: nothing must be.
        signing_key: PEM file of the key to sign with; None: nothing is signed.
    """

    def __init__(self, trusted: TrustedKeys, signing_key: str | None) -> None:
        self._trusted, self._signing_key = trusted, signing_key
        self.demands, self.signs = bool(trusted), signing_key is not None

    def record(self, kind: int, key: str, data: bytes, target: str) -> bytes:
        """Make what stands beside a file that is handed on; b"" where nothing is signed.

        Raises:
            SettingsError, ToolchainMissingError: It cannot be signed.
        """
        if self._signing_key is None:
            return b""
        return sign(self._signing_key, _statement(kind, key, data, target)) + target.encode()

    def check(self, kind: int, key: str, data: bytes, record: bytes) -> str:
        """The target for which a trusted key has signed these bytes under this key.

        Raises:
            Unsigned: None has.
            ToolchainMissingError: It cannot be checked.
        """
        target = _target(record)
        self._trusted.check(record[:SIGNATURE_BYTES], _statement(kind, key, data, target))
        return target

    def is_own(self, kind: int, key: str, data: bytes, record: bytes) -> bool:
        """Check whether the key to sign with here has made a record: of the same it always makes the same."""
        return bool(record) and record == self.record(kind, key, data, _target(record))


def trust_of(settings: Settings) -> Trust:
    """Keys and rules that the settings ask for."""
    return Trust(TrustedKeys(settings.trusted_keys), settings.signing_key)


def _target(record: bytes) -> str:
    text = record[SIGNATURE_BYTES:]
    if len(text) > 64 or not text.isascii():
        raise Unsigned("what stands beside it is no signature")
    return text.decode("ascii")


def _statement(kind: int, key: str, data: bytes, target: str) -> bytes:
    named = key if kind == ENTRY else f"manifest {key}"
    return statement(key=named, digest=sha256(data).digest(), size_bytes=len(data), target=target)
