"""Hold what a store hands over against itself, before a launch or another store sees it.

Promise     Code that came from elsewhere (a tier, a bundle, a directory that others write to) is for the target that it
            names, has the kernels and variables that it names, and parameters where it says; else it is refused, with
            the reason. Whatever the bytes are, a refusal is text or a ValueError.
Not here    Framing and digests (store.entry), signatures (tiers.trust), and the kernel that a hit of the local store
            launches (model.artifact.misfit).
"""

from __future__ import annotations

from ..errors import KCacheError
from ..model.artifact import Artifact, artifact_from_header
from ..model.contradiction import contradiction_of
from ..store.entry import StoredEntry


def arrived(entry: StoredEntry) -> Artifact:
    """Read the artifact of an entry that was decoded, and hold it against its code.

    Raises:
        ValueError: It is none, or contradicts itself.
    """
    try:
        artifact = artifact_from_header(entry.header, entry.payloads)
    except KCacheError as error:
        raise ValueError(str(error)) from None
    wrong = contradiction_of(artifact)
    if wrong:
        raise ValueError(wrong)
    return artifact


def refusal_of(entry: StoredEntry) -> str:
    """The reason not to take an entry that arrived; "" where there is none."""
    try:
        arrived(entry)
    except ValueError as error:
        return str(error)
    return ""
