"""Small trees of headers, and changes to them after which cached code is stale."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from numba_kcache.headers.check import Match, Mismatch, check_transcript
from numba_kcache.headers.record import Recording, Untracked
from numba_kcache.headers.roots import Roots
from numba_kcache.headers.transcript import Transcript, transcript_from_json, transcript_to_json

from .nvrtc import Compiled, Search, compile_source, observe_source

KERNEL = 'extern "C" __global__ void kernel(int *out) { *out = VALUE; }\n'
WORKING = -1


def later_ns() -> int:
    """A time so late that the stat of every file written until now can be trusted."""
    return time.time_ns() + 100_000_000_000


class Project:
    """A source, its include folders, and operations on them.

    Attributes:
        root: The folder that contains all others.
        source: The text of the source.
        folders: The folders in which headers are searched, in order, relative to the root.
        trees: Folders that are treated as a toolkit; those of `folders` that are in them are last.
        more: Further arguments of `Search`.
        read: The headers that the last compile read.
        library: The path of a libnvrtc; "" for the installed one.
    """

    def __init__(self, root: Path, source: str = "") -> None:
        self.root, self.source = root, source
        self.folders = ["source", "first", "second"]
        self.trees: tuple[str, ...] = ()
        self.more: dict[str, object] = {}
        self.read: list[Path] = []
        self.library = ""

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file below the root; an existing file is overwritten in place."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def link(self, name: str, target: str) -> None:
        """Make a symlink, or change its target."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def edit_and_restore_mtime(self, name: str, text: str) -> None:
        """Edit a file in place to a text of the same size, and restore its mtime."""
        path = self.root / name
        before = path.stat()
        assert before.st_size == len(text)
        path.write_text(text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @property
    def search(self) -> Search:
        """The search of a compile of this project."""
        folders = tuple(str(self.root / each) for each in self.folders)
        return Search(folders, **self.more)  # type: ignore[arg-type]

    @property
    def roots(self) -> Roots:
        """The folders of the search, the toolkit's apart."""
        search = self.search
        toolkit = tuple(each for each in search.folders if each.startswith(self.trees or "\0"))
        own = tuple(each for each in search.folders if each not in toolkit)
        working = search.working_folder
        return Roots((*own, working) if working else own, toolkit, working)

    def compile(self) -> Compiled:
        """Compile the source in a fresh process, without a cache."""
        return compile_source(self.source, self.search, library=self.library)

    def learn(self, code: bytes | None = None) -> Transcript:
        """The transcript of a compile, as it is read back from a store; `code` is what the compile must make."""
        made, outcome = self.observed()
        assert isinstance(outcome, Transcript), outcome
        assert code in (None, made)
        stored = transcript_from_json(json.loads(json.dumps(transcript_to_json(outcome))))
        assert stored == outcome
        return stored

    def try_learn(self) -> Transcript | str:
        """The transcript of a compile, or the reason why there is none."""
        return self.observed()[1]

    def observed(self, while_running: Callable[[], object] | None = None) -> tuple[bytes | None, Transcript | str]:
        """Compile under the observer, and call `while_running` between the start of the compile and its first
        question."""
        compiled, events = observe_source(self.source, self.search, library=self.library, meanwhile=while_running)
        try:
            recording = Recording(events, self.roots, later_ns(), later_ns())
            self.read = [Path(each) for each in recording.texts]
            return compiled.code, recording.transcript()
        except Untracked as reason:
            return compiled.code, str(reason)

    def check(self, transcript: Transcript) -> Match | Mismatch:
        """Compare a transcript with the files as a warm start does."""
        return check_transcript(transcript, self.roots, now_ns=later_ns())

    def copy_to(self, root: Path) -> Project:
        """Copy the project to another root."""
        shutil.copytree(self.root, root, symlinks=True)
        moved = Project(root, self.source)
        moved.folders, moved.trees, moved.more, moved.library = self.folders, self.trees, self.more, self.library
        return moved


class Scenario(NamedTuple):
    """A change to a project after which the old code is stale.

    Args:
        name: The name of the change.
        prepare: Writes the project.
        change: Makes the change.
    """

    name: str
    prepare: Callable[[Project], object]
    change: Callable[[Project], object]


SCENARIOS: list[Scenario] = []


def scenario(prepare: Callable[[Project], object]) -> Callable[[Callable[[Project], object]], Scenario]:
    """Register the decorated change under its name, on the project that `prepare` makes."""

    def register(change: Callable[[Project], object]) -> Scenario:
        registered = Scenario(change.__name__, prepare, change)
        SCENARIOS.append(registered)
        return registered

    return register


def one_header(project: Project) -> None:
    """A source that includes one header of the second folder."""
    project.source = '#include "header.h"\n' + KERNEL
    project.write("source/readme", "")
    project.write("first/readme", "")
    project.write("second/header.h", "#define VALUE 1\n")


@scenario(one_header)
def edit_header(project: Project) -> None:
    project.write("second/header.h", "#define VALUE 200\n")


@scenario(one_header)
def edit_header_same_size_same_mtime(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "#define VALUE 2\n")


def mentions_date(project: Project) -> None:
    one_header(project)
    project.write("second/header.h", "// at __DATE__\n#define VALUE 1\n")


@scenario(mentions_date)
def edit_header_that_mentions_date_same_size(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "// at __DATE__\n#define VALUE 2\n")


def mentions_timestamp(project: Project) -> None:
    one_header(project)
    project.write("second/header.h", "/* __TIMESTAMP__ */\n#define VALUE 1\n")


@scenario(mentions_timestamp)
def edit_header_that_mentions_timestamp_same_size(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "/* __TIMESTAMP__ */\n#define VALUE 2\n")


@scenario(one_header)
def new_header_in_existing_earlier_folder(project: Project) -> None:
    project.write("first/header.h", "#define VALUE 2\n")


def missing_folder(project: Project) -> None:
    one_header(project)
    shutil.rmtree(project.root / "first")


@scenario(missing_folder)
def new_header_in_new_earlier_folder(project: Project) -> None:
    project.write("first/header.h", "#define VALUE 2\n")


@scenario(one_header)
def new_header_next_to_the_source(project: Project) -> None:
    project.write("source/header.h", "#define VALUE 2\n")


def asks_whether(project: Project) -> None:
    project.source = '#if __has_include("extra.h")\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n' + KERNEL
    project.write("source/readme", "")


@scenario(asks_whether)
def has_include_target_appears(project: Project) -> None:
    project.write("second/extra.h", "")


def asks_through_a_macro(project: Project) -> None:
    """Test for a header through a macro, as CCCL of CUDA 12 does."""
    project.source = '#include "ask.h"\n#if ASK("extra.h")\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n' + KERNEL
    project.write("source/ask.h", "#define ASK(_X) __has_include(_X)\n")


@scenario(asks_through_a_macro)
def wrapped_has_include_target_appears(project: Project) -> None:
    project.write("second/extra.h", "")


def linked_header(project: Project) -> None:
    one_header(project)
    project.write("second/one.h", "#define VALUE 1\n")
    project.write("second/two.h", "#define VALUE 2\n")
    project.link("second/header.h".replace("second", "first"), "../second/one.h")


@scenario(linked_header)
def symlink_retargeted_same_size(project: Project) -> None:
    project.link("first/header.h", "../second/two.h")


@scenario(one_header)
def header_deleted(project: Project) -> None:
    (project.root / "second/header.h").unlink()


def two_headers(project: Project) -> None:
    one_header(project)
    project.write("first/header.h", "#define VALUE 2\n")


@scenario(two_headers)
def include_folder_moved_away(project: Project) -> None:
    (project.root / "first").rename(project.root / "away")


def computed(project: Project) -> None:
    one_header(project)
    project.source = '#define HEADER "header.h"\n#include HEADER\n' + KERNEL


@scenario(computed)
def computed_include_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "#define VALUE 2\n")


