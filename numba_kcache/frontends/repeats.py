"""Know a call of `get_or_compile` again: one kernel for the same source, name and options.

Promise     Two calls share a kernel exactly where a decorated kernel of one would be that of the other: values count
            with their types, lists and mappings by what is in them now, and the caller's file where relative paths and
            quoted includes are looked up beside it, or lines of it are in line tables. What is kept is bounded; the
            `CROWDED` calls used last are kept.
Method      A call whose options are plain, or lists and dicts of plain values, is found by one look-up, under all that
            was written and the caller's file. Any other, and the first of each file, is put into one form first.
Not here    Finding and compiling (kernel).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from types import NoneType
from typing import Any

from ..engine.session import Session

LIMIT = 4096
"""Names of calls under which a cache keeps kernels; the least recently used goes first."""

CROWDED = LIMIT // 2
"""Up to this many names no order of use is kept: a name is dropped only if as many came in after its last use."""

PLAIN = frozenset((str, int, bool, bytes, NoneType))
"""Types that count by type and value."""

_WITH_PLACES = frozenset(("include_dirs", "link", "depends", "options", "lineinfo", "debug", "lto"))
"""Options whose meaning may depend on where the caller's file is."""


class Kernels(OrderedDict[Hashable, Any]):
    """Kernels by the calls that made them, the last used at the end.

    Args:
        session: Of the cache, as it is configured; None for none yet.
    """

    def __init__(self, session: Session | None) -> None:
        super().__init__()
        self.session = session

    def keep(self, call: Hashable, kernel: Any) -> Any:
        """Keep the kernel of a call, unless another thread has kept one; return the one that is kept."""
        found = self.setdefault(call, kernel)
        while len(self) > LIMIT:
            with suppress(KeyError):
                self.popitem(last=False)
        return found

    def drop(self, kernel: Any) -> None:
        """Forget a kernel."""
        for call in [call for call, each in list(self.items()) if each is kernel]:
            self.pop(call, None)


class _Sign:
    """Part of a name: a boolean, which is equal to a number, or where the values of a list or dict begin and end."""


_TRUE, _FALSE, _LIST, _DICT, _END = (_Sign() for _ in range(5))
_WRITTEN = PLAIN | {_Sign}


def written(source: Any, name: str | None, caller: str, options: Mapping[str, Any]) -> Hashable:
    """Name a call as it was written, where options hold plain values, and lists and dicts of such; None for others.

    Calls that mean the same may have two names; calls that mean different things never share one. One list is made
    of all: this is most of what a repeated call takes.
    """
    flat: list[Any] = []
    for value in options.values():
        kind = type(value)
        if kind is list:
            flat += _LIST, *value, _END
        elif kind is dict:
            flat += _DICT, *value, *value.values(), _END
        elif kind is bool:
            flat.append(_TRUE if value else _FALSE)
        else:
            flat.append(value)
    kinds = {*map(type, flat)}
    if not kinds <= _WRITTEN:
        return None
    if bool in kinds:
        flat += tuple(map(type, flat))
    return source, type(source), name, caller, *options, *flat


def call_of(source: Any, name: str | None, options: Mapping[str, Any], caller: str) -> Hashable:
    """Put a call into the form under which all calls that mean the same are known; None where there is none.

    Args:
        source, name, options: As they were given.
        caller: The file that calls.
    """
    try:
        frozen = tuple((each, _frozen(options[each])) for each in sorted(options))
        call = type(source), source, name, _place_of(source, options, caller), frozen
        hash(call)
        return call
    except (TypeError, RecursionError):  # an object that may change, and cannot be known again by its value
        return None


def copied(value: Any) -> Any:
    """Copy lists and mappings: what the caller does with its own changes no kernel."""
    if isinstance(value, Mapping):
        return {name: copied(each) for name, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def _frozen(value: Any) -> Hashable:
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_frozen, value))
    if isinstance(value, Mapping):  # order counts only between F and F(x): both define one macro
        items = sorted(value.items(), key=lambda item: str(item[0]).partition("(")[0])
        return kind, tuple((_frozen(name), _frozen(each)) for name, each in items)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(_frozen, value))
    return kind, repr(value) if kind is float else value


def _place_of(source: Any, options: Mapping[str, Any], caller: str) -> str:
    """The caller's file where it has a meaning; "" where it has none."""
    is_text = isinstance(source, (str, bytes))
    include = b"include" if isinstance(source, bytes) else "include"
    return "" if is_text and include not in source and _WITH_PLACES.isdisjoint(options) else caller
