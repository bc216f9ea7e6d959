"""The public names: all exist, all are documented, and importing them is fast."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

import numba_kcache
from numba_kcache.errors import KCacheError
from tests.support.compiling import ROOT, SAXPY, in_python


@pytest.mark.parametrize("name", numba_kcache.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    """Each name in `__all__` exists and has its own docstring."""
    value = getattr(numba_kcache, name)

    if name != "__version__":
        assert inspect.getdoc(value)
        assert inspect.getdoc(value) != inspect.getdoc(type(value)), "an inherited docstring says nothing"


@pytest.mark.parametrize("name", numba_kcache.__all__)
def test_methods_of_public_classes_are_documented(name: str) -> None:
    """Each public method and property of a public class says what it does."""
    value = getattr(numba_kcache, name)
    if inspect.isclass(value):
        silent = [
            key
            for key, member in vars(value).items()
            if not key.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, property))
            and not inspect.getdoc(member)
        ]
        assert not silent


def test_names_are_listed_once_and_in_order() -> None:
    """`dir()` and completion show exactly the public names."""
    assert sorted(set(numba_kcache.__all__)) == numba_kcache.__all__
    assert dir(numba_kcache) == numba_kcache.__all__


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="cached_kernal"):
        _ = numba_kcache.cached_kernal


def test_version_is_the_project_file_s() -> None:
    """The package and pyproject.toml have the same version for a tree without a tag."""
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))

    assert project["tool"]["hatch"]["version"]["fallback-version"] == numba_kcache.__version__


def test_error_tree_is_what_the_contract_says() -> None:
    """Errors also have standard bases, by which users catch them; all but warnings are KCacheErrors."""
    bases = {
        "SettingsError": ValueError, "OptionError": TypeError, "EntryError": LookupError, "NoDeviceError": KCacheError,
        "ToolchainMissingError": ImportError, "CompileError": KCacheError, "LinkError": numba_kcache.CompileError,
        "ArgumentError": TypeError, "LaunchConfigError": ValueError, "LaunchError": KCacheError,
        "UncacheableError": KCacheError, "FrozenCacheError": KCacheError, "BundleError": KCacheError,
    }  # fmt: skip
    for name, base in bases.items():
        assert issubclass(getattr(numba_kcache, name), (base,))
        assert issubclass(getattr(numba_kcache, name), KCacheError)
    assert issubclass(numba_kcache.KCacheWarning, UserWarning)


FOREIGN = "print([name for name in ('numba', 'cuda', 'numpy', 'logging') if name in sys.modules])"


def test_import_brings_in_neither_numba_nor_cuda_nor_numpy() -> None:
    """`import numba_kcache` imports no CUDA, Numba, NumPy or logging."""
    assert in_python(f"import sys, numba_kcache\n{FOREIGN}").strip() == "[]"


def test_decorating_brings_in_neither_numba_nor_cuda_nor_numpy(tmp_path: Path) -> None:
    """Decorating kernels imports no CUDA, Numba or NumPy, and writes nothing."""
    code = f"""
import sys
from numba_kcache import cached_kernel

@cached_kernel
def saxpy():
    return {SAXPY!r}

@cached_kernel(arch="sm_90", fastmath=True)
def other() -> str:
    return {SAXPY!r}

third = cached_kernel({SAXPY!r}, name="saxpy")
{FOREIGN}"""
    assert in_python(code, NUMBA_KCACHE_DIR=str(tmp_path / "cache")).strip() == "[]"
    assert not (tmp_path / "cache").exists(), "decorating writes nothing"
