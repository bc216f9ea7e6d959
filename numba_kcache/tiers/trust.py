"""Sign entries and bundles, and check their signatures: Ed25519 over key, digest, size and target.

Promise     If the settings name trusted keys or a key to sign with, a file of a tier is unpacked, stored or run only
            after it was verified that one of these keys signed exactly its bytes, its name and its target. A secret key
            is read from its file each time, and not kept in memory. A machine that signs also requires signatures, and
            trusts its own key: so it never signs code that it received unsigned, neither unchanged nor linked into
            other code.
Method      A statement is encoded like a key's components: named by its purpose and length-prefixed, so that no two
            statements are the same bytes. A signature names its key by the first bytes of the public key's digest. The
            signature record of a file, a signature and the target's name, is stored beside it, so signing does not
            change the file. The key stated for a manifest has the prefix "manifest ", so that it cannot pass for an
            entry. A bundle has one signature over all of it (tiers.bundle).
Source      RFC 8032. `cryptography` takes 8 ms to import, and is imported at the first signature made or checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import SettingsError, ToolchainMissingError, why_of
from ..keys import encode, sha256
from ..settings import Settings
from ..store import ENTRY

SIGNATURE = 16
"""Number added to the kind of a file to name its signature record."""

SIGNATURE_BYTES = 8 + 64
"""Bytes of one signature: the id of the key, and the Ed25519 signature."""

_PURPOSE = "numba_kcache signature 1"


class Unsigned(ValueError):
    """There is no signature of a trusted key over this statement; the message says why."""


class SignedOther(Unsigned):
    """A trusted key has signed another statement; or the signature is forged."""


def statement(*, key: str, digest: bytes, size_bytes: int, target: str) -> bytes:
    """The statement that is signed.

    Args:
        key: Key of the entry or manifest.
        digest: sha256 of its bytes.
        size_bytes: Number of its bytes.
        target: Target of the code.
    """
    return encode([_PURPOSE, key, digest, size_bytes, target])


def sign(path: str, stated: bytes) -> bytes:
    """The signature of a statement by the secret key in the PEM file `path`.

    Raises:
        SettingsError: The file does not hold an Ed25519 key.
        ToolchainMissingError: `cryptography` is not installed.
    """
    secret, public = _key_pair(path)
    signature: bytes = secret.sign(stated)
    return _key_id(public) + signature


class Trust:
    """The public keys whose signatures are accepted, and the key to sign with.

    Args:
        keys: Name and 32 bytes of each public key.
        signing_key: PEM file of the key to sign with, which is trusted too; None: nothing is signed.

    Attributes:
        demands: Each file must have a signature by one of these keys.
        signs: Files are signed.
    """

    def __init__(self, keys: Iterable[tuple[str, bytes]] = (), signing_key: str | None = None) -> None:
        self._keys, self._signing_key = {_key_id(public): (name, public) for name, public in keys}, signing_key
        self.signs = signing_key is not None
        self.demands = self.signs or bool(self._keys)

    def check(self, signature: bytes, stated: bytes) -> str:
        """The name of the trusted key that made `signature` over a statement; for this machine's own key its id.

        Raises:
            Unsigned: No trusted key made it.
            SettingsError: This machine's own key is needed and cannot be read.
            ToolchainMissingError: `cryptography` is not installed.
        """
        if len(signature) != SIGNATURE_BYTES:
            raise Unsigned("it is not signed")
        name, public = self._keys.get(signature[:8], ("", b""))
        if not public and self._signing_key is not None:
            name, public = signature[:8].hex(), _key_pair(self._signing_key)[1]
        if not public or _key_id(public) != signature[:8]:
            raise Unsigned(f"it is signed by the key {signature[:8].hex()}, which is not a trusted key")
        _, ed25519 = _cryptography()
        from cryptography.exceptions import InvalidSignature

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature[8:], stated)
        except (InvalidSignature, ValueError):
            raise SignedOther(f"the signature of {name} does not match these bytes") from None
        return name

    def record(self, kind: int, key: str, data: bytes, target: str) -> bytes:
        """Make the signature record for a file to upload; b"" if there is no key to sign with.

        Raises:
            SettingsError, ToolchainMissingError: It cannot be signed.
        """
        if self._signing_key is None:
            return b""
        return sign(self._signing_key, _statement(kind, key, data, target)) + target.encode()

    def check_file(self, kind: int, key: str, data: bytes, record: bytes) -> str:
        """The target for which a trusted key has signed these bytes under the entry's or manifest's key.

        Raises:
            Unsigned: No trusted key has signed them.
            SettingsError, ToolchainMissingError: It cannot be checked.
        """
        target = record[SIGNATURE_BYTES:].decode("latin-1")
        if len(target) > 64 or not target.isascii():
            raise Unsigned("its signature record is malformed")
        self.check(record[:SIGNATURE_BYTES], _statement(kind, key, data, target))
        return target


def trust_of(settings: Settings) -> Trust:
    """The trust that the settings describe."""
    return Trust(settings.trusted_keys, settings.signing_key)


_MAKE_ONE = "make one with: openssl genpkey -algorithm ed25519 -out kernels.pem"


def _key_pair(path: str) -> tuple[Any, bytes]:
    """The secret key in a PEM file, and the bytes of its public key."""
    serialization, ed25519 = _cryptography()
    try:
        with open(path, "rb") as file:
            secret = serialization.load_pem_private_key(file.read(1 << 16), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot use signing_key = {path!r}", why_of(error).splitlines()[0], _MAKE_ONE) from None
    if not isinstance(secret, ed25519.Ed25519PrivateKey):
        raise SettingsError(f"cannot use signing_key = {path!r}", "it is not an Ed25519 key", _MAKE_ONE)
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return secret, secret.public_key().public_bytes(*raw)


def _key_id(public: bytes) -> bytes:
    return sha256(public).digest()[:8]


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ToolchainMissingError(
            "cannot sign or check signatures", str(error), "install numba-kcache[sign], which brings cryptography"
        ) from None
    return serialization, ed25519


def _statement(kind: int, key: str, data: bytes, target: str) -> bytes:
    named = key if kind == ENTRY else f"manifest {key}"
    return statement(key=named, digest=sha256(data).digest(), size_bytes=len(data), target=target)
