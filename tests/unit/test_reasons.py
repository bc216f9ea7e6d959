"""From two lists of components to reasons and their texts: every difference, each with a next step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from numba_kcache.explanation.diff import compare as compare_with
from numba_kcache.explanation.diff import kind_of, with_line
from numba_kcache.explanation.history import KINDS as COMMON_KINDS
from numba_kcache.explanation.history import ComponentRecord
from numba_kcache.explanation.text import Explanation, Stored, summary, text_of
from numba_kcache.frontends.numba.definition import component_kinds
from numba_kcache.keys import component
from numba_kcache.model import Origin
from numba_kcache.model.reason import Reason, ReasonKind
from numba_kcache.observe.text import REASONS

LONG = "x" * 5000

KINDS = COMMON_KINDS | {name: kind for name, kind in component_kinds().items() if not name.endswith((" ", "["))}


def compare(old: list[ComponentRecord], new: list[ComponentRecord]) -> list[Reason]:
    """The reasons, for a kind of kernel that has all components."""
    return compare_with(old, new, component_kinds())


def records(**values: Any) -> list[ComponentRecord]:
    """Component records as a report gives them back."""
    made = [component(name.replace("_", " "), value).record() for name, value in values.items()]
    return [tuple(each) for each in json.loads(json.dumps(made, default=bytes.hex))]


CHANGES: dict[str, tuple[Any, Any, list[tuple[ReasonKind, str, str | None, str | None]]]] = {
    "options": (
        {"fastmath": True, "std": "c++17", "defines": [["N", "1"], ["GONE", None]], "flags": ["-a"]},
        {"std": "c++20", "defines": [["N", "2"]], "flags": ["-a"], "max_registers": 32},
        [
            (ReasonKind.OPTIONS, "fastmath", "true", None),
            (ReasonKind.OPTIONS, "std", "c++17", "c++20"),
            (ReasonKind.OPTIONS, "defines N", "1", "2"),
            (ReasonKind.OPTIONS, "defines GONE", "defined", None),
            (ReasonKind.OPTIONS, "max_registers", None, "32"),
        ],
    ),
    "target": (["sm_80", "compute_75"], ["sm_90", "compute_75"], [(ReasonKind.TARGET, "", "sm_80", "sm_90")]),
    "entry": ({"name": None, "guess": "k"}, {"name": "k<int>", "guess": None}, [
        (ReasonKind.ENTRY, "guess", "k", None), (ReasonKind.ENTRY, "name", None, "k<int>"),
    ]),
    "compilers": (
        {"nvrtc": "build-id:01", "nvJitLink": None}, {"nvrtc": "build-id:02", "nvJitLink": "build-id:03"},
        [(ReasonKind.COMPILER, "nvrtc", "build-id:01", "build-id:02"),
         (ReasonKind.COMPILER, "nvJitLink", None, "build-id:03")],
    ),
    "versions": ({"numba": "1", "numpy": "2"}, {"numba": "3", "numpy": "2"}, [(ReasonKind.VERSION, "numba", "1", "3")]),
    "link": (
        [["cu", "a.cu", "0" * 64], ["object", "", "1" * 64]], [["cu", "a.cu", "2" * 64]],
        [(ReasonKind.LINK_INPUT, "link[0] a.cu", f"sha256 {'0' * 12}", f"sha256 {'2' * 12}"),
         (ReasonKind.LINK_INPUT, "link[1] object", f"sha256 {'1' * 12}", None)],
    ),
    "lines": (["k.py", 3, "/a", "/w"], ["k.py", 4, "/a", "/w"], [(ReasonKind.PLACE, "line", "3", "4")]),
    "depends": ([1, 2], [1, 3, True], [
        (ReasonKind.DEPENDS, "depends[1]", "2", "3"), (ReasonKind.DEPENDS, "depends[2]", None, "true"),
    ]),
    "argument types": (["int32", "float32"], ["int64", "float32"], [
        (ReasonKind.SIGNATURE, "", "(int32, float32)", "(int64, float32)"),
    ]),
    "signature": ("int", "long", [(ReasonKind.SIGNATURE, "", "int", "long")]),
    "numba settings": ({"OPT": 3, "BOUNDSCHECK": None}, {"OPT": 1, "BOUNDSCHECK": None}, [
        (ReasonKind.ENVIRONMENT, "numba.config.OPT", "3", "1"),
    ]),
    "paths": (["/old"], ["/new"], [(ReasonKind.HEADER_SEARCH, "", '["/old"]', '["/new"]')]),
    "kind": ("cuda", "ptx", [(ReasonKind.SOURCE_CHANGED, "", "cuda", "ptx")]),
}  # fmt: skip
"""What a component was, what it is, and what is said of it."""


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_that_differs_is_in_a_reason(name: str) -> None:
    """Each option, library, variable and position has its old and new value; equal ones are left out."""
    old, new, expected = CHANGES[name]
    common = {"kind_of_nothing": 0}

    found = compare(records(**common, **{name: old}), records(**common, **{name: new}))

    assert [each[:1] + each[2:5] for each in found] == expected
    assert {each.component for each in found} == {name}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_component_that_is_too_large_or_absent_is_told_by_digest(name: str) -> None:
    """One reason with both digests; with one, where the other request has no such component."""
    (changed,) = compare(records(**{name: LONG + "1"}), records(**{name: LONG + "2"}))
    (added,) = compare([], records(**{name: LONG}))

    assert changed.kind is added.kind is KINDS[name]
    assert str(changed.old).startswith("sha256 ")
    assert changed.old != changed.new
    assert (added.old, str(added.new)[:7]) == (None, "sha256 ")


@pytest.mark.parametrize(
    "old", [None, 7, "text", [], [[]], {}, {"defines": 3}, {"defines": [3, "ab"]}, [[1, 2, 3]], {"a": {"b": None}}]
)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_whatever_a_store_gives_back_is_compared(name: str, old: Any) -> None:
    """A forged report, or one of another version, may spoil the explanation, but raises no error."""
    found = compare([(name, "0" * 64, old)], records(**{name: "x"}))

    assert found
    assert all(text_of(each) for each in found)


def test_function_is_named_as_a_whole_only_where_no_part_of_it_differs() -> None:
    """Numba's `function` covers all functions and values, each of which says more than the whole."""
    old = [("function", "1", "a"), ("global N of m", "2", 3), ("kernel m.k", "3", "m.py:1")]
    new = [("function", "9", "b"), ("global N of m", "8", 4), ("kernel m.k", "3", "m.py:7")]

    assert compare(old, new) == [Reason(ReasonKind.VALUE_CHANGED, "global N of m", "global N of m", "3", "4")]
    assert [each.component for each in compare(old[:1], new[:1])] == ["function"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kernel m.k", ReasonKind.SOURCE_CHANGED), ("device function m.f", ReasonKind.SOURCE_CHANGED),
        ("function m.f", ReasonKind.SOURCE_CHANGED), ("global link of m", ReasonKind.VALUE_CHANGED),
        ("options of m.k", ReasonKind.OPTIONS), ("link a.cu of m.k", ReasonKind.LINK_INPUT),
        ("depends[0] a.txt", ReasonKind.DEPENDS), ("overload of global f of m", ReasonKind.SOURCE_CHANGED),
        ("kernels", ReasonKind.UNKNOWN), ("of another version", ReasonKind.UNKNOWN),
    ],
)  # fmt: skip
def test_part_is_known_by_how_its_name_starts(name: str, kind: ReasonKind) -> None:
    """A name from another version is reported as unknown."""
    assert kind_of(name, component_kinds()) is kind


