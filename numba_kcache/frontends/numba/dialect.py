"""The interface between the fingerprint of a Python function and the compiler of such functions.

Promise     The fingerprint passes every object that is neither plain Python nor NumPy to a `Dialect`. The result
            depends on the object and on the program's registrations; no compiler is imported for it.
Not here    Reading other values (value) and following names (function), which are the same for all dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...keys import Plain
from .graph import External, Jitted, Registration, Registrations


class Dialect(Protocol):
    """Functions by which a front end describes its compiler's objects; a module with these functions is a `Dialect`
    too.

    `intrinsic`, `external` and `type_form` may raise `Refused` for a value that can be cached only with `depends=`, and
    `AlwaysRefused` for one that cannot be cached at all; `jitted` may raise either.
    """

    @property
    def packages(self) -> frozenset[str]:
        """Dotted names of packages whose versions are in the key, so that their objects count by name."""

    @property
    def stateful(self) -> frozenset[str]:
        """Modules of these packages, and objects in them, whose results depend on more than their arguments."""

    @property
    def code_modules(self) -> tuple[str, ...]:
        """Modules of the compiler whose functions decide about code."""

    def python_function(self, value: Any) -> Any:
        """The function under the front end's decorator; None for other objects."""

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        """Read a dispatcher. The signatures of a device function are included; a kernel's are in the key already."""

    def intrinsic(self, value: Any) -> Registration | None:
        """The definition of an intrinsic, which generates code when it is called; None for other objects."""

    def external(self, value: Any) -> External | None:
        """The declaration of an external function; None for other objects."""

    def type_form(self, value: Any, extension: Callable[[Any], Plain]) -> Plain | None:
        """One of the compiler's types as plain values; None for other objects. `extension` makes the form of a type
        that a program added."""

    def untyped(self, value: Any) -> str:
        """The reason why device code cannot read an object of a program's class; "" if it can."""

    def registrations(self) -> Registrations:
        """Implementations that the program has registered so far, without the compiler's own."""
