"""Bytes that another package's compiler made (`get_or_build`), as an artifact of the kind `built`.

Promise     No field of a header is trusted: label, names, sizes and meta are checked against their types and bounds,
            and the sizes against the bytes, or ValueError is raised. A payload's name is safe as a file name: it cannot
            lead out of a folder. An artifact of this kind has no kernel, and its target is `any`, which no device and
            no request for a kernel has, so it is never launched; no artifact of another kind has that target.
Method      The payloads are concatenated; their names and sizes are in the header's attributes, beside the label and
            the meta, of which each caller gets a copy.
Not here    The meaning of the bytes, which only their compiler knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import BUILT, NO_TARGET, Artifact

MAX_BUILT = 4096
"""Limit of the payloads of one artifact."""

_MAX_NAME_BYTES = 200
_MAX_LABEL = 1024


def built_artifact(label: str, payloads: Mapping[str, bytes], meta: Mapping[str, Any], build_time_s: float) -> Artifact:
    """Make the artifact of a build's result.

    Args:
        label: Its name in lists and messages.
        payloads: Bytes by name.
        meta: JSON values.
        build_time_s: Seconds that the build took.

    Raises:
        ValueError: There is no payload, or too many, or a name that cannot be a file's.
    """
    sizes = [[name, len(data)] for name, data in payloads.items()]
    attributes = {"label": label, "meta": meta, "payloads": sizes}
    blob = next(iter(payloads.values())) if len(payloads) == 1 else b"".join(payloads.values())
    return _checked(Artifact(BUILT, NO_TARGET, (), blob, build_time_s, attributes))


def built_from_header(header: Mapping[str, Any], payloads: Mapping[str, bytes]) -> Artifact:
    """Make the artifact from its stored header and payloads.

    Raises:
        ValueError, KeyError: The header is malformed.
    """
    if header["target"] != NO_TARGET.name or header["entries"] != []:
        raise ValueError("kernels or a target where there are none")
    blob, seconds, attributes = payloads[BUILT], float(header["compile_time_s"]), header["attributes"]
    return _checked(Artifact(BUILT, NO_TARGET, (), blob, seconds, attributes))


def sizes_of(artifact: Artifact) -> dict[str, int]:
    """Bytes of each payload, by name."""
    return dict(artifact.attributes["payloads"])


def payloads_of(artifact: Artifact) -> dict[str, bytes]:
    """Take the payloads out of an artifact."""
    found, start = {}, 0
    for name, size in artifact.attributes["payloads"]:
        found[name] = artifact.cubin[start : start + size]
        start += size
    return found


def meta_of(artifact: Artifact) -> dict[str, Any]:
    """Copy the meta that its builder gave."""
    return {name: _copied(each) for name, each in artifact.attributes["meta"].items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _checked(artifact: Artifact) -> Artifact:
    attributes, total, names = artifact.attributes, 0, set()
    rows, label, meta = attributes.get("payloads"), attributes.get("label"), attributes.get("meta")
    if not (type(label) is str and type(meta) is dict and type(rows) is list):
        raise ValueError("attributes of another form")
    for row in rows:  # by hand: this runs at each hit
        if not (type(row) is list and len(row) == 2 and type(row[0]) is str and type(row[1]) is int):
            raise ValueError("no payload")
        name, size = row
        if not is_safe_name(name):
            raise ValueError(f"a payload is called {name!r}")
        if size < 0:
            raise ValueError("a payload of negative size")
        total += size
        names.add(name)
    if not 0 < len(rows) == len(names) <= MAX_BUILT:
        raise ValueError(f"{len(rows)} payloads")
    if total != len(artifact.cubin):
        raise ValueError("payloads of other sizes than its bytes")
    if not label or len(label) > _MAX_LABEL:
        raise ValueError("label")
    return artifact


def is_safe_name(name: str) -> bool:
    """Check whether a payload's name can be the name of a file in any folder."""
    is_plain = name.isprintable() and name not in ("", ".", "..") and "/" not in name and "\\" not in name
    return is_plain and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME_BYTES  # surrogates are not printable
