"""The mirror of the user's headers: NVRTC makes of it the code that it makes of the user's own folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from numba_kcache.headers import mirror as header_mirror
from numba_kcache.headers.check import Match, Mismatch
from numba_kcache.headers.dependencies import HeaderSet
from numba_kcache.headers.folders import Folders
from numba_kcache.headers.mirror import Mirror, Unmirrored
from numba_kcache.headers.search import WORKING
from numba_kcache.headers.survey import Survey
from tests.support.compiling import EMPTY
from tests.support.header_projects import KERNEL, Project, later_ns, one_header

COUNTED = "#ifdef SEEN\n#undef VALUE\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n#define SEEN\n"
ONCE = "#pragma once\n" + COUNTED


def two_names(project: Project) -> None:
    project.source = '#include "one.h"\n#include "two.h"\n' + KERNEL
    project.write("second/one.h", ONCE)


def link_to_a_header(project: Project) -> None:
    two_names(project)
    project.link("second/two.h", "one.h")


def hard_link_to_a_header(project: Project) -> None:
    two_names(project)
    os.link(project.root / "second/one.h", project.root / "second/two.h")


def copy_of_a_header(project: Project) -> None:
    two_names(project)
    project.write("second/two.h", ONCE)


def link_to_a_folder(project: Project) -> None:
    project.source = '#include "real/one.h"\n#include "other/one.h"\n' + KERNEL
    project.write("second/real/one.h", ONCE)
    project.link("second/other", "real")


def link_out_of_the_folders(project: Project) -> None:
    project.source = '#include "away/../value.h"\n' + KERNEL
    project.write("elsewhere/deep/readme", "")
    project.write("elsewhere/value.h", "#define VALUE 5\n")
    project.write("second/value.h", "#define VALUE 6\n")
    project.link("second/away", "../elsewhere/deep")


def one_folder_by_two_names(project: Project) -> None:
    project.source = "#include <again.h>\n" + KERNEL
    text = "#ifndef VALUE\n#define VALUE 1\n#include_next <again.h>\n#else\n#undef VALUE\n#define VALUE 2\n#endif\n"
    project.write("second/again.h", text)
    project.link("alias", "second")
    project.folders = ["second", "alias"]


def one_folder_twice(project: Project) -> None:
    one_folder_by_two_names(project)
    project.folders = ["second", "first", "second"]


def nested_and_relative(project: Project) -> None:
    project.source = '#include "a/b/c.h"\n' + KERNEL
    project.write("second/a/b/c.h", '#include "../d.h"\n#include "./e.h"\n')
    project.write("second/a/d.h", "#define VALUE E\n")
    project.write("second/a/b/e.h", '#include "../../../out.h"\n')
    project.write("out.h", "#define E 8\n")
    project.write("first/d.h", "#error wrong\n")


def next_in_line(project: Project) -> None:
    project.source = "#include <v.h>\n" + KERNEL
    project.write("source/v.h", "#include_next <v.h>\n")
    project.write("first/v.h", "#define VALUE 10 + MORE\n#include_next <v.h>\n")
    project.write("second/v.h", "#define MORE 7\n")


def spelled_oddly(project: Project) -> None:
    project.source = '%:inc\\\nlude /* here */ "v.h"\n#define NAME <w.h>\n#include NAME\n' + KERNEL
    project.write("first/v.h", "#define VALUE 10 + MORE\n")
    project.write("second/w.h", "#define MORE 7\n")


def asked_for(project: Project) -> None:
    asked = '__has_include("v.h") && !__has_include(<first>) && !__has_include("none.h")'
    project.source = f"#if {asked}\n#define VALUE 4\n#endif\n" + KERNEL
    project.write("second/v.h", "#error only asked for\n")


def named_by_a_function(project: Project) -> None:
    macros = "#define STRING(x) #x\n#define NAMED(x) STRING(x)\n#define NAME v.h\n#define OTHER w.h\n"
    macros += "#define ANGLED(folder, name) <folder/name.h>\n#define NEXT <v.h>\n"
    asked = "#if __has_include(ANGLED(sub, v)) && !__has_include(NAMED(OTHER))\n#define ASKED 16\n#endif\n"
    project.source = f"{macros}{asked}#include NAMED(NAME)\n#include ANGLED(sub,v)\n" + KERNEL
    project.write("first/v.h", "#define MORE 1\n#include_next NEXT\n")
    project.write("second/v.h", "#define VALUE MORE + SUB + ASKED\n")
    project.write("second/sub/v.h", "#define SUB 8\n")


def named_by_a_function_in_other_letters(project: Project) -> None:
    macros = "#define STRING(x) #x\n#define NAMED(x) STRING(x)\n#define NAME h\u00f6he.h\n"
    project.source = f"{macros}#include NAMED(NAME)\n#include STRING(l\udce4nge.h)\n" + KERNEL
    project.write("second/h\u00f6he.h", "#define VALUE 1 + MORE\n")
    project.write("second/l\udce4nge.h", "#define MORE 8\n")


def named_in_latin_1(project: Project) -> None:
    project.source = '#include "h\udcf6he.h"\n' + KERNEL
    project.write("second/h\udcf6he.h", "#define VALUE 1\n")


def forced(project: Project) -> None:
    project.source = KERNEL
    project.write("work/forced.h", '#include "beside.h"\n')
    project.write("work/beside.h", "#define VALUE 3\n")
    project.more = {"forced": ("forced.h",), "working_folder": str(project.root / "work")}


def given_by_definitions(project: Project) -> None:
    project.source = "#include HEADER\n#if ASK\n#define VALUE 1 + V\n#else\n#define VALUE V\n#endif\n" + KERNEL
    project.write("second/v.h", "#define V 3\n")
    project.more = {"definitions": (("HEADER", '"v.h"'), ("ASK", "__has_include(<v.h>)"))}


def folder_that_is_missing(project: Project) -> None:
    one_header(project)
    project.folders = ["missing", "missing/../second", "second"]


TREES: list[Callable[[Project], None]] = [
    link_to_a_header, hard_link_to_a_header, copy_of_a_header, link_to_a_folder, link_out_of_the_folders,
    one_folder_by_two_names, one_folder_twice, nested_and_relative, next_in_line, spelled_oddly, asked_for, forced,
    named_by_a_function, named_by_a_function_in_other_letters, named_in_latin_1, given_by_definitions,
    folder_that_is_missing,
]  # fmt: skip


def mirror_of(project: Project) -> Mirror:
    """A mirror of the headers that the project includes."""
    return Mirror([Survey(project.source, project.search, now_ns=later_ns())])


@pytest.mark.parametrize("tree", TREES, ids=lambda each: each.__name__)
def test_mirror_means_to_nvrtc_what_the_users_folders_mean(tmp_path: Path, tree: Callable[[Project], None]) -> None:
    """The code equals that of a compile without the mirror byte by byte, and the header set matches afterwards."""
    project = Project(tmp_path)
    tree(project)
    for folder in ("source", "first", "second"):
        (tmp_path / folder).mkdir(exist_ok=True)
    plain = project.compile()
    assert plain.code, plain.log
    mirror_of(project).close()

    code, headers = project.through_mirror()

    assert code == plain.code
    assert isinstance(headers, HeaderSet)
    assert isinstance(project.check(headers), Match)


def of_the_toolkit(project: Project, text: str) -> None:
    """A toolkit's header that includes one of the user's."""
    project.source = "#include <kit/kit.h>\n" + KERNEL
    project.write("tree/include/kit/kit.h", text)
    project.write("second/config.h", "#define VALUE 5\n")
    project.write("source/readme", "")
    project.folders = ["source", "second", "tree/include"]
    project.trees = (str(project.root / "tree"),)


@pytest.mark.parametrize(
    "text",
    [
        "#include <config.h>\n",
        "#if __has_include(<config.h>)\n#include <config.h>\n#else\n#define VALUE 1\n#endif\n",
        "#if __has_include(<config.h>)\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n",
    ],
)
def test_header_that_only_the_toolkit_leads_to_is_compiled_and_learned(tmp_path: Path, text: str) -> None:
    """No header of the user includes it, so the first mirror lacks it; its edit or removal is seen."""
    project = Project(tmp_path)
    of_the_toolkit(project, text)
    plain = project.compile()
    assert plain.code, plain.log

    code, headers = project.through_mirror()

    assert code == plain.code
    assert isinstance(headers, HeaderSet)
    assert isinstance(project.check(headers), Match)
    (tmp_path / "second/config.h").unlink()
    assert isinstance(project.check(headers), Mismatch)


def test_path_that_a_toolkit_macro_puts_into_the_code_is_the_users(tmp_path: Path) -> None:
    """The user's header has no `__FILE__` itself, but a toolkit's macro has: the code has the user's path, not the
    mirror's."""
    project = Project(tmp_path)
    of_the_toolkit(project, "#define HERE() __FILE__\n")
    project.source = "#include <kit/kit.h>\n#include <config.h>\n" + KERNEL
    project.write(
        "second/config.h", "__device__ inline int here(int x) { return HERE()[x]; }\n#define VALUE here(*out)\n"
    )
    plain = project.compile()
    assert plain.code, plain.log

    code, headers = project.through_mirror()

    assert code == plain.code
    assert str(tmp_path).encode() in code
    assert isinstance(headers, HeaderSet)


