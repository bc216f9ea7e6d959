"""Arguments of a launch: checked against the compiler's word, packed, and handed to the driver.

Promise     Nothing is queued before every argument fits its parameter; then the bytes are those of the C ABI.
            A launch may run in any number of threads, and inside itself: no buffer is shared while in use.
Method      After a few launches a kernel gets one straight-line function (`generated`): it recognises the
            common exact types, packs with one `struct` call into a buffer from a free list, and passes the
            driver the address of a pointer array made beforehand. Until then, and for whatever that function
            does not recognise, `Launcher._launch` does the same argument by argument.
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
from typing import Any, NamedTuple

from ..errors import ArgumentError, LaunchError
from ..model.parameter import Parameter
from .config import Dim3, LaunchShape
from .devices import is_numba_used
from .failures import RECOVERABLE, launch_error
from .generated import (
    MISSING,
    STUB,
    fill,
    generate,
    inner_code,
    over_grids_stub,
)
from .places import Place
from .pointers import Call, Surroundings
from .slots import Slot, slot_of, struct_format
from .streams import same_order, stream_handle
from .usual import usual_values

Launch = Callable[..., None]
"""`kernel[grid, block]`: called with the kernel's arguments, returns when the launch is queued."""

BindGrid = Callable[[int, int, int], Launch]
"""Makes the launch of each grid, where block, shared memory and stream are fixed."""

Relaunch = Callable[[tuple[Any, ...], tuple[Any, ...], int], bool]
"""Called with the configuration, the arguments and the driver's code where a launch cannot be made here (0: the module
is gone, or its device is not the current one). True: it was made elsewhere. False: there is no way."""

GENERATE_AFTER = 8
"""Interpreted launches of a kernel after which its function is generated."""


class _Site(NamedTuple):
    """Where a launch goes: its shape, what the driver takes for it, and the stream as the user gave it."""

    shape: LaunchShape
    where: Any
    stream: Any


