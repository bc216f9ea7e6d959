"""Launch a kernel: its arguments are settled, packed, and handed to the driver.

Promise     Nothing is queued before every argument fits its parameter; then the bytes are those of the C ABI.
            A launch may run in any number of threads, and inside itself: no buffer is shared while in use.
Method      After a few launches a kernel gets one straight-line function (`generated`): it recognises the
            common exact types, packs with one `struct` call into a buffer from a free list, and passes the
            driver the address of a pointer array made beforehand. Until then, and for whatever that function
            does not recognise, `Launcher._slow` does the same argument by argument (`arguments`).
Not here    Loading, contexts and devices (loader, devices); shape and limits (`launch_shape` and `check_launch` of
            launch/__init__.py); which launches a kernel keeps bound (frontends.launches).
Ground      cuLaunchKernel copies the parameters before it returns, and is called without the GIL. Generating
            costs as much as 60 interpreted launches, so a kernel that is launched once must not pay for it.
            CPython: `function.__code__` may be set where the numbers of free variables agree.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from ..errors import ArgumentError, LaunchError
from ..model.artifact import Parameter
from ..store import IMPORTS, finish_imports
from . import BindGrid, Dim3, Launch, LaunchShape
from .arguments import Call, PointerSlot, Slot, ValueSlot, WordSlot, struct_format
from .devices import NUMBA_DEVICES, check_interpreter, stream_handle, stream_identity
from .loader import LoadedKernel

Relaunch = Callable[[tuple[Any, ...], tuple[Any, ...], int], bool]
"""Called with the configuration, the arguments and the driver's code where a launch cannot be made here (0: the module
is gone, or its device is not the current one). True: it was made elsewhere. False: there is no way."""

GENERATE_AFTER = 8
"""Interpreted launches of a kernel after which its function is generated."""

MISSING = object()
"""Stands in the place of an argument that was not given."""

STUB = -1
"""The reason for which the stub hands over; the generated function says 0, or the driver's code."""


def over_grids_stub(
    bx: int, by: int, bz: int, shared: int, stream: Any, stream_id: int, given: Any
) -> Callable[[int, int, int], FunctionType]:
    """Make the function that makes a launch for each grid; the launch hands over, until it gets the generated code.

    Never called as it is: `Launcher` makes a function of its code in a namespace that has `slow`, its own `_slow`, and
    no other name; so -1 stands for `STUB`. The generated code that takes its place has the same cells.

    Args:
        bx, by, bz: Threads of a block.
        shared: Bytes of dynamic shared memory.
        stream: Taken by the driver: a stream, or the whole configuration.
        stream_id: Of the stream (`devices.stream_identity`).
        given: The stream as the user gave it.
    """

    def bind(gx: int, gy: int, gz: int) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            slow(arguments, -1, ((gx, gy, gz), (bx, by, bz), shared), stream, stream_id, given)  # type: ignore[name-defined]  # noqa: F821

        return launch

    return bind  # type: ignore[return-value]


