"""Run cuda.core's own tests of its program caches, once plain and once on `adapters.ProgramCache`, and compare.

cuda.core's wheel does not contain them: `python .ci/program_cache_suite.py TESTS [RESULT]`, where TESTS is
`test_program_cache.py` of its repository, or several files separated by commas. In the second run both of cuda.core's
caches are replaced, also in the processes that a test starts. RESULT is a JSON file with the names of passing and
failing tests. The exit code is 1 if a test passes in the plain run and fails with this cache, unless it is in
`OF_THE_BACKEND`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

OF_THE_BACKEND = re.compile(
    r"verbatim|byte_equivalent|size|lru|tracker|scan|atime|prune|_tmp_|default_dir|default_cache_dir|windows|posix"
    r"|half_written|clear_does_not|eviction|overwrite_replaces|stay_consistent|sharing_violation"
)
"""Tests that look at a backend's own files, counters and limits, or break its system calls, not at the interface."""

SITECUSTOMIZE = f"import sys; sys.path.insert(0, {str(ROOT / '.ci')!r}); import program_cache_suite as s; s.replace()\n"


def replace() -> None:
    """Replace the program caches of `cuda.core.utils` by those of this package."""
    import cuda.core.utils as utils

    from numba_kcache import KernelCache
    from numba_kcache.adapters import ProgramCache

    def program_cache(directory: str, max_size_bytes: int | None) -> Any:
        return ProgramCache(KernelCache(directory, max_size_bytes=max_size_bytes, durability="none"))

    def file_stream(path: Any = None, *, max_size_bytes: int | None = None) -> Any:
        return program_cache(str(path or tempfile.mkdtemp()), max_size_bytes)

    def in_memory(*, max_size_bytes: int | None = None) -> Any:
        return program_cache(tempfile.mkdtemp(), max_size_bytes)

    utils.FileStreamProgramCache, utils.InMemoryProgramCache = file_stream, in_memory


def run(tests: list[str], folder: Path, *, is_ours: bool) -> dict[str, tuple[str, str]]:
    """Run the tests once; return the outcome of each by name, and the first line of its failure."""
    report, path = folder / f"{is_ours}.xml", os.environ.get("PYTHONPATH", "")
    if is_ours:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        path = os.pathsep.join([str(folder), path])
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}", "--rootdir", str(folder), *tests]
    variables = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), "NUMBA_KCACHE_DIR": str(folder / "process")}
    subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=variables, check=False, timeout=1200, stdout=subprocess.DEVNULL
    )
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        message = "" if outcome is None else (outcome.get("message") or "").strip().splitlines()[:1]
        found[str(case.get("name"))] = ("passed" if outcome is None else outcome.tag, "".join(message)[:200])
    return found


def main() -> int:
    from harness import machine_header

    with tempfile.TemporaryDirectory() as folder:
        tests = [str(Path(each).resolve()) for each in sys.argv[1].split(",")]
        plain, ours = (run(tests, Path(folder), is_ours=each) for each in (False, True))
    passed_plain = {name for name, (outcome, _) in plain.items() if outcome == "passed"}
    passed = sorted(name for name in passed_plain if ours.get(name, ("",))[0] == "passed")
    of_backend = {
        name: ours.get(name, ("", ""))[1] for name in sorted(passed_plain - {*passed}) if OF_THE_BACKEND.search(name)
    }
    failed = {name: ours.get(name, ("", "missing"))[1] for name in sorted(passed_plain - {*passed, *of_backend})}
    found = {"failed": failed, "passed": passed, "of the backend itself": of_backend}
    print(json.dumps(found, indent=1))
    if len(sys.argv) > 2:
        result = {"machine": machine_header(), "cuda.core": version("cuda-core"), **found}
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
