"""numba-cuda-mlir's `Dialect`: the options of its dispatchers, and its declarations of external functions.

Promise     No module of numba-cuda-mlir is imported. Where the compiler transforms a function's source text
            (`experimental_ast_transforms`), the key contains that text, and the function is refused if its file has
            changed since it was compiled. An object with unexpected attributes is not recognised, and so its kernel is
            not cached.
Method      This module itself is the `Dialect` that is passed to `fingerprint`.
Not here    The functions shared with numba-cuda (numbas), and names of modules (mlir_internals).
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from importlib.abc import InspectLoader
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from ...keys import Component, Plain, component
from ...model.linkable import callbacks_of, linkable_input
from ...settings import variables
from . import numbas
from .code import code_form
from .configuration import code_settings
from .graph import External, Jitted
from .mlir_internals import BINDINGS, CONFIG, DISPATCHERS, EXTERNAL, HOME, IN_MLIR, NAMES, OF_BINDINGS, has_planners
from .mlir_link import linked_headers as linked_headers
from .numbas import fixed_signatures, is_a, loaded, signature_read
from .value import OF_NUMPY, AlwaysRefused, Refused

if TYPE_CHECKING:
    from ...model.reason import ReasonKind

packages = NAMES.packages

stateful = OF_NUMPY | {
    f"{HOME}.api", f"{HOME}.cudadrv.devices", f"{HOME}.cudadrv.driver", f"{HOME}.cudadrv.runtime",
    f"{HOME}.device_init", "numba_cuda_mlir.tools", "numba_cuda_mlir.runtime",
}  # fmt: skip
"""Modules whose results depend on state: the current device's, and NumPy's."""

_NO_CODE = (
    "cache", "profile_jit", "print_before_all", "print_after_all", "dump", "dump_numba_ir", "dump_mlir", "dump_cubin",
    "dump_llvmir", "dump_ptx", "dump_ast", "dump_ast_after_all", "signature", "annotations_as_signatures", "fast_math",
    "chip", "cc", "_compile_output", "__launch_config__",
)  # fmt: skip
"""Options that do not change code, repeat another option, or concern one compile only. `chip` and `cc` are among them
because the key contains the target already."""

_OWN = ("numba_cuda_mlir.decorators",)
"""Modules whose functions are used as values of options."""

python_function = partial(numbas.python_function, NAMES)
intrinsic = partial(numbas.intrinsic, NAMES)
form_of_type = partial(numbas.form_of_type, NAMES)
untyped = partial(numbas.untyped, NAMES)
code_modules = NAMES.code_modules
registrations = partial(numbas.registrations, NAMES)
registries = partial(numbas.registries, NAMES)


def jitted(dispatcher: Any, *, is_kernel: bool) -> Jitted:
    """The options of a dispatcher; for a device function also its given signatures, to which arguments are cast.

    Callbacks of a kernel's link inputs are not part of the code: its own dispatcher runs them.

    Raises:
        AlwaysRefused: Its code depends on the launch configuration, or its text changed since it was compiled.
    """
    options = {name: value for name, value in dispatcher.targetoptions.items() if name not in _NO_CODE}
    links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
    if not is_kernel:  # a device function's first compile sets these: the key is the same before and after it
        options |= {"device": True, "lto": False, "_lto_explicit": None}
    inline = options.get("inline")
    if callable(inline) and inline.__module__ in _OWN and loaded(inline.__module__, inline.__qualname__) is inline:
        # The package's own default: its name says all, because the package's version is in the key.
        options["inline"] = f"{inline.__module__}.{inline.__qualname__}"
    options["signatures"] = None if is_kernel else fixed_signatures(dispatcher)
    if options.get("experimental_ast_transforms"):
        options["text"] = transformed_text(dispatcher.py_func)
    uses_launch = loaded(DISPATCHERS, "_extensions_use_launch_config")
    if extensions and uses_launch is not None and uses_launch(extensions):
        raise AlwaysRefused("its extensions read the launch configuration")
    opaque = {"extensions": extensions} if extensions else {}
    has_lines = bool(options.get("debug") or options.get("lineinfo"))
    links = [_without_callbacks(each) for each in links] if is_kernel else links
    return Jitted(options, opaque, links, has_lines, None if is_kernel else signature_read(dispatcher))


class _Linked:
    """A `LinkableCode` object without its callbacks."""

    def __init__(self, item: Any) -> None:
        self.name, self.data = item.name, item.data


def _without_callbacks(item: Any) -> Any:
    if linkable_input(item) is None or not callbacks_of(item):
        return item
    class_name = next(each.__name__ for each in type(item).__mro__ if each.__module__.startswith(HOME))
    return type(class_name, (_Linked,), {})(item)  # `linkable_input` tells the kind by the name of the class


def type_form(value: Any, extension: Callable[[Any], Plain]) -> Plain | None:
    """The form of a Numba type, a signature, or a class of MLIR's bindings (its name); None for other objects.

    Raises:
        Refused: The type belongs to an extension, or refers to an object of this process (`value.Refused`).
    """
    kind = type(value)
    if kind.__module__ != BINDINGS or not isinstance(value, type):
        return numbas.type_form(NAMES, value, extension)
    home, content = value.__module__, vars(value).values()
    is_own = home.startswith(OF_BINDINGS) and loaded(home, value.__qualname__) is value
    members = {type(getattr(each, "fget", each)) for each in content} - {property}
    is_native = FunctionType not in members and any(each.__module__ == BINDINGS for each in members)
    return ("class of MLIR", home, value.__qualname__) if is_own and is_native else None


def external(value: Any) -> External | None:
    """The declaration in a descriptor of `declare_device`, or a function in MLIR; None for other objects.

    Raises:
        AlwaysRefused: It is a descriptor, but its declaration cannot be read.
    """
    if is_a(value, IN_MLIR):
        return External(value.name, str(value.sig), str(value.library.source), False, ())
    if not is_a(value, *EXTERNAL):
        return None
    try:
        return External(value.name, str(value.sig), str(value.abi), bool(value.use_cooperative), tuple(value.link))
    except (AttributeError, TypeError):
        raise AlwaysRefused("its declaration cannot be read") from None


def setting(name: str) -> Any:
    """The value of a setting; None while its module is not loaded."""
    return loaded(CONFIG, name)


# -- requests ---------------------------------------------------------------------------------------------------------

LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""The compiler libraries. NVRTC determines the toolkit's version, and compiles CUDA C++ link inputs."""

