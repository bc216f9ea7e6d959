"""The reasons for which a kernel was not found, as values.

Promise     A reason never holds the value of an environment variable, nor text that the user gave to `depends`.
Not here    Finding them (explanation.nearest, explanation.diff), and the words for them (explanation.text).
"""

from __future__ import annotations

from enum import StrEnum

from . import NamedTuple


class ReasonKind(StrEnum):
    """Kinds of reason for a miss; in parentheses what `name`, `old`, `new` and `where` of the reason hold.

    NEVER_STORED        Nothing of this kernel is stored.
    OTHER_TARGETS       A bundle (name) has it for other targets than the requested one (new: which).
    EVICTED_OR_CLEARED  It was stored, and is not there any more.
    DAMAGED             It is stored, but damaged (new: how).
    SOURCE_CHANGED      A text or function (name; the first line that differs; its place).
    VALUE_CHANGED       A global, a closure variable, a default that a Numba kernel reads (name, values).
    HEADER_CHANGED      A header's content changed, or it cannot be read (path, digests).
    HEADER_SHADOWED     A new file is found before the header that was read (path).
    HEADER_ANSWER       A `__has_include` has another result (path, results).
    HEADER_SEARCH       The include folders differ, or paths that led to one file lead to several.
    TOOLKIT             The toolkit's headers differ (root, identities).
    ENTRY               Another kernel of the source is requested.
    OPTIONS             A compile option differs (name, values).
    TARGET              The stored entry is for another target.
    SIGNATURE           The stored entry is for other argument types.
    COMPILER            A compiler library is another build, or missing (name, builds).
    VERSION             A package has another version, or Python has (name, versions).
    ENVIRONMENT         A variable that the compilers read differs (name; its value where that is no secret).
    LINK_INPUT          A linked file differs (name, digests).
    COMPONENT           A component of `get_or_build` differs (name, values, or the first line that differs).
    DEPENDS             A value or file of `depends` differs (position).
    PLACE               The source's file, line or folder, which are in the line table, differ.
    MODE                In this mode the cache is not read (new: the mode).
    UNCACHEABLE         It cannot be keyed (new: why).
    UNKNOWN             The stored entry lacks the record needed to tell.
    """

    NEVER_STORED = "never_stored"
    OTHER_TARGETS = "other_targets"
    EVICTED_OR_CLEARED = "evicted_or_cleared"
    DAMAGED = "damaged"
    SOURCE_CHANGED = "source_changed"
    VALUE_CHANGED = "value_changed"
    HEADER_CHANGED = "header_changed"
    HEADER_SHADOWED = "header_shadowed"
    HEADER_ANSWER = "header_answer"
    HEADER_SEARCH = "header_search"
    TOOLKIT = "toolkit"
    ENTRY = "entry"
    OPTIONS = "options"
    TARGET = "target"
    SIGNATURE = "signature"
    COMPILER = "compiler"
    VERSION = "version"
    ENVIRONMENT = "environment"
    LINK_INPUT = "link_input"
    COMPONENT = "component"
    DEPENDS = "depends"
    PLACE = "place"
    MODE = "mode"
    UNCACHEABLE = "uncacheable"
    UNKNOWN = "unknown"


class Reason(NamedTuple):
    """One reason why a kernel was not found.

    Args:
        kind: The kind of reason.
        component: The component of the key that differs; "" for a reason that is in none.
        name: The part of it: name of an option, a header, a library, a variable.
        old: The value in the stored entry, as text; None if that has none.
        new: The value in the request; None if that has none.
        where: File and line, where they are known.
    """

    kind: ReasonKind
    component: str = ""
    name: str = ""
    old: str | None = None
    new: str | None = None
    where: str = ""

    def to_dict(self) -> dict[str, str | None]:
        """Every field under its name."""
        return {**self._asdict(), "kind": self.kind.value}
