"""What the first launches of a Numba kernel will want, made while it is decorated.

Promise     What was expected is served only if the first use would ask for exactly it: the same types, target,
            compilers, environment and Numba's settings, and a function that reads as it did (`Fingerprint.holds`).
            Nothing of the user's is run, and no file is read.
Method      The signatures that led to an artifact last time are keyed anew, with the function as it is. Where that
            gives the key of the artifact, which has been read ahead, the first launch has only to compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .ahead import Read
from .errors import ArgumentError
from .inputs.code_environment import code_environment
from .inputs.python_function import Fingerprint, Uncapturable
from .launch.numba_arguments import Parts, parts_of
from .launch.numba_dispatcher import types_from_text
from .lookup import Expected, Resolution
from .model.artifact import Artifact
from .model.target import Target
from .numba_jobs import NumbaPlan, numba_job, read_function
from .resolver import Resolver
from .settings import NVRTC_VARIABLES, variables


class NumbaExpected:
    """One signature that is expected, and what its key was made of.

    Args:
        types: Of the arguments.
        resolver: Where it was read.
        function: What the kernel was made of.
        expected: The job and its key.
        artifact: What the key names.
        parts: Of its launcher; None where it is not launched straight.

    Attributes:
        parts: Those, until one launcher takes them.
    """

    __slots__ = ("_environment", "_expected", "_resolver", "_settings", "artifact", "function", "parts", "types")

    def __init__(
        self,
        types: tuple[Any, ...],
        resolver: Resolver,
        function: Fingerprint,
        expected: Expected,
        artifact: Artifact,
        parts: Parts | None,
    ) -> None:
        self.types, self._resolver, self.function = types, resolver, function
        self._settings, self._environment = code_environment(), variables(NVRTC_VARIABLES)
        self._expected, self.artifact, self.parts = expected, artifact, [parts] if parts else []

    def resolve(self, resolver: Resolver, target: Target) -> Resolution | None:
        """What was read ahead, if it is what a look-up now would ask for first."""
        if (
            self._resolver is resolver
            and self._expected.job.target == target
            and self._environment == variables(NVRTC_VARIABLES)
            and self._settings is code_environment()
            and self.function.holds()
        ):
            return resolver.resolve_expected(self._expected)
        return None


def expect(resolver: Resolver, plan: NumbaPlan, reads: Iterable[Read]) -> list[NumbaExpected]:
    """The signatures of a kernel whose artifacts were read ahead, and are what the kernel as it is now leads to."""
    found: list[NumbaExpected] = []
    function: Fingerprint | Uncapturable | None = None
    for key, artifact, _time, texts in reads:
        types = types_from_text(texts) if texts else None
        if types is None:
            continue
        function = function or read_function(plan, is_ahead=True)
        if isinstance(function, Uncapturable):
            break
        expected = resolver.key_ahead(numba_job(plan, function, types, artifact.target, None))
        if expected is None or expected.key != key:
            continue
        try:
            parts = parts_of(plan.label, types, artifact.entries[0].parameters)
        except ArgumentError:  # met again, and told, at the launch
            continue
        found.append(NumbaExpected(types, resolver, function, expected, artifact, parts))
    return found
