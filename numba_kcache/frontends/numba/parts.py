"""Import and probe every undocumented name of the Numbas that this package uses, once.

Promise     Either all these names exist with the expected parameters, or ToolchainMissingError says which versions to
            install. A later version is supported if it has every part.
Method      `surface` has the names that `cuda` of a Numba loads, `compiler` those that a compile loads too. The tables
            of a `Flavour` say for each module which names are taken from it; both share those of `home`.
Source      numba-cuda 0.30.4. numba-cuda-mlir 0.5.4 and 0.6.0: descriptor.py, decorators.py, mlir_compiler.py,
            mlir_optimization.py, tools.py, _whole_function_planners.py.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

from .flavour import Flavour, Table

_OF_HOME = (
    ("types", "Array Integer Float Complex Boolean BaseTuple Record NoneType"),
    ("typing.typeof", "typeof"),
    ("typing", "signature"),
    ("cudadrv.devicearray", "DeviceNDArray DeviceRecord"),
    ("np.numpy_support", "as_dtype from_dtype"),
    ("core.compiler_lock", "global_compiler_lock"),
    ("cudadrv.devices", "get_context"),
    ("core.sigutils", "normalize_signature"),
)
"""Names used from modules of `Flavour.home`, which both Numbas have."""


def _gathered(flavour: Flavour, table: Table) -> SimpleNamespace:
    found = SimpleNamespace()
    try:
        for home, names in table:
            module = sys.modules.get(home) or import_module(home)
            vars(found).update({name: getattr(module, name) for name in names.split()})
    except (ImportError, AttributeError) as error:
        use = ": use numpy<2.5" if "numpy" in str(error) else ""
        raise flavour.unsuitable(f"cannot be imported: {error}{use}") from error
    return found


@cache
def surface(flavour: Flavour) -> SimpleNamespace:
    """Import and probe the names that a Numba's `cuda` loads, with the modules `types` and `config`.

    Raises:
        ToolchainMissingError: It is not installed, or of an unsupported version.
    """
    home = flavour.home
    found = _gathered(flavour, (*flavour.surface_parts, *((f"{home}.{name}", names) for name, names in _OF_HOME)))
    found.types, found.config = sys.modules[f"{home}.types"], import_module(flavour.config)
    found.Dispatcher = getattr(found, flavour.dispatchers[0][1])
    lacking = [name for name in flavour.methods.split() if not hasattr(found.Dispatcher, name)]
    if lacking:
        raise flavour.unsuitable(f"is of another version: its dispatcher has no {lacking[0]}")
    flavour.check_version()
    return found


@cache
def compiler(flavour: Flavour) -> SimpleNamespace:
    """Import and probe the names that a compile needs, beside those of `surface`.

    Raises:
        ToolchainMissingError: The Numba is not installed, or of an unsupported version.
    """
    found = _gathered(flavour, flavour.compiler_parts)
    vars(found).update(vars(surface(flavour)))
    for name, wanted in flavour.parameters:
        lacking = {*wanted.split()} - {*signature(getattr(found, name)).parameters}
        if lacking:
            raise flavour.unsuitable(f"is of another version: {name} takes no {min(lacking)}")
    return found


@cache
def linker(flavour: Flavour) -> SimpleNamespace:
    """Import the names that find the headers of CUDA C++ link inputs.

    Raises:
        ToolchainMissingError: The Numba is of an unsupported version.
    """
    return _gathered(flavour, flavour.linker_parts)


def home_folder(flavour: Flavour) -> str:
    """The folder of `Flavour.home`."""
    return os.path.dirname(str(import_module(flavour.home).__file__))


def toolkit_dirs(flavour: Flavour) -> tuple[str, ...]:
    """List the include folders that are searched first for CUDA C++ link inputs of a kernel."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import locate_nvidia_header_directory

    parts = linker(flavour)
    _status, major, _minor = nvrtc.nvrtcVersion()
    cccl = locate_nvidia_header_directory("cccl")
    folders = parts.get_cuda_paths()["include_dir"].info, *([cccl.abs_path] if cccl else ()), parts.get_include()
    return os.path.join(home_folder(flavour), "include", str(major)), *[os.path.realpath(str(each)) for each in folders]


@contextmanager
def assumed_device(flavour: Flavour, cc: tuple[int, int]) -> Iterator[None]:
    """Make this thread compile as if the current device had compute capability `cc`.

    Both Numbas compile device functions for the current device, and need one for that; numba-cuda-mlir links for the
    first one, whatever the target. Other threads still get the real device.
    """
    parts, thread = compiler(flavour), threading.get_ident()
    with parts.global_compiler_lock:
        places = [(import_module(module), name) for module, name in flavour.device_readers]
        before = [getattr(module, name) for module, name in places]

        def current(*given: Any, **named: Any) -> Any:
            is_own = threading.get_ident() == thread
            return flavour.device_answer(cc, *given, **named) if is_own else before[0](*given, **named)

        for module, name in places:
            setattr(module, name, current)
        try:
            with uncollected():
                flavour.fill_registries(parts)
            yield
        finally:
            for (module, name), real in zip(places, before, strict=True):
                setattr(module, name, real)


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection while a Numba fills its registries, and move objects made meanwhile to the oldest
    generation.

    The registries are half a million permanent objects: traversing them repeatedly was 40 % of a first compile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        is_much = gc.get_count()[0] > gc.get_threshold()[0]  # after the first compile, few objects are made
        if was_enabled and is_much and not gc.get_freeze_count():  # unfreezing would undo the program's own freeze
            gc.freeze()
            gc.unfreeze()  # moves the objects into the oldest generation without traversing them
        if was_enabled:
            gc.enable()
