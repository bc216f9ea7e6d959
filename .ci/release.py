"""Release a version: date its changes, tag it, and build, check, install and publish its distributions from the tag.

Steps       python .ci/release.py prepare 0.1.0    date the changes of "Unreleased", commit, tag v0.1.0
            python .ci/release.py publish v0.1.0   the parts below, one after another; with --upload, upload the sdist
Parts       changelog TAG    compare CHANGELOG.md with a tag: its section, date, key schema and store format
            build TAG DIST   build the sdist from a clone of the tag, and the wheels from the sdist
            wheels DIST      build from the sdist in DIST a wheel for each processor, with the Python that runs this
            check DIST       run `twine check` and `check-wheel-contents`, and the platforms of the wheels
            install DIST     install each extra in a clean environment, and compile a kernel of its kind there
Needs       The dependency group `release`, and uv; a checkout without uncommitted changes.
Method      Wheels are compiled by ziglang against glibc 2.17, for x86-64 and aarch64 on either.
Not here    The wheels for a Python without the GIL: .github/workflows/wheels.yml builds them from the same sdist.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from native_build import MACHINES, OLDEST_GLIBC, ZIG, platform_tag, zig

ROOT = Path(__file__).resolve().parent.parent
EMPTY = "## Unreleased\n\nKey schema: {schema} · Store format: {format}\n"

SOURCE = """
from numba_kcache import cached_kernel
kernel = cached_kernel('extern "C" __global__ void k(float *x) { x[0] = 1; }', arch="sm_90")
kernel.compile()
assert [each.c_type for each in kernel.params] == ["float*"]
"""
PYTHON = """
from {numba} import cuda
from numba_kcache import cached_kernel

@cached_kernel(signature="void(float32[::1])")
def kernel(x):
    x[cuda.grid(1)] = 1

kernel.compile(arch="sm_90")
"""
NEITHER = """
from numba_kcache import ToolchainMissingError, cached_kernel
try:
    cached_kernel('extern "C" __global__ void k() {}', arch="sm_90").compile()
except ToolchainMissingError as error:
    assert "numba-kcache[cu13]" in str(error)
else:
    raise SystemExit("a kernel was compiled without any extra: a compiler is installed")
"""
EXTRAS = {
    "": NEITHER,
    "cu13": SOURCE,
    "cu12": SOURCE,
    "cu13,numba": PYTHON.format(numba="numba"),
    "cu12,numba": PYTHON.format(numba="numba"),
    "cu13,mlir": PYTHON.format(numba="numba_cuda_mlir"),
    "cu13,numba,mlir": PYTHON.format(numba="numba") + PYTHON.format(numba="numba_cuda_mlir"),
    "object-store": "import obstore",
    "sign": "import cryptography",
}
"""Extras that users may install, each with a program that needs it."""


def dated(changes: str, version: str, day: str) -> str:
    """Rename the section "Unreleased" of CHANGELOG.md to the version and date, with a new empty one above it.

    Raises:
        SystemExit: There is nothing to release, or the version is there already.
    """
    found = re.search(
        r"^## Unreleased\n\nKey schema: (\d+) · Store format: (\d+)\n(.*?)(?=^## |\Z)", changes, re.M | re.S
    )
    if not found or not found[3].strip():
        raise SystemExit('cannot release: CHANGELOG.md has no changes under "Unreleased"')
    if f"## {version} - " in changes:
        raise SystemExit(f"cannot release {version}: CHANGELOG.md has it already")
    empty = EMPTY.format(schema=found[1], format=found[2])
    return changes.replace("## Unreleased\n", f"{empty}\n## {version} - {day}\n", 1)


def problem_of(changes: str, version: str, schema: str, store_format: str) -> str:
    """The reason why a version's section of CHANGELOG.md is not one to release; empty if it is."""
    found = re.search(
        rf"^## {re.escape(version)} - (\S+)\n\nKey schema: (\d+) · Store format: (\d+)\n", changes, re.MULTILINE
    )
    if not found:
        return f'CHANGELOG.md has no section "## {version} - DATE" with key schema and store format'
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        return f"{found[1]} is no date"
    if (found[2], found[3]) != (schema, store_format):
        return f"it has key schema {found[2]} and store format {found[3]}: the code has {schema} and {store_format}"
    return ""