@scenario(one_header)
def same_source_in_another_folder_with_another_header(project: Project) -> None:
    project.write("elsewhere/header.h", "#define VALUE 2\n")
    project.folders = ["source", "first", "elsewhere"]


def linked_folder(project: Project) -> None:
    one_header(project)
    project.write("v1/header.h", "#define VALUE 1\n")
    project.write("v2/header.h", "#define VALUE 2\n")
    project.link("current", "v1")
    project.folders = ["source", "first", "current"]


@scenario(linked_folder)
def folder_symlink_switched(project: Project) -> None:
    project.link("current", "v2")


def from_the_future(project: Project) -> None:
    one_header(project)
    os.utime(project.root / "second/header.h", (4e9, 4e9))


@scenario(from_the_future)
def header_from_the_future_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "#define VALUE 2\n")


def data_file(project: Project) -> None:
    project.source = (
        '__device__ int table[] = {\n#include "table.inc"\n};\n'
        'extern "C" __global__ void kernel(int *out) { *out = table[threadIdx.x]; }\n'
    )
    project.write("second/table.inc", "1, 2, 3\n")


@scenario(data_file)
def data_file_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/table.inc", "1, 2, 4\n")


# The 17 scenarios above were also tried with ccache and sccache; the following were not.


def nested(project: Project) -> None:
    project.source = '#include "sub/outer.h"\n' + KERNEL
    project.write("second/sub/outer.h", '#include "inner.h"\n')
    project.write("second/inner.h", "#define VALUE 1\n")


