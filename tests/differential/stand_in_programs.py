"""Random kernels whose modules import `cuda` by the stand-in or from Numba: the programs of `python_programs`."""

from __future__ import annotations

import random

from .python_programs import HEAD, TERMS, PythonProgram
from .world import Edit

_CUDA = """import os
if os.environ.get("PK_REAL"):
    from numba import cuda
else:
    from numba_kcache import cuda
"""

_LIGHT = {
    name: term for name, term in TERMS.items()
    if not any(f"{word}(" in term.main + term.lib for word in ("overload", "overload_attribute", "overload_method"))
    and "@intrinsic" not in term.lib and "signatures" not in name
}  # fmt: skip
"""Terms that do not import Numba themselves."""


class StandInProgram(PythonProgram):
    """A program and a generator of edits to it; modules that register nothing import no more of Numba than `cuda`."""

    def __init__(self, chance: random.Random) -> None:
        self.terms = TERMS if chance.random() < 0.2 else _LIGHT
        super().__init__(chance)

    def _texts(self, neutral: dict[str, object]) -> dict[str, str]:
        texts = super()._texts(neutral)
        plain = "".join(line for line in HEAD.splitlines(keepends=True) if "numba" not in line) + _CUDA
        more = "from numba.core import types\n" + HEAD.splitlines(keepends=True)[-1]
        return {
            path: text.replace(HEAD, plain + (more if "@overload" in text or "@intrinsic" in text else ""))
            for path, text in texts.items()
        }

    def _failure(self) -> list[Edit]:
        """No edit: a launch has one signature, and does not fail."""
        return []

    def step(self) -> list[Edit]:
        """Some edits and an ask, of which way first and whether in a fresh process is drawn."""
        *edits, ask = super().step()
        kept = [each for each in edits if each["edit"] != "decorate"]
        ask = {"edit": "ask", "cache": ask["cache"], "first": self.chance.choice(("stand-in", "real"))}
        return [*kept, {**ask, **({"process": "fresh"} if self.chance.random() < 0.6 else {})}]