def prepare(version: str) -> None:
    """Date the changes, commit them, and tag the commit."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit(f"cannot release {version}: a version is 1.2.3, or 1.2.3rc1")
    if _git("status", "--porcelain"):
        raise SystemExit("cannot release: there are files that are not committed")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = ROOT / "CHANGELOG.md"
    path.write_text(dated(path.read_text(), version, day))
    _git("commit", "-q", "-m", f"Release {version}", "CHANGELOG.md")
    _git("tag", "-a", f"v{version}", "-m", f"numba-kcache {version}")
    print(f"v{version} is tagged; next: git push --follow-tags, which builds and publishes")


def changelog(tag: str, root: Path = ROOT) -> None:
    """Compare CHANGELOG.md with a tag and the code."""
    numbers = [
        re.findall(rf"^{name} = (\d+)", (root / "numba_kcache" / file).read_text(), re.MULTILINE)[0]
        for name, file in (("SCHEMA", "keys.py"), ("FORMAT", "store/__init__.py"))
    ]
    if problem := problem_of((root / "CHANGELOG.md").read_text(), tag.removeprefix("v"), *numbers):
        raise SystemExit(f"cannot release {tag}: {problem}")


def build(tag: str, dist: Path) -> None:
    """Build the sdist from a clone of the tag, and the wheels from the sdist."""
    with tempfile.TemporaryDirectory() as folder:
        _run("git", "clone", "-q", "--branch", tag, str(ROOT), folder)
        changelog(tag, Path(folder))
        _run(sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), folder)
    wheels(dist)
    wrong = [each.name for each in dist.iterdir() if f"numba_kcache-{tag.removeprefix('v')}" not in each.name]
    if wrong:
        raise SystemExit(f"cannot release {tag}: {', '.join(wrong)} has another version")


def wheels(dist: Path) -> None:
    """Build a wheel for each processor from the sdist, with a compiler for an old glibc."""
    (sdist,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        _run("uv", "venv", "-q", "--python", sys.executable, folder)
        _run("uv", "pip", "install", "-q", "--python", python, ZIG)
        pip_wheel = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir", "-w", str(dist))
        for machine in MACHINES.values():
            compiler = zig(machine, python, "-I")  # without the PYTHONPATH that pip sets for a build
            _run(*pip_wheel, str(sdist), CC=shlex.join(compiler))


def problem_of_tags(names: list[str]) -> str:
    """The reason why wheels of these names cannot be released together; empty if they can."""
    platforms = {name.removesuffix(".whl").rpartition("-")[2] for name in names}
    wanted = {platform_tag(OLDEST_GLIBC, machine) for machine in MACHINES.values()}
    return "" if platforms == wanted else f"the wheels are for {sorted(platforms)}, not for {sorted(wanted)}"


def check(dist: Path) -> None:
    """Check metadata and description for the package index (twine), and the tags and contents of the wheels."""
    files = [str(each) for each in sorted(dist.iterdir())]
    built = [each for each in files if each.endswith(".whl")]
    if problem := problem_of_tags(built):
        raise SystemExit(f"cannot release: {problem}")
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    _run("check-wheel-contents", *built)


def install(dist: Path) -> None:
    """Install the wheel of this machine with each extra in a clean environment, and use it there."""
    version = next(dist.glob("*.tar.gz")).name.removesuffix(".tar.gz").rpartition("-")[2]
    for extras, program in EXTRAS.items():
        wanted = f"numba-kcache[{extras}]=={version}" if extras else f"numba-kcache=={version}"
        with tempfile.TemporaryDirectory() as folder:
            python = f"{folder}/bin/python"
            _run("uv", "venv", "-q", "--python", sys.executable, folder)
            local = ("--find-links", str(dist), "--only-binary", "numba-kcache")
            _run("uv", "pip", "install", "-q", "--python", python, *local, wanted)
            script = Path(folder, "program.py")
            script.write_text(f"import numba_kcache\nprint(numba_kcache.__version__)\n{program}")
            _run(python, str(script), cwd=folder, NUMBA_KCACHE_DIR=f"{folder}/cache")
            _run(f"{folder}/bin/numba-kcache", "--version", cwd=folder)
        print(f"installed and used: {wanted}", flush=True)


def publish(tag: str, *, is_uploaded: bool) -> None:
    """Build, check and install the distributions of a tag; upload the sdist to the package index if `is_uploaded`."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder)
        build(tag, dist)
        check(dist)
        install(dist)
        if is_uploaded:
            _run(sys.executable, "-m", "twine", "upload", *map(str, dist.glob("*.tar.gz")))
        print(f"{tag}: {', '.join(each.name for each in sorted(dist.iterdir()))}{'' if is_uploaded else ': not sent'}")


def _git(*arguments: str) -> str:
    return _run("git", *arguments, is_read=True)


def _run(*command: str, cwd: Path | str = "", is_read: bool = False, **environment: str) -> str:
    """Run a command; end with its exit code if it fails."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    done = subprocess.run(
        command, cwd=cwd or ROOT, env={**kept, "PATH": path, **environment}, check=False, text=True,
        stdout=subprocess.PIPE if is_read else None,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("prepare").add_argument("version")
    sending = steps.add_parser("publish")
    sending.add_argument("tag")
    sending.add_argument("--upload", action="store_true", help="send the sdist; wheels come from the workflow")
    steps.add_parser("changelog").add_argument("tag")
    building = steps.add_parser("build")
    building.add_argument("tag")
    building.add_argument("dist", type=Path)
    for name in ("wheels", "check", "install"):
        steps.add_parser(name).add_argument("dist", type=Path)
    arguments = parser.parse_args()
    match arguments.step:
        case "prepare":
            prepare(arguments.version)
        case "publish":
            publish(arguments.tag, is_uploaded=arguments.upload)
        case "changelog":
            changelog(arguments.tag)
        case "build":
            build(arguments.tag, arguments.dist.resolve())
        case "wheels":
            wheels(arguments.dist.resolve())
        case "check":
            check(arguments.dist)
        case "install":
            install(arguments.dist.resolve())


if __name__ == "__main__":
    main()
