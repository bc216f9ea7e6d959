"""`get_or_compile` and `get_or_build`: return the result for the given inputs, from the cache or newly made.

Promise     The arguments determine the result. A repeated call is one look-up in a dictionary.
            Two calls share a kernel only if kernels decorated with the same arguments would be equal: values are
            compared with their types, lists and mappings by their present contents, and the caller's file where
            relative paths and quoted includes refer to it, or line tables contain it. The number of kernels kept is
            bounded; at least those of the last `CROWDED` calls are kept.
Method      A call whose options are plain values, or lists and dicts of these, is found by one dict look-up, under its
            arguments and the caller's file. Other calls, and the first of each file, are converted to a canonical form.
Not here    Making kernels (frontends), finding and compiling (engine).
"""

from __future__ import annotations

import functools
import os
import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from contextlib import nullcontext, suppress
from types import NoneType
from typing import TYPE_CHECKING, Any

from .engine import RunsUncached, Session
from .errors import LaunchError, NoDeviceError, OptionError, shorten
from .frontends import Kernel, define
from .keys import sha256
from .launch import current_ordinal, relaxed
from .model import copied
from .settings import path_from, working_directory

if TYPE_CHECKING:  # not needed at run time
    from typing import Unpack

    from .engine.built import Build, Built
    from .frontends.options import CallOptions

LIMIT = 4096
"""Limit of the calls for which a cache keeps kernels; the least recently used are dropped first."""

CROWDED = LIMIT // 2
"""Number of kept calls up to which their order of use is not tracked, which saves time in a repeated call."""

PLAIN = frozenset((str, int, bool, bytes, NoneType))
"""Types whose values are compared by type and value."""

_is_file = functools.cache(os.path.isfile)

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


class GetOr:
    """The base of `KernelCache`, with `get_or_compile` and `get_or_build`."""

    @property
    def session(self) -> Session:
        """The engine behind this cache."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._kernels = Kernels(None)

    def get_or_compile(self, source: Any, name: str | None = None, **options: Unpack[CallOptions]) -> Kernel:
        """Return the kernel for a source, name and options; for programs whose sources are strings.

        With a target (`arch="sm_90"`), or a current device, the kernel is found or compiled, and counted, before this
        returns. Otherwise, for a device of another kind, or for a Numba kernel without `signature`, that happens at
        the first launch, as with `cached_kernel`. The same source, name and options give the same object, from any
        thread: a call before each launch costs one look-up in a dictionary, and a program can warm up by calling this
        for all its sources. At least the 1024 kernels used last are kept. A file is read at each call: once it or one
        of its headers is edited, it is another source. Other inputs (headers of a text, files of `depends`) are read
        when the kernel is resolved, as for a decorated one; after `clear()` it is resolved again.

        Args:
            source: A source as `cached_kernel` takes it.
            name: The entry in the source; None to find it.
            options: Options of `cached_kernel`.

        Raises:
            OptionError: The source or an option cannot be used.
            CompileError, LinkError, EntryError: The source has an error, or no such kernel.
            ToolchainMissingError, FrozenCacheError: The kernel is not in the cache, and cannot be compiled.
        """
        __tracebackhide__ = True
        caller = sys._getframe(1).f_code.co_filename
        if not _is_file(caller):  # a notebook's cell: relative paths start from the working directory
            caller = os.path.join(working_directory(), os.path.basename(caller))
        session = self.session
        kernels = self._kernels
        if kernels.session is not session:  # the process's cache was configured
            kernels = self._kernels = Kernels(session)
        call = written(source, name, caller, options)
        try:
            kernel: Kernel = kernels[call]
            if len(kernels) > CROWDED:
                kernels.move_to_end(call)
            if hasattr(source, "__fspath__") and not kernel._resolutions.are_current():
                kernels.drop(kernel)
                raise KeyError(call)
        except (KeyError, TypeError):  # new, dropped by another thread, or with a source that is not hashable
            try:
                kernel = self._kernel_of(source, name, options, call, caller)
            except Exception as error:
                shorten(error)
                raise
        if not kernel._resolutions.resolved:
            try:
                _resolve_ahead(kernel)
            except BaseException as error:  # drop the kernel, so that the next call tries again
                self._kernels.drop(kernel)
                shorten(error)
                raise
        return kernel

    def _kernel_of(
        self, source: Any, name: str | None, options: Mapping[str, Any], call: Hashable, caller: str
    ) -> Kernel:
        """Make the kernel of a call, or return that of an equivalent call."""
        if options.get("cache") is not None:
            why = "the kernel is stored in the cache whose method is called"
            raise OptionError("cannot use cache= here", why, "write KernelCache(...).get_or_compile(...)")
        canonical = call_of(source, name, options, caller)
        found: Kernel | None = self._kernels.get(canonical)
        if found is None:
            found = Kernel(define(source, {**copied(options), "name": name, "cache": self}, depth=3))
        for each in (canonical, call) if canonical is not None else ():
            found = found if each is None else self._kernels.keep(each, found)
        return found

    def get_or_build(
        self,
        components: Mapping[str, Any],
        build: Build,
        *,
        label: str = "",
        depends: Iterable[str | os.PathLike[str]] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> Built:
        """Return the bytes stored for these components; if there are none, store and return the bytes of `build()`.

        Of all threads, processes and nodes that miss them at the same time, one calls `build`, and the others wait.

        Args:
            components: Names and plain values (text, bytes, numbers, booleans, None, lists, mappings) that together
                determine the result: source, options, target, and the compiler with its version.
            build: Makes the result: bytes, or a mapping of names to bytes. Its exceptions pass through.
            label: Name in lists and messages; by default the name of `build`. Not in the key.
            depends: Files and folders whose content also determines the result. Relative to the file of the caller.
            meta: JSON values to store with the result, returned by later calls. Not in the key.

        Returns:
            `payloads` (by name; `"data"` if `build` returned bytes), `key`, `source` and `meta`.

        Raises:
            OptionError: A component, a dependency, the meta or the result of `build` cannot be used.
            FrozenCacheError: Nothing is stored, and the mode is frozen; the message names the component that differs.
        """
        from .engine.built import find_or_build

        caller = sys._getframe(1).f_code.co_filename
        return find_or_build(self.session, components, build, label=label, depends=depends, meta=meta, caller=caller)


def _resolve_ahead(kernel: Kernel) -> None:
    """Find or compile the code for the first launch, if a target is named or a device is current.

    Does nothing where the code depends on arguments that are not known yet.
    """
    if kernel._definition.has_variants and not kernel._definition.options.get("signature"):
        return
    if not kernel._arch and current_ordinal() < 0:
        return
    way = nullcontext() if kernel._arch else relaxed()
    with suppress(RunsUncached, NoDeviceError, LaunchError), way:  # no usable device: a launch will report it
        for target, variant in kernel._requests(None):
            kernel._exactly(target, variant, None)


# -- repeated calls -----------------------------------------------------------------------------------------------


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
        with open(path_from(os.path.dirname(caller), source), "rb") as file:
            return sha256(file.read()).digest()
    except (OSError, ValueError):  # the error is that of the kernel's definition
        return b""


def _place_of(source: Any, options: Mapping[str, Any], caller: str) -> str:
    """The caller's file if the kernel depends on it; "" if it does not."""
    is_text = isinstance(source, (str, bytes))
    include = b"include" if isinstance(source, bytes) else "include"
    return "" if is_text and include not in source and _WITH_PLACES.isdisjoint(options) else caller
