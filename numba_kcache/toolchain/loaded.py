"""Load the compiler libraries, and identify them by the functions that this process calls.

Promise     A library is the one whose code runs when the bindings call it, also if a process has two NVRTCs. Its
            build is read from memory. Only `begin_loading` and `load` load anything.
Method      The bindings look a function up in the global scope of the process, else in the library that
            cuda.pathfinder gives them, which prefers one that is mapped under a known name. Once they have their
            function pointers they keep them, so these are read; before that, the same places are searched. dladdr finds
            the library of an address. NVRTC opens its builtins by name: they are the library mapped under that name.
Not here    Compilers that this process has not called (Toolchain, which looks into its record and on disk).
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
from typing import TYPE_CHECKING, Any

from ..keys import sha256
from .locating import build_at, builtins_of

if TYPE_CHECKING:
    from . import Library

SOUGHT = {
    "nvrtc": ("nvrtcVersion", "libnvrtc.so.13", "libnvrtc.so.12"),
    "nvJitLink": ("nvJitLinkVersion", "libnvJitLink.so.13", "libnvJitLink.so.12"),
    "nvvm": ("nvvmVersion", "libnvvm.so.4", "libnvvm.so"),
}
"""For each library one of its functions, and the file names by which cuda.pathfinder finds a mapped one, in order."""

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
    if "nvrtc" not in names or "nvvm" in names or mapped_handle("nvrtc"):
        return  # a Numba calls the bindings, which map the builtins of an NVRTC only if they map it themselves
    found = library("nvrtc")
    if found is not None:
        # dlopen by ctypes, which releases the GIL; CPython's own loading of a library does not
        with contextlib.suppress(AttributeError, RuntimeError):  # no such function, or the interpreter shuts down
            wanted = os.fsencode(found.path), os.RTLD_NOW
            thread = threading.Thread(target=ctypes.CDLL(None).dlopen, args=wanted, daemon=True)
            thread.start()
            _mapping.append(thread)


def load(names: Iterable[str]) -> set[str]:
    """Have the bindings load these libraries, if installed; afterwards it is certain which compilers run. Returns the
    names of those that this process calls from now on."""
    while _mapping:
        _mapping.pop().join()
    from ..waiting import imported  # here: a hit beside a mapped NVRTC loads nothing

    called = set[str]()
    for name in names:
        if name == "nvrtc" and mapped_handle(name):
            called.add(name)  # it is called without the bindings (nvrtc)
        elif name in _LOAD:
            with contextlib.suppress(Exception):  # its type depends on the bindings' version; a use reports the error
                getattr(imported(f"cuda.bindings.{name.lower()}"), _LOAD[name])()
                called.add(name)
    return called


def loaded_library(name: str) -> tuple[str, str] | None:
    """Return path and build of a library that this process calls; None if it is not there.

    Args:
        name: As for `Toolchain.library`.
    """
    if name == "libdevice":
        return _libdevice()
    address = _function("nvrtc" if name == "nvrtc-builtins" else name)
    if not address:
        return None
    return _builtins(address) if name == "nvrtc-builtins" else _library_of(address)


@functools.cache  # a library that was called stays mapped
def _library_of(address: int) -> tuple[str, str]:
    """Return path and build of the library that contains a function."""
    found = _symbol_at(address)
    path = os.path.realpath(os.fsdecode(found.path or b""))
    return path, build_at(found.base or 0, path)


def called_library(name: str) -> tuple[int, str] | None:
    """Return the address of a function of the library that is called, and the library's build; None if it is not in
    this process, or if the bindings call another one."""
    address = _function(name)
    return (address, _library_of(address)[1]) if address and _bindings_function(name) in (0, address) else None


def called_handle(name: str) -> int:
    """Return the handle of the library that the bindings call, or would call, at the first call of this; 0 for none.

    It stays that one: a program of one library is nothing to another, and what is called is what is identified.
    """
    address = _function(name)
    return address and _handle_of(_bound.setdefault(name, address))


@functools.cache
def _handle_of(address: int) -> int:
    return _ctypes.dlopen(_symbol_at(address).path, os.RTLD_LAZY | os.RTLD_NOLOAD)


def _symbol_at(address: int) -> _Symbol:
    found = _Symbol()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))
    return found


_bound = dict[str, int]()
"""The functions that the bindings call, which they keep, or those that were called before, without the bindings."""


def _bindings_function(name: str) -> int:
    """Return the address of the library's function that the bindings call; 0 if they are not imported."""
    with contextlib.suppress(Exception):  # older bindings have no such function, others fail without the library
        bindings: Any = sys.modules[f"cuda.bindings._internal.{name.lower()}"]
        return int(bindings._inspect_function_pointer(f"__{SOUGHT[name][0]}"))
    return 0


