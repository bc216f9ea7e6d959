"""Find device code that an earlier compile in this process left behind, and that a later one must not use.

Promise     Code of a device function or an implementation is used again only if all its argument types are plain: the
            type of a function, a class or an extension's type refers to an object of the program, on whose present
            state the code depends, and which the digest of the function itself does not cover.
Not here    The digests with which each front end compares device functions (numba.compile, mlir.compile).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...keys import Plain

_TEMPLATE_CACHES = ("_impl_cache", "_compiled_overloads", "_inline_overloads", "_overload_cache")


def is_plain(types: Any, form_of_type: Callable[[Any], Plain]) -> bool:
    """Check whether code for these types depends on nothing but the types: for a tuple of types, and tuples inside it.

    Args:
        types: A tuple of argument types, or a key of Numba's with such tuples in it.
        form_of_type: The dialect's function for the form of a type.
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
