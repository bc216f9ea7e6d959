"""What a toolkit's headers ask for is scanned once for each identity of their tree."""

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
    """A store for records, and how a process that starts with it would know its trees."""

    def __init__(self) -> None:
        self.of: dict[str, Record] = {}

    def known(self, identity: str) -> TreeScans:
        tree_scans._known.clear()
        return tree_scans.tree_scans(identity, self.of.get)

    def save(self, identity: str, scans: TreeScans) -> None:
        save_scans({identity: scans}, lambda name, record: self.of.__setitem__(name, json.loads(json.dumps(record))))


def kit(root: Path) -> Project:
    """A source over a toolkit with questions, computed includes and definitions in it."""
    project = Project(root)
    in_tree(project)
    project.write("tree/include/kit/kit.h", KIT)
    project.write("tree/include/kit/more.h", '#define NEVER_USED "kit/none.h"\n')
    return project


def learned(project: Project, scans: TreeScans) -> HeaderSet | Untrackable:
    """What the scanner makes of it."""
    identity = project.trees[0].identity
    return learned_from(Survey(project.source, project.search, now_ns=later_ns(), scans={identity: scans}), None)


def test_remembered_scans_lead_to_the_same_header_set(tmp_path: Path) -> None:
    """The second process reads no file of the tree and learns what the first one did."""
    project, records = kit(tmp_path), Records()
    fresh = learned(project, scans := records.known("kit 1.0"))
    records.save("kit 1.0", scans)
    assert isinstance(fresh, HeaderSet)
    assert fresh.answers
    for path in (tmp_path / "tree").rglob("*.h"):
        path.write_text("#error not to be read\n")

    again = learned(project, known := records.known("kit 1.0"))

    assert again == fresh
    assert known.scans == scans.scans != {}
    assert known.uses == scans.uses != {}
    assert not known.is_new()


def test_another_identity_is_scanned_anew(tmp_path: Path) -> None:
    """Nothing of one toolkit is believed of another."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit 1.0"))
    records.save("kit 1.0", scans)

    assert records.known("kit 2.0").scans == {}


def test_another_scanner_scans_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may find more in the same text."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit 1.0"))
    records.save("kit 1.0", scans)
    other = tmp_path / "scanner.py"
    other.write_text("# another one")

    monkeypatch.setattr(scanner, "__file__", str(other))
    assert records.known("kit 1.0").scans == {}
    monkeypatch.setattr(scanner, "__file__", str(tmp_path / "absent"))
    records.save("kit 1.0", scans)
    assert records.known("kit 1.0").scans == {}
    assert len(records.of) == 1


def test_record_of_another_shape_is_forgotten(tmp_path: Path) -> None:
    """Whatever a store gives back: scans, or none."""
    project, records = kit(tmp_path), Records()
    learned(project, scans := records.known("kit 1.0"))
    whole: Any = json.loads(json.dumps(scans.record()))
    path = "include/kit/kit.h"
    strange: list[Any] = [
        {}, {"scans": whole["scans"]}, {**whole, "scans": []}, {**whole, "uses": {"ASK": [1]}},
        {**whole, "scans": {path: whole["scans"][path][:-1]}}, {**whole, "scans": {path: None}},
        {**whole, "scans": {path: [[[9, "x"]], *whole["scans"][path][1:]]}},
    ]  # fmt: skip

    assert TreeScans(whole).scans == scans.scans
    for each in strange:
        assert (TreeScans(each).scans, TreeScans(each).uses) == ({}, {})


def test_definition_of_the_users_that_a_toolkit_includes_is_refused(tmp_path: Path) -> None:
    """The toolkit includes what a macro of the user's names, in a way that no scanner can tell."""
    project = kit(tmp_path)
    project.write("tree/include/kit/kit.h", "#include USERS\n")
    project.source = "#define TEXT(x) #x\n#define USERS TEXT(own.h)\n" + project.source

    outcome = learned(project, TreeScans())

    assert isinstance(outcome, Untrackable)


def test_scans_are_kept_beside_the_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process with the same store finds them."""
    monkeypatch.setattr(tree_scans, "_known", {})
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void k(int *out) { *out = 1; }'
    cached_kernel(source, arch="sm_90", cache=KernelCache(tmp_path)).compile()
    first = {identity: each.scans for identity, each in tree_scans._known.items()}
    assert any(first.values())
    monkeypatch.setattr(tree_scans, "_known", {})
    toolchain = KernelCache(tmp_path).session.toolchain

    assert {identity: tree_scans.tree_scans(identity, toolchain.load_record).scans for identity in first} == first