OLD = "a\nb\n# c\nd\n"


@pytest.mark.parametrize(
    ("component_name", "new", "origin", "expected"),
    [
        ("source", "a\nB\n# c\nd\n", Origin("/k.py", 5), ("b", "B", "/k.py:6")),
        ("source", "a\nb\n# other\nd\n", Origin("/k.py", 5), ("# c", "# other", "/k.py:7")),
        ("kernel m.k", "a\nb\n\n# other\nD\n", Origin("/k.py", 5), ("d", "D", "/k.py:9")),
        ("source", "a\nb\n# c\n", Origin("/k.py", 5), ("d", None, "/k.py:7")),
        ("source", OLD + "e\n", Origin("/k.py", 5), (None, "e", "/k.py:9")),
        ("source", "a\n b\n# c\nd\n", Origin("", 0), ("'b'", "' b'", "line 2")),
        ("source", "x", Origin("/k.py", 0), ("a", "x", "/k.py, line 1 of the source")),
        ("source", "y" * 500, Origin("/k.py", 1), ("a", "y" * 160, "/k.py:1")),
        ("kernel m.k", OLD, Origin("/k.py", 5), ("1", "2", "/k.py:5")),
        ("source", "", Origin("/k.py", 5), ("a", None, "/k.py:5")),
    ],
)
def test_first_line_that_differs_is_told_with_its_place(
    component_name: str, new: str, origin: Origin, expected: tuple[str | None, str | None, str]
) -> None:
    """The place is in the user's file if that contains the text; comments of Python are skipped, those of CUDA C++ are
    keyed."""
    found = with_line(Reason(ReasonKind.SOURCE_CHANGED, component_name, "", "1", "2"), OLD, new, origin)

    assert (found.old, found.new, found.where) == expected


