"""Launch a kernel: check and convert its arguments, pack them, and call the driver.

Promise     Nothing is queued before every argument fits its parameter; the parameter buffer follows the C ABI.
            A launch without a stream goes to the stream of its arguments (`choose` in arguments); streams of other
            libraries' arguments wait for it, and it waits for them, on the device. A launch on a given stream waits for
            the streams of its arguments, and nothing waits for it.
            Launches may run in any number of threads, and one may interrupt another: no buffer is shared while in use.
Method      `bind` returns a function of the C module (`native`), which recognises arguments of the commonest exact
            types, packs them and launches. A launch with other arguments, and every launch where the C module is not
            built, goes to `_slow`, which checks the arguments one by one (`arguments`). `recognition` describes a
            kernel to the C module at its second launch, or once many kernels with equal parameters were launched, which
            share the description: importing `recognition` takes longer than a launch through `_slow`.
Not here    Loading, contexts and devices (loader, launch); shape and limits (`launch_shape` and `check_launch` of
            launch/__init__.py); the bound launches of a kernel (frontends).
Source      cuLaunchKernel copies the parameters before it returns, and is called without the GIL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from struct import Struct, pack, pack_into
from typing import Any

from ..errors import LaunchError, shorten
from ..model import Parameter
from . import NUMBA_CUDA_MODULE, Dim3, Launch, LaunchShape, address_of, check_interpreter, native, stream_handle
from .arguments import Call, Order, PointerSlot, Slot, ValueSlot, WordSlot, choose, orders_of, others, struct_format
from .loader import LoadedKernel

_HANDLE = Struct("=Q")

_LAYOUTS_LIMIT = 256

_DESCRIBED_AFTER = 32
"""Number of kernels with equal parameters whose first launches, all through `_slow`, take as long as describing one of
them to the C module."""

_MANY = 100
"""Number of kernels of a module that makes it likely that more than `_DESCRIBED_AFTER` of them are launched."""

_new = tuple.__new__  # the constructor of a named tuple takes three times as long

Relaunch = Callable[[tuple[Any, ...], tuple[Any, ...], int], bool]
"""Called where this launcher cannot launch, with the configuration, the arguments and the driver's error code (0: the
module was unloaded, or its device is not current). Returns True if another launcher launched, False if none can."""


def _functions_of(module: Any) -> bytes:
    """Pack what the plans (native.c) of all kernels of a module share: addresses of driver functions, the device."""
    find = module.driver.addresses
    get_device = find["cuCtxGetDevice"] if module.device_of else 0
    return pack(
        "=5Q2i", find["cuLaunchKernel"], find["cuLaunchKernelEx"], get_device, find["cuStreamIsCapturing"],
        find["cuPointerGetAttribute"], module.device.ordinal, not module.device_of,
    )  # fmt: skip


class Layout:
    """The layout of a parameter buffer, and the C module's plan for it; shared by kernels with equal parameters.

    Args:
        parameters: As the compiler reported them, or split into smaller ones at the same bytes.

    Attributes:
        offsets: Offsets of the parameters.
        idle: Buffers that are not in use; a list, because pop and append are atomic.
        plan: The C module's plan of the first of these kernels that was described to it; None until then. The slots of
            later kernels are copied from it.
        launched: Number of launches through `_slow`.
    """

    __slots__ = ("idle", "launched", "offsets", "pack", "plan", "size_bytes")

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        layout = Struct(struct_format(parameters))
        self.pack, self.size_bytes, self.offsets = layout.pack_into, layout.size, [each.offset for each in parameters]
        self.idle: list[tuple[Any, int]] = []
        self.plan: Any = None
        self.launched = 0

    def new_buffer(self) -> tuple[Any, int]:
        """Make a buffer with the parameters and the array of pointers to them; return it with the array's address."""
        start = -(-self.size_bytes // 8) * 8
        memory = bytearray(start + 8 * len(self.offsets) + 1)  # never resized: its address must not change
        base = address_of(memory)
        pack_into(f"={len(self.offsets)}Q", memory, start, *[base + each for each in self.offsets])
        return memory, base + start


class Launcher:
    """Launches one kernel on one device.

    Attributes:
        names: Names of the arguments, and defaults of the last of them; None if each has the name of its parameter.
        shares_layout: Whether kernels with equal parameters accept equal arguments: if each argument is one parameter.
        waits_on_host: Whether the host waits for the streams of array interfaces, as it does in numba-cuda-mlir.
        plan: The kernel's plan in the C module, and what else its launch functions share; None without that module.

    Args:
        loaded: The kernel on its device.
        name: Its name in messages.
        parameters: As the compiler reported them, or split into smaller ones at the same bytes.
        strided: Whether arrays that are not contiguous are accepted.
        attributes: Concatenated launch attributes as the driver takes them; empty for a plain launch.
        relaunch: Called where this launcher cannot launch; see `Relaunch`.
        slots: A slot for each argument, where an argument takes several parameters; None for one parameter each.
        debug_labels: Where each launch is waited for (`debugging`), the label of each argument in a message; else None.
    """

    names: tuple[Sequence[str], Sequence[Any]] | None = None
    shares_layout, waits_on_host = True, False

    def __init__(
        self,
        loaded: LoadedKernel,
        name: str,
        parameters: Sequence[Parameter],
        *,
        strided: bool = False,
        attributes: bytes = b"",
        relaunch: Relaunch | None = None,
        slots: list[Slot] | None = None,
        debug_labels: Sequence[object] | None = None,
    ) -> None:
        self.name, self.parameters, self.strided, self.typed = name, tuple(parameters), strided, loaded.entry.typed
        self.function, self.module, self.live = loaded.function, loaded.module, loaded.live
        self.driver, self._loaded = loaded.module.driver, loaded
        self.attributes, self._relaunch, self._debug_labels = attributes, relaunch, debug_labels
        self.slots, layouts = slots, loaded.module.layouts
        for slot in slots or ():
            slot.launcher = self
        layout = layouts.get((self.parameters, strided)) if self.shares_layout else None
        if layout is None:
            layout = Layout(self.parameters)
            if loaded.module.count >= _MANY:
                layout.launched = _DESCRIBED_AFTER - 1  # the second one is described
            if len(layouts) >= _LAYOUTS_LIMIT:  # a program may make kernels without end
                layouts.clear()
            if self.shares_layout:
                layouts[self.parameters, strided] = layout
        self.layout, self.pack, self.idle = layout, layout.pack, layout.idle
        self.plan: Any = None
        if debug_labels is None:
            module = loaded.module
            functions = module.functions = module.functions or _functions_of(module)
            self.plan = (
                native.plan(_HANDLE.pack(self.function) + functions, layout.plan),
                self._slow,
                self._by_name,
                self.live,
                module.awaits_numba,
                module.stays,
                module.numba_context,
                module,
            )
        self._is_described = self._is_launched = layout.plan is not None

    def make_slots(self) -> list[Slot]:
        """Make a slot for each parameter, at the first launch."""
        slots: list[Slot] = []
        for position, declared in enumerate(self.parameters, 1):
            code = declared.code
            kind = PointerSlot if code[0] == "*" else WordSlot if code == "?" and declared.size == 8 else ValueSlot
            slots.append(kind(self, position, declared))
        self.slots = slots
        return slots

    def bind(self, shape: LaunchShape, stream: Any = None) -> Launch:
        """Make the function that launches with this shape on this stream.

        Args:
            shape: Grid, block and shared memory.
            stream: As `stream_handle` takes it; None and 0 as in `Call.stream`.

        Raises:
            LaunchConfigError: The shape exceeds the limits of the kernel and its device, or `stream` is not a stream.
        """
        self._loaded.prepare(shape, self.name)
        handle = 0 if stream is None else stream_handle(stream)
        if handle > 1:
            self.module.uses(handle, stream)
        if self.plan is not None and not self.attributes:
            launch: Launch = native.bind(self.plan, shape, handle, stream, None)
            return launch
        return self.over_grids(shape.block, shape.shared_bytes, handle, stream, *shape.grid)

    def over_grids(self, block: Dim3, shared_bytes: int, handle: int, stream: Any, x: int, y: int, z: int) -> Launch:
        """Make the function that launches a grid of x, y and z blocks; the shape was checked before."""
        shape = (x, y, z), block, shared_bytes
        if self.plan is None:
            return lambda *arguments, **named: (
                self._by_name((*arguments, *named.values()), 0, shape, handle, stream, tuple(named))
                if named
                else self._slow(arguments, 0, shape, handle, stream)
            )
        config = self._configuration(shape, handle) if self.attributes else None
        launch: Launch = native.bind(self.plan, shape, handle, stream, config)
        return launch

    def _configuration(self, shape: tuple[Dim3, Dim3, int], handle: int) -> bytes:
        """The CUlaunchConfig of a launch with attributes."""
        count = len(self.attributes) // 72
        return pack("=7I4xQQI4x", *shape[0], *shape[1], shape[2], handle, address_of(self.attributes), count)

    # -- the interpreted path, for launches of any kind ----------------------------------------------

    def _by_name(self, arguments: tuple[Any, ...], *launch: Any) -> None:
        """Launch with named arguments: their values end `arguments`, their names end `launch`; see `_slow`."""
        check_interpreter()
        from .keywords import in_order

        _code, (grid, block, shared_bytes), handle, stream, names = launch
        known, defaults = self.names or ([each.name for each in self.parameters], ())
        labels = known if self.names else self.parameters
        ordered = in_order(self.name, arguments, names, known, labels=labels, defaults=defaults)
        self.over_grids(block, shared_bytes, handle, stream, *grid)(*ordered)

    def _slow(
        self,
        arguments: tuple[Any, ...],
        code: int,
        shape: tuple[Dim3, Dim3, int],
        handle: int,
        stream: Any,
    ) -> None:
        """Launch with every check, or raise.

        Args:
            arguments: Arguments of the launch.
            code: The driver's error code, if it refused the launch; 0 if it was not called yet.
            shape: Grid, block and shared memory.
            handle: Handle of the stream.
            stream: As `Call.stream`.
        """
        module = self.module
        if code:
            self._recover((*shape, stream), arguments, code)
            return
        if module.awaits_numba[0] and NUMBA_CUDA_MODULE in sys.modules:
            module.watch_numba_context()
        is_here = module.device_of is None or self._is_current()  # with one device, the launch checks it
        if not is_here or not self.live[0]:
            self._recover((*shape, stream), arguments, 0)
            return
        slots, orders = self.slots or self.make_slots(), orders_of(arguments, module.device.ordinal)
        if self.waits_on_host:
            orders = self.left_after_waits(orders, handle)
        if stream is None and orders:
            handle = choose(orders, module.is_capturing)
        call: Call = _new(Call, (shape, handle, stream, arguments, [], [], []))
        values: list[Any] = []
        try:
            if len(arguments) != len(slots):
                raise self._wrong_count(call)
            for slot, argument in zip(slots, arguments):  # noqa: B905
                value = slot.settle(argument, 0, call)
                if type(value) is tuple:
                    values += value
                else:
                    values.append(value)
        except Exception as error:
            shorten(error)
            raise
        if stream is None and handle:
            module.uses(handle, None, arguments)
            if self.plan is not None:
                native.used(self.plan[0], handle)
        if self.plan is not None:
            layout = self.layout
            if (self._is_launched or layout.launched >= _DESCRIBED_AFTER) and sys.meta_path is not None:
                from .recognition import recognise

                recognise(self.plan[0], self, arguments, is_first=not self._is_described)
                self._is_described, layout.plan = True, self.plan[0]
            self._is_launched, layout.launched = True, layout.launched + 1
        further = others(orders, handle, stream, module.is_capturing) if orders else []
        if call.before or further:
            if not self._is_current():
                self._recover((*shape, stream), arguments, 0)
                return
            for each in further:
                module.waits.enqueue_wait(each, handle)
            for prepare in call.before:
                prepare()
            values = [each() if callable(each) else each for each in values]
        if self._queue(call, values) if self._debug_labels is None else self._queue_watched(call, values):
            for finish in call.after:
                finish()
            if further and (stream is None or (type(stream) is int and not stream)):
                module.waits.follow(handle, further)
            if call.borrowed:
                module.hold_for(handle, call.borrowed)

    def left_after_waits(self, orders: list[Order], handle: int) -> list[Order]:
        """Wait on the host for the streams of array interfaces, and return the streams that are left; `handle` is that
        of the stream given to the launch, or 0."""
        raise NotImplementedError

    def _is_current(self) -> bool:
        """Check whether the module's device is the current one."""
        status, device = self.driver.cuCtxGetDevice()
        return not status and bool(device == self.module.device.ordinal)

    def _queue(self, call: Call, values: list[Any]) -> bool:
        """Pack the values and launch; False if another launcher launched instead."""
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = self.layout.new_buffer()
        self.pack(buffer[0], 0, *values)
        if call.handle and not self.module.stays[0] and self.driver.cuStreamIsCapturing(call.handle) != (0, 0):
            self.module.stays[0] = True  # a captured graph may launch the kernel at any time
        grid, block, shared = call.shape
        if self.attributes:
            config = self._configuration(call.shape, call.handle)
            answer = self.driver.cuLaunchKernelEx(config, self.function, buffer[1], 0)
        else:
            answer = self.driver.cuLaunchKernel(self.function, *grid, *block, shared, call.handle, buffer[1], 0)
        self.idle.append(buffer)
        if answer[0]:
            self._recover((*call.shape, call.stream), call.arguments, int(answer[0]))
            return False
        return True

    def _queue_watched(self, call: Call, values: list[Any]) -> bool:
        from .debugging import watched

        queued: bool = watched(
            self.driver, call.handle, lambda: self._queue(call, values), kernel=self.name, shape=call.shape,
            parameters=self._debug_labels or (), arguments=call.arguments,
        )  # fmt: skip
        return queued  # False: another launcher launched, and waited

    def _recover(self, config: tuple[Dim3, Dim3, int, Any], arguments: tuple[Any, ...], code: int) -> None:
        """Launch by another launcher after the driver refused with this code (0: see `Relaunch`), or raise.

        Args:
            config: Grid, block, shared memory and stream.
            arguments: Arguments of the launch.
            code: The driver's error code.
        """
        check_interpreter()
        from .failures import RECOVERABLE, launch_error

        grid, block, shared, stream = config
        relaunch = self._relaunch if code == 0 or code in RECOVERABLE else None
        if relaunch is not None and relaunch((grid, block, stream, shared), arguments, code):
            return
        if code:
            raise launch_error(self.name, (grid, block, shared), code)
        raise LaunchError(
            f"cannot launch {self.name}",
            f"it is not loaded on the current device, or no longer on device {self.module.device.ordinal}",
            "make a device current, and index the kernel again: kernel[grid, block]",
        )

    def _wrong_count(self, call: Call) -> Exception:
        """Make the error for a wrong number of arguments."""
        from .keywords import wrong_count

        return wrong_count(self.name, len(call.arguments), self.parameters)
