"""Learn a kernel's parameters from the compiler itself.

Promise     What is reported is what the compiler resolved, typedefs and templates included, and it agrees
            in number, order and size with the cubin; where the two disagree, or the name cannot be read, only
            the cubin's offsets and sizes are reported and the entry is not `typed`.
Method      `PROBE_SOURCE`, appended to the source, declares a variable template; the name expression
            `&PROBE<decltype(ENTRY)>` makes NVRTC mangle ENTRY's whole function type into its lowered
            name. `extern "C"` kernels have no types in their own symbol, so this is the way to get them. The
            names are read with itanium_demangler.
Ground      NVRTC User Guide, "Accessing Lowered Names"; Itanium C++ ABI, 5.1 "External Names".
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ...model.artifact import CODE_SIZES, Parameter

PROBE = "numba_kcache_prototype"
PROBE_SOURCE = f"\n\ntemplate<class> __device__ char {PROBE};\n"
"""Two newlines first: the user's last line may end in a backslash or a comment."""

_BUILTINS = {
    "bool": "b1", "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2",
    "int": "i4", "unsigned int": "u4", "unsigned": "u4", "long long": "i8", "unsigned long long": "u8",
    "float": "f4", "double": "f8", "wchar_t": "i4", "char16_t": "u2", "char32_t": "u4", "char8_t": "u1",
}  # fmt: skip
_CLASSES = {
    "__half": "f2", "__nv_bfloat16": "bf", "__half2": "v2f2", "__nv_bfloat162": "v2bf",
    "__nv_fp8_e4m3": "e4", "__nv_fp8_e5m2": "e5",
}  # fmt: skip
_VECTOR = re.compile(
    r"(char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)([1-4])(?:_16a|_32a)?\Z"
)
_VECTOR_BASES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "longlong": "i8", "ulonglong": "u8", "float": "f4", "double": "f8",
}  # fmt: skip
_COMPLEX = re.compile(r"(?:thrust|cuda::std(?:::__\d+)?)::complex<(float|double)>\Z")


_LITERAL = re.compile(r"\((?:unsigned )?(?:char|short|int|long|long long)\)(n?)(?=\d)")
_UNIT = re.compile(r"\b_(?:INTERNAL|GLOBAL__N)_\w*::")
"""The namespace in which NVRTC puts what only this translation unit sees; the source does not name it."""
_QUALIFIERS = re.compile(r"\b(?:const|volatile|restrict)(?: (?:const|volatile|restrict))+\b")


def probe_expression(entry: str, *, is_type: bool = False) -> str:
    """The name expression whose lowered name tells the type of the kernel `entry`, or a function type itself."""
    return f"&{PROBE}<{entry}>" if is_type else f"&{PROBE}<decltype({entry})>"


def read_parameters(lowered: str | None, layout: Sequence[tuple[int, int]]) -> tuple[tuple[Parameter, ...], bool]:
    """The parameters of a kernel, and whether their types are known.

    Args:
        lowered: A mangled name that holds the kernel's type: its own, or the probe's; None where there is none.
        layout: (offset, size) of each parameter, from the cubin.
    """
    nodes = _argument_types(lowered) if lowered else None
    if nodes is not None and len(nodes) == len(layout):
        parameters = tuple(
            Parameter(offset, size, *_describe(node, size)) for node, (offset, size) in zip(nodes, layout, strict=True)
        )
        if all(CODE_SIZES[each.code] in (None, each.size) for each in parameters):
            return parameters, True
    return tuple(Parameter(offset, size, "?") for offset, size in layout), False


def kernel_name(symbol: str) -> str:
    """How the source calls the kernel with this symbol: `ns::axpy<float>`; the symbol itself for extern "C"."""
    if not symbol.startswith("_Z"):
        return symbol
    tree = _parse(symbol)
    name = getattr(tree, "name", None)
    return _spelling(name) if name is not None else symbol


def overload_name(symbol: str) -> str:
    """The name of a kernel with the types of its parameters, where its name alone is another's too: `ns::f(int)`."""
    types = _argument_types(symbol)
    return symbol if types is None else f"{kernel_name(symbol)}({', '.join(map(_spelling, types))})"


