"""Get the types of kernels and variables from NVRTC, in the same run that compiles the code.

Promise     The reported types are those that the compiler resolved, typedefs and templates included, and agree
            in number, order and size with the cubin; if the two disagree, or the name cannot be parsed, only
            the cubin's offsets and sizes are reported and the entry is not `typed`. The appended text leaves cubin,
            PTX and LTO-IR unchanged, byte by byte.
Method      A template (the probe) is declared after the source, and never defined: the name expression
            `PROBE<decltype(ENTRY)>` makes NVRTC mangle ENTRY's type into a lowered name, and emits no code. `extern
            "C"` kernels and variables have no types in their own symbols, so this is the only way to get them. A name
            that the source may not have in the global scope is also declared in a namespace of this package, made
            visible by a using-directive: the compiler finds that declaration only if the source has none, and its type
            shows it.
            Names are parsed with itanium_demangler. A variable template, and a definition of the function, were tried
            and dropped: they put their own symbols into the code.
Source      NVRTC User Guide, "Accessing Lowered Names"; Itanium C++ ABI, 5.1 "External Names"; C++17, 6.4.3.2
            [namespace.qual], 2: using-directives count only if a namespace itself does not declare the name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...model import CODE_SIZES, NamedTuple, Parameter
from .declarations import Declaration

OWN = "numba_kcache_"  # begins each name of the appended text
PROBE = f"{OWN}prototype"
_ABSENT = f"{OWN}absent"

_BUILTINS = {
    "bool": "b1", "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2",
    "int": "i4", "unsigned int": "u4", "unsigned": "u4", "long": "i8", "unsigned long": "u8",
    "long long": "i8", "unsigned long long": "u8",
    "float": "f4", "double": "f8", "wchar_t": "i4", "char16_t": "u2", "char32_t": "u4", "char8_t": "u1",
}  # fmt: skip
_CLASSES = {
    "__half": "f2", "__nv_bfloat16": "bf", "__half2": "v2f2", "__nv_bfloat162": "v2bf",
    "__nv_fp8_e4m3": "e4", "__nv_fp8_e5m2": "e5",
}  # fmt: skip
_LETTERS = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "f": "float", "d": "double",
}  # fmt: skip
"""Builtin types as they are mangled (Itanium C++ ABI, 5.1.5.2)."""

_VECTOR = r"(char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)([1-4])(?:_16a|_32a)?\Z"
_VECTOR_BASES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "long": "i8", "ulong": "u8", "longlong": "i8", "ulonglong": "u8", "float": "f4", "double": "f8",
}  # fmt: skip
_COMPLEX = r"(?:thrust|cuda::std)(?:::(?:THRUST_\w+|_\w+))*::complex<(float|double)>\Z"
"""Pattern with the inline namespaces for version and target: `thrust::THRUST_300102_SM_900_NS`."""


_LITERAL = r"\((?:unsigned )?(?:char|short|int|long|long long)\)(n?)(?=\d)"
_UNIT = r"\b_(?:INTERNAL|GLOBAL__N)_\w*::"
"""NVRTC's namespace for names local to the translation unit, which is not in the source."""
_QUALIFIERS = r"\b(?:const|volatile|restrict)(?: (?:const|volatile|restrict))+\b"


class Probe(NamedTuple):
    """Name expressions to pass to NVRTC, and the text to append to the source for them.

    Args:
        names: The user's name expressions: for their symbols, and to instantiate templates.
        asked: Name expressions whose lowered name contains a type, by the name of an instance, a kernel, or a variable.
        context: Declarations to append to the source. Each line contains a name of this package, which distinguishes
            NVRTC's messages about it from others.
    """

    names: tuple[str, ...] = ()
    asked: Mapping[str, str] = {}
    context: tuple[str, ...] = ()

    @property
    def expressions(self) -> tuple[str, ...]:
        """All the name expressions."""
        return *self.names, *self.asked.values()

    @property
    def text(self) -> str:
        """Text to append to the source; two newlines first, since its last line may end in a backslash or a comment."""
        return (
            "\n".join(("", "", f"template<class> __global__ void {PROBE}();", *self.context, "")) if self.asked else ""
        )

    def types(self, lowered: Mapping[str, str]) -> dict[str, str]:
        """The mangled names that contain a type, by instance, kernel or variable."""
        found = {of: lowered.get(expression, "") for of, expression in self.asked.items()}
        return {of: name for of, name in found.items() if name and _ABSENT not in name}

    def without(self, log: str) -> Probe:
        """Make a probe without the name expressions that NVRTC's log rejects."""
        refused = {each.strip() for each in re.findall(r"#pragma nv_mangled_name (.*)", log)}
        return self._replace(
            names=tuple(each for each in self.names if each not in refused),
            asked={of: each for of, each in self.asked.items() if each not in refused},
        )


