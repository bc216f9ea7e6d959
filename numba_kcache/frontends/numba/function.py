"""Fingerprint a Python kernel: everything that determines its code, apart from argument types.

Promise     A change of any of these changes the digest: the code, constants and defaults of the function and
            of every function it calls, in any file; the globals, closure variables and attributes of
            modules they read; decorator options; the content of linked files; Python's minor version.
            Nothing else does: not process, hash seed, module name, checkout path, comments or lines (unless
            lines are requested). An input that cannot be captured gives `Uncapturable`, and is never left out; if
            the user gives `depends`, it represents the content of such inputs, and only of such.
Method      A graph: a node per function and per value, an edge per name that is read. The digest of a
            function covers the nodes it reaches, numbered in the order of the code that reaches them.
            Objects of the compiler are described by its `Flavour`.
Not here    Packages that are pinned by version (the compiler, NumPy, the standard library; a separate component)
            and headers that linked CUDA C++ includes (headers).
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ...keys import COVERED, Component, Plain, digest_of, encode, sha256
from ...model import LinkInput, NamedTuple, Origin
from .code import SPECIAL, Read, read_code, telling, words_in
from .configuration import replaced
from .value import (
    ABSENT,
    COOPERATIVE,
    ORIGINAL,
    AlwaysRefused,
    Refused,
    RefusedByName,
    Unread,
    name_of,
    real_of,
    shown,
    state_of,
    value_form,
)

if TYPE_CHECKING:
    from .configuration import Registration
    from .flavour import Flavour


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
        reader = _read(read, flavour, with_lines, depends, is_observed=is_observed)
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
        return _read(read, flavour, with_lines, depends, is_observed=False).graph.digest(0)
    except RefusedByName as refusal:
        raise Refused(f"{refusal.args[1]}: {refusal.args[0]}") from None
    except Exception as error:  # a program's class may raise anything; a launch must not fail by it
        raise Refused(f"reading it raised {type(error).__name__}: {error}") from None


def _read(
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
        place = f"{code.co_filename.rpartition(os.sep)[2]}:{code.co_firstlineno}"
        index = self.graph.add(f"{word} {name}", reading.digest, place)
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
