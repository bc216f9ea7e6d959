"""The command line: the output and exit code of each verb. Verbs that compile nothing need neither CUDA nor Numba."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KCacheWarning, KernelCache, cached_kernel
from numba_kcache.cli import main
from numba_kcache.model import trouble
from numba_kcache.settings import Settings
from numba_kcache.warmup.discovery import kernels_of
from tests.support.compiling import EMPTY, ROOT, SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.stores import file_of, open_store, small_entry

WITHOUT_CUDA = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "cuda", "numpy", "llvmlite"):
            raise ImportError("not on this machine: " + name)
sys.meta_path.insert(0, Refuse())
from numba_kcache.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(directory: Path, *words: str, code: str = WITHOUT_CUDA) -> subprocess.CompletedProcess[str]:
    """Output of one command line in a process in which CUDA and Numba cannot be imported."""
    surroundings = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**surroundings, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds saxpy for two targets and an empty kernel; saxpy for sm_90 was served once."""
    directory = tmp_path_factory.mktemp("filled") / "cache"
    cache = KernelCache(directory, durability="none")
    cached_kernel(SAXPY, arch=["sm_90", "sm_80"], cache=cache).compile()
    cached_kernel(EMPTY, arch="sm_90", cache=cache).compile()
    cache.info()
    again = KernelCache(directory, durability="none")
    cached_kernel(SAXPY, arch="sm_90", cache=again).compile()
    again.info()
    return directory


def key_of_saxpy(directory: Path) -> str:
    return cached_kernel(SAXPY, arch="sm_90", cache=KernelCache(directory)).key()


VERBS: dict[str, tuple[str, ...]] = {
    "info": ("info",),
    "list": ("list",),
    "show": ("show", "KEY"),
    "explain": ("explain", "KEY"),
    "verify": ("verify",),
    "export": ("export", "FILE"),
    "import": ("import", "BUNDLE"),
    "prune": ("prune",),
    "clear": ("clear",),
    "report": ("report", "-"),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_verb_needs_neither_cuda_nor_numba(filled: Path, tmp_path: Path, verb: str, form: tuple[str, ...]) -> None:
    """Without CUDA and Numba each verb that does not compile works, and prints nothing on standard error."""
    directory = filled
    if verb == "clear":
        directory = tmp_path / "own"
        open_store(directory).put(small_entry(1))
    bundle = tmp_path / "bundle.kcache"
    if verb == "import":
        KernelCache(filled).export_bundle(bundle)
    own = {"KEY": key_of_saxpy(filled), "BUNDLE": str(bundle), "FILE": str(tmp_path / "new.kcache")}
    words = [own.get(word, word) for word in VERBS[verb]]
    if verb == "report":
        words[1] = str(tmp_path / "report.html")
    done = run(directory, *words, *form)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    if form:
        json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["info", "list", "verify", "prune", "clear", "report"])
def test_empty_cache_is_no_error_and_stays_absent(tmp_path: Path, verb: str) -> None:
    """On a cache that does not exist yet, each verb says so, exits with 0 and makes no directory."""
    done = run(tmp_path / "none", *VERBS[verb])

    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "none").exists()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Exit code of a command line, and the JSON that it printed."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list_gives_every_entry_in_each_order(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Largest, longest to compile and most hits first; `--limit` cuts."""
    listed = {}
    for order in ("age", "size", "cost", "hits"):
        code, listed[order] = said(capsys, "list", "--directory", str(filled), "--sort", order)
        assert code == 0
        assert len(listed[order]) == 3
    sizes = [each["size_bytes"] for each in listed["size"]]
    costs = [each["compile_time_s"] for each in listed["cost"]]

    assert sizes == sorted(sizes, reverse=True)
    assert costs == sorted(costs, reverse=True)
    assert [each["hits"] for each in listed["hits"]] == [1, 0, 0]
    assert listed["hits"][0]["key"] == key_of_saxpy(filled)
    assert said(capsys, "list", "--directory", str(filled), "--sort", "hits", "--limit", "1")[1] == listed["hits"][:1]


