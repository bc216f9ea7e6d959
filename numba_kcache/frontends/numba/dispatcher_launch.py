"""Launch through Numba's own dispatcher what the straight way does not take, with what Numba has no word for.

Promise     Arguments mean what they mean to Numba. The kernel's launch attributes, dynamic shared memory above 48 KiB
            and `debug_launches` hold all the same, on whichever device and for whatever Numba compiled or was given.
Method      Numba calls `kernel.launch` after the callbacks of the launch configuration; a callback puts a launch of our
            own there, which prepares the function and goes on to Numba's. A cluster gets to Numba's code by the name
            under which that makes its `LaunchConfig`.
Not here    Reading and applying the attributes (attributes).
Ground      numba-cuda 0.30.4, dispatcher.py `CUDADispatcher.call`, `_Kernel.launch`; cuda.core's LaunchConfig counts
            the grid in clusters where there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from ...launch.attributes import LaunchOptions
from ...launch.configurations import LaunchShape
from ...launch.devices import numba_stream
from ...launch.loader import loaded_by_numba


def launch_with(
    dispatcher: Any,
    shape: LaunchShape,
    stream: Any,
    arguments: Sequence[Any],
    options: LaunchOptions | None,
    *,
    is_watched: bool,
) -> None:
    """Launch as Numba does, and do more.

    Args:
        dispatcher: Of Numba.
        shape: Where and how wide.
        stream: As the user gave it.
        arguments: Of the launch.
        options: Launch attributes, if any.
        is_watched: Whether to wait for the launch (`debugging`).

    Raises:
        LaunchConfigError, LaunchError: The device, or an attribute, rules it out; a watched launch failed.
    """
    configured = dispatcher[shape.grid, shape.block, numba_stream(stream), shape.shared_bytes]
    told = options or LaunchOptions()
    configured.pre_launch_callbacks.append(lambda kernel, _configuration: apply_options(kernel, told))
    if not is_watched:
        configured(*arguments)
        return
    import cuda.bindings.driver as driver

    from ...launch.debugging import watched

    def launch() -> bool:
        configured(*arguments)
        return True

    function = dispatcher.py_func
    watched(
        driver, stream, launch, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip


def apply_options(kernel: Any, options: LaunchOptions) -> None:
    """Make one of Numba's compiled kernels launch with the options from now on."""
    kernel.cooperative = kernel.cooperative or options.cooperative
    kernel.launch = functools.partial(_launch, kernel, options._replace(cooperative=kernel.cooperative))


def _launch(
    kernel: Any, options: LaunchOptions, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
) -> None:
    loaded = loaded_by_numba(kernel._codelibrary.get_cufunc())  # asked each time: it is another one after a reset
    name, shape = kernel.py_func.__name__, LaunchShape(griddim, blockdim, sharedmem)
    options.apply(loaded, name)
    loaded.prepare(shape, name)
    options.check(shape, loaded, name)
    launch = type(kernel).launch
    if options.cluster:
        names = {**launch.__globals__, "LaunchConfig": functools.partial(_in_clusters, options.cluster)}
        launch = FunctionType(launch.__code__, names, launch.__name__, launch.__defaults__, launch.__closure__)
    launch(kernel, args, griddim, blockdim, stream, sharedmem)


def _in_clusters(cluster: Sequence[int], *, grid: Sequence[int], **more: Any) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=tuple(n // each for n, each in zip(grid, cluster, strict=True)), cluster=cluster, **more)
