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
_GROUP = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_NOT_NAMES = (
    r"\b(?:__launch_bounds__|__cluster_dims__|__maxnreg__|__local_maxnreg__|__block_size__|__attribute__|__declspec"
    rf"|__align__|alignas|decltype|sizeof|alignof|noexcept|requires|explicit|__nv_pure__|_Pragma)\s*{_GROUP}"
    r"|\[\[.*?\]\]"
)
"""Words with a parenthesis that is no list of parameters."""

_KERNEL = re.compile(rf"({_QUALIFIED})\s*(?:<[^()]*>\s*)?\(")
_SPACE = re.compile(r"\b__(?:device|constant|managed)__\b")
_CLASS = re.compile(r"\b(?:struct|class|union|enum)\b")
_FUNCTION = re.compile(rf"{_NAME}\s*(?:<[^()]*>\s*)?\((\s*\*[^()]*)?")
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


class _Place(NamedTuple):
    """A place between two tokens.

    Args:
        blocks: The namespaces that are open; None for extern "C".
        skipped: The depth of braces in a body, a class or an initialiser.
        head: The declaration so far; what is in braces, and directives, are left out of it.
        is_whole: Whether the declaration has no directive within.
    """

    blocks: tuple[str | None, ...] = ()
    skipped: int = 0
    head: str = ""
    is_whole: bool = True


def declarations(source: str) -> tuple[Declaration, ...]:
    """Find the declarations in a text of CUDA C++, in order."""
    text = source.replace("\r\n", "\n").replace("\\\n", "")
    text = _NOISE.sub(lambda noise: noise[0] if noise[0] == '"C"' else '""' if noise[0][0] != "/" else " ", text)
    macros = frozenset(re.findall(_DEFINED, text)) if "define" in text else frozenset()
    makes_kernels = bool(macros) and re.search(rf"{_DEFINED}.*__global__", text) is not None
    found, states, here, at = list[Declaration](), list[_Place](), _Place(), 0

    def declared(place: _Place) -> None:
        is_certain = place.is_whole and not (makes_kernels and states)
        found.extend(each for each in _declared(place, macros, is_certain=is_certain) if each.own_name)

    for boundary in _BOUNDARY.finditer(text):
        token, between = boundary[0].lstrip(), text[at : boundary.start()]
        at = boundary.end()
        if not here.skipped:
            here = here._replace(head=here.head + between)
        if token[0] in "#%":
            word = token.lstrip("#%: \t").partition(" ")[0]
            here = here._replace(is_whole=here.is_whole and not here.head.strip())
            if word.startswith("if"):
                states.append(here)
            elif word.startswith("el") and states:
                here = states[-1]._replace(is_whole=here.is_whole and not here.skipped)
            elif word.startswith("endif") and states:
                states.pop()
        elif here.skipped:
            here = here._replace(skipped=here.skipped + (token == "{") - (token == "}"))
            if not here.skipped and here.head == "":
                here = here._replace(is_whole=True)
        elif here.head.count("(") > here.head.count(")"):
            here = here._replace(head=here.head + token)
        elif token == "{" and (opened := re.search(r'\bnamespace\b([^()=]*)$|\bextern\s*"C"\s*$', here.head)):
            names = re.findall(_NAME, opened[1] or "")
            block = None if opened[1] is None else "::".join(name for name in names if name != "inline")
            here = _Place((*here.blocks, block))
        elif token == "{" and not _is_body(here.head):
            here = here._replace(skipped=1, head=here.head + "{}")
        else:
            if token != "}":
                declared(here)
            here = _Place(here.blocks[:-1] if token == "}" else here.blocks, int(token == "{"))
    if not here.skipped and "(" in text[at:]:
        last = here._replace(head=here.head + text[at:])  # without `;` or a body
        if last.head.count("(") == last.head.count(")"):
            declared(last)
    return tuple(dict.fromkeys(found))


def _is_body(head: str) -> bool:
    """Check whether the brace after a head opens the body of a function."""
    bare = re.sub(_NOT_NAMES + r"|\btemplate\s*<[^()]*>", " ", head)
    function = None if "=" in bare.partition("(")[0] else _FUNCTION.search(bare)
    return (function is not None and not function[1]) or not (_CLASS.search(bare) or _SPACE.search(bare))


def _declared(place: _Place, macros: frozenset[str], *, is_certain: bool) -> Iterator[Declaration]:
    """List the kernel, or the variables, of one declaration."""
    head = re.sub(_NOT_NAMES, " ", place.head)
    scope = tuple(part for each in place.blocks if each is not None for part in each.split("::"))
    is_c, is_template = '"C"' in head or None in place.blocks, head.lstrip().startswith("template")

    def named(name: str, parameters: tuple[str, ...] | None, *, is_kernel: bool) -> Declaration:
        name = "" if name in macros else re.sub(r"\s", "", name)
        whole = "::".join((*filter(None, scope), name)) if name else ""
        return Declaration(whole, scope, is_kernel, is_c, is_template, parameters)

    if "__global__" in head:
        rest = head.partition("__global__")[2]
        if kernel := _KERNEL.search(rest):
            is_certain = is_certain and macros.isdisjoint(re.findall(_NAME, head))
            inside = _split(rest[kernel.end() :])
            yield named(kernel[1], tuple(inside) if is_certain else None, is_kernel=True)
    elif _SPACE.search(head) and not re.search(rf"\b(?:typedef|using)\b|{_CLASS.pattern}\s*\{{", head):
        function = _FUNCTION.search(head.partition("=")[0])
        if function is not None:
            pointer = re.findall(_NAME, function[1] or "")
            yield named(pointer[0] if pointer else "", None, is_kernel=False)
            return
        for part in _split(re.sub(r"\[[^\[\]]*\]|\{\}", " ", head)):
            names = re.findall(_QUALIFIED, part.partition("=")[0])
            yield named(names[-1] if names else "", None, is_kernel=False)


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
    parts = [re.sub(r"\s+(?![\w$])|(?<![\w$])\s+", "", part) for part in parts]
    return [] if parts in ([""], ["void"]) else parts
