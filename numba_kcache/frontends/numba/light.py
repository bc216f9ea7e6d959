"""Look up a Python kernel without importing its Numba.

Promise     A request made here has the same components, and so the same key, as after importing Numba. What cannot be
            known without it imports it: from then on a definition is that of an ordinary kernel, of a copy of the
            function that has Numba's objects in place of the stand-ins. A kernel that is resolved by both counts once.
Method      `LightFlavour` answers from the facts what a `Flavour` asks of Numba's objects. `StandInDefinition` is mixed
            into the definition of each Numba.
Not here    The stand-ins and the facts (stand_in), the copies (copies).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any

from ...engine import Request, Session, process_session
from ...keys import components
from ...launch import CODES, Unfit
from ...launch.launcher import memory_of
from ...model import Choice, Resolution, Target
from .. import Variant, front_end
from . import Declared, Flavour, Registrations, loaded, surface
from .arguments import LightType, Signature, Values
from .definition import CO_VARARGS, PythonDefinition, PythonResolutions, definitions
from .fingerprint import Refused, Trust, standing
from .stand_in import (
    HOMES,
    HOST,
    CallableKernel,
    DeviceFunction,
    Facts,
    Home,
    StandIn,
    StandInModule,
    copy_of,
    facts_of,
    jit,
    learners,
    real,
    reasons,
    stays,
)  # fmt: skip

_OF_PYTHON = {float: "f8", bool: "b1", complex: "c8"}


class LightTrust(Trust):
    """A `Trust` that knows the names of stand-ins.

    Args:
        facts: The facts.
        home: The row of the stand-in.
        packages: As for `Trust`.
    """

    stand_in, standing = StandIn, ()

    def __init__(self, facts: Facts, home: Home, packages: frozenset[str]) -> None:
        super().__init__(packages)
        self._facts, self._home = facts, home
        self.homes: dict[int, str] = {
            id(sys.modules.get(f"{home.module}.{path}".rstrip("."))): name for path, name in facts["modules"].items()
        }

    def __missing__(self, name: str) -> bool:
        return name.partition(".")[0] in self._home.marks or super().__missing__(name)

    def name_of(self, value: Any) -> str | None:
        """As for the object that a stand-in stands for."""
        if type(value) is StandIn:
            found: str | None = self._facts.of(value._path).get("name")
            return found if value._home is self._home else None
        return super().name_of(value)

    def attribute(self, owner: Any, name: str) -> Any:
        """An attribute; of a stand-in only one of device code."""
        if isinstance(owner, StandInModule):
            path, modules = f"{owner._path}.{name}".lstrip("."), self._facts["modules"]
            if path in modules:
                self.homes[id(getattr(owner, name))] = modules[path]
            elif not self._facts.of(path):
                raise Refused(f"cuda.{path} is not known without Numba")
        return super().attribute(owner, name)

    def needs_compiler(self, value: Any, attribute: str) -> bool:
        """Check for an attribute of a stand-in that has its own node in the graph."""
        return (
            attribute[0] == "_" or attribute == "py_func" or attribute in self._facts.of(value._path).get("added", ())
        )


class LightFlavour(Flavour):
    """A Numba that is not loaded, as the facts describe it; mixed into the class of its row."""

    facts: Facts
    row: Flavour

    def is_dispatcher(self, value: Any) -> bool:
        """Check whether it is a kernel, or a device function of a stand-in."""
        return type(value) is Declared or (type(value) is DeviceFunction and value._home.kind == self.kind)

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Any:
        """The options of a kernel or device function."""
        if type(dispatcher) is DeviceFunction:
            function = dispatcher.py_func
            if dispatcher._signatures is not None or dispatcher._defaults is not function.__defaults__:
                raise Refused("only Numba reads its signature")
            dispatcher = Declared(function, self.options(dispatcher._given))
        return super().jitted(dispatcher, is_kernel=is_kernel)

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a function, as `cuda.jit` fills them in."""
        facts = self.facts
        found = self.row.default_options(given, debug=facts["debug"], opt=facts["opt"], known=facts["options"])
        if found["link"] or found["extensions"] or found["shared_memory_carveout"] is not None:
            raise Refused("only Numba reads its options")
        return found

    def external(self, value: Any) -> None:
        """None: a program that declares a function has loaded Numba."""

    intrinsic = external

    def type_form(self, value: Any, _extension: Any = None) -> Any:
        """The form of a type in the place of which a stand-in is."""
        is_own = type(value) is StandIn and value._home.kind == self.kind
        return self.facts.of(value._path).get("form") if is_own else None

    def form_of_type(self, kind: Any, _extension: Any = None) -> Any:
        """The form of an argument's type."""
        return kind.form

    def registrations(self) -> Registrations:
        """None: Numba is not loaded."""
        return Registrations(lambda _value: (), {}, [])

    def code_environment(self, *, has_lines: bool) -> tuple[Any, ...]:
        """The settings that count, and the toolkit's defaults."""
        return components(dict(self.facts["environment"][has_lines]))

    def linked_headers(self, links: Any, *, has_lines: bool) -> None:
        """None; refused if the Numba would link a text."""
        if links or self.facts["environment"][0][0][1].get("CUDA_ENABLE_NRT"):
            raise Refused("only Numba reads its link inputs")

    def types_of(self, arguments: Sequence[Any]) -> Signature | None:
        """The types of arguments; None if only Numba knows the type of one."""
        found = [self.type_of(each) for each in arguments]
        return None if None in found else Signature(found)

    def type_of(self, value: Any) -> LightType | None:
        """The type of an argument; None if only Numba knows it."""
        kind = type(value)
        code = _OF_PYTHON.get(kind)
        if kind is int:
            code = "i8" if -(2**63) <= value < 2**63 else "u8" if 0 < value < 2**64 else None
        numpy: Any = sys.modules.get("numpy")
        if getattr(numpy, kind.__name__, None) is kind and isinstance(value, numpy.generic):
            code = CODES.get(kind.__name__.removesuffix("_"))
        return self._array_type(value) if code is None else LightType(self.facts["scalars"][code], code)

    def _array_type(self, value: Any) -> LightType | None:
        if type(value) not in (loaded("torch", "Tensor"), loaded("cupy", "ndarray")):
            interface = getattr(value, "__cuda_array_interface__", None)
            # Numba compares given strides with bits, not bytes, so only arrays without are certain
            if type(interface) is not dict or interface.get("strides") is not None or hasattr(value, "__dlpack__"):
                return None
            if type(interface.get("shape")) is not tuple or hasattr(value, "_numba_type_"):
                return None
            if len(type(value).__mro__) > 2:  # Numba may type it by another base than `object`
                return None
        try:
            memory = memory_of(value)
        except Unfit:
            return None
        if memory is None or memory.element not in self.facts["scalars"]:
            return None
        element, layout = str(memory.element), self.row.layout_of(memory)
        return LightType(
            self.facts["scalars"][element], element, len(memory.shape), layout, mutable=not memory.readonly
        )


