"""Random Numba kernels and edits: values and functions of every kind that a kernel may use, over several modules.

Method      A program is a sum of terms. Each term brings definitions, an expression for the kernel, and what may be
            changed of it: a text in a module, an attribute or item of a module while the program runs.
            Comments, docstrings, lines, local names and unused definitions are varied apart: they mean nothing.
Source      Numba's documentation: "Supported Python features", "Global and closure variables", "High-level extension
            API"; numba-cuda's on device functions and `cuda.jit` options.
"""

# ruff: noqa: E501 (tables of program text read best in one line each)
from __future__ import annotations

import random
from typing import Any, NamedTuple

from .world import Edit


class Term(NamedTuple):
    """A term of the kernel's sum.

    Args:
        expression: In the kernel; `t` is a float64, `i` an int64, `x` and `y` arrays. "{n}" is the term's number.
        main, lib, more: Definitions in the three modules; "{v}" is a value, "{w}" another.
        patches: What can be set at run time: module (as "main", "lib", "more", or a real name), attribute, expression,
            and an item of it or None.
        is_uncacheable: It reads what nobody can know.
    """

    expression: str
    main: str = ""
    lib: str = ""
    more: str = ""
    patches: tuple[tuple[str, str, str, int | None], ...] = ()


TERMS = {
    "float": Term("G{n}", main="G{n} = {v}.5\n", patches=(("main", "G{n}", "{w}.5", None),)),
    "int": Term("G{n}", main="G{n} = {v}\n", patches=(("main", "G{n}", "{w}", None), ("main", "G{n}", "{v}.0", None))),
    "bool": Term("(t if G{n} else {v}.0)", main="G{n} = True\n", patches=(("main", "G{n}", "False", None),)),
    "type of number": Term("np.float32(t) / G{n}", main="G{n} = np.float32({v})\n", patches=(("main", "G{n}", "np.float64({v})", None),)),
    "zero": Term("math.copysign(t, G{n})", main="G{n} = 0.0\n", patches=(("main", "G{n}", "-0.0", None),)),
    "tuple": Term("G{n}[1]", main="G{n} = (1.0, {v}.0)\n", patches=(("main", "G{n}", "(1.0, {w}.0)", None),)),
    "nested tuple": Term("G{n}[0][1]", main="G{n} = ((1, {v}.0), 2)\n", patches=(("main", "G{n}", "((1, {w}.0), 2)", None),)),
    "named tuple": Term(
        "G{n}.b", main='P{n} = namedtuple("P{n}", "a b")\nG{n} = P{n}({v}, {v}.25)\n',
        patches=(("main", "G{n}", "P{n}({v}, {w}.25)", None),),
    ),
    "enumeration": Term("(i + E{n}.A)", main="class E{n}(enum.IntEnum):\n    A = {v}\n    B = 2\n"),
    "text": Term('(t if G{n} == "a{v}" else 7.0)', main='G{n} = "a{v}"\n', patches=(("main", "G{n}", '"a{w}"', None),)),
    "array": Term(
        "G{n}[i % 2]", main="G{n} = np.array([1.0, {v}.0])\n",
        patches=(("main", "G{n}", "{w}.0", 1), ("main", "G{n}", "np.array([1.0, {w}.0])", None)),
    ),
    "constant array": Term(
        "cuda.const.array_like(G{n})[i % 2]", main="G{n} = np.array([1.0, {v}.0])\n", patches=(("main", "G{n}", "{w}.0", 0),)
    ),
    "records": Term(
        "G{n}[i % 2]['b']", main='G{n} = np.array([(1, {v}.0), (2, 3.0)], np.dtype([("a", "i4"), ("b", "f8")], align=True))\n',
        patches=(("main", "G{n}", "(5, {w}.0)", 0),),
    ),
    "array of another module": Term("lib.G{n}[i % 2]", lib="G{n} = np.array([1.0, {v}.0])\n", patches=(("lib", "G{n}", "{w}.0", 1),)),
    "value of another module": Term("lib.G{n}", lib="G{n} = {v}.5\n", patches=(("lib", "G{n}", "{w}.5", None),)),
    "imported value": Term("G{n}", main="from {lib} import G{n}\n", lib="G{n} = {v}.5\n", patches=(("main", "G{n}", "{w}.5", None),)),
    "size": Term("shared{n}(i)", main="G{n} = {v}\n@cuda.jit(device=True)\ndef shared{n}(i):\n    a = cuda.shared.array(G{n}, np.float64)\n    a[i % G{n}] = 1.0\n    cuda.syncthreads()\n    return a[(i + 1) % G{n}]\n",
                 patches=(("main", "G{n}", "{w}", None),)),
    "dtype": Term("G{n}(t)", main="G{n} = np.float32\n", patches=(("main", "G{n}", "np.int32", None),)),
    "closure": Term(
        "F{n}(t)",
        main="def make{n}(c):\n    @cuda.jit(device=True)\n    def inner(x):\n        return x * c\n    return inner\nF{n} = make{n}({v}.5)\n",
        patches=(("main", "F{n}", "make{n}({w}.5)", None),),
    ),
    "closure over a function": Term(
        "F{n}(t)",
        main="def make{n}(f, c):\n    @cuda.jit(device=True)\n    def inner(x):\n        return f(x) + c\n    return inner\n"
        "@cuda.jit(device=True)\ndef base{n}(x):\n    return x * {v}.0\nF{n} = make{n}(base{n}, 2)\n",
        patches=(("main", "F{n}", "make{n}(base{n}, 3)", None),),
    ),
    "default": Term("F{n}(t)", main="@cuda.jit(device=True)\ndef F{n}(x, c={v}.5):\n    return x - c\n"),
    "device function": Term("F{n}(t)", main="@cuda.jit(device=True)\ndef F{n}(x):\n    return x * {v}.0\n@cuda.jit(device=True)\ndef H{n}(x):\n    return x + {v}.0\n", patches=(("main", "F{n}", "H{n}", None),)),
    "functions with signatures": Term(
        "F{n}(t)",
        main="C{n} = {v}.5\n@cuda.jit('float64(float64)', device=True)\ndef I{n}(x):\n    return x * C{n}\n"
        "@cuda.jit('float64(float64)', device=True)\ndef F{n}(x):\n    return I{n}(x) + 1.0\n",
        patches=(("main", "C{n}", "{w}.5", None),),
    ),
    "inlined function": Term("F{n}(t)", main='@cuda.jit(device=True, inline="always")\ndef F{n}(x):\n    return x * {v}.0\n'),
    "fast function": Term("F{n}(t)", main="@cuda.jit(device=True, fastmath=False)\ndef F{n}(x):\n    return np.float32(x) / np.float32({v}.0)\n"),
    "function of another module": Term(
        "lib.F{n}(t)", lib="C{n} = {v}.5\n@cuda.jit(device=True)\ndef F{n}(x):\n    return x * C{n}\n",
        patches=(("lib", "C{n}", "{w}.5", None),),
    ),
    "function of a third module": Term(
        "lib.F{n}(t)", lib="@cuda.jit(device=True)\ndef F{n}(x):\n    return more.I{n}(x) + 1.0\n",
        more="C{n} = {v}.5\n@cuda.jit(device=True)\ndef I{n}(x):\n    return x * C{n}\n@cuda.jit(device=True)\ndef J{n}(x):\n    return x - C{n}\n",
        patches=(("more", "C{n}", "{w}.5", None), ("more", "I{n}", "more.J{n}", None)),
    ),
    "imported function": Term("F{n}(t)", main="from {lib} import F{n}\n", lib="@cuda.jit(device=True)\ndef F{n}(x):\n    return x * {v}.0\n"),
    "alias": Term("A{n}(t)", main="A{n} = math.sin\n", patches=(("main", "A{n}", "math.cos", None),)),
    "math": Term("math.exp(t) * {v}.0", patches=(("math", "exp", "math.sin", None), ("math", "exp", "math.expm1", None))),
    "math constant": Term("math.pi * {v}.0", patches=(("math", "pi", "3.5", None), ("math", "pi", "np.float64({w})", None))),
    "operator": Term("operator.add(t, {v}.0)", patches=(("operator", "add", "operator.sub", None), ("operator", "add", "operator.mul", None))),
    "cuda": Term("cuda.popc(i + {v}) * cuda.float32(t)", patches=(("numba.cuda", "float32", "cuda.float64", None),)),
    "imported math": Term("P{n}(t + {v}.0)", main="P{n} = math.exp\n", patches=(("main", "P{n}", "math.floor", None),)),
    "built-in": Term("abs(t - {v}.0)", patches=(("main", "abs", "math.sqrt", None),)),
    "overload": Term(
        "own{n}(t)",
        lib="def own{n}(x):\n    pass\n@overload(own{n})\ndef ol_own{n}(x):\n    if isinstance(x, types.Float):\n"
        "        return lambda x: x * {v}.0\n    return lambda x: x + 1\n", main="from {lib} import own{n}\n",
    ),
    "overload with options": Term(
        "own{n}(t)", main="from {lib} import own{n}\n",
        lib='def own{n}(x):\n    pass\n@overload(own{n}, jit_options={{"fastmath": {flag}}})\ndef ol_own{n}(x):\n'
        "    return lambda x: np.float32(x) / np.float32({v}.0)\n",
    ),
    "literal overload": Term(
        "own{n}(3)", main="from {lib} import own{n}\n",
        lib="def own{n}(x):\n    pass\n@overload(own{n}, prefer_literal={flag})\ndef ol_own{n}(x):\n"
        "    if isinstance(x, types.IntegerLiteral):\n        return lambda x: x * {v}.0\n    return lambda x: x + {v}.0\n",
    ),
    "two attributes": Term(
        "x.aa{n} - x.bb{n} * 3.0",
        lib='@overload_attribute(types.Array, "{one}{n}")\ndef ol_aa{n}(x):\n    return lambda x: x[0] * {v}.0\n'
        '@overload_attribute(types.Array, "{two}{n}")\ndef ol_bb{n}(x):\n    return lambda x: x[1] + {v}.0\n',
    ),
    "two types": Term(
        "x.cc{n} - G{n}.cc{n}", main="G{n} = (1.0, {v}.0)\n",
        lib='@overload_attribute({type_one}, "cc{n}")\ndef ol_aa{n}(x):\n    return lambda x: x[0] * {v}.0\n'
        '@overload_attribute({type_two}, "cc{n}")\ndef ol_bb{n}(x):\n    return lambda x: x[1] + {v}.0\n',
    ),
    "two operators": Term(
        "lib.op_one{n}(t, 5.0) * lib.op_two{n}(t, 7.0)",
        lib="def op_one{n}(a, b):\n    pass\ndef op_two{n}(a, b):\n    pass\n"
        "@overload({operator_one}{n})\ndef ol_sub{n}(a, b):\n    return lambda a, b: a * {v}.0 - b\n"
        "@overload({operator_two}{n})\ndef ol_div{n}(a, b):\n    return lambda a, b: a + b * {v}.0\n",
    ),
    "method": Term(
        "x.times{n}(2.0)", lib='@overload_method(types.Array, "times{n}")\ndef ol_times{n}(x, f):\n    return lambda x, f: x[0] * f + {v}.0\n'
    ),
    "intrinsic": Term(
        "intr{n}(t)", main="from {lib} import intr{n}\n",
        lib="C{n} = {v}.5\n@intrinsic\ndef intr{n}(typingctx, x):\n    def codegen(context, builder, sig, args):\n"
        "        return builder.fmul(args[0], context.get_constant(types.float64, C{n}))\n    return types.float64(types.float64), codegen\n",
    ),
    "typing code that reads the environment": Term(
        "own{n}(t)", main="from {lib} import own{n}\n",
        lib='def own{n}(x):\n    pass\n@overload(own{n})\ndef ol_own{n}(x):  # may not be cached\n    if os.environ.get("PK_CHOICE") == "1":\n'
        "        return lambda x: x * {v}.0\n    return lambda x: x + 1\n",
    ),
}  # fmt: skip

