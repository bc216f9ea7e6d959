"""Header tracking: changes that must break a transcript, changes that must not, and headers never to be learned."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.headers.check import Match, Mismatch
from numba_kcache.headers.observer import Mark, begin_observing, compile_alone
from numba_kcache.headers.roots import Place
from numba_kcache.headers.transcript import Transcript, transcript_value
from tests.support.header_projects import (
    KERNEL,
    SCENARIOS,
    Project,
    Scenario,
    computed_include_edited,
    data_file_edited,
    edit_header,
    edit_header_same_size_same_mtime,
    edit_header_that_mentions_date_same_size,
    edit_header_that_mentions_timestamp_same_size,
    folder_symlink_switched,
    has_include_target_appears,
    header_deleted,
    header_from_the_future_edited,
    in_tree,
    include_folder_moved_away,
    linked_folder,
    new_header_in_existing_earlier_folder,
    new_header_in_new_earlier_folder,
    new_header_next_to_the_source,
    one_header,
    same_source_in_another_folder_with_another_header,
    symlink_retargeted_same_size,
)
from tests.support.nvrtc import Search, compile_source, observe_source


def in_new_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a thread of its own, since it leaves marks that do not end, or finds those of others."""

    @functools.wraps(test)
    def run(**named: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **named).result()

    return run


OTHERS = {name: os.environ.get(name, "") for name in ("NUMBA_KCACHE_TEST_NVRTC12", "NUMBA_KCACHE_TEST_NVRTC13")}
"""Paths of a libnvrtc 12.9, and of another 13."""


@pytest.fixture(
    params=[
        "installed",
        *(
            pytest.param(name, marks=[pytest.mark.slow, pytest.mark.skipif(not path, reason=f"{name} names no NVRTC")])
            for name, path in OTHERS.items()
        ),
    ]
)
def library(request: pytest.FixtureRequest) -> str:
    """The path of a libnvrtc; "" for the installed one."""
    path = OTHERS.get(str(request.param), "")
    return str(next(Path(path).glob("libnvrtc.so.*"))) if os.path.isdir(path) else path


def compiled(project: Project, library: str = "") -> bytes | None:
    """Compile the project without the cache."""
    project.library = library
    code, log = project.compile()
    assert code or "cannot open source file" in log, log
    return code


def learn(project: Project, library: str = "", code: bytes | None = None) -> Transcript:
    """The transcript of a compile that passes, whose code is that of a plain compile."""
    code = code or compiled(project, library)
    assert code
    return project.learn(code)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_transcript_breaks_when(tmp_path: Path, library: str, scenario: Scenario) -> None:
    """The transcript matches until the change, which changes NVRTC's output, and not afterwards."""
    project = Project(tmp_path)
    scenario.prepare(project)
    code = compiled(project, library)
    headers = learn(project, library, code)
    assert project.check(headers) == Match()

    scenario.change(project)

    assert isinstance(project.check(headers), Mismatch)
    assert compiled(project, library) != code, "the scenario shows nothing"


THE_17 = {
    "edit header": edit_header,
    "same size + same mtime edit": edit_header_same_size_same_mtime,
    "header mentions __DATE__, same-size edit": edit_header_that_mentions_date_same_size,
    "header mentions __TIMESTAMP__, same-size edit": edit_header_that_mentions_timestamp_same_size,
    "new header in existing earlier -I dir": new_header_in_existing_earlier_folder,
    "new header in new earlier -I dir": new_header_in_new_earlier_folder,
    "new header next to the source (quote form)": new_header_next_to_the_source,
    "__has_include target appears": has_include_target_appears,
    "symlink retargeted, same size": symlink_retargeted_same_size,
    "header deleted": header_deleted,
    "-I dir moved away and back": include_folder_moved_away,  # moving it back is the next test
    "computed include edited": computed_include_edited,
    "same source, other directory, other header": same_source_in_another_folder_with_another_header,
    "CPATH changed": None,  # the test after the next
    "directory symlink switched": folder_symlink_switched,
    "header mtime in the future, edited": header_from_the_future_edited,
    "data file via #include edited": data_file_edited,
}
"""On which ccache 4.14 scores 14 and sccache 0.16 scores 10, by the words of that run, and our scenario for each."""


