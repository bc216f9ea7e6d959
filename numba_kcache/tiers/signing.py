"""Sign entries and bundles, and check their signatures: Ed25519 over key, digest, size and target.

Promise     A signature that `TrustedKeys.check` accepts was made over exactly this statement, by the holder of a key
            that is trusted here. A secret key is read from its file each time, and not kept in memory.
            A machine that signs also requires signatures, and trusts its own key: so it never signs code that it
            received unsigned, neither unchanged nor linked into other code.
Method      A statement is encoded like a key's components: named by its purpose and length-prefixed, so that no two
            statements are the same bytes. A signature names its key by the first bytes of the public key's digest.
Not here    What has to be signed (tiers.bundle), and the keys in force (settings).
Source      RFC 8032. `cryptography` takes 8 ms to import, and is imported at the first signature made or checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import SettingsError, ToolchainMissingError
from ..keys import encode, sha256

SIGNATURE_BYTES = 8 + 64
"""Bytes of one signature: the id of the key, and the Ed25519 signature."""

_PURPOSE = "numba_kcache signature 1"


class Unsigned(ValueError):
    """There is no signature of a trusted key over this statement; the message says why."""


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


class TrustedKeys:
    """The public keys whose signatures are accepted.

    Args:
        keys: Name and 32 bytes of each.
        signing_key: PEM file of this machine's own key, which is trusted too; None if it signs nothing.
    """

    def __init__(self, keys: Iterable[tuple[str, bytes]], signing_key: str | None = None) -> None:
        self._keys, self._signing_key = {_key_id(public): (name, public) for name, public in keys}, signing_key

    def __bool__(self) -> bool:
        return bool(self._keys) or self._signing_key is not None

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
            raise Unsigned(f"the signature of {name} does not match these bytes") from None
        return name


_MAKE_ONE = "make one with: openssl genpkey -algorithm ed25519 -out kernels.pem"


def _key_pair(path: str) -> tuple[Any, bytes]:
    """The secret key in a PEM file, and the bytes of its public key."""
    serialization, ed25519 = _cryptography()
    try:
        with open(path, "rb") as file:
            secret = serialization.load_pem_private_key(file.read(1 << 16), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot use signing_key = {path!r}", _first_line(error), _MAKE_ONE) from None
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


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).splitlines()[0]
