"""The process's own session: made at first use from the settings in force, and anew when they change.

Promise     There is one at a time, whoever asks first. What was registered and who listens outlive a change.
Not here    Caches of their own (cache), and what a session does (session).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..observe.events import Events, set_log_level
from ..settings import Settings, default_directory, read_settings
from .session import Session

if TYPE_CHECKING:
    from ..tiers.tier import Tier

_process: Session | None = None
_overrides: dict[str, Any] = {}
_process_lock = threading.RLock()

process_listeners = Events()
"""Subscribers of the process's cache, whichever session the settings lead to."""


def process_session() -> Session:
    """Return the session of the process's own cache, made at first use from the settings in force."""
    global _process
    if _process is None:
        with _process_lock:
            if _process is None:
                settings = read_settings(_overrides)
                set_log_level(settings.log_level)
                _process = Session(settings, settings.directory or default_directory())
                for make in _registered.values():
                    _process.mount(make(settings))
                _process.events.subscribe(process_listeners.tell)
    return _process


def configured() -> dict[str, Any]:
    """What was configured of the process's cache, for a process that works for this one."""
    return {name: value for name, value in _overrides.items() if name not in ("progress", "log_level")}


_registered: dict[str, Callable[[Settings], Tier]] = {}


def register(name: str, make: Callable[[Settings], Tier]) -> None:
    """Have the process's cache ask a tier under whichever settings it will have."""
    with _process_lock:
        _registered[name] = make


def configure_process(overrides: Mapping[str, Any]) -> Settings:
    """Change settings of the process's cache; the next launch of each kernel resolves anew.

    Raises:
        SettingsError: A setting is unknown or a value cannot be used; nothing has changed.
    """
    global _process
    with _process_lock:
        merged = {**_overrides, **overrides}
        settings = read_settings(merged)
        _overrides.update(overrides)
        before, _process = _process, None
        set_log_level(settings.log_level)
    if before is not None:
        before.forget()
    return settings
