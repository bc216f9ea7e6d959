"""Compile a kernel of either Numba: without code of earlier compiles, for an assumed device.

Promise     Any target on any machine: no device, driver or context is needed, and an existing one has no effect. The
            program is compiled in its present state. Errors of the Numba pass unchanged, and the user's options are not
            modified. What only this process can run is refused.
            Code of a device function or an implementation is used again only if all its argument types are plain: the
            type of a function, a class or an extension's type refers to an object of the program, on whose present
            state the code depends, and which the digest of the function itself does not cover.
            Of a device function it is used again only if it was compiled last under the same digest and settings, for
            the same target, and nothing else was compiled of it since; or if its decorator compiled it under
            `install()`, and everything that its code depends on is now as it was then.
            Warnings are issued during the compile, under the program's filters, and are not stored: a hit issues none.
Not here    What one Numba does alone: its own steps (llvm_compile, mlir_compile).
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib import import_module
from inspect import signature
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import CompileError, UncacheableError
from ...keys import Plain, sha256
from ...launch.attributes import CARVEOUTS
from ...model import Artifact, CompiledKernel, LinkInput, NamedTuple, Parameter, Target
from ...model.cubin import read_cubin
from . import Flavour, Registration, Registrations, code_settings, gathered, is_a, loaded, on_device, surface
from .fingerprint import Trust, Uncapturable, fingerprint, parts_of, unreplaced

_compiled_as: WeakKeyDictionary[Any, object] = WeakKeyDictionary()
"""For each device function: the digest of its last compile, target and settings, and the number of overloads then."""

_decorated: WeakKeyDictionary[Any, tuple[object, Any]] = WeakKeyDictionary()
"""For each device function that its decorator compiled for one signature: its `_state_now` then, and overloads."""

_TOOL = 4
"""A number of `sys.monitoring` that Python gives no use."""

_TEMPLATE_CACHES = (
    "_impl_cache",
    "_compiled_overloads",
    "_inline_overloads",
    "_overload_cache",
    "_overload_result_cache",
)


class Code(NamedTuple):
    """What a Numba made of one signature of a kernel.

    Args:
        cubin, symbol, ptx, log: The linked code, the kernel's symbol, its PTX before linking, and the linker's log.
        attributes: Attributes that only artifacts of this Numba have.
        is_cooperative: Whether it synchronises its grid.
        has_runtime: Whether CUDA's device runtime was linked.
        callbacks: Callbacks that have to run when the code is loaded or unloaded, and that nothing would call.
        why: The reason why it is only valid in this process; "" if it may be stored.
    """

    cubin: bytes
    symbol: str
    ptx: str
    log: str
    attributes: dict[str, Any]
    is_cooperative: bool
    has_runtime: bool
    callbacks: Sequence[Any]
    why: str = ""


def compile_kernel(
    flavour: Flavour,
    declared: Any,
    types: Iterable[Any],
    target: Target,
    *,
    ptx_target: Target | None = None,
    device_functions: Iterable[tuple[Any, str]] = (),
    keep_ptx: bool = True,
    links: Iterable[LinkInput] = (),
    runtime_build: str | None = None,
) -> Artifact:
    """Compile one signature of a kernel.

    Args:
        flavour: The Numba.
        declared: The function with its options (`Declared`), or a dispatcher.
        types: Types of the arguments, in order.
        target: A real target.
        ptx_target: The virtual target to generate PTX for, if the user requested one.
        device_functions: Dispatchers it calls, and functions under `@overload` or `@intrinsic`, each with a
            digest of everything that determines its code (`Fingerprint.device_functions`).
        keep_ptx: Whether the artifact contains the PTX, as it is before linking.
        links: Link inputs in the key.
        runtime_build: Build of the device runtime in the key; None for none.

    Raises:
        UncacheableError: The result is only valid in this process, or is not that of its key.
        CompileError, LinkError: A linked file was refused, or the linked cubin has no such kernel.
        ToolchainMissingError: Numba, NVVM or nvJitLink is missing or of an unknown version.
    """
    start, parts, types = time.perf_counter(), compiler(flavour), tuple(types)
    generated, options = ptx_target or target, dict(declared.targetoptions)
    given = options.get("link") or ()
    options["link"] = [given] if isinstance(given, (str, os.PathLike)) else list(given)  # a Numba appends to it
    part = flavour.part("compile")
    fresh = fresh_functions(flavour, flavour.registrations(), device_functions, generated)
    with assumed_device(flavour, part.assumed(target, generated)), fresh:
        code = part.compile_signature(declared.py_func, types, options, target, generated, links)
    why = code.why
    if not all(str(each.__module__).startswith(f"{flavour.owned}.") for each in code.callbacks):
        why = "what it links has callbacks to run when it is loaded"
    if code.has_runtime:
        with open(parts.get_cudalib("cudadevrt", static=True), "rb") as file:
            if runtime_build != f"sha256:{sha256(file.read()).hexdigest()}":
                why = "the build of CUDA's device runtime that was linked is not the one in the kernel's key"
    if why:
        raise UncacheableError("cannot cache it", why)
    kernel = kernel_of(code.cubin, code.symbol, declared.py_func.__name__)
    carveout = options.get("shared_memory_carveout")
    attributes = {
        "cooperative": bool(code.is_cooperative),
        "carveout": CARVEOUTS[carveout.lower()] if isinstance(carveout, str) else carveout,
        "debug": bool(options.get("debug")),
        "signature": [str(each) for each in types],
        **code.attributes,
    }
    extras = {"log": code.log.encode(), **({"ptx": code.ptx.encode()} if keep_ptx else {})}
    return Artifact(flavour.kind, target, (kernel,), code.cubin, time.perf_counter() - start, attributes, extras)


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


def forget_implementations(flavour: Flavour, registrations: Registrations, wanted: Collection[int]) -> None:
    """Drop what Numba keeps for the life of a process: the code of functions under `@overload` or `@intrinsic`.

    Args:
        flavour: The flavour.
        registrations: Those of the program. If any code may use some, all code is dropped.
        wanted: Ids of functions whose code is dropped; of others only the code for types that are not plain is.
    """
    all_code = registrations.of_attribute or registrations.of_all
    for registry in (each for each in flavour.registries() if hasattr(each, "globals")):
        templates = [each for _value, kind in registry.globals for each in getattr(kind, "templates", ())]
        for own in map(vars, {*templates, *registry.attributes, *registry.functions}):
            given = own.get("_overload_func") or own.get("_definition_func")
            for name in _TEMPLATE_CACHES if given else ():
                for key in list(own.get(name, ())):
                    is_wanted = all_code or id(getattr(given, "__func__", given)) in wanted
                    if is_wanted or not is_plain(key if isinstance(key, tuple) else (key,), flavour.form_of_type):
                        own[name].pop(key, None)


@contextmanager
def fresh_functions(
    flavour: Flavour, registrations: Registrations, device_functions: Iterable[tuple[Any, str]], target: object
) -> Iterator[None]:
    """Compile without code that was compiled earlier for another target, other globals or other flags.

    The records of the last compile are removed first, and written again after success: so the next compile drops what a
    failed one leaves. The code of functions under `@overload` and `@intrinsic` is always dropped: kernels outside this
    package add some too, which this package cannot count.

    Args:
        flavour: The flavour.
        registrations: Those of the program.
        device_functions: As `Fingerprint.device_functions` returns them.
        target: The target.
    """
    functions = [(on_device(function), digest) for function, digest in device_functions]
    made_for = target, _settings(flavour)
    for found, digest in functions:
        if is_a(found, *flavour.dispatchers[:1]):  # not one of `njit` that no kernel has called yet
            overloads = dict(found.overloads)
            is_known = _compiled_as.pop(found, None) == (digest, made_for, len(overloads)) or (
                found in _decorated and _decorated[found] == (_state_now(flavour, found), overloads)
            )
            if not (is_known and is_plain((*overloads,), flavour.form_of_type)):
                _decorated.pop(found, None)
                given = {} if found._can_compile else overloads  # the decorator's: no call compiles them
                found.overloads.clear()
                vars(found).pop("_device_dispatcher", None)  # numba-cuda-mlir's
                for types, result in given.items():
                    flavour.part("compile").compile_callee(found, types, result)
    forget_implementations(flavour, registrations, {id(found) for found, _digest in functions})
    yield
    for found, digest in functions:
        if is_a(found := on_device(found), *flavour.dispatchers[:1]):
            _compiled_as[found] = digest, made_for, len(found.overloads)


def _state_now(flavour: Flavour, dispatcher: Any) -> object:
    """Everything that the code of a device function depends on if it calls only those of `_decorated`; else None."""
    found = fingerprint(dispatcher, flavour, with_lines=False)
    if isinstance(found, Uncapturable) or any(each not in _decorated for each, _ in found.device_functions()):
        return None
    device = loaded(*flavour.device_readers[0])()
    return found.digest, getattr(device, "compute_capability", device), _settings(flavour)


def _settings(flavour: Flavour) -> object:
    """The settings that count for code, with `OPT`, which is an option of a kernel but not of a device function."""
    config = surface(flavour).config
    return code_settings(config), config.OPT


@contextmanager
def noted(flavour: Flavour, dispatcher: Any) -> Iterator[list[Any]]:
    """Let a decorator compile a device function, and note the state in which it does.

    Args:
        flavour: The Numba.
        dispatcher: The function's dispatcher, or one like it; then the block appends that to the list that it gets.
    """
    with surface(flavour).global_compiler_lock:
        state, made = _state_now(flavour, dispatcher), [dispatcher]
        yield made
        if state and len(made[-1].overloads) == 1 and state == _state_now(flavour, made[-1]):
            _decorated[made[-1]] = state, dict(made[-1].overloads)


@contextmanager
def observed(flavour: Flavour, unread: Iterable[tuple[str, str, Registration]]) -> Iterator[None]:
    """Compile, and refuse the result if this thread called a function of a registration that is not in the key.

    Args:
        flavour: The flavour.
        unread: As in `Fingerprint`.

    Raises:
        UncacheableError: A function was called; the error has the reason for which it cannot be read.
    """
    watched: dict[int, list[tuple[Any, str]]] = {}
    codes = list[CodeType]()
    for reason, name, registration in unread:
        for each in registration.code:
            for function, kind in _functions_of(each, flavour):
                codes.append(function.__code__)
                watched.setdefault(id(function.__code__), []).append((kind, f"{name}: {reason}"))
    thread, called = threading.get_ident(), list[str]()

    def note(frame: Any) -> None:
        for kind, reason in watched.get(id(frame.f_code), ()) if threading.get_ident() == thread else ():
            first = None if kind is None else frame.f_locals.get(frame.f_code.co_varnames[0], kind)
            if first is kind or kind in type(first).__mro__:
                called.append(reason)
                raise _Used

    with suppress(_Used), _calls_noted(codes, note) if codes else nullcontext():
        yield
    if called:
        raise UncacheableError("cannot cache it", called[0])


class _Used(BaseException):
    """Ends a compile whose result is refused; no Numba catches it."""


@contextmanager
def _calls_noted(codes: Sequence[CodeType], note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` with the frame of each call of these codes; what it raises, the call raises."""
    monitoring: Any = getattr(sys, "monitoring", None)
    try:
        monitoring.use_tool_id(_TOOL, __name__)
    except (AttributeError, ValueError):  # Python 3.11, or another tool has this number
        if sys.getprofile() is not None:
            raise UncacheableError("cannot cache it", "a profiler hides what its compile calls") from None
        sys.setprofile(lambda frame, _event, _argument: note(frame))  # a compile takes five times as long
        try:
            yield
        finally:
            sys.setprofile(None)
        return
    start = monitoring.events.PY_START
    monitoring.register_callback(_TOOL, start, lambda _code, _offset: note(sys._getframe(1)))
    try:
        for code in codes:
            monitoring.set_local_events(_TOOL, code, start)
        yield
    finally:
        for code in codes:
            monitoring.set_local_events(_TOOL, code, 0)
        monitoring.register_callback(_TOOL, start, None)
        monitoring.free_tool_id(_TOOL)


