"""Launch attributes: the options of `cached_kernel` that change launches rather than code.

Promise     An invalid value is an `OptionError` at decoration. `apply` sets the attributes on a kernel loaded on a
            device, and `check` refuses the shapes that they do not allow, both before anything is queued.
Not here    `__launch_bounds__`: it changes the code, and NVRTC takes it from the source alone.
Source      CUDA driver API, cuLaunchKernelEx and cuFuncSetAttribute; CUDA C++ Programming Guide, "Thread Block
            Clusters": 8 blocks everywhere from compute capability 9.0 on, 16 where a kernel allows it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchConfigError, LaunchError, OptionError
from ..model import NamedTuple
from . import AXES, Dim3, LaunchShape, bindings, done
from .launcher import LoadedKernel

CARVEOUTS = {"default": -1, "maxl1": 0, "maxshared": 100}
"""Percentages of L1 used as shared memory, by Numba's names for them."""

_COOPERATIVE, _CLUSTER_DIMENSION = 2, 4
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE and _CLUSTER_DIMENSION; each takes 72 bytes, with the value after the first eight."""

_PORTABLE_CLUSTER = 8
_LARGEST_CLUSTER = 16


class LaunchOptions(NamedTuple):
    """The attributes of all launches of one kernel object.

    Args:
        cooperative: All blocks run at once, so that the grid can synchronise.
        cluster: Blocks of a cluster along (x, y, z); None for the size in the source.
        max_dynamic_shared: Dynamic shared memory per block that the kernel is allowed when it is loaded, in bytes.
        carveout: Percentage of L1 to use as shared memory, -1 for the driver's choice.
    """

    cooperative: bool = False
    cluster: Dim3 | None = None
    max_dynamic_shared: int = 0
    carveout: int | None = None

    def apply(self, kernel: LoadedKernel, name: str) -> bytes:
        """Set the function attributes of a loaded kernel, and return those of each launch as the driver takes them.

        Raises:
            LaunchError: The device does not support one of them.
        """
        if self.max_dynamic_shared:
            limits = kernel.limits(self.max_dynamic_shared)
            room = limits.shared_bytes - limits.static_shared_bytes
            if self.max_dynamic_shared > room:
                raise LaunchError(
                    f"cannot load {name} with max_dynamic_shared={self.max_dynamic_shared}",
                    f"a block takes at most {room} bytes on this device",
                    "use smaller tiles",
                )
            kernel.allow_shared(self.max_dynamic_shared)
        if self.carveout is not None:
            kernel.set_attribute("PREFERRED_SHARED_MEMORY_CARVEOUT", self.carveout, "set the carveout of")
        attributes = b""
        if self.cooperative:
            attributes += struct.pack("=I4xI60x", _COOPERATIVE, 1)
        if self.cluster:
            if kernel.device.target.major < 9:
                raise LaunchError(
                    f"cannot load {name} with cluster={self.cluster}",
                    f"clusters need compute capability 9.0, this device is {kernel.device.target}",
                    "leave cluster= out here",
                )
            if math.prod(self.cluster) > _PORTABLE_CLUSTER:
                kernel.set_attribute("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, "allow large clusters of")
            attributes += struct.pack("=I4x3I52x", _CLUSTER_DIMENSION, *self.cluster)
        return attributes

    def check(self, shape: LaunchShape, kernel: LoadedKernel, name: str) -> None:
        """Refuse a shape, already within the device's limits, that the attributes do not allow.

        Raises:
            LaunchConfigError: The grid is not a whole number of clusters, or is too large for a cooperative launch.
        """
        for axis, blocks, length in zip(AXES, shape.grid, self.cluster or (1, 1, 1), strict=True):
            if blocks % length:
                raise LaunchConfigError(
                    f"cannot launch {name} with grid.{axis} = {blocks}",
                    f"its clusters are {length} blocks long there",
                    "round the grid up to whole clusters",
                )
        if self.cooperative:
            resident = blocks_of_multiprocessor(kernel, shape.threads_per_block, shape.shared_bytes)
            most = resident * kernel.of_device("MULTIPROCESSOR_COUNT")
            if math.prod(shape.grid) > most:
                raise LaunchConfigError(
                    f"cannot launch {name} with {math.prod(shape.grid)} blocks",
                    f"it is cooperative, and {most} of them fit on the device at once",
                    "let each thread take several elements in a loop: see .max_cooperative_grid_blocks()",
                )


def blocks_of_multiprocessor(kernel: LoadedKernel, threads: int, dynamic_bytes: int) -> int:
    """Blocks of this size that a multiprocessor runs at once (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
    kernel.allow_shared(dynamic_bytes)
    answer = bindings().cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.function, threads, dynamic_bytes)
    return int(done(answer, f"query the occupancy of {kernel.compiled.name}"))


