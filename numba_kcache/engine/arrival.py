"""Check the code of an entry from another store against its description, before it is launched or stored.

Promise     Code from a tier, a bundle, or a directory that others write to is for the described target, has the
            described kernels and variables, with parameters at the described offsets; otherwise it is refused, with
            the reason. Whatever the bytes are, a refusal is a text or a ValueError, and no other exception is raised.
Not here    The checks of framing and digests (store.entry), of signatures (tiers.trust), and of the kernel that a hit
            of the local store launches (model.misfit).
"""

from __future__ import annotations

from ..errors import KCacheError
from ..model import Artifact, artifact_from_header
from ..model.contradiction import contradiction_of
from ..store.entry import StoredEntry


def arrived(entry: StoredEntry) -> Artifact:
    """Read the artifact of a decoded entry, and check it against its code.

    Raises:
        ValueError: The header is malformed, or contradicts the code.
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
    """The reason not to accept an entry from another store; "" for none."""
    try:
        arrived(entry)
    except ValueError as error:
        return str(error)
    return ""
