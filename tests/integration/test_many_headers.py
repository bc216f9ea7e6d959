"""A kernel with many headers of its own that are edited again and again: each edit stored, the last 64 served."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import EventKind

HEADERS, EDITS, SERVED = 30, 66, 64


@pytest.mark.slow
def test_last_64_edits_of_many_headers_are_served_and_the_directory_stays_small(tmp_path: Path) -> None:
    """Headers that an edit did not change are stored once."""
    names = [f"h{number}.h" for number in range(HEADERS)]
    for name in names:
        (tmp_path / name).write_text("#pragma once\n")
    text = "".join(f'#include "{name}"\n' for name in names) + 'extern "C" __global__ void k() {}\n'
    (tmp_path / "k.cu").write_text(text)
    seen: list[EventKind] = []
    directory, sizes = tmp_path / "cache", []

    def ask(edit: int) -> str:
        (tmp_path / names[edit % 7]).write_text(f"#pragma once  // {edit}\n")
        cache = KernelCache(directory, durability="none")
        cache.subscribe(lambda event: seen.append(event.kind))
        cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=cache).compile()
        return "hit" if cache.info("process").hits else "miss"

    def content() -> list[bytes]:
        return [(tmp_path / name).read_bytes() for name in names[:7]]

    states = []
    for edit in range(EDITS):
        assert ask(edit) == "miss"
        states.append(content())
        sizes.append(sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()))
    stored = KernelCache(directory).info().entries
    answers = []
    for state in states[-SERVED:]:
        for name, data in zip(names, state, strict=False):
            (tmp_path / name).write_bytes(data)
        cache = KernelCache(directory, durability="none")
        cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=cache).compile()
        answers.append(cache.info("process").hits)

    assert stored == EDITS
    assert answers == [1] * SERVED
    assert EventKind.TROUBLE not in seen
    assert sizes[-1] < 2 * sizes[0] + EDITS * (64 << 10), "the closures are not shared"
