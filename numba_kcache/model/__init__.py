"""Immutable values that all parts of the package use: targets (GPU architectures), events, named tuples.

Promise     Each target has one spelling; parsing its `name` gives it back.
Source      CUDA C++ Programming Guide, "Compute Capabilities" and "Feature Set Compiler Targets":
            sm_XYa runs on X.Y alone, sm_XYf on the family, sm_XY on X.Y and later minors of X.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import LaunchError, OptionError

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
else:
    Protocol = object  # at run time a protocol is an ordinary class, which takes less time to make
    from collections import _tuplegetter, namedtuple
    from types import FunctionType

    _new = tuple.__new__
    _CONSTRUCTORS: Any = (
        lambda _cls: _new(_cls, ()),
        lambda _cls, a: _new(_cls, (a,)),
        lambda _cls, a, b: _new(_cls, (a, b)),
        lambda _cls, a, b, c: _new(_cls, (a, b, c)),
        lambda _cls, a, b, c, d: _new(_cls, (a, b, c, d)),
        lambda _cls, a, b, c, d, e: _new(_cls, (a, b, c, d, e)),
        lambda _cls, a, b, c, d, e, f: _new(_cls, (a, b, c, d, e, f)),
        lambda _cls, a, b, c, d, e, f, g: _new(_cls, (a, b, c, d, e, f, g)),
        lambda _cls, a, b, c, d, e, f, g, h: _new(_cls, (a, b, c, d, e, f, g, h)),
        lambda _cls, a, b, c, d, e, f, g, h, i: _new(_cls, (a, b, c, d, e, f, g, h, i)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j: _new(_cls, (a, b, c, d, e, f, g, h, i, j)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, q: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, q)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, q, m: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, q, m)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, q, m, n: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, q, m, n)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, q, m, n, o: _new(
            _cls, (a, b, c, d, e, f, g, h, i, j, k, q, m, n, o)
        ),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, q, m, n, o, p: _new(
            _cls, (a, b, c, d, e, f, g, h, i, j, k, q, m, n, o, p)
        ),
    )
    """Constructors by number of fields, whose parameter names each class replaces by those of its fields."""

    class _Fields(tuple):
        """The methods that all named tuples share, those of `collections.namedtuple`."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Any:
            return cls(*values)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changed: Any) -> Any:
            return self.__class__(*[changed.pop(*each) for each in zip(self._fields, self, strict=True)], **changed)

        __replace__ = _replace

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{self.__class__.__name__}({shown})"

    class _Named(type):
        """Makes each class below `NamedTuple` a named tuple.

        `typing.NamedTuple` compiles the annotations of every field, `collections.namedtuple` a constructor: 3 and 2 ms
        for the thirty such classes of a warm start. Here classes with equally many fields share one constructor.
        """

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return type.__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {each: body.pop(each) for each in fields if each in body}
            if len(fields) < len(_CONSTRUCTORS):
                model = _CONSTRUCTORS[len(fields)]
                called = {"co_name": "__new__", "co_qualname": f"{name}.__new__", "co_filename": "<fields>"}
                code = model.__code__.replace(co_varnames=("_cls", *fields), **called)
                body["__new__"] = FunctionType(code, model.__globals__, "__new__", tuple(defaults.values()))
            else:
                body["__new__"] = namedtuple(name, fields, defaults=defaults.values()).__new__
            body |= {each: _tuplegetter(at, None) for at, each in enumerate(fields)}
            body |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            return type.__new__(type, name, (_Fields,), body)

    class NamedTuple(metaclass=_Named):
        """A named tuple like that of `typing.NamedTuple`, for this package's own classes."""


_KINDS = ("sm", "compute")


