"""Scan CUDA C++ for declarations of kernels and variables, with their qualified names.

Promise     A heuristic that correctness does not depend on: its names are used to ask the compiler for types
            (prototype). A kernel that the text does not show, since a macro makes it or a header declares it, is asked
            about in a second run, by its name in the compiled code.
Method      Function bodies and initialisers are skipped by their brackets. Every branch of an `#if` is read, each with
            the brackets that were open at its `#if`. Macros are not expanded: what is named by one is left out.
Not here    Includes (headers), and the kernels in the compiled code (model.cubin).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ...model import NamedTuple

_WORD = r"[A-Za-z_$][\w$]*"
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_TEXT = r'(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"' + r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_OTHER = r"\.?\d(?:[eEpP][+-]|'?[\w.])*|::|\#\#|."
_DIRECTIVE = r"(?P<directive>(?:^|(?<=\n))[ \t]*(?:\#|%:)[^\n]*)"
_TOKEN = re.compile(rf"{_DIRECTIVE}|(?P<blank>\s*\n|\s+|{_COMMENT})|{_TEXT}|(?P<word>{_WORD})|{_OTHER}", re.DOTALL)
_BRACE = re.compile(rf"\n[ \t]*(?P<directive>(?:\#|%:)[^\n]*)|{_COMMENT}|{_TEXT}|[{{}}]", re.DOTALL)
_DEFINED = rf"(?m)^[ \t]*(?:\#|%:)[ \t]*define[ \t]+({_WORD})"

_SPACES = frozenset(("__device__", "__constant__", "__managed__"))
_CLASSES = frozenset(("struct", "class", "union", "enum"))
_NOT_NAMES = frozenset((
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__local_maxnreg__", "__block_size__", "__attribute__",
    "__declspec", "__align__", "alignas", "decltype", "sizeof", "alignof", "noexcept", "requires", "explicit",
    "__nv_pure__", "_Pragma",
))  # fmt: skip
"""Words whose following parenthesis is not a parameter list."""

_CLOSERS = {"(": ")", "[": "]", "{": "}"}


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


def declarations(source: str) -> tuple[Declaration, ...]:
    """Find the declarations in a text of CUDA C++, in order."""
    text = source.replace("\r\n", "\n").replace("\\\n", "")
    macros = frozenset(re.findall(_DEFINED, text)) if "define" in text else frozenset()
    makes_kernels = bool(macros) and re.search(rf"{_DEFINED}.*__global__", text) is not None
    reader = _Reader(macros, makes_kernels=makes_kernels)
    reader.feed(text)
    return tuple(dict.fromkeys(reader.found))


def named_in_code(symbol: str, *, is_kernel: bool) -> Declaration:
    """Make the declaration of a kernel or variable that only the compiled code shows."""
    return Declaration(symbol, (), is_kernel, True, False, None)


class _State(NamedTuple):
    """State in which a branch of an `#if` starts: the open blocks, the braces to skip, the declaration so far."""

    blocks: tuple[str | None, ...]
    skipped: int
    head: tuple[str, ...]
    nesting: tuple[str, ...]


class _Reader:
    """Reads one text.

    Args:
        macros: The names of macros that it defines.
        makes_kernels: Whether one of them may make a kernel: then one under a condition may not be the one compiled.
    """

    def __init__(self, macros: frozenset[str], *, makes_kernels: bool) -> None:
        self.found: list[Declaration] = []
        self._macros, self._makes_kernels = macros, makes_kernels
        self._states: list[_State] = []
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

    def feed(self, text: str) -> None:
        """Read the text."""
        position = 0
        while position < len(text):
            found = (_BRACE.search if self._skipped else _TOKEN.match)(text, position)
            if found is None:
                return
            position = found.end()
            if found["directive"]:
                self._direct(found["directive"])
            elif self._skipped:
                if found[0] in "{}":
                    self._skip(found[0])
            elif not found["blank"]:
                self._is_plain = self._is_plain and found[0] not in self._macros
                self._take(found[0])
        if not self._nesting and not self._skipped:
            self._declared()  # a last declaration that ends after its parameters, without `;` or a body

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
            is_certain = self._is_plain and not (self._makes_kernels and self._states)
            parameters = _parameters(_inside(self._head, top[group][1])) if is_certain else None
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
        if not name or name in self._macros:
            return
        is_c = '"C"' in words or None in self._blocks
        scope = tuple(part for each in self._blocks if each is not None for part in each.split("::"))
        named = "::".join((*filter(None, scope), name))
        self.found.append(Declaration(named, scope, is_kernel, is_c, "template" in words, parameters))

    # -- directives ----------------------------------------------------------------------------------------------------

    def _direct(self, line: str) -> None:
        word = re.split(r"\W", line.lstrip("#%: \t"), maxsplit=1)[0]
        self._is_plain = self._is_plain and not self._head
        if word in ("if", "ifdef", "ifndef"):
            self._states.append(self._state())
        elif word in ("else", "elif", "elifdef", "elifndef") and self._states:
            self._restore(self._states[-1])
        elif word == "endif" and self._states:
            self._states.pop()

    def _state(self) -> _State:
        return _State(tuple(self._blocks), self._skipped, tuple(self._head), tuple(self._nesting))

    def _restore(self, state: _State) -> None:
        self._blocks, self._skipped = list(state.blocks), state.skipped
        self._head, self._nesting = list(state.head), list(state.nesting)


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
