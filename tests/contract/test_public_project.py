"""The files around the code: workflows, hooks, dependency groups, and the length of README."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.support.compiling import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def workflow(name: str) -> dict[str, Any]:
    """A workflow of the repository."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    return found


def test_ci_runs_under_each_python_and_both_toolkits() -> None:
    """The workflow runs the maintainers' script, for every Python in the classifiers."""
    (job,) = workflow("ci")["jobs"].values()
    pythons = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", each)]

    assert job["strategy"]["matrix"] == {"python": pythons, "cuda": ["cu12", "cu13"]}
    assert job["env"]["NUMBA_KCACHE_CUDA"] == "${{ matrix.cuda }}"
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_nothing_is_published_but_from_a_tag_that_was_imported_and_checked() -> None:
    """Publishing waits for the imports under each Python and for the index's checks, and needs no secret."""
    jobs = workflow("wheels")["jobs"]

    assert set(jobs["publish"]["needs"]) == {"import", "check"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")


def test_hooks_are_local() -> None:
    """The hooks run in the project's own environment, so that a commit is checked by the same tools as in CI."""
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]

    assert [each["repo"] for each in hooks] == ["local"]
    assert {"ruff-format", "ruff-check", "mypy"} <= {hook["id"] for hook in hooks[0]["hooks"]}


def test_extras_are_for_users_and_groups_for_developers() -> None:
    """No name is both a group and an extra, and test packages are in no extra."""
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]

    assert set(extras).isdisjoint(groups)
    assert set(groups) >= {"test", "lint", "docs", "bench", "release", "dev"}
    assert not [each for needed in extras.values() for each in needed if re.match("pytest|ruff|mypy|sphinx", each)]


def test_readme_fits_a_sitting_and_has_the_commands() -> None:
    """README has at most 135 lines; three installs and programs precede the comparison; demo and test are commands."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, _, rest = readme.partition("\n## ")

    assert len(readme.splitlines()) <= 135
    assert first.count("pip install") == first.count("```python") == 3
    for shown in ("Linux", "CUDA 12", "pip install", "@cached_kernel", "numba_kcache.info()"):
        assert shown in first
    assert re.findall(r"`(python3 tasks\.py \w+)`", rest) == ["python3 tasks.py demo", "python3 tasks.py test"]


def test_each_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest imports them by their names alone: where nothing of two is skipped, it refuses the second one."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]

    assert len(set(names)) == len(names)
