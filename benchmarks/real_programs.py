"""How long do public programs of other authors take with this cache, cold and warm, and as published?

Method      Each sample is a fresh process that imports the program, runs it once on a stated input and saves its
            result; "process" is the whole process. "plain": as published, with its own cache (CuPy's for awkward, none
            for the others). "numba_kcache": `install(all=True, cuda_compute=True, cupy=True)` before the program is
            imported. "edited": where a module has `from numba import cuda`, or numba-cuda-mlir's, it is the stand-in's
            line instead; nothing is installed. Cold: an empty cache. Warm: after
            another process. The result must equal the plain one bit by bit; otherwise the largest difference is
            reported. The programs: stumpy (gpu_stump) and soft_dtw_cuda with numba-cuda; Cholesky, FFT and attention
            of numba-cuda-mlir's repository; awkward with CuPy and with cuda.compute. `--get FOLDER` downloads them,
            `--programs FOLDER` names their folder.
Not shown   Programs that run for hours; inputs of other sizes; the gain of an edit of these programs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from fresh import fresh, say
from header import Result

WHEELS = ("stumpy==1.14.1", "awkward==2.14.0", "awkward-cpp==57", "fsspec")
REPOSITORIES = {
    "soft_dtw_cuda": ("https://github.com/Maghoumi/pytorch-softdtw-cuda", "fbedc3b655bb7a60c0b111621ddef910e9b6e5ef"),
    "numba-cuda-mlir": ("https://github.com/NVIDIA/numba-cuda-mlir", "10ece76b48edd680c2b9bad05a8081921b46f6fc"),
}
QUESTION = (__doc__ or "").splitlines()[0]
SYSTEMS = ("plain", "numba_kcache", "edited")
EDITED = ("stumpy", "soft_dtw_cuda", "cholesky", "fft", "attention")
"""The programs that import a Numba's `cuda` themselves."""


def get(folder: Path) -> None:
    """Fetch the programs at their versions."""
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *WHEELS], check=True)
    for name, (address, commit) in REPOSITORIES.items():
        clone = folder / name
        subprocess.run(["git", "clone", "-q", address, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "-q", commit], check=True)
    for each in ("stumpy", *REPOSITORIES):
        shutil.copytree(folder / each, folder / "edited" / each, ignore=shutil.ignore_patterns("__pycache__", ".git"))
    for path in (folder / "edited").rglob("*.py"):
        text = path.read_text()
        if (changed := edited(text)) != text:
            path.write_text(changed)


def edited(text: str) -> str:
    """A module with the stand-in's `cuda` in place of a Numba's; further names of the line stay Numba's."""

    def line(found: re.Match[str]) -> str:
        rest = [each for each in re.split(r",\s*", found["names"]) if each != "cuda"]
        stand_in = "from numba_kcache import cuda" if found["home"] == "numba" else "from numba_kcache.mlir import cuda"
        same = "".join(f"\nfrom {found['home']} import {', '.join(rest)}" for _ in rest[:1])
        return stand_in + same if len(rest) < len(found["names"].split(",")) else found[0]

    return re.sub(r"(?m)^from (?P<home>numba|numba_cuda_mlir) import (?P<names>[\w, ]+)$", line, text)


# -- the programs, in a child ---------------------------------------------------------------------------


def stumpy() -> Any:
    import numpy as np

    program: Any = importlib.import_module("stumpy")
    series = np.random.default_rng(1).random(20_000)
    return np.asarray(program.gpu_stump(series, m=64)).astype(np.float64)


def soft_dtw() -> Any:
    import numpy as np
    import torch

    program: Any = importlib.import_module("soft_dtw_cuda")
    torch.manual_seed(1)
    x = torch.rand(16, 128, 8, device="cuda", requires_grad=True)
    y = torch.rand(16, 128, 8, device="cuda")
    loss = program.SoftDTW(use_cuda=True, gamma=0.1)(x, y)
    loss.sum().backward()
    return np.concatenate([loss.detach().cpu().numpy().ravel(), x.grad.cpu().numpy().ravel()])


def of_mlir(module: str, run: str, make: str = "get_input_data") -> Callable[[], Any]:
    def program() -> Any:
        sys.argv = [module, "--backend", "numba-cuda-mlir"]
        found: Any = importlib.import_module(module)
        return getattr(found, run)(getattr(found, make)())

    return program


def awkward() -> Any:
    import numpy as np

    ak: Any = importlib.import_module("awkward")
    random = np.random.default_rng(1)
    counts = random.integers(0, 6, 50_000)
    host = ak.unflatten(random.random(int(counts.sum())), counts)
    array = ak.to_backend(host, "cuda")
    pairs = ak.combinations(array, 2, axis=1)
    found = [ak.num(array, axis=1), ak.flatten(pairs["0"] * pairs["1"]), array[ak.num(array) > 2][:, :2]]
    flat = [np.asarray(ak.to_numpy(ak.to_backend(ak.flatten(each, axis=None), "cpu"))) for each in found]
    return np.concatenate([each.astype(np.float64) for each in flat])


