"""A hit imports little of the store: what a miss, a put or a listing needs comes with it."""

from __future__ import annotations

from pathlib import Path

from tests.support.compiling import in_python
from tests.support.stores import entry_of, key_of, open_store

HIT = """
import sys
from numba_kcache.settings import read_settings
from numba_kcache.store.disk import open_store

def loaded():
    names = (each.removeprefix("numba_kcache.store.") for each in sys.modules if each.startswith("numba_kcache.store."))
    return " ".join(sorted(names))

store = open_store(read_settings({}), sys.argv[1], print)
assert store.get(sys.argv[2]) is not None
assert store.get_manifest(sys.argv[2])
print(loaded())
store.counters.add({"hits": 1})
print(loaded())
"""


def test_hit_imports_three_modules_of_the_store(tmp_path: Path) -> None:
    """Opening, an entry and a manifest; at the end of the process the counters, without what folds them."""
    store = open_store(tmp_path)
    store.put(entry_of(1))
    store.add_variant(key_of(1), {"key": key_of(1)})

    hit, end = in_python(HIT, str(tmp_path), key_of(1)).splitlines()

    assert hit.split() == ["disk", "entry", "tree"]
    assert set(end.split()) - set(hit.split()) == {"counters", "faults", "folders"}
