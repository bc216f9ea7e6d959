"""Laws of the key: changes that change it, changes that do not, and equal keys everywhere and for ever."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import runpy
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kcache import keys
from numba_kcache.errors import UncacheableError
from numba_kcache.explanation.diff import Difference, diff
from numba_kcache.frontends.source.module import ModuleKernelDefinition
from numba_kcache.keys import CLEAR_LIMIT_BYTES, SCHEMA, component, derive, encode, family_of
from numba_kcache.model import Artifact, ModuleKernels, Origin, Target
from tests.support.compiling import ROOT, in_python
from tests.support.keying import COMPILERS, VERSIONS, definition_of, key_of, request_of

GOLDEN = ROOT / "tests" / "data" / "golden_keys.json"
SOURCE = 'extern "C" __global__ void k(float *x) { *x = N; }'
PTX = (
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry _ZN4mainB2v1B4cw51E() "
    "{ call _ZN1fB2v3B4cw51E; call _ZN1fB2v4B4cw51E; }"
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


# -- encoding -----------------------------------------------------------------------------------------------


def decoded(data: bytes) -> Any:
    """The value in canonical bytes, its type kept beside it: written from the grammar, not from the encoder."""
    value, rest = _decoded(data)
    assert not rest
    return value


def _decoded(data: bytes) -> tuple[Any, bytes]:
    tag, (size,) = data[:1], struct.unpack(">Q", data[1:9])
    body, rest = data[9 : 9 + size], data[9 + size :]
    assert len(body) == size
    if tag in (b"l", b"d"):
        members = []
        while body:
            member, body = _decoded(body)
            members.append(member)
        return (tag, tuple(members)), rest
    return (tag, body), rest


def meaning(value: Any) -> Any:
    """A value that two values share exactly if they mean the same to a key."""
    if isinstance(value, dict):
        return (b"d", tuple(itertools.chain.from_iterable((meaning(k), meaning(value[k])) for k in sorted(value))))
    if isinstance(value, list | tuple):
        return (b"l", tuple(map(meaning, value)))
    if isinstance(value, bool):
        return (b"t", b"1" if value else b"0")
    if isinstance(value, int):
        return (b"i", str(value).encode())
    if isinstance(value, float):
        return (b"f", value.hex().encode())
    if isinstance(value, str):
        return (b"s", value.encode("utf-8", "surrogatepass"))
    return (b"n", b"") if value is None else (b"b", value)


@pytest.mark.slow
@given(plain)
def test_encoding_can_be_read_back(value: Any) -> None:
    """A decoder gets the same value back, so no two values have the same bytes."""
    assert decoded(encode(value)) == meaning(value)


@pytest.mark.slow
@given(plain, plain)
def test_bytes_are_equal_exactly_where_values_are(one: Any, other: Any) -> None:
    """Injective, and the same for the same."""
    assert (encode(one) == encode(other)) == (meaning(one) == meaning(other))


def test_look_alikes_differ() -> None:
    """The classic collisions: 1, True, 1.0 and "1"; "" and nothing; joined and split; nested and flat."""
    values = [1, True, 1.0, "1", b"1", None, 0, False, 0.0, -0.0, "", b"", [], {}, [[]], [1], ["1"], ["ab", "c"],
              ["a", "bc"], ["abc"], [["a"], "b"], [["a", "b"]], ["a", ["b"]], {"a": 1}, ["a", 1], [["a", 1]],
              {"a": {"b": 1}}, {"a": 1, "b": 1}, math.inf, math.nan, "\0", "s\0"]  # fmt: skip

    assert len({encode(value) for value in values}) == len(values)
    assert encode((1, 2)) == encode([1, 2])
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), 1j, SimpleNamespace(), bytearray(b"x"), Path("x"), [1, {"a": {1}}], type("S", (str,), {})("x")],
)
def test_other_types_are_refused(value: Any) -> None:
    """No object is converted to text for a key: its repr may hold an address."""
    with pytest.raises(TypeError, match="cannot be in a key"):
        encode(value)


# -- components ---------------------------------------------------------------------------------------------

named = st.lists(st.tuples(st.text(max_size=4), plain), max_size=5)


@pytest.mark.slow
@given(named, named)
def test_key_is_equal_exactly_where_components_are(one: Any, other: Any) -> None:
    """The key depends on names, values, number and order of the components, and on nothing else."""
    keys = [derive(component(name, value) for name, value in pairs) for pairs in (one, other)]
    same = [(meaning(n), meaning(v)) for n, v in one] == [(meaning(n), meaning(v)) for n, v in other]

    assert (keys[0] == keys[1]) == same
    assert all(len(key) == 64 and set(key) <= set("0123456789abcdef") for key in keys)


def test_schema_is_in_the_key() -> None:
    """Two schemas never have a common key: the schema's number comes before the components in the digested bytes."""
    part = component("a", 1)
    this, next_one = (encode("numba_kcache") + encode(schema) + part.encoded for schema in (SCHEMA, SCHEMA + 1))

    assert derive([part]) == hashlib.sha256(this).hexdigest() != hashlib.sha256(next_one).hexdigest()


