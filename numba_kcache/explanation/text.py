"""Put an explanation into words.

Promise     `str()` of an explanation has the outcome, the source of a hit, and on a miss every reason with old value,
            new value, place and a next step. `to_dict()` holds plain values only.
Not here    Finding the reasons (nearest, diff).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import plain
from ..model import NamedTuple
from ..model.reason import Reason, ReasonKind
from ..observe.text import ALONE, REASONS, bytes_text, seconds_text, shows_text

_SHOWN = 5
"""Reasons that a log line names; an explanation names all."""


class Stored(NamedTuple):
    """An entry that is stored, as an explanation shows it.

    Args:
        key: Its key.
        kernel: Label of the kernel; "" if it is not known.
        target: Target of its code.
        created_s: Time at which it was stored, in seconds since the epoch; 0 if it is not known.
        compile_time_s: Seconds that its compilation took.
        size_bytes: Size of its cubin.
    """

    key: str
    kernel: str = ""
    target: str = ""
    created_s: float = 0.0
    compile_time_s: float = 0.0
    size_bytes: int = 0


@shows_text
class Explanation(NamedTuple):
    """The outcome of looking for a kernel in the cache, with the reasons of a miss; or the facts of a stored entry.

    Args:
        kernel: Label of the kernel.
        target: The requested target.
        key: The requested key; "" if it cannot be keyed, or its headers are not known before it is compiled.
        outcome: `"hit"`, `"miss"`, `"uncacheable"`, or, for a key, `"stored"` or `"not stored"`.
        source: Source of a hit: `"memory"`, `"disk"` or `"tier"`; "" for the others.
        reasons: Reasons for a miss: every difference from `nearest`.
        nearest: The stored entry that is most like it.
        compiled_for: The reasons for which this process compiled it.
        entry: The entry itself, if it is stored.
        others: Other stored entries of the same kernel, each with the differences from it to this one.
        covered: Names of the inputs that cannot be read, and that `depends=` represents.
        imported: For a kernel of `numba_kcache.cuda`, why this package imported Numba; "" if it did not.
    """

    kernel: str
    target: str
    key: str
    outcome: str
    source: str = ""
    reasons: tuple[Reason, ...] = ()
    nearest: Stored | None = None
    compiled_for: tuple[Reason, ...] = ()
    entry: Stored | None = None
    others: tuple[tuple[Stored, tuple[Reason, ...]], ...] = ()
    covered: tuple[str, ...] = ()
    imported: str = ""

    @property
    def is_hit(self) -> bool:
        """True when the entry is found, so that nothing is compiled."""
        return self.outcome in ("hit", "stored")

    def to_dict(self) -> dict[str, Any]:
        """List every field under its name, as plain values."""
        return {
            **self._asdict(),
            "reasons": _plain(self.reasons),
            "compiled_for": _plain(self.compiled_for),
            "nearest": self.nearest and self.nearest._asdict(),
            "entry": self.entry and self.entry._asdict(),
            "others": [{**stored._asdict(), "reasons": _plain(reasons)} for stored, reasons in self.others],
        }

    def __str__(self) -> str:
        wanted = f"{self.kernel or 'an entry'}{f' for {self.target}' if self.target else ''}"
        lines = [f"{wanted}: {self.outcome}{f', from {self.source}' if self.source else ''}"]
        if self.key:
            lines.append(f"  key {self.key}")
        if self.imported:
            lines.append(f"  Numba was imported for {self.imported}")
        if self.covered:
            lines.append(f"  depends= represents: {', '.join(self.covered)}")
        if self.entry is not None:
            lines.append(f"  {_facts(self.entry)}")
        if self.nearest is not None:
            lines.append(f"  nearest stored entry {self.nearest.key[:12]} for {self.nearest.target}")
        lines += [line for each in self.reasons for line in _lines(each)]
        if self.compiled_for:
            lines.append("  this process compiled it, because:")
            lines += [f"  {line}" for each in self.compiled_for for line in _lines(each)]
        if self.others:
            lines.append("  other entries of this kernel, and what changed from them to this one:")
            for stored, reasons in self.others:
                lines.append(f"    {stored.key[:12]} for {stored.target}, {_facts(stored)}")
                lines += [f"      {text_of(each)}" for each in reasons]
        return "\n".join(map(plain, lines))


def _plain(reasons: Sequence[Reason]) -> list[dict[str, str | None]]:
    return [each.to_dict() for each in reasons]


def _facts(stored: Stored) -> str:
    from datetime import UTC, datetime

    when = f"{datetime.fromtimestamp(stored.created_s, UTC):%Y-%m-%d %H:%M} UTC" if stored.created_s else "unknown"
    return f"stored {when}, compiled in {seconds_text(stored.compile_time_s)}, {bytes_text(stored.size_bytes)} of code"


def _lines(reason: Reason) -> list[str]:
    _row, _words, hint = REASONS[reason.kind]
    return [f"  - {text_of(reason)}", f"      {hint}"]


def text_of(reason: Reason) -> str:
    """Put one reason into words, on one line."""
    kind, name, old, new = reason.kind, reason.name, reason.old, reason.new
    words = REASONS[kind][1]
    if kind in ALONE:
        return words.format(name=name, new=new)
    subject = " ".join(filter(None, (words, name)))
    if reason.where:
        subject += f" at {reason.where}"
    if old == new:
        return f"{subject} differs"
    if old is None:
        return f"{subject}: {_quoted(kind, new)} is new"
    if new is None:
        return f"{subject}: {_quoted(kind, old)} is gone"
    return f"{subject}: {_quoted(kind, old)} is now {_quoted(kind, new)}"


def _quoted(kind: ReasonKind, text: str | None) -> str:
    is_line = kind is ReasonKind.SOURCE_CHANGED and not str(text).startswith("sha256 ")
    return f"`{text}`" if is_line else str(text)


def summary(reasons: Sequence[Reason]) -> str:
    """Put reasons into a log line: the first few, and how many more there are."""
    texts = [text_of(each) for each in reasons[:_SHOWN]]
    more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
    return "; ".join([*texts, *more])
