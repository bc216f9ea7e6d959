"""The header of an entry: an artifact without its payloads, as `artifact.artifact_from_header` reads it.

Promise     Parameters that several kernels have in common are written once, with the first of these kernels: a hit
            reads and checks the header of a module of hundreds of kernels in a fraction of the time.
"""

from __future__ import annotations

from typing import Any

from . import Artifact, Parameter


def artifact_header(artifact: Artifact) -> dict[str, Any]:
    """The artifact without its payloads, as plain JSON values."""
    variables = {"variables": [list(each) for each in artifact.variables]} if artifact.variables else {}
    seen: dict[tuple[Parameter, ...], int] = {}
    rows = []
    for number, compiled in enumerate(artifact.kernels):
        first = seen.setdefault(compiled.parameters, number)
        parameters = [list(each) for each in compiled.parameters] if first == number else first
        resources = [*compiled[4:8], *([compiled.safe_threads] if compiled.safe_threads else [])]
        rows.append([compiled.name, compiled.symbol, compiled.typed, resources, parameters])
    return {
        "kind": artifact.kind,
        "target": artifact.target.name,
        "entries": rows,
        "compile_time_s": artifact.compile_time_s,
        "attributes": dict(artifact.attributes),
        **variables,
    }