@pytest.mark.parametrize("name", ["environment", "depends", "depends[0]"])
@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"TOKEN": text}, lambda text: [[1, text.encode()]]])
def test_secret_enters_the_key_and_is_kept_nowhere(name: str, wrap: Any) -> None:
    """Variables and `depends` may hold a secret: a change of it changes the key, and no stored byte shows it."""
    secret, other = component(name, wrap("hunter2")), component(name, wrap("hunter3"))

    assert derive([secret]) != derive([other])
    assert secret.record()[2] != other.record()[2]
    assert "hunter" not in repr(secret.record())
    assert "sha256 " in repr(secret.record()[2])


def test_large_value_is_kept_as_its_digest() -> None:
    """An entry's report does not repeat a source of a megabyte."""
    small, large = component("source", "x"), component("source", "x" * CLEAR_LIMIT_BYTES)

    assert small.record()[2] == "x"
    assert large.record()[2] is None
    assert small.digest != large.digest


def test_diff_names_every_component_that_differs() -> None:
    """Changed, added and removed components are all named."""
    old = [component(name, value).record() for name, value in (("a", 1), ("b", 2), ("c", 3), ("gone", 0))]
    new = [component(name, value).record() for name, value in (("a", 1), ("b", 20), ("c", 30), ("new", 0))]

    assert diff(old, new) == (
        Difference("b", old[1], new[1]),
        Difference("c", old[2], new[2]),
        Difference("new", None, new[3]),
        Difference("gone", old[3], None),
    )
    assert diff(old, old) == ()


# -- requests -----------------------------------------------------------------------------------------------


