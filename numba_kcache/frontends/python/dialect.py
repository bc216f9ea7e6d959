"""The seam between the fingerprint of a Python function and a compiler of such functions.

Promise     The fingerprint asks a `Dialect` about every object that is neither plain Python nor NumPy. An answer
            depends on the object and on what the program registered; asking imports no compiler.
Not here    Which values can be captured, and how they are followed and written down: one rule for all dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ...keys import Plain
from ...model import NamedTuple


class Jitted(NamedTuple):
    """All that decides the code of a decorated function beside the function itself.

    Args:
        options: Of the decorator, and whatever else belongs to it, in a dict of their own; without those that decide
            no code.
        opaque: Options that list objects of this process, for whose content only `depends=` can stand.
        links: Paths and `LinkableCode` objects of the user.
        has_lines: Whether file and lines are compiled in.
    """

    options: dict[str, Any]
    opaque: Mapping[str, Iterable[Any]]
    links: Iterable[Any]
    has_lines: bool


class External(NamedTuple):
    """A function that was declared, not defined: name, signature, ABI, and what is linked for it."""

    name: str
    signature: str
    abi: str
    is_cooperative: bool
    links: Iterable[Any]


class Registration(NamedTuple):
    """Code that a program gave to the compiler for a value, a type, an attribute or an operation.

    Args:
        what: The kind of registration, `"overload"`.
        subject: What it is for: a value, a type, a text; None where it stands under that value anyway.
        options: All else that decides what the compiler makes of it: types, options of the decorator.
        code: The functions and classes that implement it.
    """

    what: str
    subject: Any
    options: dict[str, Any]
    code: tuple[Any, ...]


class Registrations(NamedTuple):
    """All of a program: for a value, by attribute name, and those that any code may use unnamed.

    Those of one value, or of one subject, are in the order of registration, which decides between them.
    """

    of_value: Callable[[Any], Sequence[Registration]]
    of_attribute: dict[str, list[Registration]]
    of_all: list[Registration]


class Dialect(Protocol):
    """A front end's knowledge of its own objects; a module of functions will do.

    `intrinsic`, `external` and `type_form` may raise `Refused` for a value that needs `depends=` to vouch for it, and
    `Unvouchable` for one that cannot be cached at all; `jitted` raises either for a function that cannot be.
    """

    @property
    def packages(self) -> frozenset[str]:
        """Dotted names of packages whose versions are in the key: what they define counts by its name alone."""

    @property
    def stateful(self) -> frozenset[str]:
        """Modules of these packages, and objects in them, whose answers depend on more than their arguments."""

    def python_function(self, value: Any) -> Any:
        """The function under the front end's decorator; None for what is no dispatcher."""

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        """Read a dispatcher; a kernel's signatures are in the key anyway, a device function's belong to it."""

    def intrinsic(self, value: Any) -> Registration | None:
        """The definition of an intrinsic, which writes code when it is called; None for anything else."""

    def external(self, value: Any) -> External | None:
        """The declaration of an external function; None for anything else."""

    def type_form(self, value: Any) -> Plain | None:
        """One of the compiler's types as plain values; None for anything else."""

    def registrations(self) -> Registrations:
        """Implementations that the program has registered up to now, without the compiler's own."""
