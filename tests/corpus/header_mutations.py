"""Change trees of headers hundreds of times, and count the stale hits and the needless misses of the cache.

    python -m tests.corpus.header_mutations [--maze 240] [--real 30] [--seed 1] [--nvrtc PATH] [--only NAME]
                                               [--json FILE]

`--maze` is the number of steps in generated trees, `--real` that in a copy of the toolkit's and CCCL's headers, for
each kernel of `KERNELS`. The cache treats the copies as the user's headers, not as an installed toolkit. The right
answer comes from a fresh compile after each step, so a run takes minutes. Another NVRTC (`--nvrtc`) may not compile the
installed headers: `--real 0`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

from tests.support.header_corpus import MACROS, MAZE_STEPS, READING, Step, maze, run
from tests.support.header_projects import Project

KERNELS = {
    "cuda_fp16": ("#include <cuda_fp16.h>", "out[60] = __half2int_rn(__int2half_rn(out[61]));"),
    "cooperative_groups": ("#include <cooperative_groups.h>", "cooperative_groups::this_thread_block().sync();"),
    "cuda_std_array": ("#include <cuda/std/array>", "cuda::std::array<int, 3> a{out[60], 2, 3}; out[61] = a[0];"),
    "cub_block_reduce": (
        "#include <cub/block/block_reduce.cuh>",
        "using R = cub::BlockReduce<int, 128>; __shared__ typename R::TempStorage t; out[60] = R(t).Sum(out[61]);",
    ),
}


def real(root: Path, name: str) -> Project:
    """A project of a kernel and a copy of the installed headers that it includes."""
    import nvidia.cu13
    from cuda.pathfinder import find_nvidia_header_directory

    project = Project(root)
    root.mkdir()
    shutil.copytree(Path(next(iter(nvidia.cu13.__path__))) / "include", root / "toolkit")
    if not (root / "toolkit/cccl").exists():  # the toolkit's wheels do not contain CCCL
        cccl = find_nvidia_header_directory("cccl")
        assert cccl, "no headers of CCCL: pip install nvidia-cuda-cccl"
        shutil.copytree(cccl, root / "toolkit/cccl")
    project.folders = ["source", "own", "toolkit/cccl", "toolkit"]
    for folder in project.folders[:2]:
        project.write(f"{folder}/readme", "")
    include, body = KERNELS[name]
    project.source = f'{include}\nextern "C" __global__ void kernel(int *out) {{\n{READING}    {body}\n}}\n'
    return project


def _define(macro: str, chance: random.Random) -> bytes:
    return f"#undef {macro}\n#define {macro} {chance.randrange(100, 1000)}\n".encode()


def _marked(text: bytes, chance: random.Random, path: Path) -> bytes | None:
    """The text with a macro definition in place of a part of its first comment, and of the same length."""
    define = _define(MACROS[zlib.crc32(path.name.encode()) % len(MACROS)], chance)
    if text.startswith(b"#undef "):
        return define + text[len(define) :] if text[: len(define)].count(b"\n") == 2 else None
    if text.startswith(b"/*") and text.find(b"*/") > len(define) + 2:
        return define + b"/*" + text[len(define) + 2 :]
    at = 0
    while text.startswith(b"//", at):
        at = text.index(b"\n", at) + 1
        if at > len(define) + 3:
            return define + b"//" + b"=" * (at - 1 - len(define) - 2) + text[at - 1 :]
    return None


def _read(project: Project, chance: random.Random) -> Path:
    return chance.choice([path for path in project.read if path.exists()])


def edit_same_size(project: Project, chance: random.Random) -> object:
    """Replace a part of a header's license by a macro; its size and mtime stay the same."""
    path = _read(project, chance)
    text = _marked(path.read_bytes(), chance, path)
    if text is None:
        return None
    before = path.stat()
    path.write_bytes(text)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return path


def shadow(project: Project, chance: random.Random) -> object:
    """Copy a header, with a changed macro, to a folder that is searched earlier."""
    path = _read(project, chance)
    base = next(project.root / each for each in project.folders if path.is_relative_to(project.root / each))
    target = project.root / chance.choice(project.folders[:2]) / path.relative_to(base)
    text = _marked(path.read_bytes(), chance, path)
    if text is None or target.exists():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text)
    return target


def answer(project: Project, chance: random.Random) -> object:
    """Add or remove a header for which CCCL asks by `__has_include`; it defines a macro."""
    name = chance.choice(
        ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "version", "endian.h", "nv/target", "cuda_awbarrier.h"]
    )
    target = project.root / chance.choice(project.folders[:2]) / name
    if target.exists():
        target.unlink()
    else:
        project.write(str(target.relative_to(project.root)), _define(chance.choice(MACROS), chance))
    return target


def edit_unread(project: Project, chance: random.Random) -> object:
    """Edit a header of the tree that the kernel does not read."""
    read = set(project.read)
    path = chance.choice(sorted((project.root / "toolkit").glob("*.h")))
    if path in read:
        return None
    path.write_bytes(path.read_bytes() + b"\n")
    return path


def touch(project: Project, _chance: random.Random) -> object:
    """Give all headers new times."""
    for path in (project.root / "toolkit").rglob("*.h"):
        path.touch()
    return project


REAL_STEPS: dict[str, tuple[int, Step]] = {
    "same-size edit": (8, edit_same_size),
    "shadow": (4, shadow),
    "answer": (2, answer),
    "unread": (1, edit_unread),
    "touch": (1, touch),
}


def main() -> int:
    """Run all steps; return 1 if any hit was stale."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--maze", type=int, default=240)
    options.add_argument("--real", type=int, default=30)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--nvrtc", default="")
    options.add_argument("--only", default="")
    options.add_argument("--json", default="")
    chosen = options.parse_args()
    stale = 0
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from cuda.bindings import nvrtc
    from harness import Result

    result = Result(Path(chosen.json) if chosen.json else None, "header_corpus")
    result.machine["nvrtc"] = "12.9" if chosen.nvrtc else ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.maze // 40):
            seed = chosen.seed * 1000 + number
            tally = run(maze(Path(folder, f"maze{number}"), seed), MAZE_STEPS, 40, seed, library=chosen.nvrtc)
            print(f"maze {seed}: {tally.report()}", flush=True)
            result.samples[f"maze {seed}"] = tally.figures()
            result.write()
            stale += len(tally.stale) + len(tally.altered)
        for name in KERNELS if chosen.real else ():
            if chosen.only in name:
                project = real(Path(folder, name), name)
                tally = run(project, REAL_STEPS, chosen.real, chosen.seed, library=chosen.nvrtc)
                print(f"{name}: {tally.report()}", flush=True)
                result.samples[name] = tally.figures()
                result.write()
                stale += len(tally.stale) + len(tally.altered)
    result.write(is_cut=False)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
