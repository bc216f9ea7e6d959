"""What follows a miss: compile, learn what was included, publish.

Promise     What is published is for the target that it says and has the kernels that it names. A compile that fails is
            told as it ends, and raises what the compiler or the user's code raised.
Not here    Whose turn it is (resolver, store.locks), and how the compilers are run (toolchain).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager

from . import rolls
from .jobs import Job, Learned
from .keys.components import Component, derive
from .lookup import Lookup, family_of, variant_of
from .model.artifact import Artifact, artifact_header
from .model.cubin import contradiction
from .model.event import EventKind, trouble
from .store.entry import StoredEntry


def build(cache: Lookup, job: Job, key: str) -> tuple[Artifact, Learned]:
    """Compile a job, and learn what its text included.

    Raises:
        KCacheError: The user's own errors, from the compilers.
    """
    cache.emit(EventKind.COMPILE_BEGIN, job, key)
    try:
        with _progress(cache, job):
            if not job.headers:
                artifact, learned = job.build(cache.toolchain, None), Learned()
            else:
                from .closures import compile_and_learn  # 15 ms that a source without includes need not pay

                make = functools.partial(job.build, cache.toolchain)
                artifact, learned = compile_and_learn(make, job.headers, cache.toolchain)
    except BaseException as error:  # Numba's own errors and Ctrl-C end a compile as well
        cache.emit(EventKind.COMPILE_FAILED, job, key, error=str(error))
        raise
    cache.emit(EventKind.COMPILE_END, job, key, compile_time_s=artifact.compile_time_s)
    return artifact, learned


def _progress(cache: Lookup, job: Job) -> AbstractContextManager[None]:
    """Says what is compiled, if it takes long."""
    if not cache.settings.progress:
        return contextlib.nullcontext()
    from .observe.progress import shown

    return shown(f"{job.label} for {job.target.name}")


def publish(
    cache: Lookup, job: Job, components: Sequence[Component], learned: Learned, artifact: Artifact, key: str
) -> None:
    """Store an artifact under its key, and name it in its family's manifest and its kernel's roll.

    Not one whose cubin is for another target than it says, or lacks a kernel that it names: whatever went wrong
    there must not outlive this process.
    """
    wrong = _contradiction(artifact)
    if wrong:
        names = ", ".join(entry.name for entry in artifact.entries)
        error = f"cannot store {names} for {artifact.target}: {wrong}"
        cache.events.emit(trouble("cubin", error))
        return
    everything = (*components, *learned.components)
    payloads = {"cubin": artifact.cubin, **artifact.extras, **rolls.payloads_of(job, everything)}
    if cache.store.put(StoredEntry(key, artifact_header(artifact), payloads)):
        family = family_of(components)
        variant = variant_of(key, artifact.target.name, derive(components))
        cache.store.add_variant(family, {**variant, **learned.variant})
        rolls.note(cache.local, job, everything, key, family)


def _contradiction(artifact: Artifact) -> str:
    major, minor = artifact.target.cc
    symbols = [entry.symbol for entry in artifact.entries]
    if artifact.target.virtual or "ltoir" in artifact.extras:  # there is no cubin yet
        return ""
    is_given = artifact.kind in ("cubin", "fatbin")  # by the user: it may be for an earlier minor
    return contradiction(artifact.cubin, major * 10 + minor, symbols, is_exact=not is_given)