def test_each_of_the_17_scenarios_is_tried() -> None:
    """Each is tried with each NVRTC."""
    assert len(THE_17) == 17
    assert {each for each in THE_17.values() if each} <= set(SCENARIOS)


@pytest.mark.slow
def test_transcript_holds_again_when_folder_is_back(tmp_path: Path, library: str) -> None:
    """An include folder moved away and back: another header set while it is away, the first one afterwards."""
    project = Project(tmp_path)
    one_header(project)
    project.write("first/header.h", "#define VALUE 2\n")
    headers = learn(project, library)

    (tmp_path / "first").rename(tmp_path / "away")
    while_away = learn(project, library)
    assert isinstance(project.check(headers), Mismatch)
    (tmp_path / "away").rename(tmp_path / "first")

    assert project.check(headers) == Match()
    assert isinstance(project.check(while_away), Mismatch)
    assert transcript_value(while_away) != transcript_value(headers)


def test_search_path_variables_of_host_compilers_change_nothing(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC does not read CPATH and its like, and neither does the header set."""
    project = Project(tmp_path)
    one_header(project)
    project.write("elsewhere/header.h", "#define VALUE 2\n")
    code = compiled(project, library)
    headers = project.learn()

    for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "INCLUDE", "CUDA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))

    assert compiled(project, library) == code
    assert project.check(headers) == Match()


def test_branch_not_taken_is_no_dependency(tmp_path: Path) -> None:
    """The header in an inactive branch is not asked for; an edit of it causes no compile."""
    project = Project(tmp_path)
    one_header(project)
    project.source = '#if 0\n#include "other.h"\n#endif\n' + project.source
    project.write("second/other.h", "1")
    headers = learn(project)

    project.write("second/other.h", "2")

    assert project.check(headers) == Match()


@pytest.mark.slow
@pytest.mark.parametrize("happening", ["touched", "checked_out", "moved", "copied"])
def test_transcript_survives_header(tmp_path: Path, library: str, happening: str) -> None:
    """Contents count: new times, inodes or paths change neither the check nor the key."""
    project = Project(tmp_path / "checkout")
    one_header(project)
    project.write("second/header.h", '#pragma once\n#include "sub/more.h"\n')
    project.write("second/sub/more.h", "#define VALUE 1\n")
    code = compiled(project, library)
    headers = project.learn()

    if happening == "touched":
        for path in project.root.rglob("*.h"):
            path.touch()
    elif happening == "checked_out":
        for path in project.root.rglob("*.h"):
            text = path.read_text()
            path.unlink()
            path.write_text(text)
    elif happening == "copied":
        project = project.copy_to(tmp_path / "copy")
    else:
        project.root.rename(tmp_path / "moved")
        project.root = tmp_path / "moved"

    outcome = project.check(headers)
    assert isinstance(outcome, Match)
    assert (outcome.refreshed is None) == (happening == "moved")
    assert project.check(outcome.refreshed or headers) == Match()
    again = learn(project, library)
    assert transcript_value(again) == transcript_value(headers)
    assert compiled(project, library) == code


def test_transcript_survives_renamed_environment(tmp_path: Path, library: str) -> None:
    """A toolkit tree of the same identity under another path is the same tree."""
    project = Project(tmp_path)
    in_tree(project)
    headers = learn(project, library)
    assert headers.places == {}

    (tmp_path / "tree").rename(tmp_path / "venv")
    project.folders = ["source", "venv/include"]
    project.trees = (str(tmp_path / "venv"),)

    assert project.check(headers) == Match()


def test_unused_toolkit_is_no_dependency(tmp_path: Path, library: str) -> None:
    """A source that includes nothing of a toolkit does not depend on the toolkit's identity."""
    project = Project(tmp_path)
    in_tree(project)
    project.source = '#include "own.h"\n' + KERNEL
    project.write("source/own.h", "#define VALUE 1\n")
    headers = learn(project, library)

    project.write("tree/include/kit/value.h", "#define VALUE 2\n")

    assert project.check(headers) == Match()


def edit(project: Project) -> None:
    project.write("second/header.h", "#define VALUE 2\n")


def edit_and_put_back(project: Project) -> None:
    edit(project)
    project.write("second/header.h", "#define VALUE 1\n")


def replace(project: Project) -> None:
    (project.root / "second/header.h").unlink()
    edit(project)


def shadow(project: Project) -> None:
    project.write("first/header.h", "#define VALUE 2\n")


def switch_folder(project: Project) -> None:
    project.write("other/header.h", "#define VALUE 2\n")
    (project.root / "second").rename(project.root / "old")
    (project.root / "other").rename(project.root / "second")


def delete(project: Project) -> None:
    (project.root / "second/header.h").unlink()


def switch_and_put_back(project: Project) -> None:
    switch_folder(project)
    (project.root / "second").rename(project.root / "other")
    (project.root / "old").rename(project.root / "second")


@pytest.mark.parametrize("meanwhile", [edit, edit_and_put_back, replace, shadow, switch_folder, switch_and_put_back])
def test_transcript_is_that_of_the_code(tmp_path: Path, meanwhile: Callable[[Project], None]) -> None:
    """A header that changes when the compiler has started is compiled and keyed as it is when it is read."""
    project = Project(tmp_path)
    one_header(project)

    code, headers = project.observed(lambda: meanwhile(project))

    assert code == compiled(project)
    assert isinstance(headers, Transcript)
    assert isinstance(project.check(headers), Match)


@pytest.mark.slow
def test_header_that_is_replaced_again_and_again_is_keyed_as_it_was_compiled(tmp_path: Path) -> None:
    """Whatever the compiler reads of it, equal transcripts have equal code; and the code is not stale when it stands
    still."""
    project = Project(tmp_path)
    one_header(project)
    project.source = '#include "header.h"\n#define FIRST VALUE\n#undef VALUE\n#include "header.h"\n' + KERNEL
    is_over, codes = threading.Event(), dict[str, bytes | None]()

    def replace_on_and_on() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            project.write("second/new.h", f"#undef VALUE\n#define VALUE {number % 7}\n").rename(
                tmp_path / "second/header.h"
            )

    thread = threading.Thread(target=replace_on_and_on)
    thread.start()
    try:
        for _ in range(20):
            code, headers = project.observed()
            if isinstance(headers, Transcript):
                assert codes.setdefault(repr(transcript_value(headers)), code) == code
            else:
                assert "modified" in headers or "changed" in headers
    finally:
        is_over.set()
        thread.join()
    learn(project)


def test_link_that_moves_and_comes_back_leads_to_what_was_compiled(tmp_path: Path) -> None:
    """The link leads elsewhere during the compile: the code is that of the other header, and so is the transcript."""
    project = Project(tmp_path)
    linked_folder(project)
    code = compiled(project)

    found, headers = project.observed(lambda: project.link("current", "v2"))
    project.link("current", "v1")

    assert found != code
    assert isinstance(headers, Transcript)
    assert isinstance(project.check(headers), Mismatch)


def test_fresh_header_is_learned_and_compared_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header generated right before the compile is learned, but its stat is not trusted yet."""
    project = Project(tmp_path)
    one_header(project)
    now_ns = (tmp_path / "second/header.h").stat().st_ctime_ns + 1
    with monkeypatch.context() as patched:
        patched.setattr("tests.support.header_projects.later_ns", lambda: now_ns)
        headers = project.learn()

    assert Place(2, "header.h") not in headers.stats
    outcome = project.check(headers)
    assert isinstance(outcome, Match)
    assert outcome.refreshed
    assert Place(2, "header.h") in outcome.refreshed.stats


@pytest.mark.parametrize(
    "text",
    [
        "#define FROM(x) <header.x>\n#define NAMED(x) FROM(x)\n#define linux h\n#include NAMED(linux)\n",
        "#define STR(x) #x\n#define J(x) STR(x)\n#define N header\n#include J(N.h)\n",
        "#define H HH\n#define HH <header.h>\n#include H\n",
        "%:define STR(x) %:x\n#include STR(header.h)\n",
        "#define STR(x) #x\n#include STR(__CUDA_ARCH__.h)\n#include <header.h>\n",
        "#define ASK __has_include\n#if ASK(<unix.h>)\n#endif\n#include <header.h>\n",
        "#define ASK(x) __has_include(x)\n#define X <unix.h>\n#if ASK(X)\n#endif\n#include <header.h>\n",
        "#define STR(x) #x\n#if __has_include(STR(unix.h))\n#endif\n#include <header.h>\n",
    ],
)
def test_name_that_macros_form_is_asked_for(tmp_path: Path, library: str, text: str) -> None:
    """However the name comes about, the compiler asks for it: a file that appears, or is edited, breaks the
    transcript."""
    project = Project(tmp_path)
    one_header(project)
    project.source = text + KERNEL
    for name in ("900.h", "1.h"):
        project.write(f"second/{name}", "")
    project.write("second/__CUDA_ARCH__.h", "")
    headers = learn(project, library)

    if "unix" in text:
        for name in ("unix.h", "1.h"):
            project.write(f"first/{name}", "")
    else:
        project.write("second/header.h", "#define VALUE 2\n")

    assert isinstance(project.check(headers), Mismatch)


def test_without_source_include_nothing_is_found_beside_its_includer(tmp_path: Path) -> None:
    """NVRTC's --no-source-include takes the includer's folder away from headers, too."""
    project = Project(tmp_path)
    project.source = "#include <sub/outer.h>\n" + KERNEL
    project.more = {"has_siblings": False}
    project.write("second/sub/outer.h", '#include "inner.h"\n')
    project.write("second/sub/inner.h", "#define VALUE 1\n")
    project.write("second/inner.h", "#define VALUE 2\n")
    code = compiled(project)
    headers = project.learn()

    project.write("second/sub/inner.h", "#define VALUE 3\n")
    assert compiled(project) == code
    assert project.check(headers) == Match()
    project.write("second/inner.h", "#define VALUE 4\n")
    assert isinstance(project.check(headers), Mismatch)


@pytest.mark.parametrize("folder", ["ünïcode", b"not-utf8-\xff", "with space", "with\nnewline", "x/../with-dots"])
def test_folder_may_have_any_name(tmp_path: Path, library: str, folder: str | bytes) -> None:
    """Paths are bytes to the system, and the compiler gets them unchanged."""
    project = Project(tmp_path)
    one_header(project)
    name = os.fsdecode(folder)
    (tmp_path / "x").mkdir()
    project.write(f"{name}/header.h", "#define VALUE 1\n")
    project.folders = ["source", name]
    headers = learn(project, library)
    assert [*headers.places] == [(1, "header.h")]

    project.write(f"{name}/header.h", "#define VALUE 2\n")

    assert isinstance(project.check(headers), Mismatch)


def test_headers_that_climb_in_a_circle_break_with_an_edit(tmp_path: Path, library: str) -> None:
    """The compiler's own paths grow with each round (`../inc/../inc/a.h`), and end with the guards."""
    project = Project(tmp_path, '#include "../inc/a.h"\n#define VALUE 1\n' + KERNEL)
    (tmp_path / "source").mkdir()
    for one, other in (("a", "b"), ("b", "a")):
        text = f'#ifndef {one}_H\n#define {one}_H\n#include "../inc/{other}.h"\n#include "./{other}.h"\n#endif\n'
        project.write(f"inc/{one}.h", text)
    headers = learn(project, library)
    os.utime(tmp_path / "inc/b.h", ns=(1, 1))
    assert isinstance(project.check(headers), Match)

    project.write("inc/b.h", "int other;\n")

    assert isinstance(project.check(headers), Mismatch)


@pytest.mark.parametrize("kind", ["fifo", "endless device", "device", "unreadable", "large"])
def test_header_that_is_no_plain_file_is_not_learned_and_ends_in_time(tmp_path: Path, library: str, kind: str) -> None:
    """NVRTC would wait for ever for the other end of a FIFO; it says that it cannot open it."""
    project = Project(tmp_path)
    one_header(project)
    path = tmp_path / "second/header.h"
    if kind == "fifo":
        path.unlink()
        os.mkfifo(path)
    elif "device" in kind:
        path.unlink()
        path.symlink_to("/dev/null" if kind == "device" else "/dev/zero")
    elif kind == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root reads any file")
        path.chmod(0)
    else:
        path.write_text("#define VALUE 1\n#if 0\n")
        with path.open("r+b") as file:
            file.truncate(4 << 30)
    compiled = project.observed()

    assert isinstance(compiled[1], str)
    assert "header.h" in compiled[1]
    assert compiled[0] is None  # /dev/null has no VALUE


@pytest.mark.slow
def test_chain_of_headers_is_followed_to_its_end(tmp_path: Path, library: str) -> None:
    """Each header is included only by the one before it; the chain is as long as NVRTC allows."""
    project = Project(tmp_path)
    one_header(project)
    project.write("second/header.h", '#include "deep/h0.h"\n')
    for number in range(150):  # NVRTC gives up at 200
        project.write(f"second/deep/h{number}.h", f'#include "h{number + 1}.h"\n#include "w{number}.h"\n')
        project.write(f"second/deep/w{number}.h", "")
    project.write("second/deep/h150.h", "#define VALUE 1\n")
    headers = learn(project, library)
    assert len(headers.places) == 302

    project.edit_and_restore_mtime("second/deep/h150.h", "#define VALUE 2\n")

    assert isinstance(project.check(headers), Mismatch)


@pytest.mark.slow
def test_folder_whose_files_another_key_covers_is_left_out(tmp_path: Path, library: str) -> None:
    """Nothing of it is recorded, but a path that climbs out of it; the compile is the same."""
    known, other = tmp_path / "known", tmp_path / "other"
    for folder in (known, other):
        folder.mkdir()
    (known / "a.h").write_text('#include "b.h"\n#include "../other/c.h"\n')
    (known / "b.h").write_text("#define B 1\n")
    (other / "c.h").write_text("#define C 2\n")
    source, search = '#include "a.h"\nextern "C" __global__ void k(int *x) { *x = B + C; }', Search((str(known),))
    left_out = os.fsencode(known) + b"/"
    whole, seen = observe_source(source, search, library=library)
    mark = begin_observing(left_out)
    made, events = compile_source(source, search, library=library), mark.end() or []

    assert made.code == whole.code is not None
    reads = [[each[1] for each in one if each[0] == "r"] for one in (events, seen)]
    assert reads[0] == [left_out + b"../other/c.h"]
    assert len(reads[1]) == 3
    assert not [each for each in events if each[1].startswith(left_out) and b"/../" not in each[1]]


@pytest.mark.slow
@in_new_thread
def test_compiles_after_a_mark_that_nobody_ends_are_recorded(tmp_path: Path, library: str) -> None:
    """It is forgotten once 64 MiB of headers are kept for it, as for a library whose compiles fail."""
    (tmp_path / "a.h").write_text("#define A 1\n")
    source, search = '#include "a.h"\nextern "C" __global__ void k(int *x) { *x = A; }', Search((str(tmp_path),))
    observe_source(source, search, library=library)
    left = begin_observing()
    for number in range(5):
        (tmp_path / f"{number}.h").write_text("#error\n" + "\n" * (14 << 20))  # is read to its end, and not compiled
        compile_source(f'#include "{number}.h"\n', search, library=library)
    mark = begin_observing()
    compile_source(source, search, library=library)

    assert [os.fsdecode(each[1]) for each in mark.end() or [] if each[0] == "r"] == [str(tmp_path / "a.h")]
    assert left.end() is None


@pytest.mark.slow
@in_new_thread
def test_marks_of_two_libraries_see_their_own_compiles(tmp_path: Path, library: str) -> None:
    """The outer one sees all but what is compiled within the inner; nothing, if it ends first."""
    search = Search((str(tmp_path),))

    def compiled(name: str) -> None:
        (tmp_path / name).write_text("")
        compile_source(f'#include "{name}"\n', search, library=library)

    def read(mark: Mark) -> list[str] | None:
        found = mark.end()
        return found and [os.path.basename(os.fsdecode(each[1])) for each in found if each[0] == "r"]

    observe_source("", search, library=library)
    outer = begin_observing()
    compiled("a.h")
    inner = begin_observing(b"/other/")
    compiled("b.h")
    assert read(inner) == ["b.h"]
    compiled("c.h")
    assert read(outer) == ["a.h", "c.h"]

    outer, inner = begin_observing(), begin_observing(b"/other/")
    compiled("d.h")
    assert (read(outer), read(inner)) == (None, ["d.h"])


@pytest.mark.slow
def test_text_that_should_ask_for_no_file_and_does_is_not_cached(tmp_path: Path, library: str) -> None:
    """The reason names the file."""
    (tmp_path / "a.h").write_text("")
    search = Search((str(tmp_path),))
    observe_source("", search, library=library)

    build: Any = functools.partial(compile_source, '#include "a.h"\n', search, library=library)

    assert compile_alone(build)[1] == "it asks for /nowhere/a.h in a form that is not known"