def variants(tmp_path: Path) -> dict[str, str]:
    """The key of a request, and the keys of requests that each differ from it in one component."""
    files = {"a.cu": "A", "b.cu": "A", "c.cu": "C", "a.ptx": "A", "a.o": "A", "c.o": "C", "a.ltoir": "A"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    linked = {f"link {name}": key_of(request_of(SOURCE, link=[tmp_path / name])) for name in files}
    changed = {
        "nothing": {},
        "source": {"text": SOURCE + " "},
        "comment": {"text": SOURCE + "// why"},
        "guess": {"guess": "other"},
        "no guess": {"guess": None},
        "name": {"name": "k"},
        "instance": {"name": "k<float>"},
        "target": {"target": "sm_80"},
        "suffix": {"target": "sm_90a"},
        "virtual": {"target": "compute_90"},
        "through": {"through": "compute_80"},
        "through other": {"through": "compute_75"},
        "signature": {"signature": "float*"},
        "signature other": {"signature": "int*"},
        "fastmath": {"fastmath": True},
        "std": {"std": "c++17"},
        "std other": {"std": "c++20"},
        "define": {"defines": {"N": 1}},
        "define value": {"defines": {"N": 2}},
        "define name": {"defines": {"M": 1}},
        "define empty": {"defines": {"N": ""}},
        "define bare": {"defines": {"N": None}},
        "define function": {"defines": {"N(x)": "1", "N": "1"}},
        "define function later": {"defines": {"N": "1", "N(x)": "1"}},
        "flag define": {"options": ["-DN=1"]},
        "max_registers": {"max_registers": 32},
        "max_registers other": {"max_registers": 64},
        "lineinfo": {"lineinfo": True},
        "lineinfo elsewhere": {"lineinfo": True, "origin": Origin("/project/other.py", 3)},
        "lineinfo lower": {"lineinfo": True, "origin": Origin("/project/k.py", 4)},
        "debug": {"debug": True},
        "lto": {"lto": True},
        "opt": {"opt": 2},
        "opt other": {"opt": 0},
        "keep_ptx": {"keep_ptx": False},
        "module": {"module": ModuleKernels()},
        "module lazy": {"module": ModuleKernels((), True)},
        "module of names": {"module": ModuleKernels(("a", "b"))},
        "module of names lazy": {"module": ModuleKernels(("a", "b"), True)},
        "module of names in another order": {"module": ModuleKernels(("b", "a"))},
        "module of names joined": {"module": ModuleKernels(("a, b",))},
        "cubin": {"text": b"A", "kind": "cubin"},
        "cubin other": {"text": b"B", "kind": "cubin"},
        "fatbin": {"text": b"A", "kind": "fatbin"},
        "ltoir": {"text": b"A", "kind": "ltoir"},
        "ltoir opt": {"text": b"A", "kind": "ltoir", "opt": 1},
        "ltoir module lazy": {"text": b"A", "kind": "ltoir", "module": ModuleKernels((), True)},
        "flags": {"options": ["-restrict", "-ewp"]},
        "flags in another order": {"options": ["-ewp", "-restrict"]},
        "flags joined": {"options": ["-restrict-ewp"], "depends": ["a"]},
        "one flag": {"options": ["-restrict"]},
        "depends": {"depends": ["a"]},
        "depends number": {"depends": [1]},
        "depends flag": {"depends": [True]},
        "depends two": {"depends": ["a", "b"]},
        "depends mapping": {"depends": {"a": 1}},
        "depends mapping value": {"depends": {"a": 2}},
        "depends mapping file": {"depends": {"a": tmp_path / "a.cu"}},
        "depends file": {"depends": [tmp_path / "a.cu"]},
        "depends other file": {"depends": [tmp_path / "c.cu"]},
        "link in another order": {"link": [tmp_path / "c.cu", tmp_path / "a.cu"]},
        "link two": {"link": [tmp_path / "a.cu", tmp_path / "c.cu"]},
        "ptx": {"text": PTX, "kind": "ptx"},
        "ptx signature": {"text": PTX, "kind": "ptx", "signature": "float*"},
        "ptx other": {"text": PTX + " ", "kind": "ptx"},
    }  # fmt: skip
    keys = {what: key_of(request_of(**{"text": SOURCE, **change})) for what, change in changed.items()}  # type: ignore[arg-type]
    job = request_of(SOURCE, lto=True)
    for name in job.libraries:
        keys[f"build of {name}"] = key_of(job, {**COMPILERS, name: "build-id:ff"})
        keys[f"no {name}"] = key_of(job, {other: COMPILERS[other] for other in COMPILERS if other != name})
    for name in job.distributions:
        keys[f"version of {name}"] = key_of(job, COMPILERS, {**VERSIONS, name: "99"})
        keys[f"no {name}"] = key_of(job, COMPILERS, {other: VERSIONS[other] for other in VERSIONS if other != name})
    return {**keys, **linked}


def test_any_single_change_changes_the_key(tmp_path: Path) -> None:
    """Every component, each changed alone: all keys differ from each other."""
    keys = variants(tmp_path)
    same = [(a, b) for a, b in itertools.combinations(keys, 2) if keys[a] == keys[b]]

    assert not same


def test_module_as_ltoir_is_no_family_of_the_module_as_a_cubin() -> None:
    """Even if any compiler's code will do, one must not be served for the other, nor for a kernel alone."""
    families = {
        family_of(request_of(SOURCE, module=module).components)
        for module in (
            None,
            ModuleKernels(),
            ModuleKernels((), True),
            ModuleKernels(("k",)),
            ModuleKernels(("k",), True),
        )
    }
    assert len(families) == 5


def test_kernel_of_a_lazy_module_has_the_key_of_its_module_and_name() -> None:
    """Nothing else is needed: all that its code is made of is in the module's key."""
    module_code = Artifact("ltoir", Target(9, 0), (), b"")
    whole: Any = definition_of(SOURCE)
    resolutions: Any = None
    keys = {
        key_of(ModuleKernelDefinition(whole, resolutions, name).link_request(module_code, module))
        for module in ("0" * 64, "1" * 64)
        for name in ("a", "b", "a<b>")
    }

    assert len(keys) == 6
    assert keys.isdisjoint({derive(request_of(SOURCE, name="a").components)})


def test_environment_of_the_compiler_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that the compiler libraries read themselves are components; others are not."""
    before = key_of(request_of(SOURCE))
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert key_of(request_of(SOURCE)) == before
    monkeypatch.setenv("NV_NVVM_VERSION", "1")
    assert key_of(request_of(SOURCE)) != before


def test_what_means_the_same_keeps_the_key(tmp_path: Path) -> None:
    """Spelling, order of defines, the checkout's path, the label and the default written out."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for folder, name in (("one", "a.o"), ("two", "b.o")):
        (tmp_path / folder / name).write_bytes(b"object")
    same = [
        ({"defines": {"A": 1, "B": "2"}}, {"defines": {"B": 2, "A": "1"}}),
        ({"signature": "float *,  int"}, {"signature": " float *, int\n"}),
        ({}, {"label": "elsewhere.k", "origin": Origin("/other/k.py", 77), "base_dir": "/other"}),
        ({}, {"opt": 3, "fastmath": False, "std": None, "defines": {}, "options": [], "link": [], "keep_ptx": True}),
        ({"name": "k<float>", "guess": "k"}, {"name": "k<float>", "guess": None}),
        ({"include_dirs": []}, {"include_dirs": ["include"]}),
        ({"link": [tmp_path / "one" / "a.o"]}, {"link": [tmp_path / "two" / "b.o"]}),
        ({"depends": [tmp_path / "one" / "a.o"]}, {"depends": [tmp_path / "two" / "b.o"]}),
        ({"depends": [(1, {"a": 1, "b": 2})]}, {"depends": [[1, {"b": 2, "a": 1}]]}),
    ]  # fmt: skip
    for one, other in same:
        assert key_of(request_of(SOURCE, **one)) == key_of(request_of(SOURCE, **other)), (one, other)


def test_compiler_that_takes_no_part_keeps_the_key() -> None:
    """nvJitLink is in the key of a job that links, and in no other."""
    other_linker = {**COMPILERS, "nvJitLink": "build-id:ff"}

    assert key_of(request_of(SOURCE)) == key_of(request_of(SOURCE), other_linker)
    for linking in ({"lto": True}, {"through": "compute_80"}, {"target": "compute_80"}, {"text": PTX, "kind": "ptx"}):
        job = request_of(**{"text": SOURCE, **linking})  # type: ignore[arg-type]
        assert key_of(job) != key_of(job, other_linker), linking


def test_ptx_that_calls_other_functions_changes_the_key() -> None:
    """Two functions that differ by their counters alone are two functions: swapping their calls is another kernel."""
    first, second = "_ZN1fB2v3B4cw51E", "_ZN1fB2v4B4cw51E"
    swapped = PTX.replace(first, second)
    twice = PTX.replace(second, first)
    text = f".func {first} {{1}} .func {second} {{2}} .entry k {{ call X; }}"

    assert len({key_of(request_of(ptx, kind="ptx")) for ptx in (PTX, swapped)}) == 2
    assert key_of(request_of(PTX, kind="ptx")) != key_of(request_of(twice, kind="ptx"))
    assert len({key_of(request_of(text.replace("X", f), kind="ptx")) for f in (first, second)}) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"text": "int d = __DATE__[0];"},
        {"text": "int d = __TI\\\nME__[0];"},
        {"defines": {"STAMP": "__TIME__"}},
        {"defines": {"STAMP": "GLUE(__TI, ME__)"}},
        {"options": ["-DSTAMP=__DATE__"]},
        {"link": [type("CUSource", (), {"name": "d.cu", "data": "int d = __DATE__[0];"})()]},
        {"options": ["-include", "-D"]},
        {"options": ["-D", "-x"]},
    ],
)
def test_what_cannot_be_captured_has_no_key(given: dict[str, Any]) -> None:
    """A source that brings in the clock, or a flag that takes the next one as its value: no stale hit."""
    with pytest.raises(UncacheableError):
        key_of(request_of(**{"text": SOURCE, **given}))