def _functions_of(code: Any, flavour: Flavour) -> list[tuple[Any, type | None]]:
    """List the functions that a compile calls if it uses a function or class; each with the class of its first
    argument, or None for any.

    A template of a function is made when the function is called. One of attributes is made once in a process, and its
    own functions are called for an attribute.
    """
    if not hasattr(code, "__mro__"):
        return [(code, None)]
    if not hasattr(code, "generic_resolve"):
        return [(code.__init__, code)]
    trust = Trust(flavour.packages)
    own = [item for base in code.__mro__[:-1] if not trust.name_of(base) for item in vars(base).items()]
    found = [part for name, each in own if name != "__init__" for part in parts_of(each)]
    return [(each, None) for each in found if isinstance(each, FunctionType)]


def kernel_of(cubin: bytes, symbol: str, name: str) -> CompiledKernel:
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
    return CompiledKernel(name, kernel.symbol, parameters, False, *resources, kernel.safe_threads)


@cache
def compiler(flavour: Flavour) -> SimpleNamespace:
    """Import and probe the names that a compile needs, beside those of `surface`.

    Raises:
        ToolchainMissingError: The Numba is not installed, or of an unsupported version.
    """
    home = flavour.home
    with unreplaced():
        found = gathered(flavour, ((f"{home}.cudadrv.libs", "get_cudalib"), *flavour.compiler_parts))
    vars(found).update(vars(surface(flavour)))
    for name, wanted in flavour.parameters:
        lacking = {*wanted.split()} - {*signature(getattr(found, name)).parameters}
        if lacking:
            raise flavour.unsuitable(f"is of another version: {name} takes no {min(lacking)}")
    return found


