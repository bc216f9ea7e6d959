"""One stored entry with all its metadata, as a value that prints as text.

Promise     The contents of a file are shown as text: no control character reaches a terminal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ..errors import plain
from ..model import BUILT, Artifact, CompiledKernel, NamedTuple
from .text import age_text, aligned, as_text, bytes_text, counted, seconds_text, shows_text

_MAX_LOG = 65536
"""Characters of a compile log that are shown; `.artifact.log` has all."""


@shows_text
class EntryDetail(NamedTuple):
    """One entry of a cache.

    Args:
        key: Key of the entry.
        artifact: The artifact, as a launch gets it.
        size_bytes: Size of its file.
        used_s: When it was stored or last used, in seconds since the epoch, to the hour.
        hits: Number of hits on it, of all processes.
        payload_bytes: Unpacked size of each payload, by name.
        created_s: When it was compiled, in seconds since the epoch; 0 where that is not recorded.
        kernel: The name of the kernel in the user's code, `"package.module.saxpy"`; "" if that is not recorded.
        components: The components of its key: name, digest, and the value where it is small and no secret.
    """

    key: str
    artifact: Artifact
    size_bytes: int
    used_s: float
    hits: int
    payload_bytes: Mapping[str, int] = {}
    created_s: float = 0.0
    kernel: str = ""
    components: tuple[tuple[str, str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the code itself, as JSON values."""
        artifact, fields = self.artifact, self._asdict()
        del fields["artifact"]
        return fields | {
            "kind": artifact.kind,
            "target": artifact.target.name,
            "payload_bytes": dict(self.payload_bytes),
            "compile_time_s": artifact.compile_time_s,
            "label": artifact.names[0] if artifact.kind == BUILT else "",
            "meta": artifact.attributes["meta"] if artifact.kind == BUILT else {},
            "kernels": [
                {**compiled._asdict(), "parameters": [each._asdict() for each in compiled.parameters]}
                for compiled in artifact.kernels
            ],
            "components": [{"name": name, "digest": digest, "value": value} for name, digest, value in self.components],
            "log": artifact.log,
        }

    def __str__(self) -> str:
        artifact = self.artifact
        sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in self.payload_bytes.items())
        created = f", {_time(self.created_s)}" if self.created_s else ""
        rows = [
            ("key", self.key),
            ("kernel", self.kernel),
            ("kind", artifact.kind),
            ("target", artifact.target.name),
            ("size", f"{bytes_text(self.size_bytes)} ({sizes})"),
            ("compiled", f"in {seconds_text(artifact.compile_time_s)}{created}"),
            ("last used", _time(self.used_s)),
            ("hits", str(self.hits)),
        ]
        if artifact.kind == BUILT:
            rows[1:2] = [
                ("label", artifact.names[0]),
                ("meta", json.dumps(artifact.attributes["meta"]).removeprefix("{}")),
            ]
        lines = aligned([(name, text) for name, text in rows if text])
        for compiled in artifact.kernels:
            lines += ["", *_kernel_lines(compiled)]
        if self.components:
            shown = [
                (name, digest[:12], "" if value is None else as_text(value)) for name, digest, value in self.components
            ]
            components = aligned(shown)
            lines += ["", "components of the key", *(f"  {line}" for line in components)]
        log = artifact.log
        if log:
            lines += ["", "compile log", *(f"  {line}" for line in log[:_MAX_LOG].splitlines())]
        if len(log) > _MAX_LOG:
            lines.append(f"  and {len(log) - _MAX_LOG} more characters")
        return "\n".join(map(plain, lines))


@shows_text
class EntryList(list[Any]):
    """Entries of a store (`store.listing.EntryInfo`), shown as a table."""

    COLUMNS = ("key", "kernels", "target", "size", "used", "compiled in", "hits")
    NUMBERS = range(3, 7)

    def rows(self) -> list[tuple[str, ...]]:
        """Key, kernels, target, size, time since the last use, compile time and hits of each entry."""
        rows: list[tuple[str, ...]] = []
        now_s = time.time()
        for each in self:
            more = f" and {len(each.kernels) - 3} more" if len(each.kernels) > 3 else ""
            kernels, size, age = ", ".join(each.kernels[:3]) + more, bytes_text(each.size_bytes), now_s - each.used_s
            times = age_text(age), seconds_text(each.compile_time_s)
            rows.append((each.key[:12], kernels, each.target, size, *times, str(each.hits)))
        return rows

    def __str__(self) -> str:
        return "\n".join(aligned([self.COLUMNS, *self.rows()], self.NUMBERS))


def _kernel_lines(compiled: CompiledKernel) -> list[str]:
    memory = {"shared": compiled.shared_bytes, "local": compiled.local_bytes, "constant": compiled.const_bytes}
    amounts = [
        counted(compiled.registers, "register"),
        *(f"{bytes_text(size)} {what}" for what, size in memory.items() if size),
    ]
    parameters = [f"  {each.offset:>5}  {each}" for each in compiled.parameters] or ["  no parameters"]
    symbol = [f"  symbol {compiled.symbol}"] if compiled.symbol != compiled.name else []
    return [f"kernel {compiled.name}: {', '.join(amounts)}", *symbol, *parameters]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
