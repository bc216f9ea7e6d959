"""Fingerprint rarer objects: modules as values, imports inside functions, classes, registrations, and files.

Functions here add nodes to the graph of a `Reader` (function), and return the index of the node.

Promise     A registration is keyed completely: its subject, options, types and implementing code. Registrations of
            different subjects are ordered by subject, not by the time of registration.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from ...keys import Plain, sha256
from ...model import LinkInput
from ...model.linkable import kind_of_path, linkable_input
from .forms import (
    BY_BYTES,
    BY_TEXT,
    COOPERATIVE,
    SPECIAL,
    AlwaysRefused,
    Refused,
    RefusedByName,
    Unread,
    code_form,
    name_of,
    read_code,
    state_of,
    value_form,
)

if TYPE_CHECKING:
    from . import External, Registration
    from .definition import Reader


_TEXTS = {"__annotations__", "__doc__", "__name__", "__qualname__"}
"""Attributes in which functions and classes describe themselves as text."""

_OF_PYTHON = frozenset(
    ("__abstractmethods__", "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__", "__hash__", "__module__",
     "__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__", "__weakref__", "_abc_impl")
)  # fmt: skip
"""Attributes of a class that its code does not read, that repeat other attributes, or that decide nothing but the place
of an object in a dict."""


def add_import(reader: Reader, code: CodeType, name: str, label: str) -> int | str:
    """The node of an import inside a function: the attributes that its code may take from that module."""
    if not reader.trust[name]:
        return reader.refused(Refused("it is imported inside the function"), label)
    try:
        modules = [import_module(each) for each in dict.fromkeys((name.partition(".")[0], name))]  # as the code will
    except ImportError as error:
        return reader.refused(Refused(str(error)), label)
    node = reader.add(label, name, None)
    for each in modules:
        reader.edge(node, each.__name__, add_module(reader, code, each, label))
    return node


def add_module(reader: Reader, code: CodeType, module: ModuleType, label: str) -> int | str:
    """The node of a module that is used as a value: all its attributes that the code may name."""
    name, node_key = reader.trust.name_of(module), (id(module.__dict__), f"{id(code)}")
    if name is None:
        return reader.refused(Refused("it is a module that is used as a value, not by its attributes alone"), label)
    state = state_of(name, reader.flavour.stateful)
    if state:
        return reader.refused(Refused(f"it is {state}, whose state cannot be in a key"), label)
    if node_key not in reader.values:
        node = reader.values[node_key] = reader.add(label, name, name)
        words, known = read_code(code, with_lines=False).words, vars(module)
        for word in words:
            if isinstance(known.get(word, module), ModuleType):
                reader.trust.loads(module, word)
        for word in sorted(words & known.keys()):
            value, inner = known[word], f"global {word} of {name}"
            is_module = isinstance(value, ModuleType)
            goal = add_module(reader, code, value, inner) if is_module else reader.add_value(value, inner)
            reader.edge(node, word, goal)
    return reader.values[node_key]


def add_link(reader: Reader, index: int, item: Any, name: str) -> None:
    """Read a link input of a function, and add its node with an edge from the function."""
    from ...model.linkable import callbacks_of

    try:
        each = read_link(item)
        if callbacks_of(item):
            raise Refused("it has callbacks to run when it is loaded")
    except Refused as refusal:
        reader.refused(AlwaysRefused(str(refusal)), f"link of {name}")
        return
    digest = sha256(each.data).hexdigest()
    spelled = each.name if each.kind == "cu" else ""  # __FILE__ and assert put the name into the code
    node = reader.add(f"link {each.name} of {name}", (each.kind, spelled, digest), digest)
    reader.edge(index, "link", node)
    reader.links.append(each)


def add_external(reader: Reader, external: External | None) -> int | None:
    """The node of a function that was declared, with what it links."""
    if external is None:
        return None
    node = reader.add(f"declaration of {external.name}", list(external[:4]), external.signature)
    reader.add_links(node, external.links, external.name)
    if external.is_cooperative:
        reader.edge(node, COOPERATIVE, "")
    return node


def add_class(reader: Reader, value: type) -> int:
    """The node of a program's class: its bases, and everything that its body defines."""
    if id(value) in reader.functions:
        return reader.functions[id(value)]
    if reader.trust.name_of(type(value)) is None:
        raise Refused("it is a class with its own metaclass")
    name = f"{value.__module__}.{value.__qualname__}"
    node = reader.functions[id(value)] = reader.add(f"class {name}", ("class", value.__name__), None)
    reader.alive.append(value)
    for base in value.__bases__:
        reader.edge(node, "base", reader.add_value(base, f"class {base.__module__}.{base.__qualname__}"))
    for attribute, item in sorted(vars(value).items()):
        if attribute not in _OF_PYTHON:
            if isinstance(item, property):
                reader.alive.append(item)  # for `add_special`, since a property has a docstring
            for part in _parts(item):
                goal = reader.add_value(part, f"global {attribute} of {name}")
                reader.edge(node, f"{type(item).__name__} {attribute}", goal)
    return node


