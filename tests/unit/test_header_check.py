"""The warm check of recorded headers: each of its comparisons is needed, and no stored value makes it fail."""

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
from numba_kcache.headers.check import Change, Match, Mismatch, check_headers, differences
from numba_kcache.headers.dependencies import HeaderFile, HeaderSet, headers_from_json, headers_to_json
from numba_kcache.headers.file_identity import FileStat, is_settled, read_steady, stat_of
from numba_kcache.headers.search import Place, Search
from tests.support.header_projects import SCENARIOS, Project, one_header

COMPARISONS = {
    "layout": ("if layout != known.layout:", "if False:"),
    "part of a tree": ("if now_there.identity != part.identity:", "if False:"),
    "forced include": ("if known.forced or search.forced:", "if False:"),
    "folder of two names": ("if of_name is None or of_name != folder_at(path_of(first, search)):", "if False:"),
    "nothing there": ("if is_there(path):", "if False:"),
    "folder there": ("if is_there(folder):", "if False:"),
    "no file there": ("if is_file(path):", "if False:"),
    "answer of __has_include": ("if any(map(is_file, paths)) != answer:", "if False:"),
    "stat": ("st_ino) != stat:", "st_ino) is None:"),
    "content": ("if found != sha256:", "if False:"),
    "readable": ("yield Mismatch(Change.GONE,", "Mismatch(Change.GONE,"),
    "one file or several": ("if same != known.same and", "if False and"),
}
"""Each comparison of the check, and what takes it out."""


def without(comparison: str) -> Callable[..., Match | Mismatch]:
    """The check without one of its comparisons."""
    old, new = COMPARISONS[comparison]
    source = inspect.getsource(differences)
    assert source.count(old) == 1
    names = dict(vars(header_check))
    exec(source.replace(old, new) + inspect.getsource(check_headers), names)
    return names["check_headers"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_check_needs_comparison(tmp_path: Path, comparison: str) -> None:
    """Without the comparison, stale code is served in some scenario."""
    check, stale = without(comparison), []
    for number, scenario in enumerate(SCENARIOS):
        project = Project(tmp_path / str(number))
        scenario.prepare(project)
        headers = project.learn()
        scenario.change(project)
        assert isinstance(project.check(headers), Mismatch)
        if isinstance(check(headers, project.search, now_ns=0), Match):
            stale.append(scenario.name)

    assert stale


def test_every_comparison_is_taken_out_once() -> None:
    """The list above has every comparison of the check, that is, every place where it reports a mismatch."""
    source = inspect.getsource(differences)

    assert source.count("yield Mismatch(") == len(COMPARISONS) - 3  # three comparisons only lead to others


@pytest.mark.parametrize("field", FileStat._fields)
def test_stat_that_differs_in_one_field_is_not_believed(tmp_path: Path, field: str) -> None:
    """The content is then read, which here differs from the record."""
    (tmp_path / "h").write_text("new")
    now = stat_of(os.stat(tmp_path / "h"))
    search = Search((str(tmp_path),))
    known = HeaderSet(search.layout(), (HeaderFile(Place(0, "h"), "0" * 64, now),))
    assert check_headers(known, search, now_ns=0) == Match()

    moved = now._replace(**{field: getattr(now, field) - 1})
    outcome = check_headers(known._replace(files=(HeaderFile(Place(0, "h"), "0" * 64, moved),)), search, now_ns=0)

    assert isinstance(outcome, Mismatch)
    assert outcome.change is Change.CONTENT


def test_stat_of_a_young_file_is_not_kept(tmp_path: Path) -> None:
    """A further write within two seconds could leave the same stat; without a ctime set by the kernel no age is
    enough."""
    path = tmp_path / "h"
    path.write_text("")
    reading = read_steady(str(path))

    assert reading.has_writer is False
    assert not is_settled(reading, str(path), reading.stat.ctime_ns + 1_999_999_999)
    assert is_settled(reading, str(path), reading.stat.ctime_ns + 2_000_000_000)
    assert not is_settled(reading, "/proc/self/status", reading.stat.ctime_ns + 2_000_000_000)


def test_stat_of_a_file_that_is_mapped_for_writing_is_not_kept(tmp_path: Path) -> None:
    """A write to a page that is already dirty sets no time: the content is compared, and the edit is seen."""
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
    assert outcome.change is Change.CONTENT


def test_link_into_another_file_system_is_not_taken_for_a_local_file(tmp_path: Path) -> None:
    """The folder is local, the file is not: its times cannot be trusted."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    with tempfile.NamedTemporaryFile(dir=other) as file:
        (tmp_path / "h").symlink_to(file.name)
        reading = read_steady(str(tmp_path / "h"))

        assert not is_settled(reading, str(tmp_path / "h"), reading.stat.ctime_ns + 10**12)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to itself", "too long"])
def test_header_that_became_something_else_is_gone(tmp_path: Path, kind: str) -> None:
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
        headers = headers._replace(files=(headers.files[0]._replace(place=Place(2, "x" * 5000)),))

    outcome = project.check(headers)

    assert isinstance(outcome, Mismatch)
    assert outcome.change is Change.GONE


def test_folder_in_place_of_a_header_shadows_nothing(tmp_path: Path) -> None:
    """NVRTC skips a folder that has the header's name."""
    project = Project(tmp_path)
    one_header(project)
    headers = project.learn()

    (tmp_path / "first/header.h").mkdir()

    assert project.check(headers) == Match()


def learned(tmp_path: Path) -> Any:
    """A stored header set with something in every field."""
    project = Project(tmp_path)
    one_header(project)
    project.source = '#include "header.h"\n#include "again.h"\n#include "sub/x.h"\n#if __has_include("y.h")\n#endif\n'
    project.link("second/again.h", "header.h")
    project.write("second/sub/x.h", "")
    stored = json.loads(json.dumps(headers_to_json(project.learn())))
    stored["trees"] = [[0, "kit", "stat", "include/x.h", "include/y.h"]]
    stored["clear"] = [[0, "cub"]]
    stored["forced"] = [[0, "first.h", True]]
    stored["folders"] = [[0, "sub/../sub", 0, "sub"]]
    assert all(value or value is False for value in stored.values())
    assert headers_from_json(stored)
    return stored


def test_damaged_header_set_is_refused_and_never_raises_anything_else(tmp_path: Path) -> None:
    """Any value in place of any other gives a header set of the same shape, or ValueError."""
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
    search = Search(tuple(str(tmp_path / each) for each in ("source", "first", "second")))
    for each in damaged(stored):
        try:
            headers = headers_from_json(each)
        except ValueError:
            continue
        kept += 1
        check_headers(headers, search, now_ns=time.time_ns())

    assert kept > 0
    with pytest.raises(ValueError, match="header set"):
        headers_from_json({**stored, "files": [[0, "h", "0" * 63]]})
    with pytest.raises(ValueError, match="header set"):
        headers_from_json({**stored, "answers": [[True, []]]})
