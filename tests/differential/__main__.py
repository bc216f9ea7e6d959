"""Run random scenarios and say what the cache got wrong.

    python -m tests.differential --steps 300 [--seconds 60] [--seed 1] [--processes 2] [--json FILE] [--keep FOLDER]
                                   [--kind cpp|ptx|python|mlir|stand-in]
    python -m tests.differential --only SEED:NUMBER
    python -m tests.differential --replay tests/differential/found/NAME.json ...

A step is an ask: what the cache serves against what the plain compilers make. A finding is made smaller and printed as
a scenario, which --replay runs again. The exit code is 1 where anything was found.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.support.fake_driver import build, environment

from .cpp_programs import CppProgram
from .mlir_programs import MlirProgram
from .ptx_programs import PtxProgram
from .python_programs import PythonProgram
from .scenario import FAULTS, Bench, Verdict, faults, run, tally
from .shrinking import shrink
from .stand_in_programs import StandInProgram
from .world import Edit

PROGRAMS: dict[str, Any] = {
    "cpp": CppProgram, "ptx": PtxProgram, "python": PythonProgram, "mlir": MlirProgram, "stand-in": StandInProgram,
}  # fmt: skip
ASKS = {"cpp": 12, "ptx": 12, "python": 8, "mlir": 8, "stand-in": 8}
SHARES = {"cpp": 0.8, "ptx": 0.05, "python": 0.15}
"""Of the scenarios: an ask of Numba takes three times as long as one of NVRTC. `--kind mlir` asks for kernels of
numba-cuda-mlir, which may not be installed, `--kind stand-in` for each kernel both ways, on the fake driver."""

GRACE_S, HUNG = 20.0, 99
"""Seconds that a process has for its last ask after its time is over, and the exit code of one that took longer."""

PLAIN_BYTES = True
"""True to hold every byte of a cubin against the plain compilers', not the code and data in it alone."""


def scenario(seed: str, kind: str = "") -> tuple[str, list[Edit]]:
    """The kind and the edits of the scenario of a seed."""
    chance = random.Random(seed)
    drawn = chance.choices(list(SHARES), list(SHARES.values()))[0]
    kind = kind or drawn
    program = PROGRAMS[kind](chance)
    edits = [*program.begin(), {"edit": "ask"}]
    for _ in range(ASKS[kind]):
        edits += program.step()
    return kind, edits


