"""Unusual arguments, streams and terminals: each verb ends with a result or a message."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cli
from numba_kcache.cli import main
from numba_kcache.store import StoredEntry, encoding
from tests.support.compiling import ROOT
from tests.support.stores import HEADER, key_of, open_store, small_entry

pytestmark = pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")

ODD = (
    "", " ", ".", "..", ":", "::", "a:", ":b", "/", "//", "~", "-1", "0", "1", "nan", "inf", "1e999", "9" * 30,
    "9" * 400, "9" * 5000, "9" * 400 + "d", "9" * 400 + "GiB", "1." + "9" * 400 + "s", "-", "--", "*", "%s", "{}",
    "\x1b[31mred",
    "a\nb", "\x00", "a\x00b", "\udcff\udcfe", "\u202egnp", "\N{FIRE}", "a" * 5000, "package:resource", ":.kcache",
    "a.b:c.kcache", "redis://", "redis://\x1b", "s3://", "gopher://x", "redis://127.0.0.1:1/0", "?", "a?readonly=2",
    "sm_", "sm_999", "0" * 64, "/dev/null", "/dev/null/x", "nowhere.py", "./nowhere.py", "sys", "this.that",
    "os:path", "numba_kcache:__version__",
)  # fmt: skip

VERBS: dict[str, tuple[str, ...]] = {
    "info": ("--directory",),
    "list": ("--limit", "--sort"),
    "show": ("", "--cubin", "--ptx"),
    "explain": ("", "--arch", "--signature"),
    "verify": (),
    "prune": ("--max-size", "--older-than"),
    "clear": (),
    "remove": ("",),
    "dir": ("--directory",),
    "config": ("--directory",),
    "warm": ("", "--arch", "--workers"),
    "export": ("", "--kernels", "--arch"),
    "import": ("",),
    "push": ("",),
    "pull": ("",),
    "report": ("",),
    "doctor": (),
}
"""For each verb the options that take a word; "" for the verb's own argument."""

OWN = {"show": "0" * 64, "explain": "0" * 64, "warm": "nowhere.py", "export": "x.kcache"}
"""Valid arguments of verbs, used beside an unusual one."""


def lines_of(verb: str, place: str, word: str) -> list[str]:
    return [verb, *([word] if not place else [*([OWN[verb]] if verb in OWN else []), f"{place}={word}"])]


parser = functools.cache(cli.make_parser)


@pytest.fixture(autouse=True)
def _one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the parser once for the file: it keeps nothing of what it parses, and takes longer than most verbs."""
    monkeypatch.setattr(cli, "make_parser", parser)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one entry, in whose folder the command runs."""
    directory = tmp_path / "cache"
    open_store(directory).put(small_entry(1))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("NUMBA_KCACHE_DIR", str(directory))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "place"), [(verb, place) for verb in VERBS for place in VERBS[verb]])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_odd_word_ends_in_a_message(
    verb: str, place: str, form: tuple[str, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An odd argument gives a message with code 1 or 2, or a result: no exception, and no control characters."""
    for word in ODD:
        configured = KernelCache(cache)
        try:
            code = main([*lines_of(verb, place, word), *form])
        except SystemExit as error:
            code = int(error.code or 0)
        said = capsys.readouterr()
        assert code in (0, 1, 2), (verb, place, word)
        assert said.out or said.err, (verb, place, word)
        assert "Traceback" not in said.err, (verb, place, word)
        assert all(each.isprintable() or each == "\n" for each in said.out + said.err), (verb, place, word)
        assert len(said.err) < 20_000, (verb, place, word)
        del configured


def run(*words: str, columns: int = 80, **streams: object) -> subprocess.CompletedProcess[bytes]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_KCACHE_")}
    env = {
        **plain,
        "NUMBA_KCACHE_DIR": os.environ["NUMBA_KCACHE_DIR"],
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(columns),
    }
    return subprocess.run([sys.executable, "-m", "numba_kcache", *words], env=env, timeout=60, check=False, **streams)  # type: ignore[call-overload,no-any-return]


CLOSED = "exec '{python}' -m numba_kcache {verb} {closed}"


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["list", "info --json", "show 12345", "list --limit x", "report -", "verify", "prune"])
def test_closed_streams_end_without_a_traceback(verb: str) -> None:
    """Standard streams may be closed before the start, in each combination, and nobody may read the pipe."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for closed in (" ".join(each) for n in (1, 2, 3) for each in itertools.combinations(("<&-", ">&-", "2>&-"), n)):
        command = CLOSED.format(python=sys.executable, verb=verb, closed=closed)
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, check=False, timeout=60)
        assert b"Traceback" not in done.stderr, closed
        assert b"Exception" not in done.stderr, closed
        assert done.returncode in (0, 1, 2), closed
        if ">&-" in closed.split() and "2>&-" not in closed.split():
            assert done.returncode in (1, 2)
            assert done.stderr.strip()
    command = f"( exec '{sys.executable}' -m numba_kcache {verb} ) | true"
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, check=False, timeout=60)
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("columns", [0, 1, 2, 7, 20])
def test_narrow_terminal_is_no_trouble(columns: int) -> None:
    """Help and tables are printed on a terminal of 1 to 20 columns."""
    import pty

    for words in (("--help",), ("list",), ("list", "--help"), ("nothing",)):
        master, slave = pty.openpty()
        done = run(*words, columns=columns, stdout=slave, stderr=subprocess.PIPE)
        os.close(slave)
        os.close(master)
        assert b"Traceback" not in done.stderr, words
        assert done.returncode in (0, 2), (words, done.stderr)


