"""The source that a user wraps: a function that returns it, text, or a file.

Promise     A function that returns source is recognised by its annotation and code alone and called once, at
            first use. Relative paths start from the folder of the file that defines the kernel.
Not here    Kernels in Python (frontends.python) and what a source includes (headers).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import get_ident
from typing import Any

from ...errors import KCacheError, OptionError
from ...model import IN_USER_CODE, NamedTuple
from ...model.request import LinkInput, Origin

_PTX = r"(?m)^\s*\.version\s+\d+\.\d+"
_STRING_OR_MANGLED = r'"[^"\n]*"|(?<![\w$])_ZN[\w$]*'
_COUNTER = r"B(\d+)(v\d+)(?=B\d+c)"
_PATH_KINDS = {".cu": "cuda", ".ptx": "ptx", ".cubin": "cubin", ".fatbin": "fatbin", ".ltoir": "ltoir"}
_MAGICS = {b"\x7fELF": "cubin", b"\x50\xed\x55\xba": "fatbin", b"\xed\x43\x4e\x7f": "ltoir"}
"""The first bytes of compiled code. An object file is an ELF too, and is refused when it is read as a cubin."""

_TEXTS = ("cuda", "ptx")

_HAS_ARGS, _HAS_KEYWORDS = 0x04, 0x08
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
        return bool(returned - {None})
    if annotation is None and str in returned:
        raise OptionError(
            f"cannot tell what {function.__qualname__} is",
            "it has parameters and returns a string",
            "annotate it `-> str` if it returns CUDA C++",
        )
    return False


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


def define_function(function: Callable[..., Any], kind: str | None, values: Mapping[str, Any] = {}) -> Source:
    """Define the source that a function returns, for these values of its parameters and defaults for the others.

    Raises:
        OptionError: It has parameters without a default, or the kind is one of compiled code.
    """
    code = function.__code__
    path = os.path.abspath(code.co_filename) if os.path.isfile(code.co_filename) else ""
    qualname = function.__qualname__
    label = f"{function.__module__}.{qualname}"
    if kind and kind not in _TEXTS:
        raise OptionError(f"cannot use kind={kind!r} for {label}", "a function returns text", "pass bytes or a Path")
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & (_HAS_ARGS | _HAS_KEYWORDS):
        template_defaults(function)
    if values:
        chosen = f"({', '.join(f'{name}={value!r}' for name, value in values.items())})"
        label, qualname = label + chosen, qualname + chosen

    def text() -> str:
        me = get_ident()  # a thread in the user's code is listed: others do not wait long for it
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
        return _checked_text(returned, label, kind or "cuda")

    return Source(
        kind or "cuda",
        label,
        qualname,
        function.__name__,
        Origin(path or _cell(code.co_filename), code.co_firstlineno, is_cell=not path),
        os.path.dirname(path) if path else os.getcwd(),
        text,
    )


def _cell(name: str) -> str:
    """`name` if tracebacks can show its source although it is no file (a notebook's cell); "" otherwise."""
    linecache = sys.modules.get("linecache")
    return name if linecache is not None and name in linecache.cache else ""


def template_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that returns source, each with its default.

    Raises:
        OptionError: One has none, or cannot be given by name.
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
    if code.co_posonlyargcount or code.co_flags & (_HAS_ARGS | _HAS_KEYWORDS):
        raise OptionError(
            f"cannot call {function.__qualname__} for its source",
            "values are given to a template by their names alone",
            "give it plain parameters, each with a default",
        )
    return {name: defaults[name] for name in names}


def define_text(text: str | bytes, kind: str | None, depth: int) -> Source:
    """Define a source given as text, by the caller `depth` frames up.

    Raises:
        OptionError: It looks like a path, or is not text.
    """
    frame = sys._getframe(depth)
    path, line = frame.f_code.co_filename, frame.f_lineno
    path = os.path.abspath(path) if os.path.isfile(path) else ""
    label = f"{frame.f_globals.get('__name__', '?')}:{line}"
    base_dir = os.path.dirname(path) if path else os.getcwd()
    if isinstance(text, bytes):
        kind = kind or _MAGICS.get(text[:4])
        if kind and kind not in _TEXTS:
            code = text
            return Source(kind, label, "", None, Origin(path, 1), base_dir, lambda: code)
    if isinstance(text, bytes) or "\0" in text or not text.isascii():
        text = _decoded(text, label, kind)
    if kind and kind not in _TEXTS:
        raise OptionError(f"cannot use a str as {kind}", "that is bytes", "pass bytes or pathlib.Path(...)")
    stripped = text.strip()
    if "\n" not in stripped and stripped.endswith(tuple(_PATH_KINDS)):
        raise OptionError(f"cannot use {stripped!r} as a source", "it is a path", "pass pathlib.Path(...)")
    source = text
    known = kind or ("ptx" if _is_ptx(text) else "cuda")
    return Source(known, label, "", None, Origin(path, 1), base_dir, lambda: source)


def _is_ptx(text: str) -> bool:
    return ".version" in text and re.search(_PTX, text) is not None  # compiling the pattern takes 0.1 ms


def define_path(path: Path, kind: str | None, depth: int) -> Source:
    """Define a source in its own file; a relative path refers to the folder of the caller, `depth` frames up.

    Raises:
        OptionError: Its suffix is not one of a source, or it does not exist.
    """
    known = kind or _PATH_KINDS.get(path.suffix)
    if known is None:
        raise OptionError(
            f"cannot use {path.name!r} as a source",
            f"{path.suffix or 'no suffix'} is not one of {', '.join(_PATH_KINDS)}",
            'rename it, or say what it is: kind="cuda"',
        )
    caller = sys._getframe(depth).f_code.co_filename
    base = os.path.dirname(os.path.abspath(caller)) if os.path.isfile(caller) else os.getcwd()
    full = os.path.normpath(os.path.join(base, os.path.expanduser(path)))
    if not os.path.isfile(full):
        raise OptionError(
            f"cannot use {str(path)!r} as a source",
            f"there is no file {full}",
            f"relative paths start where the kernel is defined: {base}",
        )

    def text() -> str | bytes:
        try:
            if known not in _TEXTS:
                with open(full, "rb") as code:
                    return code.read()
            with open(full, "rb") as file:
                return _decoded(file.read(), path.name, known)
        except OSError as error:
            why = error.strerror or str(error)
            raise OptionError(
                f"cannot use {full!r} as a source", why, "put the file back, or correct the path"
            ) from None

    return Source(known, path.name, "", path.stem, Origin(full, 1, is_whole_file=True), os.path.dirname(full), text)


def _checked_text(returned: Any, label: str, kind: str) -> str:
    if isinstance(returned, bytes):
        return _decoded(returned, label, kind)
    if not isinstance(returned, str):
        raise OptionError(
            f"cannot compile {label}",
            f"it returned {type(returned).__name__}, not str",
            "return the CUDA C++ source as text",
        )
    if "\0" in returned or not returned.isascii():
        return _decoded(returned, label, kind)
    return returned


def _decoded(text: str | bytes, label: str, kind: str | None) -> str:
    """Decode bytes, drop the NUL that ends the PTX of compilers, and refuse text that no compiler can read.

    Raises:
        OptionError: The text contains a NUL, or a lone surrogate that represents no byte.
    """
    from ...model.text import check_text, decoded

    letters = decoded(text) if isinstance(text, bytes) else text
    if kind == "ptx" or (kind is None and _is_ptx(letters)):
        letters = letters.rstrip("\0")
    check_text(letters, f"the source of {label}", is_decoded=isinstance(text, bytes))
    return letters


def normalised_ptx(text: str) -> str:
    """Replace the compile counters in the mangled names of Numba's PTX, so that two compiles give equal texts.

    Such a name has an ABI tag `B2v1` (`B`, the length of the rest, `v` and a count of compilations), followed by the
    tag of the compiler's flags. The counters are renumbered by first appearance. Other names, strings, and PTX with
    several kernels are unchanged.
    """
    seen: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return seen.setdefault(match[2], f"B#{len(seen)}") if int(match[1]) == len(match[2]) else match[0]

    def renamed(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(_COUNTER, numbered, match[0])

    return re.sub(_STRING_OR_MANGLED, renamed, text) if len(re.findall(r"\.entry\b", text)) == 1 else text


def read_link_inputs(links: Any, base_dir: str) -> tuple[LinkInput, ...]:
    """Read every link input, in order.

    Args:
        links: Paths (of the suffixes of `link=`), or Numba's `LinkableCode` objects.
        base_dir: The folder that relative paths refer to.

    Raises:
        OptionError: One is of an unknown kind or cannot be read.
    """
    if isinstance(links, (str, bytes)) or not hasattr(links, "__iter__"):
        raise OptionError(f"cannot use link={links!r}", "it is not a list", "write link=['device.cu']")
    return tuple(_link_input(each, base_dir) for each in links)


def _link_input(item: Any, base_dir: str) -> LinkInput:
    from ...model.linkable import LINK_SUFFIXES, callbacks_of, kind_of_path, linkable_input
    from ...model.text import check_text, decoded

    if isinstance(item, (str, os.PathLike)):
        path = os.path.normpath(os.path.join(base_dir, os.path.expanduser(os.fspath(item))))
        kind = kind_of_path(path)
        if kind is None:
            why = f"its suffix is not one of {', '.join(LINK_SUFFIXES)}"
            raise OptionError(f"cannot link {item!r}", why, "rename it, or give a LinkableCode of numba.cuda")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:
            why = f"{path}: {getattr(error, 'strerror', None) or error}"
            raise OptionError(
                f"cannot link {item!r}", why, f"relative paths start where the kernel is defined: {base_dir}"
            ) from None
        if kind == "cu":
            check_text(decoded(data), f"the link input {os.path.basename(path)}", is_decoded=True)
        return LinkInput(kind, os.path.basename(path), data, os.path.dirname(path))
    found = linkable_input(item)
    if found is None:
        why = "it is neither a path nor numba.cuda LinkableCode"
        raise OptionError(f"cannot link a {type(item).__name__}", why, "write link=['device.cu']")
    if callbacks_of(item):
        raise OptionError(
            f"cannot link {found.name}",
            "its setup and teardown callbacks would not run here",
            "link it to a Numba kernel",
        )
    return found._replace(folder=base_dir)
