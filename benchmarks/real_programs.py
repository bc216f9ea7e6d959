"""How long do public programs of other authors take with this cache, cold and warm, and as published?

Method      Each sample is a fresh process that imports the program, runs it once and saves its result; the time is
            that of the whole process. "plain": as published, with its own cache. "numba_kcache": `install(all=True,
            cuda_compute=True, cupy=True)` before the program is imported. Cold: an empty cache. Warm: after that
            process. One sample of each; one process for two cores runs at a time. The result must equal the plain one
            bit by bit; otherwise the largest difference is reported. `--get FOLDER` downloads the programs,
            `--programs FOLDER` names their folder.
Not shown   Programs that run for hours; inputs of other sizes; the gain of an edit of these programs.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import AT_ONCE, Arguments, Result, run, say, temporary_folders

WHEELS = (
    "stumpy==1.14.1", "awkward==2.14.0", "awkward-cpp==57", "fsspec", "clifford==1.5.1", "sparse", "h5py",
    "qibojit==0.1.17", "qibo==0.3.6", "sympy", "mpmath", "networkx", "cma", "joblib", "tabulate", "openqasm3",
    "antlr4-python3-runtime", "optuna", "psutil",
)  # fmt: skip
REPOSITORIES = {
    "soft_dtw_cuda": ("https://github.com/Maghoumi/pytorch-softdtw-cuda", "fbedc3b655bb7a60c0b111621ddef910e9b6e5ef"),
    "numba-cuda-mlir": ("https://github.com/NVIDIA/numba-cuda-mlir", "10ece76b48edd680c2b9bad05a8081921b46f6fc"),
    "OpenPCDet": ("https://github.com/open-mmlab/OpenPCDet", "8cacccec11db6f59bf6934600c9a175dae254806"),
}
FOLDERS = ("soft_dtw_cuda", "OpenPCDet/pcdet/datasets/kitti/kitti_object_eval_python")
"""Folders of modules in the repositories, beside those of numba-cuda-mlir."""
SYSTEMS = ("plain", "numba_kcache")


def get(folder: Path) -> None:
    """Fetch the programs at their versions."""
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *WHEELS], check=True)
    for name, (address, commit) in REPOSITORIES.items():
        clone = folder / name
        subprocess.run(["git", "clone", "-q", address, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "-q", commit], check=True)


module = importlib.import_module


def stumpy() -> Any:
    series = np.random.default_rng(1).random(20_000)
    return np.asarray(module("stumpy").gpu_stump(series, m=64)).astype(np.float64)


def soft_dtw() -> Any:
    import torch

    torch.manual_seed(1)
    x = torch.rand(16, 128, 8, device="cuda", requires_grad=True)
    y = torch.rand(16, 128, 8, device="cuda")
    loss = module("soft_dtw_cuda").SoftDTW(use_cuda=True, gamma=0.1)(x, y)
    loss.sum().backward()
    return np.concatenate([loss.detach().cpu().numpy().ravel(), x.grad.cpu().numpy().ravel()])


def rotate_iou() -> Any:
    random = np.random.default_rng(1)
    return module("rotate_iou").rotate_iou_gpu_eval(random.random((3_000, 5)), random.random((2_000, 5)))


def clifford_g3c() -> Any:
    algebra, random = module("clifford.tools.g3c"), np.random.default_rng(1)
    lines = np.array([algebra.random_line(rng=random).value for _ in range(200)])
    return module("clifford.tools.g3c.cuda").object_set_cost_cuda_value(lines[:100], lines[100:])


def qibojit() -> Any:
    qibo = module("qibo")
    qibo.set_backend("qibojit", platform="cupy")
    circuit, gates = qibo.Circuit(16), qibo.gates
    for qubit in range(16):
        circuit.add((gates.H(qubit), gates.RX(qubit, theta=0.1 * qubit), gates.CNOT(qubit, (qubit + 1) % 16)))
    return np.asarray(qibo.get_backend().to_numpy(circuit().state())).view(np.float64)


def of_mlir(name: str, run: str, make: str = "get_input_data") -> Callable[[], Any]:
    def program() -> Any:
        sys.argv = [name, "--backend", "numba-cuda-mlir"]
        found: Any = module(name)
        return getattr(found, run)(getattr(found, make)())

    return program


def joined(arrays: list[Any]) -> Any:
    """The numbers of several arrays of awkward on the device."""
    ak = module("awkward")
    flat = [np.asarray(ak.to_numpy(ak.to_backend(ak.flatten(each, axis=None), "cpu"))) for each in arrays]
    return np.concatenate([each.astype(np.float64) for each in flat])


def awkward() -> Any:
    ak, random = module("awkward"), np.random.default_rng(1)
    counts = random.integers(0, 6, 50_000)
    array = ak.to_backend(ak.unflatten(random.random(int(counts.sum())), counts), "cuda")
    pairs = ak.combinations(array, 2, axis=1)
    return joined([ak.num(array, axis=1), ak.flatten(pairs["0"] * pairs["1"]), array[ak.num(array) > 2][:, :2]])


def awkward_reduced() -> Any:
    ak, random = module("awkward"), np.random.default_rng(1)
    counts = random.integers(1, 6, 50_000)
    array = ak.to_backend(ak.unflatten(random.integers(0, 1000, int(counts.sum())), counts), "cuda")
    return joined([ak.sum(array, axis=1), ak.max(array, axis=1), ak.flatten(ak.sort(array, axis=1))])


MLIR = "numba-cuda-mlir"
PROGRAMS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "stumpy": ("numba-cuda", "gpu_stump of 20,000 points", stumpy),
    "soft_dtw_cuda": ("numba-cuda and PyTorch", "loss of 16 pairs, forward and backward", soft_dtw),
    "rotate_iou": ("numba-cuda", "overlaps of 3,000 boxes with 2,000", rotate_iou),
    "clifford_g3c": ("numba-cuda", "costs of 100 lines with 100", clifford_g3c),
    "cholesky": (MLIR, "512 x 512", of_mlir("test_cholesky", "run_numba_cuda_mlir_cholesky", "get_input_matrix")),
    "fft": (MLIR, "8,192 points", of_mlir("test_fft", "run_numba_cuda_mlir_fft")),
    "attention": (MLIR, "1,024 x 64", of_mlir("test_attention", "run_numba_cuda_mlir_version")),
    "awkward": ("CuPy RawModule", "combinations and slices of 50,000 lists", awkward),
    "awkward_reduced": ("cuda.compute", "sums, maxima and a sort of 50,000 lists", awkward_reduced),
    "qibojit": ("CuPy RawKernel and RawModule", "a circuit of 16 qubits", qibojit),
}  # fmt: skip


def child(name: str, system: str, programs: str) -> None:
    folders = [*FOLDERS, *Path(programs).glob("numba-cuda-mlir/tests/benchmarks/*/")]
    sys.path[1:1] = [programs, *(str(Path(programs, each)) for each in folders)]
    if system == "numba_kcache":
        import numba_kcache

        numba_kcache.install(all=True, cuda_compute=True, cupy=True)
    found = PROGRAMS[name][2]()
    np.save(Path(os.environ["KC_BENCH_DIR"], "result"), found)
    say(digest=hashlib.sha256(found.tobytes()).hexdigest()[:16])


def comparison(rows: Mapping[str, Mapping[str, Any]], folders: list[Path]) -> Any:
    """Return "same bits", or the largest difference between an element of one system's result and of another's."""
    digests = {row["digest"] for row in rows.values()}
    if None in digests:
        return "none"
    if len(digests) == 1:
        return "same bits"
    found = [np.load(folder / "result.npy") for folder in folders]
    if len({each.shape for each in found}) > 1:
        return float("inf")
    return max(float(np.max(np.abs(one - other))) for one in found for other in found)


def measure(result: Result, arguments: Arguments) -> None:
    if arguments.get:
        get(Path(arguments.get))
        return
    result.notes["versions"] = [*WHEELS, *(" ".join(each) for each in REPOSITORIES.values())]
    for name, (kind, what, _) in PROGRAMS.items():
        rows = {system: dict.fromkeys(("cold", "warm_median", "digest")) for system in SYSTEMS}
        result.samples[name] = {"kind": kind, "what": what, **rows, "results": "not compared"}
    folder = Path(arguments.programs).resolve()
    pairs = {f"{name}, {system}": (name, system, folder) for name in PROGRAMS for system in SYSTEMS}
    with temporary_folders() as folders:
        for state in ("cold", "warm_median"):
            for each, found in result.take_all(pairs, lambda each: folders(*pairs[each][:2]), AT_ONCE):
                name, system, _ = pairs[each]
                row = result.samples[name]
                row[system] |= {state: found["process"], "digest": found["digest"]}
                row["results"] = comparison({of: row[of] for of in SYSTEMS}, [folders(name, of) for of in SYSTEMS])
                result.write()


if __name__ == "__main__":
    run(__doc__, {"real_programs": (measure, child)}, get="", programs="build/programs")
