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
    for number, entry in enumerate(artifact.entries):
        first = seen.setdefault(entry.parameters, number)
        parameters = [list(each) for each in entry.parameters] if first == number else first
        resources = [*entry[4:8], *([entry.safe_threads] if entry.safe_threads else [])]
        rows.append([entry.name, entry.symbol, entry.typed, resources, parameters])
    return {
        "kind": artifact.kind,
        "target": artifact.target.name,
        "entries": rows,
        "compile_time_s": artifact.compile_time_s,
        "attributes": dict(artifact.attributes),
        **variables,
    }
