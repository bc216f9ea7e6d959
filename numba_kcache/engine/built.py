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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OptionError, why_of
from ..keys import Component, Plain, component, components, sha256
from ..model import BUILT, NO_TARGET, Artifact, Origin, Resolution, checked_built, copied, is_safe_name
from ..model.json_values import is_in_range, is_unicode, read_json
from ..settings import NVRTC_VARIABLES, path_from, variables, working_directory
from ..toolchain import file_identities
from . import Request

if TYPE_CHECKING:  # a hit does not import these modules
    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model.reason import ReasonKind
    from . import Session

Build = Callable[[], "bytes | Mapping[str, bytes]"]
Makers = tuple[tuple[str, ...], tuple[str, ...]]  # libraries, distributions
_NO_MAKERS: Makers = (), ()

ALONE = "data"
"""The name of the payload where `build` returns bytes."""

_MAX_DEPTH = 32
"""Limit of the nesting of lists and mappings."""

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
    depends: Any = (),
    meta: Any = None,
    caller: str = "",
    makers: Makers = _NO_MAKERS,
    headers: HeaderSearch | None = None,
) -> Built:
    """Implement `KernelCache.get_or_build`.

    Args:
        session: Session of the cache.
        given: The components.
        build, label, depends, meta: As in `KernelCache.get_or_build`.
        caller: The calling file; relative paths of `depends` refer to its folder.
        makers, headers: As those of `Wanted`.
    """
    wanted = Wanted(session, _values_of(given), label, headers, makers, paths_of(depends, caller) if depends else ())
    return wanted.known() or wanted.answer(session.resolve(wanted.request(build, meta=meta)))


class Wanted:
    """A result of `get_or_build` whose caller looks it up, builds and stores it, maybe in separate steps.

    Args:
        session: Session of the cache.
        given: The components, which must not change meanwhile.
        label: As in `get_or_build`.
        headers: Where its compiler searches for headers; None if it reads none.
        makers: Libraries and distributions whose builds and versions enter the key as those of a compiler.
        depends: Paths of the files and folders whose content enters the key.
    """

    def __init__(
        self,
        session: Session,
        given: Any,
        label: str,
        headers: HeaderSearch | None = None,
        makers: Makers = _NO_MAKERS,
        depends: Sequence[str] = (),
    ) -> None:
        self.session, self._given, self.label = session, given, label
        self._headers, self._makers, self._files = headers, makers, Files(depends)
        self._parts = _parts(given)
        if headers and (environment := variables(NVRTC_VARIABLES)):
            self._parts += (component("environment", dict(environment)),)
        if depends:
            self._parts += (component("depends", self._files.contents),)

    def find(self) -> tuple[Built, Mapping[str, Any]] | None:
        """Find what is stored, with its row in the index, and count a hit; None if it has to be built.

        Raises:
            FrozenCacheError: The result is not stored, and the mode is frozen.
        """
        known, session, headers = self.known(), self.session, self._headers
        if known is not None:
            return known, {}
        request, found = Request(self.label, NO_TARGET, self._parts, *self._makers, _never), None
        if session.looks:
            if headers is None or headers.read is None:
                found = session.first(session.candidates(request))
            if found is None and headers is not None:
                found = session.first(session.candidates(request._replace(headers=headers)))
        if found is None and session.settings.mode == "frozen":
            from .explain import frozen_error  # here: a hit does not need it

            request = self.request(bytes)
            raise frozen_error(session, request, session.components(request))
        return None if found is None else (self.answer(found), found.row)

    @contextlib.contextmanager
    def turn(self) -> Iterator[Built | Callable[[Build, float], None]]:
        """Wait for the process that builds it; yield its result, or what stores the caller's.

        The function that is yielded takes a build function, and the time that the build took, in seconds.
        """
        wanted = self.request(bytes)
        components = self.session.components(wanted)

        def keep(build: Build, seconds: float) -> None:
            self.session.compile(self.request(build, seconds), components)

        with self.session.turn_to_build(wanted, components) as found:
            yield keep if found is None else self.answer(found)

    def keep(self, payload: bytes, *, meta: Any, seconds: float, headers: HeadersRead) -> None:
        """Store a result, replacing a stored one, and count a miss.

        Args:
            payload: The result, stored under `"data"`.
            meta: As in `get_or_build`.
            seconds: Time of the build.
            headers: The headers that its compiler read.
        """
        request = self.request(lambda: payload, seconds, meta)._replace(headers=headers)
        self.session.compile(request, self.session.components(request))

    def remove(self) -> bool:
        """Remove the local entry, and that for the present headers. Returns True if there was one."""
        session, request = self.session, self.request(bytes)
        keys = [session.key(request._replace(headers=None))]
        if self._headers is not None:
            keys += [each.key for each in session.candidates(request, [None])]
        return max([session.remove(key) for key in keys])

    def known(self) -> Built | None:
        """The result, if this process has it in memory and counted a hit of it; else None."""
        session = self.session
        key = session.served.get(self._digest()) if session.looks else None
        known = session.memory.get(key) if key is not None else None
        return None if key is None or known is None else _built(known, key, "memory")

    def answer(self, found: Resolution) -> Built:
        """Make the result, and remember it if a hit was counted, unless it depends on headers, which may change."""
        if found.source != "compiled" and not found.row.get("transcript"):
            if len(self.session.served) >= _SERVED_LIMIT:
                self.session.served.clear()
            self.session.served[self._digest()] = found.key
        return _built(found.artifact, found.key, found.source)

    def _digest(self) -> bytes:
        return b"".join([each[1] for each in self._parts])

    def request(self, build: Build, seconds: float | None = None, meta: Any = None) -> Request:
        """Make the request.

        Args:
            build, meta: As in `get_or_build`.
            seconds: Time of the build; None to measure it.
        """
        if not callable(build):
            what, hint = f"it is a {type(build).__name__}", "give a function without parameters"
            raise OptionError("cannot use build", what, hint)
        file, name = _origin_of(build)
        label, kept_meta = _label_of(self.label, name), _meta_of(meta)

        def make(*_engine: Any) -> Artifact:
            start = time.perf_counter()
            returned = build()
            return _artifact(label, returned, kept_meta, time.perf_counter() - start if seconds is None else seconds)

        return Request(
            label,
            NO_TARGET,
            self._parts,
            *self._makers,
            make,
            texts=functools.partial(_texts, self._given),
            file=file,
            name=label,
            changed=self._files.change,
            kinds=functools.partial(_kinds, self._given),
            headers=self._headers,
        )


