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


def _name_of(cuda: Any, status: int) -> str:
    name = ctypes.c_char_p()
    return str(status) if cuda.cuGetErrorName(status, ctypes.byref(name)) or not name.value else name.value.decode()


def find_devices() -> tuple[tuple[int, int] | None, list[Device], str]:
    """The newest CUDA version that the driver knows and its devices; or the reason that there are none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, [], str(error)
    status, number, count = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    driver = number.value // 1000, number.value % 1000 // 10
    if status:
        return driver, [], f"the driver returned {_name_of(cuda, status)}"
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return driver, [_device(cuda, ordinal) for ordinal in range(count.value)], ""


def _device(cuda: ctypes.CDLL, ordinal: int) -> Device:
    name, handle = ctypes.create_string_buffer(256), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetName(name, len(name), handle)
    major, minor = ctypes.c_int(), ctypes.c_int()
    for part, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
        cuda.cuDeviceGetAttribute(ctypes.byref(part), attribute, handle)
    return Device(name.value.decode("utf-8", "replace"), major.value, minor.value)


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
