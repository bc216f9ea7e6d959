"""Send a definition to another process with its function by value, pickled by its Numba."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .definition import PythonDefinition


class ByValue:
    """A picklable object that unpickles as a definition, without importing the function's file."""

    def __init__(self, definition: PythonDefinition) -> None:
        self._definition = definition

    def __reduce__(self) -> Any:
        of, home = type(self._definition), f"{self._definition.flavour.home}.serialize"
        return _load, (of, home, bytes(import_module(home).dumps(self._definition.thing)), self._definition.options)


def _load(of: type[PythonDefinition], home: str, function: bytes, options: Mapping[str, Any]) -> PythonDefinition:
    return of(import_module(home).loads(function), options)  # safe: the bytes come from the parent process