def extension_form(reader: Reader, kind: Any, edges: list[Any]) -> Plain:
    """The form of a type that a program added to the compiler: the state of the instance, and the code of its class
    with everything that is registered for the class, as edges."""
    of = type(kind)
    if any("__slots__" in vars(each) for each in of.__mro__ if reader.trust.name_of(each) is None):
        raise Refused(f"the type {kind} keeps its state in __slots__")
    label = f"class {of.__module__}.{of.__qualname__}"
    edges.append((f"type {len(edges)}", add_class(reader, of)))
    registered = reader.registrations.of_value(of)
    if registered:
        edges.append((f"type {len(edges)}", add_overloads(reader, of, registered, None, label)))
    state = {name: each for name, each in vars(kind).items() if name != "_code"}  # a number of this process
    form = value_form(state, reader.trust, lambda inner: reader.other_form(inner, edges))
    return "type of an extension", len(edges), str(kind), form


def _parts(item: Any) -> tuple[Any, ...]:
    """List the functions in an item of a class body (property, classmethod, ...)."""
    if isinstance(item, (staticmethod, classmethod)):
        return (item.__func__,)
    if isinstance(item, property):
        return item.fget, item.fset, item.fdel
    if isinstance(item, functools.cached_property):
        return (item.func,)
    return ("slot",) if isinstance(item, (MemberDescriptorType, GetSetDescriptorType)) else (item,)


def add_patches(reader: Reader, patches: Iterable[tuple[str, FunctionType]]) -> None:
    """Add functions of the compiler that the program replaced; device functions have them too."""
    for name, function in patches:
        try:
            reader.is_patch = True
            node = reader.add_function(function)
            reader.is_patch = False
        except RefusedByName as refusal:
            raise RefusedByName(f"in place of {name}: {refusal.args[0]}", refusal.args[1]) from None
        _add_to_all(reader, f"in place of {name}", node)


def _add_to_all(reader: Reader, name: str, node: int) -> None:
    """Add an edge from the kernel and from each function whose compiled code the compiler keeps."""
    for index in (0, *filter(None, reader.graph.kept)):
        reader.edge(index, name, node)


def add_special(reader: Reader) -> None:
    """Add special attributes (docstring, name, annotations) of all functions and classes, and attributes set by the
    program, where any code or text constant names them: typing code may reach the object indirectly, and the attribute
    by `getattr`. Add all bytes of constant records, padding included, where any code names a function that reads arrays
    as bytes."""
    words, is_any = reader.words, not reader.words.isdisjoint(BY_TEXT)
    if "__subclasses__" in words:
        reader.refused(Refused("cached code lists subclasses, which may be defined anywhere"), "__subclasses__")
    content: list[Plain] = [] if words.isdisjoint(BY_BYTES) else [*_record_digests(reader.alive)]
    if content:
        _add_to_all(reader, "bytes of records", reader.add("bytes of records", content, None))
    read = words & SPECIAL
    has_parts = any("__" in each and not re.fullmatch("__.+__", each) for each in words)
    if "__dict__" in read or "dir" in words or (is_any and has_parts):
        read |= _TEXTS
    edges, seen = list[Any](), set[int]()
    for each in reader.alive:  # grows while it is walked
        for value in (each, reader.flavour.python_function(each)):
            if isinstance(value, (type, FunctionType, property)) and id(value) not in seen:
                seen.add(id(value))
                set_by_program = vars(value) if type(value) is FunctionType else ()
                for word in sorted(read.union([name for name in set_by_program if is_any or name in reader.named])):
                    edges.append((word, _add_attribute(reader, value, word, f"{word} of {name_of(value)}")))
    if edges:
        _add_to_all(reader, "special attributes", reader.add("special attributes", tuple(sorted(read)), None, edges))


