"""The definition of a Python kernel: its fingerprint, and its requests; shared by the front ends of both Numbas.

Promise     Making a definition imports no compiler. A signature is resolved once for each target in a process, under
            the fingerprint that the function has then. A request's components contain everything that determines the
            code: the kernel's fingerprint, its types, its options (part of the fingerprint) and the compiler's
            settings, as a compilation starting now would use them. An input that cannot be captured makes the request
            uncacheable, with its name: the kernel is then compiled by Numba's own dispatcher, with one warning.
            A change of any of these changes the fingerprint: the code, constants and defaults of the function and
            of every function it calls, in any file; the globals, closure variables and attributes of
            modules they read; decorator options; the content of linked files; Python's minor version.
            Nothing else does: not process, hash seed, module name, checkout path, comments or lines (unless
            lines are requested). An input that cannot be captured gives `Uncapturable`, and is never left out; if
            the user gives `depends`, it represents the content of such inputs, and only of such.
Method      A graph: a node per function and per value, an edge per name that is read. The digest of a
            function covers the nodes it reaches, numbered in the order of the code that reaches them.
            Objects of the compiler are described by its `Flavour`.
Not here    Options, packing and compiling, which differ (llvm, mlir). Packages that are pinned by version (the
            compiler, NumPy, the standard library; a separate component) and headers that linked CUDA C++ includes
            (headers).
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ...engine import Request, RunsUncached, Session
from ...errors import ArgumentError, OptionError, UncacheableError
from ...keys import COVERED, Component, Plain, component, digest_of, encode, sha256
from ...model import Artifact, Choice, LinkInput, NamedTuple, Origin, Resolution, Target
from ...settings import NVRTC_VARIABLES, variables
from .. import COMMON_OPTIONS, Definition, Resolutions, Variant
from . import Flavour, replaced, surface
from .arguments import TypedLauncher, make_launcher
from .forms import (
    ABSENT,
    COOPERATIVE,
    ORIGINAL,
    SPECIAL,
    AlwaysRefused,
    Read,
    Refused,
    RefusedByName,
    Unread,
    name_of,
    read_code,
    real_of,
    shown,
    state_of,
    telling,
    value_form,
    words_in,
)

if TYPE_CHECKING:
    from ...launch import LaunchShape
    from ...launch.attributes import LaunchOptions
    from ...launch.launcher import LoadedKernel, Relaunch
    from ...model.reason import ReasonKind
    from ...toolchain import Toolchain
    from . import Registration


# -- fingerprints ------------------------------------------------------------------------------------------------------

Edge = tuple[str, "int | str"]
"""A name that is read, and the node of its value, or a text that identifies the value."""


class Graph:
    """Nodes by index: components[i] describes node i, and edges[i] are the names that it reads. kept[i] is the object
    under which the compiler stores the node's compiled code, with its code object."""

    def __init__(self) -> None:
        self.components: list[Component] = []
        self.edges: list[list[Edge]] = []
        self.kept: dict[int, tuple[Any, CodeType]] = {}
        self._labels: dict[str, int] = {}
        self.has_lines = False  # whether any function has line tables

    def add(self, label: str, digest: bytes, clear: Plain, edges: list[Edge] | None = None) -> int:
        """Add a node; a number is appended to a label that is in use."""
        repeated = self._labels[label] = self._labels.get(label, 0) + 1
        self.components.append(Component(label if repeated == 1 else f"{label} ({repeated})", digest, clear))
        self.edges.append(edges if edges is not None else [])
        return len(self.edges) - 1

    def digest(self, start: int) -> str:
        """The digest of all nodes reachable from `start`."""
        numbers, order = {start: 0}, [start]
        nodes: list[Plain] = []
        for index in order:  # grows while it is walked
            edges: list[Plain] = []
            for name, goal in self.edges[index]:
                if type(goal) is int:
                    if goal not in numbers:
                        numbers[goal] = len(order)
                        order.append(goal)
                    goal = numbers[goal]
                edges += name, goal
            nodes.append((self.components[index].encoded, edges))
        return digest_of((sys.implementation.cache_tag, nodes))


