"""Compile a request, record which headers were included, and publish the artifact.

Promise     A published artifact has code for the described target with the described kernels. A failed compile is
            reported when it ends, and raises the exception of the compiler or of the user's code.
Not here    Taking the turn to build (turns, store.locks), and running the compilers (frontends, toolchain).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from .. import toolchain
from ..errors import ToolchainMissingError
from ..explanation import history
from ..headers import HeadersRead
from ..keys import Component, derive, family_of
from ..model import BUILT, NO_TARGET, Artifact, EventKind, Resolution, resolved_without_key, trouble
from ..model.contradiction import contradiction_of
from ..model.header import artifact_header
from ..model.reason import Reason, ReasonKind
from ..store import MANIFEST, MAX_TEXT_BYTES, StoredEntry, row_of
from ..store.encoding import encode_manifest, merge

if TYPE_CHECKING:
    from . import Lookup, Request, Session

EXPLAINED_LIMIT = 4096
"""Most compiles whose reasons a process remembers; when there are this many, all are dropped."""


def load_compilers(cache: Lookup, request: Request) -> tuple[Component, ...]:
    """Load the compiler libraries of a request, and list its components, including the loaded compilers."""
    request.prepare()
    if toolchain.load_compilers(request.libraries):
        cache.forget_compilers()
    return cache.components(request)


def reasons_of_miss(cache: Lookup, request: Request, components: Sequence[Component]) -> tuple[tuple[Reason, ...], str]:
    """Find the reasons for which a request missed, and put them into words; in a mode that looks nothing up, the mode.

    The modules that compare and describe are imported only if something of this kernel was stored before.
    """
    is_shipped = any(each.tier.targets() for each in cache.tiers)
    if cache.looks and not is_shipped and not history.has_history(request.subject, cache.local):
        return (history.NEVER_STORED,), history.NEVER_STORED_TEXT
    from ..explanation.text import summary
    from .explain import reasons_of

    of_mode = (Reason(ReasonKind.MODE, new=cache.settings.mode),)
    reasons = reasons_of(cache, request, components).reasons if cache.looks else of_mode
    return reasons, summary(reasons)


def build(cache: Lookup, request: Request, key: str) -> tuple[Artifact, HeadersRead]:
    """Compile a request, and record the headers that its texts included.

    Raises:
        KCacheError: The user's own errors, from the compilers.
    """
    cache.emit(EventKind.COMPILE_BEGIN, request, key)
    try:
        with _progress(cache, request):
            make = functools.partial(request.build, cache.toolchain)
            if isinstance(request.headers, HeadersRead):
                artifact, headers = make(), request.headers
            elif request.headers is None and (request.target == NO_TARGET or "nvrtc" not in request.libraries):
                artifact, headers = make(), HeadersRead()
            elif request.headers is None:
                from ..headers.observer import compile_alone

                artifact, why = compile_alone(make, request.distributions)
                headers = HeadersRead(untracked=why)
            elif request.headers.read is not None:
                artifact, headers = make(), request.headers.read()
            else:
                from ..headers.record import compile_observed

                artifact, headers = compile_observed(make, request.headers, cache.toolchain)
    except BaseException as error:  # Numba's own errors and Ctrl-C end a compile as well
        cache.emit(EventKind.COMPILE_FAILED, request, key, error=str(error))
        raise
    finally:
        cache.toolchain.settle()
    if "log" in artifact.extras:
        from ..toolchain.diagnostics import bounded

        artifact = artifact._replace(extras={**artifact.extras, "log": bounded(artifact.extras["log"])})
    cache.emit(EventKind.COMPILE_END, request, key, compile_time_s=artifact.compile_time_s)
    return artifact, headers


def _progress(cache: Lookup, request: Request) -> AbstractContextManager[None]:
    """Show progress if the compile takes long, on a terminal."""
    with suppress(Exception):  # no stream, a closed one, or the program's own, which may raise anything
        if cache.settings.progress and sys.stderr.isatty():
            from ..observe.progress import shown

            return shown(request.title)
    return nullcontext()


def publish(
    cache: Lookup, request: Request, components: Sequence[Component], headers: HeadersRead, artifact: Artifact, key: str
) -> None:
    """Store an artifact under its key, and add it to its family's manifest and its kernel's history.

    An artifact whose cubin is for another target than described, or lacks a described kernel, is not stored: the next
    process compiles it again.
    """
    wrong = contradiction_of(artifact)
    if wrong:
        cache.events.emit(trouble("cubin", f"cannot store {', '.join(artifact.names)} for {artifact.target}: {wrong}"))
        return
    subject, everything = request.subject, (*components, *headers.components)
    code_name = BUILT if artifact.kind == BUILT else "cubin"
    of_kernel = history.history_name(subject)
    payloads = {code_name: artifact.cubin, **artifact.extras, **history.payloads_of(subject, of_kernel, everything)}
    payloads = {name: data[: MAX_TEXT_BYTES.get(name)] for name, data in payloads.items()}  # long texts are cut
    try:
        is_stored = cache.store.put(StoredEntry(key, artifact_header(artifact), payloads))
    except (ValueError, MemoryError) as error:  # too large for a store: the code runs, but is not kept
        cache.events.emit(trouble("put", f"cannot store {request.label}: {error or 'no memory'}"))
        return
    if is_stored:
        family = family_of(components)
        row = row_of(key, artifact.target.name, derive(components))
        cache.store.add_rows(family, {**row, **headers.row})
        rows = merge(cache.local.get_manifest(of_kernel), {**row, "family": family}, most=history.MOST_RECORDS)
        cache.local.put_encoded(of_kernel, encode_manifest(of_kernel, rows), MANIFEST)


def compile_and_store(session: Session, request: Request, components: Sequence[Component]) -> Resolution:
    """Compile a request, and store it: the work of `Session.compile`."""
    compilers = load_compilers(session, request)
    if compilers != tuple(components):  # the compilers that were loaded are not those on record
        components = compilers
        found = session.first(session.candidates(request.alone)) if session.looks else None
        if found is not None:
            return found
    key = derive(components)
    reasons, why = reasons_of_miss(session, request, components)
    session.emit(EventKind.MISS, request, key, reason=why, reasons=reasons)
    try:
        artifact, headers = build(session, request, key)
    except ToolchainMissingError as error:
        from ..explanation.text import summary

        shipped = summary([each for each in reasons if each.kind is ReasonKind.OTHER_TARGETS])
        raise ToolchainMissingError(error.what, "; ".join(filter(None, (error.why, shipped))), error.hint) from error
    untracked = headers.untracked or request.changed()
    if untracked:
        if request.strict:
            raise request.refusal(untracked)
        session.emit(EventKind.UNCACHEABLE, request, "", reason=untracked)
        return resolved_without_key(artifact, untracked)
    session.forget_compilers()
    actual = session.components(request)  # with the libraries mapped and packages imported now: they made the code
    key = derive((*actual, *headers.components))
    session.remember(key, artifact)
    if len(session.compiled_for) >= EXPLAINED_LIMIT:
        session.compiled_for.clear()
    session.compiled_for[key] = reasons
    if session.settings.mode == "verify":
        _compare(session, request, key, artifact)
    session.refused.discard(key)
    if session.stores:
        publish(session, request, actual, headers, artifact, key)
    return Resolution(artifact, key, "compiled", row=headers.row)


def _compare(session: Session, request: Request, key: str, artifact: Any) -> None:
    """Report a stored entry whose code differs from a new compile of the same request (mode `verify`)."""
    stored = session._read(key)
    made = artifact.cubin, artifact.attributes.get("payloads")
    if stored is not None and (stored.cubin, stored.attributes.get("payloads")) != made:
        difference = f"the stored code of {request.label} is not what the compilers make now ({key})"
        session.events.emit(trouble(f"verify {key}", difference))