@pytest.mark.parametrize(
    "text",
    [
        '#include "a.h"\n',
        "#  include <cuda_fp16.h>\n",
        '#inc\\\nlude "a.h"\n',
        '#inc\\\r\nlude "a.h"\n',
        '#if __has_include("a.h")\n#endif',
    ],
)
def test_source_that_asks_for_files_has_its_headers_tracked(text: str) -> None:
    """Every spelling of an include counts; a source that has none costs no look at a manifest."""
    found = request_of(text=text).headers
    assert found is not None
    assert found.texts == (text.encode(),)
    assert request_of(text=SOURCE).headers is None


def test_link_input_that_asks_for_files_has_its_headers_tracked(tmp_path: Path) -> None:
    """CUDA C++ among the link inputs is held to the same; then each text of the job is looked at."""
    (tmp_path / "a.cu").write_text('#include "x.h"\n')
    (tmp_path / "b.cu").write_text("__device__ int b;\n")

    headers = request_of(SOURCE, link=[tmp_path / "b.cu", tmp_path / "a.cu"], include_dirs=["/i"]).headers

    assert headers is not None
    assert headers.texts == (SOURCE.encode(), b"__device__ int b;\n", b'#include "x.h"\n')
    assert headers.folders == ("/project", "/i", str(tmp_path), str(tmp_path))  # that of each input, in order
    assert request_of(SOURCE, link=[tmp_path / "b.cu"]).headers is None