def _never(*_engine: Any) -> Artifact:
    """The `build` of a request that is only looked up."""
    raise NotImplementedError


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


def _origin_of(build: Any) -> tuple[str, str]:
    """File and qualified name of the build function; for a `functools.partial`, of the function that it calls."""
    while isinstance(build, functools.partial):
        build = build.func
    code = getattr(build, "__code__", None)
    name = getattr(build, "__qualname__", type(build).__qualname__)
    file = (
        os.path.join(working_directory(), code.co_filename)
        if isinstance(code, CodeType) and code.co_filename[:1] != "<"
        else ""
    )
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
    raise OptionError(
        f"cannot use {where[:80]}", why, "convert it: str(x), int(x), float(x), list(x), for a set sorted(x)"
    )


def _parts(values: Mapping[str, Plain]) -> tuple[Component, ...]:
    """The components of a key, in the order of their names."""
    return _KIND, *[_component(name, values[name]) for name in sorted(values)]


def _component(name: str, value: Plain) -> Component:
    try:
        (named,) = components({f"component[{name}]": value})
    except (ValueError, RecursionError) as error:  # an int with more digits than Python converts to text
        raise OptionError(f"cannot use components[{name!r}]", str(error)) from None
    return named if is_in_range(value) else named._replace(value=None)  # JSON readers refuse its numbers


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
    folder = os.path.dirname(os.path.join(working_directory(), caller))  # at a prompt or in a notebook, it is that
    folder = folder if os.path.isdir(folder) else working_directory()
    given = [depends] if isinstance(depends, (str, os.PathLike)) else depends
    try:
        paths = [path_from(folder, each) for each in given]
        return sorted(paths) if isinstance(given, Set) else paths
    except TypeError as error:
        raise OptionError("cannot use depends", str(error), "give paths; pass other values in components=") from None


class Files:
    """The content of each file and folder that a result depends on, read before it is built.

    Attributes:
        contents: Digest of a file's bytes; for a folder, of each file in it, by relative name, without `__pycache__`.

    Raises:
        OptionError: A path cannot be read, or is neither a file nor a folder.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self.contents, self._stats = self._read()

    def change(self) -> str:
        """The reason why one may have been read with other bytes than these, also if it was put back; "" if not."""
        with contextlib.suppress(OptionError):  # a file was removed, or cannot be read any more
            if self._read() == (self.contents, self._stats):
                return ""
        return "a file of depends= changed while it was compiled"

    def _read(self) -> tuple[list[Plain], list[Any]]:
        stats: list[Any] = []
        return [_content_of(each, stats) for each in self._paths], stats


def _content_of(path: str, stats: list[Any]) -> Plain:
    try:
        if not os.path.isdir(path):
            return _digest(path, stats)
        return {os.path.relpath(each, path): _digest(each, stats) for each in _files_in(path, frozenset())}
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


def _digest(path: str, stats: list[Any]) -> str:
    stats += file_identities([path])
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
