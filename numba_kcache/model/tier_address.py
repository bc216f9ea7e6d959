"""Parse the addresses of tiers: another directory, a bundle, a package's resource, the URL of a server.

Promise     The form of an address that is shown holds no secret: no user, no password, no query.
Not here    Opening the tier at the address (tiers.opening).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
        if "@" in query or shown_place(place).endswith("..."):
            raise ValueError(
                "a URL's host cannot be read; in user and password write %2C %2F %3A %3F %40 for , / : ? @"
            )
        if scheme not in SCHEMES:
            raise ValueError(f"{scheme}:// is not one of the known kinds of tiers: {', '.join(SCHEMES) or 'none'}")
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
