"""Scan CUDA C++ for declarations of kernels and variables, with their qualified names.

Promise     A heuristic that correctness does not depend on: its names are used to ask the compiler for types
            (prototype). A kernel that the text does not show, since a macro makes it or a header declares it, is asked
            about in a second run, by its name in the compiled code.
Method      The text between two of `;`, `{` and `}` is a declaration; bodies and initialisers are skipped. Every branch
            of an `#if` is read, each from the place of its `#if`. Macros are not expanded: what is named by one is
            left out.
Not here    Includes (headers), and the kernels in the compiled code (model.cubin).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...model import NamedTuple

_NAME = r"[A-Za-z_$][\w$]*"
_QUALIFIED = rf"(?:{_NAME}\s*::\s*)*{_NAME}"
_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<!\d)'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
"""Comments and literals."""

_BOUNDARY = re.compile(r"^[ \t]*(?:#|%:)[^\n]*|[;{}]", re.MULTILINE)
_DEFINED = rf"(?m)^[ \t]*(?:\#|%:)[ \t]*define[ \t]+({_NAME})"
_NAMESPACE = r"\bnamespace\b([^()=]*)$"
_GROUP = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_NOT_NAMES = (
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__local_maxnreg__", "__block_size__", "__attribute__",
    "__declspec", "__align__", "alignas", "decltype", "sizeof", "alignof", "noexcept", "requires", "explicit",
    "__nv_pure__", "_Pragma", "[[",
)  # fmt: skip
"""Words whose following parenthesis is not a parameter list, and the begin of an attribute."""

_SPACES = ("__device__", "__constant__", "__managed__")
_CLASS = r"\b(?:struct|class|union|enum)\b"
_FUNCTION = rf"({_QUALIFIED})\s*(?:<[^()]*>\s*)?\((\s*\*[^()]*)?"
"""A name before a parenthesis: a function, or the type of a pointer to one or to an array."""


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


def named_in_code(symbol: str, *, is_kernel: bool) -> Declaration:
    """Make the declaration of a kernel or variable that only the compiled code shows."""
    return Declaration(symbol, (), is_kernel, True, False, None)


def declarations(source: str) -> tuple[Declaration, ...]:
    """Find the declarations in a text of CUDA C++, in order."""
    text = source.replace("\r\n", "\n").replace("\\\n", "")
    text = _NOISE.sub(lambda noise: noise[0] if noise[0] == '"C"' else '""' if noise[0][0] != "/" else " ", text)
    macros = frozenset(re.findall(_DEFINED, text)) if "define" in text else frozenset()
    makes_kernels = bool(macros) and re.search(rf"{_DEFINED}.*__global__", text) is not None
    found, states, at = list[Declaration](), list[tuple[tuple[str | None, ...], int, str]](), 0
    # The open namespaces (None: extern "C"); the depth of braces in a body, a class or an initialiser; the declaration
    # so far, without what is in braces; whether it has no directive within.
    blocks, skipped, head, is_whole = tuple[str | None, ...](), 0, "", True
    for boundary in _BOUNDARY.finditer(text):
        token, between = boundary[0].lstrip(), text[at : boundary.start()]
        at = boundary.end()
        if not skipped:
            head += between
        if token[0] in "#%":
            word = token.lstrip("#%: \t").partition(" ")[0]
            is_whole = is_whole and not head.strip()
            if word.startswith("if"):
                states.append((blocks, skipped, head))
            elif word.startswith("el") and states:
                is_whole = is_whole and not skipped
                blocks, skipped, head = states[-1]
            elif word.startswith("endif") and states:
                states.pop()
            continue
        if skipped:
            skipped += (token == "{") - (token == "}")
        elif head.count("(") > head.count(")"):
            head += token
        elif token == "{" and head.rstrip().endswith('"C"'):
            blocks, head = (*blocks, None), ""
        elif token == "{" and "namespace" in head and (opened := re.search(_NAMESPACE, head)):
            names = (name for name in re.findall(_NAME, opened[1]) if name != "inline")
            blocks, head = (*blocks, "::".join(names)), ""
        elif token == "{" and not _is_body(head):
            skipped, head = 1, head + "{}"
        else:
            if token == "}":
                blocks = blocks[:-1]
            else:
                found += _declared(head, blocks, macros, is_certain=is_whole and not (makes_kernels and states))
            skipped, head = int(token == "{"), ""
        is_whole = is_whole or not (skipped or head)
    if not skipped and head.count("(") + text[at:].count("(") == head.count(")") + text[at:].count(")"):
        found += _declared(head + text[at:], blocks, macros, is_certain=is_whole)  # without `;` or a body
    return tuple(dict.fromkeys(each for each in found if each.own_name))


def _bare(head: str) -> str:
    """Remove attributes and the like from a declaration; most have none: to compile the pattern takes 0.3 ms."""
    if not any(word in head for word in _NOT_NAMES):
        return head
    return re.sub(rf"\b(?:{'|'.join(_NOT_NAMES[:-1])})\s*{_GROUP}|\[\[.*?\]\]", " ", head)


def _is_body(head: str) -> bool:
    """Check whether the brace after a head opens the body of a function."""
    if "__global__" in head:
        return True
    bare = re.sub(r"\btemplate\s*<[^()]*>", " ", _bare(head))
    function = None if "=" in bare.partition("(")[0] else re.search(_FUNCTION, bare)
    is_other = any(word in bare for word in _SPACES) or re.search(_CLASS, bare)
    return (function is not None and not function[2]) or not is_other


def _declared(
    head: str, blocks: tuple[str | None, ...], macros: frozenset[str], *, is_certain: bool
) -> Iterator[Declaration]:
    """List the kernel, or the variables, of one declaration."""
    is_kernel, head = "__global__" in head, _bare(head)
    scope = tuple(part for each in blocks if each is not None for part in each.split("::"))
    is_c, is_template = '"C"' in head or None in blocks, head.lstrip().startswith("template")

    def named(name: str, parameters: tuple[str, ...] | None = None) -> Declaration:
        whole = "::".join((*filter(None, scope), "".join(name.split()))) if name and name not in macros else ""
        return Declaration(whole, scope, is_kernel, is_c, is_template, parameters)

    if is_kernel:
        rest = head.partition("__global__")[2]
        before, parenthesis, inside = rest.partition("(")
        name = (before.split() or [""])[-1]
        if not name.isidentifier() and (function := re.search(_FUNCTION, rest)):
            name, inside = function[1], rest[function.start(2) if function[2] else function.end() :]
        if parenthesis:
            is_certain = is_certain and (not macros or macros.isdisjoint(re.findall(_NAME, head)))
            yield named(name, tuple(_split(inside)) if is_certain else None)
    elif any(word in head for word in _SPACES) and not re.search(rf"\b(?:typedef|using)\b|{_CLASS}\s*\{{", head):
        function = re.search(_FUNCTION, head.partition("=")[0])
        if function is not None:
            yield named((re.findall(_NAME, function[2] or "") or [""])[0])
            return
        for part in _split(re.sub(r"\[[^\[\]]*\]|\{\}", " ", head)):
            yield named((re.findall(_QUALIFIED, part.partition("=")[0]) or [""])[-1])


def _split(text: str) -> list[str]:
    """Split declarations at commas outside brackets, up to a bracket that closes none of them."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if depth < 0:
            break
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [*map(_joined, parts)]
    return [] if parts in ([""], ["void"]) else parts


def _joined(text: str) -> str:
    """Remove the blanks of a declaration that do not divide two words."""
    found = ""
    for word in text.split():
        divides = all(each.isalnum() or each in ("_", "$") for each in (found[-1:] or "*", word[0]))
        found += f" {word}" if divides else word
    return found
