"""Results as a prompt and a notebook show them: text for `repr`, a table or text as HTML, cells by their names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache import CompileError, KernelCache, cached_kernel, warm_up
from tests.support.compiling import EMPTY, SAXPY

MANGLED = "_Z"


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", durability="none")


def test_results_are_readable_as_the_last_line_of_a_cell(cache: KernelCache) -> None:
    """Their repr is their text, which names kernels as the source does; their HTML has the same words."""
    kernel = cached_kernel("template <class T> __global__ void axpy(T *x) {}", name="axpy<float>", cache=cache)
    report = warm_up(kernel, "sm_90", progress=False)
    results: list[Any] = [
        kernel.explain("sm_90"),
        report,
        cache.entries(),
        cache.info(),
        cache.entry(kernel.key("sm_90")),
    ]

    for shown in results:
        assert repr(shown) == str(shown)
        assert MANGLED not in repr(shown).replace("symbol _Z", "")
        assert MANGLED not in shown._repr_html_().replace("symbol _Z", "")
    assert "axpy&lt;float&gt;" in cache.entries()._repr_html_()  # type: ignore[attr-defined]
    assert "kernel  " in report._repr_html_()
    assert repr(cache.entries()[0]) == f"<EntryInfo {kernel.key('sm_90')[:12]}: axpy<float> for sm_90>"


def test_entries_are_a_list_and_a_table(cache: KernelCache) -> None:
    """Each row has key, kernels, target, size, age, compile time and hits."""
    for source in (EMPTY, SAXPY):
        cached_kernel(source, cache=cache).compile("sm_90")
    first, *rows = repr(cache.entries()).splitlines()

    assert first.split() == ["key", "kernels", "target", "size", "used", "compiled", "in", "hits"]
    assert sorted(row.split()[1] for row in rows) == sorted(each.kernels[0] for each in cache.entries())


def test_html_is_escaped(cache: KernelCache) -> None:
    """A name with markup, from an entry or the user, is shown as text."""
    found = cache.explain(cached_kernel(EMPTY, cache=cache), "sm_90")._replace(kernel="<script>")

    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()


def test_error_in_a_notebook_names_the_cell(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its tracebacks do: `Cell In[7], line 3`, not the file under which ipykernel compiles it."""
    path = "/tmp/ipykernel_1/4108627768.py"
    code = "def k() -> str:\n    return '''\n    __global__ void k(int *x) { *x = y; }'''\n"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={path: 7}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(__import__("linecache").cache, path, (len(code), None, code.splitlines(True), path))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, path, "exec"), names)

    with pytest.raises(CompileError) as caught:
        cached_kernel(names["k"], cache=cache).compile("sm_90")

    assert caught.value.why.startswith("Cell In[7], line 3: error: ")
    assert "ipykernel" not in str(caught.value) + caught.value.log