@contextmanager
def assumed_device(flavour: Flavour, cc: tuple[Any, ...]) -> Iterator[None]:
    """Make this thread compile as if the current device had compute capability `cc` (`assumed` of its compile module).

    Both Numbas compile device functions for the current device, and need one for that; numba-cuda-mlir links for the
    first one, whatever the target. Other threads still get the real device.
    """
    part, thread = flavour.part("compile"), threading.get_ident()
    with compiler(flavour).global_compiler_lock:
        places = []
        for module, path in flavour.device_readers:
            *owners, name = path.split(".")
            owner = functools.reduce(getattr, owners, import_module(module))
            places.append((owner, name, getattr(owner, name)))

        def current(real: Any) -> Any:
            def answer(*given: Any, **named: Any) -> Any:
                is_own = threading.get_ident() == thread
                return part.device_answer(cc, *given, **named) if is_own else real(*given, **named)

            return answer

        for owner, name, real in places:
            setattr(owner, name, current(real))
        try:
            with uncollected(), unreplaced():
                part.prepare()
            yield
        finally:
            for owner, name, real in places:
                setattr(owner, name, real)


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection while a Numba fills its registries, and move objects made meanwhile to the oldest
    generation.

    The registries are half a million permanent objects: traversing them repeatedly was 40 % of a first compile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        is_much = gc.get_count()[0] > gc.get_threshold()[0]  # after the first compile, few objects are made
        if was_enabled and is_much and not gc.get_freeze_count():  # unfreezing would undo the program's own freeze
            gc.freeze()
            gc.unfreeze()  # moves the objects into the oldest generation without traversing them
        if was_enabled:
            gc.enable()
