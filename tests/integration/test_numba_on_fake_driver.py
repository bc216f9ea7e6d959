"""Numba kernels on the fake driver: the bytes at the driver, the imports of a warm start, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import numba_server, signature_programs
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run, without_addresses
from tests.support.numba_programs import (
    AHEAD,
    BAD,
    DEVICES,
    GRIDS,
    HOST,
    LIFE,
    OPTIONS,
    PARITY,
    POLYMORPHIC,
    RESOURCES,
    UNCACHED,
    UNTRACKED,
    VOUCHED,
)

pytestmark = [needs_fake_driver, pytest.mark.slow]


def child(program: str, cache: Path, *arguments: str, **env: str | Path) -> str:
    """Output of a program under the fake driver with one device, or as many as `devices` says."""
    return numba_server.output(["-c", program, str(cache), *arguments], surroundings(**env))


def later(program: str, cache: Path, *arguments: str, **env: str | Path) -> str:
    """The same in another process, which finds what the first one stored."""
    return numba_server.output(["-c", program, str(cache), *arguments], surroundings(**env), way="later")


def surroundings(log: str | Path = "", devices: str | Path = "90", **env: str | Path) -> dict[str, str]:
    """A child's environment."""
    driver = environment(build(), log=Path(log) if log else None, devices=tuple(map(int, str(devices).split())))
    return {**driver, **{name: str(text) for name, text in env.items()}}


def test_parameters_are_those_of_numbas_own_launch(tmp_path: Path) -> None:
    """Scalars, arrays of every layout, records, complex, fp16, tuples: the same bytes, cold, warm and compiled."""
    passed = []
    for way, misses, start in (("cold", "30 misses", child), ("warm", "0 misses", later)):
        log = tmp_path / f"log {misses}"

        said = start(PARITY, tmp_path / "cache", way, log=log)

        launches = [each["parameters"] for each in read_log(log, "launch") if "echo" in each["kernel"]]
        size = 1 + 6
        groups = [launches[at : at + size] for at in range(0, len(launches), size)]
        assert len(groups) == said.count("launched") == 45
        assert misses in said
        assert [each for each in groups if any(one != each[0] for one in each)] == []
        passed.append([without_addresses(each[0]) for each in groups])
    assert passed[0] == passed[1]


def test_host_arrays_and_wrappers_are_copied_as_numba_does(tmp_path: Path) -> None:
    """InOut by default, In and Out by their names; the driver sees the very copies that Numba makes."""
    assert child(HOST, tmp_path).splitlines() == ["same copies"] * 4


def test_one_kernel_takes_many_types(tmp_path: Path) -> None:
    """Alternating signatures, and wrong counts in between: each launch finds its own code."""
    assert child(POLYMORPHIC, tmp_path).split() == ["done"]


def test_each_grid_of_a_loop_is_launched(tmp_path: Path) -> None:
    """More new grids than are kept, with other types and extents in between, and after a reset."""
    log = tmp_path / "log"

    said = child(GRIDS, tmp_path / "cache", log=log).splitlines()

    wanted = []
    for grid in range(1, 301):
        wanted += [(grid, 1, 1), *([(grid, 2, 1), (grid, 3, 1)] if grid % 50 == 0 else [])]
    launches = read_log(log, "launch")
    assert [tuple(each["grid"]) for each in launches] == [*wanted, (5, 1, 1), (6, 1, 1)]
    assert {each["result"] for each in launches} == {0}
    assert [line.partition(":")[0].split(" with ")[1] for line in said] == [
        "grid.x = 0", "grid.x = 2147483648", "grid.y = 70000"
    ]  # fmt: skip


def test_clear_reset_and_reload_are_followed(tmp_path: Path) -> None:
    """A kernel goes on after `clear()`, and after a context reset."""
    log = tmp_path / "log"

    assert child(LIFE, tmp_path / "cache", log=log).split() == ["done"]

    assert {each["result"] for each in read_log(log, "launch")} == {0}


