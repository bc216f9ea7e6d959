"""Implement the methods of `Kernel` other than launches: instantiate, compile, explain, inspect, pickle.

Not here    The methods themselves (kernel), which call this module when they are used, and measurements on the device
            (frontends.measures).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..engine import Lookup
from ..errors import KCacheError, LaunchError, OptionError
from ..model import Artifact, Choice, ptx_target

if TYPE_CHECKING:
    from ..explanation.text import Explanation
    from . import Kernel


def instantiate(kernel: Kernel, values: Mapping[str, Any]) -> Kernel:
    """The kernel of a template for these values; see `Kernel.instantiate`."""
    full = kernel._definition.template_values(values)
    key = tuple((type(value), value, repr(value)) for value in full.values())  # since -0.0 == 0.0 and (True,) == (1,)
    try:
        found = kernel._instances.get(key)
    except TypeError as error:
        raise OptionError(
            f"cannot instantiate {kernel.__name__} with {values!r}",
            str(error),
            "give numbers, text, or tuples of these",
        ) from None
    return found or kernel._instances.setdefault(key, type(kernel)(kernel._definition.instantiate(full)))


def compile_ahead(kernel: Kernel, arch: Any, signature: Any) -> None:
    """Compile and store each variant for each target; see `Kernel.compile`."""
    for variant in kernel._variants(signature):
        for target in kernel._targets(arch):
            kernel._definition.check_target(target)
            request = kernel._request(target, variant)
            if request.uncacheable:
                raise request.refusal(request.uncacheable)
            if request.covered:
                from ..observe.log import INFO, record

                record(INFO, f"depends= of {request.label} represents: {', '.join(request.covered)}")
            found = kernel._exactly(target, variant)
            if found.uncacheable:
                raise request.refusal(found.uncacheable)
            require_directory(kernel._session(), f"store {request.label}", found.key)


def explain(kernel: Kernel, arch: Any, signature: Any) -> Explanation:
    """Explain whether the kernel is in the cache; see `Kernel.explain`."""
    variant, target = kernel._variants(signature)[0], kernel._targets(arch)[0]
    is_auto = arch is None and not kernel._arch
    choice = kernel._resolutions.choose(target) if is_auto else Choice(target, ptx_target(kernel._arch, target))
    found = kernel._resolutions.explain(choice, variant)
    if found.outcome == "miss" and not is_auto:
        with contextlib.suppress(LaunchError):  # its `arch` names no target for such a device
            of_launch = kernel._resolutions.explain(kernel._resolutions.choose(target), variant, asks_why=False)
            return found._replace(instead=of_launch.target if of_launch.is_hit else "")
    return found


def read_off(kernel: Kernel, read: Callable[[Artifact], Any], arch: Any, signature: Any) -> Any:
    """Apply `read` to the artifact. With variants and no signature: a dict of the results for all known ones."""
    definition, known = kernel._definition, kernel._resolutions.known()
    target = None if arch is None else kernel._targets(arch)[0]
    if definition.has_variants and signature is None:
        return {
            variant: read(each.artifact)
            for (known_target, _, variant), each in known.items()
            if target is None or target == known_target
        }
    if target is None and not definition.has_variants:
        kernel._variants(signature)
        return read(kernel._any_artifact())
    return read(kernel._exactly(target or kernel._targets(None)[0], kernel._variants(signature)[0]).artifact)


class _Sent:
    """An object whose pickle is that of a kernel with this definition."""

    def __init__(self, kernel: Kernel) -> None:
        self._made = type(kernel), (kernel._definition.by_value(),)

    def __reduce__(self) -> Any:
        return self._made


def to_send(kernel: Kernel) -> Any:
    """An object that unpickles as this kernel in another process, without importing the file that defines it."""
    named, definition = by_name(kernel), kernel._definition
    is_found = named is kernel or named is definition.thing
    if definition.is_sent_by_name and kernel.__module__ != "__main__" and is_found:
        return kernel
    return _Sent(kernel)


def by_name(kernel: Kernel) -> Any:
    """The object that the kernel's module has under the kernel's qualified name."""
    found: Any = sys.modules.get(kernel.__module__)
    for name in kernel.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def require_directory(cache: Lookup, what: str, key: str = "", *, is_found: bool = False) -> None:
    """Require that new entries can be written to the configured directory, or that it has the given entry.

    Args:
        cache: The session.
        what: The operation, as in `cannot ...`.
        key: Key of the entry, if it was found or stored; "" if it is not built yet, or its key is not known.
        is_found: Whether the entry was found in some store; then it is enough that the directory can be read.

    Raises:
        KCacheError: A directory was configured and cannot be used.
    """
    is_configured = cache.settings.directory is not None and cache.stores
    if not is_configured or not cache.local.directory:
        return
    if key and cache.local.has(key):
        return
    if is_found and cache.local.is_usable() and cache.local.tree.status is not None:
        return
    why = cache.local.prepare()
    if why:
        hint = "name a directory that this user can write to: NUMBA_KCACHE_DIR, or configure(directory=...)"
        raise KCacheError(f"cannot {what}", f"{cache.local.directory} cannot be used: {why}", hint)


def require_lasting(cache: Lookup, what: str) -> None:
    """Require that new entries outlive this process.

    Raises:
        KCacheError: New entries would be kept only in memory, and the mode is not off.
    """
    why = cache.local.prepare()
    if not cache.local.place and cache.settings.mode != "off":
        where = f"kernels would be kept in the memory of this process alone{why and f': {why}'}"
        raise KCacheError(f"cannot {what}", where, "name a directory to write to: --directory, or NUMBA_KCACHE_DIR")
