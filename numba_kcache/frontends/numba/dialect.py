"""numba-cuda's `Dialect`: its names, the options of its dispatchers, declarations of external functions, settings.

Promise     No module of Numba is imported. An object with unexpected attributes is not recognised, and so its kernel is
            not cached.
Method      This module itself is the `Dialect` that is passed to `fingerprint`. Two settings have defaults that Numba
            takes from the installed CUDA runtime. Default values are in the component `numba toolkit`, which counts as
            part of the compilers; a value that the program sets is in `numba settings`, like the other settings.
Not here    The functions shared with numba-cuda-mlir (python.numbas).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ...keys import Component, component
from ...model.request import LinkInput
from ...settings import working_directory
from ..python import External, Jitted, numbas
from ..python.configuration import CODE_MODULES, code_settings, registries_among
from ..python.numbas import Declared, Names, fixed_signatures, is_a, loaded, signature_read
from ..python.value import OF_NUMPY, AlwaysRefused, plain_setting

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from ...model.reason import ReasonKind

__all__ = ["Declared", "external", "form_of_type", "intrinsic", "jitted", "loaded", "packages", "python_function"]

packages = frozenset({"numba", "numba.cuda", "numba_cuda", "numpy", "llvmlite"})

stateful = OF_NUMPY | {
    "numba.cuda.api", "numba.cuda.cudadrv.devices", "numba.cuda.cudadrv.driver", "numba.cuda.cudadrv.runtime",
    "numba.cuda.device_init", "numba.np.ufunc.parallel",
}  # fmt: skip
"""Modules whose results depend on state: the current device's, threads', and NumPy's."""

_NRT = "numba.cuda.memory_management.nrt"

_HOLDERS = (
    ("numba.core.typing.templates", "builtin_registry"), ("numba.core.imputils", "builtin_registry"),
    ("numba.cuda.typing.templates", "builtin_registry"), ("numba.cuda.core.imputils", "builtin_registry"),
    *((f"numba.cuda.{name}", "registry") for name in (
        "cudadecl", "cudaimpl", "cudamath", "libdevicedecl", "libdeviceimpl", "mathimpl", "printimpl",
        "core.optional", "misc.cffiimpl", "typing.arraydecl", "typing.builtins", "typing.cffi_utils",
        "typing.cmathdecl", "typing.collections", "typing.enumdecl", "typing.npdatetime", "typing.npydecl",
        "np.arraymath", "np.arrayobj", "np.npdatetime", "np.npyimpl", "np.polynomial.polynomial_core",
        "cpython.builtins", "cpython.charseq", "cpython.cmathimpl", "cpython.enumimpl", "cpython.iterators",
        "cpython.listobj", "cpython.mathimpl", "cpython.numbers", "cpython.rangeobj", "cpython.slicing",
        "cpython.tupleobj", "cpython.unicode")),
    *((f"numba.cuda.{name}", f"{kind}_registry") for name in ("fp16", "bf16", "fp8") for kind in ("typing", "target")),
    ("numba.cuda.vector_types", "typing_registry"), ("numba.cuda.vector_types", "impl_registry"),
)  # fmt: skip
"""Modules in which Numba has its registries; those that a program installs are in Numba's typing and target context."""

_HOLDERS_OF = "0.30."
"""The versions for which `_HOLDERS` is complete; in others all modules are searched."""


@lru_cache(maxsize=1)
def _holders(_modules_loaded: int) -> Iterable[tuple[str, str]]:
    if str(loaded("numba_cuda", "__version__")).startswith(_HOLDERS_OF):
        return _HOLDERS
    others = registries_among([each for each in sys.modules.copy() if each.startswith("numba.cuda.")])
    return tuple(dict.fromkeys((*_HOLDERS, *others)))


NAMES = Names(
    packages=packages,
    home="numba.cuda",
    dispatchers=(("numba.cuda.dispatcher", "CUDADispatcher"), ("numba.core.dispatcher", "Dispatcher")),
    types=(("numba.core.types", "Type"), ("numba.cuda.types", "Type")),
    intrinsics=(("numba.cuda.extending", "_Intrinsic"), ("numba.core.extending", "_Intrinsic")),
    signatures=(("numba.cuda.typing.templates", "Signature"), ("numba.core.typing.templates", "Signature")),
    target=("numba.cuda.descriptor", "cuda_target"),
    holders=lambda: _holders(len(sys.modules)),
    models=(("numba.cuda.datamodel", "default_manager"), ("numba.cuda.models", "cuda_data_manager")),
    owned="numba",
    making=("numba.", "numpy", "abc", "builtins", "numbers", "enum"),
    generated="numba.",
    code_modules=tuple(
        f"numba.cuda.{name}" for name in (*CODE_MODULES, "codegen", "dispatcher", "models", "nvvmutils")
    ),
)

python_function = partial(numbas.python_function, NAMES)
intrinsic = partial(numbas.intrinsic, NAMES)
type_form = partial(numbas.type_form, NAMES)
form_of_type = partial(numbas.form_of_type, NAMES)
untyped = partial(numbas.untyped, NAMES)
code_modules = NAMES.code_modules
registrations = partial(numbas.registrations, NAMES)
registries = partial(numbas.registries, NAMES)


