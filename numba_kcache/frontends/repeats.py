"""Recognise repeated calls of `get_or_compile`: one kernel for the same source, name and options.

Promise     Two calls share a kernel only if kernels decorated with the same arguments would be equal: values are
            compared with their types, lists and mappings by their present contents, and the caller's file where
            relative paths and quoted includes refer to it, or line tables contain it. The number of kernels kept is
            bounded; at least those of the last `CROWDED` calls are kept.
Method      A call whose options are plain values, or lists and dicts of these, is found by one dict look-up, under its
            arguments and the caller's file. Other calls, and the first of each file, are converted to a canonical form.
Not here    Finding and compiling (kernel).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from types import NoneType
from typing import Any

from ..engine import Session
from ..keys import sha256

LIMIT = 4096
"""Limit of the calls for which a cache keeps kernels; the least recently used are dropped first."""

CROWDED = LIMIT // 2
"""Number of kept calls up to which their order of use is not tracked, which saves time in a repeated call."""

PLAIN = frozenset((str, int, bool, bytes, NoneType))
"""Types whose values are compared by type and value."""

_WITH_PLACES = frozenset(("include_dirs", "link", "depends", "options", "lineinfo", "debug", "lto"))
"""Options whose meaning may depend on where the caller's file is."""


class Kernels(OrderedDict[Hashable, Any]):
    """Kernels by the calls that made them, the last used at the end.

    Args:
        session: Session of the cache, in its current configuration; None before the first.
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
    """A marker in a call's name: for a boolean (which equals a number), or for begin and end of a list or dict."""


_TRUE, _FALSE, _LIST, _DICT, _END = (_Sign() for _ in range(5))
_WRITTEN = PLAIN | {_Sign}


def written(source: Any, name: str | None, caller: str, options: Mapping[str, Any]) -> Hashable:
    """Name a call by its arguments as written, if these are plain values, lists and dicts; None for others.

    Equivalent calls may have different names; different calls never share one. All parts go into a single list,
    because this function takes most of the time of a repeated call.
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
    return source, type(source), _content(source, caller), name, caller, *options, *flat


def call_of(source: Any, name: str | None, options: Mapping[str, Any], caller: str) -> Hashable:
    """Convert a call to a canonical form, equal for all equivalent calls; None if there is none.

    Args:
        source, name, options: The arguments of the call.
        caller: The file that calls.
    """
    try:
        frozen = tuple((each, _frozen(options[each])) for each in sorted(options))
        call = type(source), source, _content(source, caller), name, _place_of(source, options, caller), frozen
        hash(call)
        return call
    except (TypeError, RecursionError):  # a mutable object, which cannot be compared by value
        return None


def _frozen(value: Any) -> Hashable:
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_frozen, value))
    if isinstance(value, Mapping):  # order matters only between macros F and F(x), which define the same name
        items = sorted(value.items(), key=lambda item: str(item[0]).partition("(")[0])
        return kind, tuple((_frozen(name), _frozen(each)) for name, each in items)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(_frozen, value))
    return kind, repr(value) if kind is float else value


def _content(source: Any, caller: str) -> bytes:
    """The digest of a file's content, so that an edited file is another source; b"" for other sources."""
    if isinstance(source, (str, bytes)) or not hasattr(source, "__fspath__"):
        return b""
    try:
        with open(os.path.join(os.path.dirname(caller), os.path.expanduser(source)), "rb") as file:
            return sha256(file.read()).digest()
    except (OSError, ValueError):  # the error is that of the kernel's definition
        return b""


def _place_of(source: Any, options: Mapping[str, Any], caller: str) -> str:
    """The caller's file if the kernel depends on it; "" if it does not."""
    is_text = isinstance(source, (str, bytes))
    include = b"include" if isinstance(source, bytes) else "include"
    return "" if is_text and include not in source and _WITH_PLACES.isdisjoint(options) else caller
