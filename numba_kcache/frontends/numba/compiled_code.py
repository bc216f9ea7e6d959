"""Drop device code of earlier compiles in this process, and describe a compiled kernel: the code of both Numbas.

Promise     Code of a device function or an implementation is used again only if all its argument types are plain: the
            type of a function, a class or an extension's type refers to an object of the program, on whose present
            state the code depends, and which the digest of the function itself does not cover.
            Of a device function it is used again only if it was compiled last under the same digest and for the same
            target, and nothing else was compiled of it since.
Not here    Making a device function's dispatcher compile again (llvm_compile, mlir_compile).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import CompileError, UncacheableError
from ...keys import Plain
from ...model import Entry, Parameter
from ...model.cubin import read_cubin
from .graph import Registration

_compiled_as: WeakKeyDictionary[Any, tuple[str, object, int]] = WeakKeyDictionary()
"""For each device function: the digest and target of its last compile, and the number of its overloads then."""

_CARVEOUTS = {"default": -1, "maxl1": 0, "maxshared": 100}

_TEMPLATE_CACHES = ("_impl_cache", "_compiled_overloads", "_inline_overloads", "_overload_cache")


def is_plain(types: Any, form_of_type: Callable[[Any], Plain]) -> bool:
    """Check whether code for these types depends on nothing but the types: for a tuple of types, and tuples inside it.

    Args:
        types: A tuple of argument types, or a key of Numba's with such tuples in it.
        form_of_type: The flavour's function for the form of a type.
    """
    try:
        for each in types:
            if isinstance(each, tuple):
                if not is_plain(each, form_of_type):
                    return False
            elif hasattr(each, "can_convert_to"):  # a type, and not a flag or a context
                form_of_type(each)
    except Exception:  # refused, or the class of an extension's type raised its own error
        return False
    return True


def forget_implementations(
    registries: Iterable[Any], functions: Collection[Any], form_of_type: Callable[[Any], Plain], *, all_code: bool
) -> None:
    """Drop what Numba keeps for the life of a process: the code of functions under `@overload` or `@intrinsic`.

    Args:
        registries: Registries; those of lowering have no templates.
        functions: Functions whose code is dropped; of other functions only the code for types that are not plain is.
        form_of_type: As for `is_plain`.
        all_code: Drop the code of all functions: any of it may contain operators that the program has registered.
    """
    wanted = set(map(id, functions))
    for registry in (each for each in registries if hasattr(each, "globals")):
        templates = [each for _value, kind in registry.globals for each in getattr(kind, "templates", ())]
        for template in {*templates, *registry.attributes, *registry.functions}:
            if vars(template).keys().isdisjoint(("_overload_func", "_definition_func")):
                continue
            given = getattr(template, "_overload_func", None) or getattr(template, "_definition_func", None)
            for name in _TEMPLATE_CACHES:
                kept: Any = getattr(template, name, None)
                for key in list(kept) if kept else ():
                    is_wanted = all_code or id(given) in wanted
                    if is_wanted or not is_plain(key if isinstance(key, tuple) else (key,), form_of_type):
                        kept.pop(key, None)


@contextmanager
def fresh_functions(
    flavour: Any,
    device_functions: Iterable[tuple[Any, str]],
    target: object,
    on_device: Callable[[Any], Any],
    compile_again: Callable[[Any], None],
) -> Iterator[None]:
    """Compile without code that was compiled earlier for another target, other globals or other flags.

    The records of the last compile are removed first, and written again after success: so the next compile drops what a
    failed one leaves. The code of functions under `@overload` and `@intrinsic` is always dropped: kernels outside this
    package add some too, which this package cannot count.

    Args:
        flavour: The flavour.
        device_functions: As `Fingerprint.device_functions` returns them.
        target: The target.
        on_device: Returns the dispatcher or function that is compiled for the device; None if there is none yet.
        compile_again: Drops the overloads of a dispatcher.
    """
    functions, implementations = tuple(device_functions), []
    for function, digest in functions:
        found = on_device(function)
        if isinstance(found, FunctionType):
            implementations.append(found)
        elif found is not None:
            is_known = _compiled_as.pop(found, None) == (digest, target, len(found.overloads))
            if not (is_known and is_plain((*found.overloads,), flavour.form_of_type)):
                compile_again(found)
    all_code = bool(flavour.registrations().of_all)
    forget_implementations(flavour.registries(), implementations, flavour.form_of_type, all_code=all_code)
    yield
    for function, digest in functions:
        found = on_device(function)
        if found is not None and not isinstance(found, FunctionType):
            _compiled_as[found] = digest, target, len(found.overloads)


@contextmanager
def observed(unread: Iterable[tuple[str, str, Registration]], label: str) -> Iterator[None]:
    """Compile, and refuse the result if this thread called a function of a registration that is not in the key.

    Args:
        unread: As in `Fingerprint`.
        label: The kernel's, for the error.

    Raises:
        UncacheableError: A function was called; the error has the reason for which it cannot be read.
    """
    reasons = {id(code.__code__): f"{name}: {reason}" for reason, name, each in unread for code in each.code}
    if not reasons:
        yield
        return
    called, before = list[str](), sys.getprofile()

    def note(frame: Any, event: Any, argument: Any) -> None:
        if id(frame.f_code) in reasons:
            called.append(reasons[id(frame.f_code)])
        if before is not None:
            before(frame, event, argument)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
    if called:
        raise UncacheableError(f"cannot cache {label}", called[0])


def entry_of(cubin: bytes, symbol: str, name: str) -> Entry:
    """The kernel with this symbol in a linked cubin, or else its only one.

    Raises:
        CompileError: It is not there.
    """
    described = read_cubin(cubin)
    named = [each for each in described.kernels if each.symbol == symbol] or described.kernels
    if len(named) != 1:
        raise CompileError(f"cannot compile {name}", f"the linked cubin has no kernel {symbol}")
    (kernel,) = named
    parameters = tuple(Parameter(offset, size, "?") for offset, size in kernel.parameters)
    resources = kernel.registers, kernel.shared_bytes, kernel.local_bytes, described.const_bytes
    return Entry(name, kernel.symbol, parameters, False, *resources, kernel.safe_threads)


def attributes_of(options: Mapping[str, Any], types: Iterable[Any], *, is_cooperative: object) -> dict[str, Any]:
    """The attributes that artifacts of both Numbas have."""
    bounds, carveout = options.get("launch_bounds"), options.get("shared_memory_carveout")
    return {
        "cooperative": bool(is_cooperative),
        "carveout": _CARVEOUTS[carveout.lower()] if isinstance(carveout, str) else carveout,
        "debug": bool(options.get("debug")),
        "lineinfo": bool(options.get("lineinfo")),
        "launch_bounds": list(bounds) if isinstance(bounds, (tuple, list)) else bounds,
        "max_registers": options.get("max_registers"),
        "signature": [str(each) for each in types],
    }
