"""`get_or_compile` and `get_or_build`: return the result for the given inputs, from the cache or newly made.

Promise     The arguments determine the result. A repeated call is one look-up in a dictionary.
Not here    Recognising repeated calls (frontends.repeats, engine.built), and making kernels (kernel).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .engine import RunsUncached, Session
from .errors import LaunchError, NoDeviceError, shorten
from .frontends import define
from .frontends.repeats import CROWDED, Kernels, call_of, written
from .kernel import Kernel
from .launch import current_device, is_device_current
from .model import copied

if TYPE_CHECKING:  # not needed at run time
    from typing import Unpack

    from .engine.built import Build, Built
    from .frontends.options import CallOptions


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
    definition = kernel._definition
    if definition.has_variants and not definition.options.get("signature"):
        return
    device = None
    if not kernel._arch:
        if not is_device_current():
            return
        try:
            device = current_device().target
        except (NoDeviceError, LaunchError):  # no usable device: a launch will report it
            return
    try:
        for variant in kernel._variants(None):
            if device is not None:
                definition.entry(kernel._resolutions.for_device(device, variant).artifact)
            for target in kernel._arch:
                definition.check_target(target)
                kernel._exactly(target, variant)
    except RunsUncached:
        return
