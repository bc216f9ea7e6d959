"""Read the values of the settings about tiers: their addresses, and the public keys of accepted signatures.

Not here    The table of settings, and its order (settings); the forms of one address (tier_address).
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from .tier_address import OCI_PREFIX, TierAddress, parse_tier, shown_place

_ED25519 = bytes.fromhex("302a300506032b6570032100")
"""The DER prefix of the 32 bytes of an Ed25519 public key in a PEM file (RFC 8410)."""


def read_tiers(value: Any, absolute: Callable[[str], str]) -> tuple[TierAddress, ...]:
    """Read addresses: text with commas, a path, or a list of paths and URLs; `absolute` makes a path absolute.

    Raises:
        ValueError, TypeError: An address cannot be read.
    """
    prefixes = {"directory": "", "bundle": "", "oci": OCI_PREFIX}
    found = []
    for tier in map(parse_tier, _listed(value)):
        prefix = prefixes.get(tier.kind)
        if prefix is not None:
            tier = tier._replace(place=prefix + absolute(tier.place.removeprefix(prefix)))
        found.append(tier)
    return tuple(found)


def _listed(value: Any) -> list[str]:
    if isinstance(value, str):
        return [text.strip() for text in value.split(",") if text.strip()]
    items = [value] if isinstance(value, os.PathLike) else list(value)
    texts = [os.fspath(each) for each in items]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("it is not a list of paths and URLs")
    return texts


def read_trusted_keys(value: Any) -> tuple[tuple[str, bytes], ...]:
    """Read names and public keys: `name=key` with commas, or a mapping.

    Raises:
        ValueError, TypeError: A name or key cannot be read.
    """
    if isinstance(value, str):
        pairs = [tuple(part.strip() for part in text.split("=", 1)) for text in value.split(",") if text.strip()]
    else:
        pairs = list(dict(value).items())
    return tuple(_public_key(*pair) if len(pair) == 2 else _public_key("", "") for pair in pairs)


def _public_key(name: Any, text: Any) -> tuple[str, bytes]:
    data = b64decode(text, validate=True) if isinstance(text, str) else text
    data = data.removeprefix(_ED25519) if isinstance(data, bytes) else b""
    if not name or not isinstance(name, str) or len(data) != 32:
        raise ValueError("it must be name=key, the key 32 bytes in base64 or the line in a PEM file of an Ed25519 key")
    return name, data


def shown_tiers(value: Any) -> str:
    """The value of the setting `tiers` for a message, without users, passwords and queries."""
    if isinstance(value, str):
        bare = re.sub(r"://.*@", "://", value, flags=re.DOTALL)  # before the split: a password may contain a comma
        return repr(",".join(shown_place(text) for text in bare.split(",")))
    if isinstance(value, (list, tuple)):
        return repr([shown_place(each) if isinstance(each, str) else each for each in value])
    return repr(value)