class StandInDefinition(PythonDefinition):
    """A Python function as a kernel, in a program that has a stand-in.

    Attributes:
        home: The row of the stand-in.
        row: The row of its Numba.
        light: The class of that row without the Numba.
    """

    home: Home
    row: Flavour
    light: type[Any]
    _light: Any = None
    is_real = False

    @property
    def session(self) -> Any:
        """The session whose facts are used."""
        cache = self.options.get("cache")
        return process_session() if cache is None else cache.session

    @property
    def is_light(self) -> bool:
        """Whether Numba is not needed so far; if it is loaded, or nothing is known of it, it is needed."""
        if not self.is_real:
            facts = "it was loaded" if self.home.is_loaded() else facts_of(self.home, self.row, self.session)
            if isinstance(facts, str):
                self.need(facts)
            elif self._light is None or self._light.facts is not facts:
                self._light = self.flavour = self.light()
                self._light.facts, self._light.row = facts, self.row
                self._light.trust = functools.partial(LightTrust, facts, self.home)
                self._declared = None
        return not self.is_real

    def need(self, why: str) -> None:
        """Import Numba; from now on this is the definition of a copy of the function.

        Raises:
            ToolchainMissingError: It is not installed.
        """
        if self.is_real:
            return
        try:
            real(self.home, f"{self.label}: {why}")
        except ImportError as problem:
            raise self.row.unsuitable(f"cannot be imported: {problem}") from problem
        self.is_real, self.flavour, self._declared = True, self.row, None
        _learn(self.home, self.session)

    @property
    def stays_light(self) -> bool:
        """Whether Numba is not needed by the facts found last: they change with variables and files alone."""
        return self.is_light if self._light is None or self.home.is_loaded() else not self.is_real

    @property
    def declared(self) -> Any:
        """The kernel with all its options, with Numba's objects as they are now once it is loaded."""
        if self.stays_light:
            try:
                if self._declared is None:
                    self._declared = Declared(self.thing, self._light.options(self.given))
                return self._declared
            except Refused as refusal:
                self.need(str(refusal))
        self.subject = copy_of(self.thing)  # brings the copy's namespace up to date
        return super().declared

    def compiler_lock(self) -> Any:
        """The compiler's own lock; while it is not loaded there is nothing to lock."""
        return contextlib.nullcontext() if self.stays_light else super().compiler_lock()

    def types_of(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments of a launch as Numba does."""
        if self.is_light:
            code = self.function.__code__
            is_plain = not (self.function.__annotations__ or code.co_flags & CO_VARARGS)
            if is_plain and len(arguments) == code.co_argcount:
                found: Signature | None = self._light.types_of(arguments)
                if found is not None:
                    return found
            self.need("only Numba knows the types of its arguments")
        return super().types_of(arguments)

    def real_variant(self, variant: Any) -> Any:
        """The variant with Numba's types."""
        parts = surface(self.row)
        return Signature([each.real(parts) for each in variant]) if has_light_types(variant) else variant

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Any:
        """Make the request of one signature for a target."""
        if variant and has_light_types(variant) != self.is_light:
            self.need("its types are Numba's")
            variant = self.real_variant(variant)
        return super().request(target, ptx_target, variant)

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """Read `signature=`, which only Numba can; or take the signatures so far."""
        if signature is None and not self.options.get("signature") and known and self.is_light:
            return known
        self.need("only Numba reads signatures")
        return super().variants(signature, list(dict.fromkeys(map(self.real_variant, known))))

    def __reduce__(self) -> Any:
        return _defined, (self.kind, self.thing, self.options)


class StandInResolutions(PythonResolutions):
    """The artifacts of one Python kernel, in a program that has a stand-in."""

    definition: StandInDefinition

    def known(self) -> dict[Any, Resolution]:
        """A copy of the resolutions so far, by Numba's types once it is loaded."""
        definition, found = self.definition, super().known()
        if definition.is_real:
            for (target, ptx_target, variant), each in list(found.items()):
                if has_light_types(variant):
                    name = target, ptx_target, definition.real_variant(variant)
                    found.setdefault(name, self.resolved.setdefault(name, each))
                    del found[target, ptx_target, variant]
        return found

    def resolve(self, choice: Choice, variant: Variant, session: Session | None = None) -> Resolution:
        """Resolve one variant of a choice; one that was resolved without Numba counts no more."""
        if self.definition.is_real and not has_light_types(variant):
            self.known()
        return super().resolve(choice, variant, session)

    def explain(self, *arguments: Any, **named: Any) -> Any:
        """Explain whether a launch would be a hit, and why Numba was imported."""
        return super().explain(*arguments, **named)._replace(imported=reasons.get(self.definition.kind, ""))

    def _new_resolution(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        definition = self.definition
        if definition.is_light and (not variant or has_light_types(variant)):
            wanted = self._without_numba(choice, variant)
            if wanted is not None:
                found = session.first(session.candidates(wanted)) if session.looks else None
                if found is not None:
                    return found
                if find_spec(definition.home.marks[0]) is None:
                    return session.resolve(wanted)  # raises the error
            definition.need("it is not stored")
        if has_light_types(variant):
            return self.resolve(choice, definition.real_variant(variant), session)
        definition.need("its types are Numba's")
        return super()._new_resolution(session, choice, variant)

    def _without_numba(self, choice: Choice, variant: Variant) -> Request | None:
        """Make the requests of a choice from the facts; None if Numba is needed, or was loaded meanwhile."""
        definition = self.definition
        try:
            found = self.request_for(choice, variant)
        except Exception as error:  # another thread has just loaded Numba, or the stored facts are of another form
            definition.need(f"looking it up without Numba raised {error!r}")
            return None
        if found.uncacheable:
            definition.need(found.uncacheable)
        return None if definition.is_real else found

    def launch_by_front_end(self, *arguments: Any) -> None:
        """Launch through Numba's own dispatcher."""
        self.definition.need("only Numba launches it with such arguments")
        super().launch_by_front_end(*arguments)

    def block_size_by_front_end(self, arguments: Values, shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        self.definition.need("only Numba computes its block size")
        return super().block_size_by_front_end(arguments, shared_bytes)

    def attribute(self, name: str) -> Any:
        """Read an attribute of Numba's dispatcher."""
        self.definition.need(f"the program reads .{name} of it")
        return super().attribute(name)


def has_light_types(variant: Any) -> bool:
    """Check for a variant whose types are not Numba's."""
    return any(type(each) is LightType for each in variant or ())


@functools.cache
def stand_in_class(base: Any) -> Any:
    """The class of definitions of one Numba, in a program that has a stand-in."""
    resolutions = type(f"StandIn{base.__name__}", (StandInResolutions, base.make_resolutions), {})
    light = type("Light", (LightFlavour, type(base.flavour)), {})
    names = {"home": HOMES[base.kind], "row": base.flavour, "light": light, "make_resolutions": resolutions}
    return type(f"StandIn{base.__name__}", (StandInDefinition, base), names)


def _learn(home: Home, session: Session | None = None) -> None:
    """Observe the facts of a Numba that was just imported, or store them for a session."""
    from .learning import learn, store

    learn(home) if session is None else store(home, session)


def _defined(kind: str, thing: FunctionType, options: Mapping[str, Any]) -> Any:
    import_module(HOMES[kind].module)  # a program may have imported single names of it
    return front_end(kind).define(thing, {**options, "kind": kind}, 0)


def package_with(kind: str) -> str | None:
    """The package whose `cuda` a program gets that imports the `cuda` of a Numba; None for the Numba itself.

    It is the stand-in's if facts of the Numba are stored. If not, the Numba is imported now, and they are stored. From
    the first call on, `cuda.jit` of a stand-in is Numba's own once that is loaded.

    Args:
        kind: The Numba, which is not loaded.
    """
    home, session = HOMES[kind], process_session()
    import_module(home.module)
    stays.clear()
    found = facts_of(home, front_end(kind).flavour, session)
    if isinstance(found, str):
        with contextlib.suppress(ImportError):  # the program's own import raises it
            real(home, found)
            _learn(home, session)
        return None
    return home.module.rpartition(".")[0] if all(map(find_spec, home.marks)) else None


def stand_in(kind: str, make_kernel: Callable[..., Any]) -> None:
    """Make the stand-in of a Numba of its module of this package, with the modules in it, and define all functions from
    then on by `StandInDefinition`.

    Args:
        kind: The Numba.
        make_kernel: `cached_kernel`.
    """
    home = HOMES[kind]
    standing.update((StandIn, StandInModule, DeviceFunction, CallableKernel))
    HOST["jit"] = functools.partial(jit, make_kernel)
    learners[:] = [_learn]
    module = sys.modules[home.module]
    module.__class__ = StandInModule
    names = sorted(home.names | home.modules | HOST.keys())
    vars(module).update(_home=home, _path="", __path__=[], __all__=names)
    definitions[kind] = stand_in_class
