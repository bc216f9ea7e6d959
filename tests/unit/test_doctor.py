"""The doctor finds each fault and says what to do about it; nothing sound is reported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, doctor
from numba_kcache.doctor import FINE, NOTE, WRONG, Compilers, Device, Diagnosis, Finding
from numba_kcache.settings import unknown_variables
from numba_kcache.toolchain.locating import loaded_path
from tests.support.compiling import ROOT
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.stores import open_store, small_entry

PATHS = {"nvrtc": "/l/libnvrtc.so.13", "nvvm": "/l/libnvvm.so.4", "nvJitLink": "/l/libnvJitLink.so.13"}
WHOLE = Compilers(PATHS, (13, 0), (75, 80, 90, 100), ("/include",))
GOOD = {
    "cuda-bindings": "13.0.0", "numba-cuda": "0.30.4", "numba": "0.68.1", "numba-cuda-mlir": "0.6.0",
    "cuda-core": "1.2.2", "numpy": "2.4.6",
}  # fmt: skip
NUMBAS = {"numba-cuda": None, "numba": None, "numba-cuda-mlir": None}


def states(findings: Any) -> dict[str, str]:
    return {each.subject: each.state for each in findings}


@pytest.mark.parametrize(
    ("name", "found", "state"),
    [
        ("numpy", "2.5.0", WRONG),
        ("numpy", "2.4.99", FINE),
        ("numpy", "3.0.0rc1", WRONG),
        ("numba-cuda", "0.29.9", WRONG),
        ("numba-cuda", "0.31.0", FINE),
        ("numba-cuda", "0.30.0", FINE),
        ("cuda-core", "2.0", WRONG),
        ("cuda-bindings", "12.8.0", WRONG),
        ("cuda-bindings", "12.9.1", FINE),
        ("numba", None, WRONG),
        ("numba-cuda-mlir", "0.5.3", WRONG),
        ("numba-cuda-mlir", "0.7.0", FINE),
    ],
)
def test_versions_that_do_not_fit_are_wrong(name: str, found: str | None, state: str) -> None:
    """The advice is the command that installs a compatible version."""
    findings = list(doctor.judged_versions(GOOD | {name: found}, {}))
    (one,) = [each for each in findings if each.subject == name]

    assert one.state == state
    assert ("pip install" in one.advice) == (state == WRONG)
    assert [each.subject for each in findings if each.state == WRONG] == [name] * (state == WRONG)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (NUMBAS, {"numba-cuda": NOTE, "numba-cuda-mlir": NOTE}),
        (NUMBAS | {"cuda-core": None, "numpy": None}, {"numba-cuda": NOTE, "numba-cuda-mlir": NOTE}),
        ({"numba-cuda": None, "numpy": "2.6"}, {"numba-cuda": NOTE, "numpy": FINE}),
        ({"numba-cuda-mlir": None}, {"numba-cuda-mlir": NOTE, "numpy": FINE}),
    ],
    ids=["neither", "nor NumPy", "mlir only", "numba-cuda only"],
)
def test_absent_numba_is_a_note_that_names_its_extra(found: Any, wanted: Any) -> None:
    """CUDA C++ kernels need neither, nor NumPy; NumPy 2.5 is wrong for numba-cuda alone."""
    findings = list(doctor.judged_versions(GOOD | found, {}))

    assert {each.subject: each.state for each in findings}.items() >= wanted.items()
    assert WRONG not in states(findings).values()
    for each in findings:
        if each.state == NOTE:
            assert each.advice.endswith(f"pip install 'numba-kcache[{doctor.EXTRAS[each.subject]}]'")


@pytest.mark.parametrize(
    ("driver", "why", "nvrtc", "state"),
    [
        ((13, 0), "", (13, 0), FINE),
        ((13, 0), "", (12, 9), FINE),
        ((13, 0), "", (13, 5), FINE),
        ((12, 8), "", (13, 0), WRONG),
        ((12, 8), "", None, FINE),
        ((13, 0), "cuInit says 100", (13, 0), WRONG),
        (None, "no libcuda", (13, 0), NOTE),
    ],
)
def test_driver_is_held_against_the_toolkit(driver: Any, why: str, nvrtc: Any, state: str) -> None:
    """A toolkit of a newer major version than the driver's makes code that does not load."""
    finding = doctor.judged_driver(driver, why, nvrtc)

    assert finding.state == state
    assert bool(finding.advice) == (state != FINE)


def test_absent_compilers_are_notes() -> None:
    """A machine that only serves cached kernels needs no compiler."""
    bare = Compilers(dict.fromkeys(PATHS), None, (), ())

    assert set(states(doctor.judged_compilers(bare)).values()) == {NOTE}
    assert set(states(doctor.judged_compilers(WHOLE)).values()) == {FINE}
    assert states(doctor.judged_compilers(WHOLE._replace(headers=())))["headers"] == NOTE


