"""The warm check of a transcript: each of its comparisons is needed, and no stored value makes it fail."""

from __future__ import annotations

import inspect
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.headers import check as header_check
from numba_kcache.headers.check import Match, Mismatch, check_transcript
from numba_kcache.headers.file_identity import FileStat, is_settled, read_steady, stat_of
from numba_kcache.headers.roots import Place, Roots
from numba_kcache.headers.transcript import FOLDER, Toolkit, Transcript, transcript_from_json, transcript_to_json
from tests.support.header_projects import SCENARIOS, Project, in_tree, one_header

COMPARISONS = {
    "layout": ("if known.own != len(roots.own) or known.layout != (", "if () == ("),
    "toolkit": ("if self.toolkit.identity != known.toolkit.identity:", "if False:"),
    "nothing there": ("if _is_file(within + name):", "if False:"),
    "unchanged stat": ("if stat == known.stats.get(place):", "if True:"),
    "content": ("if content != answer:", "if False:"),
    "readable": ('yield Mismatch("header_changed", path, answer, why_of', '("header_changed", path, answer, why_of'),
    "one file or several": ("if groups != {frozenset(each)", "if False and groups != {frozenset(each)"),
}  # fmt: skip
"""Each comparison of the check, and what takes it out."""


def without(comparison: str) -> Callable[..., Match | Mismatch]:
    """The check without one of its comparisons."""
    old, new = COMPARISONS[comparison]
    source = inspect.getsource(header_check)
    assert source.count(old) == (2 if comparison == "unchanged stat" else 1)
    names = {"__name__": header_check.__name__, "__package__": header_check.__package__}
    exec(source.replace(old, new).replace('f"""', '"""'), names)
    return names["check_transcript"]  # type: ignore[return-value]


@pytest.mark.slow
def test_check_needs_each_comparison(tmp_path: Path) -> None:
    """Without the comparison, stale code is served in some scenario."""
    never_stale = {comparison: without(comparison) for comparison in COMPARISONS}
    for number, scenario in enumerate(SCENARIOS):
        project = Project(tmp_path / str(number))
        scenario.prepare(project)
        headers = project.learn()
        scenario.change(project)
        assert isinstance(project.check(headers), Mismatch)
        for comparison, check in [*never_stale.items()]:
            if type(check(headers, project.roots, now_ns=0)).__name__ == "Match":
                del never_stale[comparison]
        if not never_stale:
            break

    assert [*never_stale] == []


def test_every_comparison_is_taken_out_once() -> None:
    """The list above has every comparison of the check, that is, every place where it reports a mismatch."""
    source = inspect.getsource(header_check)

    assert source.count("yield Mismatch(") == len(COMPARISONS)  # one leads to others; a folder has a test below


def known(tmp_path: Path, **more: Any) -> tuple[Transcript, Roots]:
    """A transcript of one header, with the digest of another content."""
    roots = Roots((str(tmp_path),))
    return Transcript(1, roots.layout(), {Place(0, "h"): "0" * 64}, **more), roots


@pytest.mark.parametrize("field", FileStat._fields)
def test_stat_that_differs_in_one_field_is_not_believed(tmp_path: Path, field: str) -> None:
    """The content is then read, which here differs from the record."""
    (tmp_path / "h").write_text("new")
    now = stat_of(os.stat(tmp_path / "h"))
    transcript, roots = known(tmp_path, stats={Place(0, "h"): now})
    assert check_transcript(transcript, roots, now_ns=0) == Match()

    moved = now._replace(**{field: getattr(now, field) - 1})
    outcome = check_transcript(transcript._replace(stats={Place(0, "h"): moved}), roots, now_ns=0)

    assert isinstance(outcome, Mismatch)
    assert outcome.kind == "header_changed"