DISTRIBUTIONS = ("numba-cuda-mlir", "numpy", "cuda-core")
"""The packages that compile; MLIR and LLVM 7 are part of the first."""


def component_kinds() -> Mapping[str, ReasonKind]:
    """Map each component of a numba-cuda-mlir kernel to its kind of reason. docs/keys.md has a row for each."""
    from ...model.reason import ReasonKind
    from .reasons import KINDS

    return {**KINDS, "argument types": ReasonKind.SIGNATURE, "numba settings": ReasonKind.ENVIRONMENT}


def code_environment(*, has_lines: bool) -> tuple[Component, ...]:
    """Read the settings by name; () while numba-cuda-mlir is not loaded.

    Raises:
        Refused: A planner is registered; or a setting names another LLVM, which cannot be read.
    """
    config = sys.modules.get(CONFIG)
    if config is None:
        return ()
    if has_planners():
        raise Refused("a whole-function planner is registered, which may rewrite any kernel")
    llvm = variables(("LIBLLVM7",)).get("LIBLLVM7", "")
    return (component("numba settings", {**code_settings(config), "LIBLLVM7": llvm and _build_of(llvm)}),)


def _build_of(path: str) -> str:
    try:
        status = os.stat(path)
        return _build_as(path, (status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise Refused(f"LIBLLVM7={path}: {error.strerror}") from None


@functools.lru_cache(maxsize=4)
def _build_as(path: str, _status: tuple[int, ...]) -> str:
    from ...toolchain.build_id import build_of

    return build_of(path)


# -- text ---------------------------------------------------------------------------------------------------------


def transformed_text(function: Any) -> str:
    """The text of a function that a transform will read, from the present content of its file.

    Raises:
        AlwaysRefused: It cannot be read, or was edited since the function was compiled.
    """
    code = function.__code__
    try:
        linecache.checkcache(code.co_filename)
        text = textwrap.dedent(inspect.getsource(function))
        whole = "".join(linecache.getlines(code.co_filename, function.__globals__))
        made = InspectLoader.source_to_code(whole, code.co_filename)  # compiled as by an import, not run
    except (OSError, TypeError, SyntaxError, ValueError):
        raise AlwaysRefused("its text cannot be read, and a text transform reads it") from None
    if not any(_is_same(each, code) for each in _nested(made)):
        raise AlwaysRefused("its file was edited after it was imported, and a text transform reads it again")
    return text


def _is_same(one: CodeType, other: CodeType) -> bool:
    is_same_place = one.co_firstlineno == other.co_firstlineno and one.co_name == other.co_name
    return is_same_place and _form(one) == _form(other)


def _nested(code: CodeType) -> list[CodeType]:
    found = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found + [inner for each in found for inner in _nested(each)]


def _form(code: CodeType) -> Any:
    return code_form(code.replace(co_flags=code.co_flags & 0xF), with_lines=False)
