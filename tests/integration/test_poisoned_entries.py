"""Entries with valid digests and wrong contents: launched on the fake driver, from every place they may come from.

The driver's log shows that nothing is loaded whose target, kernels or parameters differ from its header.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

POISON = r"""
import functools, json, os, shutil, sys, tempfile, warnings
from pathlib import Path
from numba_kcache import KernelCache, cached_kernel, KCacheError
from numba_kcache.store import encoding
from numba_kcache import store as entry_format

encoding.decode_entry = lambda data, key: None  # a writer refuses some of the contents below

SAXPY = 'extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) { y[0] = a * x[0] + n; }'
OTHER = 'extern "C" __global__ void other(float *y) { y[0] = 1; }'

def path_of(found): return Path(found.tree.root) / "v1" / "entries" / found.key[:2] / found.key[2:]

@functools.cache
def stored(source, arch):
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    cached_kernel(source, cache=KernelCache(folder, durability="none")).compile(arch)
    return folder

def compiled(folder, source=SAXPY, arch="sm_90"):
    shutil.copytree(stored(source, arch), folder, dirs_exist_ok=True)
    cache = KernelCache(folder, durability="none")
    (found,) = [file for file in cache.session.local.files(1)]
    return cache, found

def poison(folder, change, **way):
    "Store a kernel in a cache, and put in place of its entry what `change` makes of it."
    cache, found = compiled(folder, **way)
    entry = entry_format.decode_entry(path_of(found).read_bytes(), found.key)
    header, payloads = json.loads(json.dumps(entry.header)), dict(entry.payloads.items())
    change(header, payloads)
    data = encoding.encode_entry(entry_format.StoredEntry(found.key, header, payloads))
    path_of(found).write_bytes(data)
    return found.key, data

def cubin_of(source, arch="sm_90"):
    with tempfile.TemporaryDirectory() as folder:
        cache, found = compiled(folder, source, arch)
        return entry_format.decode_entry(path_of(found).read_bytes(), found.key).payloads["cubin"]

