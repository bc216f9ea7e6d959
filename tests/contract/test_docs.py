"""The code blocks of README and docs, and the examples, run and do as they say, here without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fake_driver, numba_server
from tests.support.compiling import edited

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [page for page in PAGES[1:] if BLOCK.search(page.read_text())]
PROGRAMS = BLOCK.findall(PAGES[0].read_text())
"""The programs of README, one for each audience."""
NEEDED = {"cluster.md": ("distributed",), "pytorch.md": ("torch",)}
"""Packages that the code blocks of a page need."""

SAID = {"cluster.md": "2 workers, 0 compiles"}
"""Text that the output of a page's blocks must contain."""

QUICKER = {
    "gemm_module.py": ("lazy=LAZY", 'lazy=LAZY, options=["--Ofast-compile=max"]'),
    "multi_process_job.py": ("RANKS = 8", "RANKS = 3"),
}
"""A text of an example, and what stands there in the copy that is run: kernels of which nothing is optimised compile in
1 s and not in 10."""

EXAMPLES = {
    "first_kernels.py": r"second process: .* 0 compiles",
    "numba_kernels.py": r"second process: .* 0 compiles",
    "gemm_module.py": r"second process: .* 0 compiles",
    "header_library.py": r"header as it was: .* 0 compiles",
    "numba_program/program.py": r"constant as it was: .* 0 compiles",
    "multi_process_job.py": r"the job: 2 compiles, 4 hits",
}
"""For each example, a pattern that its output must match. Those of docker/ run by the commands of the Dockerfile."""


def run(script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a fresh process with its own cache."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(directory / "cache"), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=directory, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_blocks_of_a_page_run(tmp_path: Path, page: Path) -> None:
    """The blocks of a page, run one after another, raise no error, nor do they where they were run before."""
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package)
    if page.name == "index.md" and importlib.util.find_spec("cupy") is None:
        (tmp_path / "cupy.py").write_text(ABSENT)
    script = tmp_path / "blocks.py"
    script.write_text("\n\n".join(BLOCK.findall(page.read_text())))

    said, _again = printed(script, tmp_path), printed(script, tmp_path)

    assert re.search(SAID.get(page.name, ""), said), said


def printed(script: Path, directory: Path) -> str:
    """Output of a script. One that imports Numba is forked from a process with it, or from one that hides it, if it
    has a hook for this import or starts others, which are forked from there as well."""
    text = script.read_text()
    starts = "sys.executable" in text or "two_processes" in text
    if not re.search("from numba import cuda|import two_processes", text):
        done = run(script, directory)
        assert done.returncode == 0, done.stderr
        return done.stdout
    without_gpu = fake_driver.environment(fake_driver.build(), devices=())
    env = {**without_gpu, "NUMBA_KCACHE_DIR": str(directory / "cache"), **({"FORKS_PROGRAMS": "1"} if starts else {})}
    way = "fresh" if starts or "install(" in text else "first"
    with contextlib.chdir(directory):
        return numba_server.output([str(script)], env, way=way)


ABSENT = "class cuda:\n    is_available = staticmethod(lambda: False)\n"
"""A library without a device, for a program of README whose library is not installed."""


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: text.split()[1])
def test_first_program_runs_as_it_stands_and_compiles_once(tmp_path: Path, program: str) -> None:
    """It imports nothing but its heading's library; a second process compiles nothing; without a GPU it says so."""
    (library,) = {word for word in ("cupy", "torch", "numba") if re.search(rf"^(import|from) {word}\b", program, re.M)}
    if importlib.util.find_spec(library) is None:
        (tmp_path / f"{library}.py").write_text(ABSENT)
    script = tmp_path / "first.py"
    script.write_text(program)

    first, second = run(script, tmp_path), run(script, tmp_path)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert re.search(r"compiles +1,", second.stdout), second.stdout
    assert re.search(r"hits +1 ", second.stdout), second.stdout
    assert ("no GPU here" in second.stdout) is not has_gpu()


def has_gpu() -> bool:
    """Ask the driver, as the programs' libraries do."""
    from numba_kcache.doctor.machine import find_devices

    return bool(find_devices()[1])


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(tmp_path: Path, example: str) -> None:
    """The example exits with 0 after the compiles that it announces; without a GPU it prints that launches are
    skipped."""
    folder = ROOT / "examples"
    if example in QUICKER:
        folder = Path(shutil.copytree(folder, tmp_path / "examples"))
        text, quicker = QUICKER[example]
        (folder / example).write_text(edited((folder / example).read_text(), text, quicker))
    said = printed(folder / example, tmp_path)

    assert re.search(EXAMPLES[example], said), said
    assert ("launches skipped" in said) is not ("launched and checked" in said), said


def test_tests_that_pages_name_are_there() -> None:
    """Each test that a page names exists in the file that the page names."""
    missing = []
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            file = ROOT / path
            if not file.is_file() or not re.search(rf"^(def |class )?{name}\b", file.read_text(), re.MULTILINE):
                missing.append(f"{page.relative_to(ROOT)}: {path}::{name}")

    assert not missing


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/keys.md", "docs/format.md"])
def test_files_that_pages_name_are_there(page: str) -> None:
    """Every file that a page names exists, relative to the repository, the package or its room."""
    named = re.findall(r"`([\w./]+\.py)`", (ROOT / page).read_text())
    homes = [ROOT, ROOT / "tests/unit", *(each for each in (ROOT / "numba_kcache").rglob("*") if each.is_dir())]
    homes += [ROOT / "numba_kcache"]

    assert [name for name in named if not any((home / name).is_file() for home in homes)] == []


