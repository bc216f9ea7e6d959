"""From addresses in the settings, and from what users hand over, to tiers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, SettingsError
from ..model.tier_address import TierAddress, parse_tier
from ..settings import Settings

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
"""The parameter for each option of a server's URL; which server takes which was checked when the URL was read."""


def open_tiers(settings: Settings) -> tuple[Tier, ...]:
    """The tiers of these settings, in order. Nothing is connected to and no file is opened before the first look-up."""
    return tuple(_open(address, settings) for address in settings.tiers)


def _open(address: TierAddress, settings: Settings) -> Tier:
    place, options = address.place, address.options
    if address.kind in ("bundle", "resource"):
        from .bundle import BundleTier

        return BundleTier(place, functools.partial(open_any, place, settings))
    is_vouched = options.get("unsigned") == "1"
    if address.kind == "directory":
        from .directory import DirectoryTier

        readonly, durability = address.readonly is not False, settings.durability
        return DirectoryTier(
            place, readonly=readonly, shared=settings.shared, durability=durability, is_vouched=is_vouched
        )
    given = {name: read(options[option]) for option, (name, read) in _SERVER_OPTIONS.items() if option in options}
    given.update(readonly=bool(address.readonly), is_vouched=is_vouched)
    if address.kind in ("s3", "gs", "az"):
        from .object_store import ObjectTier

        return ObjectTier(place, **given)
    from .redis import RedisTier

    given.setdefault("wait_s", settings.build_wait_s)
    try:
        return RedisTier(place, **given)
    except ValueError as error:
        raise SettingsError(f"cannot use the tier {address.shown}", str(error)) from None


def open_any(source: Any, settings: Settings) -> Bundle:
    """The bundle at a path, in a package's resource, or behind a Traversable; signed as the settings ask.

    Raises:
        BundleError: It is refused.
        OptionError: It is none of these.
    """
    from .bundle import open_bundle, open_resource, open_traversable
    from .signing import TrustedKeys

    trusted = TrustedKeys(settings.trusted_keys)
    if isinstance(source, str) and (not source or "\0" in source):
        raise OptionError(f"cannot find a bundle in {source!r}", "it is not a path")
    if isinstance(source, str) and "://" not in source and _is_resource(source):
        package, _, resource = source.partition(":")
        return open_resource(package, resource, trusted)
    if isinstance(source, (str, os.PathLike)):
        return open_bundle(os.path.abspath(os.path.expanduser(os.fspath(source))), trusted)
    if hasattr(source, "read_bytes"):
        return open_traversable(source, str(source), trusted)
    raise OptionError(
        f"cannot find a bundle in {source!r}", f"it is a {type(source).__name__}", 'give a path or "package:resource"'
    )


def _is_resource(text: str) -> bool:
    try:
        return parse_tier(text).kind == "resource"
    except ValueError:  # with options, or what else no tier has: a file may be called so
        return False