def _record_digests(value: Any) -> Iterator[bytes]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _record_digests(each)
    elif getattr(getattr(value, "dtype", None), "names", None) and hasattr(value, "tobytes"):
        yield sha256(value.tobytes("A")).digest()


def _add_attribute(reader: Reader, value: Any, word: str, label: str) -> int | str:
    found = getattr(value, word, None)
    if isinstance(found, CodeType):
        texts = tuple(each for each in found.co_consts if type(each) is str)  # a docstring is among them
        return reader.add(label, (repr(code_form(found, with_lines=True)), texts), None)
    if word == "__globals__" and found is not None:
        return reader.refused(Refused("cached code reads globals through it"), label)
    return "a class's" if isinstance(value, type) and word == "__dict__" else reader.add_value(found, label)


def add_overloads(
    reader: Reader, value: Any, registered: Iterable[Registration], pinned: str | None, label: str
) -> int:
    """The node of a value for which there are registrations."""
    node_key = id(value), "overloads"
    if node_key in reader.values:  # the implementation of an overload refers to the value itself
        node = reader.values[node_key]
        assert type(node) is int
        if type(value) is FunctionType and pinned is None and id(value) not in reader.functions:
            reader.edge(node, "itself", reader.add_function(value))
        return node
    node = reader.values[node_key] = reader.add(f"overload of {label}", pinned, None)
    for each in registered:
        reader.edge(node, each.what, _add_unless_unread(reader, each, label))
    return node


def add_registration(reader: Reader, registration: Registration, label: str) -> int:
    """The node of one registration."""
    node_key = id(registration.code[0]), f"{registration.what} {id(registration)}"
    if node_key in reader.values:
        found = reader.values[node_key]
        assert type(found) is int
        return found
    reader.alive.append(registration)
    node = reader.values[node_key] = reader.add(f"overload of {label}", registration.what, None)
    subject = registration.subject
    if subject is not None:
        pinned = reader.trust.name_of(subject)
        reader.edge(node, "for", pinned or reader.add_value(subject, f"overload of {label}"))
    reader.edge(node, "options", reader.add_value(registration.options, f"options of {label}"))
    for each in registration.code:
        if isinstance(each, type):
            reader.edge(node, "code", add_class(reader, each))
            continue
        index = reader.add_function(each)
        reader.graph.kept[index] = each, each.__code__  # the function under which the compiler stores the code
        reader.edge(node, "code", index)
    return node


def add_implied(reader: Reader, index: int, code: CodeType) -> None:
    """Add edges to the program's registrations for operators, and for attributes that this code may use.

    A device function has them too, since its own digest decides whether its compiled code is used again."""
    _of_value, of_attribute, of_all = reader.registrations
    for name in sorted(of_attribute.keys() & read_code(code, with_lines=False).words):
        for label, each in _in_order(reader, of_attribute[name]):
            reader.edge(index, f".{name} {each.what}", _add_unless_unread(reader, each, f"{label}.{name}"))
    for label, each in _in_order(reader, of_all) if index == 0 or index in reader.graph.kept else ():
        reader.edge(index, f". {each.what}", _add_unless_unread(reader, each, label))