_LAZY = getattr(types, "LazyImportType", ())
"""The class of a name that `lazy import` has not resolved yet (Python 3.15, PEP 810)."""

_DATA = frozenset({bool, int, float, complex, str, bytes, tuple})
_PLAIN = _DATA | {type(None), type(sys.version_info)}

Depends = Iterable[Any] | Mapping[Any, Any]
"""The option `depends=`: values and files; or a mapping of objects that cannot be read to what represents them."""


_MISLEADING = {"__wrapped__", "__signature__"}
"""Attributes with which `inspect.signature` describes other parameters than a function has."""


class Uncapturable(NamedTuple):
    """The reason why a kernel cannot be keyed, and the name of the offending function or value."""

    reason: str
    name: str


class Fingerprint(NamedTuple):
    """Everything that determines a kernel's code, apart from argument types.

    Args:
        digest: Digest of all of it, as 64 hexadecimal digits; goes into the key.
        components: Its parts with labels and digests, for explanations. The labels contain names of modules and
            files, which the digest does not cover.
        links: Link inputs of the options and of declared functions, in order.
        graph: For `device_functions`.
        unread: Registrations that cannot be read, and that this kernel seems not to use: the reason, a name, and the
            registration. The key has what they are for. The compile shows whether one is used (`compiled_code`).
    """

    digest: str
    components: tuple[Component, ...]
    links: tuple[LinkInput, ...]
    graph: Graph
    unread: tuple[tuple[str, str, Registration], ...] = ()

    def device_functions(self) -> tuple[tuple[Any, str], ...]:
        """Objects whose compiled code the compiler keeps, callees before callers, with their digests (`call_order`)."""

        kept = kept_objects(self.graph)
        once = os.urandom(8).hex() if self.unread else ""  # all are compiled again, to see what they use
        unread = [(code, once) for _why, _name, each in self.unread for code in each.code if type(code) is FunctionType]
        return *unread, *((each, digest + once) for each, digest in kept)

    def is_cooperative(self) -> bool:
        """Check whether its code synchronises the grid. An intrinsic may add that later, while it is lowered."""
        edges = repr(self.graph.edges)
        return "this_grid" in edges or COOPERATIVE in edges

    def sources(self) -> dict[str, tuple[str, Origin]]:
        """The Python source of the kernel and of `device_functions`, by component, if a file contains it."""
        found = {}
        for index, (_, code) in self.graph.kept.items():
            text = _objects().source_text(code)
            if text:
                found[self.components[index].name] = text, Origin(code.co_filename, code.co_firstlineno)
        return found


def fingerprint(
    function: Any, flavour: Flavour, *, with_lines: bool, depends: Depends = (), is_observed: bool = False
) -> Fingerprint | Uncapturable:
    """Fingerprint a kernel in its present state; since globals may change, this is done at each signature's first use.

    Args:
        function: A Python function, or a dispatcher of the flavour, whose options then count.
        flavour: The flavour of the kernel's compiler.
        with_lines: Whether file and lines count, as they do if line tables or exceptions are compiled in.
            For functions whose own options request lines, they always count.
        depends: Further values, functions, and files (`pathlib.Path`, or `str` if it names a file relative to
            the function's own) whose content counts. As a mapping, each represents its key: a value that cannot be
            read, or the name by which such a value was refused.
        is_observed: Whether the compile will show which registrations it uses (`Fingerprint.unread`).
    """
    plain = _undecorated(function, flavour)

    def read(reader: Reader) -> None:
        reader.add_function(function)
        reader.add_depends(plain)
        patches = replaced(flavour.code_modules, flavour.named_modules, reader.trust)
        if patches:
            _objects().add_patches(reader, patches)

    try:
        reader = _read_with(read, flavour, with_lines, depends, is_observed=is_observed)
    except RefusedByName as refusal:
        return Uncapturable(*refusal.args[:2])
    except Exception as error:  # reading a user's object may raise anything; a launch must not fail by it
        return Uncapturable(f"reading it raised {type(error).__name__}: {error}", name_of(plain))
    graph, unread = reader.graph, tuple(reader.unread.values())
    return Fingerprint(graph.digest(0), tuple(graph.components), tuple(reader.links), graph, unread)


