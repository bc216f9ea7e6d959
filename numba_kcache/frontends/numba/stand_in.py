"""Stand in for a Numba that is not imported: objects in place of its `cuda`, and facts that are known of it.

Promise     Names of device code are objects of this module until Numba is loaded; any other name imports Numba, and is
            its own. What a program sets on a stand-in is set on Numba's module, except names in `HOST`. Whatever the
            program does, its own globals keep the objects that it put there.
            Facts are observed just after this package imported Numba, before the program can change anything, and are
            found again only under what may change them: the variables that count, Python, and the builds and versions
            of all compilers. A distribution counts as installed only if an import would take it from the folder of its
            metadata. Whatever fails there leaves no facts: Numba is then imported.
Method      `HOMES` is the one table: a row for each Numba. Once that Numba is loaded, an attribute of a stand-in is
            the real one.
            Facts are an entry of the store like any other, so that they travel in bundles, tiers and images, and are
            accepted where code of another compiler is. Storing and finding them counts neither a hit nor a miss.
Not here    Look-ups without Numba (light), observing and storing facts (learning), copies of functions with the real
            objects (copies).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ...engine import Request
from ...errors import OptionError
from ...keys import component, derive
from ...launch import DISABLE_TIMING, bindings, current_device, done, stream_handle
from ...model import NO_TARGET, NamedTuple
from ...settings import import_path, toolchain_surroundings, variables
from ...store import parse_object
from ...toolchain import PACKAGES
from .. import Kernel, found_by_name, front_end
from . import code_variables, loaded
from .definition import OWN_OPTIONS
from .fingerprint import ABSENT, Names, real_of, unreplaced

if TYPE_CHECKING:
    from ...engine import Session
    from . import Flavour

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
        module: The stand-in: a module of this package.
        cuda: The module that it stands for.
        target: The module and name of its target, which has the typing context.
        marks: Top-level modules by which this Numba is recognised as loaded, or as one that a program may have changed.
        modules: Modules of device code in it; all their names are device code's.
        names: The names of its device code.
    """

    kind: str
    module: str
    cuda: str
    target: tuple[str, str]
    marks: Names
    modules: frozenset[str]
    names: frozenset[str]

    def is_loaded(self) -> bool:
        """Check whether any part of this Numba is loaded, by whomever."""
        return any(each in sys.modules for each in self.marks)


_PACKAGE = __name__.partition(".")[0]

HOMES = {
    "numba": Home(
        "numba", f"{_PACKAGE}.cuda", "numba.cuda", ("numba.cuda.descriptor", "cuda_target"),
        ("numba", "numba_cuda", "llvmlite"),
        frozenset(_MODULES.split()), DEVICE,
    ),
    "mlir": Home(
        "mlir", f"{_PACKAGE}.mlir.cuda", "numba_cuda_mlir.cuda", ("numba_cuda_mlir.descriptor", "mlir_target"),
        ("numba_cuda_mlir",),
        frozenset(f"{_MODULES} const local shared vector vector_types".split()),
        DEVICE | {"inline_ptx", "local_array", "shared_array"},
    ),
}  # fmt: skip

reasons: dict[str, str] = {}
"""Why this package imported a Numba, by kind."""

learners: list[Callable[[Home], None]] = []
"""Called with the row of a Numba that this package has just imported."""

_NOT_READY = 600
"""CUDA_ERROR_NOT_READY."""


def real(home: Home, why: str) -> Any:
    """The module that a stand-in stands for; imported if need be, as if the program had imported it in the place of the
    stand-in, and what it shows of Numba is then recorded.

    Args:
        home: The stand-in's row.
        why: The reason, for `explain`.
    """
    if home.is_loaded():
        return import_module(home.cuda)
    with unreplaced():
        module = import_module(home.cuda)
        for each in list(_objects.values()):
            if each._home is home:
                with contextlib.suppress(AttributeError):  # this Numba does not have it
                    each._stands_for()
        for learn in learners:
            learn(home)
    reasons.setdefault(home.kind, why)
    return module


def real_at(home: Home, path: str, why: str) -> Any:
    """The object with this dotted name in the module that a stand-in stands for."""
    found, top = real(home, why), path.partition(".")[0]
    if top in home.modules and not hasattr(found, top):
        import_module(f"{home.cuda}.{top}")
    return functools.reduce(getattr, path.split("."), found) if path else found