def test_stat_of_a_young_file_is_not_kept(tmp_path: Path) -> None:
    """A further write within two seconds, or by a mapping until the page is written back, could leave the same stat;
    without a ctime set by the kernel no age is enough."""
    path = tmp_path / "h"
    path.write_text("")
    stat, _data = read_steady(str(path))

    for kind, seconds in ({}, 90), ({"is_folder": True}, 2):
        later_ns = stat.ctime_ns + seconds * 10**9
        assert not is_settled(stat, later_ns - 1, **kind)
        assert is_settled(stat, later_ns, **kind)
    assert not is_settled(stat_of(os.stat("/proc/self/status")), later_ns + 10**12)


def test_stat_of_a_file_that_is_mapped_for_writing_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a page that is already dirty sets no time: the content is compared, and the edit is seen."""
    monkeypatch.setattr("tests.support.header_projects.later_ns", time.time_ns)
    project = Project(tmp_path)
    one_header(project)
    path = tmp_path / "second/header.h"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[14:15] = b"1"
        headers = project.learn()
        assert project.check(headers) == Match()
        before = stat_of(path.stat())

        page[14:15] = b"2"

        assert stat_of(path.stat()) == before, "the page was not dirty: this shows nothing"
        outcome = project.check(headers)
    assert isinstance(outcome, Mismatch)
    assert outcome.kind == "header_changed"


def test_link_into_another_file_system_is_not_taken_for_a_local_file(tmp_path: Path) -> None:
    """The folder is local, the file is not: its times cannot be trusted."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.NamedTemporaryFile(dir=other) as file:
        (tmp_path / "h").symlink_to(file.name)
        stat, _data = read_steady(str(tmp_path / "h"))

        assert not is_settled(stat, stat.ctime_ns + 10**12)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to itself", "too long"])
def test_header_that_became_something_else_is_a_difference(tmp_path: Path, kind: str) -> None:
    """A file that cannot be read counts as changed: no exception, and no blocking on a FIFO."""
    project = Project(tmp_path)
    one_header(project)
    headers = project.learn()
    path = tmp_path / "second/header.h"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to itself":
        path.symlink_to(path)
    else:
        headers = headers._replace(places={Place(2, "x" * 5000): "0" * 64})

    outcome = project.check(headers)

    assert isinstance(outcome, Mismatch)
    assert outcome.kind == "header_changed"
    assert (outcome.new == FOLDER) == (kind == "folder")


def test_folder_in_place_of_a_header_shadows_nothing(tmp_path: Path) -> None:
    """NVRTC skips a folder that has the header's name."""
    project = Project(tmp_path)
    one_header(project)
    headers = project.learn()

    (tmp_path / "first/header.h").mkdir()

    assert isinstance(project.check(headers), Match)


def test_unchanged_folder_answers_for_the_names_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 headers under 20 folders cost one stat for each folder and each header."""
    project = Project(tmp_path)
    project.folders = ["source", *(f"f{number}" for number in range(20))]
    names = [f"h{number}.h" for number in range(500)]
    project.source = "".join(f"#include <{name}>\n" for name in names) + 'extern "C" __global__ void k() {}\n'
    for name in names:
        project.write(f"f19/{name}", "")
    for folder in project.folders:
        project.write(f"{folder}/readme", "")
    headers = project.learn()
    asked = list[str]()
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: asked.append(str(path)) or real(path, **more))

    assert project.check(headers) == Match()

    assert len([each for each in asked if each.startswith(str(tmp_path))]) <= len(names) + len(project.folders)


def test_unchanged_toolkit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal stats are enough once they are two seconds old; other times with the same contents give the same
    identity."""
    project = Project(tmp_path)
    in_tree(project)
    headers = project.learn()
    assert headers.toolkit
    assert headers.toolkit.stat
    for path in tmp_path.rglob("*.h"):
        path.touch()
    outcome = project.check(headers)
    assert isinstance(outcome, Match)
    assert outcome.refreshed
    monkeypatch.setattr(header_check, "read_steady", None)

    assert project.check(outcome.refreshed) == Match()


