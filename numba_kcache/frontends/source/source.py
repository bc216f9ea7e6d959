"""The source that a user wraps: a function that returns it, with parameters or without, or text.

Promise     A function that returns source is recognised by its annotation and code alone and called once, at
            first use. Relative paths start from the folder of the file that defines the kernel.
Not here    Sources in files (inputs), kernels in Python (frontends.numba), and what a source includes (headers).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from ...errors import KCacheError, OptionError
from ...model import IN_USER_CODE, NamedTuple
from ...model.request import Origin
from ...settings import working_directory

_PTX = r"(?m)^\s*\.version\s+\d+\.\d+"
PATH_KINDS = {".cu": "cuda", ".ptx": "ptx", ".cubin": "cubin", ".fatbin": "fatbin", ".ltoir": "ltoir"}
_MAGICS = {b"\x7fELF": "cubin", b"\x50\xed\x55\xba": "fatbin", b"\xed\x43\x4e\x7f": "ltoir"}
"""The first bytes of compiled code. An object file is an ELF too, and is refused when it is read as a cubin."""

TEXTS = ("cuda", "ptx")

HAS_ARGS, HAS_KEYWORDS = 0x04, 0x08
"""`co_flags` of a function with *args or **kwargs."""


class Source(NamedTuple):
    """A source, which is read when it is first needed.

    Args:
        kind: One of `SOURCE_KINDS` of model.request.
        label: Its name in messages, `"package.module.saxpy"`.
        qualname: The function that returns it, with the values of a template; "" for text and files.
        guess: The probable name of its entry; None for no guess.
        origin: Its place in the user's files.
        base_dir: The folder that relative paths start from.
        text: Returns the source, or the bytes of compiled code; exceptions of the user's function pass through.
    """

    kind: str
    label: str
    qualname: str
    guess: str | None
    origin: Origin
    base_dir: str
    text: Callable[[], str | bytes]


def returns_source(function: Callable[..., Any]) -> bool:
    """Check whether a Python function returns source; otherwise it is a Numba kernel.

    Raises:
        OptionError: It has parameters and returns a string, but is not annotated `-> str`.
    """
    annotation = getattr(function, "__annotations__", {}).get("return")
    if annotation is str or annotation in ("str", "'str'"):
        return True
    code = function.__code__
    returned = _returned(code)
    if code.co_argcount + code.co_kwonlyargcount == 0:
        texts = [each for each in code.co_consts if isinstance(each, str)]
        if returned == {None} and any("__global__" in each for each in (*texts, function.__doc__ or "")):
            what, why = f"cannot make a kernel of {function.__qualname__}", "it has CUDA C++ in it and returns nothing"
            raise OptionError(what, why, "did you forget `return` before the source?")
        return bool(returned - {None})
    if annotation is None and str in returned:
        raise OptionError(
            f"cannot tell what {function.__qualname__} is",
            "it has parameters and returns a string",
            "annotate it `-> str` if it returns CUDA C++",
        )
    return False


def define_function(function: Callable[..., Any], kind: str | None, values: Mapping[str, Any] = {}) -> Source:
    """Define the source that a function returns, for these values of its parameters and defaults for the others.

    Raises:
        OptionError: It has parameters without a default, or the kind is one of compiled code.
    """
    code = function.__code__
    path = os.path.abspath(code.co_filename) if os.path.isfile(code.co_filename) else ""
    qualname = function.__qualname__
    label = f"{function.__module__}.{qualname}"
    if kind and kind not in TEXTS:
        raise OptionError(f"cannot use kind={kind!r} for {label}", "a function returns text", "pass bytes or a Path")
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & (HAS_ARGS | HAS_KEYWORDS):
        template_defaults(function)
    if values:
        chosen = f"({', '.join(f'{name}={value!r}' for name, value in values.items())})"
        label, qualname = label + chosen, qualname + chosen

    def text() -> str:
        me = get_ident()  # threads in IN_USER_CODE run the user's code: other threads do not wait long for them
        depth = IN_USER_CODE[me] = IN_USER_CODE.get(me, 0) + 1
        try:
            returned = function(**values)
        except KCacheError:
            raise
        except Exception as error:
            error.add_note(f"while numba_kcache called {label} for its source")
            raise
        finally:
            IN_USER_CODE[me] = depth - 1
            if depth == 1:
                IN_USER_CODE.pop(me, None)  # a signal handler that ran before this line may have removed it
        if type(returned) is str and returned.isascii() and "\0" not in returned:
            return returned
        from .inputs import checked_source

        return checked_source(returned, label, kind or "cuda")

    return Source(
        kind or "cuda",
        label,
        qualname,
        function.__name__,
        Origin(path or _cell(code.co_filename), code.co_firstlineno, is_cell=not path),
        os.path.dirname(path) if path else working_directory(),
        text,
    )


def _cell(name: str) -> str:
    """`name` if tracebacks can show its source although it is no file (a notebook's cell); "" otherwise."""
    linecache = sys.modules.get("linecache")
    return name if linecache is not None and name in linecache.cache else ""


def define_text(text: str | bytes, kind: str | None, depth: int) -> Source:
    """Define a source given as text, by the caller `depth` frames up.

    Raises:
        OptionError: It looks like a path, or is not text.
    """
    frame = sys._getframe(depth)
    path, line = frame.f_code.co_filename, frame.f_lineno
    path = os.path.abspath(path) if os.path.isfile(path) else ""
    label = f"{frame.f_globals.get('__name__', '?')}:{line}"
    base_dir = os.path.dirname(path) if path else working_directory()
    if isinstance(text, bytes):
        kind = kind or _MAGICS.get(text[:4])
        if kind and kind not in TEXTS:
            code = bytes.__bytes__(text)
            return Source(kind, label, "", None, Origin(path, 1), base_dir, lambda: code)
    if type(text) is not str or "\0" in text or not text.isascii():
        from .inputs import decode_source

        text = decode_source(text, label, kind)
    if kind and kind not in TEXTS:
        raise OptionError(f"cannot use a str as {kind}", "that is bytes", "pass bytes or pathlib.Path(...)")
    stripped = text.strip()
    if "\n" not in stripped and stripped.endswith(tuple(PATH_KINDS)):
        raise OptionError(f"cannot use {stripped!r} as a source", "it is a path", "pass pathlib.Path(...)")
    source = text
    known = kind or ("ptx" if is_ptx(text) else "cuda")
    return Source(known, label, "", None, Origin(path, 1), base_dir, lambda: source)


def is_ptx(text: str) -> bool:
    return ".version" in text and re.search(_PTX, text) is not None  # compiling the pattern takes 0.1 ms


def _returned(code: Any) -> set[Any]:
    """Kinds of value that a function's return statements return: None, str for text, `...` for others."""
    import dis

    found: set[Any] = set()
    previous = None
    for step in dis.get_instructions(code):
        if step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            source = step if step.opname == "RETURN_CONST" else previous
            if source is not None and source.opname in ("LOAD_CONST", "RETURN_CONST"):
                value = source.argval
                found.add(None if value is None else str if isinstance(value, str) else ...)
            else:
                found.add(str if source is not None and source.opname == "BUILD_STRING" else ...)
        previous = step
    return found


def template_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that returns source, each with its default.

    Raises:
        OptionError: A parameter has no default, or cannot be given by name.
    """
    code = function.__code__
    count = code.co_argcount
    defaults = dict(zip(code.co_varnames[:count][::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    for name in names:
        if name not in defaults:
            raise OptionError(
                f"cannot call {function.__qualname__} for its source",
                f"its parameter {name} has no default",
                f"give {name} a default; instantiate() replaces it with other values",
            )
    if code.co_posonlyargcount or code.co_flags & (HAS_ARGS | HAS_KEYWORDS):
        raise OptionError(
            f"cannot call {function.__qualname__} for its source",
            "values are given to a template by their names alone",
            "give it plain parameters, each with a default",
        )
    return {name: defaults[name] for name in names}


def completed(function: Callable[..., Any], name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add to the values given for a template its defaults for the other parameters; `name` is the kernel's.

    Raises:
        OptionError: A value is for no parameter, or a parameter has no default.
    """
    defaults = template_defaults(function)
    unknown = [each for each in values if each not in defaults]
    if unknown:
        raise OptionError(
            f"cannot instantiate {name} with {unknown[0]}={values[unknown[0]]!r}",
            f"its parameters are {', '.join(defaults) or 'none'}",
            "use their names",
        )
    return {**defaults, **values}
