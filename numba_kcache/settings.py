"""Every setting: name, environment variable, parser and default. The only module that reads the environment.

Promise     A setting comes from `configure()`, otherwise from the environment, otherwise from its default. A value that
            cannot be used is a `SettingsError` that names setting, value and origin; no value is guessed or silently
            ignored.
Method      One table, `SETTINGS`: a row holds keyword, environment variable, reader, meaning, example. The defaults are
            those of the fields of `Settings`, in the same order. A test compares docs/reference/settings.md with both.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from .errors import SettingsError
from .model import NamedTuple

if TYPE_CHECKING:  # a start without tiers does not import this module
    from .model.tier_address import TierAddress

Durability = Literal["none", "data", "full"]

MODES = ("readwrite", "readonly", "off", "frozen", "refresh", "verify")
TOOLCHAINS = ("exact", "any")
DURABILITIES = ("none", "data", "full")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_MOST = 1 << 62
"""Larger than any disk; larger sizes and counts are reduced to it."""

_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z"

TOOLCHAIN_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that decide which compiler libraries, headers and packages are found."""

NVRTC_VARIABLES = (
    "EDG_BASE", "NV_NVVM_VERSION", "NVVM_IR_VER_CHK", "LLVM_OVERRIDE_PRODUCER",
    "CAN_FINALIZE_DEBUG", "FINALIZER_CUBIE", "FINALIZER_USE_LEGACY_ELF_BUILDER",
)  # fmt: skip
"""Variables that the compiler libraries read themselves and that can change the code."""


class Settings(NamedTuple):
    """The settings of one cache. Each field is a row of `SETTINGS`."""

    directory: str | None = None
    max_size_bytes: int = 2**30
    max_entries: int = 20_000
    mode: str = "readwrite"
    toolchain: str = "exact"
    shared: bool = False
    durability: Durability = "none"
    build_wait_s: float = 120.0
    debug_launches: bool = False
    log_level: str = "warning"
    tiers: tuple[TierAddress, ...] = ()
    trusted_keys: tuple[tuple[str, bytes], ...] = ()
    signing_key: str | None = None
    progress: bool = True


class Setting(NamedTuple):
    """A row of `SETTINGS`: keyword, variable, reader, meaning, example, and how to show a value that may be secret."""

    name: str
    variable: str
    read: Callable[[Any], Any]
    meaning: str
    example: Any
    show: Callable[[Any], str] = repr


def _path(value: Any) -> str:
    path = os.path.expanduser(os.fspath(value))
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError("it is not a path")
    has_variable = "$" in path and re.search(r"\$[\w{]", path)  # compiling a pattern takes 0.1 ms
    if isinstance(value, str) and (has_variable or path[0] == "~" or path != path.strip(" \t\r\n'\"")):
        raise ValueError("only ~ of a known user is replaced; a variable, and quotes or spaces around it, are not")
    return os.path.abspath(path)