def test_mirror_is_named_by_its_content(tmp_path: Path) -> None:
    """A moved checkout has the same mirror; other content has another; a second one at the same time gets a number."""
    roots = []
    for name, value in (("one", 1), ("two", 1), ("two", 2)):
        project = Project(tmp_path / name)
        one_header(project)
        project.write("second/header.h", f"#define VALUE {value}\n")
        mirror = mirror_of(project)
        again = mirror_of(project)
        assert again.root != mirror.root
        roots.append(mirror.root)
        mirror.close()
        again.close()

    assert roots[0] == roots[1] != roots[2]


def test_mirror_is_private_and_goes_away(tmp_path: Path) -> None:
    """No other user may read the mirror, and it is removed completely."""
    project = Project(tmp_path)
    one_header(project)
    mirror = mirror_of(project)

    found = os.stat(mirror.root), os.stat(os.path.dirname(mirror.root))
    mirror.close()

    assert [each.st_mode & 0o777 for each in found] == [0o700, 0o700]
    assert not os.path.exists(mirror.root)


def test_message_names_the_users_paths(tmp_path: Path) -> None:
    """A message about a header names the path that the user knows."""
    project = Project(tmp_path)
    one_header(project)
    mirror = mirror_of(project)
    said = f"{mirror.folder(str(tmp_path / 'second'))}/header.h(1): warning, in {mirror.root}/0/out.h"
    mirror.close()

    assert mirror.map_back(said) == f"{tmp_path}/second/header.h(1): warning, in {tmp_path}/out.h"


