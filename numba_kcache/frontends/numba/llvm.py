"""numba-cuda: its row in the table of what differs, the definition of a kernel, and its artifacts.

Promise     A kernel's options are those of `cuda.jit`, and mean the same. Uncacheable kernels are compiled by Numba
            itself. Under `NUMBA_ENABLE_CUDASIM` a kernel runs in Numba's simulator, as it does without this package.
            No module of Numba is imported before a kernel is typed.
Not here    Compiling (llvm_compile), and the work of Numba's own dispatcher: launches that no launcher supports, and
            attributes (llvm_dispatcher). The error for CUDA C++, which cannot be simulated (launch).
Source      numba-cuda 0.30.4: DeviceNDArray keeps its `_numba_type_`. simulator/: its `jit` returns a kernel for each
            function, and takes few options.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import ToolchainMissingError
from ...keys import Component, component
from ...launch import NUMPY_NAMES, LaunchShape, Unfit, element_of_dtype, is_exported, is_immutable
from ...launch.launcher import memory_of
from ...model import LinkInput
from .. import Variant
from . import CODE_MODULES, STATEFUL, Declared, External, Flavour, code_settings, is_a, loaded, surface
from .arguments import Signature, Values, array_type
from .definition import PythonDefinition, PythonFrontEnd, PythonResolutions
from .fingerprint import OF_NUMPY, AlwaysRefused, Refused

HOME = "numba.cuda"


_NRT = f"{HOME}.memory_management.nrt"


DECORATOR_OPTIONS = (
    "debug", "opt", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers", "launch_bounds",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` for a kernel."""


