"""The build of the compiled launch module: the contents of a wheel, and the message where it cannot be built."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_driver import ROOT, needs_fake_driver


def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, list[str]]:
    """The build hook over a copy of the source, and its output."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / ".ci/native_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    copy = tmp_path / "native.c"
    copy.write_bytes(module.SOURCE.read_bytes())
    monkeypatch.setattr(module, "SOURCE", copy)
    said: list[str] = []
    monkeypatch.setattr(module.NativeBuildHook, "app", SimpleNamespace(display_warning=said.append), raising=False)
    monkeypatch.setattr(module.NativeBuildHook, "metadata", SimpleNamespace(version="9.8.7"), raising=False)
    return object.__new__(module.NativeBuildHook), said


@needs_fake_driver
@pytest.mark.slow
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_module_is_added_to_a_wheel_and_left_beside_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    """The wheel has the tag of the build; an editable install finds the module in the checkout."""
    monkeypatch.delenv("CC", raising=False)
    build, said = hook(monkeypatch, tmp_path)
    data: dict[str, Any] = {"force_include": {}}

    build.initialize(version, data)

    (made,) = tmp_path.glob("native*.so")
    assert not said
    assert data["pure_python"] is False
    assert data["tag"].split("-")[1] in ("abi3", "cp313t", "cp314t")
    placed = data["force_include"]
    if version == "editable":
        assert placed == {}
    else:
        assert placed[str(made)] == f"numba_kcache/launch/{made.name}"
        (stated,) = (Path(file) for file, target in placed.items() if target == "numba_kcache/version.py")
        assert '__version__ = "9.8.7"' in stated.read_text()
        build.finalize(version, data, "a.whl")
        assert not stated.exists()


def test_module_is_left_out_in_a_line_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line says so; the wheel is then for any platform, and no file is left behind."""
    monkeypatch.setenv("CC", str(tmp_path / "no-such-cc"))
    build, said = hook(monkeypatch, tmp_path)
    data: dict[str, Any] = {"force_include": {}}

    build.initialize("standard", data)

    assert list(data["force_include"].values()) == ["numba_kcache/version.py"]
    assert set(data) == {"force_include"}
    build.finalize("standard", data, "a.whl")
    (line,) = said
    assert line.startswith("numba-kcache: the compiled launch module is left out: ")
    assert "\n" not in line
    assert [each.name for each in tmp_path.iterdir()] == ["native.c"]
