"""Describe a program's registrations with one of the Numbas: subject, types, options, implementation of each.

Source      numba-cuda 0.30.4, and the copy of it in numba-cuda-mlir 0.6.0: extending.py, typing/templates.py
            (`make_overload_template` and similar functions, `Registry`), core/imputils.py (`Registry`),
            datamodel/manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .graph import Registration, Registrations

_OF_TEMPLATE = ("prefer_literal", "unsafe_casting", "exact_match_required", "_strict", "_jit_options", "is_method")
"""Attributes of a typing template that hold options of a decorator."""


def describe(items: Iterable[tuple[str, Any]]) -> Registrations:
    """Describe registrations for attributes, operators and types, grouped by the name that uses them.

    Args:
        items: Items of registries, each with the kind of its list.
    """
    made = Registrations(lambda value: (), {}, [])
    for kind, item in items:
        for attribute, registration in _DESCRIBED[kind](item):
            if attribute is not None:
                made.of_attribute.setdefault(attribute, []).append(registration)
            else:
                made.of_all.append(registration)
    return made


def describe_for(items: Iterable[tuple[str, Any]]) -> Sequence[Registration]:
    """Describe the registrations for one value, in their order."""
    found: dict[Any, Registration] = {}
    for kind, item in items:
        for _attribute, each in _DESCRIBED[kind](item):
            name = (each.what, *map(id, each.code), repr(each.options)) if kind.startswith("typing") else id(item)
            found.setdefault(name, each._replace(subject=None))
    return tuple(found.values())


_Described = Iterator[tuple["str | None", Registration]]
"""The name of the attribute that a registration is for, None for others, and the registration."""


def _template(template: Any, subject: Any) -> _Described:
    function = getattr(template, "_overload_func", None)
    if getattr(template, "_definition_func", None) is not None:  # an intrinsic is reached by its name
        return
    options = {name: getattr(template, name) for name in _OF_TEMPLATE if hasattr(template, name)}
    options |= {"metadata": dict(getattr(template, "metadata", None) or {})}
    inline = getattr(template, "_inline", None)
    options["inline"] = getattr(inline, "_inline", inline)
    if options["metadata"].get("target") == "cpu":
        return
    attribute = getattr(template, "_attr", None)
    if function is not None:
        what = "overload" if attribute is None else "overloaded attribute"
        yield attribute, Registration(what, subject, options, (function,))
        return
    names = [name.removeprefix("resolve_") for name in dir(template) if name.startswith("resolve_")]
    if not names or (hasattr(template, "generic_resolve") and template.generic_resolve is not NotImplemented):
        yield None, Registration("typing", subject, {}, (template,))
    for name in names:
        yield name, Registration("typing", subject, {}, (template,))


def _typing_template(template: Any) -> _Described:
    yield from _template(template, getattr(template, "key", None))


def _typing_global(item: Any) -> _Described:
    subject, kind = item
    templates = getattr(kind, "templates", None)
    for template in templates or ():
        yield from _template(template, subject)
    if templates is None:
        yield None, Registration("typing", subject, {"type": kind}, ())


def _lowering(item: Any) -> _Described:
    implementation, subject, types = item
    options = {"types": tuple(types or ())}
    if isinstance(subject, tuple):  # (type, name of a method)
        yield str(subject[-1]), Registration("lowering", subject, options, (implementation,))
    else:
        yield None, Registration("lowering", subject, options, (implementation,))


def _lowered_attribute(what: str) -> Any:
    def described(item: Any) -> _Described:
        implementation, attribute, types = item
        yield attribute, Registration(what, None, {"attribute": attribute, "types": types}, (implementation,))

    return described


def _lowered_types(what: str) -> Any:
    def described(item: Any) -> _Described:
        implementation, types = item
        yield None, Registration(what, None, {"types": tuple(types)}, (implementation,))

    return described


def _model(item: Any) -> _Described:
    yield None, Registration("model", item[0], {}, (item[1],))


def _typeof(item: Any) -> _Described:
    yield None, Registration("typeof", item[0], {}, (item[1],))


def _rewrite(rewrite: Any) -> _Described:
    yield None, Registration("rewrite", None, {}, (rewrite,))


_DESCRIBED = {
    "typing functions": _typing_template,
    "typing attributes": _typing_template,
    "typing globals": _typing_global,
    "lowering functions": _lowering,
    "lowering getattrs": _lowered_attribute("lowered attribute"),
    "lowering setattrs": _lowered_attribute("lowered setting of an attribute"),
    "lowering casts": _lowered_types("cast"),
    "lowering constants": _lowered_types("constant"),
    "model": _model,
    "typeof": _typeof,
    "rewrite before-inference": _rewrite,
    "rewrite after-inference": _rewrite,
}