class Standing:
    """The base of stand-ins: a Numba that finds one in code that was not copied asks for its type."""

    _home: Home

    def _stands_for(self) -> Any:
        raise NotImplementedError

    def _class(self) -> Any:
        return type(self._stands_for()) if self._home.is_loaded() else type(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and its tools probe such names on any object
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        return getattr(self._stands_for(), name)

    @property
    def _numba_type_(self) -> Any:
        """The type of the object that it stands for."""
        return loaded(*self._home.target).typing_context.resolve_value_type(self._stands_for())


class StandIn(Standing):
    """An object of a Numba that only device code uses; by any use on the host it is Numba's own."""

    def __init__(self, home: Home, path: str) -> None:
        self._home, self._path, self._real = home, path, ABSENT
        self.__module__ = home.module

    def _stands_for(self) -> Any:
        if self._real is ABSENT:  # later on, the program may have put another object under its name
            self._real = real_at(self._home, self._path, f"the program uses cuda.{self._path}")
        return self._real

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
        if name.startswith("_"):
            return super().__getattr__(name)
        home, path = self._home, f"{self._path}.{name}".lstrip(".")
        if path in HOST and (name in stays or not home.is_loaded()):
            return functools.partial(HOST[name], home)
        if not home.is_loaded() and (path != name or name in home.names or name in home.modules):
            return _made(home.kind, path)
        return real_at(home, path, f"the program uses {self.__name__} on the host")

    def _stands_for(self) -> Any:
        return real_at(self._home, self._path, f"the program uses {self.__name__} on the host")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in HOST:
            super().__setattr__(name, value)
        elif type(value) is not StandInModule:  # set by an import of it
            setattr(self._stands_for(), name, real_of(value))

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name) if name in vars(self) else delattr(self._stands_for(), name)

    def __dir__(self) -> list[str]:
        return dir(self._stands_for())

    def __reduce__(self) -> Any:
        return import_module, (self.__name__,)


class Importer:
    """Imports a module in a stand-in, `numba_kcache.cuda.libdevice`: it is in no file, and most programs use none."""

    @classmethod
    def find_spec(cls: Any, name: str, *_where: Any) -> Any:
        """The specification of such a module; None for others."""
        parent, _, path = name.rpartition(".")
        for home in HOMES.values():
            if parent == home.module and path in home.modules:
                return type(__spec__)(name, cls, loader_state={"_home": home, "_path": path})
        return None

    @staticmethod
    def create_module(spec: Any) -> ModuleType:
        """Make the module."""
        module = StandInModule(spec.name)
        vars(module).update(spec.loader_state)
        return module

    @staticmethod
    def exec_module(_module: ModuleType) -> None:
        """Nothing."""


sys.meta_path.append(Importer)

_objects: dict[tuple[str, str], StandIn] = {}
"""The stand-ins so far, by kind and dotted name."""


def _made(kind: str, path: str) -> Any:
    """The one stand-in of a dotted name."""
    home = HOMES[kind]
    if path in home.modules:
        return import_module(f"{home.module}.{path}")
    return _objects.get((kind, path)) or _objects.setdefault((kind, path), StandIn(home, path))


def copy_of(function: FunctionType) -> FunctionType:
    """The copy of a function that has Numba's objects in place of stand-ins."""
    from .copies import copied

    return copied(function)


# -- facts -----------------------------------------------------------------------------------------------------------

FORM = 3
"""Number of the form of the facts below; a later form is not read."""

CONFIG_FILE = ".numba_config.yaml"
"""The file in the working directory from which Numba reads settings."""

SCALARS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c4", "c8")
"""Type codes of the numbers whose types are among the facts."""

_ALSO = ("LIBLLVM7", "NUMBA_CUDA_DEBUGINFO", "NUMBA_OPT")
"""Variables that change facts, beside those that change code."""


class Facts(dict[str, Any]):
    """Facts as they are stored: those that each look-up needs, and a line of JSON for each name of device code.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: These are no facts: stored bytes may be anything's.
    """

    def __init__(self, stored: bytes) -> None:
        needed, _, self._names = stored.partition(b"\n")
        super().__init__(parse_object(needed))
        if not self["scalars"].keys() >= {*SCALARS}:
            raise ValueError

    def of(self, path: str) -> dict[str, Any]:
        """The facts of one name: its pinned "name", or the "form" of its value, and attributes that were "added" to it;
        nothing if it is not known."""
        _, _, found = self._names.partition(b"\n%s " % path.encode())
        return json.loads(found.partition(b"\n")[0]) if found else {}