def test_list_says_how_many_it_leaves_out(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table ends with the number of rows that are left out, and how to see them."""
    assert main(["list", "--directory", str(filled), "--limit", "1"]) == 0

    assert f"1 of 3 entries in {filled}, " in capsys.readouterr().out


def test_show_tells_what_is_known_of_an_entry(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` prints kernels with parameters and registers, the components of the key, and the system of the build."""
    key = key_of_saxpy(filled)
    code, shown = said(capsys, "show", key[:12], "--directory", str(filled))

    assert (code, shown["key"], shown["target"], shown["hits"]) == (0, key, "sm_90", 1)
    (kernel,) = shown["kernels"]
    assert [each["c_type"] for each in kernel["parameters"]] == ["float", "float const*", "float*", "int"]
    assert kernel["registers"] > 0
    assert {"source", "target", "compilers"} <= {each["name"] for each in shown["components"]}
    assert shown["created_s"] > 0


def test_show_writes_cubin_and_ptx(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` writes the machine code that the driver loads, and the stored PTX."""
    cubin, ptx = tmp_path / "k.cubin", tmp_path / "k.ptx"
    words = ["show", key_of_saxpy(filled), "--directory", str(filled), "--cubin", str(cubin), "--ptx", str(ptx)]

    assert main(words) == 0
    assert cubin.read_bytes().startswith(b"\x7fELF")
    assert ".entry saxpy" in ptx.read_text()


def test_what_another_compiler_built_goes_by_its_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`list` and `show` print an entry of `get_or_build` with payloads and meta; it has no cubin or PTX to write."""
    cache = KernelCache(tmp_path, durability="none")
    key = cache.get_or_build({"a": 1}, lambda: {"code.bin": b"code"}, label="toy.saxpy", meta={"shared": 48}).key

    assert said(capsys, "list", "--directory", str(tmp_path))[1][0]["kernels"] == ["toy.saxpy"]
    code, shown = said(capsys, "show", key[:8], "--directory", str(tmp_path))
    assert (code, shown["label"], shown["kind"], shown["target"]) == (0, "toy.saxpy", "built", "any")
    assert (shown["meta"], shown["payload_bytes"]["code.bin"]) == ({"shared": 48}, 4)
    words = "show", key[:8], "--directory", str(tmp_path), "--cubin", str(tmp_path / "out")
    assert said(capsys, *words)[0] == 1
    assert not (tmp_path / "out").exists()


def test_report_goes_to_standard_output(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` prints the page; as JSON it is one value, as with every verb."""
    words = ("report", "-", "--directory", str(filled))

    assert said(capsys, *words)[1].startswith("<!doctype html>")
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


MODULE = """
from numba_kcache import cached_kernel
class Kernels:
    @cached_kernel(arch="sm_90")
    def saxpy() -> str:
        return SOURCE
other = cached_kernel(SOURCE + "// other", arch="sm_90")
"""


def test_explain_takes_a_kernel_of_a_module(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`file.py:Class.kernel`: a hit exits with 0; a miss with 1 and says what differs."""
    path = tmp_path / "users_module.py"
    path.write_text(f"SOURCE = {SAXPY!r}\n{MODULE}")
    cached = f"{path}:Kernels.saxpy"
    code, told = said(capsys, "explain", cached, "--directory", str(tmp_path / "own"))

    assert (code, told["outcome"]) == (1, "miss")
    for kernel in kernels_of(path):
        kernel.compile()
    assert said(capsys, "explain", cached, "--directory", str(tmp_path / "own"))[0] == 0


@pytest.mark.slow
def test_warm_compiles_what_a_file_decorates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`warm` compiles for each target and hits the second time; with a failing kernel it exits with 1 and stores the
    others."""
    path = tmp_path / "warm_module.py"
    path.write_text(f"SOURCE = {SAXPY!r}\n{MODULE}")
    one = ("--workers", "1", "--directory", str(tmp_path / "c"))
    words = ("warm", str(path), "--arch", "sm_80", "--arch", "sm_90", *one)
    first, second = said(capsys, *words), said(capsys, *words)

    assert (first[0], [each["status"] for each in first[1]["results"]]) == (0, ["built"] * 4)
    assert (second[0], [each["status"] for each in second[1]["results"]]) == (0, ["hit"] * 4)
    by_name = said(capsys, "warm", "tests.support.kernels", "--arch", "sm_80", *one)
    assert (by_name[0], len(by_name[1]["results"])) == (0, 4)
    broken = tmp_path / "broken_module.py"
    broken.write_text(
        f"SOURCE = {SAXPY!r}\n{MODULE}wrong = cached_kernel('extern \"C\" __global__ void w() {{ no; }}')\n"
    )
    code = main(["warm", str(broken), *words[2:]])
    printed = capsys.readouterr().out
    assert code == 1
    assert "2 failed" in printed
    assert 'identifier "no" is undefined' in printed


@pytest.mark.slow
def test_warm_ends_with_a_table_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signatures have a column if a kernel has one; the live line disappears before the table."""
    numbas = "from numba import cuda\nn = cached_kernel(signature='void(int32[::1])')(cuda.jit(lambda x: None))\n"
    for name, more in (("plain", ""), ("typed", numbas)):
        path = tmp_path / f"{name}_to_warm.py"
        path.write_text(f"from numba_kcache import cached_kernel\nk = cached_kernel({EMPTY!r})\n{more}")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert main(["warm", str(path), "--arch", "sm_90", "--workers", "1", "--directory", str(tmp_path)]) == 0
        head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("kernel"))
        assert head.split() == ["kernel", *(["signature"] if more else []), "target", "state", "took"]


def test_explain_knows_names_as_remove_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a stored kernel stands for its entry; a kernel that `warm` finds in a dict has its own name there."""
    path = tmp_path / "named_kernels.py"
    path.write_text(
        f"from numba_kcache import cached_kernel\nKERNELS = {{1: cached_kernel({SAXPY!r}, name='saxpy')}}\n"
    )
    words = ("--directory", str(tmp_path / "cache"))
    assert main(["warm", str(path), "--arch", "sm_90", *words]) == 0
    capsys.readouterr()

    for what in ("saxpy", "sax*", f"{path}:saxpy", str(path)):
        arch = ("--arch", "sm_90") if ".py" in what else ()
        code, printed = said(capsys, "explain", what, *arch, *words)
        assert (code, printed["outcome"]) == (0, "hit" if arch else "stored")


def test_kernels_of_text_in_a_dict_go_by_their_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that none of them has is answered with the words to write."""
    path = tmp_path / "kernels_in_a_dict.py"
    path.write_text(
        f"from numba_kcache import cached_kernel\nK = {{1: cached_kernel({SAXPY!r}), 2: cached_kernel({EMPTY!r})}}\n"
    )
    words = ("--arch", "sm_90", "--directory", str(tmp_path / "cache"))
    assert main(["warm", str(path), *words]) == 0
    capsys.readouterr()

    assert [said(capsys, "explain", f"{path}:{name}", *words)[1]["outcome"] for name in ("saxpy", "k")] == ["hit"] * 2
    hint = said(capsys, "explain", f"{path}:nothing", *words)[1]["error"]["hint"]
    assert hint == f"write {path}:saxpy or {path}:k"


@pytest.mark.parametrize("what", ["numba_kcache:nothing", "no_such_module:k", "numba_kcache:errors"])
def test_explain_of_what_is_no_kernel_is_an_error(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the missing kernel or entry."""
    code, printed = said(capsys, "explain", what)

    assert code == 1
    assert printed["error"]["what"].startswith(("cannot explain", "cannot import"))


def test_error_of_an_imported_module_is_placed_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the last frame of the user's module, not a frame of this package."""
    path = tmp_path / "broken_on_import.py"
    path.write_text("import json\n\ndef read():\n    return {}['x']\n\nread()\n")

    assert main(["explain", f"{path}:k"]) == 1
    assert capsys.readouterr().err == f"numba-kcache: cannot explain: KeyError: 'x', at {path}:4\n"


def test_bundle_goes_from_one_cache_to_another(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export` writes the entries for a target, `import` adds them to another cache; both print the contents."""
    bundle = str(tmp_path / "sm_80.kcache")
    exported = said(capsys, "export", bundle, "--arch", "sm_80", "--directory", str(filled))[1]
    imported = said(capsys, "import", bundle, "--directory", str(tmp_path / "other"))[1]

    assert exported == imported
    assert (exported["entries"], exported["targets"]) == (1, ["sm_80"])
    assert len(said(capsys, "list", "--directory", str(tmp_path / "other"))[1]) == 1
    assert main(["import", str(filled / "nowhere.kcache")]) == 1


def test_push_and_pull_move_entries_between_stores(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries go to a directory and from there into an empty cache; existing ones are counted and skipped."""
    (tmp_path / "team").mkdir(mode=0o700)
    team = f"{tmp_path / 'team'}?readonly=0"
    pushed = [said(capsys, "push", team, "--directory", str(filled)) for _ in range(2)]
    pulled = said(capsys, "pull", str(tmp_path / "team"), "--directory", str(tmp_path / "own"))

    assert [(code, told["entries"], told["present"]) for code, told in pushed] == [(0, 3, 0), (0, 0, 3)]
    assert (pulled[0], pulled[1]["entries"], pulled[1]["failed"]) == (0, 3, 0)
    assert len(said(capsys, "list", "--directory", str(tmp_path / "own"))[1]) == 3
    assert main(["push", "--directory", str(filled)]) != 0


@pytest.mark.parametrize("key", ["", "f00dface", "../../etc", "Z", "KEY"])
def test_unknown_key_is_an_error_that_says_so(filled: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key exits with 1, and the hint says where keys are listed."""
    assert main(["show", key, "--directory", str(filled)]) == 1
    assert "hint: `numba-kcache list` shows both" in capsys.readouterr().err


def test_ambiguous_key_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first digits of several keys are an error that names their number."""
    store = open_store(tmp_path)
    for number in range(40):
        store.put(small_entry(number))
    first = max("0123456789abcdef", key=lambda digit: len(store.find(digit)))
    many = len(store.find(first))

    assert many > 1, "forty keys begin with sixteen digits"
    assert main(["show", first, "--directory", str(tmp_path)]) == 1
    assert f"{many} keys in {tmp_path} begin with it" in capsys.readouterr().err


def test_verify_exits_with_1_where_something_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """`verify` prints the damaged key and the reason; a second run finds nothing."""
    store = open_store(tmp_path)
    store.put(small_entry(1))
    path = file_of(store, small_entry(1).key)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    assert said(capsys, "verify", "--directory", str(tmp_path)) == (
        1,
        {"damaged": [{"key": small_entry(1).key, "reason": "the digest differs"}]},
    )
    assert said(capsys, "verify", "--directory", str(tmp_path)) == (0, {"damaged": []})


def test_show_of_a_damaged_entry_leaves_it_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` changes nothing: it does not move a damaged entry to quarantine."""
    store = open_store(tmp_path)
    store.put(small_entry(1))
    path = file_of(store, small_entry(1).key)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    assert main(["show", small_entry(1).key, "--directory", str(tmp_path)]) == 1
    assert "it is damaged" in capsys.readouterr().err
    assert path.exists()


def test_prune_and_clear_say_what_they_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`prune` by age and by size, and `clear`, print the number of removed entries."""
    store = open_store(tmp_path)
    for number in range(6):
        store.put(small_entry(number))
    os.utime(file_of(store, small_entry(0).key), (1_700_000_000, 1_700_000_000))
    directory = ("--directory", str(tmp_path))

    assert said(capsys, "prune", "--older-than", "30d", *directory)[1]["removed"] == 1
    assert said(capsys, "prune", "--max-size", "700B", *directory)[1]["removed"] == 3
    assert said(capsys, "clear", *directory) == (0, {"removed": 2, "entries": 0, "size_bytes": 0})


@pytest.mark.parametrize(("mode", "words", "why"), [
    ("readonly", ("clear",), "nothing is removed in mode readonly"),
    ("frozen", ("prune",), "nothing is removed in mode frozen"),
    ("off", ("warm", str(ROOT / "tests/support/kernels.py"), "--arch", "sm_90"), "mode='off'"),
])  # fmt: skip
def test_mode_in_which_a_verb_can_do_nothing_is_an_error(
    mode: str, words: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The error names the mode, and the variable that sets it."""
    monkeypatch.setenv("NUMBA_KCACHE_MODE", mode)

    assert main([words[0], "--directory", str(tmp_path), *words[1:]]) in (1, 2)
    error = capsys.readouterr().err
    assert why in error
    assert error.endswith("hint: set NUMBA_KCACHE_MODE=readwrite\n")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("list", "--sort", "colour"),
        ("show",),
        ("list", "--limit", "-1"),
        ("prune", "--older-than", "3"),
    ],
)
def test_wrong_usage_exits_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage prints the correct usage on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    assert "usage: numba-kcache" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("prune", "--max-size", "much"), ("info", "--directory", "")])
def test_value_that_cannot_be_used_exits_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that cannot be used is wrong usage, in JSON too."""
    code, printed = said(capsys, *words)

    assert code == 2
    assert printed["error"]["what"].startswith("cannot use")


def test_terminal_codes_in_an_entry_are_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names with escape sequences and direction marks are printed as text, with backslashes."""
    store = open_store(tmp_path)
    entry = small_entry(1)
    entry.header["entries"] = [["\x1b[2Jevil\u202e\n", "s", False, [0, 0, 0, 0], []]]
    store.put(entry)

    assert main(["list", "--directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\\x1b[2Jevil\\u202e\\n" in printed
    assert "\x1b" not in printed


@pytest.mark.slow
def test_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    """`numba-kcache list | head -1`: no traceback."""
    store = open_store(tmp_path)
    for number in range(300):
        store.put(small_entry(number))
    script = f"{sys.executable} -m numba_kcache list --limit 0 --directory {tmp_path} | head -1"
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("key")
    assert done.stderr == ""


@pytest.mark.slow
def test_table_on_a_terminal_has_no_escape_sequences(filled: Path) -> None:
    """On a terminal a table is plain text, as in a pipe."""
    reader, writer = pty.openpty()
    surroundings = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
    subprocess.run(
        [sys.executable, "-m", "numba_kcache", "list", "--directory", str(filled)],
        env={**surroundings, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        stdout=writer,
        check=True,
    )
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # on Linux: the other end is closed
        while part := os.read(reader, 4096):
            shown += part
    os.close(reader)

    assert b"\x1b" not in shown
    assert key_of_saxpy(filled)[:12].encode() in shown
    assert "\x1b" not in run(filled, "list").stdout


def test_program_s_name_leads_to_the_command_line() -> None:
    """pip installs it as `numba-kcache`, and `python -m numba_kcache` is the same."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["numba-kcache"].partition(":")

    assert (module, name) == ("numba_kcache.__main__", "main")
    assert callable(importlib.import_module(module).main)
    done = run(
        Path("/nowhere"), "--version", code="import runpy; runpy.run_module('numba_kcache', run_name='__main__')"
    )
    assert done.stdout == f"numba-kcache {numba_kcache.__version__}\n"


def test_every_verb_has_help_that_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Help says what the verb does, each option, and the exit codes."""
    for verb in (*VERBS, "doctor", "warm", "push", "pull"):
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        text = capsys.readouterr().out
        assert ended.value.code == 0
        assert "exit codes: 0 success" in text
        assert "--json" in text


# -- tidying, filters, settings ----------------------------------------------------------------------------------


def test_list_says_how_many_entries_it_leaves_out(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The most recently used entries are shown, and the number of all."""
    assert main(["list", "--limit", "1", "--directory", str(filled)]) == 0
    assert "1 of 3 entries in" in capsys.readouterr().out


def test_list_counts_what_cannot_be_read_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two damaged files of eight are reported as damaged, not as cut off by a limit, and the hint names `verify`."""
    store = open_store(tmp_path)
    for number in range(8):
        store.put(small_entry(number))
    for number in range(2):
        file_of(store, small_entry(number).key).write_bytes(b"damaged")

    assert main(["list", "--directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "8 entries in" in printed
    assert "2 cannot be read: `numba-kcache verify` says why" in printed
    assert "--limit" not in printed


def test_remove_takes_a_key_its_first_digits_or_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only matching entries are removed; a pattern without a match is an error that says where names are listed."""
    cache = KernelCache(tmp_path, durability="none")
    keys = [cache.get_or_build({"n": n}, lambda: b"x", label=f"toy.k{n}").key for n in range(4)]
    where = ("--directory", str(tmp_path))

    assert said(capsys, "remove", keys[0], *where)[1]["removed"] == 1
    assert said(capsys, "remove", keys[1][:16], *where)[1]["removed"] == 1
    by_name = said(capsys, "remove", "toy.k[23]", *where)[1]
    assert (by_name["removed"], by_name["entries"]) == (2, 0)
    for nothing in ("", "toy", "f00d", "*"):
        assert main(["remove", nothing, *where]) == 1
        assert "cannot remove" in capsys.readouterr().err


def test_remove_of_digits_that_several_have_removes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`remove` refuses the first digits of several keys."""
    store = open_store(tmp_path)
    for number in range(40):
        store.put(small_entry(number))
    first = max("0123456789abcdef", key=lambda digit: len(store.find(digit)))

    assert main(["remove", first, "--directory", str(tmp_path)]) == 1
    assert "give more of its digits" in capsys.readouterr().err
    assert store.size().entries == 40


def test_zero_begins_counts_and_troubles_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--zero` resets the counts of all processes, days and kernels; entries stay, and later events count."""
    cache = KernelCache(tmp_path, durability="none")
    cache.get_or_build({"n": 1}, lambda: b"x", label="toy")
    with pytest.warns(KCacheWarning, match="odd"):
        cache.session.events.emit(trouble("test", OSError("odd")))
    where = ("--directory", str(tmp_path))
    before = cache.info()
    assert (before.misses, before.errors) == (1, 1)

    code, after = said(capsys, "info", "--zero", *where)
    assert (code, after["misses"], after["errors"], after["entries"]) == (0, 0, 0, 1)
    assert KernelCache(tmp_path).history().days == ()
    later = KernelCache(tmp_path, durability="none")
    later.get_or_build({"n": 1}, lambda: b"x", label="toy")
    assert later.info().hits == 1  # which writes them, too
    assert said(capsys, "info", *where)[1]["hits"] == 1


def test_dir_prints_the_directory_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path is printed even if the directory does not exist; for `cd "$(numba-kcache dir)"`."""
    assert main(["dir", "--directory", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'none'}\n"


def test_config_says_where_each_setting_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The origin is the command line, the environment or the default; no secret of an address is shown."""
    monkeypatch.setenv("NUMBA_KCACHE_MAX_SIZE", "512MB")
    monkeypatch.setenv("NUMBA_KCACHE_TIERS", "redis://user:hunter2@host/0?timeout=2")
    code, told = said(capsys, "config", "--directory", str(tmp_path))
    found = {each["name"]: each for each in told["settings"]}

    assert code == 0
    assert list(found) == list(Settings._fields)
    assert (found["directory"]["value"], found["directory"]["origin"]) == (str(tmp_path), "--directory")
    values = {name: (each["value"], each["origin"]) for name, each in found.items()}
    assert values["max_size_bytes"] == (512_000_000, "NUMBA_KCACHE_MAX_SIZE")
    assert values["mode"] == ("readwrite", "default")
    assert found["tiers"]["value"] == ["redis://host/0?timeout=2"]
    assert "hunter2" not in json.dumps(told)


def test_config_names_variables_of_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each unknown variable is listed with the most similar setting; the exit code is 1."""
    monkeypatch.setenv("NUMBA_KCACHE_MAXSIZE", "1GB")

    assert main(["config", "--directory", str(tmp_path)]) == 1
    assert "NUMBA_KCACHE_MAXSIZE names no setting and is ignored; did you mean NUMBA_KCACHE_MAX_SIZE?" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("words", [("dir",), ("config",), ("doctor",)], ids=" ".join)
def test_verb_that_says_what_is_wrong_runs_where_the_environment_names_a_file(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verbs for diagnosis run with an invalid NUMBA_KCACHE_DIR; the others stop."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("NUMBA_KCACHE_DIR", str(tmp_path / "file"))

    assert main([*words]) == (1 if words == ("doctor",) else 0)
    assert "from NUMBA_KCACHE_DIR" not in capsys.readouterr().err
    assert main(["list"]) == 1
    assert "from NUMBA_KCACHE_DIR: it is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["info", "list", "verify", "doctor", "config", "warm"])
def test_directory_that_is_a_file_is_an_error(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before any other check, and the file is not changed."""
    (tmp_path / "file").write_text("mine")

    module = ["nowhere.py"] if verb == "warm" else []
    assert main([verb, *module, "--directory", str(tmp_path / "file")]) == 1
    assert f"cannot use {tmp_path / 'file'} from --directory: it is not a directory" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


# -- run ---------------------------------------------------------------------------------------------------------

SAYS = """
import sys
class Own: pass
print(__name__, sys.argv[1:], sys.path[0], sys.modules["__main__"].Own is Own)
if "raise" in sys.argv: raise ValueError("mine")
sys.exit(int(sys.argv[1]))
"""


AT_ONCE = WITHOUT_CUDA.replace(".cli import", ".__main__ import").replace("main(sys.argv[1:])", "main()")
PROGRAM_WAYS = pytest.mark.parametrize("way", [WITHOUT_CUDA, AT_ONCE], ids=["parsed", "at once"])


@pytest.mark.slow
@PROGRAM_WAYS
def test_program_runs_as_python_runs_it(tmp_path: Path, way: str) -> None:
    """Arguments, also those that look like options, path, name and exit code; a file and a module."""
    (tmp_path / "says.py").write_text(SAYS)
    as_file = run(tmp_path / "cache", "run", str(tmp_path / "says.py"), "3", "--all", "-m", code=way)
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "says.py"), "3", "--all", "-m"], capture_output=True, text=True, check=False
    )
    code = f"import os; os.chdir({str(tmp_path)!r})\n{way}"
    as_module = run(tmp_path / "cache", "run", "--all", "-m", "says", "3", "--all", "-m", code=code)

    assert as_file.stdout == as_module.stdout == plain.stdout
    assert as_file.returncode == as_module.returncode == plain.returncode == 3


@pytest.mark.slow
@PROGRAM_WAYS
def test_error_of_a_program_is_its_own(tmp_path: Path, way: str) -> None:
    """Exit code 1, and a traceback that begins in the program."""
    (tmp_path / "says.py").write_text(SAYS)
    done = run(tmp_path / "cache", "run", str(tmp_path / "says.py"), "raise", code=way)

    assert done.returncode == 1
    assert "numba_kcache" not in done.stderr
    assert done.stderr.splitlines()[1].endswith('says.py", line 5, in <module>')
    assert done.stderr.endswith("ValueError: mine\n")


@pytest.mark.parametrize("words", [("all.py",), ("--all", "all.py"), ("--all", "-m", "all")], ids=" ".join)
def test_program_starts_without_the_command_line_s_modules(tmp_path: Path, words: tuple[str, ...]) -> None:
    """`run` adds what `install()` adds to a program's start, and an argument parser is no part of that."""
    (tmp_path / "all.py").write_text("import sys; print('argparse' in sys.modules, *sys.modules)")
    surroundings = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    words = ("-m", "numba_kcache", "run", *words)
    done = subprocess.run(
        [sys.executable, *words], env=surroundings, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("False")
    assert "numba_kcache.numba_hook" in done.stdout.split()
    assert "numba_kcache.cli" not in done.stdout.split()


@pytest.mark.parametrize("verb", ["info", "list", "clear", "prune", "verify", "dir", "config"])
def test_directory_that_does_not_exist_is_said(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A path after --directory may be misspelt: a check of it fails, and a removal says that there was nothing. The
    verbs about the settings take one that is made later, as all do where the variable names it."""
    nowhere = str(tmp_path / "nowhere")
    code = main([verb, "--directory", nowhere])
    said = capsys.readouterr().err

    assert code == (verb == "verify")
    assert (nowhere in said) is (verb not in ("dir", "config"))
    assert not Path(nowhere).exists()
    assert verb != "verify" or run(Path(nowhere), "verify").returncode == 0


NO_PROGRAMS = {
    "": "cannot run a program: none is named",
    "-m": "cannot run a program: none is named",
    "nowhere.py": "cannot run nowhere.py: No such file or directory",
    "folder": "cannot run folder: can't find '__main__' module in 'folder'",
    "zeros": "cannot run zeros: source code",
    "-m nowhere": "cannot run nowhere: No module named nowhere",
    "-m nowhere.deeper": "cannot run nowhere.deeper: ",
    "-m folder": "cannot run folder: No module named folder.__main__; 'folder' is a package and cannot be",
}


@pytest.mark.slow
@PROGRAM_WAYS
def test_run_without_a_program_is_wrong_usage(tmp_path: Path, way: str) -> None:
    """Exit code 2 and a message, no traceback: nothing is named, or it is no program; a module likewise."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").write_bytes(b"print()\0")
    code = f"import os; os.chdir({str(tmp_path)!r})\n{way}"
    for words, message in NO_PROGRAMS.items():
        done = run(tmp_path / "cache", "run", *words.split(), code=code)

        assert done.returncode == 2, words
        assert done.stderr.startswith(f"numba-kcache: {message}"), words
        assert done.stderr.endswith("\n  hint: write numba-kcache run PROG.py, or run -m MODULE\n"), words


@pytest.mark.slow
@PROGRAM_WAYS
def test_program_with_a_syntax_error_is_shown_by_python(tmp_path: Path, way: str) -> None:
    """Exit code 1, with Python's own mark of the place: as `python PROG.py` does."""
    (tmp_path / "wrong.py").write_text("a = (")
    done = run(tmp_path / "cache", "run", str(tmp_path / "wrong.py"), code=way)

    assert done.returncode == 1
    assert done.stderr.endswith("SyntaxError: '(' was never closed\n")


# -- warm --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_modules_of_the_working_directory_are_found(tmp_path: Path) -> None:
    """The installed command, whose path is that of its script, also finds kernels in lists, dicts and classes of such a
    module."""
    (tmp_path / "pk").mkdir()
    (tmp_path / "pk" / "__init__.py").touch()
    (tmp_path / "pk" / "kernels.py").write_text(
        f"from numba_kcache import cached_kernel\n"
        f"def k(n): return cached_kernel({EMPTY!r} + f'// {{n}}', arch='sm_90')\n"
        "one, table = k(1), {'a': [k(2)], 'b': (k(3), {'c': k(4)})}\n"
        "table['self'] = table\n"
        "class Kernels:\n    several = [k(5), k(6)]\n    one = staticmethod(k(7))\n"
    )
    code = "import sys; sys.path.pop(0); from numba_kcache.cli import main; sys.exit(main(sys.argv[1:]))"
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code, "warm", "pk.kernels", "--arch", "80,sm_90", "--workers", "1", "--json"],
        env=surroundings, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert sorted(each["target"] for each in results) == ["sm_80"] * 7 + ["sm_90"] * 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
def test_warm_fails_where_nothing_gets_into_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`warm` fails if no entry can be stored, so that an image build does not pass with an empty cache."""
    path = tmp_path / "kernels_to_warm.py"
    path.write_text(f"from numba_kcache import cached_kernel\nk = cached_kernel({EMPTY!r}, arch='sm_90')\n")

    assert main(["warm", str(path), "--directory", "/proc/nope"]) == 1
    printed = capsys.readouterr().err
    assert "cannot warm up: /proc/nope cannot be used" in printed
    monkeypatch.setenv("NUMBA_KCACHE_MAX_SIZE", "100")
    assert main(["warm", str(path), "--workers", "1", "--directory", str(tmp_path / "small")]) == 1
    printed = capsys.readouterr().out
    assert "cannot compile 1 of 1 kernel: none is stored" in printed
    assert "is above the limit of 100" in printed


@pytest.mark.parametrize("arch", ["sm_9x", ",", "native,x", ""])
def test_arch_that_is_none_is_wrong_usage(arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option of the command line and the accepted values."""
    code = main(["warm", "nowhere.py", "--arch", arch, "--directory", str(tmp_path)])

    assert code in (1, 2)  # 1 for native on a machine without a device, which comes first
    assert "--arch" in capsys.readouterr().err


@pytest.mark.slow
@needs_fake_driver
def test_native_is_what_each_device_is(tmp_path: Path) -> None:
    """`native` means all devices of the machine, each target once; the kernel's own targets do not count."""
    path = tmp_path / "kernels_of_devices.py"
    path.write_text(f"from numba_kcache import cached_kernel\nk = cached_kernel({EMPTY!r}, arch='sm_75')\n")
    words = ["warm", str(path), "--arch", "native", "--workers", "1", "--json", "--directory", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "numba_kcache", *words],
        env=environment(build(), devices=(90, 80, 80)), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert sorted(each["target"] for each in json.loads(done.stdout)["results"]) == ["sm_80", "sm_90a"]


# -- the terminal ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("info",), ("show", "KEY"), ("config",), ("doctor",), ("explain", "KEY"), ("show", "x")]
)
def test_every_verb_has_the_text_of_a_pipe_on_a_terminal(filled: Path, words: tuple[str, ...]) -> None:
    """The terminal breaks the lines; no escape sequence is written."""
    words = tuple(key_of_saxpy(filled) if word == "KEY" else word for word in words)
    command = [sys.executable, "-m", "numba_kcache", *words, "--directory", str(filled)]
    plain = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "TERM", "COLUMNS")}
    surroundings = {**plain, "PYTHONPATH": str(ROOT), "COLUMNS": "70"}
    piped = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    reader, writer = pty.openpty()
    ran = subprocess.Popen(command, env={**surroundings, "TERM": "xterm"}, stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(reader, 4096):
            shown += part
    os.close(reader)
    bare = shown.decode().replace("\r\n", "\n")

    assert ran.wait() == piped.returncode
    assert "\x1b" not in bare + piped.stdout + piped.stderr
    if words[0] != "doctor":  # free space changes
        assert bare == piped.stdout + piped.stderr