def in_dockerfile(instruction: str) -> list[str]:
    """List the words after each such instruction, on one line."""
    text = (ROOT / "examples/docker/Dockerfile").read_text().replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in text.splitlines() if line.startswith(f"{instruction} ")]


@pytest.mark.slow
def test_commands_of_the_dockerfile_run(tmp_path: Path) -> None:
    """The Dockerfile's commands, except for `pip install`, run as a build and then as the user of a container: the
    kernels are served from the image's directory, which nothing is written to, also in frozen mode."""
    image, home = tmp_path / "kernels", tmp_path / "home"
    app = tmp_path / "app"
    app.mkdir()

    def placed(text: str) -> str:
        text = text.replace("/opt/kernels", str(image)).replace("pip install --no-cache-dir", "true")
        return text.replace("numba-kcache ", "python -m numba_kcache ")

    def files() -> dict[Path, tuple[int, int, int]]:
        looked = {path: path.stat() for path in image.rglob("*")}
        return {path: (each.st_mode, each.st_mtime_ns, each.st_ino) for path, each in looked.items()}

    def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        surroundings = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["sh", "-c", placed(command)], env={**surroundings, "HOME": str(home), **environment},
            cwd=app, capture_output=True, text=True, check=False,
        )  # fmt: skip

    (_source, scripts) = in_dockerfile("COPY")
    for script in scripts.split()[:-1]:
        (app / Path(script).name).write_bytes((ROOT / script).read_bytes())
    built = [shell(command) for command in in_dockerfile("RUN")]
    assert [each.returncode for each in built] == [0, 0], built[-1].stderr
    assert "4 built, 0 hit, 0 failed" in built[-1].stdout
    assert "launches skipped" in built[-1].stdout
    before = files()
    name, _, value = in_dockerfile("ENV")[0].partition("=")
    container = {name: placed(value)}
    served = shell("numba-kcache explain app.py:saxpy --arch sm_90", NUMBA_KCACHE_MODE="frozen", **container)
    started = shell(" ".join(json.loads(in_dockerfile("CMD")[0])), NUMBA_KCACHE_MODE="frozen", **container)
    other = shell("numba-kcache explain app.py:saxpy --arch sm_70", NUMBA_KCACHE_MODE="frozen", **container)

    assert (served.returncode, other.returncode) == (0, 1), served.stdout + served.stderr
    assert "hit, from tier" in served.stdout
    assert started.returncode == 0, started.stderr
    assert re.search(r"service: .* 0 compiles", started.stdout)
    assert files() == before
    assert all(mode & 0o044 == 0o044 and not mode & 0o022 for mode, _, _ in before.values())


def test_no_example_is_left_out() -> None:
    """Each file in examples/ that is a program is run here."""
    programs = {
        str(path.relative_to(ROOT / "examples"))
        for path in (ROOT / "examples").rglob("*.py")
        if "__main__" in path.read_text()
    }
    in_container = " ".join([*in_dockerfile("RUN"), *json.loads(in_dockerfile("CMD")[0])])

    assert programs == {*EXAMPLES, *(f"docker/{name}" for name in re.findall(r"\w+\.py", in_container))}


@pytest.mark.slow
def test_notebook_runs(tmp_path: Path) -> None:
    """The cells run one after another, twice with one cache: the second time nothing is compiled."""
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    script.write_text(script.read_text() + "\nprint(numba_kcache.info('process').compiles, 'compiles')")

    assert [printed(script, tmp_path).splitlines()[-1] for _ in range(2)] == ["2 compiles", "0 compiles"]


HERE = r"https://(github|raw\.githubusercontent)\.com/numba-kcache/numba-kcache/(blob/)?main/"
"""Addresses of this tree on the web, as README uses them."""


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_a_page_outside_the_site_lead_somewhere(page: str) -> None:
    """Relative and absolute links lead to a file of this tree; the site's build checks those of docs/."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#]+)", prose) + re.findall(r'(?:src|srcset)="([^"]+)"', prose)
    ours = [re.sub(HERE, "", link) for link in links if "://" not in link or re.match(HERE, link)]

    assert ours
    assert [link for link in ours if not (ROOT / link).exists()] == []


def test_architecture_names_every_module() -> None:
    """docs/architecture.md lists each module at the top of the package and each room, and no others."""
    text = (ROOT / "docs/architecture.md").read_text()
    tree = text[text.index("```text") : text.index("```\n")]
    package = ROOT / "numba_kcache"
    rooms = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.name for path in package.glob("*.py")} | rooms

    assert {name for name in modules if name not in tree} == set()
    assert {name for name in re.findall(r"\b\w+\.py\b", tree) if name not in modules} == set()


KUBERNETES = ROOT / "docs/how-to/images.md"


def test_manifest_of_kubernetes_is_valid() -> None:
    """It passes the schema of the Kubernetes API, which refuses unknown fields."""
    validate = pytest.importorskip("kubernetes_validate").validate
    import yaml

    (block,) = re.findall(r"^```yaml\n(.*?)^```", KUBERNETES.read_text(), re.DOTALL | re.MULTILINE)
    validate(yaml.safe_load(block), "1.35", strict=True)


def test_manifests_of_kubernetes_name_what_is_there() -> None:
    """The manifests name settings that exist, and each volume is both mounted and defined."""
    text = KUBERNETES.read_text()
    named = set(re.findall(r"name: (NUMBA_KCACHE_\w+)", text))
    known = (ROOT / "docs/reference/settings.md").read_text()

    assert named
    assert all(f"`{name}`" in known for name in named)
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        mounted = set(re.findall(r"- name: (\w+)\n +mountPath:", block))
        defined = set(re.findall(r"- name: (\w+)\n +(?:image:\n|emptyDir:|persistentVolumeClaim:)", block))
        assert mounted == defined
