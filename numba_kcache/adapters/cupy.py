"""CuPy's kernels in this cache: `cupy.cuda.compiler` has a place for a cache that everything it compiles passes.

Promise     Objects, launches and errors remain CuPy's. A hit was compiled under CuPy's own name, which covers source,
            options, architecture and CuPy with its headers, by the same build of NVRTC, from other headers that are
            unchanged. Code whose compile cannot be observed (nvcc, Jitify, relocatable code, precompiled headers) is
            left to the cache that CuPy had before, with an event. On any failure of the cache CuPy compiles.
Method      CuPy compiles between a `load` that returns None and its `save` (turn), on one thread: there NVRTC is
            observed. It first looks for the program's own file, so a compile that nobody saw is known. The calling
            function's variables say how CuPy will compile, before it does.
Not here    Kernels that CuPy keeps in memory: CuPy looks each up once in a process.
Source      CuPy 14.1 and 14.2: cuda/compiler.py (`_compile_with_cache_cuda`), cuda/_compiler_cache.py
            (`KernelCacheBackend`).
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..engine import Session, process_session
from ..engine.built import ALONE, Built, Wanted
from ..errors import FrozenCacheError, ToolchainMissingError
from ..headers import HeadersRead
from ..headers.roots import HeaderSearch
from ..model import NO_TARGET, Event, EventKind
from ..model.cubin import read_cubin
from .turn import Turn, find_or_begin, without_trouble

_MAKERS = ("nvrtc", "nvrtc-builtins"), ()
_KNOWN = frozenset(("source", "options", "arch", "backend", "name_expressions", "to_ltoir"))
_UNSEEN = re.compile(r"-DCUPY_USE_JITIFY|--?(?:dc|device-c|rdc|relocatable-device-code|(?:create-|use-)?pch)(?:=.*)?")
"""Options with which a part of the compile is not seen: Jitify and precompiled headers, or the driver's linker."""

_KERNEL = re.compile(r"__global__\s[^;{]*?\b(\w+)\s*\((?!\s*\d)")


class _Compile:
    """One kernel that CuPy looks up, with the variables of the function that does.

    Args:
        session: The session of the cache.
        name: CuPy's name for the code.
        known: The variables.
        compiler: The module `cupy.cuda.compiler`.
    """

    def __init__(self, session: Session, name: str, known: Mapping[str, Any], compiler: Any) -> None:
        self.session, self.name, self.known, self.label = session, name, known, _label(name, known)
        text = "\n".join([known["source"], *known["options"]]).encode()
        self.search = HeaderSearch((text,), (), _toolkit(), is_working=True, read=self._read)
        components = {"cupy": name, "source": known["source"], "options": [*known["options"]]}
        self.wanted = Wanted(session, components, self.label, self.search, _MAKERS)
        self._headers, self._compiler = HeadersRead(), compiler

    def begin(self, turn: Turn) -> None:
        """Keep the turn to compile it."""
        self._turn, self._since_ns = turn, time.time_ns()

    def finish(self, code: bytes, events: list[Any]) -> None:
        """Store the code that was compiled since `find`, under the headers that NVRTC read."""
        from ..headers.record import read_elsewhere

        own = f"/{self.name}.cu".encode()
        folder = next((each[1].removesuffix(own) for each in events if each[1].endswith(own)), b"")
        # CuPy's folder for this compile has another name each time, and is gone when NVRTC looks there
        events = [each for each in events if not each[2] or not (each[1] + b"/").startswith(folder + b"/")]
        self._headers = read_elsewhere(events, self.search, self.session.toolchain, self._since_ns)
        if not folder:
            self._headers = HeadersRead(untracked="its compile was not observed")
        self._turn.finish({ALONE: code})

    def _read(self) -> HeadersRead:
        return self._headers

    def mismatch(self, payloads: Mapping[str, bytes]) -> str:
        """Say why stored code cannot be the one that CuPy looks for; "" if it can."""
        code, names = payloads[ALONE], self.known["name_expressions"]
        if self.known["to_ltoir"]:
            return ""
        if names and hasattr(self._compiler, "_decode_cache_payload"):  # CuPy 14.1 reads the names from loaded code
            decoded = self._compiler._decode_cache_payload(code, len(names))
            if decoded is None:
                return "it lacks the names of its kernels"
            code = decoded[1]
        try:
            if not code.startswith(b"\x7fELF") or read_cubin(code).sm == int(self.known["arch"]):
                return ""
            return "it is for another target"
        except ValueError as error:
            return f"it cannot be read: {error}"


def _label(name: str, known: Mapping[str, Any]) -> str:
    """Name a source by its kernels; by CuPy's name if it has none."""
    given = known.get("name_expressions")
    names = given if given and isinstance(given, (list, tuple)) else _KERNEL.findall(str(known.get("source"))) or [name]
    return f"cupy:{', '.join(dict.fromkeys(map(str, names)))}"[:200]


