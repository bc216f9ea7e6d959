"""From addresses in the settings to tiers."""

from __future__ import annotations

from ..model.tier_address import TierAddress
from ..settings import Settings
from .directory import DirectoryTier
from .tier import Tier


def open_tiers(settings: Settings) -> tuple[Tier, ...]:
    """The tiers of these settings, in order. Nothing is connected to and no file is opened before the first look-up.

    Raises:
        SettingsError: A tier needs a package that is not installed.
    """
    return tuple(_open(address, settings) for address in settings.tiers)


def _open(address: TierAddress, settings: Settings) -> Tier:
    return DirectoryTier(
        address.place,
        readonly=address.readonly is not False,
        shared=settings.shared,
        durability=settings.durability,
    )
