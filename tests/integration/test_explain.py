"""Explanations of what is made of several parts: Numba kernels, modules, tiers, and launches that miss."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Explanation, KernelCache, ReasonKind, cached_kernel, cached_module
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, run
from tests.support.modules import imported

HELPERS = """
from numba import cuda
SCALE = 2.0
@cuda.jit(device=True)
def scaled(x):
    return x * SCALE
"""
KERNELS = """
from numba import cuda
import helpers
def make(power):
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = helpers.scaled(x[i]) ** power
    return kernel
kernel = make(2)
"""
SIGNATURE = "void(float32[::1], float32[::1])"


def numba_kernel(folder: Path, helpers: str = HELPERS, kernels: str = KERNELS, **options: Any) -> Any:
    """What the program's kernel is now, in a cache that has nothing in memory."""
    options = {"arch": "sm_90", "signature": SIGNATURE, **options}
    cache = KernelCache(folder / "cache", durability="none")
    with imported(folder, {"helpers": helpers, "kernels": kernels}) as module:
        return cached_kernel(module.kernel, cache=cache, **options)


def told(explanation: Explanation) -> set[tuple[ReasonKind, str, str | None, str | None, str]]:
    return {each[:1] + each[2:] for each in explanation.reasons}


@pytest.mark.slow
def test_numba_kernel_names_function_line_value_and_option(tmp_path: Path) -> None:
    """Of whichever file; comments and lines that moved are no difference."""
    numba_kernel(tmp_path).compile()
    assert numba_kernel(tmp_path).explain().is_hit
    assert numba_kernel(tmp_path, kernels="# moved\n\n" + KERNELS).explain().is_hit
    helpers = HELPERS.replace("2.0", "3.0").replace("return x * SCALE", "# why\n    return x + SCALE")
    kernels = KERNELS.replace("make(2)", "make(3)")
    found = numba_kernel(tmp_path, helpers, kernels, fastmath=True).explain()

    assert told(found) == {
        (ReasonKind.SOURCE_CHANGED, "device function helpers.scaled", "return x * SCALE", "return x + SCALE",
         f"{tmp_path}/helpers.py:7"),
        (ReasonKind.VALUE_CHANGED, "global SCALE of helpers", "2.0", "3.0", ""),
        (ReasonKind.VALUE_CHANGED, "closure power of kernels.make.<locals>.kernel", "2", "3", ""),
        (ReasonKind.OPTIONS, "fastmath of kernels.make.<locals>.kernel", "false", "true", ""),
    }  # fmt: skip


def test_numba_kernel_names_signature_setting_and_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone; text in `depends`, which may be a secret, by its digest."""
    numba_kernel(tmp_path, depends=["hunter1"]).compile()
    other = numba_kernel(tmp_path, depends=["hunter1"]).explain(signature="void(float64[::1], float32[::1])")
    secret = numba_kernel(tmp_path, depends=["hunter2"]).explain()
    monkeypatch.setenv("NUMBA_OPT", "1")
    setting = numba_kernel(tmp_path, depends=["hunter1"]).explain()

    arrays = "(array({}, 1d, C), array(float32, 1d, C))"
    assert told(other) == {
        (ReasonKind.SIGNATURE, "", arrays.format("float32"), arrays.format("float64"), ""),
    }  # fmt: skip
    assert [(each.kind, each.name) for each in setting.reasons] == [(ReasonKind.ENVIRONMENT, "numba.config.OPT")]
    assert [(each.kind, each.name) for each in secret.reasons] == [(ReasonKind.DEPENDS, "depends[0]")]
    assert "hunter" not in str(secret) + json.dumps(secret.to_dict())
    store = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(b"hunter" in data for data in store)


def test_numba_kernel_without_a_signature_cannot_be_explained(tmp_path: Path) -> None:
    """It is asked for; one that was compiled does."""
    kernel = numba_kernel(tmp_path, signature=None)
    with pytest.raises(numba_kcache.OptionError, match="signature"):
        kernel.explain()
    kernel.compile(signature=SIGNATURE)

    assert kernel.explain().is_hit
    assert numba_kcache.explain(kernel, "sm_80", SIGNATURE).reasons[0].kind is ReasonKind.TARGET


def test_tier_is_where_a_hit_comes_from_and_stays_there(tmp_path: Path) -> None:
    """Asked without a copy being kept; the local store stays empty, and nothing is counted."""
    cached_kernel(SAXPY, arch="sm_90", cache=KernelCache(tmp_path / "image", durability="none")).compile()
    local = KernelCache(tmp_path / "local", durability="none", tiers=[tmp_path / "image"])
    found = cached_kernel(SAXPY, arch="sm_90", cache=local).explain()

    assert (found.outcome, found.source) == ("hit", "tier")
    assert not (tmp_path / "local").exists()
    info = local.info("process")
    assert (info.hits, info.misses) == (0, 0)
    assert [tier.hits for tier in local.session.store.reports()] == [0]  # type: ignore[union-attr]
    assert not cached_kernel(SAXPY, arch="sm_90", fastmath=True, cache=local).explain().is_hit


@pytest.mark.parametrize("lazy", [False, True])
def test_module_and_its_kernels_are_explained(tmp_path: Path, lazy: bool) -> None:
    """A module as a whole, and each kernel of it."""

    def module(**options: Any) -> Any:
        cache = KernelCache(tmp_path / "cache", durability="none")
        return cached_module(SAXPY, arch="sm_90", lazy=lazy, cache=cache, **options)

    module().compile()
    changed = module(fastmath=True)

    assert numba_kcache.explain(module()).is_hit
    assert numba_kcache.explain(module().saxpy).is_hit
    assert [each.name for each in numba_kcache.explain(changed).reasons] == ["fastmath"]
    assert [each.component for each in changed.saxpy.explain().reasons] == ["options"]


LAUNCH = f"""
import sys, json
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1], durability="none")
heard = []
cache.subscribe(lambda event: heard.append(event) if event.kind in ("miss", "hit") else None)
kernel = cached_kernel({SAXPY!r}, cache=cache, fastmath=sys.argv[2] == "1")
before = kernel.explain()
kernel[1, 32](2.0, None, None, 0)
(event,) = heard
print(json.dumps([before.outcome, event.kind, event.fields.get("reason", ""),
                  [each.kind for each in event.fields.get("reasons", ())], kernel.explain().source]))
"""


@pytest.mark.slow
@needs_fake_driver
def test_launch_that_misses_says_why_in_its_event(tmp_path: Path) -> None:
    """For the device at hand: cold, with another option, and warm."""

    def launched(fastmath: str) -> Any:
        surroundings = {**environment(build()), "NUMBA_KCACHE_DIR": os.devnull}
        return json.loads(run(["-c", LAUNCH, str(tmp_path / "cache"), fastmath], env=surroundings).stdout)

    nothing = "nothing of this kernel was stored here before"
    assert launched("0") == ["miss", "miss", nothing, ["never_stored"], "memory"]
    assert launched("1") == ["miss", "miss", "option fastmath: true is new", ["options"], "memory"]
    assert launched("0") == ["hit", "hit", "", [], "memory"]
