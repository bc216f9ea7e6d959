"""Run a scenario: edits and asks in order, each answer of the cache judged by the plain compilers'.

Promise     A scenario is a list of plain data and runs alike each time, in a folder and with its own cache.
            Each ask ends in one verdict; what is in `FAULTS` is a finding.
Method      The world is edited here, in a process that loads no compiler. The cache is asked in a forked process that
            lives as long as the scenario, or in a fresh one; the plain compilers in another.
            Where a compile is to be disturbed, the cache's process stops at its beginning and at its end: the edits of
            that moment are made here, and the plain compilers take the program as it is then, before it goes on.
            An ask must be a hit where the same meaning was served before: the same contents, links, options.
"""

from __future__ import annotations

import collections
import gc
import json
import math
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from . import cpp_asks, mlir_asks, python_asks, stand_in_asks
from .code import difference
from .cpp_asks import Answer
from .processes import Child, Gone, alone
from .world import CHECKOUT, Edit, World

FAULTS = {
    "stale": "a hit served code that a plain compile does not make",
    "altered": "a compile made other code than the plain compilers",
    "failed": "the cache raised where the plain compilers make code",
    "refused": "a program was not cached although all it rests on can be known",
    "needless": "a compile although nothing changed for the compiler",
    "keys": "the stand-in and Numba have different keys for one program",
    "died": "the process died or hung",
    "broken": "the test itself failed",
}
OTHER_NVRTC = os.environ.get("NUMBA_KCACHE_TEST_NVRTC13", "")
"""A folder with another NVRTC of the same major version, which other packages may have loaded; "" for none."""

BESIDE = " in the working directory"
"""Of a state: where a file was found that an option includes. What was served from elsewhere is served here too; the
other way round the search goes on to folders where nobody looked, and the program is compiled once."""

KINDS = {"cpp": cpp_asks, "ptx": cpp_asks, "python": python_asks, "mlir": mlir_asks, "stand-in": stand_in_asks}
OF_PYTHON = ("python", "mlir", "stand-in")


class Verdict(NamedTuple):
    """Judgement of an ask.

    Args:
        word: One of `FAULTS`, or "hit", "miss", "error" (both refuse the program), "uncached" (rightly refused).
        cause: Kinds of the edits since the ask before.
        detail: What differs.
        at: Number of the ask among the scenario's edits.
    """

    word: str
    cause: tuple[str, ...]
    detail: str
    at: int