found_in: weakref.WeakKeyDictionary[Session, dict[str, Facts | str]] = weakref.WeakKeyDictionary()
"""The facts found in each session's stores, by request; or why there are none."""


def facts_of(home: Home, flavour: Flavour, session: Session) -> Facts | str:
    """Find the facts of the Numba that an import would load now; or the reason why there are none."""
    if os.path.exists(CONFIG_FILE):
        return f"only Numba reads {CONFIG_FILE}"
    request = request_of(home, flavour)
    name = derive(request.components)
    known = found_in.setdefault(session, {})
    if name not in known:
        known[name] = f"nothing of this {flavour.name} is stored yet"
        found = session.first(session.candidates(request), is_counted=False)
        if found:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                known[name] = _elsewhere(session.components(request)[-1].value) or Facts(found.artifact.cubin)
    return known[name]


def request_of(home: Home, flavour: Flavour) -> Request:
    """The request whose artifact is the facts."""
    form: Any = ["facts", FORM, home.kind, sys.implementation.cache_tag, sys.platform]
    settings = {**code_variables({}), **variables(_ALSO)}
    components = component("kind", form), component("numba settings", settings)
    label = f"facts of {flavour.name}"
    return Request(label, NO_TARGET, components, flavour.libraries, flavour.distributions, _cannot_build, name=label)


def _cannot_build(_toolchain: Any) -> Any:
    raise NotImplementedError


def _elsewhere(versions: Any) -> str:
    """Say which distribution an import would take from elsewhere than where it is installed; "" for none."""
    installed, _found_by = toolchain_surroundings()
    for name, version in versions.items():
        module = name.replace("-", "_")
        _, root = PACKAGES.get(name, ("", module))
        folder = next((each for each in import_path() if os.path.isdir(os.path.join(each, root))), "")
        metadata = f"{module}-{str(version).partition(' ')[0]}.dist-info"
        is_whole = folder in installed and os.path.isdir(os.path.join(folder, metadata))
        if (folder or version) and not is_whole:
            return f"{name} in {folder} counts by its files, not by a version"
    return ""


# -- decorators ------------------------------------------------------------------------------------------------------


