"""Scan CUDA C++ for declarations of kernels and variables, with their qualified names.

Promise     A heuristic that correctness does not depend on: its names are used to ask the compiler for types
            (prototype); a declaration that it misses costs a kernel its types, not its code. Macros of the text, of
            the user's headers and of the options are expanded, so that kernels declared by macros are found too.
Method      Function bodies and initialisers are skipped by their brackets. Every branch of an `#if` is read, each with
            the brackets that were open at its `#if`; macro definitions are taken only from the branch that seems
            active.
Not here    Includes (headers), and the kernels in the compiled code (model.cubin).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from ...model import NamedTuple
from .macros import COMMENT, OTHER, TEXT, WORD, Macros

_DIRECTIVE = r"(?P<directive>(?:^|(?<=\n))[ \t]*(?:\#|%:)[^\n]*)"
_TOKEN = re.compile(rf"{_DIRECTIVE}|(?P<blank>\s*\n|\s+|{COMMENT})|{TEXT}|(?P<word>{WORD})|{OTHER}", re.DOTALL)
_BRACE = re.compile(rf"\n[ \t]*(?P<directive>(?:\#|%:)[^\n]*)|{COMMENT}|{TEXT}|[{{}}]", re.DOTALL)
_CONDITION = rf"(ifdef|ifndef|if\s+!?\s*defined)\b\s*\(?\s*({WORD})\s*\)?\s*\Z|if\s+(0|1)\s*\Z"

_SPACES = frozenset(("__device__", "__constant__", "__managed__"))
_CLASSES = frozenset(("struct", "class", "union", "enum"))
_NOT_NAMES = frozenset((
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__local_maxnreg__", "__block_size__", "__attribute__",
    "__declspec", "__align__", "alignas", "decltype", "sizeof", "alignof", "noexcept", "requires", "explicit",
    "__nv_pure__", "_Pragma",
))  # fmt: skip
"""Words whose following parenthesis is not a parameter list."""

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_KNOWN = frozenset(("__cplusplus", "__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__NVCC__"))
_EXPANDED = "<expanded>"
"""The path used for expanded macros, whose text is not expanded again."""

_MOST_CHARACTERS = 1 << 18
"""Limit of the characters of headers that are read; further headers are ignored."""

_MOST_NESTED = 32


class Declaration(NamedTuple):
    """A kernel or a variable, as the text declares it.

    Args:
        name: Its qualified name, `"ns::axpy"`, without unnamed namespaces.
        scope: The namespaces that contain it, "" for an unnamed one.
        is_kernel: Whether it is a kernel; otherwise a variable.
        has_c_name: Whether its symbol is its unmangled name (`extern "C"`).
        is_template: Whether it is a template, an instance of one, or a specialisation.
        parameters: The declaration of each parameter; None if macros or conditions are involved.
    """

    name: str
    scope: tuple[str, ...]
    is_kernel: bool
    has_c_name: bool
    is_template: bool
    parameters: tuple[str, ...] | None

    @property
    def own_name(self) -> str:
        """The name without namespaces."""
        return self.name.rpartition("::")[2]


Include = Callable[[str, str], "tuple[str, str] | None"]
"""Maps the name in quotes or angle brackets, and the path of the including file ("" for a name in angle brackets, which
is not searched beside it), to path and text of the header."""


def declarations(
    source: str, macros: Iterable[tuple[str, str | None]] = (), include: Include = lambda _name, _of: None
) -> tuple[Declaration, ...]:
    """Find the declarations in a text, in order.

    Args:
        source: CUDA C++.
        macros: Macros defined by options: name, with parameters, and text.
        include: Returns the headers to read as well; default none.
    """
    reader = _Reader(include)
    for name, text in macros:
        reader.macros.define(f"{name} {'1' if text is None else text}")
    reader.feed(_spliced(source), "")
    reader.end()
    return tuple(dict.fromkeys(reader.found))


def _spliced(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\\\n", "")


class _State(NamedTuple):
    """State in which a branch of an `#if` starts: the open blocks, the braces to skip, the declaration so far."""

    blocks: tuple[str | None, ...]
    skipped: int
    head: tuple[str, ...]
    nesting: tuple[str, ...]


class _Reader:
    """Reads texts one after another, as if they were one."""

    def __init__(self, include: Include) -> None:
        self.found: list[Declaration] = []
        self.macros = Macros()
        self._include = include
        self._active: list[bool] = []  # for each open #if: whether its present branch seems to be the one compiled
        self._states: list[_State] = []
        self._room = _MOST_CHARACTERS
        self._read: set[str] = set()
        self._open_files: list[str] = []
        self._blocks: list[str | None] = []  # namespaces; None for extern "C"
        self._skipped = 0  # depth of open braces in the block being skipped
        self._is_body = False  # whether the skipped block ends the declaration
        self._nesting: list[str] = []  # open brackets in the declaration
        self._start_over()

    def _start_over(self) -> None:
        self._head: list[str] = []
        self._nesting.clear()
        self._is_plain = True
        self._is_initialiser = False

    def feed(self, text: str, path: str) -> None:
        """Read a text: that of a file, or the expansion of a macro."""
        position = 0
        while position < len(text):
            if self._skipped:
                found = _BRACE.search(text, position)
                if found is None:
                    return
                if found["directive"]:
                    self._direct(found["directive"], path)
                elif found[0] in "{}":
                    self._skip(found[0])
                position = found.end()
                continue
            found = _TOKEN.match(text, position)
            assert found is not None  # the pattern's last alternative matches any character
            position = found.end()
            if found["directive"]:
                self._direct(found["directive"].lstrip(), path)
            elif path != _EXPANDED and found["word"] in self.macros:
                made, position = self.macros.expand(found[0], text, position)
                if made is None:
                    self._take(found[0])
                    continue
                self._is_plain = False
                self.feed(made, _EXPANDED)
                self._is_plain = self._is_plain or not self._head
            elif not found["blank"]:
                self._take(found[0])

    def end(self) -> None:
        """Accept a last declaration that ends after its parameters, without `;` or a body."""
        if not self._nesting and not self._skipped:
            self._declared()

    # -- declarations --------------------------------------------------------------------------------------------------

    def _take(self, token: str) -> None:
        if self._nesting:
            if token == self._nesting[-1]:
                self._nesting.pop()
            elif token in _CLOSERS:
                self._nesting.append(_CLOSERS[token])
            if not self._is_initialiser:
                self._head.append(token)
        elif token == ";":
            self._declared()
            self._start_over()
        elif token == "{":
            self._open()
        elif token == "}":
            if self._blocks:
                self._blocks.pop()
            self._start_over()
        elif self._is_initialiser:
            if token == ",":
                self._is_initialiser = False
                self._head.append(token)
            elif token in _CLOSERS:
                self._nesting.append(_CLOSERS[token])
        elif token == "=" and not (self._head[:1] == ["template"] and self._head.count("<") > self._head.count(">")):
            self._is_initialiser = True
        else:
            self._head.append(token)
            if token in _CLOSERS:
                self._nesting.append(_CLOSERS[token])

    def _open(self) -> None:
        """Process a brace that opens a block, a body, or an initialiser."""
        top = [each for each, _ in _top(self._head)]
        if self._is_initialiser:
            self._nesting.append("}")
        elif "namespace" in top:
            names = [each for each in top[top.index("namespace") + 1 :] if _is_word(each)]
            self._blocks.append("::".join(each for each in names if each != "inline"))
            self._start_over()
        elif top == ["extern", '"C"']:
            self._blocks.append(None)
            self._start_over()
        else:
            self._is_body = _function(top) is not None or not (_CLASSES & set(top) or _SPACES & set(top))
            if self._is_body:
                self._declared()
            self._skipped = 1

    def _skip(self, brace: str) -> None:
        self._skipped += 1 if brace == "{" else -1
        if self._skipped == 0:
            if self._is_body:
                self._start_over()
            else:
                self._head.append("{}")

    def _declared(self) -> None:
        top = _top(self._head)
        words = [each for each, _ in top]
        function = _function(words, words.index("__global__") if "__global__" in words else 0)
        if "__global__" in words and function is not None:
            at, group = function
            parameters = _parameters(_inside(self._head, top[group][1])) if self._is_plain else None
            self._add(_qualified(words, at), words, True, parameters)
        elif _SPACES & set(words) and function is not None and self._head[top[function[1]][1] + 1] == "*":
            pointer = _inside(self._head, top[function[1]][1])  # to a function, or to an array
            self._add(next((each for each in pointer if _is_word(each)), ""), words, False, None)
        elif _SPACES & set(words) and function is None and "typedef" not in words and "using" not in words:
            if any(one in _CLASSES and other == "{}" for one, other in pairwise(words)):
                return  # an unnamed type cannot be used in a name expression
            for part in _split(words):
                names = [index for index, each in enumerate(part) if _is_word(each)]
                if names:
                    self._add(_qualified(part, names[-1]), words, False, None)

    def _add(self, name: str, words: list[str], is_kernel: bool, parameters: tuple[str, ...] | None) -> None:
        if not name:
            return
        is_c = '"C"' in words or None in self._blocks
        scope = tuple(part for each in self._blocks if each is not None for part in each.split("::"))
        named = "::".join((*filter(None, scope), name))
        self.found.append(Declaration(named, scope, is_kernel, is_c, "template" in words, parameters))

    # -- directives ----------------------------------------------------------------------------------------------------

    def _direct(self, line: str, path: str) -> None:
        line = line.lstrip("#%: \t")
        line = (re.sub(COMMENT, " ", line) if "/" in line else line).strip()
        word = re.split(r"\W", line, maxsplit=1)[0]
        rest = line[len(word) :].strip()
        self._is_plain = self._is_plain and not self._head
        if word == "define":
            if all(self._active) or re.split(r"\W", rest, maxsplit=1)[0] not in self.macros:
                self.macros.define(rest)
        elif word == "undef" and all(self._active):
            self.macros.undefine(rest)
        elif word in ("if", "ifdef", "ifndef"):
            self._states.append(self._state())
            self._active.append(self._holds(line))
        elif word in ("else", "elif", "elifdef", "elifndef") and self._states:
            self._restore(self._states[-1])
            self._active[-1] = not self._active[-1]
        elif word == "endif" and self._states:
            self._states.pop()
            self._active.pop()
        elif word == "include" and not self._skipped:
            self._read_header(rest, path)

    def _holds(self, line: str) -> bool:
        """Check whether a condition seems true; an unknown one counts as true."""
        found = re.match(_CONDITION, line)
        if found is None:
            return True
        if found[3]:
            return found[3] == "1"
        is_negative = found[1] == "ifndef" or "!" in found[1]
        return (found[2] in self.macros or found[2] in _KNOWN) != is_negative

    def _state(self) -> _State:
        return _State(tuple(self._blocks), self._skipped, tuple(self._head), tuple(self._nesting))

    def _restore(self, state: _State) -> None:
        self._blocks, self._skipped = list(state.blocks), state.skipped
        self._head, self._nesting = list(state.head), list(state.nesting)

    def _read_header(self, name: str, path: str) -> None:
        header = self._include(name[1:-1], path if name[0] == '"' else "") if name[:1] in ('"', "<") else None
        if header is None:
            return
        path, text = header
        if path in self._read or len(text) > self._room or len(self._open_files) > _MOST_NESTED:
            return
        self._room -= len(text)
        if "#pragma once" in text or text.lstrip().startswith("#ifndef"):
            self._read.add(path)
        self._open_files.append(path)
        self.feed(_spliced(text), path)
        self._open_files.pop()


def _top(head: list[str]) -> list[tuple[str, int]]:
    """The tokens of a declaration outside brackets, with their indices; a bracketed group gives its opening bracket."""
    found, closers = list[tuple[str, int]](), list[str]()
    for index, token in enumerate(head):
        if closers:
            if token == closers[-1]:
                closers.pop()
            elif token in _CLOSERS:
                closers.append(_CLOSERS[token])
            continue
        found.append((token, index))
        if token in _CLOSERS:
            closers.append(_CLOSERS[token])
    return found


def _inside(head: list[str], start: int) -> list[str]:
    """The tokens between the bracket that opens here and the one that closes it."""
    depth = 0
    for index in range(start, len(head)):
        depth += (head[index] in _CLOSERS) - (head[index] in _CLOSERS.values())
        if depth == 0:
            return head[start + 1 : index]
    return head[start + 1 :]


def _is_word(token: str) -> bool:
    """Check whether a token is an identifier or keyword. A literal may begin with a letter too, but ends in a quote."""
    return token[:1].isascii() and _in_word(token[:1]) and not token[0].isdigit() and token[-1] not in "\"'"


def _in_word(character: str) -> bool:
    return character.isalnum() or character in ("_", "$")


def _function(words: list[str], start: int = 0) -> tuple[int, int] | None:
    """Find the indices of a function's name and its parameter list among top-level tokens; None for no function.
    `start` is the index of `__global__`: before it there may be macros of the toolkit, which look like calls."""
    for group in (index for index, word in enumerate(words) if word == "(" and index > start):
        index = group - 1
        if words[index] == ">":  # a specialisation, or an instance
            index = max((at for at in range(group) if words[at] == "<"), default=0) - 1
        if index >= 0 and _is_word(words[index]) and words[index] not in _NOT_NAMES:
            return index, group
    return None


def _qualified(words: list[str], at: int) -> str:
    name = words[at]
    while at >= 2 and words[at - 1] == "::" and _is_word(words[at - 2]):
        name, at = f"{words[at - 2]}::{name}", at - 2
    return name


def _split(words: list[str]) -> Iterator[list[str]]:
    """Split declarators at commas outside angle brackets, without their array extents."""
    part: list[str] = []
    depth = 0
    for word in words:
        depth += (word == "<") - (word == ">")
        if word == "," and depth <= 0:
            yield part
            part = []
        elif word != "[":
            part.append(word)
    yield part


def _parameters(tokens: list[str]) -> tuple[str, ...]:
    """The declarations in a list of parameters."""
    if tokens in ([], ["void"]):
        return ()
    found, part, depth = list[str](), list[str](), 0
    for token in tokens:
        depth += (token in ("<", "(", "[", "{")) - (token in (">", ")", "]", "}"))
        if token == "," and depth == 0:
            found.append(_joined(part))
            part = []
        else:
            part.append(token)
    return (*found, _joined(part))


def _joined(tokens: list[str]) -> str:
    """Join tokens to a text, with a blank if they would run together."""
    text = ""
    for token in tokens:
        text += f" {token}" if _in_word(token[:1]) and _in_word(text[-1:]) else token
    return text