def type_digest(kind: Any, flavour: Flavour, *, with_lines: bool, depends: Depends = ()) -> str:
    """Digest of an argument's type that a program added, with everything registered for its class; or `Refused`."""
    label = f"class {type(kind).__module__}.{type(kind).__qualname__}"

    def read(reader: Reader) -> None:
        reader.edge(reader.add(label, "argument", None), "type", reader.add_value(kind, label))

    try:
        return _read_with(read, flavour, with_lines, depends, is_observed=False).graph.digest(0)
    except RefusedByName as refusal:
        raise Refused(f"{refusal.args[1]}: {refusal.args[0]}") from None
    except Exception as error:  # a program's class may raise anything; a launch must not fail by it
        raise Refused(f"reading it raised {type(error).__name__}: {error}") from None


def _read_with(
    read: Callable[[Reader], None], flavour: Flavour, with_lines: bool, depends: Depends, *, is_observed: bool
) -> Reader:
    """Read with a new `Reader`; again for each registration that turns out to be unreadable and may be unused."""
    unread: dict[int, Any] = {}
    while True:
        reader = Reader(flavour, with_lines, depends, unread)
        try:
            read(reader)
            if reader.words:
                _objects().add_special(reader)
            return reader
        except Unread as found:
            if not is_observed:
                raise
            unread[id(found.args[2])] = found.args


