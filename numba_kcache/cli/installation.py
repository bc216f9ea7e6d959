"""Verbs for the installation: programs without an edit (run), directory, settings (config), doctor."""

from __future__ import annotations

import base64
from argparse import REMAINDER, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..engine import configured
from ..errors import KCacheError
from ..observe.text import bytes_text
from ..settings import SETTINGS, default_directory, origin_of, read_settings, unknown_variables
from .verb import Result, argument, verb

if TYPE_CHECKING:
    from ..cache import KernelCache


@verb(
    argument("--all", help="every kernel of Numba, also without cache=True", action="store_true"),
    argument("-m", help="a module, as with python -m", action="store_true", dest="is_module"),
    argument("program", help="the program and its arguments", metavar="PROGRAM", nargs=REMAINDER),
    is_diagnosing=True,
)
def _run(cache: KernelCache, arguments: Namespace) -> None:
    """Run a program with its kernels cached, without an edit.

    numba-kcache run PROG.py ARGUMENTS, or run -m MODULE ARGUMENTS. Caches what Numba (cache=True), CuPy and
    cuda.compute compile, as install() does. The exit code is the program's; 2 if there is
    no program to run.
    """


@verb(is_diagnosing=True)
def _dir(cache: KernelCache, arguments: Namespace) -> Result:
    """Print the cache's directory.

    For scripts: du -sh "$(numba-kcache dir)". The directory need not exist yet.
    """
    directory = cache.session.settings.directory or default_directory()
    if directory is None:
        raise KCacheError("cannot name the directory", "this user has no home directory", "set NUMBA_KCACHE_DIR")
    return Result({"directory": directory}, directory)


@verb(is_diagnosing=True)
def _config(cache: KernelCache, arguments: Namespace) -> Result:
    """Show each setting, its value, and the value's origin.

    The origin is --directory, an environment variable, or the default. Exits with 1 if there is a variable
    NUMBA_KCACHE_... that names no setting.
    """
    overrides = configured()
    settings = read_settings(overrides)
    found, rows = [], []
    for setting in SETTINGS:
        value, text = _shown(setting.name, getattr(settings, setting.name))
        origin = "--directory" if setting.name in overrides else origin_of(setting)
        found.append({"name": setting.name, "value": value, "origin": origin, "variable": setting.variable})
        is_set = origin == setting.variable
        rows.append((setting.name, text, "environment" if is_set else origin, setting.variable))
    unknown = unknown_variables()
    lines = [f"{name} names no setting and is ignored{_meant(meant)}" for name, meant in unknown.items()]
    value = {"settings": found, "unknown_variables": unknown}
    return Result(value, "\n".join(lines), 1 if unknown else 0, (("setting", "value", "from", "variable"), rows, ()))


def _meant(name: str) -> str:
    return f"; did you mean {name}?" if name else ""


def _query(options: Mapping[str, str]) -> str:
    return "?" + "&".join(f"{name}={text}" for name, text in options.items()) if options else ""


def _shown(name: str, value: Any) -> tuple[Any, str]:
    """A setting's value for `--json`, and its text without `--json`; neither has the secrets of an address."""
    if name == "directory":
        value = value or default_directory()
    elif name == "tiers":
        value = [each.shown + _query(each.options) for each in value]
    elif name == "trusted_keys":
        value = [f"{signer}={base64.b64encode(key).decode('ascii')}" for signer, key in value]
    if name == "max_size_bytes":
        return value, bytes_text(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return value, ", ".join(value) if isinstance(value, list) else "" if value is None else text


@verb(is_diagnosing=True)
def _doctor(cache: KernelCache, arguments: Namespace) -> Result:
    """Diagnose driver, compilers, versions, directory and tiers.

    Checks driver and devices; headers, and compilers, each of which is loaded; the versions of packages that
    must fit together; misspelt variables; permissions and free space of the directory; each tier, by a
    round trip. Lists the next steps at the end. Exits with 1 if something is wrong; a part that is only absent,
    such as the driver, is a note.
    """
    found = cache.doctor()
    return Result(found.to_dict(), str(found), 0 if found.is_well else 1)
