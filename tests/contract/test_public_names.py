"""The public names: all exist, all are documented, and importing them is fast."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import numba_kcache
from numba_kcache import KernelCache, adapters
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


def with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from with_subclasses(each)


DOCUMENTED = {
    word
    for path in (
        *(ROOT / "docs/reference").glob("*.md"),
        *(ROOT / "docs/how-to").glob("*.md"),
        ROOT / "docs/tutorial.md",
    )
    for code in re.findall(r"`([^`\n]+)`|```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    for word in re.findall(r"\w+", "".join(code))
}
"""Words of the code in the pages for users."""


@pytest.mark.parametrize(
    "name", [name for name in numba_kcache.__all__ if isinstance(getattr(numba_kcache, name), type)]
)
def test_completion_shows_documented_names_alone(name: str) -> None:
    """Each name without an underscore that `dir()` shows is in a page for users, or among the Args of its class.

    Names that Python itself adds, as those of tuples and of members of an enumeration, are left out.
    """
    for kind in with_subclasses(getattr(numba_kcache, name)):
        shown = dir(KernelCache.__new__(kind)) if issubclass(kind, KernelCache) else dir(kind)
        of_python = {each for base in kind.__mro__ if base.__module__ in ("builtins", "enum") for each in vars(base)}
        of_python |= set(getattr(kind, "__members__", ()))
        arguments = re.findall(r"^ +(\w+(?:, \w+)*):", kind.__doc__ or "", re.MULTILINE)
        known = {*DOCUMENTED, *", ".join(arguments).split(", "), *of_python}

        assert [each for each in shown if not each.startswith("_") and each not in known] == []


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


@pytest.mark.parametrize("name", ["cuda_compute", "triton"])
def test_adapter_is_found_in_their_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`adapters.cuda_compute.cached()` needs no import of its own."""
    monkeypatch.delattr(adapters, name, raising=False)

    assert getattr(adapters, name).__name__ == f"numba_kcache.adapters.{name}"


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
