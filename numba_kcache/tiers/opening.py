"""From addresses in the settings, and from what users hand over, to tiers."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, SettingsError
from ..model.tier_address import TierAddress, parse_tier
from ..settings import Settings

if TYPE_CHECKING:  # each kind is imported where it is opened
    from .bundle import Bundle
    from .tier import Tier


def open_tiers(settings: Settings) -> tuple[Tier, ...]:
    """The tiers of these settings, in order. Nothing is connected to and no file is opened before the first look-up."""
    return tuple(_open(address, settings) for address in settings.tiers)


def _open(address: TierAddress, settings: Settings) -> Tier:
    if address.kind in ("bundle", "resource"):
        from .bundle import BundleTier

        return BundleTier(address.place, functools.partial(open_any, address.place, settings))
    if address.kind in ("redis", "rediss"):
        return _open_redis(address)
    if address.kind in ("s3", "gs", "az"):
        return _open_objects(address)
    from .directory import DirectoryTier

    return DirectoryTier(
        address.place,
        readonly=address.readonly is not False,
        shared=settings.shared,
        durability=settings.durability,
        is_vouched=address.options.get("unsigned") == "1",
    )


def _open_redis(address: TierAddress) -> Tier:
    from .redis import PREFIX, TIMEOUT_S, WAIT_S, RedisTier

    options = address.options
    try:
        return RedisTier(
            address.place,
            readonly=bool(address.readonly),
            ttl_s=int(options["ttl"]) if "ttl" in options else None,
            timeout_s=float(options.get("timeout", TIMEOUT_S)),
            wait_s=float(options.get("wait", WAIT_S)),
            prefix=options.get("prefix", PREFIX),
            is_vouched=options.get("unsigned") == "1",
        )
    except ValueError as error:
        raise SettingsError(f"cannot use the tier {address.shown}", str(error)) from None


def _open_objects(address: TierAddress) -> Tier:
    from .object_store import TIMEOUT_S, ObjectTier

    options = address.options
    return ObjectTier(
        address.place,
        readonly=bool(address.readonly),
        timeout_s=float(options.get("timeout", TIMEOUT_S)),
        endpoint=options.get("endpoint", ""),
        region=options.get("region", ""),
        is_vouched=options.get("unsigned") == "1",
    )


def open_any(source: Any, settings: Settings) -> Bundle:
    """The bundle at a path, in a package's resource, or behind a Traversable; signed as the settings ask.

    Raises:
        BundleError: It is refused.
        OptionError: It is none of these.
    """
    from .bundle import open_bundle, open_resource, open_traversable
    from .signing import TrustedKeys

    trusted = TrustedKeys(settings.trusted_keys)
    if isinstance(source, str) and "://" not in source and parse_tier(source).kind == "resource":
        package, _, resource = source.partition(":")
        return open_resource(package, resource, trusted)
    if isinstance(source, (str, os.PathLike)):
        return open_bundle(os.path.abspath(os.path.expanduser(os.fspath(source))), trusted)
    if hasattr(source, "read_bytes"):
        return open_traversable(source, str(source), trusted)
    raise OptionError(
        f"cannot find a bundle in {source!r}", f"it is a {type(source).__name__}", 'give a path or "package:resource"'
    )
