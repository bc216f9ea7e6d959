"""The verbs of a cache that take what decides a result, and give the result: `get_or_compile` and `get_or_build`.

Promise     All that decides the result is in the call. Asking for the same again is a look-up in a dictionary.
Not here    How calls are known again (frontends.repeats, engine.built), and how kernels are made (kernel).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .engine.session import Session
from .errors import LaunchError, NoDeviceError, shortened
from .frontends.base import RunsUncached, define
from .frontends.repeats import CROWDED, Kernels, call_of, copied, written
from .kernel import Kernel
from .launch.devices import current_device, is_device_current

if TYPE_CHECKING:  # types alone, which a program does not import
    from typing import Unpack

    from .engine.built import Build, Built
    from .frontends.options import CallOptions


class GetOr:
    """The base of `KernelCache`."""

    @property
    def session(self) -> Session:
        """The engine behind this cache."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._kernels = Kernels(None)

    def get_or_compile(self, source: Any, name: str | None = None, **options: Unpack[CallOptions]) -> Kernel:
        """The one kernel of a source, name and options: for code that has its sources in strings.

        With a target (`arch="sm_90"`), or a device that is current, it is found or compiled, and counted, when this
        returns; without either, on a further kind of device, and for a Numba kernel without `signature`, that is left
        to the first launch, as `cached_kernel` does. The same source, name and options give the same kernel, from any
        thread: calling this before each launch costs a look-up in a dictionary, and calling it for a list of sources
        at the start warms up. The 1024 kernels that were asked for last are kept so. What else decides the code
        (headers, files of `depends`) is read when the kernel is resolved, as for a decorated one: after `clear()` it
        is resolved anew.

        Args:
            source: Whatever `cached_kernel` takes.
            name: The entry in the source; None to find it.
            options: Options of `cached_kernel`.

        Raises:
            OptionError: The source or an option cannot be used.
            CompileError, LinkError, EntryError: The source is at fault.
            ToolchainMissingError, FrozenCacheError: It is not in the cache, and cannot be compiled.
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
        except (KeyError, TypeError):  # another thread has made room; or a source that has no hash
            try:
                kernel = self._kernel_of(source, name, options, call, caller)
            except Exception as error:
                raise shortened(error)
        if not kernel._resolutions.resolved:
            try:
                _resolve_ahead(kernel)
            except BaseException as error:  # the next call tries again
                self._kernels.drop(kernel)
                if isinstance(error, Exception):
                    raise shortened(error)
                raise
        return kernel

    def _kernel_of(
        self, source: Any, name: str | None, options: Mapping[str, Any], call: Hashable, caller: str
    ) -> Kernel:
        """Make the kernel of a call, unless there is one of a call that means the same."""
        known = call_of(source, name, options, caller)
        found: Kernel | None = self._kernels.get(known)
        if found is None:
            found = Kernel(define(source, {**copied(options), "name": name, "cache": self}, depth=3))
        for each in (known, call) if known is not None else ():
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
        """Bytes of any compiler: those that are stored for these components, else what `build` returns, stored.

        Of all threads, processes and nodes that miss the same at once one calls `build`, and the others wait for it.

        Args:
            components: Names and plain values (text, bytes, numbers, booleans, None, lists, mappings) that together
                decide the result: source, options, target, and the compiler with its version.
            build: Makes it: returns bytes, or a mapping of names to bytes. What it raises passes through.
            label: What people call it, in lists and messages; default the name of `build`. Not in the key.
            depends: Files and folders whose content decides the result too. Relative to the file of the caller.
            meta: JSON values to keep beside it, and to be found by whoever gets it from the store. Not in the key.

        Returns:
            `payloads` (by name; `"data"` where `build` returned bytes), `key`, `source` and `meta`.

        Raises:
            OptionError: A component, a dependency, the meta or what `build` returned cannot be used.
            FrozenCacheError: It is not stored, and the mode is frozen; the message names the component that differs.
        """
        from .engine.built import find_or_build

        caller = sys._getframe(1).f_code.co_filename
        return find_or_build(self.session, components, build, label=label, depends=depends, meta=meta, caller=caller)


def _resolve_ahead(kernel: Kernel) -> None:
    """Find or compile what the first launch would, if a target is named or a device is current.

    Not what depends on arguments that are not known yet.
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
        except (NoDeviceError, LaunchError):  # none that a launch could go to, as that will say
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