class LlvmFlavour(Flavour):
    """numba-cuda, which lowers to LLVM IR."""

    kind, room = "numba", "llvm"
    packages = frozenset({"numba", HOME, "numba_cuda", "numpy", "llvmlite"})
    stateful = OF_NUMPY | {
        *(f"{HOME}.{name}" for name in STATEFUL),
        "numba.np.ufunc.parallel",
    }
    home = HOME
    config = f"{HOME}.core.config"
    searched = f"{HOME}.", "numba.core.imputils", "numba.core.typing.templates"
    dispatchers = ((f"{HOME}.dispatcher", "CUDADispatcher"), ("numba.core.dispatcher", "Dispatcher"))
    own_cache = "CUDACache"
    types = (("numba.core.types", "Type"), (f"{HOME}.types", "Type"))
    intrinsics = ((f"{HOME}.extending", "_Intrinsic"), ("numba.core.extending", "_Intrinsic"))
    signatures = ((f"{HOME}.typing.templates", "Signature"), ("numba.core.typing.templates", "Signature"))
    target = f"{HOME}.descriptor", "cuda_target"
    owned = "numba"
    models = (f"{HOME}.datamodel", "default_manager"), (f"{HOME}.models", "cuda_data_manager")
    code_modules = tuple(f"{HOME}.{name}" for name in (
        *CODE_MODULES, "codegen", "dispatcher", "models", "nvvmutils",
        "np.arrayobj",  # a compile or the program loads it: a hit need not look at it
    ))  # fmt: skip
    named_modules = HOME, f"{HOME}.stubs", f"{HOME}.libdevice"
    distributions = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")
    runtime = f"{HOME}:cudadevrt"
    surface_parts = (
        (f"{HOME}.decorators", "_validate_shared_memory_carveout"),
        (f"{HOME}.dispatcher", "CUDADispatcher CUDACache NullCache _Kernel"),
    )
    compiler_parts = (
        (f"{HOME}.descriptor", "cuda_target"),
        (_NRT, "NRT_LIBRARY"),
        (f"{HOME}.utils", "numba_target_override"),
        (f"{HOME}.np.arrayobj", ""),  # numba-cuda 0.30 reads functions of NumPy that NumPy 2.5 has not
    )
    linker_parts = (
        (f"{HOME}.cuda_paths", "get_cuda_paths"),
        (_NRT, "get_include"),
    )
    parameters = (("_Kernel", f"py_func argtypes {' '.join(DECORATOR_OPTIONS)}"),)
    device_readers = (
        *((f"{HOME}.{name}", "get_current_device") for name in ("dispatcher", "compiler", "api")),
        (f"{HOME}.codegen", "CUDACodeLibrary._ensure_cc"),
    )
    array_codes = ("u8", "u8", "i8", "i8", "u8")
    array_letters = "00niasb"  # meminfo, parent, items, item size, address
    name = "numba-cuda"
    oldest = 0, 30
    hint = "pip install 'numba-kcache[numba]'"

    def default_options(self, given: Mapping[str, Any], *, debug: Any, opt: bool, known: Any = None) -> dict[str, Any]:
        """The options of a kernel or device function, as `cuda.jit` fills them in."""
        given = {name: value for name, value in given.items() if value is not None}
        if given.get("device") and type(given.get("inline")) is bool:
            raise Refused("only Numba reads inline=True")
        return {
            "debug": debug, "lineinfo": False, "opt": opt, "link": (), "fastmath": False, "device": False,
            "inline": "never", "forceinline": False, "extensions": [], "launch_bounds": None,
            "lto": not given.get("debug", debug),
            "shared_memory_carveout": None, **given,
        }  # fmt: skip

    def read_options(
        self, dispatcher: Any, options: dict[str, Any], links: Iterable[Any], *, is_kernel: bool
    ) -> Iterable[Any]:
        """Complete the options of a dispatcher in place, and return its link inputs."""
        if "debug" in options:
            options["debug"] = bool(options["debug"])  # the default is a number
        if not is_kernel:  # `lto` has no effect on device functions, and its default depends on nvJitLink
            options.pop("lto", None)
        given = getattr(dispatcher, "locals", None)  # types by name of local variables, which are otherwise not keyed
        options["locals"] = [given, dispatcher.py_func.__code__.co_varnames] if given else None
        return _users_links(links)

    def external(self, value: Any) -> External | None:
        """The declaration behind a descriptor of `declare_device`; None for other objects.

        Raises:
            AlwaysRefused: It is a descriptor, but its declaration cannot be read.
        """
        if not is_a(value, (f"{HOME}.compiler", "ExternFunction")):
            return None
        context: Any = getattr(loaded(*self.target), "_targetctx", None)
        try:
            ((_signature, implementation),) = context._defns.get(value).versions
            (library,) = implementation.libs
            (description,) = implementation.__defaults__
            links, cooperative = _users_links(library._linking_files), bool(library.use_cooperative)
            abi = type(description.call_conv).__name__
        except (AttributeError, KeyError, TypeError, ValueError):
            raise AlwaysRefused("its declaration cannot be read") from None
        return External(value.name, value.sig, abi, cooperative, links)

    def code_environment(self, *, has_lines: bool) -> tuple[Component, ...]:
        """Read the settings.

        Args:
            has_lines: Whether any function has line tables: they say whether the code is optimised, and have variables
                of several types in a form that is a setting, whose default depends on the installed CUDA runtime.
        """
        config, llvmlite = sys.modules[self.config], sys.modules["llvmlite"]
        settings = code_settings(config) | {name: each for name, each in vars(llvmlite).items() if type(each) is bool}
        if has_lines:
            settings["OPT"] = bool(config.OPT)
        else:
            settings = {name: each for name, each in settings.items() if not name.startswith("CUDA_DEBUG_POLY")}
        return (component("numba settings", settings),)

    def linked_runtime(self) -> LinkInput | None:
        """CUDA C++ of Numba's runtime, which it links to kernels that need it; None if it is not enabled."""
        if not self.setting("CUDA_ENABLE_NRT"):
            return None
        from ...model.linkable import linkable_input

        found, file = linkable_input(loaded(_NRT, "NRT_LIBRARY")), loaded(_NRT, "__file__")
        return found and found._replace(folder=os.path.dirname(str(file)))


NUMBA = LlvmFlavour()


def _users_links(links: Iterable[Any]) -> list[Any]:
    """The user's link inputs, without those that Numba appends while it compiles: its version determines them."""
    return [each for each in links if not _is_own_link(each)]


def _is_own_link(link: Any) -> bool:
    if not isinstance(link, str):
        return link is not None and link is loaded(_NRT, "NRT_LIBRARY")
    return any(link == os.path.join(each, "reshape_funcs.cu") for each in loaded(HOME, "__path__") or ())


_TYPED = frozenset(NUMPY_NAMES) - {"bf", "e4", "e5"}

_NOT_SIMULATED = {"lineinfo", "inline", "forceinline", "lto", "max_registers", "launch_bounds"}
"""Options for generated code, which are ignored: the simulator generates none."""


