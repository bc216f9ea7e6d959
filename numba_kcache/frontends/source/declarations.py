"""Find the kernels and variables that a text of CUDA C++ declares.

Promise     A heuristic that correctness does not depend on: its names are used to ask the compiler for types
            (prototype), which knows which of them exist. What the text does not show, since a macro makes it or a
            header declares it, is asked about in a second run, by its name in the compiled code.
Method      A kernel is what stands before the parenthesis behind `__global__`, a variable what stands before a
            semicolon, an initialiser or a body. Every branch of an `#if` is read. Scopes are left to the compiler, and
            macros are not expanded: what is named by one is left out.
Not here    Includes (headers), and the kernels in the compiled code (model.cubin).
"""

from __future__ import annotations

import re

from ...model import NamedTuple

_NAME = r"[A-Za-z_$][\w$]*"
_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<!\d)'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
"""Comments and literals."""

_DIRECTIVE = r"(?m)^[ \t]*(?:#|%:)[^\n]*"
_DEFINED = rf"(?m)^[ \t]*(?:\#|%:)[ \t]*define[ \t]+({_NAME})"
_CONDITION = r"(?m)^[ \t]*(?:#|%:)[ \t]*if"
_GROUP = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_KERNEL = rf"\b__global__\b([^;{{}}(]*)({_GROUP})"
_VARIABLE = r"\b__(?:device|constant|managed)__\b([^;{}()=#]*)[;={]"
_NO_VARIABLE = r"\b(?:template|typedef|using|operator|struct|class|union|enum)\b"
_NOT_NAMES = (
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__local_maxnreg__", "__block_size__", "__attribute__",
    "__declspec", "__align__", "alignas", "decltype", "sizeof", "alignof", "noexcept", "requires", "explicit",
    "__nv_pure__", "_Pragma", "[[",
)  # fmt: skip
"""Words whose following parenthesis is not a parameter list, and the begin of an attribute."""

_QUALIFIERS = (
    "const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "struct", "class", "enum", "typename",
)  # fmt: skip
_TYPE_WORDS = frozenset(("int", "long", "short", "char", "unsigned", "signed", "float", "double", "bool", "void"))


class Declaration(NamedTuple):
    """A kernel or a variable, as the text declares it.

    Args:
        name: Its name, without namespaces.
        is_kernel: Whether it is a kernel; otherwise a variable.
        has_c_name: Whether its symbol may be its unmangled name (`extern "C"`).
        is_template: Whether it is a template, an instance of one, or a specialisation.
        parameters: The name of each parameter, "" for one without; None if macros or conditions are involved.
    """

    name: str
    is_kernel: bool = True
    has_c_name: bool = True
    is_template: bool = False
    parameters: tuple[str, ...] | None = None


def declarations(source: str) -> tuple[Declaration, ...]:
    """Find the declarations in a text of CUDA C++: kernels in order, then variables.

    Most texts need two of the patterns: to compile one takes up to 0.3 ms.
    """
    text = source.replace("\r\n", "\n").replace("\\\n", "")
    text = _NOISE.sub(lambda noise: noise[0] if noise[0] == '"C"' else '""' if noise[0][0] != "/" else " ", text)
    macros, makes_kernels = frozenset[str](), False
    if "define" in text:
        macros = frozenset(re.findall(_DEFINED, text))
        makes_kernels = all(re.search(each, text) for each in (rf"{_DEFINED}.*__global__", _CONDITION))
    if "#" in text or "%:" in text:
        text = re.sub(_DIRECTIVE, "#", text)
    if any(word in text for word in _NOT_NAMES):
        text = re.sub(rf"\b(?:{'|'.join(_NOT_NAMES[:-1])})\s*{_GROUP}|\[\[.*?\]\]", " ", text)
    has_blocks = '"C"{' in "".join(text.split())
    found: list[Declaration] = []
    for match in re.finditer(_KERNEL, text):
        head = text[_start(text, match.start()) : match.start()]
        name = (match[1].partition("<")[0].replace("::", " ").split() or [""])[-1]
        # where macros make kernels, one branch of a condition may declare by a macro the same kernel as another
        is_certain = (
            not makes_kernels
            and "#" not in match[0]
            and not (macros and macros.intersection(re.findall(_NAME, match[0])))
        )
        parameters = tuple(map(_parameter, _split(match[2][1:-1]))) if is_certain else None
        if name not in macros and name.replace("$", "_").isidentifier():
            is_template = head.lstrip().startswith("template")
            found.append(Declaration(name, True, has_blocks or '"C"' in head, is_template, parameters))
    has_variables = any(each in text for each in ("__device__", "__constant__", "__managed__"))
    for match in re.finditer(_VARIABLE, text) if has_variables else ():
        start = _start(text, match.start())
        of_class = text[start - 1 : start] == "}" and "\n" not in text[start : match.start()]  # it may have no name
        if not (of_class or re.search(_NO_VARIABLE, text[start : match.end()])):
            for part in _split(re.sub(r"\[[^\[\]]*\]", " ", match[1])):
                names = re.findall(_NAME, part)
                found += [Declaration(each, is_kernel=False) for each in names[-1:] if each not in macros]
    return tuple(dict.fromkeys(found))


def _start(text: str, at: int) -> int:
    """The place behind the statement, brace or directive before a place."""
    return max(text.rfind(each, 0, at) for each in ";{}#") + 1


def _split(text: str) -> list[str]:
    """Split declarations at commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [each.strip() for each in parts]
    return [] if parts in ([""], ["void"]) else parts


def _parameter(declaration: str) -> str:
    """The name in one parameter's declaration; "" if it has none."""
    bare = declaration.partition("=")[0].partition("[")[0]
    for mark in "*&>":
        bare = bare.replace(mark, f"{mark} ")
    *before, last = [each for each in bare.split() if each not in _QUALIFIERS] or [""]
    is_name = last.isidentifier() and last not in _TYPE_WORDS and before and not before[-1].endswith(":")
    return last if is_name else ""