@scenario(nested)
def new_header_next_to_its_includer(project: Project) -> None:
    project.write("second/sub/inner.h", "#define VALUE 2\n")


def sibling(project: Project) -> None:
    """Include a header that is beside its includer; an earlier folder has another header of the same name."""
    project.source = "#include <outer.h>\n" + KERNEL
    project.write("second/outer.h", '#include "inner.h"\n')
    project.write("second/inner.h", "#define VALUE 1\n")
    project.write("first/inner.h", "#define VALUE 3\n")


@scenario(sibling)
def header_next_to_its_includer_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/inner.h", "#define VALUE 2\n")


def next_header(project: Project) -> None:
    project.source = "#include <header.h>\n" + KERNEL
    project.folders = ["first", "between", "second"]
    project.write("first/header.h", "#include_next <header.h>\n")
    project.write("second/header.h", "#define VALUE 1\n")


@scenario(next_header)
def include_next_target_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "#define VALUE 2\n")


@scenario(next_header)
def include_next_target_shadowed(project: Project) -> None:
    project.write("between/header.h", "#define VALUE 2\n")


def once_by_two_paths(project: Project) -> None:
    project.source = '#define VALUE 0 ADD\n#define ADD\n#include "one.h"\n#include "two.h"\n' + KERNEL
    text = "#pragma once\n#ifdef SEEN\n#undef ADD\n#define ADD + 1\n#endif\n#define SEEN\n"
    project.write("second/one.h", text)
    project.link("second/two.h", "one.h")


@scenario(once_by_two_paths)
def one_file_by_two_paths_becomes_two_files(project: Project) -> None:
    (project.root / "second/two.h").unlink()
    shutil.copy2(project.root / "second/one.h", project.root / "second/two.h")


def in_a_circle(project: Project) -> None:
    """Headers that include each other by the name of their folder."""
    project.source = '#include "../inc/a.h"\n' + KERNEL
    project.write("source/readme", "")
    project.write("inc/a.h", '#ifndef A\n#define A\n#include "../inc/b.h"\n#endif\n')
    project.write("inc/b.h", '#include "../inc/a.h"\n#define VALUE 1\n')


@scenario(in_a_circle)
def folder_becomes_a_link_beside_another_of_its_name(project: Project) -> None:
    """Replace inc by a link: the source includes the same header, but from there `../inc` is another folder."""
    shutil.copytree(project.root / "inc", project.root / "elsewhere/inc")
    (project.root / "inc").rename(project.root / "elsewhere/tree")
    project.write("elsewhere/inc/b.h", "#define VALUE 2\n")
    project.link("inc", "elsewhere/tree")


def in_tree(project: Project) -> None:
    project.source = "#include <kit/kit.h>\n" + KERNEL
    project.write("source/readme", "")
    project.write("tree/include/kit/kit.h", "#include <kit/value.h>\n")
    project.write("tree/include/kit/value.h", "#define VALUE 1\n")
    project.folders = ["source", "tree/include"]
    project.trees = (str(project.root / "tree"),)


@scenario(in_tree)
def toolkit_header_shadowed(project: Project) -> None:
    project.write("source/kit/value.h", "#define VALUE 2\n")


def in_tree_computed(project: Project) -> None:
    """Include a computed name, as Thrust in CCCL does: a scanner cannot determine that header."""
    in_tree(project)
    project.write("tree/include/kit/kit.h", "#define PICK(name) <kit/name>\n#include PICK(value.h)\n")


@scenario(in_tree_computed)
def computed_include_of_the_toolkit_shadowed(project: Project) -> None:
    project.write("source/kit/value.h", "#define VALUE 2\n")


@scenario(in_tree)
def toolkit_header_edited_in_place(project: Project) -> None:
    project.edit_and_restore_mtime("tree/include/kit/value.h", "#define VALUE 2\n")


def in_tree_of_two_folders(project: Project) -> None:
    in_tree(project)
    project.write("tree/first/first.txt", "")
    project.folders = ["source", "tree/first", "tree/include"]


@scenario(in_tree_of_two_folders)
def toolkit_header_shadowed_within_the_toolkit(project: Project) -> None:
    project.write("tree/first/kit/value.h", "#define VALUE 2\n")


