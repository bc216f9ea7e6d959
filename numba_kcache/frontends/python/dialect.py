"""The seam between the fingerprint of a Python function and a compiler of such functions.

Promise     The fingerprint asks a `Dialect` about every object that is neither plain Python nor NumPy. An answer
            depends on the object and on what the program registered; asking imports no compiler.
Not here    Which values can be captured, and how they are followed and written down: one rule for all dialects.
"""

from __future__ import annotations

from typing import Any, Protocol

from ...keys import Plain
from . import External, Jitted, Registration, Registrations


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