@pytest.mark.parametrize(
    ("flag", "is_forced", "values"),
    [
        ("--pre-include=a.h", True, ()),
        ("-include=a.h", True, ()),
        ("-DF(x)=x", False, (b"x",)),
        ("-D  A=1", False, (b"1",)),
        ("-D=A=1", False, (b"1",)),
        ("--define-macro=A", False, ()),
    ],
)
def test_flag_that_includes_or_defines_is_read(flag: str, is_forced: bool, values: tuple[bytes, ...]) -> None:
    """In each spelling that NVRTC accepts, files included by flags are tracked, also those named by a macro; they are
    searched for in the working directory first."""
    found = request_of('#include "x.h"\n', options=[flag]).headers

    assert found is not None
    assert (bool(found.forced), found.texts[1:]) == (is_forced, values)
    assert (request_of(SOURCE, options=[flag]).headers is not None) == is_forced


# -- everywhere and for ever --------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "plain": {"text": SOURCE},
    "options": {
        "text": SOURCE, "fastmath": True, "std": "c++17", "defines": {"N": 3, "A": None}, "max_registers": 32,
        "opt": 1, "options": ["-ewp"], "keep_ptx": False, "name": "k", "signature": "float *", "depends": [1, "ä"],
    },
    "lines": {"text": SOURCE, "lineinfo": True},
    "lto": {"text": SOURCE, "lto": True, "target": "sm_90a"},
    "through": {"text": SOURCE, "through": "compute_80"},
    "virtual": {"text": SOURCE, "target": "compute_80"},
    "ptx": {"text": PTX, "kind": "ptx"},
    "module": {"text": SOURCE, "guess": None, "module": ModuleKernels(("k", "k<float, 2>"))},
    "lazy module": {"text": SOURCE, "guess": None, "module": ModuleKernels((), True)},
    "cubin": {"text": b"\x7fELF", "guess": None, "kind": "cubin"},
}  # fmt: skip
"""Known requests. Their keys stand in tests/data/golden_keys.json."""


def test_known_requests_keep_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed key makes every cache in the field cold: then SCHEMA is raised and its keys are added to the file."""
    monkeypatch.chdir("/")  # a line table holds the working directory
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    now = {name: key_of(request_of(**case)) for name, case in CASES.items()}

    assert golden.get(str(SCHEMA)) == now, f"the keys of schema {SCHEMA} are now {json.dumps(now, indent=1)}"


def test_schemas_share_no_key() -> None:
    """Each schema's keys are its own."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    keys = [key for of_schema in golden.values() for key in of_schema.values()]

    assert len(set(keys)) == len(keys)
    assert max(map(int, golden)) == SCHEMA


KEYS = f"""
from numba_kcache.model import ModuleKernels
from tests.support.keying import request_of, key_of
CASES = {CASES!a}
print(*(key_of(request_of(**case)) for name, case in CASES.items() if name != "lines"))
"""


@pytest.mark.slow
def test_processes_agree_whatever_their_seed_folder_and_locale(tmp_path: Path) -> None:
    """Hash seed, working directory, locale, import order, optimisation flag and time zone have no part in a key."""
    here = " ".join(key_of(request_of(**case)) for name, case in CASES.items() if name != "lines")

    for seed, locale, cwd, optimised, imports in (
        ("0", "C", "/", "1", ""),
        ("77", "tr_TR.UTF-8", str(tmp_path), "", "import numba.cuda, numpy.ma, numba_kcache.doctor\n"),
        ("random", "de_DE", str(ROOT), "", "import numba_kcache.module, numba_kcache.cache, cuda.bindings.nvrtc\n"),
    ):  # what is optimised is read from its sources, which would take long for more
        varied = {"PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONOPTIMIZE": optimised, "TZ": "Asia/Tokyo"}
        elsewhere = in_python(imports + KEYS, cwd=cwd, **varied)
        assert elsewhere.strip() == here


# -- digests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 16 << 10, (16 << 10) + 1])
@pytest.mark.parametrize("has_own", [True, False])
def test_digest_is_sha256_whoever_computes_it(monkeypatch: pytest.MonkeyPatch, size_bytes: int, has_own: bool) -> None:
    """Below and above the size limit, with and without the interpreter's own sha256."""
    if not has_own:
        monkeypatch.setitem(sys.modules, "_sha2", None)
        monkeypatch.setitem(sys.modules, "_sha256", None)
    data = bytes(range(256)) * 65
    data = data[:size_bytes]

    sha256 = runpy.run_path(keys.__file__, run_name="numba_kcache.keys")["sha256"]

    assert sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()
