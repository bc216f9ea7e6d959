"""A Numba kernel in modules on disk, asked of the cache and of Numba.

Promise     `plain` shares no code with the package: `numba.cuda.compile` in a process that imports the modules afresh.
            The PTX is compared; names and counters in it are Numba's to choose.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from . import cpp_asks
from .cpp_asks import Answer, Call
from .processes import reach
from .world import Edit, World

FAMILY = ("pk_", "chunk", "sunau", "nt_ns")
"""Beginnings of the modules' names: an ordinary one, two of the standard library's, a namespace package."""

_ABSENT = object()
_state: dict[str, Any] = {"texts": None, "undo": [], "home": "numba.cuda", "cuda": ""}
""""home" is the package whose `cuda` programs use: numba-cuda's, or numba-cuda-mlir's (`mlir_asks`); "cuda" the module
that they import in its place (`stand_in_asks`)."""


def use(home: str) -> None:
    """Compile with the Numba of this package from here on."""
    _state["home"] = home


def warm() -> None:
    """Import Numba and compile something, so that forked processes need not."""
    sys.dont_write_bytecode = True
    from numba import cuda

    _pretend_device()

    def nothing(x: Any) -> None:
        x[0] = 1.0

    cuda.compile(nothing, types_of("float64[::1]"), cc=(9, 0), device=False, output="ptx", abi="numba")


def _pretend_device() -> None:
    """Let Numba compile device functions without a device; beside a stand-in the fake driver has one."""
    if _state["cuda"]:
        return
    import numba.cuda.dispatcher as dispatcher

    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))


def types_of(text: str) -> tuple[Any, ...]:
    """The argument types that a text names."""
    found = eval(f"({text},)", dict(vars(importlib.import_module(f"{_state['home']}.types"))))
    return tuple(found)


def enter(call: Call) -> World:
    """Bring this process to where the call is made; import the program, with the patches that are in force."""
    world = cpp_asks.enter(call)
    root = str(world.root)
    sys.path[:] = [root, *(each for each in sys.path if not each.startswith(str(world.folder)))]
    texts = {path.relative_to(world.root): path.read_bytes() for path in sorted(world.root.rglob("*.py"))}
    wanted = [each for each in call["patches"] if each["code"] is not None]
    if (root, texts) != _state["texts"]:
        _undo()
        for name in [name for name in sys.modules if name.startswith(FAMILY)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        _state["texts"] = (root, texts)
        importlib.import_module("pk_main")
    elif [each for each, _restore in _state["undo"]] != wanted:
        _undo()
    if not _state["undo"]:
        for patch in wanted:
            _patch(patch)
    return world


def _undo() -> None:
    while _state["undo"]:
        _state["undo"].pop()[1]()


def _patch(patch: Edit) -> None:
    """Set an attribute of a module, or an item of it, to the value of an expression."""
    named = patch["module"]
    module = importlib.import_module(_state["cuda"] or named if named == "numba.cuda" else named)
    names = {name: importlib.import_module(name) for name in ("math", "operator", "numpy")}
    home = _state["cuda"] or ("numba.cuda" if _state["home"] == "numba.cuda" else "numba_cuda_mlir.cuda")
    cuda, libdevice = importlib.import_module(home), importlib.import_module(f"{home}.libdevice")
    scope = {**names, "cuda": cuda, "libdevice": libdevice, "np": names["numpy"]}
    value = eval(patch["code"], {**scope, **vars(sys.modules["pk_main"])})
    if "item" in patch:
        owner = getattr(module, patch["attr"])
        before = copy.copy(owner[patch["item"]])  # a record of an array is a view of it
        owner[patch["item"]] = value

        def restore() -> None:
            owner[patch["item"]] = before

    else:
        before = getattr(module, patch["attr"], _ABSENT)  # a stand-in has it from Numba
        setattr(module, patch["attr"], value)

        def restore() -> None:
            if before is _ABSENT:
                delattr(module, patch["attr"])
            else:
                setattr(module, patch["attr"], before)

    _state["undo"].append((patch, restore))


def decorate(call: Call) -> None:
    """Make the kernel now; a later ask takes it."""
    enter(call)
    with contextlib.suppress(Exception):  # the ask then says what is wrong with it
        cpp_asks.kept["kernel"] = _kernel(call)


def _kernel(call: Call) -> Any:
    from numba_kcache import cached_kernel

    thing = vars(sys.modules["pk_main"])["k"]
    return cached_kernel(thing, arch="sm_90", cache=cpp_asks.cache_of(call), **call["options"])


def serve(call: Call) -> Answer:
    """Request the PTX from the cache."""
    call = {**call, "cache": "same"} if call.get("decorated") else call
    try:
        enter(call)
    except Exception as error:
        return Answer(None, failed=f"import: {type(error).__name__}: {error}")
    cache = cpp_asks.cache_of(call)

    def ask() -> str:
        kernel = cpp_asks.kept.pop("kernel", None) if call.get("decorated") else None
        kernel = kernel or _kernel({**call, "cache": "same"})
        signature = types_of(call["signature"])
        with _reaching(call):
            kernel.compile(signature=signature)
        return _without_padding(kernel.ptx(signature=signature))

    return cpp_asks.answer(cache, ask)


@contextlib.contextmanager
def _reaching(call: Call) -> Iterator[None]:
    """Patch where Numba begins with the kernel's bytecode, and where it has made its code."""
    if not call.get("during"):
        yield
        return
    event = importlib.import_module(f"{_state['home']}.core.event")
    pending = ["after", "before"]

    def stop(moment: str) -> None:
        if pending[-1:] == [moment]:
            for patch in reach(pending.pop()):
                _patch(patch)

    def ended(_listener: Any, event: Any) -> None:
        if event.data["name"].endswith("backend [k]"):
            stop("after")

    passes = type("Passes", (event.Listener,), {"on_start": lambda *_: stop("before"), "on_end": ended})
    with event.install_listener("numba-cuda:run_pass", passes()):  # a function in place of Numba's would be refused
        yield