class Target(NamedTuple):
    """A compute capability as compilers name it.

    Args:
        major: Major version of the compute capability.
        minor: Minor version, 0 to 9.
        suffix: `""`, `"a"` (architecture-specific) or `"f"` (family-specific).
        virtual: True for `compute_XY`: the code is PTX and still has to be linked for a device.
    """

    major: int
    minor: int
    suffix: str = ""
    virtual: bool = False

    @property
    @functools.cache  # noqa: B019 (one item for each target)
    def name(self) -> str:
        """The spelling that NVRTC and nvJitLink take: `sm_90a`, `compute_80`; `any` for `NO_TARGET`."""
        if not self.major:
            return "any"
        return f"{'compute' if self.virtual else 'sm'}_{self.major}{self.minor}{self.suffix}"

    @property
    def cc(self) -> tuple[int, int]:
        """The compute capability as (major, minor)."""
        return self.major, self.minor

    @property
    def plain(self) -> Target:
        """The same compute capability without a suffix; devices of this target run its code too."""
        return Target(self.major, self.minor, "", self.virtual)

    @property
    def as_virtual(self) -> Target:
        """The PTX target of the same compute capability."""
        return Target(self.major, self.minor, self.suffix, True)

    def runs_on(self, cc: tuple[int, int]) -> bool:
        """Check whether a cubin of this target loads on a device of compute capability `cc`.

        Source:
            CUDA C++ Programming Guide, "Binary Compatibility": same major, same or later minor; with
            suffix `a` the very same capability, with `f` the same family (taken here as the same major).
        """
        if self.virtual:
            return False
        if self.suffix == "a":
            return self.cc == cc
        return self.major == cc[0] and self.minor <= cc[1]

    def fallbacks(self) -> Iterator[Target]:
        """Yield other targets whose code a device of this one runs, best first: lower minors of its major, then PTX."""
        for minor in range(self.minor, -1, -1):
            plain = Target(self.major, minor)
            yield from (plain, plain._replace(suffix="f"))
        if self.suffix:
            yield self.as_virtual
        for minor in range(self.minor, -1, -1):
            yield Target(self.major, minor, virtual=True)
        for number in reversed(_OLDER):
            if number // 10 < self.major:
                yield Target(*divmod(number, 10), virtual=True)

    def __str__(self) -> str:
        return self.name


NO_TARGET = Target(0, 0)
"""The target of bytes that are for no particular device; `parse_target` never returns it."""

_OLDER = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
"""All compute capabilities so far, as major * 10 + minor; the driver compiles PTX of one for any later device."""


def parse_target(spelling: object) -> Target:
    """Read one target as users write it.

    Args:
        spelling: `"sm_90"`, `"sm_90a"`, `"compute_80"`, `(9, 0)` or a `Target`.

    Raises:
        OptionError: The spelling is none of these.
    """
    if isinstance(spelling, Target):
        return spelling
    if isinstance(spelling, tuple) and len(spelling) == 2 and all(type(part) is int for part in spelling):
        major, minor = spelling
        if 1 <= major <= 99 and 0 <= minor <= 9:
            return Target(major, minor)
    if isinstance(spelling, str):
        kind, _, rest = spelling.partition("_")
        digits = rest.rstrip("af")
        suffix = rest[len(digits) :]
        is_number = 2 <= len(digits) <= 3 and digits.isascii() and digits.isdecimal() and digits[0] != "0"
        if kind in _KINDS and is_number and len(suffix) <= 1:
            return Target(int(digits[:-1]), int(digits[-1]), suffix, kind == "compute")
    raise OptionError(
        f"cannot read arch {spelling!r}",
        "it is not a compute capability",
        _meant(spelling) or 'write "auto", "native", "sm_90", "sm_90a", "compute_80", "9.0" or (9, 0)',
    )


def _meant(spelling: object) -> str:
    """The hint for a spelling that names one target or several in another way; "" for others."""
    import re

    words = re.split(r"[,;\s]+", spelling.strip()) if isinstance(spelling, str) else []
    if len(words) > 1:
        return f"give a list: {words}"
    found = re.match(r"(?i)(sm|compute|cc|lto)?[_ ]?([0-9]{1,2})\.?([0-9])([af]?)(?![\w.])", str(spelling).strip())
    kind = "compute" if found and str(found[1]).lower() == "compute" else "sm"
    return f'did you mean "{kind}_{found[2]}{found[3]}{found[4]}"?' if found else ""


def read_arch(arch: object) -> tuple[Target, ...]:
    """The targets that `arch` names; none for "auto" and "native"."""
    if arch is None or arch == "auto" or arch == "native":
        return ()
    if isinstance(arch, (list, set, frozenset)):
        if not arch:
            raise OptionError(f"cannot use arch={arch!r}", "it names no target", 'write "auto" or ["sm_80", "sm_90"]')
        return tuple(dict.fromkeys(map(read_target, arch)))
    return (read_target(arch),)


def read_target(spelling: object) -> Target:
    """Read one target as `parse_target`, or a compute capability alone: `8.6`, `"8.6"`, `"86"`, `"9.0a"`."""
    text = str(spelling) if isinstance(spelling, (str, float)) else ""
    is_bare = text[:1].isdecimal() and text.replace(".", "", 1).rstrip("af").isdecimal()
    return parse_target("sm_" + text.replace(".", "", 1) if is_bare else spelling)


class Choice(NamedTuple):
    """The target to build for on a device, and other targets whose code it runs.

    Args:
        target: The target to build for.
        ptx_target: The virtual target to compile to first; None for none.
        alternatives: Targets whose stored code is always accepted as well.
        fallbacks: Returns the targets whose stored code is accepted where nothing can be compiled.
    """

    target: Target
    ptx_target: Target | None = None
    alternatives: tuple[Target, ...] = ()
    fallbacks: Callable[[], Iterable[Target]] = tuple


