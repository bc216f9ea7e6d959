"""Read the files of a Python kernel: link inputs, files of `depends=`, and its source for explanations.

Promise     Contents count, not paths. A file that cannot be read, or an input with callbacks, is `Refused`.
"""

from __future__ import annotations

import inspect
import linecache
import os
import tokenize
from collections.abc import Sequence
from types import CodeType
from typing import Any

from ...keys import Plain, sha256
from ...model import LinkInput
from ...model.linkable import kind_of_path, linkable_input
from .value import Refused


def read_link(item: Any) -> LinkInput:
    """Read a path, which is relative to the working directory, or a `LinkableCode` object.

    Raises:
        Refused: It is neither, or the file does not exist.
    """
    if not isinstance(item, (str, os.PathLike)):
        found = linkable_input(item)
        if found is None:
            raise Refused(f"a {type(item).__name__} is neither a path nor LinkableCode")
        return found
    path = os.path.abspath(item)
    try:
        with open(path, "rb") as file:
            return LinkInput(kind_of_path(path) or "", os.path.basename(path), file.read(), os.path.dirname(path))
    except OSError as error:
        raise Refused(f"{os.fspath(item)}: {error.strerror or error}") from None


def check_texts(texts: Sequence[LinkInput]) -> list[bytes]:
    """Return the linked CUDA C++ texts that may ask for files, or whose code may depend on their path or the time.

    Raises:
        Refused: The code of a text depends on the time, or its includes on a folder that is not known.
    """
    from ...headers import words

    for each in texts:
        if words.certainly_has_clock(each.data):
            raise Refused("what it links uses __DATE__ or __TIME__")
        if "/" in each.name and words.may_ask(each.data):
            raise Refused(each.unplaced)
    return [
        each.data
        for each in texts
        if words.may_ask(each.data) or words.has_location(each.data) or b"assert" in each.data
    ]


def dependency_form(given: str | os.PathLike[str], folder: str) -> tuple[str, Plain]:
    """The form of a file of `depends`, relative to the kernel's file; a `str` that names no file is a value.

    Raises:
        Refused: A path's file cannot be read.
    """
    try:
        with open(os.path.join(folder, os.fspath(given)), "rb") as file:
            return "file", sha256(file.read()).digest()
    except (OSError, ValueError) as error:
        if isinstance(given, str):
            return "value", given
        raise Refused(str(error)) from None


def source_text(code: CodeType) -> str:
    """Read the source of a function; "" if its file does not contain it, or changed since it was compiled.

    Not by `inspect.getsource`, which searches all modules of the program for the file: 50 ms if there are many.
    """
    linecache.checkcache(code.co_filename)
    try:
        return "".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]))
    except (SyntaxError, IndexError, tokenize.TokenError):
        return ""