def _without_padding(ptx: str) -> str:
    """The PTX with zeros for the padding of constant records, where NumPy leaves what the memory held before.

    Told by the size alone: no other constant of a program has that of an array of records.
    """
    for value in vars(sys.modules["pk_main"]).values():
        fields = None if isinstance(value, ModuleType) else getattr(getattr(value, "dtype", None), "fields", None)
        if fields:
            kept = {start + at for kind, start, *_ in fields.values() for at in range(kind.itemsize)}
            ptx = re.sub(
                rf"(?<=\.b8 )((?:_cudapy_cmem|constant_array_)[\w$]*\[{value.nbytes}\] = \{{)([\d, ]+)",
                lambda found, kept=kept, size=value.itemsize: found[1]
                + ", ".join(
                    number if at % size in kept else "0" for at, number in enumerate(found[2].split(", "))
                ),
                ptx,
            )  # fmt: skip
    return ptx


def _redefine() -> None:
    """Compile the functions with signatures again, callees first, as if the modules had begun with what is patched."""
    from numba import cuda

    main = vars(sys.modules["pk_main"])
    for name, found in list(main.items()):
        if signatures := list(getattr(found, "overloads", ())):
            main[name] = cuda.jit(signatures, **found.targetoptions)(found.py_func)


def plain(call: Call) -> list[Answer]:
    """Compile the program as it is now with Numba alone."""
    from numba import cuda

    _pretend_device()
    try:
        enter(call)
        _redefine()
        function = vars(sys.modules["pk_main"])["k"]
        given = {**getattr(function, "targetoptions", {}), **call["options"]}
        options = {
            name: given[name] for name in ("debug", "lineinfo", "fastmath", "opt", "launch_bounds") if name in given
        }
        ptx, _type = cuda.compile(
            getattr(function, "py_func", function), types_of(call["signature"]), cc=(9, 0), device=False,
            output="ptx", abi="numba", **options,
        )  # fmt: skip
        return [Answer(_without_padding(ptx))]
    except Exception as error:
        return [Answer(None, failed=f"{type(error).__name__}: {error}")]
    finally:
        os.chdir("/")
