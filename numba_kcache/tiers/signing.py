"""Sign entries and bundles, and check their signatures: Ed25519 over key, digest, size and target.

Promise     A signature that `TrustedKeys.check` accepts was made over exactly this statement, by the holder of a key
            that is trusted here. A secret key is read from its file for each signature, and not kept in memory.
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


def sign(path: str, said: bytes) -> bytes:
    """The signature of a statement by the secret key in the PEM file `path`.

    Raises:
        SettingsError: The file does not hold an Ed25519 key.
        ToolchainMissingError: `cryptography` is not installed.
    """
    serialization, ed25519 = _cryptography()
    try:
        with open(path, "rb") as file:
            secret = serialization.load_pem_private_key(file.read(1 << 16), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot use signing_key = {path!r}", _first_line(error), _MAKE_ONE) from None
    if not isinstance(secret, ed25519.Ed25519PrivateKey):
        raise SettingsError(f"cannot use signing_key = {path!r}", "it is no Ed25519 key", _MAKE_ONE)
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    signature: bytes = secret.sign(said)
    return _key_id(secret.public_key().public_bytes(*raw)) + signature


class TrustedKeys:
    """The public keys whose signatures are accepted.

    Args:
        keys: Name and 32 bytes of each.
    """

    def __init__(self, keys: Iterable[tuple[str, bytes]]) -> None:
        self._keys = {_key_id(public): (name, public) for name, public in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, signature: bytes, said: bytes) -> str:
        """The name of the trusted key that made `signature` over a statement.

        Raises:
            Unsigned: None did.
            ToolchainMissingError: `cryptography` is not installed.
        """
        if len(signature) != SIGNATURE_BYTES:
            raise Unsigned("it is not signed")
        name, public = self._keys.get(signature[:8], ("", b""))
        if not public:
            raise Unsigned(f"it is signed by the key {signature[:8].hex()}, which is not among the trusted")
        _, ed25519 = _cryptography()
        from cryptography.exceptions import InvalidSignature

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature[8:], said)
        except (InvalidSignature, ValueError):
            raise Unsigned(f"the signature of {name} is not over these bytes") from None
        return name


_MAKE_ONE = "make one with: openssl genpkey -algorithm ed25519 -out kernels.pem"


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