def variable_name(symbol: str) -> str:
    """How the source calls the variable with this symbol; the symbol itself where it cannot be called (a local)."""
    if not symbol.startswith("_Z") or symbol.startswith("_ZZ"):
        return symbol
    tree = _parse(symbol)
    return symbol if tree is None else _UNIT.sub("", _spelling(tree))


def read_variable(lowered: str, size_bytes: int) -> tuple[str, tuple[int, ...], bool]:
    """(code of the element, shape, whether it is const) of a variable, from the probe's lowered name.

    Where it is no array of a type that has a word, or sizes disagree: `"o"`, ().
    """
    tree = _parse(lowered)
    if tree is None or tree.kind != "qual_name" or tree.value[-1].kind != "tpl_args":
        return "o", (), False
    node, const = _unqualified(tree.value[-1].value[0])
    shape: list[int] = []
    while node.kind == "array":
        shape.append(int(_spelling(node.dimension)))
        node, inner = _unqualified(node.ty)
        const = const or inner
    code = "u8" if node.kind == "pointer" else _value_code(node, None) or "o"
    item_bytes = CODE_SIZES[code] or 0
    if math.prod(shape) * item_bytes != size_bytes:
        return "o", (), const
    return code, tuple(shape), const


def _parse(mangled: str) -> Any:
    from itanium_demangler import parse

    try:
        return parse(mangled)
    except Exception:  # the demangler meets a production it does not know in many ways; types are then unknown
        return None


def _argument_types(mangled: str) -> list[Any] | None:
    """The argument nodes of the function type in a mangled name; None where it cannot be read."""
    tree = _parse(mangled)
    if tree is None:
        return None
    if tree.kind == "qual_name":  # the probe: PROBE<function type>
        arguments = tree.value[-1]
        if arguments.kind != "tpl_args" or len(arguments.value) != 1:
            return None
        tree = arguments.value[0]
        if tree.kind == "pointer":
            tree = tree.value
    if tree.kind != "func":
        return None
    nodes = list(tree.arg_tys)
    if len(nodes) == 1 and nodes[0].kind == "builtin" and nodes[0].value == "void":
        return []
    return None if any(node.kind == "expand_arg_pack" for node in nodes) else nodes


def _describe(node: Any, size: int) -> tuple[str, str]:
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
        code = _value_code(pointee, None)
        return f"*{'k' if const else ''}{code or '?'}", spelling
    return _value_code(node, size) or "o", spelling


def _unqualified(node: Any) -> tuple[Any, bool]:
    """The node without const, volatile and restrict, and whether const was among them."""
    const = False
    while node.kind == "cv_qual":
        const = const or "const" in node.qual
        node = node.value
    return node, const


def _value_code(node: Any, size: int | None) -> str | None:
    """The code of a value type; None where it is no builtin, vector or number class that is known."""
    if node.kind == "builtin":
        if node.value in ("long", "unsigned long"):  # 8 bytes on Linux, 4 on Windows
            return ("u" if node.value.startswith("unsigned") else "i") + str(size or 8)
        if node.value == "void":
            return None
        return _BUILTINS.get(node.value)
    name = _spelling(node)
    if name in _CLASSES:
        return _CLASSES[name]
    vector = _VECTOR.match(name)
    if vector:
        count, of_long = int(vector[2]), {"long": "i", "ulong": "u"}.get(vector[1])
        base = f"{of_long}{size // count if size else 8}" if of_long else _VECTOR_BASES[vector[1]]
        return f"v{count}{base}"
    number = _COMPLEX.match(name)
    return {"float": "c4", "double": "c8"}[number[1]] if number else "o"


def _spelling(node: Any) -> str:
    """As C++ is written: the demangler casts every literal, and joins qualifiers in the order of a set."""
    text = str(node).replace("(bool)0", "false").replace("(bool)1", "true")
    text = _LITERAL.sub(lambda match: match[1] and "-", text)
    return _QUALIFIERS.sub(lambda match: " ".join(sorted(match[0].split())), text)
