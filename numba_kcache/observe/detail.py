"""One stored entry with everything that is known of it, as a value that prints.

Promise     Whatever stands in a file is shown as text: no control character of it reaches a terminal, and a report
            that is missing or malformed leaves its part empty.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..model.artifact import Artifact, Entry
from .info import bytes_text, seconds_text


class EntryDetail(NamedTuple):
    """One entry of a cache.

    Args:
        key: Its key.
        artifact: What a launch gets of it.
        size_bytes: Bytes its file takes.
        used_s: When it was stored or last used, in seconds since the epoch, to the hour.
        hits: Times it was served, in all processes.
        created_s: When it was compiled, in seconds since the epoch; 0 where it does not say.
        built: What it was compiled on: system and Python.
        kernel: What the user's code calls it, `"package.module.saxpy"`; "" where it does not say.
        components: What is in its key: name, digest, and the value where it is small and no secret.
    """

    key: str
    artifact: Artifact
    size_bytes: int
    used_s: float
    hits: int
    created_s: float = 0.0
    built: Mapping[str, str] = {}
    kernel: str = ""
    components: tuple[tuple[str, str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the code itself, as JSON values."""
        artifact = self.artifact
        return {
            "key": self.key,
            "kernel": self.kernel,
            "kind": artifact.kind,
            "target": artifact.target.name,
            "size_bytes": self.size_bytes,
            "payload_bytes": _sizes(artifact),
            "compile_time_s": artifact.compile_time_s,
            "created_s": self.created_s,
            "used_s": self.used_s,
            "hits": self.hits,
            "built": dict(self.built),
            "kernels": [_kernel(entry) for entry in artifact.entries],
            "components": [{"name": each[0], "digest": each[1], "value": each[2]} for each in self.components],
            "log": artifact.log,
        }

    def __str__(self) -> str:
        artifact = self.artifact
        sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in _sizes(artifact).items())
        created = f", {_time(self.created_s)}" if self.created_s else ""
        rows = [
            ("key", self.key),
            *((("kernel", self.kernel),) if self.kernel else ()),
            ("kind", artifact.kind),
            ("target", artifact.target.name),
            ("size", f"{bytes_text(self.size_bytes)} ({sizes})"),
            ("compiled", f"in {seconds_text(artifact.compile_time_s)}{created}"),
            ("built", _where(self.built)),
            ("last used", _time(self.used_s)),
            ("hits", str(self.hits)),
        ]
        lines = [f"{name:<10} {text}" for name, text in rows]
        for entry in artifact.entries:
            lines += ["", *_kernel_lines(entry)]
        if self.components:
            width = max(len(each[0]) for each in self.components)
            lines += ["", "components of the key"]
            lines += [f"  {each[0]:<{width}}  {each[1][:12]}  {_value(each[2])}".rstrip() for each in self.components]
        if artifact.log:
            lines += ["", "compile log", *(f"  {line}" for line in artifact.log.splitlines())]
        return "\n".join(plain(line) for line in lines)


def detail(
    key: str, artifact: Artifact, *, size_bytes: int, used_s: float, hits: int, report: bytes = b""
) -> EntryDetail:
    """The detail of an entry.

    Args:
        key: Its key.
        artifact: What was read of it.
        size_bytes: Bytes its file takes.
        used_s: When it was last used.
        hits: Times it was served.
        report: What was kept with it for people, as JSON.
    """
    try:
        kept = json.loads(report)
        components = tuple((str(name), str(digest), value) for name, digest, value in kept["components"])
        created_s, built, kernel = float(kept["created_s"]), kept.get("built", {}), str(kept.get("kernel", ""))
        where = {str(name): str(text) for name, text in built.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        components, created_s, where, kernel = (), 0.0, {}, ""
    return EntryDetail(key, artifact, size_bytes, used_s, hits, created_s, where, kernel, components)


def plain(text: str) -> str:
    """`text` on one line without what a terminal would act on."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _where(built: Mapping[str, str]) -> str:
    return ", ".join(built[name] for name in ("system", "python") if name in built) or "it does not say on what"


def _sizes(artifact: Artifact) -> dict[str, int]:
    return {name: len(artifact.extras.get(name, b"")) for name in artifact.extras}


def _kernel(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "symbol": entry.symbol,
        "typed": entry.typed,
        "parameters": [each._asdict() for each in entry.parameters],
        "registers": entry.registers,
        "shared_bytes": entry.shared_bytes,
        "local_bytes": entry.local_bytes,
        "const_bytes": entry.const_bytes,
    }


def _kernel_lines(entry: Entry) -> list[str]:
    amounts = [f"{entry.registers} registers"]
    for amount, what in (
        (entry.shared_bytes, "shared"),
        (entry.local_bytes, "local"),
        (entry.const_bytes, "constant"),
    ):
        if amount:
            amounts.append(f"{bytes_text(amount)} {what}")
    parameters = [f"  {each.offset:>5}  {each}" for each in entry.parameters] or ["  no parameters"]
    symbol = f"  symbol {entry.symbol}" if entry.symbol != entry.name else ""
    return [f"kernel {entry.name}: {', '.join(amounts)}", *([symbol] if symbol else []), *parameters]


def _value(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    first, *more = text.strip().splitlines() or [""]
    return first if not more and len(first) <= 100 else f"{first[:100]} ..."


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