class DeviceFunction(Standing):
    """A device function under a stand-in's `jit`, of which Numba makes nothing yet; a kernel as one, too.

    Args:
        home: The stand-in's row.
        function: The Python function.
        given: The options of the decorator.
        signatures: The decorator's signatures, if any.
    """

    def __init__(self, home: Home, function: FunctionType, given: dict[str, Any], signatures: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self._home, self._given, self._signatures = function, home, given, signatures
        self._defaults = function.__defaults__
        self._dispatcher: Any = None

    def _stands_for(self) -> Any:
        jit = real(self._home, f"{self.__qualname__} is used on the host").jit
        function = copy_of(self.py_func)
        if self._dispatcher is None:  # a function that calls itself has made it meanwhile
            # Numba's decorator reads them
            function.__defaults__ = self._defaults and tuple(map(real_of, self._defaults))
            make = functools.partial(jit, **self._given)
            made = make()(function)
            if self._signatures is not None:
                from .compiled_code import noted

                with noted(front_end(self._home.kind).flavour, made) as compiled:
                    made = make(self._signatures)(function)
                    compiled.append(made)
            self._dispatcher = made
        return self._dispatcher

    __call__ = StandIn.__call__

    def __reduce__(self) -> Any:
        if found_by_name(self) is self:
            return self.__qualname__
        return _device_function, (self._home.kind, self.py_func, self._given, self._signatures)


def _device_function(kind: str, *described: Any) -> DeviceFunction:
    return DeviceFunction(HOMES[kind], *described)


class CallableKernel(Kernel, Standing):
    """A kernel under a stand-in's `jit`; in another kernel, Numba takes it for a device function."""

    _definition: Any
    __class__: Any = property(Standing._class)

    def _stands_for(self) -> Any:
        made = DeviceFunction(self._home, self._definition.thing, self._definition.given)
        return vars(self).setdefault("_as_device", made)._stands_for()

    _home: Any = property(lambda self: self._definition.home)


def jit(make_kernel: Callable[..., Any], home: Home, thing: Any = None, device: bool = False, **given: Any) -> Any:
    """Make a cached kernel or a device function; the options are those of Numba's `cuda.jit`.

    A kernel with signatures is Numba's, which compiles them at once, takes no others, and casts arguments to them.
    """
    signatures = None if type(thing) is FunctionType else thing
    given = {name: value for name, value in given.items() if name != "cache" or type(value) is not bool}
    if type(links := given.get("link")) is list:  # Numba takes them from the working directory
        given["link"] = [os.path.abspath(each) if type(each) is str else each for each in links]

    def decorate(function: FunctionType) -> Any:
        if device:
            return DeviceFunction(home, function, {**given, "device": True}, signatures)
        if signatures is None:
            try:
                kernel = make_kernel(function, kind=home.kind, **given)
                kernel.__class__ = CallableKernel
                return kernel
            except OptionError:
                if stays:
                    raise
        numba = real(home, f"{function.__qualname__} has signatures, or options that only Numba knows")
        if not stays:
            return numba.jit(signatures, **given)(function)
        options = dict(given)
        own = {name: options.pop(name) for name in given.keys() & OWN_OPTIONS}
        return make_kernel(numba.jit(signatures, **options)(copy_of(function)), kind=home.kind, **own)

    return decorate if thing is signatures else decorate(thing)


# -- the driver ------------------------------------------------------------------------------------------------------


def _driven(name: str, *args: Any) -> Any:
    """Call a function of the driver in the context of the current device."""
    current_device()  # makes its context current
    return done(getattr(bindings(), name)(*args), f"call {name}")


class Stream(Standing):
    """A stream; Numba takes it for one of its own.

    Args:
        home: The row of the stand-in.
        handle: Handle of a stream of others; None to make one, which is destroyed with this object.
    """

    def __init__(self, home: Home, handle: int | None = None) -> None:
        self._home, self.handle = home, _driven("cuStreamCreate", 0) if handle is None else handle
        if handle is None:
            weakref.finalize(self, bindings().cuStreamDestroy_v2, self.handle).atexit = False

    def _stands_for(self) -> Any:
        return real(self._home, "the program uses a stream on the host").external_stream(self.handle)

    __class__: Any = property(Standing._class)

    def __int__(self) -> int:
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait until the work of the stream is done."""
        _driven("cuStreamSynchronize", self.handle)

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Wait at the end of a block."""
        yield self
        self.synchronize()


class Event:
    """An event."""

    def __init__(self, _home: Home, timing: bool = True) -> None:
        self.handle = _driven("cuEventCreate", 0 if timing else DISABLE_TIMING)
        weakref.finalize(self, bindings().cuEventDestroy_v2, self.handle).atexit = False

    def query(self) -> bool:
        """Check whether the work before it is done."""
        answer = bindings().cuEventQuery(self.handle)
        return answer[0] != _NOT_READY and done(answer, "query an event") is None

    def record(self, stream: Any = 0) -> None:
        """Mark the present end of a stream."""
        _driven("cuEventRecord", self.handle, stream_handle(stream))

    def synchronize(self) -> None:
        """Wait on the host until the work before it is done."""
        _driven("cuEventSynchronize", self.handle)

    def wait(self, stream: Any = 0) -> None:
        """Make later work of a stream wait for the work before the event."""
        _driven("cuStreamWaitEvent", stream_handle(stream), self.handle, 0)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds between the event and a later one."""
        bits = _driven("cuEventElapsedTime", int(self.handle), int(end.handle))
        return float(struct.unpack("f", struct.pack("i", bits))[0])


HOST: dict[str, Any] = {
    "synchronize": lambda _home: _driven("cuCtxSynchronize"),
    "stream": Stream,
    "external_stream": Stream,
    "default_stream": lambda home: Stream(home, 0),
    "event": Event,
    "event_elapsed_time": lambda _home, start, end: start.elapsed_time(end),
}
"""Names of the host that do not import Numba; each is called with the row first. Once it is loaded, all but those in
`stays` are its own."""

stays = {"jit"}
"""Names in `HOST` that are this package's also when Numba is loaded; none in a program that was not edited."""