class Layout:
    """Where the parameters of a kernel lie, and the buffers that its launches pack them into. It needs no device.

    Args:
        parameters: As the compiler laid them out.
    """

    __slots__ = ("idle", "pack", "parameters", "size")

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        layout = struct.Struct(struct_format(self.parameters))
        self.pack, self.size = layout.pack_into, layout.size
        self.idle: list[tuple[Any, int]] = []  # buffers; a list, because pop and append are atomic

    def new_buffer(self) -> tuple[Any, int]:
        """Room for the parameters, and the address of the array of pointers to them that lies behind."""
        start = -(-self.size // 8) * 8
        memory = bytearray(start + 8 * len(self.parameters) + 1)  # never resized: its address stays
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pointers = [base + each.offset for each in self.parameters]
        struct.pack_into(f"={len(pointers)}Q", memory, start, *pointers)
        return memory, base + start


class Launcher:
    """Launches one kernel on one device.

    Args:
        kernel: Its name, for messages.
        parameters: As the compiler laid them out.
        typed: Whether their types are known, or only their sizes.
        function: The driver's handle of the loaded function.
        driver: `cuda.bindings.driver`, or what offers its launch functions.
        around: The process as the launch sees it.
        live: One element, true while `function` may be used; whoever unloads it flips it.
        strided: Whether arrays that do not lie in one piece are taken.
        attributes: Launch attributes of the driver's kind (cooperative, cluster); none makes it plain.
        relaunch: What to try where this module, or this device, is not the one to launch on.
        slots: One for each argument, where an argument fills several parameters; None for one each.
    """

    def __init__(
        self,
        kernel: str,
        parameters: Sequence[Parameter] | Layout,
        *,
        typed: bool,
        function: Any,
        driver: Any,
        around: Surroundings,
        live: list[bool],
        strided: bool = False,
        attributes: Sequence[Any] = (),
        relaunch: Relaunch | None = None,
        slots: list[Slot] | None = None,
    ) -> None:
        layout = parameters if isinstance(parameters, Layout) else Layout(parameters)
        self.kernel, self.parameters, self.function = kernel, layout.parameters, function
        self.driver, self.around, self.live, self.attributes = driver, around, live, attributes
        self._typed, self._strided = typed, strided
        self.pack, self.new_buffer, self.idle = layout.pack, layout.new_buffer, layout.idle
        self._slots = slots
        self._relaunch = relaunch
        self._namespace: dict[str, Any] = {"slow": self._slow}
        self._over_grids = FunctionType(over_grids_stub.__code__, self._namespace)
        self._code: CodeType | None = None
        self._stubs: list[weakref.ref[FunctionType]] = []
        self._interpreted = 0

    @property
    def slots(self) -> list[Slot]:
        """One for each argument; made when a launch needs more than the usual."""
        if self._slots is None:
            places = [Place(self.kernel, n, each, self._typed) for n, each in enumerate(self.parameters, 1)]
            self._slots = [slot_of(place, self.around, strided=self._strided) for place in places]
        return self._slots

    def bind(self, shape: LaunchShape, stream: Any = 0) -> Launch:
        """The function that launches with this shape on this stream.

        Args:
            shape: Grid, block and shared memory, checked against the device.
            stream: Whatever `stream_handle` takes.

        Raises:
            LaunchConfigError: `stream` is no stream.
        """
        grid, block, shared = shape
        handle = stream_handle(stream)
        where = self.driver.CUstream(handle)
        if self.attributes:
            where = self._configuration(shape, where)
        launch: FunctionType = self._over_grids(*block, shared, where, same_order(handle), stream)(*grid)
        if launch.__code__ is not self._code:
            self._stubs.append(weakref.ref(launch))
            self._upgrade()  # another thread may have generated meanwhile
        return launch

    def over_grids(self, block: Dim3, shared_bytes: int, stream: Any) -> BindGrid | None:
        """What binds any grid that fits at once; None while, or where, a grid takes more than that."""
        if self._code is None or self.attributes or self.around.device_of is not None:
            return None
        handle = stream_handle(stream)
        bind: BindGrid = self._over_grids(
            *block, shared_bytes, self.driver.CUstream(handle), same_order(handle), stream
        )
        return bind

    def generated(self) -> bool:
        """Count one interpreted launch; whether the generated code is there, which enough of them bring."""
        self._interpreted += 1
        if self._interpreted <= GENERATE_AFTER:
            return False
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
        """What the driver takes beside function and parameters where the launch has attributes."""
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes, config.hStream = shape.shared_bytes, stream
        config.attrs, config.numAttrs = list(self.attributes), len(self.attributes)
        return config

    def _generate(self) -> None:
        driver, around = self.driver, self.around
        inlines = [slot.inline() for slot in self.slots]
        fill(
            self._namespace,
            inlines,
            live=self.live,
            device=around.device,
            context=around.context,
            alone=around.alone,
            modules=sys.modules,
            get_device=driver.cuCtxGetDevice,
            function=self.function,
            launch_kernel=driver.cuLaunchKernelEx if self.attributes else driver.cuLaunchKernel,
            idle=self.idle,
            new_buffer=self.new_buffer,
            pack=self.pack,
        )
        code = generate(
            inlines,
            elsewhere=around.device_of is not None,
            configured=bool(self.attributes),
            alone=around.alone[0],
        )
        self._over_grids = FunctionType(code, self._namespace)
        self._code = inner_code(inner_code(code))

    # -- the path that any launch can take -----------------------------------------------------------

    def _slow(
        self, arguments: tuple[Any, ...], reason: int, extents: tuple[Dim3, Dim3, int], where: Any, stream: Any
    ) -> None:
        """Launch with every check, or raise.

        Args:
            arguments: Of the launch.
            reason: `STUB`, 0 where the generated function met something unusual, or the driver's code.
            extents: Grid, block and shared memory.
            where: What the driver takes: a stream, or the whole configuration.
            stream: The stream as the user gave it.
        """
        site = _Site(LaunchShape(*extents), where, stream)
        if reason == STUB:
            self.generated()
        else:
            arguments = tuple(each for each in arguments if each is not MISSING)
        if reason > 0:
            self._recover(site, arguments, reason)
            return
        if self.around.alone[0] and is_numba_used():
            self.around.meet_numba()
        if not self._is_here():
            self._recover(site, arguments, 0)
            return
        values = self._usual(arguments, stream) if reason == STUB else None
        if values is not None:
            try:
                buffer = self._packed(values)
            except (struct.error, OverflowError):  # refused, in words, below
                pass
            else:
                self._queue(site, arguments, buffer)
                return
        self._launch(site, arguments)

    def _launch(self, site: _Site, arguments: tuple[Any, ...]) -> None:
        """Settle every argument, whatever it is, and launch."""
        slots = self.slots
        if len(arguments) != len(slots):
            raise self._misfit(arguments)
        call = Call(site.stream, stream_handle(site.stream))
        settled = [slot.settle(each, call) for slot, each in zip(slots, arguments, strict=True)]
        for prepare in call.before:
            prepare()
        values = [value for slot, each in zip(slots, settled, strict=True) for value in slot.spread(each)]
        if self._queue(site, arguments, self._packed(values)):
            for finish in call.after:
                finish()

    def _usual(self, arguments: tuple[Any, ...], stream: Any) -> list[Any] | None:
        """The values to pack, where all arguments are of the most usual kinds; None to look closer."""
        return usual_values(self.parameters, arguments, stream) if self.around.device_of is None else None

    def _packed(self, values: list[Any]) -> tuple[Any, int]:
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = self.new_buffer()
        self.pack(buffer[0], 0, *values)
        return buffer

    def _queue(self, site: _Site, arguments: tuple[Any, ...], buffer: tuple[Any, int]) -> bool:
        """Launch what is packed; False where it was launched elsewhere instead."""
        code = self.launch_kernel(site.shape, site.where, buffer[1])
        self.idle.append(buffer)
        if code:
            self._recover(site, arguments, code)
        return not code

    def _is_here(self) -> bool:
        if not self.live[0]:
            return False
        code, device = self.driver.cuCtxGetDevice()
        return not code and int(device) == self.around.device

    def _recover(self, site: _Site, arguments: tuple[Any, ...], code: int) -> None:
        if self._relaunch is not None and (code == 0 or code in RECOVERABLE):
            grid, block, shared = site.shape
            if self._relaunch((grid, block, site.stream, shared), arguments, code):
                return
        if code:
            raise launch_error(self.kernel, site.shape, code)
        raise LaunchError(
            f"cannot launch {self.kernel}",
            f"it is not loaded on the current device, or no more on device {self.around.device}",
            "make a device current, and index the kernel anew: kernel[grid, block]",
        )

    def _misfit(self, arguments: tuple[Any, ...]) -> Exception:
        """What to raise where the number of arguments is wrong."""
        wanted = ", ".join(map(str, self.parameters)) or "none"
        return ArgumentError(
            f"cannot launch {self.kernel} with {len(arguments)} arguments",
            f"it takes {len(self.parameters)}: {wanted}",
            "pass one argument for each parameter",
        )
