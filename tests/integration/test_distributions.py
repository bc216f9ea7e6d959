"""Wheel and sdist: the version, the files and the description that an index page shows."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.support.compiling import ROOT
from tests.support.programs import program

pytest.importorskip("hatchling", reason="hatchling builds the distributions")
pytest.importorskip("hatch_vcs", reason="hatch-vcs tells the version")
pytestmark = pytest.mark.slow

OF_A_BUILD = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "*.so", "__pycache__", ".*_cache", ".hypothesis", "tests", "benchmarks"
)


def built(tree: Path, target: str, **environment: str) -> Path:
    """Build one distribution of a tree into its folder `dist`; a wheel needs a C compiler."""
    if target == "wheel":
        program("cc")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(tree / "dist")]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (made,) = (tree / "dist").glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def metadata(wheel: Path) -> Message:
    """Read the fields that an index shows."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def version_inside(wheel: Path) -> str:
    """Read `__version__` of the package in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return re.findall('__version__ = "(.*)"', archive.read("numba_kcache/version.py").decode())[0]


def copied(folder: Path) -> Path:
    """A copy of what a build reads, without git."""
    shutil.copytree(ROOT, folder / "tree", ignore=OF_A_BUILD)
    return folder / "tree"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which distributions are only built."""
    return copied(tmp_path_factory.mktemp("distributions"))


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return built(tree, "wheel")


def test_tree_without_git_has_the_fallback_version(wheel: Path) -> None:
    """Metadata and package have the fallback version; the wheel has every module, the stubs and the compiled
    module, and no C source."""
    assert metadata(wheel)["Version"] == version_inside(wheel) == "0.1.0.dev0"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("numba_kcache/")}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "numba_kcache").rglob("*")
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    assert {name for name in packed if not name.endswith(".so")} >= wanted
    assert sum(name.endswith(".so") for name in packed) == 1
    assert not [name for name in packed if name.endswith((".c", ".h"))]


def test_tag_is_the_version_of_sdist_and_wheel(tmp_path: Path) -> None:
    """A tag names the version; a wheel made of the sdist, where there is no git, has it too."""
    tree = copied(tmp_path)
    git = [program("git"), "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tree)]
    for arguments in (["init", "-q"], ["add", "pyproject.toml"], ["commit", "-qm", "one"], ["tag", "v2.3.4"]):
        subprocess.run([*git, *arguments], check=True)
    sdist = built(tree, "sdist", SETUPTOOLS_SCM_IGNORE_DUBIOUS_OWNER="1")
    with tarfile.open(sdist) as archive:
        archive.extractall(tree.parent / "unpacked", filter="data")
    (unpacked,) = (tree.parent / "unpacked").iterdir()
    wheel = built(unpacked, "wheel")

    assert unpacked.name == "numba_kcache-2.3.4"
    assert metadata(wheel)["Version"] == version_inside(wheel) == "2.3.4"


def test_index_page_has_what_it_shows(wheel: Path) -> None:
    """Summary, licence, links, extras of users alone, and a description whose links and pictures are absolute."""
    shown = metadata(wheel)
    text = str(shown.get_payload())
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)

    assert shown["Description-Content-Type"] == "text/markdown"
    assert shown["License-Expression"] == "BSD-2-Clause"
    labels = {each.partition(",")[0] for each in shown.get_all("Project-URL", [])}
    assert labels >= {"Documentation", "Source", "Changelog", "Issues"}
    extras = set(shown.get_all("Provides-Extra", []))
    assert extras == {"cu12", "cu13", "numba", "mlir", "object-store", "redis", "sign"}
    targets = re.findall(r"\]\(([^)#\s]+)", prose) + re.findall(r'(?:src|srcset|href)="([^"]+)"', prose)
    assert targets
    assert [each for each in targets if not each.startswith("https://")] == []


def test_index_accepts_sdist_and_wheel(tree: Path, wheel: Path) -> None:
    """The index's own checks, and those of a wheel's files: no warning."""
    pytest.importorskip("twine")
    pytest.importorskip("check_wheel_contents")
    files = [str(built(tree, "sdist")), str(wheel)]

    for command in (["-m", "twine", "check", "--strict", *files], ["-m", "check_wheel_contents", files[1]]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