def test_devices_are_held_against_the_compiler() -> None:
    """A device newer than the compiler's newest target gets PTX; one older than its oldest gets no code."""
    devices = [Device("new", 12, 0), Device("known", 9, 0), Device("old", 6, 0)]

    assert [doctor.judged_device(0, each, WHOLE).state for each in devices] == [NOTE, FINE, WRONG]


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "state"),
    [
        (10 << 30, 10**6, FINE),
        (10 << 30, None, FINE),
        (1 << 20, 10**6, WRONG),
        (10 << 30, 5, WRONG),
        (1 << 29, 10**6, NOTE),
    ],
)
def test_space_is_bytes_and_files(tmp_path: Path, free_bytes: int, free_files: int | None, state: str) -> None:
    """A full disk, no inodes left, and a limit that the disk cannot hold."""
    info = KernelCache(tmp_path).info()

    assert doctor.judged_space(free_bytes, free_files, info).state == state


def directory_findings(directory: Path, **settings: Any) -> dict[str, Finding]:
    cache = KernelCache(directory, **settings)
    return {each.subject: each for each in doctor.judged_directory(cache.session, cache.info())}


def test_directory_of_ours_is_fine_and_left_as_it_is(tmp_path: Path) -> None:
    """It is only looked at; a directory that does not exist is not made."""
    (tmp_path / "cache").mkdir(mode=0o700)
    found = directory_findings(tmp_path / "cache")

    assert {name: each.state for name, each in found.items()} == {"directory": FINE, "space": FINE}
    assert list((tmp_path / "cache").iterdir()) == []
    assert directory_findings(tmp_path / "other")["directory"].state == FINE
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
def test_directory_that_others_can_write_is_wrong(tmp_path: Path) -> None:
    """Unless it is shared on purpose."""
    (tmp_path / "cache").mkdir()
    os.chmod(tmp_path / "cache", 0o777)
    found = directory_findings(tmp_path / "cache")["directory"]

    assert found.state == WRONG
    assert "can be written by others" in found.says
    assert "chmod 700" in found.advice
    assert directory_findings(tmp_path / "cache", shared=True)["directory"].state == FINE


def test_cache_in_memory_is_wrong(tmp_path: Path) -> None:
    """`mode="off"`, or no directory that can be written to."""
    assert directory_findings(tmp_path, mode="off")["directory"].state == WRONG


def test_tier_that_does_not_answer_is_wrong(tmp_path: Path) -> None:
    """Launches go on without the tier; the doctor reports it."""
    (tmp_path / "tier").mkdir(mode=0o700)
    cache = KernelCache(tmp_path / "cache", tiers=[str(tmp_path / "tier")])

    assert [each.state for each in doctor.judged_tiers(cache.session)] == [FINE]
    gone = KernelCache(tmp_path / "cache", tiers=[str(tmp_path / "nowhere")])
    (finding,) = doctor.judged_tiers(gone.session)
    assert finding.state == WRONG
    assert "No such file or directory" in finding.says
    assert str(tmp_path / "nowhere") in finding.advice


def test_tier_that_is_written_to_is_written_to(tmp_path: Path) -> None:
    """The doctor writes a file that is no entry and reads it back; a tier that cannot be written to is a fault."""
    cache = KernelCache(tmp_path / "cache", tiers=[f"{tmp_path / 'tier'}?readonly=0"])

    assert [each.state for each in doctor.judged_tiers(cache.session)] == [FINE]
    assert cache.pull().entries == 0
    (tmp_path / "file").touch()
    cache = KernelCache(tmp_path / "cache", tiers=[f"{tmp_path / 'file'}?readonly=0"])
    assert [each.state for each in doctor.judged_tiers(cache.session)] == [WRONG]


def test_directory_with_unsigned_code_is_noted_where_signatures_are_demanded(tmp_path: Path) -> None:
    """Unsigned files had arrived in the directory: the note names the folder `signed`, which alone is used."""
    store = open_store(tmp_path)
    store.tree.takes_unsigned = True
    store.put(small_entry(1))
    found = directory_findings(tmp_path, trusted_keys={"team": b"0" * 32})

    assert found["signatures"].state == NOTE
    assert str(tmp_path / "signed") in found["signatures"].says
    assert "signatures" not in directory_findings(tmp_path)


def test_client_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding names the extra; the server itself may be available."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    cache = KernelCache(tmp_path / "cache", tiers=["s3://bucket/path"])
    (finding,) = doctor.judged_tiers(cache.session)

    assert finding.state == WRONG
    assert "obstore" in finding.says
    assert "numba-kcache[object-store]" in finding.advice


