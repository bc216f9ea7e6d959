"""Measures of a kernel on the current device: occupancy, suggested block size, function attributes, and time.

Promise     A launch does not import this module. The figures are the driver's, for the same function that launches use,
            and launches are not affected.
Not here    Resources reported by the compiler, and launches (frontends).
Source      CUDA driver API: CUfunction_attribute, occupancy, and cuEventElapsedTime, whose clock ticks each half
            microsecond.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..engine import RunsUncached
from ..errors import LaunchConfigError, LaunchError, OptionError
from ..launch import LEGACY_DEFAULT, LaunchShape, bindings, choose, current_device, done, launch_shape, stream_handle
from ..launch.attributes import blocks_of_multiprocessor, potential_block_size
from ..launch.launcher import LoadedKernel, orders_of

if TYPE_CHECKING:
    from . import Launches, Variant

ATTRIBUTES = (
    "max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
    "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout",
)  # fmt: skip
"""Names of CUfunction_attribute 0, 1, 2, ..., as in CuPy's `RawKernel.attributes`."""


def attributes(loaded: LoadedKernel) -> dict[str, int]:
    """Attributes that the driver reports for a function, by the names of `ATTRIBUTES`."""
    ask, name = bindings().cuFuncGetAttribute, loaded.compiled.name
    return {each: int(done(ask(n, loaded.function), f"ask {name}")) for n, each in enumerate(ATTRIBUTES)}


def count_of_tasks(kernel: str, ntasks: Any) -> int:
    """The number of tasks that a user gave to `forall`.

    Raises:
        LaunchConfigError: It is negative, or not a whole number.
    """
    try:
        count = operator.index(ntasks)
    except TypeError:
        size = getattr(ntasks, "size", None)
        shown = repr(ntasks) if isinstance(ntasks, (float, str)) else f"a {type(ntasks).__name__}"
        why = "it is a number of threads, not the array" if isinstance(size, int) else "it is not a whole number"
        hint = "write forall(array.size)" if isinstance(size, int) else "give the number of elements, an int"
        raise LaunchConfigError(f"cannot launch {kernel} for {shown} tasks", why, hint) from None
    if count < 0:
        what = f"cannot launch {kernel} for {count} tasks"
        raise LaunchConfigError(what, "a count is not negative", "give the size of the array")
    return count


def occupancy(kernel: Launches, loaded: LoadedKernel, shape: LaunchShape) -> int:
    """Blocks of this shape that one multiprocessor holds at once."""
    loaded.prepare(shape, kernel._name_on(loaded))
    return blocks_of_multiprocessor(loaded, shape.threads_per_block, shape.shared_bytes)


def resident(kernel: Launches, loaded: LoadedKernel, shape: LaunchShape) -> int:
    """Blocks of this shape that the device holds at once."""
    return occupancy(kernel, loaded, shape) * loaded.of_device("MULTIPROCESSOR_COUNT")


def suggested_block(kernel: Launches, loaded: LoadedKernel, shared_bytes: int) -> int:
    """The block size that keeps the most threads resident."""
    loaded.prepare(launch_shape(1, 1, shared_bytes), kernel._name_on(loaded))
    return potential_block_size(loaded, shared_bytes)


def time(
    kernel: Launches,
    config: tuple[Any, Any, Any, int],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    repeats: int,
) -> float:
    """Median time of launches in milliseconds, by a pair of events around each, after one launch to warm up.

    Args:
        kernel: The kernel to launch.
        config: Grid, block, stream and shared memory.
        arguments, named: Arguments of each launch.
        repeats: Number of launches measured.

    Raises:
        OptionError: `repeats` is not a positive integer.
        LaunchError: The stream is being captured, or a launch failed on the device.
    """
    from statistics import median

    name, driver = kernel.__name__, bindings()
    if type(repeats) is not int or repeats < 1:
        raise OptionError(
            f"cannot time {name} with repeats={repeats!r}", "it is not a positive integer", "write repeats=20"
        )
    grid, block, stream, sharedmem = config
    ordinal = current_device().ordinal
    if stream is None or (type(stream) is int and not stream):  # the stream of the arguments, by its handle
        orders = orders_of((*arguments, *named.values()), ordinal)
        stream = choose(orders, lambda each: driver.cuStreamIsCapturing(each) == (0, 1)) or LEGACY_DEFAULT
    handle, launch = stream_handle(stream), kernel[grid, block, stream, sharedmem]
    if driver.cuStreamIsCapturing(handle) != (0, 0):
        raise LaunchError(f"cannot time {name}", "its stream is being captured, and runs nothing", "use another stream")
    events, action = list[int](), f"time {name}"
    try:
        for _ in range(2 * repeats):
            events.append(done(driver.cuEventCreate(0), action))
        launch(*arguments, **named)
        for start, end in zip(events[::2], events[1::2], strict=True):
            done(driver.cuEventRecord(start, handle), action)
            launch(*arguments, **named)
            done(driver.cuEventRecord(end, handle), action)
        done(driver.cuStreamSynchronize(handle), action, "NUMBA_KCACHE_DEBUG=1 names the launch that failed")
        spans = zip(events[::2], events[1::2], strict=True)
        return median([_milliseconds(done(driver.cuEventElapsedTime(*span), action)) for span in spans])
    finally:
        for each in events:
            driver.cuEventDestroy_v2(each)


def _milliseconds(bits: int) -> float:
    """Reinterpret the bits that the driver wrote as a float."""
    return float(struct.unpack("=f", struct.pack("=i", bits))[0])


def block_size(kernel: Launches, arguments: tuple[Any, ...], shared_bytes: int) -> int:
    """The block size that keeps the most threads resident, for these arguments."""
    definition, resolutions = kernel._definition, kernel._resolutions
    try:
        variant: Variant = definition.variant(arguments)
        if variant is None and definition.has_variants:
            return resolutions.block_size_by_front_end(arguments, shared_bytes)
        loaded = kernel._loaded(variant)[1]
    except RunsUncached:
        return resolutions.block_size_by_front_end(arguments, shared_bytes)
    return suggested_block(kernel, loaded, shared_bytes)


def blocks_over(
    kernel: Launches, tasks: int, threads: int, shared_bytes: int, arguments: tuple[Any, ...]
) -> tuple[int, int]:
    """The fewest blocks (whole clusters) that have a thread for each task, and the threads per block.

    If `threads` is 0, the threads per block are those of `block_size`.
    """
    threads = launch_shape(1, threads).threads_per_block if threads else block_size(kernel, arguments, shared_bytes)
    options, blocks = kernel._definition.launch_options, -(-tasks // threads)
    return blocks + (-blocks % options.cluster[0] if options and options.cluster else 0), threads