def jitted(dispatcher: Any, *, is_kernel: bool) -> Jitted:
    """The options of a dispatcher; for a device function also its given signatures, to which arguments are cast."""
    options = dict(dispatcher.targetoptions)
    if not is_kernel:  # `lto` has no effect on device functions, and its default depends on nvJitLink
        options.pop("lto", None)
    links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
    options["signatures"] = None if is_kernel else fixed_signatures(dispatcher)
    given = getattr(dispatcher, "locals", None)  # types by name of local variables, which are otherwise not keyed
    options["locals"] = [given, dispatcher.py_func.__code__.co_varnames] if given else None
    links = (links,) if isinstance(links, (str, os.PathLike)) else links
    opaque = {"extensions": extensions} if extensions else {}
    has_lines = bool(options.get("debug") or options.get("lineinfo"))
    pysig = None if is_kernel else signature_read(dispatcher)
    return Jitted(options, opaque, _users_links(links), has_lines, pysig)


def _users_links(links: Iterable[Any]) -> list[Any]:
    """The user's link inputs, without those that Numba appends while it compiles: its version determines them."""
    return [each for each in links if not _is_own_link(each)]


def _is_own_link(link: Any) -> bool:
    if not isinstance(link, str):
        return link is not None and link is loaded(_NRT, "NRT_LIBRARY")
    folder = next(iter(loaded("numba.cuda", "__path__") or ()), None)
    return folder is not None and link == os.path.join(folder, "reshape_funcs.cu")


def runtime() -> LinkInput | None:
    """CUDA C++ of Numba's runtime, which it links to kernels that need it; None if it is not enabled."""
    if not loaded("numba.cuda.core.config", "CUDA_ENABLE_NRT"):
        return None
    from ...model.linkable import linkable_input

    found, file = linkable_input(loaded(_NRT, "NRT_LIBRARY")), loaded(_NRT, "__file__")
    return found and found._replace(folder=os.path.dirname(str(file)))


def external(value: Any) -> External | None:
    """The declaration behind a descriptor of `declare_device`; None for other objects.

    Raises:
        AlwaysRefused: It is a descriptor, but its declaration cannot be read.
    """
    if not is_a(value, ("numba.cuda.compiler", "ExternFunction")):
        return None
    context: Any = getattr(loaded("numba.cuda.descriptor", "cuda_target"), "_targetctx", None)
    try:
        ((_signature, implementation),) = context._defns.get(value).versions
        (library,) = implementation.libs
        (description,) = implementation.__defaults__
        links, cooperative = _users_links(library._linking_files), bool(library.use_cooperative)
        abi = type(description.call_conv).__name__
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AlwaysRefused("its declaration cannot be read") from None
    return External(value.name, str(value.sig), abi, cooperative, links)


# -- requests ---------------------------------------------------------------------------------------------------------

LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""The compiler libraries. NVRTC is used for every kernel: Numba queries its architectures, and its fp16 is CUDA C++."""

DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")

_OF_TOOLKIT = {
    "CUDA_DEBUG_POLY": "DEBUG_POLY_SUPPORTED", "CUDA_DEBUG_POLY_USE_TYPED_CONST": "DEBUG_POLY_USE_TYPED_CONST",
}  # fmt: skip
"""Settings whose default depends on the toolkit, and the name of that default in `numba.cuda.debuginfo`."""

_CONFIG = "numba.cuda.core.config"


def component_kinds() -> Mapping[str, ReasonKind]:
    """The kind of reason for each component of a Numba kernel. docs/keys.md has a row for each."""
    from ...model.reason import ReasonKind
    from ..python.reasons import KINDS

    return {
        **KINDS,
        "argument types": ReasonKind.SIGNATURE,
        "numba settings": ReasonKind.ENVIRONMENT,
        "numba toolkit": ReasonKind.COMPILER,
    }


def linked_headers(links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
    """Make the search for headers of CUDA C++ among these link inputs, and of the runtime that Numba may add.

    Args:
        links: Link inputs of the kernel and its callees.
        has_lines: Whether the kernel has line tables; its link inputs have none.

    Raises:
        Refused: They cannot be keyed.
    """
    texts = [each for each in links if each.kind == "cu"]
    own = runtime()
    if not texts and own is None:
        return None
    from ..python.files import check_texts

    asking = check_texts(texts)
    if own is None and not asking:
        return None
    from ...headers.roots import HeaderSearch

    given = filter(None, str(loaded(_CONFIG, "CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))
    extra = [os.path.join(working_directory(), each) for each in given]  # as NVRTC does: `..` stays
    texts += filter(None, (own,))
    folders = filter(None, (*extra, *(each.folder for each in texts)))  # equal ones too, for `Roots.layout`
    is_working = not all(each.folder for each in texts)
    toolkit = ("numba_include_dirs", _toolkit_dirs)
    return HeaderSearch(tuple(each.data for each in texts), tuple(folders), toolkit, is_working=is_working)


def _toolkit_dirs() -> Sequence[str]:
    from .link import toolkit_dirs

    return toolkit_dirs()


def code_environment(*, has_lines: bool) -> tuple[Component, ...]:
    """Read the settings, and the toolkit's defaults; () while `numba.cuda` is not loaded.

    Args:
        has_lines: Whether any function has line tables, which say whether the code is optimised.
    """
    config = sys.modules.get(_CONFIG)
    if config is None:
        return ()
    settings = code_settings(config)
    if has_lines:
        settings["OPT"] = bool(config.OPT)
    defaults = {name: plain_setting(loaded("numba.cuda.debuginfo", where)) for name, where in _OF_TOOLKIT.items()}
    for name, default in defaults.items():
        if settings[name] == default:
            settings[name] = None
    return component("numba settings", settings), component("numba toolkit", defaults)
