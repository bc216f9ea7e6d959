"""The part of a toolkit's tree that a compile used: one value, compared by stat where stats can be trusted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from numba_kcache.headers import tree_parts
from numba_kcache.headers.open_watch import OpenWatch
from numba_kcache.headers.tree_parts import TreePart, look_at, part_now, part_of, paths_in
from tests.support.header_projects import later_ns

PATHS = ("a.h", "sub", "sub/absent.h", "sub/b.h")


def tree(root: Path) -> Path:
    """Two headers, one of them in a folder."""
    (root / "sub").mkdir(parents=True)
    (root / "a.h").write_text("#define A 1\n")
    (root / "sub/b.h").write_text("#define B 1\n")
    return root


def part(root: Path) -> TreePart:
    """Make a part with both headers, the folder, and a path without a file."""
    return part_of(0, {path: look_at(str(root / path)) for path in PATHS}, later_ns())


def edit_in_place(root: Path) -> None:
    path = root / "a.h"
    before = path.stat()
    path.write_text("#define A 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "edit with the old size and mtime": edit_in_place,
    "file where there was none": lambda root: (root / "sub/absent.h").write_text(""),
    "file more in a folder that counts": lambda root: (root / "sub/more.h").write_text(""),
    "file gone": lambda root: (root / "sub/b.h").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_gives_another_identity(tmp_path: Path, change: str) -> None:
    """Without a clock, stats show that something changed, and content shows what."""
    root = tree(tmp_path / "kit")
    known = part(root)
    assert part_now(known, str(root), later_ns()) == known

    CHANGES[change](root)

    assert part_now(known, str(root), later_ns()).identity != known.identity


def test_file_that_was_not_looked_at_does_not_count(tmp_path: Path) -> None:
    """A file that the compile did not read does not affect it."""
    root = tree(tmp_path / "kit")
    known = part(root)

    (root / "other.h").write_text("")

    assert part_now(known, str(root), later_ns()).identity == known.identity


def test_same_tree_elsewhere_has_the_same_identity(tmp_path: Path) -> None:
    """Paths, times and inodes of an environment, container or machine are not in it."""
    known = part(tree(tmp_path / "kit"))
    shutil.copytree(tmp_path / "kit", tmp_path / "other")

    found = part_now(known, str(tmp_path / "other"), later_ns())

    assert found.identity == known.identity
    assert found.stat != known.stat


def test_unchanged_tree_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal stats are enough once they are two seconds old."""
    root = tree(tmp_path / "kit")
    young = part_of(0, {path: look_at(str(root / path)) for path in PATHS}, (root / "a.h").stat().st_ctime_ns)
    assert young.stat == ""
    known = part(root)
    monkeypatch.setattr(tree_parts, "read_steady", None)

    assert part_now(known, str(root), later_ns()) == known


def test_everything_is_each_folder_and_each_file(tmp_path: Path) -> None:
    """Paths are relative to the root, which is included."""
    root = str(tree(tmp_path / "kit"))

    assert sorted(paths_in(root, with_files=False)) == [".", "sub"]
    assert sorted(paths_in(root, with_files=True)) == [".", "a.h", "sub", "sub/b.h"]


def test_watch_lists_what_was_opened_in_a_tree(tmp_path: Path) -> None:
    """Paths are relative to the root, however that is spelled; an unwatched tree has no list."""
    root = tree(tmp_path / "kit")
    (tmp_path / "link").symlink_to("kit")
    watch = OpenWatch((), [str(root)])

    (tmp_path / "link/sub/b.h").read_text()

    assert watch.opened_in(str(tmp_path / "link")) == ["sub/b.h"]
    assert watch.opened_in(str(tree(tmp_path / "unwatched"))) is None
    watch.close()
