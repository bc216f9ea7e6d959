"""Look up the algorithms of cuda.compute in the cache, or have cuda.compute build them, and store the result.

Promise     A hit was built from the same arguments by the same cuda-cccl, NVRTC and nvJitLink for the same compute
            capability. Algorithms without a key, and entries that cannot be read or loaded, are built by cuda.compute.
            An operator is read again after its compile: if it changed, the result is used and not stored. The headers
            that NVRTC read are compared at each look-up.
Method      An entry for each compute capability has two files: the algorithm without its code, as cuda.compute
            serialises it, and the code. Each of several capabilities is built by itself, as if it were the only one, so
            that each entry is a hit for any device of that capability.
Not here    Forms of arguments (compute_arguments), and the replaced constructors that call this (cuda_compute).
Source      cuda.compute 1.2.1: _caching.py, _cccl_interop.py, _serialization/.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..engine import Session
from ..engine.built import find_or_build
from ..errors import FrozenCacheError
from ..headers.roots import HeaderSearch
from ..keys import Plain
from ..model import NO_TARGET, Event, EventKind, trouble
from .compute_arguments import Unkeyed, argument_forms

if TYPE_CHECKING:
    from ..frontends.numba.fingerprint import Fingerprint

_LIBRARIES = ("nvrtc", "nvJitLink")
_OBJECT, _CODE = "object", "code"

_building: set[int] = set()
"""Threads that run a constructor of cuda.compute. The algorithms that it constructs itself are not looked up."""

_shared: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Code objects by key. All threads share them, as in cuda.compute, so that each device loads a code once."""


def is_inside() -> bool:
    """Check whether this thread runs one of cuda.compute's own constructors, called by this module."""
    return get_ident() in _building


def serve(session: Session, original: Any, instance: Any, arguments: dict[str, Any], capability: Any) -> None:
    """Initialise an algorithm from a stored entry, or build it.

    Args:
        session: Session of the cache.
        original: The constructor that was replaced.
        instance: The object to initialise.
        arguments: The constructor's arguments by parameter, without the last one.
        capability: The last argument: compute capabilities to build for; None for the current device.

    Raises:
        FrozenCacheError: The algorithm is not stored, or cannot be keyed, and the mode is frozen.
    """
    label = f"cuda.compute:{type(instance).__name__[1:]}"
    entries: list[_Entry] = []
    try:
        device, targets = _targets(capability)
        entries += [_Entry(session, label, original, type(instance), arguments, target) for target in targets]
        for each in entries:
            each.find()
        _take(instance, entries, device)
    except FrozenCacheError:
        raise
    except _Failed as failed:  # cuda.compute's own build failed
        raise failed.error from None
    except Exception as error:  # on any failure of the cache, cuda.compute builds the algorithm
        if session.settings.mode == "frozen":
            raise FrozenCacheError(
                f"cannot build {label}", f"the cache is frozen: {error}", "build it with a cache that is not frozen"
            ) from error
        if isinstance(error, Unkeyed):
            fields = {"kernel": label, "target": NO_TARGET.name, "key": "", "reason": str(error)}
            session.events.emit(Event(EventKind.UNCACHEABLE, fields))
        else:
            session.events.emit(trouble("cuda.compute", f"{label} is not served from the cache: {error}"))
        for each in entries:
            each.set_aside(error)
        _run_original(original, instance, arguments, capability)


def _targets(capability: Any) -> tuple[int | None, list[Any]]:
    """The current device with its compute capability, or None with the requested capabilities."""
    from cuda.compute._caching import _get_current_device_info, _thread_local
    from cuda.compute._cccl_interop import normalize_compute_capabilities

    if capability is not None:
        return None, list(normalize_compute_capabilities(capability))
    device, target = getattr(_thread_local, "factory_device_info", None) or _get_current_device_info()
    return device, [target]


def _run_original(original: Any, instance: Any, arguments: dict[str, Any], capability: Any) -> None:
    """Run cuda.compute's own constructor; the algorithms that it constructs itself are not looked up."""
    me, was_inside = get_ident(), get_ident() in _building
    _building.add(me)
    try:
        original(instance, **arguments, compute_capability=capability)
    finally:
        if not was_inside:
            _building.discard(me)


