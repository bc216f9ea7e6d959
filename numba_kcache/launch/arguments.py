"""Check the arguments of a launch against the compiled parameters, pack them, and hand them to the driver.

Promise     Nothing is queued before every argument fits its parameter; then the bytes are those of the C ABI.
            A launch may run in any number of threads, and inside itself: no buffer is shared while in use.
Method      After a few launches a kernel gets one straight-line function (`generated`): it recognises the
            common exact types, packs with one `struct` call into a buffer from a free list, and passes the
            driver the address of a pointer array made beforehand. Until then, and for whatever that function
            does not recognise, `Launcher._slow` does the same argument by argument (`slots`).
Not here    Loading, contexts and devices (launch.loader); shape and limits (launch.config).
Ground      cuLaunchKernel copies the parameters before it returns, and is called without the GIL. Generating
            costs as much as 60 interpreted launches, so a kernel that is launched once must not pay for it.
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
from .config import Dim3, LaunchShape
from .devices import check_interpreter, is_numba_used
from .pointers import PointerSlot, WordSlot
from .slots import Call, LaunchDevice, Slot, ValueSlot, struct_format
from .streams import stream_handle, stream_identity

Launch = Callable[..., None]
"""`kernel[grid, block]`: called with the kernel's arguments, returns when the launch is queued."""