class NumbaDefinition(PythonDefinition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel."""

    kind = NUMBA.kind
    flavour = NUMBA
    decorator_options = DECORATOR_OPTIONS
    _simulated: Any = None

    @property
    def simulated(self) -> Any:
        """The kernel of Numba's simulator for this function; one made by its own `cuda.jit` is returned unchanged."""
        if hasattr(self.thing, "py_func"):
            return self.thing
        if self._simulated is None:
            from numba import cuda

            options = {name: value for name, value in self.given.items() if name not in _NOT_SIMULATED}
            self._simulated = cuda.jit(**options)(self.subject)
        return self._simulated

    def declare(self) -> Declared:
        """Fill in the options as `cuda.jit` does."""
        parts = _surface()
        if parts is None:
            raise ToolchainMissingError(
                "cannot compile a Numba kernel",
                "NUMBA_ENABLE_CUDASIM is set, and Numba's simulator compiles nothing",
                "unset it to compile; a launch is simulated",
            )
        function, config = self.subject, parts.config
        if isinstance(function, parts.CUDADispatcher):
            function, options = function.py_func, dict(function.targetoptions)
        else:
            options = NUMBA.default_options(self.given, debug=config.CUDA_DEBUGINFO_DEFAULT, opt=config.OPT != 0)
        options |= self.given
        if options.get("shared_memory_carveout") is not None:
            parts._validate_shared_memory_carveout(options["shared_memory_carveout"])
        return Declared(function, options)

    def types_of(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments of a launch as Numba does, common ones without calling Numba; None under its simulator,
        which needs no types.

        Raises:
            ToolchainMissingError: numba-cuda is not installed.
            ValueError: Numba has no type for one of them; the message is Numba's.
        """
        parts = _surface()
        if parts is None:
            return None
        array, typeof, plain = parts.DeviceNDArray, parts.typeof, _plain_types()
        return Signature([
            each._numba_type_ if type(each) is array else
            plain.get(type(each)) or _type_of_others(each) or typeof(each)
            for each in arguments
        ])  # fmt: skip


class NumbaResolutions(PythonResolutions):
    """The artifacts of one Numba kernel."""

    definition: NumbaDefinition

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: Values) -> None:
        """Launch through Numba's own dispatcher, or its simulator, which has one stream."""
        if is_simulated():
            self.definition.simulated[shape.grid, shape.block, 0, shape.shared_bytes](*arguments)
        else:
            super().launch_by_front_end(shape, stream, arguments)

    def block_size_by_front_end(self, arguments: Values, shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        if is_simulated():
            return 1  # like the simulator's own forall
        return int(self.part.block_size(self, arguments, shared_bytes))

    def attribute(self, name: str) -> Any:
        """Read an attribute of Numba's dispatcher, or of the simulator's."""
        if is_simulated() and name in self.part.NAMES:
            return getattr(self.definition.simulated, name)
        return super().attribute(name)


NumbaDefinition.make_resolutions = NumbaResolutions
FRONT_END = PythonFrontEnd(NumbaDefinition)


def _type_of_others(value: Any) -> Any:
    """The type of an array of CuPy or PyTorch, for which Numba takes 100 us, or of JAX, for which numba-cuda 0.30.4
    exports the array to the stream -1, which JAX 0.11 takes for a handle: it raises, or ends the process. None for all
    others.

    As in Numba, the layout of their arrays is `"C"` or `"A"`, never `"F"`. JAX's must not be written.
    """
    if is_immutable(type(value)) and is_exported(value) and (element := element_of_dtype(value.dtype)) in _TYPED:
        return array_type(NUMBA, element, value.ndim, "C", True)
    is_known = type(value) in (loaded("torch", "Tensor"), loaded("cupy", "ndarray"))
    try:
        memory = memory_of(value) if is_known else None
    except Unfit:
        return None
    if memory is None or memory.element not in _TYPED:
        return None
    return array_type(NUMBA, memory.element, len(memory.shape), NUMBA.layout_of(memory), memory.readonly)


@functools.cache
def _plain_types() -> dict[type, Any]:
    types = surface(NUMBA).types
    return {float: types.float64, bool: types.boolean, complex: types.complex128}


def is_simulated() -> bool:
    """Check whether the program's Numba is its simulator."""
    return bool(loaded(NUMBA.config, "ENABLE_CUDASIM"))


@functools.cache
def _surface() -> Any:
    """Numba's parts; None under its simulator."""
    try:
        found = surface(NUMBA)
    except ToolchainMissingError:
        if not is_simulated():
            raise
    return None if is_simulated() else found