class Reader:
    """Follow the names that functions read, and build the graph of their values."""

    def __init__(
        self, flavour: Flavour, with_lines: bool, depends: Depends = (), unread: Mapping[int, Any] | None = None
    ) -> None:
        self.graph, self.links, self.words, self.named = Graph(), list[LinkInput](), set[str](), set[str]()
        self.flavour, self.trust = flavour, flavour.trust(flavour.packages)
        self._with_lines, self._depends, self.unread = with_lines, depends, unread or {}
        self.is_patch = False  # whether a function is read that replaces one of the compiler's
        self._is_compiled = False  # whether the function that is read becomes device code, not code that types it
        self.functions: dict[int, int] = {}
        self.values: dict[tuple[int, str], int | str] = {}
        self.registrations = flavour.registrations()
        self.alive: list[Any] = []  # no other object gets their `id()` while these live

    def add_function(self, value: Any) -> int:
        """The node of a function or dispatcher; added, with all that it reaches, at the first call."""
        if id(value) in self.functions:
            return self.functions[id(value)]
        function = _undecorated(value, self.flavour)
        name = name_of(function)
        if type(function) is not FunctionType:
            raise RefusedByName(f"it is a {type(function).__qualname__}, not a Python function", name)
        word = "kernel" if not self.graph.edges else "function" if function is value else "device function"
        code = function.__code__
        try:
            jitted = None if function is value else self.flavour.jitted(value, is_kernel=not self.graph.edges)
            lines = self._with_lines or (jitted is not None and jitted.has_lines)
            self.graph.has_lines |= lines
            reading = read_code(code, with_lines=lines)
        except (Refused, TypeError) as error:
            raise RefusedByName(str(error), name) from None
        line = f"{code.co_filename.rpartition(os.sep)[2]}:{code.co_firstlineno}"
        index = self.graph.add(f"{word} {name}", reading.digest, line)
        self.words |= {*reading.telling, *("." for _ in vars(function))}  # "." tells that a function has attributes
        self.named |= reading.words
        self.functions[id(value)] = index
        self.alive.append(value)
        if jitted is not None:
            self.graph.kept[index] = value, code
            for each in jitted.extensions:
                refusal, label = Refused("it is an object of this process"), f"options of {name}, extensions"
                self.edge(index, "extensions", self.refused(refusal, label, each))
            options = dict(sorted(jitted.options.items()))
            self.edge(index, "options", self.add_value(options, f"options of {name}"))
            self.add_links(index, jitted.links, name)
        if any(defaults := (function.__defaults__, function.__kwdefaults__)):
            self.edge(index, "defaults", self.add_value(defaults, f"defaults of {name}"))
        for word in sorted(_MISLEADING & vars(function).keys()):
            self.edge(index, word, self.add_value(vars(function)[word], f"{word} of {name}"))
        before, self._is_compiled = self._is_compiled, jitted is not None
        self._add_reads(index, function, reading.reads, name)
        self._is_compiled = before
        if self.registrations.of_attribute or self.registrations.of_all:
            _objects().add_implied(self, index, code)
        return index

    def add_depends(self, function: Any) -> None:
        """Add the values and files of `depends=`."""
        depends = self._depends
        for position, each in enumerate(depends.values() if isinstance(depends, Mapping) else depends):
            label = f"depends[{position}]"
            if not isinstance(each, (str, os.PathLike)):
                self.edge(0, label, self.add_value(each, label))
                continue
            try:
                form = _objects().dependency_form(each, os.path.dirname(function.__code__.co_filename))
            except Refused as refusal:
                raise RefusedByName(str(refusal), label) from None
            named = f"{label} {os.fspath(each)}" if form[0] == "file" else label  # any other text may be a secret
            self.edge(0, label, self.add(named, form, None))

    def add(self, label: str, form: Plain, clear: Plain, edges: list[Edge] | None = None) -> int:
        encoded = encode(form)
        self.words |= telling(words_in(encoded.decode("utf-8", "replace")))
        return self.graph.add(label, sha256(encoded).digest(), clear, edges)

    def edge(self, start: int, name: str, goal: int | str) -> None:
        self.graph.edges[start].append((name, goal))

    def add_links(self, index: int, links: Iterable[Any], name: str) -> None:
        for item in links:
            _objects().add_link(self, index, item, name)

    def _add_reads(self, index: int, function: FunctionType, reads: Iterable[Read], name: str) -> None:
        """Add edges from a function to the present values of the names that it reads."""
        for read in reads:
            if read.scope == "import":
                goal: int | str = _objects().add_import(
                    self, function.__code__, read.name, f"module {read.name} in {name}"
                )
            else:
                goal = self._follow(function, read, name)
            self.edge(index, ".".join((read.name, *read.attributes)), goal)

    def _follow(self, function: FunctionType, read: Read, name: str) -> int | str:
        """Follow one name of a function to its value, and return that value's node."""
        scope, where, home = read.scope, read.name, ""
        if scope == "closure":
            at, owner, value = id(function.__closure__), name, _content(function, where)
        else:
            namespace: Mapping[Any, Any] = function.__globals__
            original: Any = namespace.get(ORIGINAL, namespace)
            at, owner, value = id(original), namespace.get("__name__", "?"), namespace.get(where, ABSENT)
            if value is ABSENT:
                value = vars(builtins).get(where, ABSENT)
                if getattr(function, "__builtins__", None) is not vars(builtins):
                    raise RefusedByName("its __builtins__ are not those of Python", name)
        standing = self.trust.standing
        if type(value) is _LAZY:
            value = value.resolve()
        value = real_of(value) if type(value) in standing else value
        for attribute in read.attributes:
            if not (isinstance(value, ModuleType) or self.is_added(value, attribute)):
                break
            space: Any = value.__dict__ if isinstance(value, ModuleType) else {}  # a class makes a new __dict__
            at = id(space.get(ORIGINAL, space or value))
            scope, where, owner = "global", attribute, getattr(value, "__name__", type(value).__name__)
            owner = self.trust.homes.get(id(value), owner)
            home, value = owner, self.trust.attribute(value, attribute)
            value = real_of(value) if type(value) in standing else value
        if value is ABSENT:
            return "undefined"
        goal = self.values.get((at, where))
        if goal is None:
            label = f"global {where} of {owner}" if scope == "global" else f"closure {where} of {owner}"
            if isinstance(value, ModuleType):
                node: int | str = _objects().add_module(self, function.__code__, value, label)
                return node
            if home and type(value) not in _PLAIN and self.trust[home] and not self.trust.name_of(value):
                state = state_of(home, self.flavour.stateful)
                if state:
                    return self.refused(Refused(f"it belongs to {state}, whose state cannot be in a key"), label)
            goal = self.values[at, where] = self.add_value(value, label)
        return f"{home}.{where} is {goal}" if home and type(goal) is str and self.trust[home] else goal

    def is_added(self, value: Any, attribute: str) -> bool:
        """Check whether an attribute needs its own node: one that a program set on a trusted class, or a special one.
        Those of functions are added where code names them (`add_special`)."""
        if type(value) is self.trust.stand_in and self.trust.needs_compiler(value, attribute):
            raise RefusedByName(f"only the compiler knows its {attribute}", repr(value))
        if not isinstance(value, type) or self.trust.name_of(value) is None:
            return False
        found = getattr(value, attribute, None)
        is_foreign = type(found) is FunctionType and self.trust.name_of(found) is None
        return attribute in SPECIAL or type(found) in _DATA or is_foreign

    def refused(self, refusal: Refused, label: str, value: Any = ABSENT) -> int:
        """Add a node for a value that cannot be captured if `depends=` covers it; raise `RefusedByName` otherwise."""
        if isinstance(refusal, AlwaysRefused):
            raise RefusedByName(str(refusal), label)
        covered = self._depends if isinstance(self._depends, Mapping) else ()
        if not any(each is value or (type(each) is str and each == label) for each in covered):
            raise RefusedByName(
                f"{refusal} (depends={{{label!r}: ...}} takes a value or file that represents it)", label
            )
        kind = "" if value is ABSENT else f"{type(value).__module__}.{type(value).__qualname__}"
        return self.add(label, (COVERED, kind), COVERED)

    def add_value(self, value: Any, label: str) -> int | str:
        """The node of a value; for a function its own node, for an object pinned by a version its name."""
        edges: list[Edge] = []

        def other_form(inner: Any) -> Plain | None:
            return self.other_form(inner, edges)

        try:
            named = self._named(value, label)
            if named is not None:
                return named
            form, clear = value_form(value, self.trust, other_form), shown(value)
        except Refused as refusal:
            is_programs = self._is_compiled and self.trust.name_of(type(value)) is None
            if is_programs and (why := self.flavour.untyped(value)):
                raise RefusedByName(f"the compiler cannot use it: {why}", label) from None
            return self.refused(refusal, label, value)
        self.alive.append(value)
        return self.add(label, form, clear, edges)

    def _named(self, value: Any, label: str) -> int | str | None:
        """The node of a function, or of an object with registrations; the name of an object that a version pins; None
        for other values.

        Raises:
            Refused: What it returns depends on more than its arguments.
        """
        if isinstance(value, ModuleType):
            return None
        pinned = self.trust.name_of(value)
        registered = self.registrations.of_value(value)
        if registered:
            node: int = _objects().add_overloads(self, value, registered, pinned, label)
            return node
        if pinned is not None:
            self.words |= telling(words_in(pinned))
            if state := state_of(pinned, self.flavour.stateful):
                raise Refused(f"{state} depends on more than its arguments")
            return pinned
        kind = type(value)
        if kind is not FunctionType and (kind in _DATA or self.flavour.python_function(value) is None):
            return None
        return (self.is_patch and self.trust.original(value)) or self.add_function(value)

    def other_form(self, value: Any, edges: list[Edge]) -> Plain | None:
        """The form of a function, a class or a compiler's object inside a value; its code is added to the edges."""
        value = real_of(value) if type(value) in self.trust.standing else value
        named = self._named(value, name_of(value))
        if named is None:
            definition = self.flavour.intrinsic(value)
            if definition is None:
                form = self.flavour.type_form(value, lambda kind: _objects().extension_form(self, kind, edges))
                if form is not None:
                    return form
                external = self.flavour.external(value)
                named = (
                    _objects().add_class(self, value)
                    if isinstance(value, type)
                    else _objects().add_external(self, external)
                )
            else:
                named = _objects().add_registration(self, definition, name_of(value))
        if type(named) is int:
            edges.append((str(len(edges)), named))
            return type(value).__qualname__, len(edges) - 1
        return named and ("pinned", named)


