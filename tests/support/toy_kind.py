"""A toy kind of kernel, as another package would add one: cubins by name from a table, with typed parameters."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numba_kcache.engine import Request
from numba_kcache.errors import CompileError, OptionError
from numba_kcache.frontends import COMMON_OPTIONS, Definition, Variant, register
from numba_kcache.keys import components
from numba_kcache.model import Artifact, CompiledKernel, Parameter, Target
from numba_kcache.model.reason import ReasonKind


class Toy(NamedTuple):
    """A row of the table in the folder `TOY_TABLE`: NAME.cubin, and in table.json `{name: {version, parameters}}`."""

    name: str


class ToyDefinition(Definition):
    """The definition of a kernel from a row; the option `revision` stands in for the options of a real kind."""

    kind = "toy"

    def __init__(self, thing: Toy, options: Mapping[str, Any]) -> None:
        unknown = options.keys() - COMMON_OPTIONS - {"revision"}
        if unknown:
            raise OptionError(f"cannot use option {min(unknown)!r} here", "a toy does not take it")
        self.thing, self.options = thing, options
        self.name, self.label, self.file = thing.name, f"toys.{thing.name}", __file__

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of the row with its present version."""
        folder = Path(os.environ["TOY_TABLE"])
        row = json.loads((folder / "table.json").read_text())[self.name]
        values = {"kind": "toy", "toy row": row["version"], "toy revision": self.options.get("revision", 0)}
        return Request(
            label=self.label,
            target=target,
            components=components({**values, "target": [target.name, None]}),
            libraries=(),
            distributions=("numba",),
            build=functools.partial(build, self.name, row, folder, target),
            strict=bool(self.options.get("strict")),
            file=self.file,
            name=self.name,
            kinds=lambda: {"toy row": ReasonKind.SOURCE_CHANGED, "toy revision": ReasonKind.OPTIONS},
        )


def build(name: str, row: Any, folder: Path, target: Target, *_compilers: Any) -> Artifact:
    """Read the cubin of a row; a negative version fails as a compile does."""
    if row["version"] < 0:
        raise CompileError(f"cannot make {name}", "its row is broken")
    entry = CompiledKernel(name, name, tuple(Parameter(*each) for each in row["parameters"]), typed=True)
    return Artifact("toy", target, (entry,), (folder / f"{name}.cubin").read_bytes())


class ToyFrontEnd:
    """The front end of toys."""

    kinds = ("toy",)

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> ToyDefinition | None:
        """Define a `Toy`; None for any other object."""
        return ToyDefinition(thing, options) if isinstance(thing, Toy) else None


register(ToyFrontEnd())