def _function(name: str) -> int:
    """Return the address of the library's function that the bindings call, or would call; 0 if it is not mapped."""
    found = _bound.get(name) or _bindings_function(name)
    if found:
        return _bound.setdefault(name, found)
    handle = mapped_handle(name) if name in SOUGHT else 0
    return _ctypes.dlsym(handle, SOUGHT[name][0]) if handle else 0


_handles = dict[str, int]()


def mapped_handle(name: str) -> int:
    """Open the library that the bindings would find mapped in this process, once and for all; 0 for none."""
    symbol, *sonames = SOUGHT[name]
    for soname in (None, *sonames) if name not in _handles else ():
        with contextlib.suppress(OSError):
            mode = os.RTLD_LAZY | (os.RTLD_NOLOAD if soname else 0)
            handle = _ctypes.dlopen(soname, mode)  # type: ignore[arg-type]  # None is the global scope
            _ctypes.dlsym(handle, symbol)
            _handles[name] = handle
            break
    return _handles.get(name, 0)


@functools.cache
def _builtins_name(address: int) -> str:
    """The name by which an NVRTC opens its builtins; `address` is its nvrtcVersion."""
    version = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
    major, minor = ctypes.c_int(), ctypes.c_int()
    version(ctypes.addressof(major), ctypes.addressof(minor))
    return f"libnvrtc-builtins.so.{major.value}.{minor.value}"


def _builtins(address: int) -> tuple[str, str]:
    """Find the builtins that an NVRTC has opened, or else map those beside it, as the bindings do: it gets those mapped
    under their name, whatever `LD_LIBRARY_PATH` and its own path lead to; `address` is its nvrtcVersion."""
    soname = _builtins_name(address)
    try:
        handle = _ctypes.dlopen(soname, os.RTLD_LAZY | os.RTLD_NOLOAD)  # stays open, so that the name stays theirs
    except OSError:
        try:
            handle = _ctypes.dlopen(builtins_of(_library_of(address)[0], soname) or soname, os.RTLD_LAZY)
        except OSError:
            return "", "absent"  # not None, which means no compiler: NVRTC itself reports missing builtins
    return _opened(handle)


@functools.cache
def _opened(handle: int) -> tuple[str, str]:
    """Return path and build of the library with this handle."""
    mapped = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(handle), _RTLD_DI_LINKMAP, ctypes.byref(mapped))
    path = os.path.realpath(os.fsdecode(mapped.contents.path or b""))
    return path, build_at(mapped.contents.base or 0, path)


def _libdevice() -> tuple[str, str] | None:
    """Find the libdevice bitcode that Numba has read and keeps in memory for NVVM."""
    content = getattr(getattr(sys.modules.get("numba.cuda.cudadrv.nvvm"), "LibDevice", None), "_cache_", None)
    if type(content) is not bytes:
        return None
    find = getattr(sys.modules.get("numba.cuda.cudadrv.libs"), "get_libdevice", str)
    return str(find() or ""), "sha256:" + sha256(content).hexdigest()