def awkward_reduced() -> Any:
    import numpy as np

    ak: Any = importlib.import_module("awkward")
    random = np.random.default_rng(1)
    counts = random.integers(1, 6, 50_000)
    array = ak.to_backend(ak.unflatten(random.integers(0, 1000, int(counts.sum())), counts), "cuda")
    found = [ak.sum(array, axis=1), ak.max(array, axis=1), ak.flatten(ak.sort(array, axis=1))]
    return np.concatenate([np.asarray(ak.to_numpy(ak.to_backend(each, "cpu"))).astype(np.float64) for each in found])


MLIR = "numba-cuda-mlir"
PROGRAMS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "stumpy": ("numba-cuda", "gpu_stump of 20,000 points", stumpy),
    "soft_dtw_cuda": ("numba-cuda and PyTorch", "loss of 16 pairs, forward and backward", soft_dtw),
    "cholesky": (MLIR, "512 x 512", of_mlir("test_cholesky", "run_numba_cuda_mlir_cholesky", "get_input_matrix")),
    "fft": (MLIR, "8,192 points", of_mlir("test_fft", "run_numba_cuda_mlir_fft")),
    "attention": (MLIR, "1,024 x 64", of_mlir("test_attention", "run_numba_cuda_mlir_version")),
    "awkward": ("CuPy RawModule", "combinations and slices of 50,000 lists", awkward),
    "awkward_reduced": ("cuda.compute", "sums, maxima and a sort of 50,000 lists", awkward_reduced),
}


def child(name: str) -> None:
    import numpy as np

    if os.environ["KC_SYSTEM"] == "numba_kcache":
        import numba_kcache

        numba_kcache.install(all=True, cuda_compute=True, cupy=True)
    result = PROGRAMS[name][2]()
    np.save(os.environ["KC_RESULT"], result)
    compiles = -1
    if "numba_kcache" in sys.modules:
        compiles = sys.modules["numba_kcache"].info("process").compiles
    say(digest=hashlib.sha256(result.tobytes()).hexdigest()[:16], compiles=compiles, shape=list(result.shape))


# -- the parent -----------------------------------------------------------------------------------------


def difference(folder: Path) -> float:
    """The largest difference between an element of one system's result and of another's."""
    import numpy as np

    found = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    if len({each.shape for each in found}) > 1:
        return float("inf")
    return max(float(np.max(np.abs(one - other))) for one in found for other in found)


def measured(name: str, programs: Path, folder: Path, warm: int) -> dict[str, Any]:
    """Run a program once cold and `warm` times warm; the systems alternate."""
    systems = [each for each in SYSTEMS if each != "edited" or name in EDITED]
    rows: dict[str, Any] = {system: {"cold": None, "warm": []} for system in systems}
    digests: dict[str, Any] = {}
    for round_ in range(warm + 1):
        for system in systems:
            home = programs / "edited" if system == "edited" else programs
            src = [home, home / "soft_dtw_cuda", *(home / "numba-cuda-mlir/tests/benchmarks").glob("*/"), programs]
            path = os.pathsep.join([*map(str, src), os.environ.get("PYTHONPATH", "")])
            cache_folder = folder / name / system
            cache_folder.mkdir(parents=True, exist_ok=True)
            more = {"KC_SYSTEM": system, "KC_RESULT": str(folder / name / f"{system}.npy"), "PYTHONPATH": path}
            found = fresh([__file__, "--child", name], cache_folder, more)
            if isinstance(found, str):
                rows[system]["cold" if round_ == 0 else "failed"] = found
                print(name, system, found, flush=True)
                continue
            if round_ == 0:
                rows[system]["cold"] = found["process"]
            else:
                rows[system]["warm"].append(found["process"])
            rows[system]["compiles"] = found["compiles"]
            digests[system] = found["digest"]
            print(f"{name}, {system}, {'cold' if round_ == 0 else 'warm'}: {found['process']:.2f} s", flush=True)
    for row in rows.values():
        row["warm_median"] = median(row["warm"]) if row["warm"] else None
    is_whole = len(digests) == len(systems)
    same = len(set(digests.values())) == 1
    rows["results"] = "none" if not is_whole else "same bits" if same else difference(folder / name)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=PROGRAMS)
    parser.add_argument("--get", type=Path)
    parser.add_argument("--programs", type=Path, default=Path("build/programs"))
    parser.add_argument("--only", help="names, with commas between")
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return 0
    if arguments.get:
        get(arguments.get)
        return 0
    found: dict[str, Any] = {}
    versions = [*WHEELS, *(" ".join(each) for each in REPOSITORIES.values())]
    result = Result(arguments.json, QUESTION, versions=versions)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only.split(",") if arguments.only else PROGRAMS:
            kind, what, _ = PROGRAMS[name]
            rows = measured(name, arguments.programs.resolve(), Path(folder), arguments.warm)
            found[name] = {"kind": kind, "what": what, **rows}
            result.write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
