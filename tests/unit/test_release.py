"""The release script: the changes that it dates, and what it refuses to release."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.compiling import ROOT
from tests.support.programs import program

UNRELEASED = "# Changelog\n\n## Unreleased\n\nKey schema: 1 · Store format: 1\n\n### Added\n\n- A kernel.\n"


@pytest.fixture
def release() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_changes_are_dated_below_an_empty_section(release: ModuleType) -> None:
    """The unreleased part becomes the version's, with the date; an empty section for the next changes is above it."""
    changes = release.dated(UNRELEASED, "0.1.0", "2026-11-22")

    assert changes == UNRELEASED.replace(
        "## Unreleased", "## Unreleased\n\nKey schema: 1 · Store format: 1\n\n## 0.1.0 - 2026-11-22"
    )
    assert release.problem_of(changes, "0.1.0", "1", "1") == ""


def test_nothing_is_released_twice_or_empty(release: ModuleType) -> None:
    """A section without changes, and a version that exists, are refused."""
    changes = release.dated(UNRELEASED, "0.1.0", "2026-11-22")

    with pytest.raises(SystemExit, match="no changes"):
        release.dated(changes, "0.2.0", "2026-11-23")
    with pytest.raises(SystemExit, match="has it already"):
        release.dated(changes.replace("1\n\n## 0", "1\n\n- More.\n\n## 0"), "0.1.0", "2026-11-23")


@pytest.mark.parametrize(
    ("version", "schema", "store_format", "problem"),
    [("0.2.0", "1", "1", "no section"), ("0.1.0", "2", "1", "the code has 2 and 1"), ("0.1.0", "1", "3", "1 and 3")],
)
def test_section_that_is_not_the_code_s_is_refused(
    release: ModuleType, version: str, schema: str, store_format: str, problem: str
) -> None:
    """Each release states its key schema and store format, which must be those of the code."""
    changes = release.dated(UNRELEASED, "0.1.0", "2026-11-22")

    assert problem in release.problem_of(changes, version, schema, store_format)


def test_changelog_of_this_tree_can_be_released(release: ModuleType) -> None:
    """The changes are in a section and name the key schema and store format of the code."""
    changes = release.dated((ROOT / "CHANGELOG.md").read_text(), "99.0.0", "2026-11-22")

    root = Path(ROOT)
    schema = next(
        line[9:] for line in (root / "numba_kcache/keys.py").read_text().splitlines() if line[:9] == "SCHEMA = "
    )
    assert release.problem_of(changes, "99.0.0", schema, "1") == ""


def test_wheels_are_released_for_both_processors_and_an_old_glibc(release: ModuleType) -> None:
    """A wheel that only this machine can use, or a missing one, is named."""
    wheel = "numba_kcache-1.0-cp311-abi3-{}.whl"
    old, this = "manylinux_2_17_x86_64", "linux_x86_64"
    arm = "manylinux_2_17_aarch64"

    assert release.problem_of_tags([wheel.format(old), wheel.format(arm)]) == ""
    for platforms in ((old,), (this, arm), ("manylinux_2_34_x86_64", arm), ()):
        assert "not for" in release.problem_of_tags([wheel.format(each) for each in platforms]), platforms


@pytest.mark.slow
def test_release_is_a_commit_and_a_tag(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit dates the changes; a tree with uncommitted files is refused."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b.c")
    git = [program("git"), "-C", str(tmp_path)]
    (tmp_path / "CHANGELOG.md").write_text(UNRELEASED)
    subprocess.run([*git, "init", "-q"], check=True)
    with pytest.raises(SystemExit, match="not committed"):
        release.prepare("0.1.0")
    subprocess.run([*git, "add", "CHANGELOG.md"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)

    release.prepare("0.1.0")

    tagged = subprocess.run([*git, "show", "v0.1.0:CHANGELOG.md"], check=True, capture_output=True, text=True).stdout
    assert "\n## 0.1.0 - " in tagged
    with pytest.raises(SystemExit, match="cannot release v0"):
        release.prepare("v0.2")
