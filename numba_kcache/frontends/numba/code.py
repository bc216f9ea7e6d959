"""The form of a code object in the key, and the global and closure names that it reads.

Promise     `code_form` is equal for two code objects only if they compute the same from the same outer names.
            It does not depend on process, hash seed, checkout path, comments, docstrings, lines or names of local
            variables; with `with_lines` it also contains file, lines and those names, as debug information does.
            `outer_reads` lists every global and closure variable that is read, nested code included, with the
            chain of attributes read from it.
Method      Bytecode with its exception table, names and typed constants, those in the order of their use; not marshal
            (its bytes depend on reference counts) and not repr (addresses). The scan walks the two-byte words of
            `co_code` itself: `dis` takes 4 us an instruction.
Source      Python documentation, "dis": LOAD_GLOBAL holds its name's index shifted by one, LOAD_ATTR too
            from 3.12 on; inline caches are CACHE words in between.
"""

from __future__ import annotations

import dis
import os
import re
import struct
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from ...keys import Plain, encode, sha256
from ...model import NamedTuple
from ...settings import variables, working_directory

_CACHE, _EXTENDED_ARG = dis.opmap.get("CACHE", 0), dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL, _LOAD_DEREF = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_DEREF"]
_LOAD_ATTR, _LOAD_METHOD = dis.opmap["LOAD_ATTR"], dis.opmap.get("LOAD_METHOD", -1)
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_OF_CLASS = tuple(dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap)
"""Instructions that read a name in the body of a class, where it may be local or global."""

_OF_CLASS_CELLS = tuple(dis.opmap[name] for name in ("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") if name in dis.opmap)
_CELLS = (_LOAD_DEREF, *_OF_CLASS_CELLS)
_READING = re.compile(b"[" + re.escape(bytes((_LOAD_GLOBAL, _IMPORT_NAME, *_OF_CLASS, *_CELLS))) + b"]", re.DOTALL)
_USING = re.compile(b"[" + re.escape(bytes(each for each in dis.hasconst if each < 256)) + b"]", re.DOTALL)
_OPTIMIZED, _VARIADIC, _VARIADIC_KEYWORDS = 0x01, 0x04, 0x08  # in `co_flags`, as named by `inspect`
_HAS_DOCSTRING = 0x4000000  # in `co_flags` from Python 3.13 on
_SKIPPED = bytes((_CACHE, _EXTENDED_ARG))
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

SPECIAL = frozenset(
    ("__annotations__", "__code__", "__dict__", "__doc__", "__firstlineno__", "__globals__", "__module__", "__name__",
     "__qualname__")
)  # fmt: skip
"""Special attributes, by which a function or class describes itself. They do not affect its own code, but other code
may read them: that of the kernel, or functions that run while the kernel is typed (`@overload`, `@intrinsic`)."""

BY_TEXT = {"getattr", "hasattr", "attrgetter", "methodcaller", "__getattribute__"}
"""Functions that get an attribute by its name."""

BY_BYTES = {"view", "from_buffer"}
"""Functions that read an array as bytes, in a kernel or in what an intrinsic makes of it."""

_TELLING = BY_TEXT | BY_BYTES | {"dir"}


class Read(NamedTuple):
    """A name that code reads from outside: `scope` is "global", "closure" or "import". Of its value, `attributes` are
    read, each from the one before."""

    scope: str
    name: str
    attributes: tuple[str, ...] = ()


class Reading(NamedTuple):
    """A code object as it is keyed: a digest of its form, its `outer_reads`, the words of its names and constants, and
    those among them that are `telling`."""

    digest: bytes
    reads: tuple[Read, ...]
    words: frozenset[str]
    telling: frozenset[str]


readings: dict[tuple[int, bool, str], tuple[weakref.ref[CodeType], Reading]] = {}
"""The readings of living code objects, by id, `with_lines` and file."""


def read_code(code: CodeType, *, with_lines: bool) -> Reading:
    """Read a code object, once in a process: code objects are immutable, unlike the values that they read.

    Raises:
        TypeError: It holds a constant that no compiler makes.
    """
    key = id(code), with_lines, working_directory() if with_lines else ""
    known = readings.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    form = repr(code_form(code, with_lines=with_lines))  # repr is exact for text, bytes and numbers, and fast
    words = frozenset(_words(code))
    made = Reading(sha256(encode(form)).digest(), outer_reads(code), words, telling(words))
    readings[key] = weakref.ref(code, lambda _gone: readings.pop(key, None)), made
    return made


def code_form(code: CodeType, *, with_lines: bool) -> Plain:
    """The code object as plain values.

    Raises:
        TypeError: It holds a constant that no compiler makes.
    """
    lines: Plain = None
    named = code.co_argcount + code.co_kwonlyargcount
    named += bool(code.co_flags & _VARIADIC) + bool(code.co_flags & _VARIADIC_KEYWORDS)
    if with_lines:
        where: Plain = os.path.normpath(code.co_filename)
        if not os.path.isabs(code.co_filename):  # compilers complete a relative name by one of these folders
            where = code.co_filename, working_directory(), list(variables(("PWD",)).values())
        lines, named = (where, code.co_firstlineno, code.co_linetable), len(code.co_varnames)
    words, constants = _by_use(code)
    return (
        code.co_qualname,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING),
        words,
        code.co_exceptiontable,
        *map("\0".join, (code.co_names, code.co_varnames[:named], code.co_cellvars, code.co_freevars)),
        [_constant_form(each, with_lines) for each in constants],
        lines,
    )


