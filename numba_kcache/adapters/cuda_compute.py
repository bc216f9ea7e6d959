"""cuda.compute's algorithms in this cache: each is looked up before its operators are compiled.

Promise     A hit was built from the same arguments by the same cuda-cccl, NVRTC and nvJitLink, for the same compute
            capability. Algorithms that cannot be keyed or serialised (the v2 backend), or for which the cache fails,
            are built by cuda.compute as without this module. A hit imports no compiler of Python operators.
Method      The constructor of each algorithm is replaced by one that calls `serve`. A placeholder represents a Python
            operator until it has to be compiled.
Not here    Keys (compute_arguments), and stored entries (compute_builds).
Source      cuda.compute 1.2.1: _caching.py, _cccl_interop.py, _serialization/, op.py.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..engine import Session, checked_cache, process_session
from ..errors import ToolchainMissingError
from .compute_arguments import HOME
from .compute_builds import is_inside, serve

if TYPE_CHECKING:
    from ..frontends.options import Cache

_sessions: list[Callable[[], Session]] = []
"""The sessions to use, of which the last is active; while it is empty, cuda.compute is unchanged."""

_replaced: dict[str, tuple[Any, Any]] = {}
"""Class and original constructor of each algorithm whose constructor is replaced, by name."""


def replace(_home: Any, _every_kernel: bool) -> None:
    """Send every build of cuda.compute through the process's cache.

    Raises:
        ToolchainMissingError: cuda-cccl is too old.
    """
    _sessions.insert(0, process_session)
    try:
        _replace()
    except ToolchainMissingError:
        raise
    except ImportError:  # without its extension there is nothing to replace
        pass


def restore() -> None:
    """Undo `replace`. Algorithms that are built or loaded stay usable."""
    if process_session in _sessions:
        _sessions.remove(process_session)
    _restore()


@contextlib.contextmanager
def cached(cache: Cache | None = None) -> Iterator[None]:
    """Send the builds of cuda.compute in all threads through a cache, during a `with` block.

    Args:
        cache: The cache; None for the process's.

    Raises:
        ToolchainMissingError: cuda-cccl is not installed, or older than 1.2.
    """
    try:
        import_module(HOME)
    except ImportError as error:
        why = f"cuda-cccl cannot be imported: {error}"
        raise ToolchainMissingError("cannot cache cuda.compute", why, "pip install 'cuda-cccl[cu13]'") from error
    owner = process_session if checked_cache(cache) is None else functools.partial(getattr, cache, "session")
    _sessions.append(owner)
    try:
        _replace()
        yield
    finally:
        _sessions.remove(owner)
        _restore()


# -- replacing ---------------------------------------------------------------------------------------------------


def _replace() -> None:
    """Replace the constructors, and the function that wraps Python operators.

    Raises:
        ToolchainMissingError: cuda-cccl is too old.
    """
    from cuda.compute import op

    if not hasattr(op, "_jit_adapter"):
        why, hint = "cuda-cccl is older than 1.2", "pip install 'cuda-cccl[cu13]>=1.2.1'"
        raise ToolchainMissingError("cannot cache cuda.compute", why, hint)
    from cuda.compute import _build_info
    from cuda.compute._serialization import Serializable

    if _replaced or getattr(_build_info, "USING_V2", False):
        return
    for name, algorithm in Serializable._registry.items():
        signature = inspect.signature(algorithm.__init__)
        if "compute_capability" in signature.parameters:
            _replaced[name] = algorithm, vars(algorithm).get("__init__")
            algorithm.__init__ = _constructor(signature, algorithm.__init__)
    if _replaced and op._jit_adapter is None:
        op._jit_adapter = _adapter_class()


def _restore() -> None:
    if _sessions or not _replaced:
        return
    for algorithm, original in _replaced.values():
        if original is None:
            del algorithm.__init__
        else:
            algorithm.__init__ = original
    _replaced.clear()
    from cuda.compute import op

    if op._jit_adapter is _adapter_class():
        op._jit_adapter = None


@functools.cache
def _adapter_class() -> Any:
    """The placeholder class for a Python operator without state; others get cuda.compute's own adapter."""
    from cuda.compute import op
    from cuda.compute._caching import CachableFunction
    from cuda.compute._utils.protocols import is_device_array

    factory = op._jit_op_adapter_factory

    class PythonOperator(op.OpAdapter):  # type: ignore[misc]
        """A Python operator that is compiled only when its code is needed."""

        def __new__(cls, function: Any) -> Any:
            cells = getattr(function, "__closure__", None) or ()
            names = function.__code__.co_names if type(function) is FunctionType else ()
            values = [function.__globals__.get(name) for name in names]
            for cell in cells:
                with contextlib.suppress(ValueError):
                    values.append(cell.cell_contents)
            if type(function) is not FunctionType or any(map(is_device_array, values)):
                return factory()(function)
            return super().__new__(cls)

        def __init__(self, function: Any) -> None:
            self.func = function
            self._identity = CachableFunction(function)

        def real(self) -> Any:
            """The adapter of cuda.compute, with its compiler."""
            return factory()(self.func)

        def compile(self, input_types: Any, output_type: Any = None) -> Any:
            """Compile the operator, as cuda.compute does."""
            return self.real().compile(input_types, output_type)

        def get_return_type(self, input_types: Any) -> Any:
            """The type of the operator's result, as the compiler infers it."""
            return self.real().get_return_type(input_types)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, PythonOperator) and bool(self._identity == other._identity)

        def __hash__(self) -> int:
            return hash(self._identity)

    return PythonOperator


# -- constructors ---------------------------------------------------------------------------------------------


def _constructor(signature: inspect.Signature, original: Any) -> Any:
    @functools.wraps(original)
    def construct(self: Any, *given: Any, **named: Any) -> None:
        owners = _sessions[-1:]
        if not owners or is_inside():
            original(self, *given, **named)
            return
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        _self, *names = bound.arguments
        arguments = {name: bound.arguments[name] for name in names}
        capability = arguments.pop("compute_capability")
        serve(owners[0](), original, self, arguments, capability)

    return construct