def _add_unless_unread(reader: Reader, registration: Registration, label: str) -> int:
    """The node of a registration that any code may use; of what it is for alone, if it cannot be read.

    Raises:
        Unread: It cannot be read, and a compile shows whether it is used.
    """
    if id(registration) in reader.unread:
        form = "not read", registration.what, label, _named(reader, registration.options)
        return reader.add(f"overload of {label}", form, None)
    try:
        return add_registration(reader, registration, label)
    except Exception as error:  # a refusal, or what a program's object raised
        if (
            isinstance(error, Unread)
            or registration.what == "model"
            or not all(map(_is_seen, registration.code or "-"))
        ):
            raise
        why = error.args[:2] if isinstance(error, RefusedByName) else (str(error), label)
        raise Unread(*why, registration) from None


def _is_seen(code: Any) -> bool:
    """Check whether a compile that uses this calls a Python function of it (`compiled_code.observed`)."""
    if not hasattr(code, "generic_resolve"):
        return isinstance(code.__init__ if hasattr(code, "__mro__") else code, FunctionType)
    resolving = [value for each in code.__mro__ for name, value in vars(each).items() if "resolve" in name]
    return all(type(part) is FunctionType for each in resolving if callable(each) for part in _parts(each))


def _named(reader: Reader, value: Any) -> Plain:
    """The names of the types and values that a registration is for, without their content."""
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (tuple, list)):
        return [_named(reader, each) for each in value]
    return reader.trust.name_of(value) or getattr(value, "__qualname__", str(value))


def _in_order(reader: Reader, group: Iterable[Registration]) -> list[tuple[str, Registration]]:
    """Sort registrations by kind and subject; those of one subject keep their order."""
    labelled = [(str(_named(reader, each.subject)), each) for each in group]
    return sorted(labelled, key=lambda item: (item[1].what, item[0]))


def read_link(item: Any) -> LinkInput:
    """Read a path, which is relative to the working directory, or a `LinkableCode` object.

    Raises:
        Refused: It is neither, or the file does not exist.
    """
    if not isinstance(item, (str, os.PathLike)):
        found = linkable_input(item)
        if found is None:
            raise Refused(f"a {type(item).__name__} is neither a path nor LinkableCode")
        return found
    path = os.path.abspath(item)
    try:
        with open(path, "rb") as file:
            return LinkInput(kind_of_path(path) or "", os.path.basename(path), file.read(), os.path.dirname(path))
    except OSError as error:
        raise Refused(f"{os.fspath(item)}: {error.strerror or error}") from None


def check_texts(texts: Sequence[LinkInput]) -> list[bytes]:
    """Return the linked CUDA C++ texts that may ask for files, or whose code may depend on their path or the time.

    Raises:
        Refused: The code of a text depends on the time, or its includes on a folder that is not known.
    """
    from ...headers import words

    for each in texts:
        if words.certainly_has_clock(each.data):
            raise Refused("what it links uses __DATE__ or __TIME__")
        if "/" in each.name and words.may_ask(each.data):
            raise Refused(each.unplaced)
    return [
        each.data
        for each in texts
        if words.may_ask(each.data) or words.has_location(each.data) or b"assert" in each.data
    ]


def dependency_form(given: str | os.PathLike[str], folder: str) -> tuple[str, Plain]:
    """The form of a file of `depends`, relative to the kernel's file; a `str` that names no file is a value.

    Raises:
        Refused: A path's file cannot be read.
    """
    try:
        with open(os.path.join(folder, os.fspath(given)), "rb") as file:
            return "file", sha256(file.read()).digest()
    except (OSError, ValueError) as error:
        if isinstance(given, str):
            return "value", given
        raise Refused(str(error)) from None


def source_text(code: CodeType) -> str:
    """Read the source of a function; "" if its file does not contain it, or changed since it was compiled.

    Not by `inspect.getsource`, which searches all modules of the program for the file: 50 ms if there are many.
    """
    linecache.checkcache(code.co_filename)
    try:
        return "".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]))
    except (SyntaxError, IndexError, tokenize.TokenError):
        return ""
