"""Headers that the compiler certainly did not open are no dependency; where that is uncertain, a header is one."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from numba_kcache.headers.check import Match, Mismatch
from numba_kcache.headers.dependencies import HeaderSet
from numba_kcache.headers.open_watch import OpenWatch
from numba_kcache.headers.search import Place
from numba_kcache.headers.survey import Survey
from tests.support.header_projects import Project, later_ns, learned, one_header, watch_of

UNREAD = Place(2, "unread.h")


def branches(root: Path) -> Project:
    """A source with a branch that is taken and one that is not."""
    project = Project(root)
    one_header(project)
    project.source = '#if 0\n#include "unread.h"\n#endif\n' + project.source
    project.write("second/unread.h", '#include "more.h"\n')
    project.write("second/more.h", "// 1\n")
    project.how = "watch"
    return project


def is_unread(project: Project, meanwhile: Callable[[], object]) -> bool:
    """Check whether the header in the branch counts as unread after an event in place of a compile."""
    watch = watch_of(Survey(project.source, project.search, now_ns=later_ns()))
    try:
        meanwhile()
        return watch.is_unopened(str(project.root / "second/unread.h"))
    finally:
        watch.close()


def test_branch_not_taken_is_no_dependency(tmp_path: Path) -> None:
    """Neither the header in the inactive branch nor its includes are dependencies; an edit of the other header is
    noticed."""
    project = branches(tmp_path)
    headers = project.learn()
    assert [file.place for file in headers.files] == [Place(2, "header.h")]

    for name in ("unread.h", "more.h"):
        project.write(f"second/{name}", "// 2\n")
    assert project.check(headers) == Match()

    project.write("second/header.h", "#define VALUE 2\n")
    assert isinstance(project.check(headers), Mismatch)


def test_header_that_is_opened_by_another_path_counts_as_read(tmp_path: Path) -> None:
    """A link of either kind leads to the same file."""
    project = branches(tmp_path)
    os.link(tmp_path / "second/unread.h", tmp_path / "hard.h")
    (tmp_path / "soft").symlink_to("second")

    assert is_unread(project, lambda: None)
    for path in ("second/unread.h", "hard.h", "soft/unread.h"):
        assert not is_unread(project, (tmp_path / path).read_bytes)


def test_header_that_another_process_opens_counts_as_read(tmp_path: Path) -> None:
    """NVRTC runs in this process, but a backup may open the header too: that costs one dependency too many."""
    assert not is_unread(branches(tmp_path), lambda: os.system(f"cat {tmp_path}/second/unread.h >/dev/null"))


@pytest.mark.parametrize("way", ["replaced", "edited", "touched", "deleted"])
def test_header_that_is_not_the_same_afterwards_counts_as_read(tmp_path: Path, way: str) -> None:
    """The watch is on the first file, so that an opening of the file in its place would not be seen."""
    project = branches(tmp_path)
    path = tmp_path / "second/unread.h"
    new = project.write("second/new", '#include "more.h"\n')

    def happen() -> None:
        if way == "replaced":
            new.rename(path)
            path.read_bytes()
        elif way == "edited":
            path.write_text('#include "none.h"\n')
        elif way == "touched":
            path.touch()
        else:
            path.unlink()

    assert not is_unread(project, happen)


class Libc:
    """The C library, with one of its calls failing or lying."""

    def __init__(self, real: ctypes.CDLL, wrong: str) -> None:
        self._real, self._wrong = real, wrong

    def inotify_init1(self, flags: int) -> int:
        return -1 if self._wrong == "init" else int(self._real.inotify_init1(flags))

    def inotify_add_watch(self, fd: int, path: bytes, mask: int) -> int:
        if self._wrong == "silent":  # a file system that reports no events
            path, mask = b"/", 0x2
        return -1 if self._wrong == "add" else int(self._real.inotify_add_watch(fd, path, mask))


@pytest.mark.parametrize("wrong", ["init", "add", "silent", "absent"])
def test_where_there_is_no_watch_all_count_as_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """On another system, without free watches, or on a file system without events, the scanner alone decides."""
    real = ctypes.CDLL(None)

    def library(*_arguments: object, **_options: object) -> object:
        if wrong == "absent":
            raise OSError("no libc")
        return Libc(real, wrong)

    monkeypatch.setattr(ctypes, "CDLL", library)
    assert not is_unread(branches(tmp_path), lambda: None)


def test_lost_events_mean_that_all_count_as_read(tmp_path: Path) -> None:
    """The kernel's queue is bounded: events that did not fit are lost."""
    project = branches(tmp_path)
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    def flood() -> None:
        for _ in range(limit // 2 + 8):  # two files in turn: the kernel merges equal events in a row
            for name in ("header.h", "more.h"):
                os.close(os.open(tmp_path / "second" / name, os.O_RDONLY))

    assert not is_unread(project, flood)


def test_watch_that_cannot_be_read_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while events are read may have lost some, so all headers count as read."""
    header = branches(tmp_path).root / "second/unread.h"

    def failing(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    with closing(OpenWatch([str(header)])) as watch:
        assert watch.is_whole()
        assert watch.is_unopened(str(header))
        monkeypatch.setattr(os, "read", failing)

        assert not watch.is_whole()
        assert not watch.is_unopened(str(header))


def test_watch_that_misses_an_unconditional_include_is_not_believed(tmp_path: Path) -> None:
    """A compile must have opened that header."""
    project = branches(tmp_path)
    survey = Survey(project.source, project.search, now_ns=later_ns())

    headers = learned(survey, {Place(2, "header.h"), UNREAD}.__contains__)

    assert isinstance(headers, HeaderSet)
    assert [file.place.rest for file in headers.files] == ["header.h", "more.h", "unread.h"]


def test_header_that_is_not_watched_counts_as_read(tmp_path: Path) -> None:
    """An unwatched header may have been read."""
    with closing(OpenWatch(())) as watch:
        assert not watch.is_unopened(str(branches(tmp_path).root / "second/unread.h"))


def test_tree_is_watched_by_folder(tmp_path: Path) -> None:
    """The headers of a toolkit are not known in advance; a link in it counts as read, since its target is not
    watched."""
    (tmp_path / "kit/deep").mkdir(parents=True)
    for name in ("kit/a.h", "kit/deep/b.h", "kit/deep/c.h"):
        (tmp_path / name).write_text("")
    (tmp_path / "kit/link.h").symlink_to("a.h")
    with closing(OpenWatch((), [str(tmp_path / "kit")])) as watch:
        (tmp_path / "kit/deep/b.h").read_bytes()

        unopened = {
            name for name in ("a.h", "deep/b.h", "deep/c.h", "link.h") if watch.is_unopened(f"{tmp_path}/kit/{name}")
        }

    assert unopened == {"a.h", "deep/c.h"}


def test_header_that_only_unread_ones_lead_to_is_no_stranger(tmp_path: Path) -> None:
    """If it was opened all the same, watch and survey contradict each other, and the scanner decides."""
    project = branches(tmp_path)
    survey = Survey(project.source, project.search, now_ns=later_ns())

    headers = learned(survey, {UNREAD}.__contains__)  # more.h, which unread.h includes, counts as opened

    assert isinstance(headers, HeaderSet)
    assert {file.place.rest for file in headers.files} == {"header.h", "more.h", "unread.h"}


@pytest.mark.parametrize("how", ["watch", "mirror"])
def test_shadow_of_what_was_not_included_is_no_dependency(tmp_path: Path, how: str) -> None:
    """An include in a branch that is not taken searches for no file."""
    project = branches(tmp_path)
    project.how = how
    headers = project.learn()

    project.write("first/unread.h", "")
    assert project.check(headers) == Match()
    project.write("first/header.h", "")
    assert isinstance(project.check(headers), Mismatch)


def test_watch_on_nothing_opens_nothing() -> None:
    """Closing a watch takes the kernel milliseconds, and for most texts one of the two watches has no folder."""
    before = os.listdir("/proc/self/fd")
    watch = OpenWatch(())

    assert os.listdir("/proc/self/fd") == before
    assert not watch.is_whole()
    watch.close()