def _home() -> str:
    """CuPy's own folder, whose headers are in its name for a kernel."""
    return f"{sys.modules['cupy'].__path__[0]}/"


def _toolkit() -> Any:
    """Record name and finder of the toolkit's header folders, which CuPy itself names to NVRTC."""
    from cupy._core.core import assemble_cupy_compiler_options

    named = [each[2:] for each in assemble_cupy_compiler_options(()) if each.startswith("-I")]
    found = [each for each in named if not each.startswith(_home())]
    return f"cupy {found}", lambda: found


def _unseen(known: Mapping[str, Any], compiler: Any) -> str:
    """Say why a compile cannot be observed; "" if it can."""
    if not known.keys() >= _KNOWN:
        return "this version of CuPy compiles in another way"
    if known["backend"] != "nvrtc":
        return f"{known['backend']} compiles it"
    options = [*known["options"], "--pch"] if getattr(compiler, "_use_pch", False) else known["options"]
    return next((f"its compile with {each} cannot be observed" for each in options if _UNSEEN.fullmatch(each)), "")


class Backend:
    """A `KernelCacheBackend` of CuPy.

    Args:
        compiler: The module `cupy.cuda.compiler`.
    """

    def __init__(self, compiler: Any) -> None:
        self.own = compiler._kernel_cache_backend
        self._compiler, self._pending = compiler, threading.local()

    def load(self, name: str) -> bytes | None:
        """Find the code that CuPy calls by this name; None if CuPy has to compile it.

        Raises:
            FrozenCacheError: The code is not stored, or its compile cannot be observed, and the mode is frozen.
        """
        self._ended()
        session, caller = process_session(), sys._getframe(1)
        known = dict(caller.f_locals)
        label = _label(name, known)
        with without_trouble(session, "look for", label):
            why = _unseen(known, self._compiler)
            if why:
                return self._left(session, name, label, why)
            compiled = _Compile(session, name, known, self._compiler)
            build = threading.get_ident(), __name__
            found = find_or_begin(compiled.wanted, compiled.mismatch, build, caller)
            if isinstance(found, Built):
                return found.payloads[ALONE]
            if found is not None:
                from ..headers import observer

                why = observer.unobservable()
                if why:
                    found.finish()
                    return self._left(session, name, label, f"this NVRTC cannot be observed: {why}")
                compiled.begin(found)
                self._pending.of = compiled, observer.begin_observing(os.fsencode(_home()))
        return None

    def save(self, name: str, cubin: bytes, source: str) -> None:
        """Store what CuPy has compiled since `load`; a compile that is left to CuPy goes to its own cache."""
        wanted, events = self._ended()
        if wanted is None or wanted.name != name:
            self.own.save(name, cubin, source)
            return
        with without_trouble(wanted.session, "store", wanted.label):  # CuPy has its code
            wanted.finish(bytes(cubin), events)

    def _left(self, session: Session, name: str, label: str, why: str) -> bytes | None:
        """Leave a kernel to CuPy's own cache."""
        if session.settings.mode == "frozen":
            raise FrozenCacheError(f"cannot compile {label}", f"the cache is frozen, and {why}")
        fields = {"kernel": label, "target": NO_TARGET.name, "key": "", "reason": f"left to CuPy's own cache: {why}"}
        session.events.emit(Event(EventKind.UNCACHEABLE, fields))
        code: bytes | None = self.own.load(name)
        return code

    def _ended(self) -> tuple[_Compile | None, list[Any]]:
        """End what this thread looked up last, and return it with what NVRTC has asked since."""
        (wanted, mark), self._pending.of = getattr(self._pending, "of", None) or (None, None), None
        return wanted, (mark.end() if mark else None) or []


def replace(compiler: Any, _every_kernel: bool) -> None:
    """Give CuPy this cache.

    Raises:
        ToolchainMissingError: This CuPy has no place for a cache.
    """
    base = getattr(sys.modules.get("cupy.cuda._compiler_cache"), "KernelCacheBackend", None)
    has_place = hasattr(compiler, "_set_kernel_cache_backend") and hasattr(compiler, "_kernel_cache_backend")
    if base is None or base.__abstractmethods__ != {"load", "save"} or not has_place:
        version = getattr(sys.modules.get("cupy._version"), "__version__", "")
        why = f"CuPy {version} has no place for a cache like that of CuPy 14.2"
        hint = "pip install 'cupy-cuda13x==14.2.*', or cupy-cuda12x for an older driver"
        raise ToolchainMissingError("cannot cache CuPy's kernels", why, hint)
    base.register(Backend)
    compiler._set_kernel_cache_backend(Backend(compiler))


def restore() -> None:
    """Give CuPy the cache that it had."""
    compiler: Any = sys.modules.get("cupy.cuda.compiler")
    found = getattr(compiler, "_kernel_cache_backend", None)
    if isinstance(found, Backend):
        compiler._set_kernel_cache_backend(found.own)
