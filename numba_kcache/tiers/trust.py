"""Signature records of the files in a tier: one beside each file, checked before the file is decoded.

Promise     If the settings name trusted keys or a key to sign with, a file of a tier is unpacked, stored or run only
            after it was verified that one of these keys signed exactly its bytes, its name and its target.
Method      A record is a signature and the target's name. It is stored beside the file, so signing does not change the
            file. The signed bytes state the file's key, digest, size and target. For a manifest the target is empty and
            the key has the prefix "manifest ", so that a manifest cannot pass for an entry.
Not here    Signatures (tiers.signing). A bundle has one signature over all of it (tiers.bundle).
"""

from __future__ import annotations

from ..keys import sha256
from ..settings import Settings
from ..store.entry import ENTRY
from .signing import SIGNATURE_BYTES, TrustedKeys, Unsigned, sign, statement

SIGNATURE = 16
"""Number added to the kind of a file to name its signature record."""


class Trust:
    """The keys whose signatures are required, and the key to sign with.

    Args:
        trusted: Keys of which one must have signed each file; none: no signature is required.
        signing_key: PEM file of the key to sign with; None: nothing is signed.
    """

    def __init__(self, trusted: TrustedKeys, signing_key: str | None) -> None:
        self._trusted, self._signing_key = trusted, signing_key
        self.demands, self.signs = bool(trusted), signing_key is not None

    def record(self, kind: int, key: str, data: bytes, target: str) -> bytes:
        """Make the signature record for a file to upload; b"" if there is no key to sign with.

        Raises:
            SettingsError, ToolchainMissingError: It cannot be signed.
        """
        if self._signing_key is None:
            return b""
        return sign(self._signing_key, _statement(kind, key, data, target)) + target.encode()

    def check(self, kind: int, key: str, data: bytes, record: bytes) -> str:
        """The target for which a trusted key has signed these bytes under the entry's or manifest's key.

        Raises:
            Unsigned: No trusted key has signed them.
            SettingsError, ToolchainMissingError: It cannot be checked.
        """
        target = _target(record)
        self._trusted.check(record[:SIGNATURE_BYTES], _statement(kind, key, data, target))
        return target


def trust_of(settings: Settings) -> Trust:
    """The trust that the settings describe."""
    return Trust(trusted_keys(settings), settings.signing_key)


def trusted_keys(settings: Settings) -> TrustedKeys:
    """The keys whose signatures these settings accept, this machine's own included; none if none is required."""
    return TrustedKeys(settings.trusted_keys, settings.signing_key)


def _target(record: bytes) -> str:
    text = record[SIGNATURE_BYTES:]
    if len(text) > 64 or not text.isascii():
        raise Unsigned("its signature record is malformed")
    return text.decode("ascii")


def _statement(kind: int, key: str, data: bytes, target: str) -> bytes:
    named = key if kind == ENTRY else f"manifest {key}"
    return statement(key=named, digest=sha256(data).digest(), size_bytes=len(data), target=target)