def _objects() -> Any:
    """The module for rarer objects, which few kernels have."""
    from . import objects

    return objects


def _undecorated(value: Any, flavour: Flavour) -> Any:
    """The Python function under a decorator of the front end; other objects unchanged."""
    function = flavour.python_function(value)
    return value if function is None else function


def _content(function: FunctionType, name: str) -> Any:
    """The value of a closure variable."""
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def kept_objects(graph: Graph) -> tuple[tuple[Any, str], ...]:
    """List the objects whose compiled device code the compiler keeps: the dispatchers that the kernel calls, registered
    implementations, and definitions of intrinsics.

    Returns:
        Each with a digest of what determines its code, after those that it calls; of a cycle one comes too early.
    """
    found, seen, pending = list[int](), set[int](), [(0, False)]
    while pending:
        index, is_done = pending.pop()  # done: with its callees
        if is_done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            pending.append((index, True))
            pending += [(callee, False) for _name, callee in reversed(graph.edges[index]) if type(callee) is int]
    return tuple(
        (graph.kept[each][0], graph.digest(each)) for each in found if each != 0 and each in graph.kept
    )  # 0: the kernel


# -- definitions -------------------------------------------------------------------------------------------------------

CO_VARARGS = 0x04
"""`co_flags` of a function with *args."""

