"""Resolve kernels as a launch does, but without a device, by the public names of `frontends`."""

from __future__ import annotations

import functools
from typing import Any

from numba_kcache import CachedModule, Kernel
from numba_kcache.engine import Request, process_session
from numba_kcache.frontends import Definition, Resolutions
from numba_kcache.model import choose_for_device, ptx_target, read_arch


def definition_of(kernel: Any) -> Any:
    """The definition in the pickle of a kernel or module, also for one that `pickle` would store by its name."""
    _made, (found,) = (CachedModule if isinstance(kernel, CachedModule) else Kernel).__reduce__(kernel)
    found = getattr(found, "definition", found)  # of a Python function, it is in a wrapper that pickles it by value
    assert isinstance(found, Definition)
    return found


def resolutions_of(kernel: Any) -> Resolutions:
    """New resolutions like a kernel's own: of its definition, in its cache, for its `arch`."""
    definition = definition_of(kernel)
    cache = definition.options.get("cache")
    session = process_session if cache is None else lambda: cache.session
    choose = functools.partial(choose_for_device, arch_of(definition), kernel=definition.label)
    resolutions: Resolutions = definition.make_resolutions(definition, session, choose)
    return resolutions


def request_of(kernel: Any) -> Request:
    """The request of a kernel for the first target in its `arch`."""
    definition = definition_of(kernel)
    target, *_ = named = arch_of(definition)
    return resolutions_of(kernel).request(target, ptx_target(named, target), definition.variants(None, ())[0])


def arch_of(definition: Definition) -> Any:
    """The targets in a definition's `arch`; none for "auto"."""
    return read_arch(definition.options.get("arch"))
