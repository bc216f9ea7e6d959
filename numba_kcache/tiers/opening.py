"""Open tiers from the addresses in the settings, and bundles from the paths or objects that users pass."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, SettingsError
from ..model.tier_address import OCI_PREFIX, LayoutPlace, TierAddress, parse_layout, parse_tier
from ..settings import Settings, path_from, working_directory
from .trust import trust_of

if TYPE_CHECKING:  # each kind is imported where it is opened
    from .bundle import Bundle
    from .tier import Tier


_SERVER_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "ttl": ("ttl_s", int),
    "timeout": ("timeout_s", float),
    "wait": ("wait_s", float),
    "prefix": ("prefix", str),
    "endpoint": ("endpoint", str),
    "region": ("region", str),
}
"""The keyword argument for each option of a server's URL, whose options were checked when the URL was parsed."""


def open_tiers(settings: Settings) -> tuple[Tier, ...]:
    """Make the tiers of these settings, in order. No connection and no file is opened before the first look-up."""
    return tuple(_open(address, settings) for address in settings.tiers)


def _open(address: TierAddress, settings: Settings) -> Tier:
    place, options = address.place, address.options
    given = {name: read(options[option]) for option, (name, read) in _SERVER_OPTIONS.items() if option in options}
    tier: Tier
    if address.kind in ("bundle", "resource", "oci"):
        from .bundle import BundleTier

        return BundleTier(place, functools.partial(open_any, place, settings, is_awaited=True))
    if address.kind == "directory":
        from .directory import DirectoryTier

        tier = DirectoryTier(place, shared=settings.shared, durability=settings.durability)
    elif address.kind in ("s3", "gs", "az"):
        from .object_store import ObjectTier

        tier = ObjectTier(place, **given)
    else:
        from .lease import WAIT_S
        from .redis import RedisTier

        given.setdefault("wait_s", min(WAIT_S, settings.build_wait_s))
        try:
            tier = RedisTier(place, **given)
        except ValueError as error:
            raise SettingsError(f"cannot use the tier {address.shown}", str(error), "correct its address") from None
    if address.readonly is not None:
        tier.readonly = address.readonly
    tier.is_trusted |= options.get("unsigned") == "1"
    return tier


def open_any(source: Any, settings: Settings, *, is_awaited: bool = False) -> Bundle:
    """Open the bundle at a path, in an image layout, in a package's resource or a Traversable, and check its signature.

    Args:
        source: The bundle.
        settings: The settings with the keys that are trusted.
        is_awaited: A launch waits for it: unpacking may take `image.UNPACK_S`.

    Raises:
        BundleError: It is refused.
        OptionError: `source` is none of these.
    """
    from .bundle import open_bundle, open_traversable

    trusted, is_text = trust_of(settings), isinstance(source, str)
    if is_text and (not source or "\0" in source):
        raise OptionError(
            f"cannot find a bundle in {source!r}", "it is not a path", "give a path, or 'package:resource'"
        )
    layout = find_layout(source)
    if layout is not None:
        from .image import UNPACK_S, open_layout

        return open_layout(layout, trusted, UNPACK_S if is_awaited else math.inf)
    if is_text and "://" not in source and _is_resource(source):
        return open_traversable(source, lambda: _resource(source), trusted)
    if is_text or isinstance(source, os.PathLike):
        return open_bundle(path_from(working_directory(), source), trusted)
    if hasattr(source, "read_bytes"):
        return open_traversable(str(source), lambda: source, trusted)
    raise OptionError(
        f"cannot find a bundle in {source!r}", f"it is a {type(source).__name__}", 'give a path or "package:resource"'
    )


def _resource(name: str) -> Any:
    from importlib.resources import files

    package, _, resource = name.partition(":")
    return files(package).joinpath(*resource.split("/"))


def find_layout(source: Any) -> LayoutPlace | None:
    """The image layout that a path with the prefix `oci:` names; None for anything else."""
    if isinstance(source, str) and source.startswith(OCI_PREFIX):
        return parse_layout(path_from(working_directory(), source.removeprefix(OCI_PREFIX)))
    return None


def _is_resource(text: str) -> bool:
    try:
        return parse_tier(text).kind == "resource"
    except ValueError:  # not the address of a tier, but it may be the name of a file
        return False
