"""A verb (subcommand): a function that takes a cache and the parsed arguments and returns a `Result`.

Method      cli/__init__.py imports each module with verbs; the help lists verbs in the order of these imports. The
            docstring of a verb is its help.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NoDeviceError, OptionError, SettingsError
from ..model import NamedTuple, Target, read_target

if TYPE_CHECKING:
    from ..cache import KernelCache


class Result(NamedTuple):
    """The outcome of a verb.

    Args:
        value: Printed with `--json`.
        text: Printed without it.
        code: Exit code of the process.
        rows: A table above the text: names of columns, rows, and the columns that are aligned at their right edge.
    """

    value: Any
    text: str
    code: int = 0
    rows: tuple[Sequence[str], Sequence[Sequence[str]], Sequence[int]] | None = None


Verb = Callable[["KernelCache", Namespace], "Result | None"]
Argument = tuple[tuple[str, ...], dict[str, Any]]

VERBS: dict[str, tuple[Verb, tuple[Argument, ...]]] = {}
"""Each verb by its name, with its arguments."""

DIAGNOSING: set[str] = set()
"""Verbs for diagnosis, which also run if the configured directory cannot be used."""


def verb(*arguments: Argument, is_diagnosing: bool = False) -> Callable[[Verb], Verb]:
    """Register a function as the verb of its name, with these arguments."""

    def add(function: Verb) -> Verb:
        name = function.__name__.strip("_")
        VERBS[name] = function, arguments
        if is_diagnosing:
            DIAGNOSING.add(name)
        return function

    return add


def argument(*names: str, help: str, **settings: Any) -> Argument:
    """One argument of a verb, as argparse takes it."""
    return names, {"help": help, **settings}


def arch_argument(help: str) -> Argument:
    """`--arch`, which may be given several times, with several targets each."""
    return argument("--arch", help=help, metavar="ARCH", action="append")


def targets_of(arguments: Namespace) -> list[Target] | None:
    """The targets that `--arch` names; `native` stands for those of the devices. None if it was not given.

    Raises:
        SettingsError: `--arch` contains a word that is not a target.
        NoDeviceError: `--arch` is `native`, and there is no device.
    """
    if arguments.arch is None:
        return None
    found: list[Target] = []
    words = [word.strip() for text in arguments.arch for word in text.split(",")]
    for word in list(filter(None, words)) or words:
        if word in ("native", "auto"):
            found += _device_targets()[: None if word == "native" else 1]
            continue
        try:
            found.append(read_target(word))
        except OptionError as error:
            hint = "write sm_90, sm_90a or compute_80, several with commas between them, or native"
            raise SettingsError(f"cannot use --arch {word}", error.why, hint) from None
    return list(dict.fromkeys(found))


def _device_targets() -> list[Target]:
    """List the target of each device of this machine, without a context on any."""
    from ..doctor.machine import find_devices

    _version, devices, why = find_devices()
    if not devices:
        raise NoDeviceError("cannot find a CUDA device", why, "name a target to compile without one: --arch sm_90")
    return [Target(each.major, each.minor, "a" if each.major >= 9 else "") for each in devices]


def import_from_here() -> None:
    """Put the working directory on `sys.path`, as `python -m` does; the installed command lacks it."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def in_shell_words(text: str) -> str:
    """Replace Python's words in a message by options of the command line and environment variables."""
    text = text.replace("arch='sm_90'", "--arch sm_90").replace("mode='readwrite'", "NUMBA_KCACHE_MODE=readwrite")
    return text.replace("configure(signing_key=...)", "set NUMBA_KCACHE_SIGNING_KEY=kernels.pem")
