"""Facts about the machine: its driver, its devices, and the compilers that this process would load.

Promise     Each compiler is loaded, so that one that fails to load is distinguished from a missing one. No context is
            created on any device, and no CUDA package has to be importable.
Not here    Judging the facts (doctor).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from ..errors import KCacheError
from ..launch import bindings, native
from ..model import NamedTuple
from ..toolchain import installed_include_dirs
from ..toolchain.locating import loaded_path, on_disk
from ..toolchain.nvrtc import nvrtc_version, run_nvrtc, supported_targets


class Device(NamedTuple):
    """A device: its name and compute capability."""

    name: str
    major: int
    minor: int


class Compilers(NamedTuple):
    """The libraries that compile.

    Args:
        paths: Each library by its name; None if it is absent.
        version: NVRTC's version; None if it is absent.
        targets: Compute capabilities that NVRTC knows, 90 for 9.0.
        headers: The toolkit's header folders.
        troubles: The error of each library that is installed and cannot be used.
    """

    paths: Mapping[str, str | None]
    version: tuple[int, int] | None
    targets: tuple[int, ...]
    headers: tuple[str, ...]
    troubles: Mapping[str, str] = {}


def find_devices() -> tuple[tuple[int, int] | None, list[Device], str]:
    """The newest CUDA version that the driver knows and its devices; or the reason that there are none."""
    version = native.function("cuDriverGetVersion", "n")
    if version is None:
        return None, [], "libcuda.so.1 cannot be loaded"
    cuda, number = bindings(), version[0]()[1]
    (status,), driver = cuda.cuInit(0), (number // 1000, number % 1000 // 10)
    if status:
        return driver, [], f"the driver returned {cuda.name_of(status)}"
    return driver, [_device(cuda, ordinal) for ordinal in range(cuda.cuDeviceGetCount()[1])], ""


def _device(cuda: Any, ordinal: int) -> Device:
    name, handle = ctypes.create_string_buffer(256), cuda.cuDeviceGet(ordinal)[1]
    get_name: Any = native.function("cuDeviceGetName", "iii")
    get_name[0](ctypes.addressof(name), len(name), handle)
    major, minor = (cuda.cuDeviceGetAttribute(each, handle)[1] for each in (75, 76))  # COMPUTE_CAPABILITY_...
    return Device(name.value.decode("utf-8", "replace"), major, minor)


_SMALLEST = 'extern "C" __global__ void doctor() {}'


def load_compilers() -> Compilers:
    """Load each compiler as the CUDA bindings will, and have NVRTC compile the smallest kernel."""
    paths: dict[str, str | None] = {}
    troubles = {}
    for name in ("nvrtc", "nvvm", "nvJitLink"):
        try:
            paths[name] = loaded_path(name) or on_disk(name)
            if paths[name] is not None:
                ctypes.CDLL(paths[name])
        except OSError as error:
            paths[name], troubles[name] = paths.get(name), str(error)
    headers = tuple(installed_include_dirs())
    try:
        version, targets = nvrtc_version(), supported_targets()
        run_nvrtc(_SMALLEST, "doctor.cu", [f"-arch=sm_{max(targets)}"], ["cubin"])  # loads NVRTC's builtins as well
        return Compilers(paths, version, targets, headers, troubles)
    except (KCacheError, ImportError, OSError, RuntimeError) as error:
        if paths["nvrtc"] is not None:
            troubles.setdefault("nvrtc", getattr(error, "why", "") or str(error))
        return Compilers(paths, None, (), headers, troubles)
