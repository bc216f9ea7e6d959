"""Objects in place of a Numba's `cuda`, with which a program defines kernels and device functions without importing it.

Promise     Names of device code are objects of this module until Numba is loaded; any other name imports Numba, and is
            its own. What a program sets on a stand-in is set on Numba's module, except names in `HOST`. Whatever the
            program does, its own globals keep the objects that it put there.
Method      `HOMES` is the one table: a row for each Numba. Once that Numba is loaded, an attribute of a stand-in is
            the real one.
Not here    Look-ups without Numba (light), what they know of it (facts), compiles with the real objects (copies).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from ...launch import bindings, current_device, done
from ...model import NamedTuple
from .definition import OWN_OPTIONS
from .value import real_of

_DEVICE = """
    activemask all_sync any_sync atomic ballot_sync blockDim blockIdx brev cbrt clz const eq_sync ffs fma grid gridDim
    grid_group gridsize laneid lanemask_lt ldca ldcg ldcs ldcv ldlu literal_unroll local match_all_sync match_any_sync
    nanosleep popc selp shared shfl_down_sync shfl_sync shfl_up_sync shfl_xor_sync stcg stcs stwb stwt syncthreads
    syncthreads_and syncthreads_count syncthreads_or syncwarp threadIdx threadfence threadfence_block
    threadfence_system warpsize
    b1 bfloat16 bool_ boolean byte c16 c8 char complex128 complex64 dim3 double f4 f8 float32 float64 i1 i2 i4 i8 int16
    int32 int64 int8 int_ intc intp long_ longlong none short size_t ssize_t u1 u2 u4 u8 uchar uint uint16 uint32 uint64
    uint8 uintc uintp ulong ulonglong ushort void
"""
_VECTORS = "char short int long longlong uchar ushort uint ulong ulonglong float double"
_SIZED = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"

DEVICE = frozenset((
    *_DEVICE.split(),
    *(f"{name}{count}" for name in _VECTORS.split() for count in "1234"),
    *(f"{name}x{count}" for name in _SIZED.split() for count in "1234"),
))  # fmt: skip
"""Names of device code in the `cuda` of both Numbas: functions, types, constructors of vectors."""

_MODULES = "bf16 cg fp16 fp8 libdevice random types"


class Home(NamedTuple):
    """The stand-in of one Numba.

    Args:
        kind: The kind of its kernels.
        cuda: The module that it stands for.
        target: The module and name of its target, which has the typing context.
        marks: Top-level modules by which this Numba is recognised as loaded, or as one that a program may have changed.
        modules: Modules of device code in it; all their names are device code's.
        names: The names of its device code.
    """

    kind: str
    cuda: str
    target: tuple[str, str]
    marks: tuple[str, ...]
    modules: frozenset[str]
    names: frozenset[str]

    def is_loaded(self) -> bool:
        """Check whether any part of this Numba is loaded, by whomever."""
        return any(each in sys.modules for each in self.marks)


HOMES = {
    "numba": Home(
        "numba", "numba.cuda", ("numba.cuda.descriptor", "cuda_target"), ("numba", "numba_cuda", "llvmlite"),
        frozenset(_MODULES.split()), DEVICE,
    ),
    "mlir": Home(
        "mlir", "numba_cuda_mlir.cuda", ("numba_cuda_mlir.descriptor", "mlir_target"), ("numba_cuda_mlir",),
        frozenset(f"{_MODULES} const local shared vector vector_types".split()),
        DEVICE | {"inline_ptx", "local_array", "shared_array"},
    ),
}  # fmt: skip

modules: dict[str, str] = {}
"""The name of each stand-in that the program has imported, by kind."""

reasons: dict[str, str] = {}
"""Why this package imported a Numba, by kind."""


def real(home: Home, why: str) -> Any:
    """The module that a stand-in stands for; imported if need be, and what it shows of Numba is then recorded.

    Args:
        home: The stand-in's row.
        why: The reason, for `explain`.
    """
    if home.is_loaded():
        return import_module(home.cuda)
    module = import_module(home.cuda)
    reasons.setdefault(home.kind, why)
    from .learning import learn

    learn(home)
    return module


class Standing:
    """The base of stand-ins: a Numba that finds one in code that was not copied asks for its type."""

    _home: Home

    def _stands_for(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and its tools probe such names on any object
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        return getattr(self._stands_for(), name)

    @property
    def _numba_type_(self) -> Any:
        """The type of the object that it stands for."""
        module, name = self._home.target
        if module not in sys.modules:
            raise AttributeError("Numba is not loaded")
        return getattr(sys.modules[module], name).typing_context.resolve_value_type(self._stands_for())


class StandIn(Standing):
    """An object of a Numba that only device code uses; by any use on the host it is Numba's own."""

    def __init__(self, home: Home, path: str) -> None:
        self._home, self._path = home, path
        self.__module__ = modules[home.kind]

    def _stands_for(self) -> Any:
        return functools.reduce(getattr, self._path.split("."), real(self._home, f"the program uses cuda.{self._path}"))

    def __getitem__(self, item: Any) -> Any:
        return self._stands_for()[item]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._stands_for()(*args, **named)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self._stands_for() == real_of(other))

    def __hash__(self) -> int:
        return hash(self._stands_for())

    def __repr__(self) -> str:
        return f"<stand-in for {self._home.cuda}.{self._path}>"

    def __reduce__(self) -> Any:
        return _made, (self._home.kind, self._path)


