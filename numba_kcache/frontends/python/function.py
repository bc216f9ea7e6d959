"""Fingerprint a Python kernel: everything that decides which code Numba makes of it, apart from argument types.

Promise     A change of any of these changes the digest: the code, constants and defaults of the function and
            of every function it calls, in whatever file; the globals, closure variables and attributes of
            modules they read; decorator options; the content of linked files; Python's minor version.
            Nothing else does: not process, hash seed, module name, checkout path, comments or lines (unless
            lines are wanted). What cannot be captured is `Uncapturable`, never left out; where the user gives
            `depends`, that is taken for the content of values which nothing here can read, and only they are.
Method      A graph: a node per function and per value, an edge per name that is read. The digest of a
            function covers the nodes it reaches, numbered in the order of the code that reaches them.
Not here    Packages that are pinned by version (Numba, NumPy, the standard library; a component of its own),
            headers that linked CUDA C++ includes (headers), and lowering that a program registers by hand for
            types of Numba's own (`depends=` is for that).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ...keys.components import Component
from ...keys.digests import sha256
from ...keys.encoding import Plain, encode, frame
from ...model.reason import ReasonKind
from ...model.request import LinkInput, Origin
from ..numba.links import dependency_form, is_numbas_own, read_link
from ..numba.objects import (
    external_function,
    fixed_signatures,
    intrinsic_function,
    is_dispatcher,
)
from ..numba.registrations import user_registrations
from .code import Read, all_names, read_code
from .value import (
    REPR_SAYS_ALL,
    VOUCHED,
    HoldsAddress,
    Refused,
    is_trusted,
    shown,
    trusted_name,
    value_form,
    vouched_form,
)

FORMAT = 1
"""Raised when the same function would get another digest."""

KINDS: Mapping[str, ReasonKind] = {
    "function": ReasonKind.SOURCE_CHANGED,
    "kernel ": ReasonKind.SOURCE_CHANGED,
    "device function ": ReasonKind.SOURCE_CHANGED,
    "function ": ReasonKind.SOURCE_CHANGED,
    "declaration of ": ReasonKind.SOURCE_CHANGED,
    "overload of ": ReasonKind.SOURCE_CHANGED,
    "global ": ReasonKind.VALUE_CHANGED,
    "closure ": ReasonKind.VALUE_CHANGED,
    "defaults of ": ReasonKind.VALUE_CHANGED,
    "options of ": ReasonKind.OPTIONS,
    "link ": ReasonKind.LINK_INPUT,
    "depends[": ReasonKind.DEPENDS,
}
"""What the functions and values of a kernel are about, by how their components' names start."""

_REMEDY = " (depends= takes values and files that stand for it)"

_DATA = (bool, int, float, complex, str, bytes, tuple)


class Uncapturable(NamedTuple):
    """Why a kernel cannot be keyed, and what is to blame."""

    reason: str
    name: str


class Fingerprint(NamedTuple):
    """What a kernel is made of.

    Args:
        digest: Of everything, as 64 hexadecimal digits; goes into the key.
        components: By what people call them, with a digest each, for explanations. Their labels name modules
            and files, which the digest does not.
        links: What the options and `declare_device` link, in order.
        graph: For `device_functions`.
    """

    digest: str
    components: tuple[Component, ...]
    links: tuple[LinkInput, ...]
    graph: _Graph

    def device_functions(self) -> tuple[tuple[Any, str], ...]:
        """What Numba compiles on the kernel's behalf and keeps, each with a digest of all that decides its code:
        the dispatchers it calls, and functions under `@overload` or `@intrinsic`."""
        return tuple((function, self.graph.digest(index)) for index, function in self.graph.kept.items() if index)

    def sources(self) -> dict[str, tuple[str, Origin]]:
        """The Python source of the kernel and of what `device_functions` has, by component, where a file shows it."""
        found = {}
        for index, function in self.graph.kept.items():
            code = getattr(function, "py_func", function).__code__
            text = _text_of(code)
            if text:
                found[self.components[index].name] = text, Origin(code.co_filename, code.co_firstlineno)
        return found


def _text_of(code: CodeType) -> str:
    """The source of a function; "" where its file does not show it, or is not what was compiled any more.

    Not `inspect.getsource`, which looks for the file in every module of the program: 50 ms where Numba is imported.
    """
    import inspect
    import linecache
    import tokenize

    linecache.checkcache(code.co_filename)
    try:
        return "".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]))
    except (SyntaxError, IndexError, tokenize.TokenError):
        return ""