@pytest.mark.parametrize(
    ("is_edited", "output", "compared"),
    [(False, "ltoir", "ltoir"), (True, "ltoir", "ptx"), (False, "cubin", "cubin"), (True, "cubin", "cubin")],
)
def test_ltoir_of_an_edited_text_is_compared_as_ptx(is_edited: bool, output: str, compared: str) -> None:
    """LTO-IR differs from compile to compile; an unedited text is compiled once, and kept as it was made."""
    folders = Folders((lambda text: text) if is_edited else None)
    flags = ["-arch=sm_90", *(["--dlink-time-opt"] if output == "ltoir" else [])]
    result = folders.run(None, EMPTY, "k.cu", flags, (output,))

    assert list(result.code) == [output]
    assert [list(each) for each in folders.made] == [[compared]]


@pytest.mark.parametrize("way", ["absolute", "unreadable", "into the toolkit", "large", "a text without a folder"])
def test_no_mirror_where_it_would_not_be_true(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler opens an absolute path in any case, and a copy of a toolkit's file would be another file to it."""
    project = Project(tmp_path)
    one_header(project)
    if way == "absolute":
        project.source = f'#include "{project.write("away/header.h", "#define VALUE 1")}"\n' + KERNEL
    elif way == "unreadable":
        (tmp_path / "second/header.h").unlink()
        os.mkfifo(tmp_path / "second/header.h")
    elif way == "large":
        monkeypatch.setattr(header_mirror, "MAX_BYTES", 10)
    elif way == "a text without a folder":
        project.more = {"source_base": WORKING}
    else:
        project.write("tree/header.h", "#define VALUE 1")
        project.link("first/header.h", "../tree/header.h")
        project.trees = (str(tmp_path / "tree"),)

    with pytest.raises(Unmirrored):
        mirror_of(project)


def test_where_nothing_can_be_written_there_is_no_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own files are compiled, compared before and after, and learned."""
    project = Project(tmp_path)
    one_header(project)
    plain = project.compile()

    def refuse(_place: str, _name: str) -> str:
        raise OSError("read-only")

    monkeypatch.setattr(header_mirror, "make_root", refuse)
    code, headers = project.through_mirror()

    assert code == plain.code
    assert isinstance(headers, HeaderSet)


def test_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who created the folder of that name first could put headers into the mirror."""
    folder = tmp_path / f"numba_kcache-headers-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)

    root = header_mirror.make_root(str(tmp_path), "name")

    assert not root.startswith(str(folder) + "/")
    assert os.stat(os.path.dirname(root)).st_mode & 0o777 == 0o700


def test_mirror_of_a_killed_compile_is_swept(tmp_path: Path) -> None:
    """It is removed after a day; a younger one may be in use."""
    old, young, new = ("ab" * 16, "cd" * 16, "ef" * 16)
    for name, age_s in ((old, 90_000), (young, 0)):
        root = header_mirror.make_root(str(tmp_path), name)
        os.utime(root, (os.stat(root).st_mtime - age_s,) * 2)

    root = header_mirror.make_root(str(tmp_path), new)

    assert sorted(os.listdir(os.path.dirname(root))) == [young, new]


def test_sweep_leaves_what_is_no_mirror(tmp_path: Path) -> None:
    """A file, a link and a folder of another name stay at any age; an abandoned mirror is removed."""
    mirror = "ab" * 16
    (tmp_path / mirror / "0").mkdir(parents=True)
    (tmp_path / "kept" / "sub").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    (tmp_path / ("cd" * 16)).symlink_to(tmp_path / "kept")
    (tmp_path / ("ef" * 16)).write_text("mine")
    for each in (mirror, "kept", "file", "ef" * 16):
        os.utime(tmp_path / each, (1, 1))

    header_mirror.sweep(str(tmp_path))

    assert {each.name for each in tmp_path.iterdir()} == {"kept", "file", "cd" * 16, "ef" * 16}
    assert (tmp_path / "kept" / "sub").is_dir()


def test_mirror_needs_no_temporary_directory_beside_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only container may have no temporary directory; shared memory, the first choice, needs none."""

    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    project = Project(tmp_path)
    one_header(project)
    monkeypatch.setattr(header_mirror.tempfile, "gettempdir", none)
    monkeypatch.setattr(header_mirror, "make_root", lambda place, name: str(made) if place == "/dev/shm" else "")
    made = tmp_path / "shm"
    made.mkdir()

    assert mirror_of(project).root == str(made)