class StandInModule(Standing, ModuleType):
    """A module of a Numba until that is loaded: its `cuda`, or a module in that."""

    _path: str

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            home, is_top = self._home, not self._path
            if is_top and (found := HOST.get(name)) is not None:
                return functools.partial(found, home)
            if not home.is_loaded() and (not is_top or name in home.names or name in home.modules):
                return _made(home.kind, f"{self._path}.{name}".lstrip("."))
        return super().__getattr__(name)

    def _stands_for(self) -> Any:
        path = self._path
        found = real(self._home, f"the program uses {self.__name__} on the host")
        return functools.reduce(getattr, path.split("."), found) if path else found

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in HOST:
            super().__setattr__(name, value)
        else:
            setattr(self._stands_for(), name, real_of(value))

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name) if name in vars(self) else delattr(self._stands_for(), name)

    def __dir__(self) -> list[str]:
        return dir(self._stands_for())


@functools.cache
def _made(kind: str, path: str) -> Any:
    """The one stand-in of a dotted name."""
    home = HOMES[kind]
    return sys.modules[f"{modules[kind]}.{path}"] if path in home.modules else StandIn(home, path)


def copy_of(function: FunctionType) -> FunctionType:
    """The copy of a function that has Numba's objects in place of stand-ins."""
    from .copies import copied

    return copied(function)


# -- decorators ------------------------------------------------------------------------------------------------------


class DeviceFunction(Standing):
    """A device function under a stand-in's `jit`, of which Numba makes nothing yet.

    Args:
        home: The stand-in's row.
        function: The Python function.
        given: The options of the decorator.
        signatures: The decorator's signatures, if any.
    """

    def __init__(self, home: Home, function: FunctionType, given: dict[str, Any], signatures: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self._home, self._given, self._signatures = function, home, given, signatures
        self._defaults = [*map(id, function.__defaults__ or ())]
        self._dispatcher: Any = None

    def _stands_for(self) -> Any:
        jit = real(self._home, f"{self.__qualname__} is used on the host").jit
        function = copy_of(self.py_func)
        if self._dispatcher is None:  # a function that calls itself has made it meanwhile
            self._dispatcher = jit(self._signatures, device=True, **self._given)(function)
        return self._dispatcher

    def __call__(self, *args: Any) -> Any:
        return self._stands_for()(*args)

    def __reduce__(self) -> Any:
        return self.__qualname__


def jit(make_kernel: Callable[..., Any], home: Home, thing: Any = None, device: bool = False, **given: Any) -> Any:
    """Make a cached kernel or a device function; the options are those of Numba's `cuda.jit`.

    A kernel with signatures is Numba's, which compiles them at once, takes no others, and casts arguments to them.
    """
    signatures = None if type(thing) is FunctionType else thing
    given = {name: value for name, value in given.items() if name != "cache" or type(value) is not bool}

    def decorate(function: FunctionType) -> Any:
        if device:
            return DeviceFunction(home, function, given, signatures)
        if signatures is None:
            return make_kernel(function, kind=home.kind, **given)
        options = dict(given)
        own = {name: options.pop(name) for name in given.keys() & OWN_OPTIONS}
        numba = real(home, f"{function.__qualname__} has signatures")
        return make_kernel(numba.jit(signatures, **options)(copy_of(function)), kind=home.kind, **own)

    return decorate if thing is signatures else decorate(thing)


def synchronize(_home: Home) -> None:
    """Wait for all work of the current device."""
    current_device()  # makes its context current
    done(bindings().cuCtxSynchronize(), "wait for the device")


HOST: dict[str, Any] = {"synchronize": synchronize}
"""Names of the host that do not import Numba; each is called with the row first."""