class _Failed(Exception):
    """cuda.compute could not build the algorithm."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Changed(Exception):
    """Something that an operator reads changed while it was compiled: the result is used, and not stored."""


class _Entry:
    """One algorithm for one compute capability.

    Attributes:
        files: The serialised algorithm and its code, by name.
        key: Key of the entry; "" if it is not stored.
        target: The compute capability.
    """

    def __init__(
        self, session: Session, label: str, original: Any, algorithm: Any, arguments: dict[str, Any], target: Any
    ) -> None:
        self._session, self._label, self._original = session, label, original
        self._algorithm, self._arguments, self.target = algorithm, arguments, target
        self.key = ""
        self.files: Mapping[str, bytes] = {}
        self._functions: list[tuple[Any, str]] = []

    def find(self) -> None:
        """Find the files, or build them.

        Raises:
            Unkeyed: The algorithm has no key.
        """
        components = self._components()
        libraries = (*_LIBRARIES, "nvvm") if "python" in components else _LIBRARIES
        headers = HeaderSearch((), (), toolkit=("cuda.compute", _header_folders), is_edited=False)
        build, makers = functools.partial(self._build, components), (libraries, ())
        try:
            found = find_or_build(self._session, components, build, label=self._label, makers=makers, headers=headers)
        except _Changed:
            return
        self.key, self.files = found.key, found.payloads

    def set_aside(self, error: Exception) -> None:
        """Quarantine the entry, which cannot be used."""
        if self.key:
            self._session.set_aside(self.key, f"cuda.compute cannot use it: {error}")

    def _components(self) -> dict[str, Plain]:
        name, (major, minor) = self._algorithm.__name__, self.target
        operators: list[Fingerprint] = []

        def of_python(function: Any) -> Plain:
            from .compute_operators import operator_form

            return operator_form(function, operators)

        arguments: Any = argument_forms(self._arguments, of_python)
        identify: Any = self._session.toolchain.identify
        cccl = identify((), ("cuda-cccl", "cuda-core"))
        components = {"algorithm": name[1:], "arguments": arguments, "target": f"sm_{major}{minor}", "cccl": cccl}
        if not operators:
            return components
        from .compute_operators import settings

        self._functions = [each for found in operators for each in found.device_functions()]
        python = identify((), ("numpy", "numba-cuda-mlir"))
        return components | {"python": [sys.implementation.cache_tag, python, settings()]}

    def _build(self, components: dict[str, Plain]) -> Mapping[str, bytes]:
        from cuda.compute._target_cc import target_cc

        instance = self._algorithm.__new__(self._algorithm)
        try:
            with target_cc(self.target), self._fresh_functions():
                _run_original(self._original, instance, self._arguments, self.target)
        except Exception as error:
            raise _Failed(error) from None
        leaf = _leaf(instance)
        (capability,) = leaf.build_results
        self.files = {
            _OBJECT: _serialised_without_code(instance),
            _CODE: leaf.build_results.serialize_build_result(capability),
        }
        if self._components() != components:
            raise _Changed
        return self.files

    def _fresh_functions(self) -> contextlib.AbstractContextManager[None]:
        """Make the compiler forget earlier versions of the functions that the algorithm's operators call."""
        if not self._functions:
            return contextlib.nullcontext()
        from .compute_operators import fresh

        return fresh(self._functions, f"sm_{self.target[0]}{self.target[1]}")


def _leaf(instance: Any) -> Any:
    """The object that has the code: the given one, or the algorithm inside it."""
    while not hasattr(instance, "build_results"):
        instance = getattr(instance, type(instance).__serialization_schema__[0][0])
    return instance


def _serialised_without_code(instance: Any) -> bytes:
    from cuda.compute._caching import _PerCCBuildResults

    leaf = _leaf(instance)
    kept, leaf.build_results = leaf.build_results, _PerCCBuildResults({})
    try:
        text: bytes = instance.serialize()
    finally:
        leaf.build_results = kept
    return text


def _result_type(algorithm: Any) -> Any:
    """The class of an algorithm's code, as its schema names it."""
    name, kind = algorithm.__serialization_schema__[-1]
    return kind.cls if name == "build_results" else _result_type(kind.cls)


def _take(instance: Any, entries: Sequence[_Entry], device: int | None) -> None:
    """Give an object the attributes of a deserialised one, and the code, loaded if it is for the current device."""
    from cuda.compute._caching import _PerCCBuildResults
    from cuda.compute._cccl_interop import cc_to_key

    found, result_type = type(instance).deserialize(entries[0].files[_OBJECT]), _result_type(type(instance))
    leaf, results = _leaf(found), _shared.get(entries[0].key) if len(entries) == 1 else None
    if results is None:
        codes = {cc_to_key(each.target): each.files[_CODE] for each in entries}
        deserialised = {each: result_type.deserialize(code, load=False, check_cc=False) for each, code in codes.items()}
        results = _PerCCBuildResults(deserialised)
        if len(entries) == 1 and entries[0].key:
            _shared[entries[0].key] = results
    leaf.build_results = results
    if device is not None:
        leaf._bound_build_result = results.resolve(cc_to_key(entries[0].target), device)
    names = {name for each in type(instance).__mro__ for name in getattr(each, "__slots__", ())}
    for name in names | vars(found).keys() if hasattr(found, "__dict__") else names:
        if not name.startswith("__") and hasattr(found, name):
            setattr(instance, name, getattr(found, name))


def _header_folders() -> list[str]:
    """List the folders in which cuda.compute searches for headers: those of CCCL, and of the toolkit."""
    from cuda.cccl import get_include_paths

    return list(dict.fromkeys(str(each) for each in get_include_paths().as_tuple() if each))