BindGrid = Callable[[int, int, int], Launch]
"""Makes the launch of each grid, where block, shared memory and stream are fixed."""

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

    Args:
        bx, by, bz: Threads of a block.
        shared: Bytes of dynamic shared memory.
        stream: Taken by the driver: a stream, or the whole configuration.
        stream_id: Of the stream (`streams.stream_identity`).
        given: The stream as the user gave it.
    """

    def bind(gx: int, gy: int, gz: int) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            slow(arguments, -1, ((gx, gy, gz), (bx, by, bz), shared), stream, given)  # type: ignore[name-defined]  # noqa: F821
            return
            stream_id  # noqa: B018

        return launch

    return bind  # type: ignore[return-value]


class Launcher:
    """Launches one kernel on one device.

    Args:
        kernel: Its name, for messages.
        parameters: As the compiler laid them out.
        typed: Whether their types are known, or only their sizes.
        function: The driver's handle of the loaded function.
        driver: `cuda.bindings.driver`, or what offers its launch functions.
        device: That the function is loaded on.
        live: One element, true while `function` may be used; whoever unloads it flips it.
        strided: Whether arrays that do not lie in one piece are taken.
        attributes: Launch attributes of the driver's kind (cooperative, cluster); none makes it plain.
        relaunch: Tried where this module, or this device, is not the one to launch on.
        slots: One for each argument, where an argument fills several parameters; None for one each.
        debug_labels: Where each launch is to be waited for (`debugging`), the text before each argument in a message.
    """

    def __init__(
        self,
        kernel: str,
        parameters: Sequence[Parameter],
        *,
        typed: bool,
        function: Any,
        driver: Any,
        device: LaunchDevice,
        live: list[bool],
        strided: bool = False,
        attributes: Sequence[Any] = (),
        relaunch: Relaunch | None = None,
        slots: list[Slot] | None = None,
        debug_labels: Sequence[object] | None = None,
    ) -> None:
        self.kernel, self.parameters, self.function = kernel, tuple(parameters), function
        self.driver, self.device, self.live, self.attributes = driver, device, live, attributes
        self._typed, self._strided, self._relaunch, self._debug_labels = typed, strided, relaunch, debug_labels
        layout = struct.Struct(struct_format(self.parameters))
        self.pack, self._buffer_bytes = layout.pack_into, layout.size
        self.idle: list[tuple[Any, int]] = []  # buffers; a list, because pop and append are atomic
        self._slots = slots
        self._namespace: dict[str, Any] = {"slow": self._slow}
        self._over_grids = FunctionType(over_grids_stub.__code__, self._namespace)
        self._code: CodeType | None = None
        self._stubs: list[weakref.ref[FunctionType]] = []
        self._interpreted = 0

    def new_buffer(self) -> tuple[Any, int]:
        """Room for the parameters, and the address of the array of pointers to them that lies behind."""
        start = -(-self._buffer_bytes // 8) * 8
        memory = bytearray(start + 8 * len(self.parameters) + 1)  # never resized: its address stays
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pointers = [base + each.offset for each in self.parameters]
        struct.pack_into(f"={len(pointers)}Q", memory, start, *pointers)
        return memory, base + start

    @property
    def slots(self) -> list[Slot]:
        """One for each argument; made for the first launch."""
        if self._slots is None:
            self._slots = [self._slot_of(position, each) for position, each in enumerate(self.parameters, 1)]
        return self._slots

    def _slot_of(self, position: int, declared: Parameter) -> Slot:
        code = declared.code
        if code[0] == "*" or (code == "?" and declared.size == 8):
            kind = WordSlot if code == "?" else PointerSlot
            return kind(self.kernel, position, declared, self._typed, self.device, self._strided)
        return ValueSlot(self.kernel, position, declared, self._typed)

    def bind(self, shape: LaunchShape, stream: Any = 0) -> Launch:
        """Make the function that launches with this shape on this stream.

        Args:
            shape: Grid, block and shared memory, checked against the device.
            stream: As `stream_handle` takes it.

        Raises:
            LaunchConfigError: `stream` is no stream.
        """
        grid, block, shared = shape
        handle = stream_handle(stream)
        where = self.driver.CUstream(handle)
        if self.attributes:
            where = self._configuration(shape, where)
        launch: FunctionType = self._over_grids(*block, shared, where, stream_identity(handle), stream)(*grid)
        if launch.__code__ is not self._code:
            self._stubs.append(weakref.ref(launch))
            self._upgrade()  # another thread may have generated meanwhile
        return launch

    def over_grids(self, block: Dim3, shared_bytes: int, stream: Any) -> BindGrid | None:
        """Bind block, shared memory and stream for any grid that fits; None while, or where, a grid takes more."""
        if self._code is None or self.attributes or self.device.device_of is not None:
            return None
        handle = stream_handle(stream)
        bind: BindGrid = self._over_grids(
            *block, shared_bytes, self.driver.CUstream(handle), stream_identity(handle), stream
        )
        return bind

    def generated(self) -> bool:
        """Count one interpreted launch, and generate the code after enough of them; True once it is there."""
        self._interpreted += 1
        if self._interpreted <= GENERATE_AFTER or self._debug_labels is not None or sys.meta_path is None:
            return False  # at the end of the interpreter nothing is imported any more
        if self._code is None:
            self._generate()
            self._upgrade()
        return True

    def _upgrade(self) -> None:
        """Give the functions that were bound before the code was generated that code."""
        while self._code is not None and self._stubs:
            launch = self._stubs.pop()()
            if launch is not None:
                launch.__defaults__ = (MISSING,) * len(self.slots)
                launch.__code__ = self._code

    def launch_kernel(self, shape: LaunchShape, where: Any, address: int) -> int:
        """Hand a packed launch to the driver and return its code."""
        if self.attributes:
            answer = self.driver.cuLaunchKernelEx(where, self.function, address, 0)
        else:
            answer = self.driver.cuLaunchKernel(
                self.function, *shape.grid, *shape.block, shape.shared_bytes, where, address, 0
            )
        return int(answer[0])

    def _configuration(self, shape: LaunchShape, stream: Any) -> Any:
        """The configuration that the driver takes for a launch with attributes."""
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes, config.hStream = shape.shared_bytes, stream
        config.attrs, config.numAttrs = list(self.attributes), len(self.attributes)
        return config

    def _generate(self) -> None:
        from .generated import generate, inner_code

        driver, device = self.driver, self.device
        self._namespace.update(
            live=self.live,
            device=device.ordinal,
            context=device.numba_context,
            awaits_numba=device.awaits_numba,
            get_device=driver.cuCtxGetDevice,
            function=self.function,
            launch_kernel=driver.cuLaunchKernelEx if self.attributes else driver.cuLaunchKernel,
            idle=self.idle,
            new_buffer=self.new_buffer,
            pack=self.pack,
            missing=MISSING,
        )
        code = generate(
            self._namespace,
            self.slots,
            has_other_devices=device.device_of is not None,
            configured=bool(self.attributes),
        )
        self._over_grids = FunctionType(code, self._namespace)
        self._code = inner_code(inner_code(code))

    # -- the path that any launch can take -----------------------------------------------------------

    def _slow(
        self, arguments: tuple[Any, ...], reason: int, extents: tuple[Dim3, Dim3, int], config: Any, stream: Any
    ) -> None:
        """Launch with every check, or raise.

        Args:
            arguments: Of the launch.
            reason: `STUB`, 0 where the generated function met something unusual, or the driver's code.
            extents: Grid, block and shared memory.
            config: Taken by the driver: a stream, or the whole configuration.
            stream: The stream as the user gave it.
        """
        if reason == STUB:
            self.generated()
        else:
            arguments = tuple(each for each in arguments if each is not MISSING)
        call = Call(LaunchShape(*extents), config, stream, stream_handle(stream), arguments)
        if reason > 0:
            self._recover(call, reason)
            return
        if self.device.awaits_numba[0] and is_numba_used():
            self.device.watch_numba_context()
        if not self._is_here():
            self._recover(call, 0)
            return
        slots = self.slots
        if len(arguments) != len(slots):
            raise self._wrong_count(call)
        settled = [slot.settle(each, call) for slot, each in zip(slots, arguments)]  # noqa: B905
        values = [value for each in settled for value in each]
        if call.before:
            for prepare in call.before:
                prepare()
            values = [each() if callable(each) else each for each in values]
        if self._queue(call, values):
            for finish in call.after:
                finish()

    def _queue(self, call: Call, values: list[Any]) -> bool:
        """Pack and launch; False where it was launched elsewhere instead."""
        if self._debug_labels is None:
            return self._queue_unwatched(call, values)
        from .debugging import watched

        queued: bool = watched(
            self.driver, call.stream, lambda: self._queue_unwatched(call, values), kernel=self.kernel, shape=call.shape,
            parameters=self._debug_labels, arguments=call.arguments,
        )  # fmt: skip
        return queued  # False: the launcher that made it elsewhere has waited

    def _queue_unwatched(self, call: Call, values: list[Any]) -> bool:
        buffer = self._packed(values)
        code = self.launch_kernel(call.shape, call.config, buffer[1])
        self.idle.append(buffer)
        if code:
            self._recover(call, code)
        return not code

    def _packed(self, values: list[Any]) -> tuple[Any, int]:
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = self.new_buffer()
        self.pack(buffer[0], 0, *values)
        return buffer

    def _is_here(self) -> bool:
        if not self.live[0]:
            return False
        code, device = self.driver.cuCtxGetDevice()
        return not code and int(device) == self.device.ordinal

    def _recover(self, call: Call, code: int) -> None:
        """Launch elsewhere what the driver refused with this code, or 0 where the module is gone; or raise."""
        check_interpreter()
        from .failures import RECOVERABLE, launch_error

        if self._relaunch is not None and (code == 0 or code in RECOVERABLE):
            grid, block, shared = call.shape
            if self._relaunch((grid, block, call.stream, shared), call.arguments, code):
                return
        if code:
            raise launch_error(self.kernel, call.shape, code)
        raise LaunchError(
            f"cannot launch {self.kernel}",
            f"it is not loaded on the current device, or no more on device {self.device.ordinal}",
            "make a device current, and index the kernel anew: kernel[grid, block]",
        )

    def _wrong_count(self, call: Call) -> Exception:
        """The error for a wrong number of arguments."""
        wanted = ", ".join(map(str, self.parameters)) or "none"
        return ArgumentError(
            f"cannot launch {self.kernel} with {len(call.arguments)} arguments",
            f"it takes {len(self.parameters)}: {wanted}",
            "pass one argument for each parameter",
        )
