"""Identify the compiler libraries mapped into this process by the functions that the CUDA bindings call; load them.

Promise     A library is the one whose code runs when the bindings call it, also if a process has two NVRTCs. Its
            build is read from memory. Only `begin_loading` and `load_compilers` load anything.
Method      The bindings look a function up in the global scope of the process, else in the library that
            cuda.pathfinder gives them, which prefers one that is mapped under a known name. Once they have their
            function pointers they keep them, so these are read; before that, the same places are searched. dladdr finds
            the library of an address. NVRTC opens its builtins by name: they are the library mapped under that name.
Not here    Compilers that are not in the process (Toolchain, which looks into its record and on disk).
Source      cuda-bindings 13.5, `_internal/nvrtc` (dlsym of RTLD_DEFAULT first); cuda-pathfinder 1.9,
            `check_if_already_loaded_from_elsewhere`; dladdr(3), dlinfo(3), dlopen(3).
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..keys import sha256
from ..settings import variables
from . import SOUGHT, loads, mapped
from .build_id import build_at, build_of, has_rpath

if TYPE_CHECKING:
    from . import Library

_LOAD = {"nvrtc": "nvrtcVersion", "nvJitLink": "version", "nvvm": "version"}
"""For each library, a function of its bindings whose call loads it."""

_RTLD_DI_LINKMAP = 2


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("path", ctypes.c_char_p))


_mapping: list[threading.Thread] = []
"""Threads that map a library."""


def begin_loading(names: Iterable[str], library: Callable[[str], Library | None]) -> None:
    """Start a thread that maps the NVRTC that the bindings will load: mapping takes a third of a small compile's time.

    Args:
        names: The libraries that will be loaded.
        library: Returns path and build of a library, by name.
    """
    if "nvrtc" not in names or mapped(("nvrtc",)):
        return
    found = library("nvrtc")
    if found is not None:
        # dlopen by ctypes, which releases the GIL; CPython's own loading of a library does not
        with contextlib.suppress(AttributeError, RuntimeError):  # no such function, or the interpreter shuts down
            wanted = os.fsencode(found.path), os.RTLD_NOW
            thread = threading.Thread(target=ctypes.CDLL(None).dlopen, args=wanted, daemon=True)
            thread.start()
            _mapping.append(thread)


def load_compilers(names: Iterable[str]) -> None:
    """Have the bindings load these libraries, if installed; afterwards it is certain which compilers run."""
    from ..waiting import imported  # here: a hit beside a mapped NVRTC loads nothing

    while _mapping:
        _mapping.pop().join()
    for name in names:
        if name == "nvrtc" and "cuda.bindings.nvrtc" not in sys.modules and mapped((name,)):
            continue  # NVRTC is called without the bindings (nvrtc_calls)
        if name in _LOAD:
            try:
                getattr(imported(f"cuda.bindings.{name.lower()}"), _LOAD[name])()
            except Exception:  # its type depends on the bindings' version; the library's first use reports the error
                continue


def loaded_library(name: str, library: Callable[[str], Library | None]) -> tuple[str, str] | None:
    """Return path and build of a library that is in this process; None if it is not.

    Args:
        name: As for `Toolchain.library`.
        library: Identifies a library by its name. NVRTC's builtins may be in the process before NVRTC itself is: then
            it is called with `"nvrtc"`.
    """
    if name == "libdevice":
        return _libdevice()
    address = _function("nvrtc" if name == "nvrtc-builtins" else name)
    if not address:
        nvrtc = library("nvrtc") if name == "nvrtc-builtins" else None
        expected = nvrtc and builtins_of(nvrtc.path)
        return _opened(os.path.basename(expected), nvrtc.path) if nvrtc and expected else None
    state, known = (loads(), address), _known.get(name)
    if known is not None and known[0] == state:
        return known[1]
    found = _builtins(address) if name == "nvrtc-builtins" else _library_of(address)
    if found[1].startswith("build-id:"):
        _known[name] = state, found
    return found


_known: dict[str, tuple[tuple[int, int], tuple[str, str]]] = {}
"""Path and build of a library by its name, with the state for which they are valid: `loads()` and the address of the
function that the bindings call."""


def _library_of(address: int) -> tuple[str, str]:
    """Return path and build of the library that contains a function."""
    path, base = _place_of(address)
    return path, build_at(base, path)


def called_library(name: str) -> tuple[int, str] | None:
    """Return the address of a function of the library that the bindings call, and the library's build; None if it is
    not in this process."""
    address = _function(name)
    return (address, _library_of(address)[1]) if address else None


def _place_of(address: int) -> tuple[str, int]:
    """Return the path of the library that contains a function, and the address at which the library is mapped."""
    found = _Symbol()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return _real(found.path or b"", found.base), found.base or 0


@functools.cache
def _real(path: bytes, _base: int | None) -> str:
    """The real path of a mapped library, resolved at the first call for its address."""
    return os.path.realpath(os.fsdecode(path))


def _function(name: str) -> int:
    """Return the address of the library's function that the bindings call, or would call; 0 if it is not mapped."""
    if name not in SOUGHT:
        return 0
    symbol = SOUGHT[name][0]
    bindings = sys.modules.get(f"cuda.bindings._internal.{name.lower()}")
    if bindings is not None:
        try:
            return int(bindings._inspect_function_pointer(f"__{symbol}"))
        except Exception:  # older bindings have no such function, others raise various errors without the library
            pass
    handle = mapped_handle(name)
    if not handle:
        return 0
    try:
        return _ctypes.dlsym(handle, symbol)
    finally:
        _ctypes.dlclose(handle)


