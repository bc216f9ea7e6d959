"""The tool that changes one place of the package at a time."""

from __future__ import annotations

import ast
import importlib.util
import re
from typing import Any

from tests.support.compiling import ROOT

_SPEC: Any = importlib.util.spec_from_file_location("mutants", ROOT / ".ci/mutants.py")
mutants: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(mutants)

SOURCE = '''
LIMIT = 3
class Store:
    """A class."""
    def get(self, key: "int" = 1):
        if key in self.kept and self.open:
            self.note("é", key)
            raise ValueError(f"{key > 4}")
        return None if self.note(key) else key is None
@functools.cache
def kept():
    return place is None
'''


def test_each_kind_of_change_is_made_at_one_place() -> None:
    """Comparisons, conditions, constants and calls are found with the function that they are in; messages are not."""
    made = [(mutant, mutants.mutated(SOURCE, mutant)) for mutant, *_ in mutants.places_of("a.py", ast.parse(SOURCE))]

    assert [(mutant.function, mutant.kind, mutant.text) for mutant, _ in made] == [
        ("", "constant", "3"), ("Store.get", "constant", "1"),
        ("Store.get", "condition", "key in self.kept and self.open"), ("Store.get", "comparison", "key in self.kept"),
        ("Store.get", "call removed", "self.note('é', key)"), ("Store.get", "condition", "self.note(key)"),
        ("Store.get", "comparison", "key is None"), ("kept", "comparison", "place is None"),
    ]  # fmt: skip
    for mutant, new in made:
        compile(new, "a.py", "exec")
        assert new != SOURCE, mutant
        assert len(set(new.splitlines()) - set(SOURCE.splitlines())) == 1, mutant


def test_place_that_has_gone_is_no_mutant() -> None:
    """A list that was made of an earlier text stays of use."""
    ((first, *_), *_) = mutants.places_of("a.py", ast.parse(SOURCE))

    assert mutants.mutated(SOURCE.replace("LIMIT = 3", "LIMIT = 4"), first) is None


def test_statements_with_mutants_are_noted_where_a_function_runs_them() -> None:
    """Each is noted before it runs, also in a branch; not one that runs at import or once in a process."""
    numbers = {mutant: at for at, (mutant, *_) in enumerate(mutants.places_of("a.py", ast.parse(SOURCE)))}

    text, noted = mutants.noting(SOURCE, numbers)

    lines = [line.strip() for line in text.splitlines()]
    notes = [re.search(r"note\((\d+)\)", line) for line in lines]
    followed = [(int(note[1]), lines[at + 1 :]) for at, note in enumerate(notes) if note]
    assert [(number, next(line for line in rest if "noted" not in line)) for number, rest in followed] == [
        (2, "if key in self.kept and self.open:"), (3, "if key in self.kept and self.open:"),
        (4, "self.note('é', key)"), (5, "return None if self.note(key) else key is None"),
        (6, "return None if self.note(key) else key is None"),
    ]  # fmt: skip
    assert [numbers[each] for each in noted] == [4, 2, 3, 5, 6]