HEAD = """import enum
import math
import operator
import os
from collections import namedtuple
import numpy as np
from numba import cuda, types
from numba.cuda.extending import intrinsic, overload, overload_attribute, overload_method
"""


class PythonProgram:
    """A program and a generator of edits to it.

    Args:
        chance: Where all choices come from.

    Attributes:
        terms: What a kernel's sum may be made of.
    """

    terms = TERMS

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.lib = chance.choice(("pk_lib", "pk_lib", "chunk", "nt_ns.lib"))
        self.more = chance.choice(("pk_more", "pk_more", "sunau"))
        self.names = chance.sample(sorted(self.terms), chance.choice((1, 2, 3, 4)))
        self.values = [self._values() for _ in self.names]
        self.neutral = {"lines": 0, "doc": 0, "local": "t", "unused": 0, "comment": 0, "signature": 0}
        self.options: dict[str, Any] = {}
        self.patched: list[Edit] = []
        self.earlier: list[list[dict[str, Any]]] = []
        self._number = 0
        self._last: dict[str, str] = {}

    def _values(self) -> dict[str, Any]:
        v, w = self.chance.sample(range(3, 90), 2)
        return {
            "v": v, "w": w, "flag": False, "one": "aa", "two": "bb", "type_one": "types.Array", "type_two": "types.BaseTuple",
            "operator_one": "op_one", "operator_two": "op_two",
        }  # fmt: skip

    def _fill(self, text: str, number: int) -> str:
        return text.format(n=number, lib=self.lib, **self.values[number])

    def _texts(self, neutral: dict[str, Any]) -> dict[str, str]:
        """The modules' texts."""
        local = neutral["local"]
        parts = {
            name: "".join(self._fill(getattr(self.terms[term], name), at) for at, term in enumerate(self.names))
            for name in ("main", "lib", "more")
        }
        unused = f"UNUSED = {neutral['unused']}\ndef unused(x):\n    return x + {neutral['unused']}\n"
        top = "# a line\n" * neutral["lines"] + HEAD
        terms = [self._fill(self.terms[term].expression, at) for at, term in enumerate(self.names)]
        body = f'    """Text {neutral["doc"]}."""\n' if neutral["doc"] else ""
        body += "    i = cuda.grid(1)\n    if i < x.size:\n"
        body += f"        {local} = y[i]\n"
        for term in terms:
            body += f"        # remark {neutral['comment']}\n" if neutral["comment"] else ""
            expression = term if local == "t" else _renamed(term, local)
            body += f"        {local} = {local} + {expression}\n"
        kernel = f"def k(x, y):\n{body}        x[i] = {local}\n"
        importing = f"import {self.lib} as lib\nimport {self.more} as more\n"
        return {
            "pk_main.py": f"{top}{importing}{unused}{parts['main']}{kernel}",
            f"{self.lib.replace('.', '/')}.py": f"{top}import {self.more} as more\n{unused}{parts['lib']}",
            f"{self.more}.py": f"{top}{parts['more']}",
        }

    def _written(self) -> list[Edit]:
        """The modules whose texts are others than before."""
        texts = self._texts(self.neutral)
        changed = [path for path in texts if texts[path] != self._last.get(path)]
        self._last = texts
        return [{"edit": "write", "path": path, "text": texts[path]} for path in changed]

    def begin(self) -> list[Edit]:
        """The edits that make the program."""
        chance = self.chance
        if chance.random() < 0.4:
            name, value = chance.choice(
                (("fastmath", True), ("lineinfo", True), ("opt", False), ("launch_bounds", 128))
            )
            self.options[name] = value
        return [
            *self._written(),
            {"edit": "set", "name": "options", "value": self.options},
            {"edit": "set", "name": "signature", "value": "float64[::1], float64[::1]"},
        ]

    def step(self) -> list[Edit]:
        """Some edits and the ask that follows them."""
        chance, ask = self.chance, {"edit": "ask", "cache": self.chance.choice(("same", "new"))}
        edits = self._edit()
        if chance.random() < 0.15:
            ask["process"] = "fresh"
        elif chance.random() < 0.2 and not any(each["edit"] in ("write", "move", "set") for each in edits):
            edits = [{"edit": "decorate"}, *edits]
            ask["decorated"] = True
        if chance.random() < 0.15:
            found = self._patch()
            if found and found[0].get("counts", True) and found[0].get("code"):
                ask["during"] = [{"when": chance.choice(("before", "after")), "edits": found}]
        return [*edits, ask]

    def _edit(self) -> list[Edit]:
        kinds = (
            (self._value, 4), (self._patch, 5), (self._nothing, 6), (self._swap, 2), (self._back, 2), (self._option, 1),
            (self._environment, 1), (self._failure, 2),
        )  # fmt: skip
        functions, weights = zip(*kinds, strict=True)
        return self.chance.choices(functions, weights)[0]()

    def _value(self) -> list[Edit]:
        self.earlier.append([dict(each) for each in self.values])
        values = self.chance.choice(self.values)
        values["v"] = self.chance.randrange(3, 90)
        return [{**each, "label": "value"} for each in self._written()]

    def _swap(self) -> list[Edit]:
        self.earlier.append([dict(each) for each in self.values])
        values = self.chance.choice(self.values)
        for one, two in (("one", "two"), ("type_one", "type_two"), ("operator_one", "operator_two")):
            values[one], values[two] = values[two], values[one]
        values["flag"] = not values["flag"]
        return [{**each, "label": "swap"} for each in self._written()]

    def _back(self) -> list[Edit]:
        if not self.earlier:
            return []
        self.values = [dict(each) for each in self.chance.choice(self.earlier)]
        return [{**each, "label": "back"} for each in self._written()]

    def _patch(self) -> list[Edit]:
        chance = self.chance
        if self.patched and chance.random() < 0.4:
            return [{**self.patched.pop(), "code": None}]
        number = chance.randrange(len(self.names))
        choices = self.terms[self.names[number]].patches
        if not choices:
            return self._nothing() if chance.random() < 0.5 else []
        where, attr, code, item = chance.choice(choices)
        module = {"main": "pk_main", "lib": self.lib, "more": self.more}.get(where, where)
        attr = self._fill(attr, number)
        patch: Edit = {
            "edit": "patch",
            "name": f"{module}.{attr}{'' if item is None else f'[{item}]'}",
            "module": module,
            "attr": attr,
        }
        patch["code"] = self._fill(code, number)
        if item is not None:
            patch["item"] = item
        self.patched = [each for each in self.patched if each["name"] != patch["name"]] + [patch]
        return [patch]

    def _nothing(self) -> list[Edit]:
        """An edit that means nothing."""
        kind = self.chance.choice(("lines", "doc", "local", "unused", "comment", "move", "cwd", "touch", "patch"))
        self._number += 1
        if kind == "move":
            return [{"edit": "move", "to": f"checkout{self._number}"}]
        if kind == "cwd":
            return [{"edit": "set", "name": "cwd", "value": self.chance.choice((".", ".."))}]
        if kind == "touch":
            return [{"edit": "touch", "path": "pk_main.py"}]
        if kind == "patch":
            return [
                {
                    "edit": "patch",
                    "name": "math.tan",
                    "module": "math",
                    "attr": "tan",
                    "code": "math.sin",
                    "counts": False,
                }
            ]
        self.neutral[kind] = f"u{self._number}" if kind == "local" else self._number % 7
        return [{**each, "label": kind} for each in self._written()]

    def _option(self) -> list[Edit]:
        name, value = self.chance.choice(
            (("fastmath", True), ("opt", False), ("launch_bounds", 64), ("lineinfo", True))
        )
        self.options = {key: each for key, each in self.options.items() if key != name}
        if self.chance.random() < 0.6:
            self.options[name] = value
        return [{"edit": "set", "name": "options", "value": self.options}]

    def _failure(self) -> list[Edit]:
        """Something set while a compile fails, at its last line, and set back before another kernel is compiled."""
        found = [each for each in self._patch() if each["edit"] == "patch" and each["code"] is not None]
        self.patched = [each for each in self.patched if each not in found]
        failing = "Array(float64, 1, 'C', readonly=True), float64[::1]"
        other = self.chance.choice(("float32[::1], float64[::1]", "float64[::1], float64[::1]"))
        return [
            *found,
            {"edit": "set", "name": "signature", "value": failing},
            {"edit": "ask", "cache": "same"},
            *({**each, "code": None} for each in found),
            {"edit": "set", "name": "signature", "value": other},
        ]

    def _environment(self) -> list[Edit]:
        name = self.chance.choice(("PK_CHOICE", "PK_OTHER", "LANG"))
        return [{"edit": "env", "name": name, "value": self.chance.choice(("1", "2", None))}]


def _renamed(expression: str, local: str) -> str:
    """The expression with the local name in place of `t`."""
    import re

    return re.sub(r"\bt\b", local, expression)
