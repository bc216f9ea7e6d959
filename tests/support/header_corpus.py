"""Change trees of headers at random, and compare the outcome of the cache with a fresh compile after each change.

A step makes one change. If a header set matches although NVRTC's output has changed, the hit is stale. If it does not
match although the output is the same, the miss is needless. A step after which the source does not compile is undone,
and no headers are learned from it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numba_kcache.headers.check import Match
from numba_kcache.headers.transcript import Transcript

from .header_projects import Project

SLOTS = 12
"""Number of macros of each kind in `MACROS`: V of each header, W of a second header of the same name, E of added text,
A of `__has_include`."""

MACROS = [f"{letter}{slot}" for letter in "VWEA" for slot in range(SLOTS)]
READING = "".join(f"#ifdef {name}\n    out[{at}] = {name};\n#endif\n" for at, name in enumerate(MACROS))
Step = Callable[[Project, random.Random], object]


class Tally(NamedTuple):
    """Outcomes of the steps.

    Args:
        steps: Number of steps by kind.
        changing: Number of those that changed NVRTC's output.
        stale, needless: The kinds of the steps with such an outcome.
        refused: The reasons for which the headers were not learned.
        altered: The kinds of the steps after which the observed code was not that of a plain compile.
    """

    steps: Counter[str]
    changing: Counter[str]
    stale: list[str]
    needless: list[str]
    refused: list[str]
    altered: list[str]

    def figures(self) -> dict[str, Any]:
        """The figures as JSON values."""
        outcomes = {
            "stale": self.stale,
            "needless": self.needless,
            "not learned": self.refused,
            "altered": self.altered,
        }
        return {"steps": dict(self.steps), "changing": dict(self.changing), **outcomes}

    def report(self) -> str:
        """One line per figure."""
        total, changing, needless = self.steps.total(), self.changing.total(), len(self.needless)
        lines = [f"steps {total}, changing the output {changing} ({100 * changing // max(total, 1)} %)"]
        lines += [f"  {kind}: {count}, changing {self.changing[kind]}" for kind, count in sorted(self.steps.items())]
        lines.append(
            f"stale {len(self.stale)}, needless {needless} ({100 * needless / max(total, 1):.1f} %), "
            f"not learned {len(self.refused)} {Counter(self.refused)}, altered {len(self.altered)}"
        )
        lines += [f"  stale after {each}" for each in self.stale]
        lines += [f"  needless after {each}: {n}" for each, n in Counter(self.needless).items()]
        return "\n".join(lines)


class Cached(NamedTuple):
    """The state of the cache: the transcript and the code of the last compile; no transcript if there is none."""

    transcript: Transcript | None
    code: bytes | None


def run(
    project: Project,
    steps: dict[str, tuple[int, Step]],
    count: int,
    seed: int,
    *,
    library: str = "",
    rest_every: int = 10,
) -> Tally:
    """Change the project `count` times and compare the cache with a fresh compile.

    Args:
        project: A project that compiles.
        steps: For each kind its weight and its function, which returns None if it cannot make its change.
        count: Number of changes.
        seed: The seed of the random numbers.
        library: The path of a libnvrtc; "" for the installed one.
        rest_every: Number of steps after which the original tree is restored.
    """
    chance = random.Random(seed)
    tally = Tally(Counter(), Counter(), [], [], [], [])
    project.library = library
    backup = project.root.with_name(project.root.name + ".backup")
    shutil.copytree(project.root, backup, symlinks=True)
    cached = _learned(project, tally)
    assert project.read, f"no header of {project.root.name} was learned: {tally.refused}"
    kinds = [kind for kind, (weight, _step) in steps.items() for _ in range(weight)]
    while tally.steps.total() < count:
        if tally.steps.total() % rest_every == rest_every - 1:
            _put_back(project, backup)
            cached = _learned(project, tally)
        kind = chance.choice(kinds)
        if steps[kind][1](project, chance) is None:
            continue
        tally.steps[kind] += 1
        outcome = project.check(cached.transcript) if cached.transcript else None
        code = project.compile().code
        tally.changing[kind] += code != cached.code
        if isinstance(outcome, Match) and code != cached.code:
            tally.stale.append(kind)
        elif outcome is not None and not isinstance(outcome, Match) and code == cached.code:
            tally.needless.append(f"{kind} ({outcome.kind})")
        if code is None:
            _put_back(project, backup)
            cached = _learned(project, tally)
        elif not isinstance(outcome, Match):
            cached = _learned(project, tally)
            if cached.code != code:
                tally.altered.append(kind)
    shutil.rmtree(backup)
    return tally


def _put_back(project: Project, backup: Path) -> None:
    shutil.rmtree(project.root)
    shutil.copytree(backup, project.root, symlinks=True)


def _learned(project: Project, tally: Tally) -> Cached:
    code, outcome = project.observed()
    assert code
    if isinstance(outcome, Transcript):
        return Cached(outcome, code)
    tally.refused.append(outcome)
    return Cached(None, code)


def maze(root: Path, seed: int) -> Project:
    """Generate a tree: shadowed names, nested `#if`, `__has_include`, `#include_next`, symlinks, computed includes."""
    chance = random.Random(seed)
    project = Project(root)
    project.folders = ["source", "first", "second", "third"]
    names = [f"h{slot}.h" if slot % 3 else f"sub/h{slot}.h" for slot in range(SLOTS)]
    for slot, name in enumerate(names):
        project.write(f"{chance.choice(project.folders[1:])}/{name}", _header("V", slot, names, chance))
        if chance.random() < 0.3:  # the same name in another folder, earlier or later
            project.write(f"{chance.choice(project.folders[1:])}/{name}", _header("W", slot, names, chance))
    project.write("third/plain.h", "#define PLAIN 100\n")
    project.link("second/linked.h", "../third/plain.h")
    project.write("third/other.h", "#define PLAIN 200\n")
    project.write("first/next.h", "#define NEXTS 100\n#include_next <next.h>\n")
    project.write("third/next.h", "#define NEXT 300\n")
    project.write("third/unread.h", "#define UNREAD 1\n")
    for folder in project.folders:
        project.write(f"{folder}/readme", "")
    project.source = (
        f'#define COMPUTED "{names[1]}"\n#include COMPUTED\n#include "{names[2]}"\n#include <{names[3]}>\n'
        '#include "linked.h"\n#include <next.h>\n'
        "#if 0\n#include <unread.h>\n#endif\n"
        '#if __has_include("asked.h") || __has_include(<sub/asked.h>)\n#define ASKED 1\n'
        "#else\n#define ASKED 0\n#endif\n"
        'extern "C" __global__ void kernel(int *out) {\n'
        f"{READING}    out[60] = PLAIN; out[61] = NEXT + NEXTS; out[62] = ASKED;\n}}\n"
    )
    return project


def _header(kind: str, slot: int, names: list[str], chance: random.Random) -> str:
    guard = "#pragma once\n" if slot % 2 else f"#ifndef H{kind}{slot}\n#define H{kind}{slot}\n"
    text = f"// {slot:03d}\n{guard}#undef {kind}{slot}\n#define {kind}{slot} {chance.randrange(100, 999)}\n"
    for other in chance.sample(range(slot + 1, SLOTS), min(2, SLOTS - slot - 1)):
        include = f'#include "{names[other]}"\n' if chance.random() < 0.5 else f"#include <{names[other]}>\n"
        if chance.random() < 0.4:
            include = (
                f"#if defined(V{chance.randrange(SLOTS)})\n{include}#elif defined(NEVER)\n#include <unread.h>\n#endif\n"
            )
        if chance.random() < 0.3:
            include = f'#if __has_include("asked{other}.h")\n#define A{other} 1\n#else\n{include}#endif\n'
        text += include
    return text if slot % 2 else text + "#endif\n"


def _headers(project: Project) -> list[Path]:
    return sorted(path for path in project.root.rglob("*.h") if path.is_file() and not path.is_symlink())


def _choice(project: Project, chance: random.Random) -> Path:
    """Choose a header, mostly one that the last compile read."""
    read = [path for path in project.read if path.is_file() and not path.is_symlink()]
    return chance.choice(read if read and chance.random() < 0.85 else _headers(project))


def _numbered(project: Project, chance: random.Random) -> tuple[Path, str, int] | None:
    """Choose a header; return its path, its text and the offset of a number in it, or None if it has none."""
    path = _choice(project, chance)
    text = path.read_text()
    mark = next((mark for mark in ("#define V", "#define W") if mark in text), "#define ")
    at = text.rfind(" ", 0, text.find("\n", text.find(mark))) + 1
    return (path, text, at) if text[at : at + 3].isdigit() else None


def edit_same_size(project: Project, chance: random.Random) -> object:
    """Change a number in a header, which keeps its size and mtime."""
    found = _numbered(project, chance)
    if found is None:
        return None
    path, text, at = found
    project.edit_and_restore_mtime(
        str(path.relative_to(project.root)), f"{text[:at]}{chance.randrange(100, 999)}{text[at + 3 :]}"
    )
    return path


def edit(project: Project, chance: random.Random) -> object:
    """Append a macro to a header."""
    path = _choice(project, chance)
    slot = chance.randrange(SLOTS)
    path.write_text(path.read_text() + f"#undef E{slot}\n#define E{slot} {chance.randrange(100, 999)}\n")
    return path


def edit_comment(project: Project, chance: random.Random) -> object:
    """Add a comment to a header: the compiler's output stays the same."""
    path = chance.choice(_headers(project))
    path.write_text(f"// {chance.random()}\n" + path.read_text())
    return path