def potential_block_size(kernel: LoadedKernel, dynamic_bytes: int) -> int:
    """The block size at which most threads are resident, from the driver (cuOccupancyMaxPotentialBlockSize)."""
    kernel.allow_shared(dynamic_bytes)
    status, _least_grid, block = bindings().cuOccupancyMaxPotentialBlockSize(kernel.function, 0, dynamic_bytes, 0)
    done((status,), f"query a block size for {kernel.compiled.name}")
    return int(block)


def read_launch_options(given: Mapping[str, Any], kind: str) -> LaunchOptions:
    """The launch attributes among the options of a kernel.

    Args:
        given: Options as keywords of `cached_kernel`; None means the default.
        kind: `"cuda"`, `"ptx"` or `"numba"`; Numba reads `launch_bounds` and `carveout` itself.

    Raises:
        OptionError: An option has an invalid value, or `launch_bounds` is given for a source.
    """
    if kind == "numba":
        given = {**given, "launch_bounds": None, "carveout": None}
    if given.get("launch_bounds") is not None:
        written = "__launch_bounds__(threads, blocks) behind __global__ void" if kind == "cuda" else ".maxntid"
        raise OptionError(
            f"cannot use launch_bounds={given['launch_bounds']!r} here",
            "the bounds change the code, and the compiler takes them from the source alone",
            f"write {written} in the source",
        )
    cooperative, shared, carveout = (given.get(name) for name in ("cooperative", "max_dynamic_shared", "carveout"))
    if cooperative is not None and type(cooperative) is not bool:
        why = f"it is a {type(cooperative).__name__}"
        raise OptionError(f"cannot use cooperative={cooperative!r}", why, "write True or False")
    if shared is not None and (type(shared) is not int or shared < 0):
        raise OptionError(f"cannot use max_dynamic_shared={shared!r}", "it is not a number of bytes", "write 65536")
    percent = CARVEOUTS.get(carveout.strip().lower()) if isinstance(carveout, str) else carveout
    if carveout is not None and (type(percent) is not int or not -1 <= percent <= 100):
        why = f"it is neither -1 to 100 nor one of {', '.join(CARVEOUTS)}"
        raise OptionError(f"cannot use carveout={carveout!r}", why, "write carveout=50, the percentage")
    return LaunchOptions(bool(cooperative), _read_cluster(given.get("cluster")), shared or 0, percent)


def _read_cluster(cluster: Any) -> Dim3 | None:
    if cluster is None:
        return None
    extents = tuple(cluster) if isinstance(cluster, (tuple, list)) else (cluster,)
    if not 1 <= len(extents) <= 3 or not all(type(each) is int and each >= 1 for each in extents):
        why = "it is not one to three positive integers"
        raise OptionError(f"cannot use cluster={cluster!r}", why, "write cluster=2 or (2, 1, 1)")
    if math.prod(extents) > _LARGEST_CLUSTER:
        why = f"these are {math.prod(extents)} blocks, a cluster has at most {_LARGEST_CLUSTER}"
        raise OptionError(f"cannot use cluster={cluster!r}", why, "write cluster=2 or (2, 1, 1)")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