def mapped_handle(name: str) -> int:
    """Open the library that the bindings would find mapped in this process; the caller closes it. 0 for none."""
    symbol, *sonames = SOUGHT[name]
    for soname in (None, *sonames):
        try:
            mode = os.RTLD_LAZY | (os.RTLD_NOLOAD if soname else 0)
            handle = _ctypes.dlopen(soname, mode)  # type: ignore[arg-type]  # None is the global scope
        except OSError:
            continue
        try:
            _ctypes.dlsym(handle, symbol)
            return handle
        except OSError:
            _ctypes.dlclose(handle)
    return 0


def _builtins(address: int) -> tuple[str, str]:
    """Find the builtins that an NVRTC has opened, or else those that it will open; `address` is its nvrtcVersion."""
    version = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
    major, minor = ctypes.c_int(), ctypes.c_int()
    version(ctypes.addressof(major), ctypes.addressof(minor))
    soname = f"libnvrtc-builtins.so.{major.value}.{minor.value}"
    return _opened(soname, _place_of(address)[0])


def builtins_of(nvrtc: str, name: str = "") -> str | None:
    """Find the builtins that an NVRTC loads: in LD_LIBRARY_PATH unless it has a DT_RPATH, then in its own folder.

    Args:
        nvrtc: The path of NVRTC.
        name: The builtins' file name; "" if unknown: of several files, the one that NVRTC's file names is returned.
    """
    folders = [os.path.dirname(os.path.realpath(nvrtc))]
    try:
        if (searched := variables(("LD_LIBRARY_PATH",))) and not has_rpath(nvrtc):
            folders = [*filter(os.path.isdir, searched["LD_LIBRARY_PATH"].split(os.pathsep)), *folders]
        found = [(each, folder) for folder in folders for each in os.listdir(folder) if each == name or not name]
        found = [pair for pair in found if pair[0].startswith(("libnvrtc-builtins.so", "nvrtc-builtins64"))]
        if len(dict(found)) > 1:
            with open(nvrtc, "rb") as file:
                content = file.read()
            known = [pair for pair in found if pair[0].encode() + b"\0" in content]
            found = known or [pair for pair in found if pair[0] == max(found)[0]]
    except (OSError, ValueError):
        return None
    return os.path.join(found[0][1], found[0][0]) if found else None


def _opened(soname: str, nvrtc: str) -> tuple[str, str]:
    """Find the builtins that are mapped under this name, or else those that this NVRTC will map."""
    try:
        handle = _ctypes.dlopen(soname, os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        expected = builtins_of(nvrtc, soname)
        if expected:
            return expected, build_of(expected)
        try:
            handle = _ctypes.dlopen(soname, os.RTLD_LAZY)  # by the name that NVRTC will use
        except OSError:
            return "", "absent"  # not None, which means no compiler: NVRTC itself reports missing builtins
    try:
        mapped = ctypes.POINTER(_LinkMap)()
        ctypes.CDLL(None).dlinfo(ctypes.c_void_p(handle), _RTLD_DI_LINKMAP, ctypes.byref(mapped))
        path = _real(mapped.contents.path or b"", mapped.contents.base)
        return path, build_at(mapped.contents.base or 0, path)
    finally:
        _ctypes.dlclose(handle)


def _libdevice() -> tuple[str, str] | None:
    """Find the libdevice bitcode that Numba has read and keeps in memory for NVVM."""
    content = getattr(getattr(sys.modules.get("numba.cuda.cudadrv.nvvm"), "LibDevice", None), "_cache_", None)
    if type(content) is not bytes:
        return None
    find = getattr(sys.modules.get("numba.cuda.cudadrv.libs"), "get_libdevice", str)
    return str(find() or ""), "sha256:" + sha256(content).hexdigest()
