"""The cache serves the code that the plain compilers make, after random edits to random programs.

`python3 tasks.py differential --steps N` walks further; `--only SEED:NUMBER` runs a scenario that a failure names.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_driver import needs_fake_driver

from .code import difference, without_times

ROOT = Path(__file__).resolve().parents[2]
FOUND = Path(__file__).with_name("found")
PIECES = [("cpp", 88, 0), ("cpp", 88, 1), ("ptx", 26, 0), ("python", 38, 0)]
"""Kind, steps and seed: 240 steps or more in all; `tasks.py differential` makes as many as are wanted."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "steps", "seed"), PIECES)
def test_served_code_is_what_a_plain_compile_makes(kind: str, steps: int, seed: int) -> None:
    """Nothing stale, nothing altered, nothing refused that can be known, no compile without a change."""
    _walk("--kind", kind, "--steps", str(steps), "--seed", str(seed), "--shrink", "20")


@needs_fake_driver
def test_stand_in_and_numba_hit_what_the_other_stored() -> None:
    """Random programs by either import, in either order: one key, and the code that a plain compile makes."""
    _walk("--kind", "stand-in", "--steps", "18", "--seed", "0", "--shrink", "0")


@pytest.mark.parametrize("kinds", [("cpp", "ptx"), ("python",)])
def test_found_defect_stays_mended(kinds: tuple[str, ...]) -> None:
    """Scenarios that a walk found once, made small: each is what it says in its name."""
    _walk("--replay", *(str(file) for kind in kinds for file in sorted(FOUND.glob(f"{kind}-*.json"))))


def test_line_tables_differ_by_all_but_times() -> None:
    """The oracle leaves times of files out, and nothing else: names, sizes and lines count."""

    def table(name: bytes, time: bytes, size: bytes = b"\x05", lines: bytes = b"\0\x05xy") -> bytes:
        units = b""
        for folders in (b"", b"/x\0"):  # a unit whose files are in no folder, and one with a folder
            head = b"\x01\x01\xfb\x0e\x0a\0\1\1\1\1\0\0\0\1" + folders + b"\0" + name + b"\0\1" + time + size + b"\0"
            units += struct.pack("<IHI", 6 + len(head) + len(lines), 2, len(head)) + head + lines
        return without_times(units)

    plain = table(b"a.h", b"\x05")

    assert table(b"a.h", b"\x80\x94\xeb\xdc\x03") == plain
    assert table(b"b.h", b"\x05") != plain
    assert table(b"a.h", b"\x05", size=b"\x81\x01") != plain
    assert table(b"a.h", b"\x05", lines=b"\0\x05xz") != plain


def test_ptx_differs_by_all_but_the_order_of_functions() -> None:
    """Names, labels and numbers of files follow the order, which with `opt=False` is that of a set."""

    def ptx(*functions: tuple[str, str, int], counter: int) -> str:
        text, files = "", list[str]()
        for number, (name, file, line) in enumerate(functions):
            if file not in files:
                files.append(file)
                text += f'\t.file\t{len(files)} "{file}"\n'
            text += f".func _Z{name}B{counter}v{number}()\n{{\n\t.loc\t{files.index(file) + 1} {line} 0\n"
            text += f"\tret;\n$L__func_end{number}:\n}}\n"
        return text

    one, two = ("f", "a.py", 3), ("g", "b.py", 4)

    assert difference(ptx(one, two, counter=1), ptx(two, one, counter=5), exact=True) is None
    assert difference(ptx(one, two, counter=1), ptx(("g", "b.py", 5), one, counter=1), exact=True)
    assert difference(ptx(one, two, counter=1), ptx(("g", "c.py", 4), one, counter=1), exact=True)


def _walk(*words: str) -> None:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_KCACHE_")}
    kept = {name: text for name, text in os.environ.items() if name.startswith("NUMBA_KCACHE_TEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.differential", *words],
        cwd=ROOT, env={**inherited, **kept, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
