"""The files and folders of `get_or_build(depends=)`, by their content.

Promise     Equal content gives an equal value for the key at any path, and different content a different one. A file
            that cannot be read, or would block the reader, is an OptionError. Links are followed, except a link to a
            folder that contains the link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import OptionError, why_of
from ..keys import Plain, sha256


def paths_of(depends: Any, caller: str) -> Sequence[str]:
    """The paths of `depends=`; relative ones refer to the folder of the calling file.

    Raises:
        OptionError: `depends` is neither a path nor a list of paths.
    """
    folder = os.path.dirname(os.path.abspath(caller))
    folder = folder if caller[:1] != "<" and os.path.isdir(folder) else os.getcwd()  # at a prompt or in a notebook
    given = [depends] if isinstance(depends, (str, os.PathLike)) else depends
    try:
        return [os.path.join(folder, os.path.expanduser(os.fspath(each))) for each in given]
    except TypeError as error:
        raise OptionError("cannot use depends", str(error), "give paths; pass other values in components=") from None


def content_of(path: str) -> Plain:
    """Digest the bytes of a file; for a folder, each file in it, by relative name, without `__pycache__`.

    Raises:
        OptionError: The path cannot be read, or is neither a file nor a folder.
    """
    try:
        if not os.path.isdir(path):
            return _digest(path)
        return {os.path.relpath(each, path): _digest(each) for each in _files_in(path, frozenset())}
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read depends={path!r}", why_of(error), "correct the path") from None


def _files_in(folder: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield every file below a folder; a link to a folder that contains it counts as a file."""
    status = os.stat(folder)
    here = status.st_dev, status.st_ino
    if here in above:
        yield folder
        return
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _files_in(path, above | {here}) if name != "__pycache__" else ()
        else:
            yield path


def _digest(path: str) -> str:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        return "a folder above"  # the value for a link to a folder that contains it
    if not stat.S_ISREG(mode):  # reading a pipe would block
        raise OSError(f"{path} is neither a file nor a folder")
    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()
