"""One parameter of a kernel, as the compiler laid it out.

Promise     `code` is a word of a closed vocabulary, so that what a store returns can be checked before
            anything is packed by it; `offset` and `size` are those of the cubin.
Method      Grammar of `code`:

                code     ::= pointer | value
                pointer  ::= "*" ["k"] (element | "?")          k: the pointee is const; ?: any pointee
                element  ::= scalar | vector | "o"
                value    ::= scalar | vector | "o" | "?"        o: struct by value; ?: only its size is known
                vector   ::= "v" ("1" | "2" | "3" | "4") scalar
                scalar   ::= "b1" | "i1" | "i2" | "i4" | "i8" | "u1" | "u2" | "u4" | "u8"
                           | "f2" | "bf" | "f4" | "f8" | "c4" | "c8" | "e4" | "e5"

            iN and uN are integers of N bytes, b1 is bool, f2 is half, bf is bfloat16, c4 and c8 are complex
            numbers of 8 and 16 bytes, e4 and e5 are fp8 e4m3 and e5m2.
"""

from __future__ import annotations

from typing import NamedTuple

SCALAR_SIZES = {
    "b1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8,
    "f2": 2, "bf": 2, "f4": 4, "f8": 8, "c4": 8, "c8": 16, "e4": 1, "e5": 1,
}  # fmt: skip
"""Bytes of each scalar code."""


def _code_sizes() -> dict[str, int | None]:
    vectors = {f"v{n}{each}": n * size for each, size in SCALAR_SIZES.items() for n in (1, 2, 3, 4)}
    values: dict[str, int | None] = {**SCALAR_SIZES, **vectors, "o": None, "?": None}
    return values | {f"*{const}{element}": 8 for element in values for const in ("", "k")}


CODE_SIZES = _code_sizes()
"""Every word of the vocabulary with the bytes it takes as a parameter; None where the word does not say."""


class Parameter(NamedTuple):
    """One kernel parameter.

    Args:
        offset: Bytes from the start of the parameter buffer.
        size: Bytes it takes there.
        code: What it is, in the vocabulary above.
        c_type: Its C++ type in full, `"float const*"`; `""` where only the size is known.
        name: Its name in the source; `""` where it could not be read.
    """

    offset: int
    size: int
    code: str
    c_type: str = ""
    name: str = ""

    @property
    def is_pointer(self) -> bool:
        """Whether it takes a device address."""
        return self.code.startswith("*")

    def __str__(self) -> str:
        return f"{self.c_type or f'{self.size} bytes'}{' ' if self.name else ''}{self.name}"