class Launcher:
    """Launches one kernel on one device.

    Args:
        loaded: The kernel on its device.
        name: For messages.
        parameters: As the compiler laid them out, or as finer ones that fill the same bytes.
        strided: Whether arrays that do not lie in one piece are taken.
        attributes: Launch attributes of the driver's kind (cooperative, cluster); none makes it plain.
        relaunch: Tried where this module, or this device, is not the one to launch on.
        slots: One for each argument, where an argument fills several parameters; None for one each.
        debug_labels: Where each launch is to be waited for (`debugging`), the text before each argument in a message.

    Attributes:
        binds_any_grid: Whether a launch may differ from the one before in its grid alone (`over_grids`): once its code
            is generated, unless the device or a launch attribute depends on more.
    """

    def __init__(
        self,
        loaded: LoadedKernel,
        name: str,
        parameters: Sequence[Parameter],
        *,
        strided: bool = False,
        attributes: Sequence[Any] = (),
        relaunch: Relaunch | None = None,
        slots: list[Slot] | None = None,
        debug_labels: Sequence[object] | None = None,
    ) -> None:
        self.name, self.parameters, self.strided, self.typed = name, tuple(parameters), strided, loaded.entry.typed
        self.function, self.module, self.live = loaded.function, loaded.module, loaded.live
        self.driver, self._prepare = loaded.module.driver, loaded.prepare
        self.attributes, self._relaunch, self._debug_labels = attributes, relaunch, debug_labels
        layout = struct.Struct(struct_format(self.parameters))
        self.pack, self._buffer_bytes = layout.pack_into, layout.size
        self.idle: list[tuple[Any, int]] = []  # buffers; a list, because pop and append are atomic
        self._slots = slots
        self._namespace: dict[str, Any] = {"slow": self._slow}
        self._over_grids = FunctionType(over_grids_stub.__code__, self._namespace)
        self._code: CodeType | None = None
        self._stubs: list[weakref.ref[FunctionType]] = []
        self._interpreted = 0
        self.binds_any_grid = False

    def new_buffer(self) -> tuple[Any, int]:
        """Room for the parameters, and the address of the array of pointers to them that lies behind."""
        start = -(-self._buffer_bytes // 8) * 8
        memory = bytearray(start + 8 * len(self.parameters) + 1)  # never resized: its address stays
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pointers = [base + each.offset for each in self.parameters]
        struct.pack_into(f"={len(pointers)}Q", memory, start, *pointers)
        return memory, base + start

    def _make_slots(self) -> list[Slot]:
        """Make a slot for each parameter, at the first launch."""
        slots: list[Slot] = []
        for position, declared in enumerate(self.parameters, 1):
            code = declared.code
            kind = PointerSlot if code[0] == "*" else WordSlot if code == "?" and declared.size == 8 else ValueSlot
            slots.append(kind(self, position, declared))
        self._slots = slots
        return slots

    def bind(self, shape: LaunchShape, stream: Any = 0) -> Launch:
        """Make the function that launches with this shape on this stream.

        Args:
            shape: Grid, block and shared memory.
            stream: As `stream_handle` takes it.

        Raises:
            LaunchConfigError: The shape is beyond the limits of the kernel and its device, or `stream` is no stream.
        """
        self._prepare(shape, self.name)
        grid, block, shared = shape
        handle = stream_id = 0
        if type(stream) is not int or stream:
            handle = stream_handle(stream)
            stream_id = stream_identity(handle)
        config = self.driver.CUstream(handle)
        if self.attributes:
            config = self._configuration(shape, config)
        launch: FunctionType = self._over_grids(*block, shared, config, stream_id, stream)(*grid)
        if launch.__code__ is not self._code:
            self._stubs.append(weakref.ref(launch))
            if self._code is not None:
                self._upgrade()  # another thread has generated meanwhile
        return launch

    def over_grids(self, block: Dim3, shared_bytes: int, stream: Any) -> BindGrid:
        """Bind block, shared memory and stream for any grid that fits, once the launcher `binds_any_grid`."""
        handle = stream_handle(stream)
        bind: BindGrid = self._over_grids(
            *block, shared_bytes, self.driver.CUstream(handle), stream_identity(handle), stream
        )
        return bind

    def generate(self) -> None:
        """Generate the function of the kernel, where it may have one, and give it to what was bound before."""
        if self._debug_labels is not None or sys.meta_path is None:
            return  # at the end of the interpreter nothing is imported any more
        if self._code is None:
            from .generated import generate, inner_code

            code = generate(self, self._namespace, self._slots or self._make_slots())
            self._over_grids = FunctionType(code, self._namespace)
            self._code = inner_code(inner_code(code))
            self.binds_any_grid = not self.attributes and self.module.device_of is None
        self._upgrade()

    def _upgrade(self) -> None:
        """Give the functions that were bound before the code was generated that code."""
        while self._code is not None and self._stubs:
            launch = self._stubs.pop()()
            if launch is not None:
                launch.__defaults__ = (MISSING,) * len(self._slots or ())
                launch.__code__ = self._code

    def _configuration(self, shape: LaunchShape, stream: Any) -> Any:
        """The configuration that the driver takes for a launch with attributes."""
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes, config.hStream = shape.shared_bytes, stream
        config.attrs, config.numAttrs = list(self.attributes), len(self.attributes)
        return config

    # -- the path that any launch can take -----------------------------------------------------------

    def _slow(
        self,
        arguments: tuple[Any, ...],
        reason: int,
        shape: tuple[Dim3, Dim3, int],
        config: Any,
        stream_id: int,
        stream: Any,
    ) -> None:
        """Launch with every check, or raise.

        Args:
            arguments: Of the launch.
            reason: `STUB`, 0 where the generated function met something unusual, or the driver's code.
            shape: Grid, block and shared memory.
            config: Taken by the driver: a stream, or the whole configuration.
            stream_id: Of the stream (`devices.stream_identity`).
            stream: The stream as the user gave it.
        """
        if IMPORTS:
            finish_imports()
        if reason == STUB:
            self._interpreted += 1
            if self._interpreted > GENERATE_AFTER:
                self.generate()
        else:
            arguments = tuple(each for each in arguments if each is not MISSING)
        call, module = Call(shape, config, stream, arguments, [], [], []), self.module
        if reason > 0:
            self._recover(call, reason)
            return
        if module.awaits_numba[0] and NUMBA_DEVICES in sys.modules:
            module.watch_numba_context()
        status, device = self.driver.cuCtxGetDevice()
        if status or int(device) != module.device.ordinal or not self.live[0]:
            self._recover(call, 0)
            return
        slots = self._slots or self._make_slots()
        if len(arguments) != len(slots):
            raise self._wrong_count(call)
        values: list[Any] = []
        for slot, argument in zip(slots, arguments):  # noqa: B905
            value = slot.settle(argument, stream_id, call)
            if type(value) is tuple:
                values += value
            else:
                values.append(value)
        if call.before:
            for prepare in call.before:
                prepare()
            values = [each() if callable(each) else each for each in values]
        if self._queue(call, values) if self._debug_labels is None else self._queue_watched(call, values):
            for finish in call.after:
                finish()

    def _queue(self, call: Call, values: list[Any]) -> bool:
        """Pack and launch; False where it was launched elsewhere instead."""
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = self.new_buffer()
        self.pack(buffer[0], 0, *values)
        if self.attributes:
            answer = self.driver.cuLaunchKernelEx(call.config, self.function, buffer[1], 0)
        else:
            grid, block, shared = call.shape
            answer = self.driver.cuLaunchKernel(self.function, *grid, *block, shared, call.config, buffer[1], 0)
        self.idle.append(buffer)
        if answer[0]:
            self._recover(call, int(answer[0]))
            return False
        return True

    def _queue_watched(self, call: Call, values: list[Any]) -> bool:
        from .debugging import watched

        queued: bool = watched(
            self.driver, call.stream, lambda: self._queue(call, values), kernel=self.name, shape=call.shape,
            parameters=self._debug_labels or (), arguments=call.arguments,
        )  # fmt: skip
        return queued  # False: the launcher that made it elsewhere has waited

    def _recover(self, call: Call, code: int) -> None:
        """Launch elsewhere what the driver refused with this code, or 0 where the module is gone; or raise."""
        check_interpreter()
        from .failures import RECOVERABLE, launch_error

        if self._relaunch is not None and (code == 0 or code in RECOVERABLE):
            grid, block, shared = call.shape
            if self._relaunch((grid, block, call.stream, shared), call.arguments, code):
                return
        if code:
            raise launch_error(self.name, call.shape, code)
        raise LaunchError(
            f"cannot launch {self.name}",
            f"it is not loaded on the current device, or no more on device {self.module.device.ordinal}",
            "make a device current, and index the kernel anew: kernel[grid, block]",
        )

    def _wrong_count(self, call: Call) -> Exception:
        """The error for a wrong number of arguments."""
        wanted = ", ".join(map(str, self.parameters)) or "none"
        return ArgumentError(
            f"cannot launch {self.name} with {len(call.arguments)} arguments",
            f"it takes {len(self.parameters)}: {wanted}",
            "pass one argument for each parameter",
        )
