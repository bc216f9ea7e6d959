"""Headers included by climbing paths (`../inc/x.h`, `./x.h`): finitely many, each folder under one name."""

from __future__ import annotations

import os
from pathlib import Path

from numba_kcache.headers.check import Change, Match, Mismatch
from numba_kcache.headers.search import Place
from tests.support.header_projects import Project


def climbing(folder: Path) -> Project:
    """Two headers that include each other by the name of their folder, behind guards, and by `./`."""
    project = Project(folder, '#include "../inc/a.h"\n')
    (folder / "source").mkdir()
    for one, other in (("a", "b"), ("b", "a")):
        text = f'#ifndef {one}_H\n#define {one}_H\n#include "../inc/{other}.h"\n#include "./{other}.h"\n#endif\n'
        project.write(f"inc/{one}.h", text)
    return project


def test_headers_that_climb_in_a_circle_have_one_name_each(tmp_path: Path) -> None:
    """The compiler's own paths grow with each round; the recorded names do not."""
    headers = climbing(tmp_path).learn()

    assert [file.place for file in headers.files] == [Place(0, "../inc/a.h"), Place(0, "../inc/b.h")]


def test_edit_in_a_circle_of_headers_is_seen(tmp_path: Path) -> None:
    """An edit of the content is a difference; nothing else is."""
    project = climbing(tmp_path)
    headers = project.learn()
    os.utime(tmp_path / "inc/b.h", ns=(1, 1))
    assert isinstance(project.check(headers), Match)

    project.write("inc/b.h", "int other;\n")

    outcome = project.check(headers)
    assert isinstance(outcome, Mismatch)
    assert outcome.change is Change.CONTENT


def test_folder_with_two_names_is_in_the_mirror(tmp_path: Path) -> None:
    """An include path may lead through a folder that has no other wanted header."""
    project = Project(tmp_path, '#include "../inc/a.h"\nextern "C" __global__ void k(int *x) { *x = A; }\n')
    project.write("source/deep/unused.h", "")
    project.write("inc/a.h", '#pragma once\n#include "../source/deep/../../inc/c.h"\n')
    project.write("inc/c.h", "#define A 7\n")

    assert project.through_mirror()[0] == project.compile().code