def make_probe(
    names: Iterable[str],
    declared: Iterable[Declaration],
    *,
    signature: str | None = None,
    scopes: Sequence[str] | None = None,
) -> Probe:
    """Make a probe for the symbols of these names, and for the types of instances among them and of declarations.

    Args:
        names: The user's name expressions.
        declared: Variables, and kernels whose symbol does not contain their types.
        signature: Types of a function's parameters, whose mangled form is returned under the key `SIGNATURE`.
        scopes: Namespaces that may contain the declarations, all of which exist; None if some may not exist.
    """
    names = tuple(dict.fromkeys(names))
    asked = {name: f"{PROBE}<decltype({name})>" for name in names}
    for each in declared:
        if not each.is_template:
            # a variable has two parentheses: decltype fails on managed ones with one, and the type is then a reference
            asked[each.name] = f"{PROBE}<decltype({f'::{each.name}' if each.is_kernel else f'(::{each.name})'})>"
    context = tuple(f"using namespace {each}; // {OWN}" for each in scopes or ())
    if scopes is None and (found := asked.keys() - names):
        enum = f"enum absent {{ {', '.join(sorted(found))} }};"
        # by way of the unnamed namespace, whose names come first
        context = f"namespace {_ABSENT} {{ {enum} }}", f"namespace {{ using namespace ::{_ABSENT}; }}"
    if signature is not None:
        asked[SIGNATURE] = f"{PROBE}<void({signature})>"
    return Probe(names, asked, context)


SIGNATURE = "signature="
"""Key of the type of the user's signature."""


def read_parameters(lowered: str | None, layout: Sequence[tuple[int, int]]) -> tuple[tuple[Parameter, ...], bool]:
    """The parameters of a kernel, and whether their types are known.

    Args:
        lowered: A mangled name that contains the kernel's type: its own, or the probe's; None if there is none.
        layout: (offset, size) of each parameter, from the cubin.
    """
    nodes: Sequence[Any] | None = plain_types(lowered) if lowered else None
    if nodes is None and lowered:
        nodes = argument_types(lowered)
    if nodes is not None and len(nodes) == len(layout):
        parameters = tuple(
            Parameter(offset, size, *describe_node(node, size))
            for node, (offset, size) in zip(nodes, layout, strict=True)
        )
        if all(CODE_SIZES[each.code] in (None, each.size) for each in parameters):
            return parameters, True
    return tuple(Parameter(offset, size, "?") for offset, size in layout), False


def kernel_name(symbol: str) -> str:
    """The name in the source of the kernel with this symbol: `ns::axpy<float>`; the symbol itself for extern "C"."""
    if not symbol.startswith("_Z"):
        return symbol
    tree = _parse(symbol)
    name = getattr(tree, "name", None)
    return re.sub(_UNIT, "", _spelling(name)) if name is not None else symbol


def overload_name(symbol: str) -> str:
    """The name of a kernel with the types of its parameters, `ns::f(int)`, for kernels that share a name."""
    types = argument_types(symbol)
    return symbol if types is None else f"{kernel_name(symbol)}({', '.join(map(_spelling, types))})"


def variable_name(symbol: str) -> str:
    """The name in the source of the variable with this symbol; the symbol itself for a local variable."""
    if not symbol.startswith("_Z") or symbol.startswith("_ZZ"):
        return symbol
    tree = _parse(symbol)
    return symbol if tree is None else re.sub(_UNIT, "", _spelling(tree))


def read_variable(lowered: str, size_bytes: int) -> tuple[str, tuple[int, ...], bool]:
    """(code of the element, shape, whether it is const) of a variable, from the probe's lowered name.

    `"o"`, () if its type has no code, or sizes disagree.
    """
    found = _probed_type(_parse(lowered))
    if found is None:
        return "o", (), False
    node, const = _unqualified(found.value if found.kind == "lvalue" else found)
    shape: list[int] = []
    while node.kind == "array":
        shape.append(int(_spelling(node.dimension)))
        node, inner = _unqualified(node.ty)
        const = const or inner
    code = "u8" if node.kind == "pointer" else _value_code(node) or "o"
    item_bytes = CODE_SIZES[code] or 0
    if math.prod(shape) * item_bytes != size_bytes:
        return "o", (), const
    return code, tuple(shape), const


def _parse(mangled: str) -> Any:
    from itanium_demangler import parse

    try:
        return parse(mangled)
    except Exception:  # the demangler raises many errors for unsupported productions; types are then unknown
        return None


_PROBE_SYMBOL = f"_Z{len(PROBE)}{PROBE}I"