def shadow(project: Project, chance: random.Random) -> object:
    """Add a header of the same name in another folder, earlier or later in the search."""
    path = _choice(project, chance)
    rest = Path(*path.relative_to(project.root).parts[1:])
    target = project.root / chance.choice(project.folders) / (rest if chance.random() < 0.8 else f"sub/{rest.name}")
    if target.exists() or target.is_symlink():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    slot = chance.randrange(SLOTS)
    target.write_text(path.read_text() + f"#undef E{slot}\n#define E{slot} {chance.randrange(100, 999)}\n")
    return target


def delete(project: Project, chance: random.Random) -> object:
    """Delete a header."""
    path = _choice(project, chance)
    path.unlink()
    return path


def answer(project: Project, chance: random.Random) -> object:
    """Add or remove a file that a `__has_include` asks for."""
    name = chance.choice(["asked.h", "sub/asked.h", *(f"asked{slot}.h" for slot in range(SLOTS))])
    path = project.root / chance.choice(project.folders) / name
    if path.exists():
        path.unlink()
    else:
        project.write(str(path.relative_to(project.root)), "")
    return path


def retarget(project: Project, chance: random.Random) -> object:
    """Let the symlink point to the other header."""
    path = project.root / "second/linked.h"
    if not path.is_symlink():
        return None
    target = "../third/plain.h" if os.readlink(path).endswith("other.h") else "../third/other.h"
    project.link("second/linked.h", target)
    return target