def in_tree_asking(project: Project) -> None:
    in_tree(project)
    asking = "#if __has_include(<kit/other.h>)\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n"
    project.write("tree/include/kit/value.h", asking)


@scenario(in_tree_asking)
def header_that_a_toolkit_asks_about_appears_in_it(project: Project) -> None:
    project.write("tree/include/kit/other.h", "")


def in_tree_computed_in_two_folders(project: Project) -> None:
    in_tree_of_two_folders(project)
    project.write("tree/include/kit/kit.h", "#define PICK(name) <kit/name>\n#include PICK(value.h)\n")


@scenario(in_tree_computed_in_two_folders)
def computed_include_of_the_toolkit_shadowed_within_it(project: Project) -> None:
    project.write("tree/first/kit/value.h", "#define VALUE 2\n")


@scenario(in_tree_computed_in_two_folders)
def computed_include_of_the_toolkit_edited(project: Project) -> None:
    project.edit_and_restore_mtime("tree/include/kit/value.h", "#define VALUE 2\n")


@scenario(in_tree)
def another_folder_of_the_same_toolkit(project: Project) -> None:
    project.write("tree/other/kit/kit.h", "#define VALUE 2\n")
    project.folders = ["source", "tree/other"]


@scenario(one_header)
def include_folders_in_another_number(project: Project) -> None:
    project.write("zeroth/header.h", "#define VALUE 2\n")
    project.folders = ["zeroth", *project.folders]


def forced(project: Project) -> None:
    project.source = KERNEL
    project.write("second/forced.h", "#define VALUE 1\n")
    project.write("work/readme", "")
    project.more = {"forced": ("forced.h",), "working_folder": str(project.root / "work")}


@scenario(forced)
def forced_include_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/forced.h", "#define VALUE 2\n")


@scenario(forced)
def forced_include_shadowed_in_working_folder(project: Project) -> None:
    project.write("work/forced.h", "#define VALUE 2\n")


def given_by_definition(project: Project) -> None:
    one_header(project)
    project.source = "#include HEADER\n" + KERNEL
    project.more = {"definitions": (("HEADER", "<header.h>"),)}


@scenario(given_by_definition)
def include_computed_from_a_definition_shadowed(project: Project) -> None:
    project.write("first/header.h", "#define VALUE 2\n")


def from_memory(project: Project) -> None:
    one_header(project)
    project.source = '#include "given.h"\n' + KERNEL
    project.more = {"memory": {"given.h": '#include "header.h"\n'}, "working_folder": str(project.root / "source")}


@scenario(from_memory)
def header_of_an_in_memory_header_edited(project: Project) -> None:
    project.edit_and_restore_mtime("second/header.h", "#define VALUE 2\n")


def linked(project: Project) -> None:
    """Link CUDA C++ to a Numba kernel: its own folder is the last one, but the first for quoted names."""
    one_header(project)
    project.folders = ["first", "second", "own"]
    project.more = {"source_base": 2}
    project.write("own/header.h", "#define VALUE 3\n")


@scenario(linked)
def header_next_to_a_linked_text_edited(project: Project) -> None:
    project.edit_and_restore_mtime("own/header.h", "#define VALUE 4\n")


@scenario(linked)
def header_next_to_a_linked_text_deleted(project: Project) -> None:
    (project.root / "own/header.h").unlink()


def linked_angled(project: Project) -> None:
    linked(project)
    project.source = "#include <header.h>\n" + KERNEL
    (project.root / "second/header.h").unlink()


@scenario(linked_angled)
def header_of_a_linked_text_shadowed(project: Project) -> None:
    project.write("second/header.h", "#define VALUE 1\n")


def without_folder(project: Project) -> None:
    one_header(project)
    project.write("work/readme", "")
    project.more = {"source_base": WORKING, "working_folder": str(project.root / "work")}


@scenario(without_folder)
def header_appears_in_the_working_directory_of_a_text_without_folder(project: Project) -> None:
    project.write("work/header.h", "#define VALUE 2\n")


def folder_within_another(project: Project) -> None:
    """Include by the source's folder a header that is in another folder of the search, too."""
    project.folders = ["source", "source/inc"]
    project.source = '#include "inc/header.h"\n' + KERNEL
    project.write("source/inc/header.h", "#define VALUE 1\n")


@scenario(folder_within_another)
def folder_moves_out_of_another_and_its_header_is_edited(project: Project) -> None:
    project.write("elsewhere/header.h", "#define VALUE 1\n")
    project.write("source/inc/header.h", "#define VALUE 2\n")
    project.folders = ["source", "elsewhere"]
