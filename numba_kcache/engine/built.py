"""`get_or_build`: cache bytes of any compiler, as requests of the same engine that kernels use.

Promise     The key covers the components' values, which are read once, and the content of files in `depends`; a value
            without a canonical form is an OptionError. Exceptions of `build` pass through, and its result is checked
            before it is stored. If a file of `depends` changes meanwhile, the result is not stored. A file that cannot
            be read, or would block the reader, is an OptionError. Links are followed, except a link to a folder that
            contains the link.
Method      Each of the user's components is a component of the key, named `component[NAME]`, so that it cannot be
            confused with one of the engine's own. A hit or a miss is counted once in a process for each key.
Not here    The artifact of the bytes (model), look-ups, turns and stores (engine).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OptionError, why_of
from ..keys import Component, Plain, component, components, derive, digest_of, sha256
from ..model import BUILT, NO_TARGET, Artifact, Origin, Resolution, checked_built, copied, is_safe_name
from ..model.json_values import is_unicode, read_json
from . import Candidate, Request

if TYPE_CHECKING:  # a hit does not import these modules
    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model.reason import ReasonKind
    from . import Session

Build = Callable[[], "bytes | Mapping[str, bytes]"]
Makers = tuple[()] | tuple[tuple[str, ...], tuple[str, ...]]  # libraries, distributions

ALONE = "data"
"""The name of the payload where `build` returns bytes."""

_MAX_DEPTH = 32
"""Limit of the nesting of lists and mappings."""

_NUMBER_BITS = 64
_KIND = component("kind", BUILT)
_SERVED_LIMIT = 4096
"""Most calls for which a process remembers that it counted a hit; when there are this many, all are dropped."""


class Built(NamedTuple):
    """The result of `get_or_build`.

    Args:
        payloads: Bytes by name; under `"data"` where `build` returned bytes.
        key: Its key; "" if it was not stored, because a file of `depends` changed while it was built.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` (another process or thread built it) or `"compiled"`.
        meta: The meta given when it was built.
    """

    payloads: Mapping[str, bytes]
    key: str
    source: str
    meta: Mapping[str, Any]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name!r}: {len(data)} bytes" for name, data in self.payloads.items())
        return f"Built({{{sizes}}}, key={self.key!r}, source={self.source!r}, meta={self.meta!r})"


def find_or_build(
    session: Session,
    given: Any,
    build: Build,
    *,
    label: str,
    depends: Any,
    meta: Any,
    caller: str,
    makers: Makers = (),
    headers: HeaderSearch | None = None,
) -> Built:
    """Implement `KernelCache.get_or_build`.

    Args:
        session: Session of the cache.
        given: The components.
        build, label, depends, meta: As in `KernelCache.get_or_build`.
        caller: The calling file; relative paths of `depends` refer to its folder.
        makers: Libraries and distributions whose builds and versions enter the key as those of a compiler.
        headers: Where its compiler searches for headers; None if it reads none.
    """
    paths, contents = _contents(depends, caller) if depends else ((), [])
    known = _known(session, _digest_of(given, contents)) if headers is None else None
    if known is not None:
        return known
    values = _values_of(given)
    request = _request(values, build, label, paths, contents, meta, makers=makers)._replace(headers=headers)
    found = session.resolve(request)
    if headers is not None:
        return _built(found.artifact, found.key, found.source)  # not remembered: headers may change
    # computed from the copy that was keyed: another thread may change the mapping
    return _answered(session, found, _digest_of(values, contents))


def find_built(
    session: Session, given: Any, label: str, headers: HeaderSearch | None = None, makers: Makers = ()
) -> tuple[Built, Mapping[str, Any]] | None:
    """Find the result stored for these components, and count a hit; None if it has to be built (`keep_built`).

    With the result comes its row in the index if it depends on headers.

    Args:
        session: Session of the cache.
        given: The components, which must not change meanwhile.
        label: As in `get_or_build`.
        headers: Where its compiler searches for headers; None if it reads none.
        makers: As in `find_or_build`.

    Raises:
        FrozenCacheError: The result is not stored, and the mode is frozen.
    """
    parts = _parts(given)
    digest = b"".join([each[1] for each in parts])
    known = _known(session, digest)
    if known is not None:
        return known, {}
    found = None
    if session.looks:
        request = Request(label, NO_TARGET, parts, *(makers or ((), ())), _never)
        if headers is None or headers.read is None:
            # one candidate suffices: its key does not depend on this machine's compilers
            components = session.components(request)
            found = session.first([Candidate(request, components, None, derive(components), None)])
            if found is None and session.tiers:
                found = session.first(session.candidates(request, session.tiers))
        if found is None and headers is not None:
            request = request._replace(headers=headers)
            found = session.first(session.candidates(request))
            if found is not None:
                return _built(found.artifact, found.key, found.source), found.row  # not remembered: headers may change
    if found is None and session.settings.mode == "frozen":
        from .explain import frozen_error  # here: a hit does not need it

        request = _request(_values_of(given), bytes, label, (), [], None, makers=makers)._replace(headers=headers)
        raise frozen_error(session, request, session.components(request))
    return None if found is None else (_answered(session, found, digest), {})


def _never(*_engine: Any) -> Artifact:
    """The `build` of a request that is only looked up."""
    raise NotImplementedError


@contextlib.contextmanager
def turn_to_build(
    session: Session, given: Any, label: str, headers: HeaderSearch | None, makers: Makers
) -> Iterator[Built | Callable[[Build, float], None]]:
    """Wait for the process that builds what `find_built` does not find; yield its result, or what stores the caller's.

    The function that is yielded takes a build function, and the time that the build took, in seconds.

    Args:
        session, given, label, headers, makers: As in `find_built`.
    """

    def keep(build: Build, seconds: float) -> None:
        session.compile(request(build, seconds), components)

    def request(build: Build, seconds: float) -> Request:
        made = _request(values, build, label, (), [], None, seconds, makers)
        return made._replace(headers=headers)

    values = _values_of(given)
    wanted = request(bytes, 0.0)
    components = session.components(wanted)
    with session.turn_to_build(wanted, components) as found:
        yield keep if found is None else _built(found.artifact, found.key, found.source)


def keep_built(
    session: Session, given: Any, payload: bytes, *, label: str, meta: Any, seconds: float, headers: HeadersRead
) -> None:
    """Store a result for these components, replacing a stored one, and count a miss.

    Args:
        session: Session of the cache.
        given: The components.
        payload: The result, stored under `"data"`.
        label, meta: As in `get_or_build`.
        seconds: Time of the build.
        headers: The headers that its compiler read.
    """
    request = _request(_values_of(given), lambda: payload, label, (), [], meta, seconds)._replace(headers=headers)
    session.compile(request, session.components(request))


def remove_built(session: Session, given: Any, headers: HeaderSearch | None = None) -> bool:
    """Remove the local entry for these components, and that for the present headers. Returns True if there was one."""
    request = _request(_values_of(given), bytes, "", (), [], None)
    keys = [session.key(request)]
    if headers is not None:
        keys += [each.key for each in session.candidates(request._replace(headers=headers), [None])]
    return max([session.remove(key) for key in keys])


def _known(session: Session, digest: str | bytes) -> Built | None:
    """The result of the call with this digest, if this process has it in memory and counted a hit of it; else None."""
    key = session.served.get(digest) if session.looks else None
    known = session.memory.get(key) if key is not None else None
    return None if key is None or known is None else _built(known, key, "memory")


def _answered(session: Session, found: Resolution, digest: str | bytes) -> Built:
    """Make the result of a call, and remember its digest if a hit was counted."""
    if found.source != "compiled":
        if len(session.served) >= _SERVED_LIMIT:
            session.served.clear()
        session.served[digest] = found.key
    return _built(found.artifact, found.key, found.source)


def _contents(depends: Any, caller: str) -> tuple[Sequence[str], list[Plain]]:
    paths = paths_of(depends, caller)
    return paths, [content_of(each) for each in paths]


def _digest_of(given: Any, contents: list[Plain]) -> str:
    """Digest a call without copying its values; "" for values that have to be copied first."""
    try:
        return digest_of((given, contents))
    except (TypeError, ValueError, RecursionError):  # a mapping or list of another class, or an invalid value
        return ""


class Answer(NamedTuple):
    """A result that was returned to a caller: label, key, source, and the seconds of its build, by any process."""

    label: str
    key: str
    source: str
    seconds: float


_watching: list[list[Answer]] = []


@contextlib.contextmanager
def watched() -> Iterator[list[Answer]]:
    """Collect the results that are returned to callers while the context lasts."""
    answers: list[Answer] = []
    _watching.append(answers)
    try:
        yield answers
    finally:
        _watching[:] = [each for each in _watching if each is not answers]


def _built(artifact: Artifact, key: str, source: str) -> Built:
    """Make a result, and add it to the lists of `watched`."""
    for each in _watching:
        each.append(Answer(artifact.names[0], key, source, artifact.compile_time_s))
    payloads, start = {}, 0
    for name, size in artifact.attributes["payloads"]:
        payloads[name] = artifact.cubin[start : start + size]
        start += size
    return Built(payloads, key, source, copied(artifact.attributes["meta"]))


def _request(
    values: Mapping[str, Plain],
    build: Build,
    label: str,
    paths: Sequence[str],
    contents: list[Plain],
    meta: Any,
    seconds: float | None = None,
    makers: Makers = (),
) -> Request:
    if not callable(build):
        raise OptionError("cannot use build", f"it is a {type(build).__name__}", "give a function without parameters")
    file, name = _origin_of(build)
    libraries, distributions = makers or ((), ())
    label, copied_meta = _label_of(label, name), _meta_of(meta)
    parts = _parts(values)

    def make(*_engine: Any) -> Artifact:
        start = time.perf_counter()
        returned = build()
        return _artifact(label, returned, copied_meta, time.perf_counter() - start if seconds is None else seconds)

    def changed() -> str:
        with contextlib.suppress(OptionError):  # a file was removed, or cannot be read any more
            if _contents(paths, "")[1] == contents:
                return ""
        return "a file of depends= changed while it was built"

    return Request(
        label=label,
        target=NO_TARGET,
        components=(*parts, component("depends", contents)) if paths else parts,
        libraries=libraries,
        distributions=distributions,
        build=make,
        texts=functools.partial(_texts, values),
        file=file,
        name=label,
        changed=changed if paths else str,
        kinds=functools.partial(_kinds, values),
    )


def _origin_of(build: Any) -> tuple[str, str]:
    """File and qualified name of the build function; for a `functools.partial`, of the function that it calls."""
    while isinstance(build, functools.partial):
        build = build.func
    code = getattr(build, "__code__", None)
    name = getattr(build, "__qualname__", type(build).__qualname__)
    file = os.path.abspath(code.co_filename) if isinstance(code, CodeType) and code.co_filename[:1] != "<" else ""
    return file, f"{getattr(build, '__module__', None) or '__main__'}.{name}"


def _label_of(label: Any, default: str) -> str:
    if not isinstance(label, str) or len(label) > 1024:
        raise OptionError("cannot use label", "it is not text of at most 1024 characters", "shorten it")
    return (label or default[-1024:]).encode("utf-8", "backslashreplace").decode()[:1024]


def _meta_of(meta: Any) -> dict[str, Any]:
    """Copy `meta` as a store would return it.

    Raises:
        OptionError: `meta` is not a mapping of values that JSON can represent.
    """
    if meta is None:
        return {}
    try:
        found: dict[str, Any] = read_json(json.dumps(_plain(dict(meta), "meta", 0)).encode())
        if is_unicode(found):
            return found
        why = "half of a surrogate pair"
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error)
    raise OptionError("cannot keep meta", why, "give a mapping of plain JSON values")


# -- components ------------------------------------------------------------------------------------------------------


def _values_of(given: Any) -> dict[str, Plain]:
    """Copy the components as plain values, in the order of their names.

    Raises:
        OptionError: The components are not a mapping of names to plain values, or are empty.
    """
    if not isinstance(given, Mapping) or not given:
        why = f"it is {'an empty mapping' if isinstance(given, Mapping) else f'a {type(given).__name__}'}"
        raise OptionError(
            "cannot use components", why, "give a mapping of names to values, with everything that decides the result"
        )
    found: dict[str, Plain] = _plain(given, "components", 0)  # type: ignore[assignment]
    return {name: found[name] for name in sorted(found)}


def _plain(value: Any, where: str, depth: int) -> Plain:
    kind = type(value)
    if kind in (str, bytes, bool, int, float) or value is None:
        return value  # type: ignore[no-any-return]
    if depth > _MAX_DEPTH:
        raise OptionError(f"cannot use {where[:80]}", f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        found: dict[str, Plain] = {}
        for name, each in value.items():
            if type(name) is not str:
                raise OptionError(
                    f"cannot use {where[:80]}", f"its key {name!r:.80} is not text", "name parts by text: str(x)"
                )
            found[name] = _plain(each, f"{where}[{name!r}]", depth + 1)
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{where}[{index}]", depth + 1) for index, each in enumerate(value)]
    why = f"a {kind.__name__} is not text, bytes, a number, a boolean, None, a list or a mapping of these"
    raise OptionError(f"cannot use {where[:80]}", why, "convert it: str(x), int(x), float(x), list(x)")


def _parts(values: Mapping[str, Plain]) -> tuple[Component, ...]:
    """The components of a key, in the order of their names."""
    return _KIND, *[_component(name, values[name]) for name in sorted(values)]


def _component(name: str, value: Plain) -> Component:
    try:
        (named,) = components({f"component[{name}]": value})
    except (ValueError, RecursionError) as error:  # an int with more digits than Python converts to text
        raise OptionError(f"cannot use components[{name!r}]", str(error)) from None
    return named if type(value) in (str, bytes) else named._replace(value=_shown(value))


def _shown(value: Plain) -> Plain:
    """Convert a value for the report of an entry: numbers that JSON readers refuse become text."""
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    is_refused = (
        value - value != 0 if type(value) is float else type(value) is int and value.bit_length() > _NUMBER_BITS
    )
    return repr(value) if is_refused else value


def _kinds(values: Mapping[str, Plain]) -> dict[str, ReasonKind]:
    from ..model.reason import ReasonKind

    return dict.fromkeys(["component[", *(f"component[{name}]" for name in values)], ReasonKind.COMPONENT)


def _texts(values: Mapping[str, Plain]) -> dict[str, tuple[str, Origin]]:
    """The components that are texts of several lines, for which an explanation shows the line that differs."""
    texts = ((name, value) for name, value in values.items() if isinstance(value, str) and "\n" in value)
    return {f"component[{name}]": (text, Origin("", 1)) for name, text in texts}


# -- depends ---------------------------------------------------------------------------------------------------------


def paths_of(depends: Any, caller: str) -> Sequence[str]:
    """The paths of `depends=`; relative ones refer to the folder of the calling file.

    Raises:
        OptionError: `depends` is neither a path nor a list of paths.
    """
    folder = os.path.dirname(os.path.abspath(caller))
    folder = folder if caller[:1] != "<" and os.path.isdir(folder) else os.getcwd()  # at a prompt or in a notebook
    given = [depends] if isinstance(depends, (str, os.PathLike)) else depends
    try:
        return [os.path.join(folder, os.path.expanduser(os.fspath(each))) for each in given]
    except TypeError as error:
        raise OptionError("cannot use depends", str(error), "give paths; pass other values in components=") from None


def content_of(path: str) -> Plain:
    """Digest the bytes of a file; for a folder, each file in it, by relative name, without `__pycache__`.

    Raises:
        OptionError: The path cannot be read, or is neither a file nor a folder.
    """
    try:
        if not os.path.isdir(path):
            return _digest(path)
        return {os.path.relpath(each, path): _digest(each) for each in _files_in(path, frozenset())}
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read depends={path!r}", why_of(error), "correct the path") from None


def _files_in(folder: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    """Yield every file below a folder; a link to a folder that contains it counts as a file."""
    status = os.stat(folder)
    here = status.st_dev, status.st_ino
    if here in above:
        yield folder
        return
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _files_in(path, above | {here}) if name != "__pycache__" else ()
        else:
            yield path


def _digest(path: str) -> str:
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        return "a folder above"  # the value for a link to a folder that contains it
    if not stat.S_ISREG(mode):  # reading a pipe would block
        raise OSError(f"{path} is neither a file nor a folder")
    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()


# -- results ---------------------------------------------------------------------------------------------------------


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
    return checked_built(Artifact(BUILT, NO_TARGET, (), blob, build_time_s, attributes))


def _artifact(label: str, returned: Any, meta: dict[str, Any], seconds: float) -> Artifact:
    payloads = returned if isinstance(returned, Mapping) else {ALONE: returned}
    cannot, read = f"cannot store what was built for {label}", {}
    for name, data in payloads.items():
        if not isinstance(name, str) or not is_safe_name(name):
            why = f"{name!r:.80} cannot name a payload"
            raise OptionError(cannot, why, "a name is 1 to 200 bytes of printable text without slashes")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise OptionError(
                cannot, f"its {name} is a {type(data).__name__}, and not bytes", "give bytes: text.encode()"
            )
        read[str(name)] = bytes(data)
    try:
        return built_artifact(label, read, meta, seconds)
    except ValueError as error:
        raise OptionError(cannot, str(error)) from None