class _Cannot(Exception):
    def __init__(self, reason: str, name: str) -> None:
        super().__init__(reason, name)
        self.reason, self.name = reason, name


def fingerprint(function: Any, *, with_lines: bool, depends: Iterable[Any] = ()) -> Fingerprint | Uncapturable:
    """Capture a kernel as it is now: globals may change, so this is asked once per signature, when it is first used.

    Args:
        function: A Python function, or a dispatcher of `cuda.jit`, whose options then count.
        with_lines: Whether file and lines count, as they do where line tables or exceptions are compiled in.
            Functions with `debug` or `lineinfo` among their own options have theirs counted anyway.
        depends: Further values, functions, and files (`pathlib.Path`, or `str` where it names a file relative to
            the function's own) whose content counts; any at all vouch for what cannot be read.
    """
    depends = tuple(depends)
    try:
        graph = _Graph(with_lines, is_vouched=bool(depends))
        graph.add_function(function)
        graph.add_depends(function, depends)
    except _Cannot as refusal:
        return Uncapturable(refusal.reason, refusal.name)
    except Exception as error:  # a user's object may answer anything to being looked at; a launch must not fail by it
        return Uncapturable(f"reading it raised {type(error).__name__}: {error}", _name_of(function))
    graph.alive.clear()
    return Fingerprint(graph.digest(0), tuple(graph.components), tuple(graph.links), graph)


