"""Headers of a toolkit are scanned once, and again where one was edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.headers import scanner, tree_scans
from numba_kcache.headers.dependencies import HeaderSet
from numba_kcache.headers.survey import Survey
from numba_kcache.headers.tree_scans import Record, TreeScans, save_scans
from tests.support.header_projects import Project, Untrackable, in_tree, later_ns
from tests.support.header_projects import learned as learned_from

KIT = (
    "#define ASK(_X) __has_include(_X)\n#if ASK(<own.h>)\n#endif\n"
    "#define PICK <kit/value.h>\n#include PICK\n#include <kit/more.h>\n"
)


class Records:
    """Stored scans, and the trees as a process that starts with them would know them."""

    def __init__(self) -> None:
        self.of: dict[str, Record] = {}

    def known(self, root: str) -> TreeScans:
        tree_scans.known.clear()
        return tree_scans.tree_scans(root, self.of.get)

    def save(self, root: str, scans: TreeScans) -> None:
        save_scans({root: scans}, lambda name, record: self.of.__setitem__(name, json.loads(json.dumps(record))))


def kit(root: Path) -> Project:
    """A source over a toolkit with conditions, computed includes and definitions in it."""
    project = Project(root)
    in_tree(project)
    project.write("tree/include/kit/kit.h", KIT)
    project.write("tree/include/kit/more.h", '#define NEVER_USED "kit/none.h"\n')
    return project


def learned(project: Project, scans: TreeScans) -> HeaderSet | Untrackable:
    """The scanner's header set for it."""
    return learned_from(
        Survey(project.source, project.search, now_ns=later_ns(), scans={project.trees[0]: scans}), None
    )


def test_remembered_scans_lead_to_the_same_header_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process reads and scans no header of the tree, and learns the header set of the first."""
    project, records = kit(tmp_path), Records()
    fresh = learned(project, scans := records.known("kit"))
    records.save("kit", scans)
    assert isinstance(fresh, HeaderSet)
    assert fresh.answers
    known = records.known("kit")
    monkeypatch.setattr(tree_scans, "read_steady", None)
    monkeypatch.setattr(tree_scans, "scan_includes", None)

    again = learned(project, known)

    assert again == fresh
    assert known.rows == scans.rows != {}
    assert known.uses == scans.uses != {}
    assert not known.is_new()


def test_edited_header_is_read_again(tmp_path: Path) -> None:
    """The ctime shows an edit in place, and the new scan replaces the old one."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit"))
    records.save("kit", scans)
    project.write("tree/include/kit/more.h", "#include <kit/other.h>\n")

    learned(project, known := records.known("kit"))

    path = "include/kit/more.h"
    assert known.rows[path].sha256 != scans.rows[path].sha256
    assert [include.name for include in known.rows[path].scan.includes] == ["kit/other.h"]
    assert known.is_new()


def test_young_file_is_not_remembered(tmp_path: Path) -> None:
    """A further edit within two seconds could leave the same stat."""
    kit(tmp_path)
    scans = TreeScans()
    place = tmp_path / "tree/include/kit/more.h"

    row = scans.look("include/kit/more.h", str(place), place.stat().st_ctime_ns + 1_999_999_999)

    assert row.scan.named
    assert not scans.rows


def test_another_scanner_scans_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may find more in the same text."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit"))
    records.save("kit", scans)
    other = tmp_path / "scanner.py"
    other.write_text("# another one")

    monkeypatch.setattr(scanner, "__file__", str(other))
    assert records.known("kit").rows == {}
    monkeypatch.setattr(scanner, "__file__", str(tmp_path / "absent"))
    records.save("kit", scans)
    assert records.known("kit").rows == {}
    assert len(records.of) == 1


def test_record_of_another_shape_is_forgotten(tmp_path: Path) -> None:
    """A record of any other shape gives no scans, and no exception."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit"))
    whole: Any = json.loads(json.dumps(scans.record()))
    path = "include/kit/kit.h"
    strange: list[Any] = [
        {}, {"rows": whole["rows"]}, {**whole, "rows": []}, {**whole, "uses": {"ASK": [1]}},
        {**whole, "rows": {path: whole["rows"][path][:-1]}}, {**whole, "rows": {path: None}},
        {**whole, "rows": {path: [*whole["rows"][path][:2], [[[9, "x"]], *whole["rows"][path][2][1:]]]}},
        {**whole, "rows": {path: [[1, 2, 3, 4], *whole["rows"][path][1:]]}},
    ]  # fmt: skip

    assert TreeScans(whole).rows == scans.rows
    for each in strange:
        assert (TreeScans(each).rows, TreeScans(each).uses) == ({}, {})


def test_definition_of_the_users_that_a_toolkit_includes_is_refused(tmp_path: Path) -> None:
    """The toolkit includes the name that a user's macro gives, in a way that the scanner cannot resolve."""
    project = kit(tmp_path)
    project.write("tree/include/kit/kit.h", "#include USERS\n")
    project.source = "#define TEXT(x) #x\n#define USERS TEXT(own.h)\n" + project.source

    outcome = learned(project, TreeScans())

    assert isinstance(outcome, Untrackable)


def test_scans_are_kept_beside_the_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process with the same store finds them."""
    monkeypatch.setattr(tree_scans, "known", {})
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void k(int *out) { *out = 1; }'
    cached_kernel(source, arch="sm_90", cache=KernelCache(tmp_path)).compile()
    first = {root: each.rows for root, each in tree_scans.known.items()}
    assert any(first.values())
    monkeypatch.setattr(tree_scans, "known", {})
    toolchain = KernelCache(tmp_path).session.toolchain

    assert {root: tree_scans.tree_scans(root, toolchain.load_record).rows for root in first} == first