def choose_for_device(arch: tuple[Target, ...], device: Target, kernel: str) -> Choice:
    """Choose the target to build for a device: one that `arch` names, or else the device's own.

    Args:
        arch: Targets that the user named; none for "auto".
        device: Target of the device.
        kernel: Name of the kernel, for the message.

    Raises:
        LaunchError: Nothing that `arch` names runs on the device.
    """
    of_its_own = _own_choices.get(device)
    if of_its_own is None:
        plain = (device.plain,) if device.suffix else ()
        of_its_own = _own_choices[device] = Choice(device, None, plain, device.fallbacks)
    if not arch:
        return of_its_own
    real, virtual = real_target(arch, device.cc), ptx_target(arch, device)
    if real is not None:
        return Choice(real)
    if virtual is not None:
        return Choice(device, virtual, of_its_own.alternatives, lambda: (virtual,))
    names = ", ".join(each.name for each in arch)
    raise LaunchError(
        f"cannot launch {kernel} on a device of {device}",
        f"it is built only for {names}",
        "leave arch= out, or add this device's",
    )


_own_choices: dict[Target, Choice] = {}
"""The choice for each device, where `arch` names no target."""


def real_target(arch: tuple[Target, ...], cc: tuple[int, int]) -> Target | None:
    """The best of the targets that `arch` names whose cubins a device of this compute capability loads."""
    real = [each for each in arch if each.runs_on(cc)]
    return max(real, key=lambda each: (each.cc, each.suffix)) if real else None


def ptx_target(arch: tuple[Target, ...], target: Target) -> Target | None:
    """The virtual target that `arch` names as intermediate PTX for a real target; None if it names none."""
    if target.virtual or real_target(arch, target.cc) is not None:
        return None
    virtual = [each for each in arch if each.virtual and each.cc <= target.cc]
    fitting = [each for each in virtual if not each.suffix or each._replace(virtual=False).runs_on(target.cc)]
    return max(fitting, default=None)


# -- events ----------------------------------------------------------------------------------------------------------


class EventKind(StrEnum):
    """The kinds of events, with the fields that each carries.

    Attributes:
        HIT: A resolution was served: kernel, key, target, source ("memory", "disk", ...), compile_time_s, load_time_s.
        MISS: A resolution found nothing: kernel, key, target, reason (text) and reasons (`Reason` values).
        WAITED: Another thread or process compiled it meanwhile: kernel, key, waited_s. Or a wait above a second for
            something else: what, waited_s.
        COMPILE_BEGIN, COMPILE_END, COMPILE_FAILED: kernel, key, target, and seconds or error.
        LOAD: A module was loaded on a device: kernel, key, device, load_time_s.
        STORED: An entry was published: key, size_bytes.
        EVICTED: Entries were removed to keep the limits: entries, size_bytes.
        DAMAGED: An entry or manifest failed verification and was quarantined: key, reason.
        UNCACHEABLE: A kernel runs uncached: kernel, reason.
        FALLBACK: A kernel was built in another way than requested, and works: kernel, target, reason. No error.
        TROUBLE: An operation of the cache failed and was skipped: where, error; errno, for an error of the system.
    """

    HIT = "hit"
    MISS = "miss"
    WAITED = "waited"
    COMPILE_BEGIN = "compile_begin"
    COMPILE_END = "compile_end"
    COMPILE_FAILED = "compile_failed"
    LOAD = "load"
    STORED = "stored"
    EVICTED = "evicted"
    DAMAGED = "damaged"
    UNCACHEABLE = "uncacheable"
    FALLBACK = "fallback"
    TROUBLE = "trouble"


class Event(NamedTuple):
    """Something that happened in the cache."""

    kind: EventKind
    fields: Mapping[str, Any] = {}


Emit: TypeAlias = Callable[[Event], None]
"""The function that takes events: it is called with one and must not raise."""


IN_USER_CODE: dict[int, int] = {}
"""Threads, by `threading.get_ident()`, that run user code called by this package (subscribers, log and warning
handlers, functions that return source), with the depth of such calls: other threads do not wait long for them."""


LONG_WAIT_S = 1.0
"""Waits of this many seconds are events, and counted."""


def tell_wait(emit: Emit, what: str, waited_s: float) -> bool:
    """Emit the event of a wait if it was long. Returns True if it was.

    Args:
        emit: Takes the event.
        what: What was waited for.
        waited_s: For how many seconds.
    """
    if is_long := waited_s >= LONG_WAIT_S:
        emit(Event(EventKind.WAITED, {"what": what, "waited_s": waited_s}))
    return is_long


def trouble(where: str, error: object) -> Event:
    """Make the event of an operation that failed and was skipped."""
    fields: dict[str, Any] = {"where": where, "error": str(error)}
    if isinstance(error, OSError) and error.errno:
        fields["errno"] = error.errno
    return Event(EventKind.TROUBLE, fields)