def test_place_is_told_where_the_old_text_was_not_kept() -> None:
    """This holds for a source too large to store."""
    found = with_line(Reason(ReasonKind.SOURCE_CHANGED, "source", "", "1", "2"), None, "a", Origin("/k.py", 5))

    assert found == Reason(ReasonKind.SOURCE_CHANGED, "source", "", "1", "2", "/k.py:5")


@pytest.mark.parametrize("kind", ReasonKind)
def test_each_kind_has_words_and_a_next_step(kind: ReasonKind) -> None:
    """The text is on one line, for any values."""
    for old, new in ((None, None), ("1", None), (None, "2"), ("1", "2"), ("1", "1")):
        told = text_of(Reason(kind, "c", "the-name", old, new, "/k.py:3"))
        assert told
        assert "\n" not in told
        assert "None" not in told or new is None
    assert REASONS[kind][2]


def test_words_say_old_new_and_place() -> None:
    """The text of one reason, and of several in a log line."""
    source = Reason(ReasonKind.SOURCE_CHANGED, "source", "", "a = 1;", "a = 2;", "/k.py:3")
    option = Reason(ReasonKind.OPTIONS, "options", "fastmath", None, "true")

    assert text_of(source) == "source at /k.py:3: `a = 1;` is now `a = 2;`"
    assert text_of(source._replace(old="sha256 ab", new="sha256 cd")) == (
        "source at /k.py:3: sha256 ab is now sha256 cd"
    )
    assert text_of(option) == "option fastmath: true is new"
    assert text_of(option._replace(old="true", new=None)) == "option fastmath: true is gone"
    assert summary([option] * 7) == "; ".join(["option fastmath: true is new"] * 5 + ["and 2 more"])


def test_explanation_is_a_value_that_prints() -> None:
    """Plain values in `to_dict()`; the text names key, entry, reasons with a next step, and relatives."""
    stored = Stored("ab" * 32, "m.k", "sm_80", 1_795_262_400.0, 0.25, 2048)
    reason = Reason(ReasonKind.TARGET, "target", "", "sm_80", "sm_90")
    told = Explanation(
        "m.k", "sm_90", "cd" * 32, "miss", "", (reason,), stored, (reason,), stored, ((stored, (reason,)),)
    )

    plain = json.loads(json.dumps(told.to_dict()))
    assert plain["reasons"] == plain["compiled_for"] == [reason.to_dict()]
    assert plain["entry"] == plain["nearest"] == stored._asdict()
    assert plain["others"] == [{**stored._asdict(), "reasons": [reason.to_dict()]}]
    assert str(told).splitlines() == [
        "m.k for sm_90: miss",
        f"  key {'cd' * 32}",
        "  stored 2026-11-21 12:00 UTC, compiled in 250.0 ms, 2.0 KiB of code",
        "  nearest stored entry abababababab for sm_80",
        "  - target: sm_80 is now sm_90",
        "      compile ahead for each target with .compile(arch=...)",
        "  this process compiled it, because:",
        "    - target: sm_80 is now sm_90",
        "        compile ahead for each target with .compile(arch=...)",
        "  other entries of this kernel, and what changed from them to this one:",
        "    abababababab for sm_80, stored 2026-11-21 12:00 UTC, compiled in 250.0 ms, 2.0 KiB of code",
        "      target: sm_80 is now sm_90",
    ]