def main() -> int:
    """Run what the command line says."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--steps", type=int, default=300)
    words.add_argument("--seconds", type=float, default=1e9, help="after which nothing more is asked")
    words.add_argument("--seed", default=str(time.time_ns() % 10**9))
    words.add_argument("--processes", type=int, default=1)
    words.add_argument("--kind", choices=sorted(PROGRAMS), default="")
    words.add_argument("--only", help="one scenario, by the seed that a finding names")
    words.add_argument("--replay", type=Path, nargs="+", help="scenarios in files")
    words.add_argument("--json", type=Path, help="where to write counts and findings")
    words.add_argument("--keep", type=Path, help="a folder for the scenarios of findings")
    words.add_argument("--ignore", default="", help="verdicts that are no findings, with commas between")
    words.add_argument("--shrink", type=float, default=60.0, help="seconds for making one finding smaller")
    words.add_argument("--exact", action="store_true", default=PLAIN_BYTES, help="compare each byte of a cubin")
    given = words.parse_args()
    if given.kind == "stand-in" and "KC_FAKE_DEVICES" not in os.environ:  # the loader reads its path at the start
        again = [sys.executable, "-m", "tests.differential", *sys.argv[1:]]
        os.execve(sys.executable, again, environment(build()))
    if given.processes > 1:
        return _side_by_side(given)
    print(f"seed {given.seed}", flush=True)
    with Bench(exact=given.exact) as bench:
        report = _replay(bench, given) if given.replay else _walk(bench, given)
    print(_table(report["counts"]))
    print(json.dumps({name: report[name] for name in ("steps", "seconds", "verdicts")}))
    _write(report, given.json)
    return 1 if report["findings"] else 0


def _write(report: dict[str, Any], path: Path | None) -> None:
    """Write a report, whole at any time."""
    if path:
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(report, indent=1, ensure_ascii=True))
        beside.replace(path)


def _walk(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """Run scenarios until there were as many asks as wanted."""
    start, number, verdicts, findings = time.monotonic(), 0, [], []
    seen: set[tuple[str, str]] = set()
    while len(verdicts) < given.steps and time.monotonic() - start < given.seconds:
        seed = given.only or f"{given.seed}:{number}"
        number += 1
        kind, edits = scenario(seed, given.kind)
        try:
            found = run(bench, kind, edits, until=start + given.seconds)
        except Exception:  # the test's own, not the cache's: the walk goes on, and the finding names the scenario
            found = [Verdict("broken", (), traceback.format_exc()[-3000:], len(edits))]
            bench.forget_oracle()  # it may be the process that was killed
        verdicts += found
        wrong = [each for each in faults(found) if each.word not in given.ignore.split(",")]
        for each in wrong:
            print(f"{each.word} in scenario {seed}: {' + '.join(each.cause) or 'nothing'}: {each.detail}", flush=True)
            alike = (each.word, kind + " ".join(sorted(set(each.cause))))
            small = edits[: each.at + 1]
            if alike not in seen and each.word != "broken":
                small = _smaller(bench, kind, edits, each, given.shrink if each is wrong[0] else 0.0)
            seen.add(alike)
            findings.append({"word": each.word, "means": FAULTS[each.word], "seed": seed, "kind": kind,
                             "cause": each.cause, "detail": each.detail, "edits": small})  # fmt: skip
            if given.keep:
                given.keep.mkdir(parents=True, exist_ok=True)
                name = f"{each.word}-{seed.replace(':', '-')}.json"
                (given.keep / name).write_text(json.dumps(findings[-1], indent=1, ensure_ascii=True) + "\n")
        _write(_report(verdicts, findings, time.monotonic() - start), given.json)
        if given.only:
            break
    return _report(verdicts, findings, time.monotonic() - start)


def _smaller(bench: Bench, kind: str, edits: list[Edit], first: Verdict, limit_s: float) -> list[Edit]:
    def fails(candidate: list[Edit]) -> bool:
        try:
            return any(each.word == first.word for each in run(bench, kind, candidate))
        except Exception:  # a scenario that cannot be run shows nothing
            return False

    small = edits[: first.at + 1]
    if limit_s:
        small = shrink(small, fails, limit_s=limit_s)
        print(json.dumps({"kind": kind, "edits": small}, indent=1, ensure_ascii=True), flush=True)
    return small


def _replay(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """Run stored scenarios again."""
    start, verdicts, findings = time.monotonic(), [], []
    for path in given.replay:
        stored = json.loads(path.read_text())
        found = run(bench, stored["kind"], stored["edits"])
        verdicts += found
        for each in found:
            print(f"{path.name}: {each.word} after {' + '.join(each.cause) or 'nothing'} {each.detail}")
        findings += [{"file": path.name, "word": each.word, "detail": each.detail} for each in faults(found)]
    return _report(verdicts, findings, time.monotonic() - start)


def _report(verdicts: list[Verdict], findings: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    counts = [[kind, word, count] for (kind, word), count in sorted(tally(verdicts).items())]
    words = collections.Counter(each.word for each in verdicts)
    return {"steps": len(verdicts), "seconds": round(seconds, 1), "verdicts": dict(words), "counts": counts,
            "findings": findings}  # fmt: skip


def _side_by_side(given: argparse.Namespace) -> int:
    """Share the steps out to processes, each with a seed of its own, and add up what they report.

    Each writes its report after every scenario: one that hangs or crashes loses the scenario that it was in.
    """
    running, end = [], time.monotonic() + given.seconds + given.shrink + GRACE_S
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.processes):
            words = [sys.executable, "-m", "tests.differential", *sys.argv[1:]]
            words += ["--steps", str(-(-given.steps // given.processes)), "--seed", f"{given.seed}.{number}"]
            words += ["--processes", "1", "--json", f"{folder}/{number}.json"]
            running.append(subprocess.Popen(words))
        codes = [_ended(each, end) for each in running]
        written = sorted(Path(folder).glob("*.json"))
        print(f"{len(written)} of {given.processes} processes wrote a report, {codes.count(HUNG)} did not end in time")
        reports = [json.loads(each.read_text()) for each in written]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    words_all: collections.Counter[str] = collections.Counter()
    for report in reports:
        counts.update({(kind, word): count for kind, word, count in report["counts"]})
        words_all.update(report["verdicts"])
    whole = {
        "steps": sum(each["steps"] for each in reports),
        "seconds": max((each["seconds"] for each in reports), default=0.0),
        "verdicts": dict(words_all), "counts": [[*key, count] for key, count in sorted(counts.items())],
        "findings": [found for each in reports for found in each["findings"]],
    }  # fmt: skip
    print(_table(whole["counts"]))
    print(json.dumps({name: whole[name] for name in ("steps", "seconds", "verdicts")}))
    if given.json:
        given.json.write_text(json.dumps(whole, indent=1, ensure_ascii=True))
    return max(map(abs, codes))


def _ended(process: subprocess.Popen[bytes], end: float) -> int:
    """Wait for a process until a time, and end it then; its exit code, or `HUNG`."""
    try:
        return process.wait(min(max(0.1, end - time.monotonic()), threading.TIMEOUT_MAX))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return HUNG


def _table(counts: list[list[Any]]) -> str:
    """Kinds of edits in rows, verdicts in columns."""
    words = sorted({word for _kind, word, _count in counts}, key=lambda word: (word in FAULTS, word))
    cells = {(kind, word): count for kind, word, count in counts}
    rows = [
        f"{kind:44}" + "".join(f"{cells.get((kind, word), ''):>10}" for word in words)
        for kind in dict.fromkeys(kind for kind, _word, _count in counts)
    ]
    return "\n".join([f"{'after':44}" + "".join(f"{word:>10}" for word in words), *rows])


if __name__ == "__main__":
    raise SystemExit(main())
