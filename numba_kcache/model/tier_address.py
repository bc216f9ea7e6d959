"""Parse the settings about tiers: addresses (a directory, a bundle, a resource, a URL), and keys of signatures.

Promise     The form of an address that is shown holds no secret: no user, no password, no query.
Not here    Opening the tier at the address (tiers.opening); the table of settings, and its order (settings).
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from . import NamedTuple

BUNDLE_SUFFIX = ".kcache"
"""The suffix of a bundle's file name."""

OCI_PREFIX = "oci:"
"""The prefix of the directory of an OCI image layout, as skopeo writes it."""

LAYOUT_MARK = "oci-layout"
"""Name of the file that marks a directory as an OCI image layout."""

SCHEMES: tuple[str, ...] = ("redis", "rediss", "s3", "gs", "az")
"""The schemes of URLs that can be opened."""

_SECONDS = r"(?=.*[1-9])\d{1,5}(?:\.\d{1,3})?"
_ANY = {"readonly": "|0|1", "unsigned": "|0|1", "timeout": _SECONDS}
_REDIS = {**_ANY, "ttl": r"[1-9]\d{0,8}", "wait": _SECONDS, "prefix": r"[\w.:-]{1,100}"}
_OBJECTS = {**_ANY, "endpoint": r"https?://[\w.-]+(?::\d+)?(?:/[\w.-]+)*/?", "region": r"[\w-]{1,50}"}
"""The options after the `?` of an object store's URL, with a pattern of their values."""

_HOST = r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?(?:/|\Z)"
_RESOURCE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[^:]+\Z"


class TierAddress(NamedTuple):
    """One tier as it was written.

    Args:
        kind: `"directory"`, `"bundle"`, `"resource"`, `"oci"`, or a URL's scheme.
        place: Path, `package:resource`, `oci:directory:tag`, or URL; a URL may hold a secret.
        options: The options after the `?`.
    """

    kind: str
    place: str
    options: Mapping[str, str] = {}

    @property
    def shown(self) -> str:
        """The place without any secret."""
        return shown_place(self.place)

    @property
    def readonly(self) -> bool | None:
        """The value of the address's `readonly` option; None if it has none."""
        said = self.options.get("readonly")
        return None if said is None else said == "1"


class LayoutPlace(NamedTuple):
    """An image in a layout: the directory and the tag; None for the only image, or the one tagged `latest`."""

    directory: str
    tag: str | None

    def __str__(self) -> str:
        return OCI_PREFIX + self.directory + (f":{self.tag}" if self.tag else "")


def parse_layout(text: str) -> LayoutPlace:
    """Read `DIRECTORY[:TAG]`."""
    directory, colon, tag = text.rpartition(":")
    is_tagged = colon and directory and re.fullmatch(r"\w[\w.-]{0,127}", tag, re.ASCII)
    return LayoutPlace(directory, tag) if is_tagged else LayoutPlace(text, None)


def parse_tier(text: str) -> TierAddress:
    """Read one tier as users write it: `/opt/kernels`, `team.kcache`, `package:kernels.kcache`, `oci:layout:tag`,
    `redis://host/0`.

    Raises:
        ValueError: The text is none of these, or has an unknown option; the message holds no secret.
    """
    place, _, query = text.partition("?")
    scheme, is_url, _ = place.partition("://")
    options = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    if not place:
        raise ValueError("a tier is empty")
    if is_url:
        if scheme not in SCHEMES and re.fullmatch(r"[a-z]{1,9}", scheme):
            raise ValueError(f"{scheme}:// is not one of the known kinds of tiers: {', '.join(SCHEMES)}")
        if scheme not in SCHEMES or "@" in query or shown_place(place).endswith("..."):
            raise ValueError(
                "a URL's host cannot be read; in user and password write %2C %2F %3A %3F %40 for , / : ? @"
            )
        return TierAddress(scheme, place, _checked(shown_place(place), options))
    if set(options.values()) - {"0", "1"} or options.keys() - {"readonly", "unsigned"}:
        raise ValueError(f"{place} takes readonly=1 or readonly=0 after the ?, unsigned=1, and nothing else")
    if re.match(r"(?:redis|rediss|s3|gs|az|https?|localhost):|[\w.-]+:\d+\Z", place):
        raise ValueError(f"{place} is neither a path nor a URL; write redis://host:6379, or ./ before a path")
    if place.startswith(OCI_PREFIX):
        kind = "oci"
    elif re.match(_RESOURCE, place):
        kind = "resource"
    else:
        kind = "bundle" if place.endswith(BUNDLE_SUFFIX) else "directory"
    if kind != "directory" and options.get("readonly") == "0":
        raise ValueError(f"{place} is a bundle, and bundles are read-only")
    return TierAddress(kind, place, options)


def _checked(shown: str, options: dict[str, str]) -> dict[str, str]:
    """Check the options of a server's URL.

    Raises:
        ValueError: An option is unknown or its value malformed; the message shows none, for it may hold a secret.
    """
    known = _REDIS if shown.startswith("redis") else _OBJECTS
    for name, value in options.items():
        if not re.fullmatch(known.get(name, "(?!)"), value):
            raise ValueError(f"{shown} takes {', '.join(known)} after the ?, and one is unknown or malformed")
    return {name: value or "1" for name, value in options.items()}


def shown_place(place: str) -> str:
    """A path unchanged; a URL without user, password and query, and without text that could be part of them."""
    scheme, is_url, rest = place.partition("://")
    if not is_url:
        return place
    rest = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{rest if re.match(_HOST, rest) else '...'}"


# -- values of settings -----------------------------------------------------------------------------------------------


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