class _Graph:
    """Nodes by index: components[i] is what node i is, edges[i] what it reads."""

    def __init__(self, with_lines: bool, *, is_vouched: bool = False) -> None:
        self.with_lines, self._is_vouched = with_lines, is_vouched
        self.components: list[Component] = []
        self.edges: list[list[tuple[str, int | str]]] = []
        self.links: list[LinkInput] = []
        self.kept: dict[int, Any] = {}
        self._functions: dict[int, int] = {}
        self._values: dict[tuple[int, str], int | str] = {}
        self._reads: dict[tuple[int, Read], tuple[str, int | str]] = {}
        self._options: dict[str, tuple[bytes, Plain]] = {}
        self._labels: dict[str, int] = {}
        self._registrations = user_registrations()
        self.alive: list[Any] = []  # ids stay unique while these live

    def digest(self, start: int) -> str:
        """Of all that node `start` reaches."""
        numbers, order = {start: 0}, [start]
        encoded: dict[int | str, bytes] = {}  # names and numbers come again and again

        def bytes_of(value: int | str) -> bytes:
            return encoded.get(value) or encoded.setdefault(value, encode(value))

        nodes: list[bytes] = [encode(FORMAT), encode(sys.implementation.cache_tag)]
        for index in order:  # grows while it is walked
            edges = []
            for name, goal in self.edges[index]:
                if type(goal) is int:
                    if goal not in numbers:
                        numbers[goal] = len(order)
                        order.append(goal)
                    goal = numbers[goal]
                edges.append(frame((bytes_of(name), bytes_of(goal))))
            nodes.append(frame((encode(self.components[index].digest), frame(edges))))
        return sha256(frame(nodes)).hexdigest()

    def add_function(self, value: Any) -> int:
        """The node of a function or dispatcher; made, with all it reaches, at the first meeting."""
        if id(value) in self._functions:
            return self._functions[id(value)]
        is_jitted = is_dispatcher(value)
        function = value.py_func if is_jitted else value
        name = _name_of(function)
        if type(function) is not FunctionType:
            raise _Cannot(f"it is a {type(function).__qualname__}, not a Python function", name)
        options = dict(value.targetoptions) if is_jitted else {}
        word = "kernel" if not self._functions else "device function" if is_jitted else "function"
        if word == "device function":  # never told to its compiler; its default says whether nvJitLink is installed
            options.pop("lto", None)
        lines = self.with_lines or bool(options.get("debug") or options.get("lineinfo"))
        code = function.__code__
        try:
            reading = read_code(code, with_lines=lines)
        except TypeError as error:
            raise _Cannot(str(error), name) from None
        place = f"{code.co_filename.rpartition(os.sep)[2]}:{code.co_firstlineno}"
        index = self._add_node(f"{word} {name}", reading.digest, place)
        self._functions[id(value)] = index
        self.alive.append(value)
        if is_jitted:
            self.kept[index] = value
            self._add_options(index, value, options, name)
        self._add_defaults(index, function, name)
        self._add_reads(index, function, reading.reads, name)
        self._add_implied(index, code)
        return index

    def add_depends(self, function: Any, depends: Iterable[Any]) -> None:
        code = getattr(getattr(function, "py_func", function), "__code__", None)
        folder = os.path.dirname(code.co_filename) if isinstance(code, CodeType) else ""
        for position, each in enumerate(depends):
            label = f"depends[{position}]"
            if not isinstance(each, (str, os.PathLike)):
                self._edge(0, label, self._add_value(each, label))
                continue
            try:
                form = dependency_form(each, folder)
            except Refused as refusal:
                raise _Cannot(str(refusal), label) from None
            named = f"{label} {os.fspath(each)}" if form[0] == "file" else label  # another text may be a secret
            self._edge(0, label, self._add(named, form, None))

    def _add(self, label: str, form: Plain, clear: Plain, edges: list[tuple[str, int | str]] | None = None) -> int:
        return self._add_node(label, sha256(encode(form)).digest(), clear, edges)

    def _add_node(
        self, label: str, digest: bytes, clear: Plain, edges: list[tuple[str, int | str]] | None = None
    ) -> int:
        repeated = self._labels[label] = self._labels.get(label, 0) + 1
        self.components.append(Component(label if repeated == 1 else f"{label} ({repeated})", digest, clear))
        self.edges.append(edges if edges is not None else [])
        return len(self.edges) - 1

    def _edge(self, start: int, name: str, goal: int | str) -> None:
        self.edges[start].append((name, goal))

    def _add_options(self, index: int, dispatcher: Any, options: dict[str, Any], name: str) -> None:
        links = options.pop("link", None) or ()
        extensions = options.pop("extensions", None)
        if extensions:
            if not self._is_vouched:
                raise _Cannot(f"its extensions are objects of this process{_REMEDY}", f"option extensions of {name}")
            options["extensions"] = [vouched_form(each) for each in extensions]
        options["signatures"] = fixed_signatures(dispatcher) if index else None  # a kernel's are in the key anyway
        options["locals"] = getattr(dispatcher, "locals", None) or None
        given = {key: options[key] for key in sorted(options)}
        self._edge(index, "options", self._add_options_value(given, f"options of {name}"))
        self._add_links(index, links, name)

    def _add_options_value(self, given: dict[str, Any], label: str) -> int | str:
        """As any value; once for all functions that have the same plain options, as most of a program have."""
        if not REPR_SAYS_ALL.issuperset(map(type, given.values())):
            return self._add_value(given, label)
        text = repr(given)
        known = self._options.get(text)
        if known is None:
            form = value_form(given, lambda _value: None)
            known = self._options[text] = sha256(encode(form)).digest(), shown(given)
        return self._add_node(label, *known)

    def _add_links(self, index: int, links: Any, name: str) -> None:
        links = (links,) if isinstance(links, (str, os.PathLike)) else links
        for item in links:
            if is_numbas_own(item):
                continue
            try:
                each = read_link(item)
            except Refused as refusal:
                raise _Cannot(str(refusal), f"link of {name}") from None
            digest = sha256(each.data).hexdigest()
            spelled = each.name if each.kind == "cu" else ""  # __FILE__ and assert put it into the code
            node = self._add(f"link {each.name} of {name}", (each.kind, spelled, digest), digest)
            self._edge(index, "link", node)
            self.links.append(each)

    def _add_defaults(self, index: int, function: FunctionType, name: str) -> None:
        defaults = (function.__defaults__, function.__kwdefaults__)
        if any(defaults):
            self._edge(index, "defaults", self._add_value(defaults, f"defaults of {name}"))

    def _add_reads(self, index: int, function: FunctionType, reads: Iterable[Read], name: str) -> None:
        """Follow the names that a function reads to the values they have now; each once in a namespace."""
        namespace = id(function.__globals__)
        for read in reads:
            if read.scope == "import":
                self._add_import(index, read, name)
                continue
            place = (namespace if read.scope == "global" else id(function.__closure__)), read
            edge = self._reads.get(place)
            if edge is None:
                edge = self._reads[place] = ".".join((read.name, *read.attributes)), self._follow(function, read, name)
            self.edges[index].append(edge)

    def _add_import(self, index: int, read: Read, name: str) -> None:
        if not is_trusted(read.name):
            if not self._is_vouched:
                raise _Cannot(f"it is imported inside the function{_REMEDY}", f"module {read.name} in {name}")
            self._edge(index, read.name, VOUCHED)

    def _follow(self, function: FunctionType, read: Read, name: str) -> int | str:
        """Where one name of a function leads."""
        if read.scope == "closure":
            at, label = id(function.__closure__), f"closure {read.name} of {name}"
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(read.name)]
            found, value = _content(cell)
        else:
            at, label = id(function.__globals__), f"global {read.name} of {function.__globals__.get('__name__', '?')}"
            found, value = self._global(function, read.name)
        where = read.name
        for attribute in read.attributes:
            if not found or not isinstance(value, ModuleType):
                break
            at, where = id(value.__dict__), attribute
            label = f"global {attribute} of {value.__name__}"
            inside, found, value = value, hasattr(value, attribute), getattr(value, attribute, None)
            if is_trusted(inside.__name__) and not self._is_users(value):
                return f"{inside.__name__}.{attribute}"
        if not found:
            return "undefined"
        if (at, where) not in self._values:
            self._values[at, where] = self._add_value(value, label)
        return self._values[at, where]

    def _global(self, function: FunctionType, name: str) -> tuple[bool, Any]:
        namespace = function.__globals__
        if name in namespace:
            return True, namespace[name]
        builtins: dict[str, Any] = getattr(function, "__builtins__", {})
        return name in builtins, builtins.get(name)

    def _is_users(self, value: Any) -> bool:
        """Whether an attribute of a trusted package is still to be looked at: data, or what a program put there."""
        if isinstance(value, ModuleType) or type(value) in _DATA or id(value) in self._registrations.of_value:
            return True
        return not is_trusted(getattr(value, "__module__", "builtins") or "builtins")

    def _add_registered(self, function: FunctionType) -> int:
        """The node of a function under `@overload` or `@intrinsic`, which Numba calls itself."""
        index = self.add_function(function)
        self.kept[index] = function
        return index

    def _add_implied(self, index: int, code: CodeType) -> None:
        """Implementations that the program registered for attributes and operators that this code may use."""
        if index == 0:
            for each in self._registrations.of_operators:
                self._edge(index, "operator", self._add_registered(each))
        if self._registrations.of_attribute:
            for attribute in sorted(self._registrations.of_attribute.keys() & set(all_names(code))):
                for each in self._registrations.of_attribute[attribute]:
                    self._edge(index, f".{attribute}", self._add_registered(each))

    def _add_value(self, value: Any, label: str) -> int | str:
        """The node of a value; for a function its own node, for what a version pins its name."""
        pinned = trusted_name(value)
        if id(value) in self._registrations.of_value:
            registered: list[tuple[str, int | str]] = [
                ("overload", self._add_registered(each)) for each in self._registrations.of_value[id(value)]
            ]
            return self._add(f"overload of {label}", pinned, None, registered)
        if pinned is not None:
            return pinned
        if is_dispatcher(value) or type(value) is FunctionType:
            return self.add_function(value)
        edges: list[tuple[str, int | str]] = []

        def function_form(inner: Any) -> Plain | None:
            return self._callable_form(inner, edges, label)

        try:
            form, clear = value_form(value, function_form), shown(value)
        except Refused as refusal:
            if isinstance(refusal, HoldsAddress):
                raise _Cannot(str(refusal), label) from None
            if not self._is_vouched:
                raise _Cannot(f"{refusal}{_REMEDY}", label) from None
            form, clear = vouched_form(value), VOUCHED
        self.alive.append(value)
        return self._add(label, form, clear, edges)

    def _callable_form(self, value: Any, edges: list[tuple[str, int | str]], label: str) -> Plain | None:
        """The form of what has code of its own, inside a value: its place among the value's edges."""
        pinned = trusted_name(value)
        if pinned is not None:
            return "pinned", pinned
        definition = intrinsic_function(value)
        function = definition or value
        if is_dispatcher(function) or type(function) is FunctionType:
            edges.append(
                (str(len(edges)), self._add_registered(function) if definition else self.add_function(function))
            )
            return "function", type(value).__qualname__, len(edges) - 1
        try:
            external = external_function(value)
        except LookupError:
            raise _Cannot("its declaration cannot be read", label) from None
        if external is None:
            return None
        node = self._add(f"declaration of {external.name}", list(external[:4]), external.signature)
        edges.append((str(len(edges)), node))
        self._add_links(node, external.links, external.name)
        return "declared", len(edges) - 1


def _name_of(function: Any) -> str:
    function = getattr(function, "py_func", function)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def _content(cell: Any) -> tuple[bool, Any]:
    try:
        return True, cell.cell_contents
    except ValueError:
        return False, None
