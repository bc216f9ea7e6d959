"""The definition of a Python kernel, and its requests: the code shared by the front ends of both Numbas.

Promise     Making a definition imports no compiler. A signature is resolved once for each target in a process, under
            the fingerprint that the function has then. A request's components contain everything that determines the
            code: the kernel's fingerprint, its types, its options (part of the fingerprint) and the compiler's
            settings, as a compilation starting now would use them. An input that cannot be captured makes the request
            uncacheable, with its name: the kernel is then compiled by Numba's own dispatcher, with one warning.
Not here    Options, packing and compiling, which differ (llvm, mlir).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ...engine import Request, RunsUncached, Session
from ...errors import OptionError, UncacheableError
from ...keys import Component, Plain, component, components
from ...model import Artifact, Choice, Resolution, Target
from ...settings import NVRTC_VARIABLES, variables
from .. import COMMON_OPTIONS, Definition, Resolutions, Variant, listed_option
from . import Flavour, surface
from .arguments import Signature, TypedLauncher, Values, converts, is_alone, make_launcher
from .fingerprint import Depends, Fingerprint, Names, Refused, Uncapturable, fingerprint, type_digest

if TYPE_CHECKING:
    from ...launch import LaunchShape
    from ...launch.attributes import LaunchOptions
    from ...launch.launcher import LoadedKernel, Relaunch
    from ...model.reason import ReasonKind
    from ...toolchain import Toolchain


CO_VARARGS = 0x04
"""`co_flags` of a function with *args."""

LAUNCH_OPTIONS = ("cooperative", "cluster", "max_dynamic_shared")
"""Launch attributes that `cuda.jit` has no option for."""

_FLAGS = "fastmath", "lineinfo", "lto", "strict", "keep_ptx", "max_registers"
"""Options that are no text, which the Numbas do not check, or by an error without words."""

OWN_OPTIONS = (COMMON_OPTIONS - {"launch_bounds"}) | {"signature", "keep_ptx"}
"""Options of `cached_kernel` that `cuda.jit` does not have."""


class PythonDefinition(Definition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel.

    Args:
        thing: The function or dispatcher.
        options: Options of `cached_kernel`.

    Attributes:
        subject: The function or dispatcher that is compiled: the thing, or its copy.
        function: The Python function.
        qualname: Its qualified name.
        given: The options of `cuda.jit` among those of `cached_kernel`.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        keep_ptx: Store the PTX with the cubin.
        flavour: The Numba.
        decorator_options: The options of `cuda.jit` for a kernel.
    """

    has_variants = True
    is_sent_by_name = True
    any_variant: Variant = ()
    flavour: Flavour
    decorator_options: Names
    complete: Callable[[Values], Values] | None = None

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        self.thing, self.subject, self.options = thing, thing, options
        function = self.function = getattr(thing, "py_func", thing)
        self.name, self.qualname = function.__name__, function.__qualname__
        self.label = f"{function.__module__}.{self.qualname}"
        code = function.__code__
        self.argument_names = code.co_varnames[: code.co_argcount], function.__defaults__ or ()
        path = code.co_filename
        self.file = os.path.abspath(path) if os.path.isfile(path) else ""
        self.given = self._decorator_options()
        if any(options.get(name) is not None for name in LAUNCH_OPTIONS):
            from ...launch.attributes import read_launch_options

            self.launch_options = read_launch_options(options, self.kind)
        self.depends: Depends = listed_option(options, "depends") if "depends" in options else ()
        self.strict = bool(options.get("strict", False))
        self.keep_ptx = bool(options.get("keep_ptx", True))
        self._declared: Any = None

    def _decorator_options(self) -> dict[str, Any]:
        """The options of `cuda.jit` among those of `cached_kernel`; link paths start in the function's folder."""
        options = self.options
        given = {name: value for name, value in options.items() if name not in OWN_OPTIONS and value is not None}
        if options.get("carveout") is not None:
            given["shared_memory_carveout"] = options["carveout"]
        unknown = sorted(given.keys() - set(self.decorator_options))
        if unknown:
            from ...model.options import hint_for_function

            hint = hint_for_function(unknown[0], sorted({*self.decorator_options, *OWN_OPTIONS}))
            raise OptionError(f"cannot use option {unknown[0]!r} here", "a Numba kernel does not take it", hint)
        for name in _FLAGS:
            if isinstance(options.get(name), str):
                hint = f"write {name}={64 if name == 'max_registers' else True}"
                raise OptionError(f"cannot use {name}={options[name]!r}", "it is a str", hint)
        if "opt" in given:
            given["opt"] = bool(given["opt"])
        if "link" in given:
            links = given["link"] if isinstance(given["link"], (list, tuple)) else [given["link"]]
            folder = os.path.dirname(os.path.abspath(self.function.__code__.co_filename))
            given["link"] = [
                os.path.join(folder, os.fspath(each)) if isinstance(each, (str, os.PathLike)) else each
                for each in links
            ]
        return given

    @property
    def declared(self) -> Any:
        """The kernel with all its options, as `cuda.jit` fills them in; imports Numba and builds no target context.

        Raises:
            OptionError: The function is a device function, or an option cannot be used.
            ToolchainMissingError: Numba's CUDA target is not installed.
        """
        if self._declared is None:
            declared = self.declare()
            if declared.targetoptions.get("device"):
                why = "it was decorated with device=True"
                raise OptionError("cannot launch a device function", why, "call it in a kernel")
            self._declared = declared
        return self._declared

    @property
    def has_lines(self) -> bool:
        """Whether its code has line tables or exceptions."""
        options = self.declared.targetoptions
        return bool(options.get("debug") or options.get("lineinfo"))

    # -- implemented by each front end --------------------------------------------------------------

    def declare(self) -> Any:
        """Fill in the options, as `declared` says."""
        raise NotImplementedError

    def types_of(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments of a launch as the compiler does.

        Raises:
            ValueError, TypeError: It has no type for one.
        """
        raise NotImplementedError

    def read_signatures(self, given: Any) -> Sequence[Variant]:
        """Read the argument types from the value of `signature=`: a signature as `cuda.jit` takes it, or a list.

        Raises:
            OptionError: One is not a signature, or returns something.
        """
        parts, found = surface(self.flavour), []
        for each in given if isinstance(given, list) else [given]:
            try:
                arguments, returned = parts.normalize_signature(each)
            except Exception as error:  # Numba evaluates the text, which may raise anything; the error is reported
                what, hint = f"cannot read signature {each!r}", 'write "void(float32[::1], int64)" or a tuple of types'
                raise OptionError(what, str(error), hint) from error
            if returned not in (None, parts.types.void):
                raise OptionError(f"cannot use signature {each!r}", f"it returns {returned}", "a kernel returns void")
            found.append(Signature(arguments))
        return found

    def build(
        self,
        found: Fingerprint | Uncapturable,
        types: Any,
        target: Target,
        ptx_target: Target | None,
        runtime_build: str | None,
    ) -> Artifact:
        """Compile the artifact of a request.

        Args:
            found: The kernel's fingerprint, or the reason why it has none.
            types, target, ptx_target: As for `kernel_request`.
            runtime_build: Build of `Flavour.runtime` in its key; None for none.

        Raises:
            UncacheableError: The result is only valid in this process, or is not that of its key.
        """
        from .compiled_code import compile_kernel, observed

        known = None if isinstance(found, Uncapturable) else found
        try:
            with self.compiler_lock(), observed(self.flavour, known.unread if known else ()):
                return compile_kernel(
                    self.flavour, self.declared, types, target, ptx_target=ptx_target, keep_ptx=self.keep_ptx,
                    device_functions=known.device_functions() if known else (), links=known.links if known else (),
                    runtime_build=runtime_build,
                )  # fmt: skip
        except UncacheableError as error:
            raise UncacheableError(f"cannot cache {self.label}", error.why) from error
        except Exception as error:  # mostly the compiler's own, whose message is kept
            error.add_note(f"while compiling the Numba kernel {self.label} for ({', '.join(map(str, types))})")
            raise

    def by_value(self) -> Any:
        """Make a definition that pickles its function by value."""

        return ByValue(self)

    def compiler_lock(self) -> Any:
        """The compiler's own lock over compilation. It is held for the compiler's work, never for a subscriber."""
        return surface(self.flavour).global_compiler_lock

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: bytes, **more: Any
    ) -> TypedLauncher | None:
        """Make the launcher for arguments of exactly these types; None if the Numba's own launch is needed."""
        if self.is_launched_by_dispatcher(more["artifact"].attributes):
            return None
        types: Any = variant
        named = zip(self.function.__code__.co_varnames, types, strict=False)
        labels = [f"{name}: {kind}" for name, kind in named] if more["debug"] else None
        return make_launcher(
            self.flavour, loaded, self.name, types, relaunch=relaunch, otherwise=more["otherwise"],
            attributes=attributes, debug_labels=labels, complete=self.complete, casts=self.casts(types),
        )  # fmt: skip

    def is_launched_by_dispatcher(self, known: Mapping[str, Any]) -> bool:
        """Check whether a kernel with these attributes needs the Numba's own launch."""
        return bool(known.get("debug") or self.declared.targetoptions.get("extensions"))

    # -- requests and variants ----------------------------------------------------------------------

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one signature for a target, for the function's present state."""
        return kernel_request(self, read_function(self), variant, target, ptx_target)

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments as Numba does; None for another number of them that Numba itself may take.

        Raises:
            ArgumentError: There are too few or too many.
            ValueError, TypeError: Numba has no type for one.
        """
        code, complete = self.function.__code__, self.complete
        arguments = complete(tuple(arguments)) if complete else arguments
        number, takes_more = len(arguments), bool(code.co_flags & CO_VARARGS)
        if number < code.co_argcount or (number > code.co_argcount and not (complete and takes_more)):
            if complete is None and (takes_more or self.function.__defaults__):
                return None
            from ...launch.keywords import wrong_count

            raise wrong_count(self.name, number, code.co_varnames[: code.co_argcount])
        takes_any = getattr(self.thing, "_can_compile", True)
        try:
            types = self.types_of(arguments)
        except (ValueError, TypeError) as error:  # Numba's message does not name the kernel
            if not takes_any:  # Numba types nothing if there is one signature
                return None
            error.add_note(self.note)
            raise
        return types if takes_any or types is None else self.chosen(self.fixed, types)

    @property
    def fixed(self) -> tuple[Signature, ...]:
        """The signatures of the user's dispatcher if it takes no others; else ()."""
        return () if getattr(self.thing, "_can_compile", True) else tuple(map(Signature, self.thing.overloads))

    def chosen(self, fixed: Sequence[Signature], types: Any) -> Variant:
        """The signature that Numba chooses for argument types; None if only Numba can tell, or refuses them."""
        like = [types] if types in fixed else [each for each in fixed if converts(self.flavour, types, each)]
        is_certain = types in fixed or (len(like) == 1 and is_alone(self.flavour, like[0], fixed))
        return like[0] if is_certain else None

    def casts(self, variant: Any) -> Sequence[bool]:
        """Tell for each argument whether it is converted to its type: only if all that are have this variant."""
        fixed = self.fixed
        return [bool(fixed) and is_alone(self.flavour, variant, fixed)] * len(variant)

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """Read `signature=`; if it is None, take the definition's own signatures, or else those resolved so far."""
        given = self.options.get("signature") if signature is None else signature
        assert self.declared  # raises if Numba is not installed
        if given is None and self.fixed:
            given = [*map(tuple, self.fixed)]
        found = self.read_signatures(given) if given is not None else known
        if not found:
            code = self.function.__code__
            hint = 'write signature="void(float32[::1], int64)"'
            if not code.co_argcount:
                hint = 'did you forget `return` before the source? as a Numba kernel it needs signature="void()"'
            raise OptionError(f"cannot compile {self.name}", "it has no signature", hint)
        return found

    @property
    def note(self) -> str:
        """The note that is added to Numba's own errors."""
        return f"while launching the Numba kernel {self.label}"

    def launch_options_of(self, artifact: Artifact) -> LaunchOptions | None:
        """The user's launch options, and those that the compiler determined: cooperative grids, the carveout."""
        known, options = artifact.attributes, self.launch_options
        carveout = known.get("carveout")
        if not known.get("cooperative") and carveout is None:
            return options
        from ...launch.attributes import LaunchOptions

        options = options or LaunchOptions()
        is_cooperative = options.cooperative or bool(known.get("cooperative"))
        return options._replace(cooperative=is_cooperative, carveout=None if carveout is None else int(carveout))


class PythonResolutions(Resolutions):
    """The artifacts of one Python kernel.

    Attributes:
        dispatcher: Numba's dispatcher, for arguments that no launcher supports; None before it is needed.
        specialized: The kernels for one signature, by the dispatcher of each.
        launches: The owner of the method that chooses the session; None if the process's session is used.
    """

    definition: PythonDefinition

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dispatcher: Any = None
        self.specialized: dict[Any, Any] = {}
        self.launches: Any = getattr(self.session, "__self__", None)
        self._uncached: dict[Variant, str] = {}
        if self.definition.options.get("signature"):
            Session.declared[id(self)] = self

    def ahead(self, target: Target) -> Sequence[Any]:
        """Functions that resolve its own signatures for a device, without those resolved or being resolved."""
        choice, known = self.choose(target), {*self.known(), *self._resolving}
        with self.definition.compiler_lock():
            variants = self.definition.variants(None, ())
        unknown = (each for each in variants if (choice.target, choice.ptx_target, each) not in known)
        return [functools.partial(self.resolve, choice, each) for each in unknown]

    def request_for(self, choice: Choice, variant: Variant) -> Request:
        """Make the requests of a choice from one reading of the function."""
        make = functools.partial(kernel_request, self.definition, read_function(self.definition), variant)
        return make(choice.target, choice.ptx_target)._replace(choice=choice, make=make)

    def _new_resolution(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        if variant in self._uncached:
            raise RunsUncached(f"cannot cache {self.definition.label}", self._uncached[variant])
        with self.definition.compiler_lock():
            request = self.request_for(choice, variant)
        is_counted = False
        if not request.uncacheable or self.compiles_uncached():
            try:
                return session.resolve(request)
            except UncacheableError as error:
                request, is_counted = request._replace(uncacheable=error.why), True
        session.refuse(request, is_counted=is_counted)
        self._uncached[variant] = request.uncacheable
        raise RunsUncached(f"cannot cache {self.definition.label}", request.uncacheable)

    def compiles_uncached(self) -> bool:
        """Check whether an uncacheable kernel is compiled and launched by this package, not by Numba's dispatcher."""
        return False

    @property
    def part(self) -> Any:
        """The module with the Numba's own dispatcher."""
        return self.definition.flavour.part("dispatcher")

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: Values) -> None:
        """Launch through the Numba's own dispatcher."""
        self.part.launch(self, shape, stream, arguments)

    def attribute(self, name: str) -> Any:
        """Read an attribute of the Numba's own dispatcher."""
        own = name in self.part.NAMES
        return self.part.dispatcher.attribute_of(self, name) if own else super().attribute(name)

    def cache_of(self, dispatcher: Any, *, is_numbas: bool = False) -> Any:
        """Make the cache of one of the Numba's dispatchers (`CacheOfDispatcher`)."""
        return self.part.DispatcherCache(self, dispatcher, is_numbas=is_numbas)

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        super().forget()
        self._uncached = {}
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher.overloads.clear()
            if hasattr(self.dispatcher, "_clear"):  # numba-cuda has another table of them
                self.dispatcher._clear()


definitions: dict[str, Callable[[Any], Any]] = {}
"""For a kind whose `cuda` the program has from this package: makes the class of its functions' definitions (light)."""


class PythonFrontEnd:
    """The front end for functions and dispatchers of one Numba.

    Args:
        definition: The class of its definitions.
    """

    def __init__(self, definition: type[PythonDefinition]) -> None:
        self.kinds, self.flavour, self._definition = (definition.kind,), definition.flavour, definition

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> Any:
        """Define a kernel."""
        if options.get("kind") in (None, *self.kinds) and hasattr(getattr(thing, "py_func", thing), "__code__"):
            choose = definitions.get(self.kinds[0]) if type(thing) is FunctionType else None
            chosen = self._definition if choose is None else choose(self._definition)
            return chosen(thing, dict(options))
        if options.get("kind") in self.kinds:
            why = f"it is a {type(thing).__name__}"
            raise OptionError(f"cannot make a Numba kernel of {thing!r:.80}", why, "give a function")
        return None


# -- requests ----------------------------------------------------------------------------------------------------------


_KINDS = {
    "signature": "argument types",
    "environment": "numba settings",
    "source_changed": "function|kernel |device function |function |class |declaration of |overload of |special ",
    "value_changed": "module |global |closure |defaults of |bytes of ",
    "options": "options of ",
    "link_input": "link ",
    "depends": "depends[",
}
"""The names of components, or prefixes of them, for each kind of reason. docs/keys.md has a row for each."""


@functools.cache
def component_kinds() -> Mapping[str, ReasonKind]:
    """Map each component of a kernel, by its name or a prefix of it, to its kind of reason."""
    from ...model.reason import ReasonKind

    return {name: ReasonKind(kind) for kind, names in _KINDS.items() for name in names.split("|")}


def read_function(definition: PythonDefinition) -> Fingerprint | Uncapturable:
    """Fingerprint the kernel in its present state."""
    declared, lines = definition.declared, definition.has_lines
    return fingerprint(declared, definition.flavour, with_lines=lines, depends=definition.depends, is_observed=True)


def kernel_request(
    definition: PythonDefinition,
    found: Fingerprint | Uncapturable,
    types: Any,
    target: Target,
    ptx_target: Target | None,
) -> Request:
    """Make the request of one signature for one target.

    Args:
        definition: The kernel.
        found: Its fingerprint, or the reason why it has none (`read_function`).
        types: Numba types of its arguments.
        target: The target to build for.
        ptx_target: The virtual target to compile to first, if the user gave one.
    """
    flavour = definition.flavour
    runtime = flavour.runtime if isinstance(found, Fingerprint) and found.is_cooperative() else ""

    def build(toolchain: Toolchain) -> Artifact:
        linked = toolchain.library(runtime) if runtime else None
        return definition.build(found, types, target, ptx_target, linked and linked.build)

    request = Request(
        label=definition.label,
        target=target,
        components=(),
        libraries=(*flavour.libraries, *filter(None, (runtime,))),
        distributions=flavour.distributions,
        build=build,
        strict=definition.strict,
        texts=dict if isinstance(found, Uncapturable) else found.sources,
        file=definition.file,
        name=definition.qualname,
        kinds=component_kinds,
    )
    if isinstance(found, Uncapturable):
        return request._replace(uncacheable=f"{found.name}: {found.reason}")
    lines, depends = definition.has_lines, definition.depends
    try:
        signature = signature_component(flavour, types, with_lines=lines, depends=depends)
        environment = flavour.code_environment(has_lines=found.graph.has_lines)  # as the compile will use them
        headers = flavour.linked_headers(found.links, has_lines=lines)
    except Refused as refusal:
        return request._replace(uncacheable=str(refusal))
    targets: list[Plain] = [target.name, ptx_target.name if ptx_target else None]
    named = (
        *components({"kind": definition.kind, "function": found.digest}),
        signature,
        *components({"target": targets, "environment": dict(variables(NVRTC_VARIABLES))}),
        *environment,
        *([] if definition.keep_ptx else [component("options", {"keep_ptx": False})]),
        *found.components,
    )
    changed = functools.partial(_changed, definition, named, types, target, ptx_target)
    return request._replace(components=named, headers=headers, changed=changed)


def _changed(definition: PythonDefinition, before: Sequence[Component], types: Any, *targets: Any) -> str:
    """Read everything again, and name an input that changed during the compile; "" for none.

    Another thread, or typing code itself, may have set a global or registered an overload meanwhile.
    """
    now = kernel_request(definition, read_function(definition), types, *targets)
    if now.uncacheable:
        return now.uncacheable
    old, new = ({each.name: each.digest for each in named} for named in (before, now.components))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return f"{names[-1]} changed while it was compiled" if names else ""  # the last is the most specific


class ByValue:
    """A picklable object that unpickles as a definition, without importing the function's file."""

    def __init__(self, definition: PythonDefinition) -> None:
        self.definition = definition

    def __reduce__(self) -> Any:
        home, (make, (*of, thing, options)) = f"{self.definition.flavour.home}.serialize", self.definition.__reduce__()
        return _load, (make, of, home, bytes(import_module(home).dumps(thing)), options)


def _load(make: Any, of: list[Any], home: str, function: bytes, options: Mapping[str, Any]) -> Any:
    return make(*of, import_module(home).loads(function), options)  # safe: the bytes come from the parent process


def signature_component(
    flavour: Flavour, types: Iterable[Any], *, with_lines: bool = False, depends: Depends = ()
) -> Component:
    """Make the component of the argument types, in order; its recorded value is their text. The code of a type that a
    program added is read as a kernel is, with these arguments of `fingerprint`.

    Raises:
        Refused: A type cannot be captured.
    """

    def extension(kind: Any) -> Plain:
        return "type of an extension", type_digest(kind, flavour, with_lines=with_lines, depends=depends)

    types = tuple(types)
    form = [flavour.form_of_type(each, extension) for each in types]
    return component("argument types", form)._replace(value=[str(each) for each in types])