def touch(project: Project, _chance: random.Random) -> object:
    """Give all headers new times."""
    for path in _headers(project):
        path.touch()
    return project


def check_out(project: Project, chance: random.Random) -> object:
    """Delete some headers and write them again with the same text, as git does."""
    for path in _headers(project):
        if chance.random() < 0.5:
            text = path.read_bytes()
            path.unlink()
            path.write_bytes(text)
    return project


def move(project: Project, _chance: random.Random) -> object:
    """Rename the root of the whole tree."""
    target = project.root.with_name(project.root.name + "_")
    project.root.rename(target)
    project.root = target
    return target


def edit_unread(project: Project, chance: random.Random) -> object:
    """Edit a header that is included in a branch that is never taken, or not at all."""
    return project.write(chance.choice(["third/unread.h", "second/nobody.h"]), f"// {chance.random()}\n")


def add_unrelated(project: Project, chance: random.Random) -> object:
    """Add a header with a name that no text includes."""
    return project.write(f"{chance.choice(project.folders)}/new{chance.randrange(1 << 30)}.h", "")


MAZE_STEPS: dict[str, tuple[int, Step]] = {
    "same-size edit": (10, edit_same_size),
    "edit": (3, edit),
    "comment": (1, edit_comment),
    "shadow": (6, shadow),
    "delete": (2, delete),
    "answer": (4, answer),
    "symlink": (3, retarget),
    "touch": (1, touch),
    "checkout": (1, check_out),
    "move": (1, move),
    "unread": (1, edit_unread),
    "unrelated": (1, add_unrelated),
}