def size_bytes(value: Any) -> int:
    """A size in bytes from a number or text such as `"512MB"`.

    Raises:
        ValueError: The value is not a size.
    """
    if type(value) is int:
        size = value
    else:
        match = re.match(_SIZE, value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError("it is not a size; write 512MB, 2GiB or a number of bytes")
        size = int(min(float(match[1]), _MOST) * _UNITS[match[2].lower()])
    if size < 1:
        raise ValueError("it must be at least 1 byte")
    return min(size, _MOST)


def _count(value: Any) -> int:
    text = str(value).strip()[:20]
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return min(int(text), _MOST)


def _seconds(value: Any) -> float:
    is_text = isinstance(value, str) and re.fullmatch(r"\s*\d{1,6}(?:\.\d{1,6})?\s*", value)
    seconds = float(value) if is_text or type(value) in (int, float) else -1.0
    if not 0 <= seconds <= 86400:
        raise ValueError("it must be a number of seconds from 0 to 86400")
    return seconds


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("it must be 1 or 0")


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = str(value).strip().lower()
        if text not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return text

    return read


def _tiers(value: Any) -> tuple[TierAddress, ...]:
    from .model.tier_address import read_tiers

    return read_tiers(value, _path)


def _trusted_keys(value: Any) -> tuple[tuple[str, bytes], ...]:
    from .model.tier_address import read_trusted_keys

    return read_trusted_keys(value)


def _shown_tiers(value: Any) -> str:
    from .model.tier_address import shown_tiers

    return shown_tiers(value)


SETTINGS = (
    Setting("directory", "NUMBA_KCACHE_DIR", _path, "where entries are kept", "/var/cache/kernels"),
    Setting("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", size_bytes,
            "limit of the bytes on disk (LRU eviction)", "512MB"),
    Setting("max_entries", "NUMBA_KCACHE_MAX_ENTRIES", _count, "limit of the entries on disk (LRU eviction)", 5000),
    Setting("mode", "NUMBA_KCACHE_MODE", _one_of(*MODES), "what the cache may do", "readwrite"),
    Setting("toolchain", "NUMBA_KCACHE_TOOLCHAIN", _one_of(*TOOLCHAINS),
            "the compilers whose code counts as a hit", "any"),
    Setting("shared", "NUMBA_KCACHE_SHARED", _flag, "accept a directory that others can write", True),
    Setting("durability", "NUMBA_KCACHE_DURABILITY", _one_of(*DURABILITIES), "what a power cut may lose", "full"),
    Setting("build_wait_s", "NUMBA_KCACHE_BUILD_WAIT", _seconds, "longest wait for another process's compile", 60),
    Setting("debug_launches", "NUMBA_KCACHE_DEBUG", _flag, "wait for each launch; errors name the launch", True),
    Setting("log_level", "NUMBA_KCACHE_LOG", _one_of(*LOG_LEVELS), "lowest level of the numba_kcache logger", "info"),
    Setting("tiers", "NUMBA_KCACHE_TIERS", _tiers, "stores behind the local directory, in order",
            "redis://host:6379", _shown_tiers),
    Setting("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", _trusted_keys, "public keys of accepted signatures",
            "ci=<key in base64>"),
    Setting("signing_key", "NUMBA_KCACHE_SIGNING_KEY", _path, "PEM file of the secret key that signs entries",
            "/run/secrets/key.pem"),
    Setting("progress", "NUMBA_KCACHE_PROGRESS", _flag, "report compiles that take longer than a second", False),
)  # fmt: skip
"""All settings, in the order of the documentation."""

_BY_NAME = {each.name: each for each in SETTINGS}
assert list(_BY_NAME) == list(Settings._fields)
_BY_VARIABLE = {each.variable: each for each in SETTINGS}

misspelt: dict[str, str] = {}
"""What `unknown_variables` said of the variables that were met; emptied by who warns of them."""


def read_settings(overrides: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force: `overrides` first, then `environ` (the process's, if None), then defaults.

    Raises:
        SettingsError: An override is unknown, or a value cannot be used.
    """
    environ = os.environ if environ is None else environ
    chosen: dict[str, Any] = {}
    for variable in environ:
        if variable.startswith(_PREFIX):
            setting, text = _BY_VARIABLE.get(variable), environ[variable]
            if setting is None:
                misspelt.update(unknown_variables({variable: text}))
            elif text:
                chosen[setting.name] = _read(setting, text, f"environment variable {variable}")
    for name, value in overrides.items():
        if name not in _BY_NAME:
            from .model.text import meant

            hint = f"{meant(name, _BY_NAME)}choose from {', '.join(_BY_NAME)}"
            raise SettingsError(f"cannot configure {name!r}", "there is no such setting", hint)
        if value is not None:
            chosen[name] = _read(_BY_NAME[name], value, "configure()")
    return Settings(**chosen)


def _read(setting: Setting, value: Any, origin: str) -> Any:
    try:
        return setting.read(value)
    except (ValueError, TypeError, OSError) as error:  # OSError: a relative path, and the working directory is gone
        from difflib import get_close_matches

        _, is_choice, choices = str(error).partition("must be one of ")
        close = get_close_matches(str(value).lower(), choices.split(", "), 1) if is_choice else []
        example = close[0] if close else setting.example
        text = str(int(example)) if isinstance(example, bool) else example
        is_keyword = origin == "configure()"
        raise SettingsError(
            f"cannot use {setting.name} = {setting.show(value)} from {origin}",
            str(error),
            f"write {setting.name}={example!r}" if is_keyword else f"write {setting.variable}={text}",
        ) from None


def origin_of(setting: Setting) -> str:
    """The environment variable that has the value of a setting that was not configured, or `"default"`."""
    return setting.variable if os.environ.get(setting.variable) else "default"


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables NUMBA_KCACHE_... that are set and unknown, each with the known one of a similar name, or ""."""
    environ = os.environ if environ is None else environ
    known = {_INSTALL: _INSTALL, **{each: each for each in _BY_VARIABLE}}
    unknown = [each for each in environ if each.upper().startswith(_PREFIX) and each not in known]
    unknown = [each for each in unknown if not each.startswith(f"{_PREFIX}TEST_")]
    if not unknown:
        return {}
    from difflib import get_close_matches

    names = {_PREFIX + each.name.upper(): each.variable for each in SETTINGS} | known
    suffixes = {word.removeprefix(_PREFIX): variable for word, variable in names.items()}
    close = {each: get_close_matches(each[len(_PREFIX) :].upper(), suffixes, n=1) for each in unknown}
    return {name: suffixes[words[0]] if words else "" for name, words in close.items()}


_PREFIX = "NUMBA_KCACHE_"
_INSTALL = "NUMBA_KCACHE_INSTALL"


def install_wanted() -> str:
    """The value of `NUMBA_KCACHE_INSTALL`: "" (nothing), "cached" (kernels under `cache=True`), "all" or "lazy" (all,
    and Numba is imported when it is needed).

    Raises:
        SettingsError: The variable has another value.
    """
    text = os.environ.get(_INSTALL, "")
    if (wanted := text.strip().lower()) in ("all", "lazy"):
        return wanted
    try:
        return "cached" if _flag(text) else ""
    except ValueError:
        raise SettingsError(
            f"cannot use {_INSTALL} = {text!r}",
            "it is not 1, all, lazy or 0",
            "write 1 for kernels under cache=True",
        ) from None


def default_directory() -> str | None:
    """The user's cache folder for numba_kcache, by the XDG specification; None if the user has no home directory."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    path = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.cache"), "numba_kcache")
    return path if os.path.isabs(path) else None


def working_directory() -> str:
    """Return the path of the working directory; if it was removed, one at which nothing is found, as by a compiler."""
    try:
        return os.getcwd()
    except OSError:
        return "/proc/self/cwd"


def path_from(folder: str, path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a user's path, which starts from a folder. It is without `..` where that leads to the
    same place: behind a link, `..` is the folder that the link's target is in."""
    full = os.path.join(folder, os.path.expanduser(path))
    flat = os.path.normpath(full)
    return flat if ".." not in full or os.path.realpath(flat) == os.path.realpath(full) else full


def import_path() -> list[str]:
    """The folders on `sys.path`. Python ignores entries that are not text, such as paths that a program adds."""
    return [each or working_directory() for each in sys.path if isinstance(each, str)]


def variables(names: Collection[str]) -> dict[str, str]:
    """The values, by name, of those environment variables in `names` that are set."""
    held = getattr(os.environb, "_data", os.environb)  # `os.environb` itself raises twice for a name that is missing
    return {name: os.fsdecode(held[name.encode()]) for name in names if name.encode() in held}


def variables_starting(starts: tuple[str, ...]) -> dict[str, str]:
    """The values of all environment variables whose names start with one of these texts, by name."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(starts)}


def worker_environment() -> dict[str, str]:
    """The environment of this process's workers, which do not report progress themselves."""
    return {**os.environ, "NUMBA_KCACHE_PROGRESS": "0", "NUMBA_KCACHE_LOG": "off"}


def toolchain_surroundings() -> tuple[tuple[str, ...], dict[str, str]]:
    """The folders of installed packages, in order, and the variables that decide where compilers are found.

    A folder of `PYTHONPATH` is not among them unless it is this interpreter's own: its content is not versioned.
    """
    found_by = variables(TOOLCHAIN_VARIABLES)
    python_path = found_by.get("PYTHONPATH", "").split(os.pathsep)
    ends = "site-packages", "dist-packages"
    folders = [path for path in sys.path if isinstance(path, str) and path.endswith(ends)]  # as in `import_path`
    if python_path != [""]:
        own = sys.prefix, sys.base_prefix
        folders = [path for path in folders if path not in python_path or path.startswith(own)]
    return tuple(folders), found_by
