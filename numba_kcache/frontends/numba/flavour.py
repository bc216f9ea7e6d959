"""One of the two Numbas: the names that differ, and what it says about its objects to the fingerprint of a function.

Promise     No module of Numba is imported: a program that has an object of Numba has imported its module.
            Registrations of other packages are found in all of Numba's registries, in their present state. An object
            with unexpected attributes is not recognised, and so its kernel is not cached.
Method      numba-cuda-mlir contains a copy of numba-cuda's front end. `Flavour` is a table with the functions that both
            share; the modules llvm and mlir have the row of each, and what only one has. Undocumented names are probed
            when they are first used.
Not here    Settings and registries (configuration), and reading values that are not of the compiler (value).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import ToolchainMissingError
from ...keys import Component, Plain
from ...launch import is_c_contiguous
from ...launch.typed import ArraySlot
from ...model import NamedTuple
from ...settings import working_directory
from .configuration import Place, Registration, Registries, loaded
from .value import AlwaysRefused, Refused, Trust, value_form

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from ...model import LinkInput


class Jitted(NamedTuple):
    """Everything that determines the code of a decorated function, except the function itself.

    Args:
        options: Options of the decorator, as a new dict, without those that do not affect the code.
        links: Paths and `LinkableCode` objects of the user.
        has_lines: Whether file and lines are compiled in.
        extensions: Objects of this process among the options, whose content only `depends=` can represent.
    """

    options: dict[str, Any]
    links: Iterable[Any]
    has_lines: bool
    extensions: Iterable[Any] = ()


class External(NamedTuple):
    """A function that was declared, not defined: name, signature, ABI, and files to link for it."""

    name: str
    signature: str
    abi: str
    is_cooperative: bool
    links: Iterable[Any]


Table = tuple[tuple[str, str], ...]
"""Names, separated by spaces, for each module or function."""


class Declared(NamedTuple):
    """A kernel and its `cuda.jit` options, with a dispatcher's attribute names; used while no dispatcher is needed."""

    py_func: Any
    targetoptions: dict[str, Any]


def is_a(value: Any, *places: tuple[str, str]) -> bool:
    """Check whether a value's class is one of these or a subclass. `isinstance` is not used: Numba's classes have
    abstract bases, which query every class of Numba at the first check of each other class (200 us)."""
    bases = type(value).__mro__
    for module, name in places:  # noqa: SIM110  (a generator costs as much as the rest of this function)
        if loaded(module, name) in bases:
            return True
    return False


def on_device(dispatcher: Any) -> Any:
    """The dispatcher that a kernel calls: for that of `njit`, the CUDA dispatcher that Numba made at its first use."""
    return getattr(dispatcher, "_CUDATypingContext__dispatcher", dispatcher)


def fixed_signatures(dispatcher: Any) -> tuple[str, ...] | None:
    """The signatures given to the decorator; None if there are none."""
    if getattr(dispatcher, "_can_compile", True):
        return None
    results = dispatcher.overloads.values()
    return tuple(str(getattr(each, "signature", each)) for each in results)


def is_misread(dispatcher: Any) -> bool:
    """Check whether a device function's dispatcher, when it was made, read other parameters or defaults from
    `inspect.signature` than the function has now."""
    read = getattr(getattr(on_device(dispatcher), "_compiler", None), "pysig", None)
    if read is None:
        return False
    function, code = on_device(dispatcher).py_func, on_device(dispatcher).py_func.__code__
    own = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    defaults = [id(each.default) for each in read.parameters.values() if each.default is not each.empty]
    return (
        defaults != [*map(id, own)] or (*read.parameters,)[: code.co_argcount] != code.co_varnames[: code.co_argcount]
    )


Extension = Callable[[Any], Plain]
"""Returns the form of a type of an extension; raises `Refused` if it cannot be captured."""


def refuse(kind: Any) -> Plain:
    """Refuse a type of an extension, where no other `Extension` is given."""
    raise Refused(f"{kind} is a type of {type(kind).__module__}, not of Numba")