def test_misspelt_variable_is_wrong_and_the_right_one_named() -> None:
    """Known variables are fine; one that resembles none of them is reported too."""
    unknown = unknown_variables(
        {"NUMBA_KCACHE_DIR": "/c", "NUMBA_KCACHE_INSTALL": "1", "NUMBA_KCACHE_DIRECTORY": "/c", "HOME": "/",
         "numba_kcache_mode": "off", "NUMBA_KCACHE_XYZZY": "1", "NUMBA_KCACHE_LOG_LEVEL": "info"}
    )  # fmt: skip

    assert unknown == {
        "NUMBA_KCACHE_DIRECTORY": "NUMBA_KCACHE_DIR",
        "numba_kcache_mode": "NUMBA_KCACHE_MODE",
        "NUMBA_KCACHE_XYZZY": "",
        "NUMBA_KCACHE_LOG_LEVEL": "NUMBA_KCACHE_LOG",
    }
    findings = list(doctor.judged_variables(unknown))
    assert {each.state for each in findings} == {WRONG}
    assert findings[0].advice == "rename NUMBA_KCACHE_DIRECTORY to NUMBA_KCACHE_DIR"


def test_compiler_that_cannot_be_loaded_is_wrong() -> None:
    """An installed compiler that does not load is a fault, with the loader's message."""
    broken = WHOLE._replace(version=None, troubles={"nvrtc": "libc.so.6: version `GLIBC_2.99' not found"})
    found = {each.subject: each for each in doctor.judged_compilers(broken)}

    assert found["nvrtc"].state == WRONG
    assert "GLIBC_2.99" in found["nvrtc"].says
    assert found["nvvm"].state == FINE


@pytest.mark.slow
def test_compiler_that_loads_and_does_not_compile_is_wrong(tmp_path: Path) -> None:
    """NVRTC without its builtins returns its version but compiles nothing, which compiling the smallest kernel
    shows."""
    path = loaded_path("nvrtc")
    if path is None:
        pytest.skip("NVRTC is not installed")
    alone = tmp_path / Path(path).name
    shutil.copyfile(path, alone)
    done = subprocess.run(
        [sys.executable, "-m", "numba_kcache", "doctor", "--directory", str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(alone)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert re.search(r"^wrong +nvrtc .*cannot be used: NVRTC returned NVRTC_ERROR_BUILTIN", done.stdout, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
def test_directory_that_is_a_file_is_no_case_for_chmod(tmp_path: Path) -> None:
    """The finding names the path; it advises no chmod and reports no full disk."""
    (tmp_path / "file").touch()
    found = directory_findings(tmp_path / "file")

    assert found["directory"].state == WRONG
    assert str(tmp_path / "file") in found["directory"].says
    assert "chmod" not in found["directory"].advice


def test_diagnosis_ends_with_what_to_do() -> None:
    """Faults come first, then what could be improved; both are numbered."""
    text = str(
        Diagnosis(
            (Finding("a", FINE, "good"), Finding("b", NOTE, "absent", "get b"), Finding("c", WRONG, "bad", "mend c"))
        )
    )

    assert text.endswith("what to do\n  1. mend c\n\nwhat else could be done\n  1. get b")
    assert str(Diagnosis((Finding("a", FINE, "good"),))).endswith("nothing is wrong")
    without = str(Diagnosis((Finding("nvrtc", NOTE, "not installed", "install it"),)))
    assert "nothing is wrong" not in without
    assert without.endswith("nothing is broken")


@pytest.mark.slow
@needs_fake_driver
@pytest.mark.parametrize(
    ("devices", "version", "code", "words"),
    [
        ((90, 80), 13000, 0, ["CUDA 13.0", "compute capability 9.0", "device 1", "compute capability 8.0"]),
        ((90,), 12080, 1, ["which does not run what NVRTC", "update the driver"]),
        ((), 13000, 1, ["the driver returned CUDA_ERROR_NO_DEVICE", "run nvidia-smi"]),
    ],
    ids=["two devices", "old driver", "no device"],
)
def test_doctor_asks_the_driver(
    tmp_path: Path, devices: tuple[int, ...], version: int, code: int, words: list[str]
) -> None:
    """Driver version and devices are found without any CUDA package; a fault makes the exit status 1."""
    done = subprocess.run(
        [sys.executable, "-m", "numba_kcache", "doctor", "--directory", str(tmp_path / "cache")],
        env=environment(build(), devices=devices, driver_version=version),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == code, done.stdout + done.stderr
    assert all(each in done.stdout for each in words), done.stdout