def garbage(header, payloads): payloads["cubin"] = b"no code at all" * 50
def cut(header, payloads): payloads["cubin"] = payloads["cubin"][: len(payloads["cubin"]) // 2]
def renamed(header, payloads): header["entries"][0][1] = "saxpi"
def another(header, payloads): payloads["cubin"] = cubin_of(OTHER)
def no_entries(header, payloads): header["entries"] = []
def no_parameters(header, payloads): header["entries"][0][4] = []
def surrogate(header, payloads): header["entries"][0][1] = "\ud800"
def older(header, payloads): payloads["cubin"] = cubin_of(SAXPY, "sm_80")
def other_target(header, payloads):
    header["target"] = "sm_80"; payloads["cubin"] = cubin_of(SAXPY, "sm_80")
def huge_time(header, payloads): header["compile_time_s"] = 10**300
def odd_attributes(header, payloads): header["attributes"] = {"carveout": [None]}

def launch(cache, **options):
    kernel = cached_kernel(SAXPY, cache=cache, **options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kernel[1, 1](2.0, None, None, 0)
    return [str(each.message) for each in seen]
"""

CHANGES = (
    "garbage", "cut", "renamed", "another", "no_entries", "no_parameters", "surrogate", "older", "other_target",
    "huge_time", "odd_attributes",
)  # fmt: skip


def child(tmp_path: Path, script: str, **options: object) -> tuple[str, list[dict[str, object]]]:
    log = tmp_path / "log"
    env = {**environment(build(), log=log), "NUMBA_KCACHE_MODE": ""}
    done = run(["-c", POISON + script, str(tmp_path)], env=env)
    return done.stdout, read_log(log, "load", "launch")


@pytest.mark.parametrize("way", ["own", "tier", "shared"])
def test_poisoned_entry_is_compiled_anew_and_heals(tmp_path: Path, way: str) -> None:
    """Each kind of entry, in the local directory, in a tier and in a team's directory: one warning, and a hit
    afterwards."""
    script = f"""
way, root = {way!r}, sys.argv[1]
for name in {CHANGES!r}:
    key, data = poison(f"{{root}}/{{name}}", globals()[name])
    def cache():
        if way == "tier":
            return KernelCache(f"{{root}}/{{name}}-local", tiers=[f"{{root}}/{{name}}"], durability="none")
        return KernelCache(f"{{root}}/{{name}}", shared=way == "shared", durability="none")
    first, second = cache(), cache()
    said = launch(first)
    counts = first.info("process")
    assert len(said) == 1, (name, said)
    assert counts.compiles == 1, (name, counts)
    assert first.info("process").misses == 1, name
    assert not launch(second), name
    assert second.info("process").compiles == 0, name
print("done")
"""
    said, events = child(tmp_path, script)

    assert said == "done\n"
    assert [each["result"] for each in events] == [0] * len(events), "nothing was handed to the driver that it refuses"
    assert len([each for each in events if each["event"] == "launch"]) == 2 * len(CHANGES)


def test_poisoned_entry_of_a_frozen_cache_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Nothing is compiled there, and the user learns which file to replace."""
    script = f"""
from numba_kcache import FrozenCacheError
for name in {CHANGES!r}:
    key, data = poison(f"{{sys.argv[1]}}/{{name}}", globals()[name])
    try:
        launch(KernelCache(f"{{sys.argv[1]}}/{{name}}", mode="frozen"))
    except FrozenCacheError as error:
        print(key in str(error) or str(error))
"""
    said, events = child(tmp_path, script)

    assert said == "True\n" * len(CHANGES)
    assert not events


@pytest.mark.parametrize("mode", ["readwrite", "frozen"])
def test_code_that_the_driver_alone_refuses_is_set_aside(tmp_path: Path, mode: str) -> None:
    """All checks of the bytes pass: the code is compiled again with one warning; if frozen, the error names the
    entry."""
    log = tmp_path / "log"
    script = f"""
cache, found = compiled(sys.argv[1] + "/cache")
again = KernelCache(sys.argv[1] + "/cache", mode={mode!r}, durability="none")
try:
    print(len(launch(again)), again.info("process").compiles)
    print(len(launch(KernelCache(sys.argv[1] + "/cache"))))
except KCacheError as error:
    print(type(error).__name__, found.key in str(error))
"""
    env = environment(build(), log=log, fail=["cuModuleLoadData:200@1"])
    done = run(["-c", POISON + script, str(tmp_path)], env=env)

    assert done.stdout == ("1 1\n0\n" if mode == "readwrite" else "FrozenCacheError True\n")
    launches = [each for each in read_log(log, "launch") if each["result"] == 0]
    assert len(launches) == (2 if mode == "readwrite" else 0)


def test_own_code_that_the_driver_refuses_is_the_user_s_error(tmp_path: Path) -> None:
    """Code that was compiled just now is not compiled a second time."""
    script = """
try:
    launch(KernelCache(sys.argv[1] + "/cache"))
except KCacheError as error:
    print(type(error).__name__, "INVALID_IMAGE" in str(error))
"""
    done = run(["-c", POISON + script, str(tmp_path)], env=environment(build(), fail=["cuModuleLoadData:200@*"]))

    assert "True" in done.stdout


def test_driver_without_memory_keeps_the_entry(tmp_path: Path) -> None:
    """The error says nothing about the code: the launch fails as it would without a cache, and the entry stays."""
    script = """
cache, found = compiled(sys.argv[1] + "/cache")
again = KernelCache(sys.argv[1] + "/cache")
try:
    launch(again)
except KCacheError as error:
    print(type(error).__name__, path_of(found).exists(), again.info("process").compiles)
"""
    done = run(["-c", POISON + script, str(tmp_path)], env=environment(build(), fail=["cuModuleLoadData:2@*"]))

    assert done.stdout == "LaunchError True 0\n"


def test_module_that_numba_cannot_load_leaves_nothing_to_unload(tmp_path: Path) -> None:
    """The error is all that there is: no exception is ignored when what was made of it ends."""
    script = """
import gc, sys
from numba import cuda
ignored = []
sys.unraisablehook = ignored.append
cuda.current_context()
try:
    launch(KernelCache(sys.argv[1] + "/cache"))
except KCacheError as error:
    print(type(error).__name__)
gc.collect()
print(len(ignored))
"""
    env = environment(build(), fail=["cuLibraryLoadData:2@*"])

    assert numba_server.output(["-c", POISON + script, str(tmp_path)], env) == "LaunchError\n0\n"


def test_kernel_of_a_module_is_held_against_the_cubin_when_it_is_launched(tmp_path: Path) -> None:
    """The header has wrong parameters for one of three kernels: the module is compiled again, and all three run."""
    script = """
from numba_kcache import cached_module
TWO = SAXPY + OTHER + 'extern "C" __global__ void third(int a) {}'
def module(cache): return cached_module(TWO, arch="sm_90", cache=cache)
cache = KernelCache(sys.argv[1] + "/cache", durability="none")
module(cache).compile()
(found,) = cache.session.local.files(1)
entry = entry_format.decode_entry(path_of(found).read_bytes(), found.key)
header = json.loads(json.dumps(entry.header))
next(each for each in header["entries"] if each[1] == "third")[4] = []
poisoned = entry_format.StoredEntry(found.key, header, dict(entry.payloads.items()))
path_of(found).write_bytes(encoding.encode_entry(poisoned))
warnings.simplefilter("ignore")
again = KernelCache(sys.argv[1] + "/cache", durability="none")
kernels = module(again)
kernels.other[1, 1](None)
kernels.third[1, 1](7)
kernels.saxpy[1, 1](2.0, None, None, 0)
print(again.info("process").compiles)
"""
    said, events = child(tmp_path, script)

    launches = [each for each in events if each["event"] == "launch"]
    assert said == "1\n"
    assert [(each["kernel"], each["result"]) for each in launches] == [("other", 0), ("third", 0), ("saxpy", 0)]
    assert launches[1]["parameters"] == ["07000000"]