LAUNCH_OPTIONS = ("cooperative", "cluster", "max_dynamic_shared")
"""Launch attributes that `cuda.jit` has no option for."""

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
        is_cast: Whether numbers are converted to the types of a signature that the user wrote.
    """

    has_variants = True
    is_sent_by_name = True
    any_variant: Variant = ()
    flavour: Flavour
    decorator_options: tuple[str, ...]
    complete: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    is_cast: Any = False

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
        depends = options.get("depends") or ()
        self.depends: Depends = depends if isinstance(depends, Mapping) else tuple(depends)
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
            self._declared = self.declare()
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
        """Read the argument types from the value of `signature=`: a signature as `cuda.jit` takes it, or a list."""
        from .dispatcher import read_signature_list

        return read_signature_list(self.flavour, given)

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

    def labels(self, types: Sequence[Any], *, debug: bool) -> list[str] | None:
        """Name and type of each argument, for launches that are waited for; None for others."""
        names = self.function.__code__.co_varnames
        return [f"{name}: {kind}" for name, kind in zip(names, types, strict=False)] if debug else None

    def compiler_lock(self) -> AbstractContextManager[None]:
        """The compiler's own lock over compilation. It is held for the compiler's work, never for a subscriber."""
        lock: AbstractContextManager[None] = surface(self.flavour).global_compiler_lock
        return lock

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: bytes, **more: Any
    ) -> TypedLauncher | None:
        """Make the launcher for arguments of exactly these types; None if the Numba's own launch is needed."""
        if self.is_launched_by_dispatcher(more["artifact"].attributes):
            return None
        types: Any = variant
        return make_launcher(
            self.flavour, loaded, self.name, types, relaunch=relaunch, otherwise=more["otherwise"],
            attributes=attributes, debug_labels=self.labels(types, debug=more["debug"]), complete=self.complete,
            is_cast=self.is_cast,
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
            names = ", ".join(code.co_varnames[: code.co_argcount])
            what = f"cannot launch {self.name} with {number} argument{'s' if number != 1 else ''}"
            raise ArgumentError(what, f"it takes {code.co_argcount}: {names}", "pass one argument for each parameter")
        try:
            return self.types_of(arguments)
        except (ValueError, TypeError) as error:  # Numba's message does not name the kernel
            error.add_note(self.note)
            raise

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """Read `signature=`; if it is None, take the definition's own signatures, or else those resolved so far."""
        given = self.options.get("signature") if signature is None else signature
        assert self.declared  # raises if Numba is not installed
        if given is None and not getattr(self.thing, "_can_compile", True):
            given = [tuple(each) for each in self.thing.overloads]  # of `@cuda.jit("void(...)")`
        found = self.read_signatures(given) if given is not None else known
        if not found:
            code = self.function.__code__
            hint = 'write signature="void(float32[::1], int64)"'
            if not code.co_argcount:
                hint = 'did you forget `return` before the source? as a Numba kernel it needs signature="void()"'
            raise OptionError(f"cannot compile {self.name}", "it has no signature", hint)
        return found

    def check_target(self, target: Target) -> None:
        """Refuse virtual targets: a Numba kernel is linked for a device."""
        if target.virtual:
            raise OptionError(
                f"cannot compile {self.name} for {target} alone",
                "a Numba kernel is linked for a device",
                f"name the device: {target.name.replace('compute', 'sm')!r}",
            )

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
        launches: The owner of the method that chooses the session; None if the process's session is used.
    """

    definition: PythonDefinition

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dispatcher: Any = None
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
                return self._warned(session.resolve(request))
            except UncacheableError as error:
                request, is_counted = request._replace(uncacheable=error.why), True
        session.refuse(request, is_counted=is_counted)
        self._uncached[variant] = request.uncacheable
        raise RunsUncached(f"cannot cache {self.definition.label}", request.uncacheable)

    def _warned(self, found: Resolution) -> Resolution:
        if found.source != "compiled" and "warnings" in found.artifact.attributes:
            from .compiled_code import issue_again

            home = f"{self.definition.flavour.home}.core.errors"
            issue_again(found.artifact.attributes["warnings"], self.definition.function, home)
        return found

    def compiles_uncached(self) -> bool:
        """Check whether an uncacheable kernel is compiled and launched by this package, not by Numba's dispatcher."""
        return False

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through the Numba's own dispatcher."""
        self.definition.flavour.part("dispatcher").launch(self, shape, stream, arguments)

    def attribute(self, name: str) -> Any:
        """Read an attribute of the Numba's own dispatcher."""
        part = self.definition.flavour.part("dispatcher")
        return part.dispatcher.attribute_of(self, name) if name in part.NAMES else super().attribute(name)

    def cache_of(self, dispatcher: Any, *, is_numbas: bool = False) -> Any:
        """Make the cache of one of the Numba's dispatchers (`CacheOfDispatcher`)."""
        part = self.definition.flavour.part("dispatcher")
        return part.DispatcherCache(self, dispatcher, is_numbas=is_numbas)

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        super().forget()
        self.resolved, self._uncached = {}, {}
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
            raise OptionError(f"cannot make a Numba kernel of {thing!r}", why, "give a function")
        return None


# -- requests ----------------------------------------------------------------------------------------------------------


_KINDS = {
    "signature": "argument types",
    "environment": "numba settings",
    "source_changed": "function|kernel |device function |function |class |declaration of |overload of ",
    "value_changed": "module |global |closure |defaults of ",
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
        loads_slowly=True,
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
    components = (
        component("kind", definition.kind),
        component("function", found.digest),
        signature,
        component("target", [target.name, ptx_target.name if ptx_target else None]),
        component("environment", dict(variables(NVRTC_VARIABLES))),
        *environment,
        *([] if definition.keep_ptx else [component("options", {"keep_ptx": False})]),
        *found.components,
    )
    changed = functools.partial(_changed, definition, components, types, target, ptx_target)
    return request._replace(components=components, headers=headers, changed=changed)


def _changed(definition: PythonDefinition, before: Sequence[Component], types: Any, *targets: Any) -> str:
    """Read everything again, and name an input that changed during the compile; "" for none.

    Another thread, or typing code itself, may have set a global or registered an overload meanwhile.
    """
    now = kernel_request(definition, read_function(definition), types, *targets)
    if now.uncacheable:
        return now.uncacheable
    old, new = ({each.name: each.digest for each in components} for components in (before, now.components))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return f"{names[-1]} changed while it was compiled" if names else ""  # the last is the most specific


class ByValue:
    """A picklable object that unpickles as a definition, without importing the function's file."""

    def __init__(self, definition: PythonDefinition) -> None:
        self._definition = definition

    def __reduce__(self) -> Any:
        of, home = type(self._definition), f"{self._definition.flavour.home}.serialize"
        return _load, (of, home, bytes(import_module(home).dumps(self._definition.thing)), self._definition.options)


def _load(of: type[PythonDefinition], home: str, function: bytes, options: Mapping[str, Any]) -> PythonDefinition:
    return of(import_module(home).loads(function), options)  # safe: the bytes come from the parent process


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
