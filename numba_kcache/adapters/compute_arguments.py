"""The arguments of cuda.compute's algorithms as components of a key: everything in them that determines the code.

Promise     Two sets of arguments have equal forms only if cuda.compute generates the same code for them. An argument
            without a known form raises `Unkeyed`, with the reason, and is built without the cache. No compiler is
            imported.
Method      The form of a device array is its dtype, that of an initial value its type, that of an iterator the kind by
            which cuda.compute keys it, and that of an operator written in Python its fingerprint (compute_operators).
Source      cuda.compute 1.2.1: algorithms/*.py, `cache_build_results(...)` and `IteratorBase.kind`.
"""

from __future__ import annotations

import enum
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..keys import Plain, sha256

if TYPE_CHECKING:
    from ..frontends.numba.fingerprint import Fingerprint

HOME = "cuda.compute"

_RUN_TIME = ("h_init", "init_value", "h_lower_level", "h_upper_level")
"""Parameters for host arrays whose content is passed at each call. That of others determines the code."""

_ITERATORS = f"{HOME}.iterators."


class Unkeyed(Exception):
    """These arguments cannot be keyed; the text says why."""


def argument_forms(arguments: dict[str, Any], operators: list[Fingerprint]) -> dict[str, Plain]:
    """The form of each argument.

    Args:
        arguments: Arguments by parameter.
        operators: A list, to which the fingerprints of operators written in Python are added.

    Raises:
        Unkeyed: An argument has no form.
    """
    return {name: _form(value, operators, is_value=name not in _RUN_TIME) for name, value in arguments.items()}


def _form(value: Any, operators: list[Fingerprint], *, is_value: bool = True) -> Plain:
    import numpy as np
    from cuda.compute import _bindings, op, types
    from cuda.compute._proxy import ProxyValue
    from cuda.compute._utils.protocols import get_dtype, is_contiguous, is_device_array
    from cuda.compute.algorithms._sort._sort_common import DoubleBuffer
    from cuda.compute.iterators._base import IteratorBase
    from cuda.compute.struct import _Struct

    kind = type(value)
    if value is None or kind in (bool, int, str, float, bytes):
        return value  # type: ignore[no-any-return]
    if isinstance(value, enum.Enum):
        return ["enum", kind.__name__, value.name, repr(value.value)]
    if kind in (tuple, list):
        return [_form(each, operators) for each in value]
    if isinstance(value, np.ndarray):
        content: list[Plain] = [value.tobytes(), list(value.shape)] if is_value else []
        return ["host", dtype_form(value.dtype), *content]
    if isinstance(value, (np.dtype, np.generic)):
        return ["numpy", dtype_form(np.dtype(value)), value.tobytes() if isinstance(value, np.generic) else b""]
    if isinstance(value, ProxyValue):
        return ["host", dtype_form(value.dtype)]
    if isinstance(value, _Struct):
        return ["host", type_form(type(value)._type_descriptor)]
    if isinstance(value, types.TypeDescriptor):
        return type_form(value)
    if isinstance(value, IteratorBase):
        if not kind.__module__.startswith(_ITERATORS):
            raise Unkeyed(f"its iterator {kind.__module__}.{kind.__qualname__} is not one of cuda.compute's")
        return [
            "iterator",
            kind.__name__,
            _form(value.kind, operators),
            value.state_alignment,
            len(bytes(memoryview(value.state))),
        ]
    if isinstance(value, _bindings.OpKind):
        return ["well-known", str(value)]
    if isinstance(value, op.OpAdapter):
        return _operator_form(value, operators)
    if kind is FunctionType:
        return _python_form(value, operators)
    if kind is DoubleBuffer:
        return ["double buffer", _form(value.current(), operators), _form(value.alternate(), operators)]
    if is_device_array(value):
        if not is_contiguous(value):
            raise Unkeyed("an array is not contiguous")
        return ["array", dtype_form(get_dtype(value))]
    raise Unkeyed(f"a {kind.__module__}.{kind.__qualname__} has no content that a key could hold")


def _operator_form(value: Any, operators: list[Fingerprint]) -> Plain:
    from cuda.compute import op

    if type(value) is op.RawOp:
        codes = [_code_form(each) for each in (value._ltoir, *value._extra_ltoirs)]
        return ["raw", value._name, len(value._state), value._state_alignment, *codes]
    kind = getattr(value, "kind", None)
    if kind is not None:
        return ["well-known", str(kind)]
    function = getattr(value, "func", None)
    if type(function) is not FunctionType:
        raise Unkeyed(f"its operator is a {type(value).__qualname__}")
    return _python_form(function, operators)


def _code_form(code: Any) -> Plain:
    kind, data = getattr(code, "kind", "ltoir"), getattr(code, "op_bytes", code)
    return [kind, sha256(bytes(data)).hexdigest()]


def dtype_form(dtype: Any) -> Plain:
    """The form of a NumPy dtype, with the layout of its fields."""
    if dtype.hasobject:
        raise Unkeyed("an array holds Python objects")
    return [repr(dtype), dtype.itemsize, dtype.alignment]


def type_form(descriptor: Any) -> Plain:
    """The form of a type of cuda.compute; for a struct, with its fields in order."""
    from cuda.compute import types

    if isinstance(descriptor, types.PointerTypeDescriptor):
        return ["pointer", type_form(descriptor.pointee)]
    dtype = None if descriptor.dtype is None else dtype_form(descriptor.dtype)
    form: list[Plain] = ["type", descriptor.size, descriptor.alignment, str(descriptor.info.typenum), dtype]
    if isinstance(descriptor, types.StructTypeDescriptor):
        form.append([[name, type_form(each)] for name, each in descriptor.layout_key()])
    return form


def _python_form(function: Any, operators: list[Fingerprint]) -> Plain:
    """The form of a Python operator: its fingerprint."""
    from ..frontends.numba.fingerprint import Uncapturable, fingerprint
    from .compute_operators import OPERATORS

    found = fingerprint(function, OPERATORS, with_lines=False)
    if isinstance(found, Uncapturable):
        raise Unkeyed(f"its operator cannot be keyed: {found.name}: {found.reason}")
    if found.links:
        raise Unkeyed("its operator links files")
    operators.append(found)
    return ["python", found.digest]