def test_unchanged_toolkit_is_not_read_in_the_order_in_which_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that lack the same names are stored side by side, whichever folder is between them."""
    lacking = {Place(0, "a"): ("x",), Place(0, "b"): ("y",), Place(0, "c"): ("x",)}
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    (tmp_path / "h").write_text("")
    roots, later_ns = Roots((), (str(tmp_path),)), time.time_ns() + 10**10
    part = header_check.toolkit_now(Toolkit("", (Place(0, "h"),), lacking), roots, later_ns, {})
    stored = transcript_from_json(
        json.loads(json.dumps(transcript_to_json(Transcript(0, roots.layout(), {}, {}, (), part))))
    )
    assert stored.toolkit
    assert [*stored.toolkit.absent] != [*lacking]
    monkeypatch.setattr(header_check, "read_steady", None)

    assert header_check.toolkit_now(stored.toolkit, roots, later_ns, {}) == part


def test_file_of_many_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged transcript that names one file a thousand times does not delay a launch; the sum of all files is
    limited."""
    (tmp_path / "h").write_text("text")
    roots, read = Roots((str(tmp_path),)), list[str]()
    real = header_check.read_steady
    monkeypatch.setattr(header_check, "read_steady", lambda path: read.append(path) or real(path))
    content = header_check.digest(b"text")
    transcript = Transcript(1, roots.layout(), {Place(0, "./" * each + "h"): content for each in range(1000)})

    list(header_check.Checking(roots, 0).differences(transcript))
    assert len(read) == 1
    monkeypatch.setattr(header_check, "MOST_BYTES", 3)
    outcome = check_transcript(transcript, roots, now_ns=0)
    assert isinstance(outcome, Mismatch)
    assert outcome.new == "there is too much to read"


def test_folder_within_a_toolkit_that_was_not_asked_is_stored() -> None:
    """The layout names the toolkit's folder by its index, though only the user's folders are listed."""
    transcript = Transcript(1, ((1, "nrt"),))

    assert transcript_from_json(json.loads(json.dumps(transcript_to_json(transcript)))) == transcript


def learned(tmp_path: Path) -> Any:
    """A stored transcript with something in every field."""
    project = Project(tmp_path)
    in_tree(project)
    project.folders = ["source", "first", "second", "tree/include"]
    project.source += '#include "header.h"\n#include "again.h"\n#include "sub/x.h"\n#if __has_include("y.h")\n#endif\n'
    project.write("second/header.h", "#pragma once\n")
    project.link("second/again.h", "header.h")
    project.write("second/sub/x.h", "")
    stored = json.loads(json.dumps(transcript_to_json(project.learn())))
    assert all(value or value is False for value in stored.values())
    assert transcript_from_json(stored)
    return stored


@pytest.mark.slow
def test_damaged_transcript_is_refused_and_never_raises_anything_else(tmp_path: Path) -> None:
    """Any value in place of any other gives a transcript of the same shape, or ValueError."""
    stored = learned(tmp_path)
    strange = [None, True, -5, 1 << 70, 1.5, "", "\0", "x" * 20_000, [], [[]], {}, [None], [[-3, "x"]], [[99, "x"]]]

    def damaged(value: Any) -> list[Any]:
        found = list(strange)
        if isinstance(value, dict):
            for key in value:
                found += [{**value, key: each} for each in damaged(value[key])]
                found.append({other: value[other] for other in value if other != key})
            found.append({**value, "more": 1})
        elif isinstance(value, list):
            for index in range(len(value)):
                found += [[*value[:index], each, *value[index + 1 :]] for each in damaged(value[index])]
                found.append(value[:index] + value[index + 1 :])
        return found

    kept = 0
    folders = [str(tmp_path / each) for each in ("source", "first", "second", "tree/include")]
    roots = Roots(tuple(folders[:3]), (folders[3],))
    for each in damaged(stored):
        try:
            transcript = transcript_from_json(each)
        except ValueError:
            continue
        kept += 1
        check_transcript(transcript, roots, now_ns=time.time_ns())

    assert kept > 0
    with pytest.raises(ValueError, match="transcript"):
        transcript_from_json({**stored, "places": [[0, "h", "0" * 63]]})
    with pytest.raises(ValueError, match="transcript"):
        transcript_from_json({**stored, "places": [*stored["places"], stored["places"][0]]})
