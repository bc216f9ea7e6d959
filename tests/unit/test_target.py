"""Targets: one spelling each, and the devices that run their code."""

from __future__ import annotations

import pytest

from numba_kcache.errors import OptionError
from numba_kcache.model import Target, parse_target, read_arch


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        ("sm_90", Target(9, 0)),
        ("sm_90a", Target(9, 0, "a")),
        ("sm_100f", Target(10, 0, "f")),
        ("sm_121", Target(12, 1)),
        ("compute_80", Target(8, 0, "", True)),
        ("compute_120f", Target(12, 0, "f", True)),
        ((9, 0), Target(9, 0)),
        ((12, 1), Target(12, 1)),
        (Target(7, 5), Target(7, 5)),
    ],
)
def test_spelling_is_read(spelling: object, target: Target) -> None:
    """Strings as compilers write them, pairs as Numba writes them, and targets themselves."""
    assert parse_target(spelling) == target


@pytest.mark.parametrize("major", [7, 8, 9, 10, 12])
@pytest.mark.parametrize("suffix", ["", "a", "f"])
@pytest.mark.parametrize("virtual", [False, True])
def test_name_reads_back(major: int, suffix: str, virtual: bool) -> None:
    """`parse_target(t.name) == t`: the header of an artifact has only the name."""
    target = Target(major, 5, suffix, virtual)

    assert parse_target(target.name) == target
    assert str(target) == target.name


@pytest.mark.parametrize(
    "spelling",
    [
        "sm_9", "sm90", "SM_90", "sm_90 ", " sm_90", "sm_90b", "sm_90aa", "sm_90\n", "sm_-90", "sm_9000", "compute", "",
        "auto", "lto_90", "90", 90, 9.0, (9,), (9, 0, 0), (9, 10), (0, 5), (-1, 0), (100, 0), (9.0, 0), (True, 0),
        ("9", "0"), [9, 0], None, b"sm_90", "sm_\uff19\uff10",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_to_write(spelling: object) -> None:
    """The message shows the value and the accepted forms."""
    with pytest.raises(OptionError) as caught:
        parse_target(spelling)

    assert repr(spelling) in str(caught.value)
    assert "hint: write" in str(caught.value)
    assert "sm_9" in str(caught.value) or "compute_9" in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("auto", ()), ("native", ()), (8.6, ("sm_86",)), ("8.6", ("sm_86",)), ("86", ("sm_86",)), ("9.0a", ("sm_90a",)),
        (12.0, ("sm_120",)), ("120", ("sm_120",)), (10.3, ("sm_103",)), (["8.0", "sm_90"], ("sm_80", "sm_90")),
    ],
)  # fmt: skip
def test_compute_capability_alone_names_a_target(arch: object, names: tuple[str, ...]) -> None:
    """As `arch` takes it; "native" is the current device, like "auto"."""
    assert tuple(each.name for each in read_arch(arch)) == names


@pytest.mark.parametrize(
    ("name", "runs", "does_not"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (12, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("sm_90a", [(9, 0)], [(9, 1), (10, 0), (8, 9)]),
        ("sm_100a", [(10, 0)], [(10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(12, 0), (9, 0)]),
        ("compute_80", [], [(8, 0), (9, 0)]),
    ],
)
def test_code_runs_where_the_programming_guide_says(
    name: str, runs: list[tuple[int, int]], does_not: list[tuple[int, int]]
) -> None:
    """The same major and a later minor; with `a` only the same capability; PTX itself runs on no device."""
    target = parse_target(name)

    assert all(target.runs_on(cc) for cc in runs)
    assert not any(target.runs_on(cc) for cc in does_not)


def test_derived_targets() -> None:
    """The plain target drops the suffix, the virtual one keeps it."""
    target = parse_target("sm_90a")

    assert (target.plain.name, target.as_virtual.name, target.cc) == ("sm_90", "compute_90a", (9, 0))