class Bench:
    """Place in which scenarios run: a scratch folder, a cache that knows the toolkit, a process for plain compiles."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.scratch = Path(tempfile.mkdtemp(prefix="differential-"))
        self._number = 0
        self._oracle: Child | None = None
        self._is_warm = False
        self._template = self.scratch / "known"

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.forget_oracle()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def folder(self) -> Path:
        """An empty folder of its own for a scenario."""
        self._number += 1
        folder = self.scratch / f"scenario{self._number}"
        folder.mkdir()
        return folder

    def prepare(self, kind: str) -> None:
        """Load here what each process of this kind would load."""
        if kind in OF_PYTHON and not self._is_warm:
            self._is_warm = True
            self.forget_oracle()
            KINDS[kind].warm()
            gc.collect()
            gc.freeze()  # else each forked process walks, and so copies, all that was imported

    def cache(self, folder: Path) -> Path:
        """A cache in a folder: empty but for what is known of the toolkit."""
        if not self._template.exists():
            world = World(self.folder())
            world.apply({"edit": "write", "path": "src/a.h", "text": ""})
            text = '#include "a.h"\nextern "C" __global__ void k() {}\n'
            world.apply({"edit": "write", "path": "src/k.cu", "text": text})
            call = {"folder": str(world.folder), "name": world.name, "directory": str(self._template), "options": {}}
            known = alone(cpp_asks.serve, call)
            assert known.code, known
        shutil.copytree(self._template, folder / "cache")
        return folder / "cache"

    def plain(self, call: dict[str, Any], kind: str) -> list[Answer]:
        """Compile the program as it is now with the plain compilers."""
        ask = KINDS[kind].plain
        if kind == "stand-in":
            return list(ask(call))
        if kind in OF_PYTHON or call.get("compiler"):
            return list(alone(ask, call))
        self._oracle = self._oracle or Child()
        return list(self._oracle.call(ask, call))

    def forget_oracle(self) -> None:
        """Start another process for the next plain compile."""
        if self._oracle is not None:
            self._oracle.end()
        self._oracle = None
        stand_in_asks.end()


def label(edit: Edit) -> str:
    """The kind of an edit, for counts."""
    name = edit["edit"]
    details = [edit.get("name", "")] if name in ("set", "patch") else []
    details += [edit["way"]] if edit.get("way", "in place") != "in place" else []
    details += ["same time"] if edit.get("keeps_time") else []
    details += [edit["label"]] if "label" in edit else []
    return " ".join(filter(None, [name, *details]))


class Run:
    """One scenario, being run."""

    def __init__(self, bench: Bench, kind: str) -> None:
        bench.prepare(kind)
        self.bench, self.kind = bench, kind
        self.world = World(bench.folder())
        self.directory = bench.cache(self.world.folder)
        self.settings: dict[str, Any] = {"options": {}}
        self.env: dict[str, str | None] = {}
        self.patches: list[Edit] = []
        self.served: dict[str, list[bytes | str]] = {}
        self.child = Child()
        self._imported = ""

    def call(self, ask: Edit) -> dict[str, Any]:
        """Return everything that another process needs to make the request."""
        ask = {**ask, "compiler": OTHER_NVRTC} if ask.get("compiler") else ask
        return {
            "folder": str(self.world.folder), "name": self.world.name, "directory": str(self.directory),
            "env": self.env, "patches": self.patches, **self.settings, **ask,
        }  # fmt: skip

    def apply(self, edit: Edit) -> None:
        """Do an edit of the world, of the calls that request its code, or of the running program."""
        name = edit["edit"]
        if name == "set":
            self.settings[edit["name"]] = edit["value"]
        elif name == "env":
            self.env[edit["name"]] = edit["value"]
        elif name == "patch":
            self.patches = [each for each in self.patches if each["name"] != edit["name"]] + [edit]
        elif name == "decorate":
            self.child.call(KINDS[self.kind].decorate, self.call({}))
        else:
            self.world.apply(edit)

    def ask(self, ask: Edit, cause: tuple[str, ...], at: int) -> Verdict:
        """Request the code from the cache and from the plain compilers."""
        module, call = KINDS[self.kind], self.call(ask)
        self._forget_registrations()
        if self.kind == "stand-in":
            return self._ask_both(call, cause, at)
        state, truths = self._state(call), list[Answer]()

        def reached(moment: str) -> list[Edit]:
            """Make the edits of a moment of the compile, and compile the program as it is then."""
            edits = [edit for each in call["during"] if each["when"] == moment for edit in each["edits"]]
            for edit in edits:
                self.apply(edit)
            if edits or not truths:
                begun = {each.main for each in truths if each.main}
                for main in (b"", *begun):  # a source that is linked is compiled later than the kernel's
                    truths.extend(self._plain({**ask, "main": main}))
            return edits

        try:
            if call.get("process") == "fresh" or call.get("compiler"):
                given = alone(module.serve, call, at=reached)
            else:
                given = self.child.call(module.serve, call, at=reached)
        except (Gone, RuntimeError) as error:
            return Verdict("died", cause, str(error)[-2000:], at)
        truths = truths or self._plain(ask)
        word, detail = self._judge(call, given, truths)
        if call.get("during"):
            word = "uncached" if word == "refused" else word
        elif word in ("hit", "miss"):
            codes = [each.code for each in truths if each.code is not None]
            known = [*self.served.get(state, []), *self.served.get(state.replace(BESIDE, ""), [])]
            if word == "miss" and any(difference(code, other, exact=True) is None for code in codes for other in known):
                word, detail = "needless", "the same program was served before"
            self.served.setdefault(state, []).extend(codes)
        return Verdict(word, cause, detail, at)

    def _ask_both(self, call: dict[str, Any], cause: tuple[str, ...], at: int) -> Verdict:
        """Request the code with the stand-in and with Numba: one key, and a hit of what the other has stored."""
        truths, state = self.bench.plain(call, self.kind), self._state(call)
        asks = {
            "stand-in": lambda: (alone if call.get("process") else self.child.call)(stand_in_asks.serve, call),
            "real": lambda: stand_in_asks.serve_real(call),
        }
        try:
            given = {way: asks[way]() for way in sorted(asks, reverse=call.get("first") == "stand-in")}
        except (Gone, RuntimeError) as error:
            return Verdict("died", cause, str(error)[-2000:], at)
        cause = (*cause, f"way {given['stand-in'].way}, {call.get('first', 'real')} first")
        judged = [(*self._judge(call, each, truths), way) for way, each in given.items()]
        if wrong := next((each for each in judged if each[0] in FAULTS), None):
            return Verdict(wrong[0], cause, f"{wrong[2]}: {wrong[1]}", at)
        (word, detail, _first), (later, _detail, _second) = judged
        if len({each.key for each in given.values()}) != 1:
            return Verdict("keys", cause, str({way: each.key for way, each in given.items()}), at)
        codes, known = [each.code for each in truths if each.code is not None], self.served.setdefault(state, [])
        was_served = any(difference(code, other, exact=True) is None for code in codes for other in known)
        known += codes
        if later == "miss" or (word == "miss" and was_served):
            return Verdict("needless", cause, f"{word} then {later}", at)
        return Verdict(word, cause, detail, at)

    def _forget_registrations(self) -> None:
        """Go on in another process where modules changed: a registration with Numba outlives its module."""
        texts = sorted(self.world.texts())
        now = json.dumps([str(self.world.root), texts])
        registers = any("@overload" in text or "@intrinsic" in text for text in texts)
        if self.kind in OF_PYTHON and registers and now != self._imported:
            self.child.end()
            self.child = Child()
        self._imported = now

    def _plain(self, ask: Edit) -> list[Answer]:
        """Compile the program as it is now with the plain compilers."""
        call = self.call(ask)
        asked = [call, {**call, "compiler": ""}] if call.get("compiler") else [call]
        # what the installed compiler made is served beside another one
        return [answer for each in asked for answer in self.bench.plain(each, self.kind)]

    def _judge(self, call: dict[str, Any], given: Answer, truths: list[Answer]) -> tuple[str, str]:
        codes = [each.code for each in truths if each.code is not None]
        if given.code is None:
            if len(codes) < len(truths):
                return "error", given.failed or given.refused
            if given.refused:
                is_right = self._may_refuse(call) or (self.world.is_mapped and "open for writing" in given.refused)
                # Of a patched module a name that is kept leads to what nothing names any more.
                is_patched = any(each["module"] in ("math", "operator") for each in self.patches)
                is_right = is_right or (is_patched and "extension module" in given.refused)
                return ("uncached" if is_right else "refused"), given.refused
            return "failed", given.failed
        found = [difference(given.code, code, exact=self.bench.exact) for code in codes]
        if None in found:
            return ("hit" if given.is_hit else "miss"), ""
        detail = next(iter(found), "") or "the plain compilers say: " + (truths[0].failed if truths else "")
        return ("stale" if given.is_hit else "altered"), detail

    def _may_refuse(self, call: dict[str, Any]) -> bool:
        """Check whether the program depends on state that cannot be known: the clock, or state that typing code
        reads."""
        texts, has_absolute = [*self.world.texts()], any(str(self.world.root) in each for each in self.world.texts())
        # Beside an absolute name nothing can be compiled to find out, and a raw string hides what is a directive.
        texts = [text if has_absolute and 'R"' in text else re.sub(r"(?s)#if 0\n.*?#endif", "", text) for text in texts]
        words = ("__DATE__", "__TIME__", "may not be cached")
        return any(word in text for word in words for text in [*texts, json.dumps(call["patches"])])

    def _state(self, call: dict[str, Any]) -> str:
        options = dict(call["options"])
        if "defines" in options:
            options["defines"] = sorted(options["defines"].items())
        raw = options.get("options", [])
        tables = cpp_asks.has_tables(options)
        place = str(self.world.root) if tables or self.world.says_place() else ""
        # A name that a #line gives is relative, whether or not code comes of it.
        has_names = tables and any(re.search(r"(?m)^\s*(#|%:)\s*line\b", text) for text in self.world.texts())
        # LTO-IR with lines has the working directory; what is linked of it may not show that (docs/keys.md, `lines`).
        has_names = has_names or (tables and options.get("lto"))
        cwd = call.get("cwd", ".") if options.get("debug") or "-G" in raw or has_names else ""
        patches = sorted(
            (each["name"], each["code"]) for each in self.patches if each.get("counts", True) and each["code"]
        )
        forced = [self._leads_to(each.partition("=")[2], call) for each in raw if "-include=" in each]
        others = [forced, call.get("thing"), call.get("compiler"), call.get("signature"), call.get("kernel")]
        variables = {name: text for name, text in self.env.items() if name.startswith("NUMBA_") and text is not None}
        return json.dumps(
            [self.world.meaning(lines=tables), options, place, cwd, patches, others, variables], sort_keys=True
        )

    def _leads_to(self, name: str, call: dict[str, Any]) -> str:
        """Path in the checkout of a file that an option includes: one in the working directory comes first."""
        src = self.world.root / "src"
        given = [src / each for each in call["options"].get("include_dirs", [])]
        cwd = self.world.folder / self.world.expand(call.get("cwd", "."))
        found = next((each / name for each in (cwd, src, *given) if (each / name).is_file()), None)
        if found is None:
            return ""
        # For the file's #include_next, and its name, it is another answer if the working directory has it.
        is_told = cpp_asks.has_tables(call["options"]) or self.world.says_place()
        is_told = is_told or any("include_next" in text for text in self.world.texts())
        return f"{os.path.relpath(found, self.world.root)}{(' first' if is_told else BESIDE) * (found.parent == cwd)}"

    def end(self) -> None:
        """End the processes and remove the folder."""
        self.child.end()
        shutil.rmtree(self.world.folder, ignore_errors=True)


def run(bench: Bench, kind: str, edits: list[Edit], *, until: float = math.inf) -> list[Verdict]:
    """Run a scenario and return a verdict for each ask; nothing is asked after `until`, by the monotonic clock."""
    at_work, verdicts, cause = Run(bench, kind), [], []
    try:
        for at, edit in enumerate(edits):
            if time.monotonic() > until:
                break
            if edit["edit"] == "ask":
                verdicts.append(at_work.ask(edit, (*dict.fromkeys(cause), *_during(edit)), at))
                cause = []
                if verdicts[-1].word == "died":
                    break
            else:
                at_work.apply(edit)
                cause.append(label(edit))
    finally:
        at_work.end()
    return verdicts


def _during(ask: Edit) -> tuple[str, ...]:
    kinds = tuple(f"during: {label(edit)}" for each in ask.get("during") or [] for edit in each["edits"])
    extra = [name for name in ("process", "decorated", "compiler") if ask.get(name)]
    return kinds + tuple(f"ask {name}" for name in extra)


def faults(verdicts: list[Verdict]) -> list[Verdict]:
    """The findings among the verdicts."""
    return [each for each in verdicts if each.word in FAULTS]


def tally(verdicts: list[Verdict]) -> collections.Counter[tuple[str, str]]:
    """Count verdicts by kind of edit."""
    return collections.Counter((kind, each.word) for each in verdicts for kind in (*sorted(set(each.cause)), "all"))


__all__ = ["CHECKOUT", "FAULTS", "Bench", "Verdict", "faults", "label", "run", "tally"]
