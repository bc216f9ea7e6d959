"""Read inputs that few source kernels have: `link=`, `depends=`, and text to decode.

Not here    Sources (source), and the headers that a source includes (surroundings, headers).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...engine.built import Files
from ...errors import OptionError, why_of
from ...keys import Plain, encode, sha256
from ...model import LinkInput
from ...model.text import check_text, decoded, plain
from ...settings import path_from


def checked_source(returned: Any, label: str) -> str:
    """Check what the user's function returned as its source, and decode it if need be.

    Raises:
        OptionError: It is not text, or text that no compiler can read.
    """
    if not isinstance(returned, (str, bytes)):
        raise OptionError(
            f"cannot compile {label}",
            f"it returned {'nothing' if returned is None else f'a value of type {type(returned).__name__}'}, not str",
            "end it with `return` and the CUDA C++ source as text",
        )
    return decode_source(returned, label)


def decode_source(text: str | bytes, label: str) -> str:
    """Decode bytes, drop the NULs at the end, as compilers write behind PTX, and refuse text that no compiler can read.

    Raises:
        OptionError: The text contains a NUL, or a lone surrogate that represents no byte.
    """
    letters = (decoded(text) if isinstance(text, bytes) else plain(text)).rstrip("\0")
    check_text(letters, f"the source of {label}", is_decoded=isinstance(text, bytes))
    return letters


def read_link_inputs(links: Sequence[Any], base_dir: str) -> tuple[LinkInput, ...]:
    """Read every link input, in order.

    Args:
        links: Paths (of the suffixes of `link=`), or Numba's `LinkableCode` objects.
        base_dir: The folder that relative paths refer to.

    Raises:
        OptionError: One is of an unknown kind or cannot be read.
    """
    return tuple(_link_input(each, base_dir) for each in links)


def _link_input(item: Any, base_dir: str) -> LinkInput:
    from ...model.linkable import LINK_SUFFIXES, callbacks_of, kind_of_path, linkable_input

    if isinstance(item, (str, os.PathLike)):
        path = path_from(base_dir, item)
        kind = kind_of_path(path)
        if kind is None:
            why = f"its suffix is not one of {', '.join(LINK_SUFFIXES)}"
            raise OptionError(f"cannot link {item!r}", why, "rename it, or give a LinkableCode of numba.cuda")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:
            why = f"{path}: {why_of(error)}"
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


class Inputs:
    """What `link` and `depends` name, read once for the requests of all targets.

    Attributes:
        link: The link inputs.
        linked: Their form in the key: content, and for CUDA C++ the name, which `__FILE__` may use.
        depends: The plain values of `depends`, and the content of each `pathlib.Path`.
        files: The files among these.
    """

    def __init__(self, link: Sequence[Any], depends: Sequence[Any], base_dir: str) -> None:
        self.link = read_link_inputs(link, base_dir)
        self.linked: Any = [
            [each.kind, each.name if each.kind == "cu" else "", sha256(each.data).hexdigest()] for each in self.link
        ]
        paths = [each for each in depends if isinstance(each, os.PathLike)]
        self.files = Files([path_from(base_dir, each) for each in paths])
        contents, self.depends = iter(self.files.contents), list[Plain]()
        for each in depends:
            if isinstance(each, os.PathLike):
                self.depends.append({"sha256": next(contents)})
            else:
                try:
                    encode(each)
                except TypeError as error:
                    raise OptionError(
                        f"cannot use a {type(each).__name__} in depends=", str(error), "give plain values or Paths"
                    ) from None
                self.depends.append(each)