class Flavour(Registries):
    """The names and functions of one Numba.

    A program with other objects has a subclass. `jitted`, `intrinsic`, `external` and `type_form` may raise `Refused`
    for a value that can be cached only with `depends=`, and `AlwaysRefused` for one that cannot be cached at all;
    `code_environment` and `linked_headers` raise `Refused`.

    Attributes:
        kind: The kind of its kernels.
        room: Prefix of the names of its modules `compile` and `dispatcher`.
        stateful: Modules of these packages, and objects in them, whose results depend on more than their arguments.
        config: The module with its settings.
        dispatchers, types, intrinsics, signatures: Base classes of dispatchers, Numba types, intrinsics, signatures.
        own_cache: The class of caches that `cache=True` makes.
        code_modules: Modules whose functions decide about code; a program may have replaced some.
        named_modules: Modules of names of device code.
        without_code: Options that do not change code, repeat another option, or concern one compile only.
        libraries, distributions: Its compilers, as in `Request`.
        runtime: The library that it links into kernels which synchronise their grid.
        surface_parts, compiler_parts, linker_parts: The undocumented names that are used from each module (parts).
        parameters: Parameters that functions among them take.
        methods: Undocumented attributes of its class of dispatchers.
        device_readers: Functions and methods that return the current device while it compiles.
        array_codes, array_letters: The parameters of an array: type codes of those before shape and strides, and the
            letters of all (launch.typed).
        links_itself: Whether it compiles linked CUDA C++ itself: without the text's own folder, and with line tables if
            the kernel has them.
        is_complex_whole: Whether a complex number is one parameter.
        array_slot: The class of slots of arrays.
        name, hint: Its distribution, and how to install it.
        oldest: The first version that has every part; later ones are supported if they have them.
        trust: Makes the record of modules for one fingerprint.
        default_options: Fills in the options of a function as `cuda.jit` does, without asking the Numba; from the given
            ones, the settings `debug` and `opt`, and the observed options without given ones (`known`). Raises
            `Refused` if only the Numba can tell.
        read_options: Completes the options of a dispatcher in place, and returns its link inputs.
        external: Returns the declaration of an external function; None for other objects.
        code_environment: Reads the settings that count; () while the compiler is not loaded. `has_lines`: whether any
            function has line tables.
    """

    kind: str
    room: str
    stateful: frozenset[str]
    config: str
    dispatchers: tuple[Place, ...]
    own_cache: str
    types: tuple[Place, ...]
    intrinsics: tuple[Place, ...]
    signatures: tuple[Place, ...]
    code_modules: tuple[str, ...]
    named_modules: tuple[str, ...]
    without_code: frozenset[str] = frozenset()
    libraries = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
    distributions: tuple[str, ...]
    runtime: str
    surface_parts: Table
    compiler_parts: Table
    linker_parts: Table
    parameters: Table
    methods = ""
    device_readers: tuple[Place, ...]
    array_codes: tuple[str, ...]
    array_letters: str
    links_itself = False
    is_complex_whole = False
    array_slot: type[ArraySlot] = ArraySlot
    name: str
    hint: str
    oldest: tuple[int, ...] = ()
    trust: Callable[[frozenset[str]], Trust] = Trust
    default_options: Callable[..., dict[str, Any]]
    read_options: Callable[..., Iterable[Any]]
    external: Callable[[Any], External | None]
    code_environment: Callable[..., tuple[Component, ...]]

    def unsuitable(self, why: str) -> ToolchainMissingError:
        """Make the error for a part that is not there."""
        return ToolchainMissingError("cannot use a Numba kernel", f"{self.name} {why}", self.hint)

    def part(self, name: str) -> Any:
        """A module of this Numba alone."""
        return import_module(f".{self.room}_{name}", __package__)

    def other_codes(self, kind: Any) -> tuple[str, ...]:
        """The type codes of an argument that is neither array nor number.

        Raises:
            KeyError: The launcher cannot pack it.
        """
        raise KeyError(kind)

    def other_slot(self, kind: Any, launcher: Any) -> Any:
        """Make the slot of an argument that is neither array nor number, or raise `KeyError`."""
        raise KeyError(kind)

    def is_dispatcher(self, value: Any) -> bool:
        """Check whether it is a function under `cuda.jit`, or another decorator that device code may call."""
        kind = type(value)
        if kind is FunctionType or kind is Declared:
            return kind is Declared
        return is_a(value, *self.dispatchers)

    def is_numba_type(self, value: Any) -> bool:
        """Check whether it is an instance of one of Numba's own types, not of an extension's."""
        return is_a(value, *self.types) and type(value).__module__.partition(".")[0] == self.owned

    def python_function(self, value: Any) -> Any:
        """The function under a decorator of Numba's; None for other objects."""
        return on_device(value).py_func if self.is_dispatcher(value) else None

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        """The options of a dispatcher; for a device function also its given signatures, to which arguments are cast.

        Raises:
            AlwaysRefused: Its code depends on more than can be in a key.
        """
        options = {name: value for name, value in dispatcher.targetoptions.items() if name not in self.without_code}
        links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
        links = (links,) if isinstance(links, (str, os.PathLike)) else links
        options["signatures"] = None if is_kernel else fixed_signatures(dispatcher)
        if not is_kernel and is_misread(dispatcher):
            raise Refused("inspect.signature gave its decorator other parameters, or defaults, than it has")
        links = self.read_options(dispatcher, options, links, is_kernel=is_kernel)
        has_lines = bool(options.get("debug") or options.get("lineinfo"))
        return Jitted(options, links, has_lines, extensions or ())

    def observed_options(self) -> dict[str, Any]:
        """The options of a kernel that is given none, if only the Numba can tell them."""
        return {}

    def layout_of(self, memory: Any) -> str:
        """The layout of an array of another library."""
        return "C" if is_c_contiguous(memory) else "A"

    def setting(self, name: str) -> Any:
        """The value of a setting; None while its module is not loaded."""
        return loaded(self.config, name)

    def linked_runtime(self) -> LinkInput | None:
        """CUDA C++ of its runtime, which it links to kernels that need it; None if there is none."""
        return None

    def linked_headers(self, links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
        """Make the search for headers of CUDA C++ among these link inputs, and of the runtime that may be added.

        Args:
            links: Link inputs of the kernel and its callees.
            has_lines: Whether the kernel has line tables.

        Raises:
            Refused: They cannot be keyed.
        """
        texts, own = [each for each in links if each.kind == "cu"], self.linked_runtime()
        if not texts and own is None:
            return None
        from .objects import check_texts

        has_lines = has_lines and self.links_itself
        if not check_texts(texts) and own is None and not has_lines:
            return None
        from ...headers.roots import HeaderSearch

        if self.links_itself:
            texts = [*dict.fromkeys(each._replace(folder="") for each in texts)]
        given = filter(None, str(self.setting("CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))
        extra = [os.path.join(working_directory(), each) for each in given]  # as NVRTC does: `..` stays
        texts += filter(None, (own,))
        folders = filter(None, (*extra, *(each.folder for each in texts)))  # with repetitions, as they are searched
        toolkit = f"{self.room}_include_dirs", partial(toolkit_dirs, self)
        return HeaderSearch(
            tuple(each.data for each in texts), tuple(folders), toolkit, has_lines=has_lines,
            is_working=not all(each.folder for each in texts), is_edited=not self.links_itself,
        )  # fmt: skip

    def intrinsic(self, value: Any) -> Registration | None:
        """The definition of an `@intrinsic`; None for other objects."""
        if not is_a(value, *self.intrinsics):
            return None
        function, options = getattr(value, "_defn", None), getattr(value, "_ctor_kwargs", None)
        if not isinstance(function, FunctionType) or not isinstance(options, dict):
            return None
        options = {"prefer_literal": getattr(value, "_prefer_literal", None), **options}
        return Registration("intrinsic", None, options, (function,))

    def type_form(self, value: Any, extension: Extension = refuse) -> Plain | None:
        """The form of a Numba type (its text), of a signature (its types), or of a manager of data models, whose models
        count with their types; None for other objects.

        Raises:
            AlwaysRefused: It refers to an object of this process.
        """
        if is_a(value, *self.signatures):
            types = (value.return_type, *value.args, *([] if value.recvr is None else [value.recvr]))
            return "signature", [self.form_of_type(each, extension) for each in types], str(value.pysig)
        managers = [loaded(*each) for each in self.models]
        if type(value) in map(type, managers):
            known = [id(each._handlers) for each in managers if each is not None]
            chained = getattr(value._handlers, "maps", [value._handlers])
            return ("models",) if all(id(each) in known for each in chained) else None
        return self.form_of_type(value, extension) if is_a(value, *self.types) else None

    def untyped(self, value: Any) -> str:
        """Numba's reason why device code cannot read an object of a program's class; "" if it can."""
        if isinstance(value, (type, FunctionType)) or type(value).__module__.startswith(self.making):
            return ""
        try:
            loaded(f"{self.home}.typing.typeof", "typeof")(value)
        except ValueError as error:
            return str(error).partition("\n")[0]
        except Exception:  # a program's own typeof may raise anything
            pass
        return ""

    def form_of_type(self, kind: Any, extension: Extension = refuse) -> Plain:
        """The form of a type, with everything that its text omits: names of fields, members of an enum.

        Args:
            kind: A type of it, or of an extension of it.
            extension: Makes the form of a type of an extension.

        Raises:
            Refused: It is a type of an extension.
            AlwaysRefused: It refers to an object of this process.
        """
        types = sys.modules[f"{self.home}.types"]
        if not self.is_numba_type(kind):
            return extension(kind)
        bases = type(kind).__mro__  # not isinstance: see is_a
        if types.BaseTuple in bases:
            members = [self.form_of_type(each, extension) for each in kind]
            if types.BaseNamedTuple in bases:
                return "named tuple", self._class_form(kind.instance_class), members
            return "tuple", members
        if types.EnumMember in bases:
            enumeration = self._class_form(kind.instance_class)
            return "enum member", type(kind).__name__, enumeration, self.form_of_type(kind.dtype, extension)
        if types.Array in bases:
            flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
            more = () if type(kind) is types.Array else (str(kind),)  # the extents of a nested array
            return "array", type(kind).__qualname__, *more, self.form_of_type(kind.dtype, extension), flags
        text = repr(kind)
        if "<" in text or " at 0x" in text:
            raise AlwaysRefused(f"the type {text} refers to an object of this process")
        inner = [self.form_of_type(each, extension) for each in vars(kind).values() if is_a(each, *self.types)]
        return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind), *inner

    def _class_form(self, kind: type) -> Plain:
        return value_form(kind, Trust(self.packages), self.type_form)


_OF_HOME = (
    ("types", "Array Integer Float Complex Boolean BaseTuple NoneType"),
    ("typing.typeof", "typeof"),
    ("typing", "signature"),
    ("cudadrv.devicearray", "DeviceNDArray"),
    ("np.numpy_support", "as_dtype from_dtype"),
    ("core.compiler_lock", "global_compiler_lock"),
    ("cudadrv.devices", "get_context"),
    ("core.sigutils", "normalize_signature"),
)
"""Names used from modules of `Flavour.home`, which both Numbas have."""


def gathered(flavour: Flavour, table: Table) -> SimpleNamespace:
    found = SimpleNamespace()
    try:
        for home, names in table:
            module = sys.modules.get(home) or import_module(home)
            vars(found).update({name: getattr(module, name) for name in names.split()})
    except (ImportError, AttributeError) as error:
        use = ": use numpy<2.5" if "numpy" in str(error) else ""
        raise flavour.unsuitable(f"cannot be imported: {error}{use}") from error
    return found


@cache
def surface(flavour: Flavour) -> SimpleNamespace:
    """Import and probe the names that a Numba's `cuda` loads, with the modules `types` and `config`.

    Raises:
        ToolchainMissingError: It is not installed, or of an unsupported version.
    """
    home = flavour.home
    found = gathered(flavour, (*flavour.surface_parts, *((f"{home}.{name}", names) for name, names in _OF_HOME)))
    found.types, found.config = sys.modules[f"{home}.types"], import_module(flavour.config)
    found.Dispatcher, found.OwnCache = getattr(found, flavour.dispatchers[0][1]), getattr(found, flavour.own_cache)
    lacking = [name for name in flavour.methods.split() if not hasattr(found.Dispatcher, name)]
    if lacking:
        raise flavour.unsuitable(f"is of another version: its dispatcher has no {lacking[0]}")
    version = str(loaded(flavour.owned, "__version__")).split(".")[:3]
    if tuple(int(each) for each in version if each.isdecimal()) < flavour.oldest:
        raise flavour.unsuitable(f"is of version {'.'.join(version)}")
    return found


def home_folder(flavour: Flavour) -> str:
    """The folder of `Flavour.home`."""
    return os.path.dirname(str(import_module(flavour.home).__file__))


def toolkit_dirs(flavour: Flavour) -> tuple[str, ...]:
    """List the include folders that are searched first for CUDA C++ link inputs of a kernel."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import locate_nvidia_header_directory

    parts = gathered(flavour, flavour.linker_parts)
    _status, major, _minor = nvrtc.nvrtcVersion()
    cccl = locate_nvidia_header_directory("cccl")
    folders = parts.get_cuda_paths()["include_dir"].info, *([cccl.abs_path] if cccl else ()), parts.get_include()
    return os.path.join(home_folder(flavour), "include", str(major)), *[os.path.realpath(str(each)) for each in folders]