@pytest.mark.slow
def test_terminal_of_ascii_gets_escapes(cache: Path) -> None:
    """Letters that the stream's encoding lacks are printed as escapes."""
    entry = StoredEntry(
        key_of(2), {**HEADER, "entries": [["größe\N{FIRE}", "s", False, [0, 0, 0, 0], []]]}, {"cubin": b"x"}
    )
    open_store(cache).put(entry)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    words = [sys.executable, "-m", "numba_kcache", "list"]
    done = subprocess.run(words, env=env, capture_output=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"gr\xf6\xdfe" in done.stdout


ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n\u202e<script>alert(1)</script>"


@pytest.mark.slow
def test_nothing_of_an_entry_is_obeyed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and markup in names, targets, reports, logs and counters are printed as text by every verb."""
    header = {
        "kind": "cuda",
        "target": ESCAPES,
        "entries": [[ESCAPES, ESCAPES, False, [1, 1, 1, 1], [[0, 4, "i4", ESCAPES, ESCAPES]]]],
        "compile_time_s": 1.0,
        "attributes": {},
    }
    parts = {"kernel": ESCAPES, "created_s": 1, "components": [[ESCAPES, ESCAPES, ESCAPES]]}
    report = json.dumps(parts).encode()
    for number, target in enumerate((ESCAPES, "sm_90")):
        payloads = {"cubin": b"x", "report": report, "log": ESCAPES.encode()}
        entry = StoredEntry(key_of(5 + number), {**header, "target": target}, payloads)
        assert open_store(cache).put_encoded(entry.key, encoding.encode_entry(entry))
    statistics = cache / "v1" / "statistics"
    statistics.mkdir(mode=0o700, exist_ok=True)
    text = '{"reason/\\u001b[31m<b>": 5, "day/2026-11-22/hits": 3, "misses": 2}\n'
    (statistics / "2026-11-22.jsonl").write_text(text)
    (statistics / "2026-11-22.jsonl").chmod(0o600)
    for words in (
        ["list"],
        ["info"],
        ["show", key_of(5)],
        ["show", key_of(6)],
        ["explain", key_of(6)],
        ["report", "-"],
        ["doctor"],
        ["config"],
        ["remove", ESCAPES],
    ):
        main(words)
        said = capsys.readouterr()
        assert all(each.isprintable() or each == "\n" for each in said.out + said.err), words
        assert "<script>" not in said.out if words[0] == "report" else True