def _by_use(code: CodeType) -> tuple[bytes, list[Any]]:
    """The instructions with constants numbered by first use, and these constants, without the docstring."""
    words, numbers, uses = bytearray(code.co_code), dict[int, int](), list[int]()
    for match in _USING.finditer(bytes(words[::2])):
        at = match.start()
        uses.append(numbers.setdefault(_argument(words, at), len(numbers)))
        words[2 * at + 1] = 0
        while at and words[2 * at - 2] == _EXTENDED_ARG:
            at -= 1
            words[2 * at + 1] = 0
    return bytes(words) + repr(uses).encode(), [code.co_consts[each] for each in numbers]


def _constant_form(value: Any, with_lines: bool) -> Plain:
    kind = type(value)
    if kind is CodeType:
        return "code", code_form(value, with_lines=with_lines)
    if kind is tuple:
        return "tuple", [_constant_form(each, with_lines) for each in value]
    if kind is frozenset:
        return "frozenset", tuple(sorted(repr(_constant_form(each, with_lines)) for each in value))
    if kind is slice:
        return "slice", [_constant_form(each, with_lines) for each in (value.start, value.stop, value.step)]
    return scalar_form(value)


def scalar_form(value: Any) -> Plain:
    """The form of a constant, with its type. Floats are compared by bits: signed zeros and NaNs count.

    Raises:
        TypeError: It is not a constant of the language.
    """
    kind = type(value)
    if kind in (bool, int, str, bytes) or value is None:
        return kind.__name__, value
    if kind is float:
        return "float", struct.pack("<d", value)
    if kind is complex:
        return "complex", struct.pack("<dd", value.real, value.imag)
    if value is Ellipsis or value is NotImplemented:
        return (str(value),)
    raise TypeError(f"{kind.__name__} is not a constant")


def telling(words: Iterable[str]) -> frozenset[str]:
    """Pick the special attributes of functions and classes, parts of their names, functions that get one by name, and
    those that read an array as bytes."""
    return frozenset([word for word in words if "__" in word or word in _TELLING])


def words_in(text: str) -> list[str]:
    """List the words of a text, which may name attributes."""
    return re.findall(r"\w+", text)


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names, and the words of constants, without docstrings and the implicit start of class bodies."""
    names: Iterable[str] = code.co_names
    if not code.co_flags & _OPTIMIZED:
        own = ("STORE_NAME", "LOAD_NAME")
        used = [(str(each.argval), each.opname) for each in dis.get_instructions(code) if type(each.argval) is str]
        names = [name for name, operation in used if operation not in own or not name.startswith("__")]
    yield from names
    for constant in _by_use(code)[1]:
        yield from _words(constant) if type(constant) is CodeType else words_in(repr(constant))


def outer_reads(code: CodeType) -> tuple[Read, ...]:
    """Every outer name that `code` and the code nested in it read, each once, in order."""
    return tuple(dict.fromkeys(_reads(code, frozenset(code.co_freevars))))


def _reads(code: CodeType, free: frozenset[str]) -> list[Read]:
    found: list[Read] = []
    words, names = code.co_code, code.co_names  # each access to co_code makes a copy
    operations = words[::2]
    for match in _READING.finditer(operations):
        at = match.start()
        word, argument = words[2 * at], _argument(words, at)
        if word == _IMPORT_NAME:
            found.append(Read("import", names[argument]))
        elif word == _LOAD_GLOBAL:
            found.append(Read("global", names[argument >> 1], _attributes(names, words, operations, at + 1)))
        elif word in _OF_CLASS:
            if names[argument] != "__name__":  # a class body reads it only for its __module__
                found.append(Read("global", names[argument], _attributes(names, words, operations, at + 1)))
        elif (name := _local_name(code, argument)) in free:
            found.append(Read("closure", name, _attributes(names, words, operations, at + 1)))
    for constant in code.co_consts:
        if type(constant) is CodeType:
            found += _reads(constant, free & frozenset(constant.co_freevars))
    return found


def _argument(words: bytes | bytearray, at: int) -> int:
    """The argument of instruction `at`, with the higher bytes of preceding EXTENDED_ARG instructions."""
    argument, shift = words[2 * at + 1], 8
    while at and words[2 * at - 2] == _EXTENDED_ARG:
        at -= 1
        argument |= words[2 * at + 1] << shift
        shift += 8
    return argument


def _attributes(names: tuple[str, ...], words: bytes, operations: bytes, at: int) -> tuple[str, ...]:
    """The chain of attributes read from the value that the instruction before `at` loaded."""
    found: tuple[str, ...] = ()
    rest = operations[at:]
    while rest := rest.lstrip(_SKIPPED):
        at, word = len(operations) - len(rest), rest[0]
        if word == _LOAD_ATTR:
            found += (names[_argument(words, at) >> _ATTR_SHIFT],)
        elif word == _LOAD_METHOD:
            found += (names[_argument(words, at)],)
        else:
            break
        rest = rest[1:]
    return found


def _local_name(code: CodeType, index: int) -> str:
    """The name of a frame slot: local variables, then cells that are not locals, then free variables."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*code.co_varnames, *cells, *code.co_freevars)[index]
