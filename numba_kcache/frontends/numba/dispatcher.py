"""Numba's dispatchers: made from options, typed by arguments, and led to another cache than their own.

Promise     A dispatcher made here behaves as one of `cuda.jit` with the same options; making it loads no compiler and
            needs no device. `attach` changes which cache it asks, and nothing else.
Ground      numba-cuda 0.30.4: decorators.py `jit` (the options it fills in), dispatcher.py `compile`, `specialize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import OptionError, ToolchainMissingError
from .objects import Declared

DECORATOR_OPTIONS = (
    "debug", "opt", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers", "launch_bounds",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` for a kernel."""


def dump_function(function: Any) -> bytes:
    """A function or dispatcher by value, for a process that works for this one and cannot import it."""
    from numba.cuda.serialize import dumps

    return bytes(dumps(function))


def load_function(data: bytes) -> Any:
    """What `dump_function` of the process that this one works for was given."""
    from numba.cuda.serialize import loads

    return loads(data)


def declare(function: Any, given: Mapping[str, Any]) -> Declared:
    """A kernel with all its options, as `cuda.jit` fills them in. No target context is built.

    Args:
        function: A Python function, or a dispatcher, whose options hold where `given` has none.
        given: `DECORATOR_OPTIONS`.

    Raises:
        OptionError: The function is for devices alone, or an option cannot be meant.
        ToolchainMissingError: Numba's CUDA target is not installed.
    """
    try:
        from numba.cuda.core import config
        from numba.cuda.decorators import _validate_shared_memory_carveout
        from numba.cuda.dispatcher import CUDADispatcher
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot use a Numba kernel", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[cu13]'"
        ) from problem
    is_dispatcher = isinstance(function, CUDADispatcher)
    debug = given.get("debug")
    debug = bool(config.CUDA_DEBUGINFO_DEFAULT) if debug is None else debug
    options: dict[str, Any] = {
        "debug": debug, "lineinfo": False, "opt": config.OPT != 0, "link": (), "fastmath": False, "device": False,
        "inline": "never", "forceinline": False, "extensions": [], "launch_bounds": None, "lto": not debug,
        "shared_memory_carveout": None,
    }  # fmt: skip
    if is_dispatcher:
        options = dict(function.targetoptions)
    if options.get("device"):
        raise OptionError("cannot launch a device function", "it was decorated with device=True", "call it in a kernel")
    options |= {name: value for name, value in given.items() if value is not None}
    if options["shared_memory_carveout"] is not None:
        _validate_shared_memory_carveout(options["shared_memory_carveout"])
    return Declared(function.py_func if is_dispatcher else function, options)


def make_dispatcher(declared: Declared, function: Any) -> Any:
    """A dispatcher for a kernel.

    Args:
        declared: With its options.
        function: What it was made of; a dispatcher hands its signatures on, if it takes no others.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    made = CUDADispatcher(declared.py_func, targetoptions=dict(declared.targetoptions))
    if has_fixed_signatures(function):
        made._fixed_signatures = tuple(function.overloads)
    return made


def has_fixed_signatures(dispatcher: Any) -> bool:
    """Whether it takes the signatures that it was given, and no others; a mere function never does."""
    return not getattr(dispatcher, "_can_compile", True)


def fix_signatures(dispatcher: Any) -> None:
    """Compile the signatures that were given to the decorator, and no others, as Numba has it."""
    signatures = getattr(dispatcher, "_fixed_signatures", None)
    if signatures:
        dispatcher._fixed_signatures = None
        for types in signatures:
            dispatcher.compile(types)
        dispatcher.disable_compile()


def read_signatures(given: Any) -> tuple[tuple[Any, ...], ...]:
    """The argument types of what `signature=` takes: as `cuda.jit` takes it, or a list of that.

    Raises:
        OptionError: One is not a signature, or returns something.
    """
    from numba.cuda import types
    from numba.cuda.core import sigutils

    found = []
    for each in given if isinstance(given, list) else [given]:
        try:
            arguments, returned = sigutils.normalize_signature(each)
        except Exception as error:  # Numba evaluates the text: whatever that raises says what is wrong with it
            raise OptionError(
                f"cannot read signature {each!r}", str(error), 'write "void(float32[::1], int64)" or a tuple of types'
            ) from error
        if returned is not None and returned != types.void:
            raise OptionError(f"cannot use signature {each!r}", f"it returns {returned}", "a kernel returns void")
        found.append(tuple(arguments))
    return tuple(found)


class Signature(tuple[Any, ...]):
    """Argument types whose hash is taken once: Numba's types take theirs in Python, ten calls each time."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_taken")
        if found is None:
            found = self.__dict__["_taken"] = tuple.__hash__(self)
        return found


def types_of(arguments: Sequence[Any]) -> Signature:
    """What Numba types the arguments of a launch as; those whose type is known, or have but one, without asking it.

    Raises:
        ValueError: Numba has no type for one; its own message.
    """
    typeof, array, plain = _typing()
    return Signature([
        each._numba_type_ if type(each) is array else plain.get(type(each)) or typeof(each) for each in arguments
    ])  # fmt: skip


@functools.cache
def _typing() -> tuple[Callable[[Any], Any], Any, dict[type, Any]]:
    from numba.cuda import types
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.typing.typeof import typeof

    return typeof, DeviceNDArray, {float: types.float64, bool: types.boolean, complex: types.complex128}


def compiler_lock() -> Any:
    """Numba's lock over compilation. Who resolves a signature holds it, so that no two locks are taken crosswise."""
    from numba.cuda.core.compiler_lock import global_compiler_lock

    return global_compiler_lock


def specialize(dispatcher: Any, arguments: Sequence[Any], attach: Callable[[Any], None]) -> Any:
    """`dispatcher.specialize(*arguments)`, with a cache; Numba's own gives the specialised dispatcher none."""
    from numba.cuda.api import get_current_device
    from numba.cuda.dispatcher import CUDADispatcher

    if dispatcher.specialized:
        raise RuntimeError("Dispatcher already specialized")
    key = get_current_device().compute_capability, tuple(dispatcher.typeof_pyval(each) for each in arguments)
    found = dispatcher.specializations.get(key)
    if found is None:
        found = CUDADispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        attach(found)
        found.compile(key[1])
        found.disable_compile()
        found._specialized = True
        dispatcher.specializations[key] = found
    return found