def test_each_device_gets_its_own_module(tmp_path: Path) -> None:
    """Two capabilities in one process give two entries; the current device is the one that launches."""
    log = tmp_path / "log"

    said = child(DEVICES, tmp_path / "cache", log=log, devices="90 80")

    assert said.split() == ["sm_80", "sm_90a"]
    assert [(each["device"], each["result"]) for each in read_log(log, "launch")] == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_resources_of_each_signature_can_be_asked_for(tmp_path: Path) -> None:
    """Resources are given by signature, like Numba's own; those that the device determines come from the driver."""
    assert child(RESOURCES, tmp_path).split() == ["done"]


def test_options_reach_the_launch(tmp_path: Path) -> None:
    """Cooperative grids, carveout and large shared memory, on a hit as on a miss."""
    for start in (child, later):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)

        start(OPTIONS, tmp_path / "cache", log=log)

        launches = read_log(log, "launch")
        assert [bool(each["cooperative"]) for each in launches] == [True, False, True, False]
        assert launches[1]["shared_bytes"] == 64 * 1024
        assert len(read_log(log, "set_attribute")) >= 2


def test_compiles_ahead_without_a_driver(tmp_path: Path) -> None:
    """Signatures times targets, device functions included; a later process with a device only loads."""
    assert child(AHEAD, tmp_path, "ahead", devices="").split() == ["4", "misses"]

    assert later(AHEAD, tmp_path, "launch").split() == ["0", "misses"]


def test_what_cannot_be_keyed_runs_uncached_with_one_warning(tmp_path: Path) -> None:
    """A device array among the globals, an extension: launched by Numba, named once; `strict` refuses."""
    said = child(UNCACHED, tmp_path)

    assert said.count("is not cached") == 2
    assert "global table of __main__" in said
    assert "depends=" in said
    assert said.splitlines()[-1] == "strict refuses, 0 entries"


def test_each_signature_of_an_uncached_kernel_is_its_own_module(tmp_path: Path) -> None:
    """Without a key to tell them apart, and through Numba's own dispatcher as well."""
    log = tmp_path / "log"

    assert child(UNTRACKED, tmp_path, log=log).split() == ["2", "0"]

    launched = [each["kernel"] for each in read_log(log, "launch")]
    assert len(launched) == 4
    assert launched[0] == launched[2] != launched[1] == launched[3]


def test_depends_makes_a_kernel_known(tmp_path: Path) -> None:
    """A kernel with an uncapturable value, and one with an extension, which still prepares each launch: cached with
    `depends=`, and by its value."""
    said = [start(VOUCHED, tmp_path, factor).split() for start, factor in ((child, "2"), (later, "2"), (child, "3"))]

    assert said == [["1", "24", "1"], ["0", "24", "1"], ["1", "24", "2"]]


@pytest.mark.parametrize("what", ["returns", "unsupported", "untyped", "too large", "typing"])
def test_numbas_own_message_comes_unchanged(tmp_path: Path, what: str) -> None:
    """Bad input raises what Numba raises, word for word; the kernel's name is a note on it."""
    ours, numbas = child(BAD, tmp_path, what, "ours"), child(BAD, tmp_path, what, "numba")

    assert ours == numbas


def test_numpy_too_new_for_numba_says_so(tmp_path: Path) -> None:
    """NumPy 2.5 breaks Numba's registries with an AttributeError; here the error has the version that works."""
    said = run(["-c", BAD, str(tmp_path), "numpy", "ours"], env=surroundings()).stdout

    assert said.startswith("ToolchainMissingError")
    assert "numpy<2.5" in said


@pytest.mark.parametrize("of", ["numba", "mlir"])
def test_given_signatures_are_chosen_and_filled_as_by_numba(tmp_path: Path, of: str) -> None:
    """Every signature with every argument: the same kernel, the same bytes, the same error as its own dispatcher, in
    either order; numbers that numba-cuda-mlir's launcher misreads arrive, or are refused."""
    pytest.importorskip("numba_cuda_mlir" if of == "mlir" else "numba.cuda")
    env = surroundings(tmp_path / "log")
    (tmp_path / "log").touch()

    said = numba_server.output(["-c", signature_programs.PROGRAM, str(tmp_path / "cache"), of], env, of=of)

    assert said.splitlines() == ["True"]