def _probed_type(tree: Any) -> Any:
    """The type in the probe's lowered name; None for another name."""
    named = tree.name if tree is not None and tree.kind == "func" else None
    if named is None or named.kind != "qual_name" or str(named.value[0]) != PROBE:
        return None
    arguments = named.value[-1]
    return arguments.value[0] if arguments.kind == "tpl_args" and len(arguments.value) == 1 else None


def argument_types(mangled: str) -> list[Any] | None:
    """The argument nodes of the function type in a mangled name; None if it cannot be read."""
    tree = _parse(mangled)
    if mangled.startswith(_PROBE_SYMBOL):
        tree = _probed_type(tree)
    if tree is None or tree.kind != "func":
        return None
    nodes = list(tree.arg_tys)
    if len(nodes) == 1 and nodes[0].kind == "builtin" and nodes[0].value == "void":
        return []
    return None if any(node.kind == "expand_arg_pack" for node in nodes) else nodes


class _Node(NamedTuple):
    """A type that `plain_types` has read, with what is needed of the demangler's nodes, and its spelling."""

    kind: str
    value: Any
    spelling: str
    qual: tuple[str, ...] = ()


def plain_types(mangled: str) -> list[_Node] | None:
    """Parse the probe's lowered name of a function that takes numbers and pointers to them; None for any other.

    The result is the demangler's; importing that takes a tenth of the time of a small compile.
    """
    if not mangled.startswith(f"{_PROBE_SYMBOL}Fv") or not mangled.endswith("EEvv"):
        return None
    text, at = mangled[len(_PROBE_SYMBOL) + 2 : -4], 0
    found: list[_Node] = []
    known: list[_Node | None] = [None]  # S_ is the probe, S0_ the first type after it
    while at < len(text) and text != "v":
        if text[at] == "S":
            end = text.find("_", at)
            digits = text[at + 1 : end]
            index = int(digits, 36) + 1 if digits.isalnum() and digits.isascii() else 0
            node = known[index] if end > 0 and index < len(known) else None
            if node is None:
                return None
            at = end
        else:
            is_pointer, const = text[at] == "P", text.startswith("PK", at)
            at += is_pointer + const
            name = _LETTERS.get(text[at : at + 1])
            if name is None or (name == "void" and not is_pointer):
                return None
            node = _Node("builtin", name, name)
            if const:
                known.append(None)
                node = _Node("cv_qual", node, f"{name} const", ("const",))
            if is_pointer:
                node = _Node("pointer", node, f"{node.spelling}*")
                known.append(node)
        found.append(node)
        at += 1
    return found


def describe_node(node: Any, size: int) -> tuple[str, str]:
    """(code, C++ type) of one parameter."""
    spelling = _spelling(node)
    node = _unqualified(node)[0]
    if node.kind in ("pointer", "lvalue", "rvalue"):
        if size != 8 or node.value.kind == "func":
            return "o", spelling
        pointee, const = _unqualified(node.value)
        while pointee.kind == "array":
            pointee, inner = _unqualified(pointee.ty)
            const = const or inner
        code = _value_code(pointee)
        return f"*{'k' if const else ''}{code or '?'}", spelling
    return _value_code(node) or "o", spelling


def _unqualified(node: Any) -> tuple[Any, bool]:
    """The node without const, volatile and restrict, and whether const was among them."""
    const = False
    while node.kind == "cv_qual":
        const = const or "const" in node.qual
        node = node.value
    return node, const


def _value_code(node: Any) -> str | None:
    """The code of a value type; None if it is not a known builtin, vector or number class."""
    if node.kind == "builtin":
        return _BUILTINS.get(node.value)
    name = _spelling(node)
    if name in _CLASSES:
        return _CLASSES[name]
    vector = re.match(_VECTOR, name)
    if vector:
        return f"v{vector[2]}{_VECTOR_BASES[vector[1]]}"
    number = re.match(_COMPLEX, name)
    return {"float": "c4", "double": "c8"}[number[1]] if number else "o"


def _extents_last(match: re.Match[str]) -> str:
    return match[2] + "".join(reversed(re.findall(r"\[\d+\]", match[1])))


def _spelling(node: Any) -> str:
    """The usual C++ spelling: the demangler casts every literal, joins qualifiers in the order of a set, and writes the
    inner extents of an array before the pointer to it."""
    if isinstance(node, _Node):
        return node.spelling
    text = str(node).replace("(bool)0", "false").replace("(bool)1", "true")
    text = re.sub(_LITERAL, lambda match: match[1] and "-", text)
    text = re.sub(r"((?:\[\d+\])+)(\([*&]+\)(?:\[\d+\])+)", _extents_last, text)
    return re.sub(_QUALIFIERS, lambda match: " ".join(sorted(match[0].split())), text)
