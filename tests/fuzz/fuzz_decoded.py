"""Mutate decoded JSON under right digests, and hold what reads it to its promises.

    python -m tests.fuzz.fuzz_decoded --count 1000000 --seed 1 --processes 14     (tasks.py fuzz)

Promise     Whatever values stand in entries, manifests, records, reports, counters and indexes of bundles: no exception
            leaves their readers but those that they name, and what is accepted fits its own code.
Method      A real one of each is mutated in one to four places: values of other types, huge and negative numbers, None,
            nested lists, halves of surrogates, names that are missing or new. Then it is encoded as its writer does,
            with the digests that fit, so that nothing but its meaning is wrong. tests/unit/test_decoded_mutations.py
            runs a few hundred of each.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from xxhash import xxh3_128

from numba_kcache import KernelCache, cached_kernel
from numba_kcache import store as entry_format
from numba_kcache.engine import arrived
from numba_kcache.engine.explain import explain_key
from numba_kcache.errors import BundleError, EntryError
from numba_kcache.explanation.report import facts_of
from numba_kcache.model import Counts, artifact_from_header, misfit
from numba_kcache.model.contradiction import contradiction_of
from numba_kcache.observe.detail import EntryDetail
from numba_kcache.observe.info import CacheInfo, history_of
from numba_kcache.observe.page import page
from numba_kcache.store import ENTRY, MANIFEST, RECORD, DamagedEntry, FoundFile, StoredEntry, Tree, encoding
from numba_kcache.store.listing import listed
from numba_kcache.tiers import bundle as form
from numba_kcache.tiers.trust import Trust
from numba_kcache.toolchain import Toolchain
from tests.support.resolving import request_of
from tests.support.stores import counters_of, file_of

SOURCE = """
struct Box { double a; char b; };
__constant__ float table[4];
extern "C" __global__ void one(float a, const float *x, Box box, int n) { ((float *)x)[n] = a + box.a + table[n]; }
"""
INCLUDING = '#include "mine.h"\nextern "C" __global__ void k(int *x) { *x = TWO; }'

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 255, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 10**40, 10**400, -(10**30), 0.5, -0.0,
    1e300, -1e300, 5e-324, "", "a", "\x00", "\ud800", "\udcff", "\x1b[31m", "a" * 300, "0" * 64, "f" * 64, "sm_90",
    "sm_80", "compute_80", "*kf4", "exec", "__import__", "../../etc/passwd", [], {}, [[]], [None], [[[[[[[[]]]]]]]],
    {"a": {"a": {}}}, [0] * 5, ["a"] * 5, {"key": 1}, {"": None},
)  # fmt: skip


def mutated(value: Any, chance: random.Random) -> Any:
    """The value with one to four of its parts replaced, left out, doubled or moved."""
    found = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        place: Any = found
        while True:
            names = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not names:
                break
            name = chance.choice(names)
            inner = place[name]
            if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
                place = inner
                continue
            _change(place, name, chance)
            break
    return found


def _change(place: Any, name: Any, chance: random.Random) -> None:
    way = chance.random()
    if way < 0.1:
        del place[name]
    elif way < 0.2 and isinstance(place, list):
        place.insert(name, copy.deepcopy(place[chance.randrange(len(place))]))
    elif way < 0.3 and isinstance(place, dict):
        place[chance.choice(("key", "new", "", "\ud800", "paths", "closures"))] = copy.deepcopy(place[name])
    elif way < 0.45 and isinstance(place[name], (int, float)) and not isinstance(place[name], bool):
        place[name] += chance.choice((-8, -1, 1, 4, 8, 10**9))
    else:
        place[name] = copy.deepcopy(chance.choice(ODD))


class Bases:
    """A real one of each that is stored.

    Args:
        folder: Where caches may be.
    """

    def __init__(self, folder: Path) -> None:
        self.cache = KernelCache(folder / "cache", durability="none", toolchain="any")
        kernel = cached_kernel(SOURCE, arch="sm_90", cache=self.cache)
        kernel.compile()
        (found,) = self.cache.session.local.files(ENTRY)
        entry = entry_format.decode_entry(file_of(self.cache.session.local, found.key).read_bytes(), found.key)
        self.path = file_of(self.cache.session.local, found.key)
        self.key, self.header, self.payloads = found.key, entry.header, dict(entry.payloads.items())
        self.report = json.loads(self.payloads["report"])
        self.source = json.loads(self.payloads["source"])
        (folder / "mine.h").write_text("#define TWO 2\n")
        including = cached_kernel(INCLUDING, arch="sm_90", cache=self.cache, include_dirs=[str(folder)])
        including.compile()
        self.requests = [request_of(each) for each in (kernel, including)]
        self.manifests = {
            file.key: entry_format.decode_manifest(
                file_of(self.cache.session.local, file.key, "manifests").read_bytes(), file.key
            )
            for file in self.cache.session.local.files(MANIFEST)
        }
        self.paths = {
            file.key: file_of(self.cache.session.local, file.key, "manifests")
            for file in self.cache.session.local.files(MANIFEST)
        }
        local = self.cache.session.local
        self.record = next(found for file in local.files(RECORD) if "files" in (found := local.get_record(file.key)))
        self.folder = folder


def entries(bases: Bases, chance: random.Random) -> None:
    """The header of an entry: what is accepted fits its code, and people can look at all of it."""
    payloads = dict(bases.payloads)
    which = chance.random()
    header = mutated(bases.header, chance) if which < 0.7 else bases.header
    if which > 0.6:
        payloads["report"] = json.dumps(mutated(bases.report, chance)).encode()
        payloads["source"] = json.dumps(mutated(bases.source, chance)).encode()
    stored = sealed_entry(bases.key, header, payloads)
    try:
        entry = entry_format.decode_entry(stored, bases.key)
    except DamagedEntry:
        return
    (file,) = [FoundFile(ENTRY, bases.key, Tree(""), 1, 1)]
    store: Any = SimpleNamespace(files=lambda _kind: [file], peeking=SimpleNamespace(get=lambda _key: entry))
    assert all(json.dumps(each.to_dict()) for each in listed(store, "age", {}))
    with contextlib.suppress(ValueError):
        artifact = artifact_from_header(entry.header, entry.payloads, is_launched=True)
        if len(artifact.kernels) == 1:  # of several, the loader holds the one that is launched against it
            assert not misfit(artifact, artifact.kernels[0])
        artifact.kernel(artifact.kernels[0].symbol, "x").symbol.encode()
        detail = EntryDetail(bases.key, artifact, 1, 0.0, 1, {}, **facts_of(entry))
        assert all(each.isprintable() or each == "\n" for each in str(detail))
        assert json.dumps(detail.to_dict())
    with contextlib.suppress(ValueError):
        assert contradiction_of(arrived(entry)) == ""
    bases.path.write_bytes(stored)
    said = ""
    with contextlib.suppress(EntryError):
        said = str(explain_key(bases.cache.session, bases.key))
        assert all(each.isprintable() or each == "\n" for each in said)


def manifests(bases: Bases, chance: random.Random) -> None:
    """A manifest or a history: a look-up finds something or nothing."""
    family = chance.choice(list(bases.manifests))
    variants = mutated(bases.manifests[family], chance)
    bases.paths[family].write_bytes(sealed_entry(family, {"variants": variants}, {}, MANIFEST))
    session = bases.cache.session
    session.forget()
    for request in bases.requests:
        assert all(entry_format.is_key(each.key) for each in session.candidates(request))
        found = session.find(request)
        assert found is None or not misfit(found.artifact, found.artifact.kernels[0])
    bases.paths[family].parent.mkdir(exist_ok=True)
    bases.paths[family].write_bytes(encoding.encode_manifest(family, bases.manifests[family]))


def records(bases: Bases, chance: random.Random) -> None:
    """The record of the compilers alone: it holds, or they are looked for."""
    record = mutated(bases.record, chance)
    found = Toolchain(lambda name: record, lambda name, value: None)
    found.identify(("nvrtc", "nvrtc-builtins"), ("numba",), looks=False)


def counters(bases: Bases, chance: random.Random) -> None:
    """The counts of other processes: sums, a table and a page."""
    base = {"hits": 3, "misses": 2.0, "time_saved_s": 1.5, "reason/options": 2, "day/2026-11-22/hits": 3,
            f"hits/{bases.key[:16]}": 2, "compile_time_s": 0.5, "tier/ab/hits": 1}  # fmt: skip
    folder = bases.folder / "v1"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(mutated(base, chance) if chance.random() < 0.9 else chance.choice(ODD))
    (folder / "statistics").write_text(f"\n{text}\n\n{json.dumps(mutated(base, chance))}\n")
    sums = counters_of(bases.folder).read()
    counts = Counts.of(sums)
    info = CacheInfo("lifetime", "/x", 1, 1, 1, **counts.as_dict())
    assert str(info)
    assert json.dumps(info.to_dict())
    assert "<script" not in page(info, history_of(sums), [], [], now_s=0.0)


def bundles(bases: Bases, chance: random.Random) -> None:
    """The index of a bundle: refused, or each file is what it says."""
    data = sealed_entry(bases.key, bases.header, bases.payloads)
    row = [bases.key, len(data), sha256(data).hexdigest(), "sm_90", ["one"]]
    index = json.dumps(mutated({"entries": [row], "manifests": []}, chance), separators=(",", ":")).encode()
    head = form.PREFIX.pack(form.MAGIC, form.FORMAT, 0, len(index), len(data)) + index
    body = head + xxh3_128(head).digest() + data
    try:
        found = form.Bundle("x", lambda: form.HeldBytes(body), Trust(()))
    except BundleError:
        return
    for each in found.entries:
        with contextlib.suppress(DamagedEntry):
            assert found.get(ENTRY, each.key) == data
    assert str(found.report)


def sealed_entry(key: str, header: Any, payloads: dict[str, bytes], kind: int = ENTRY) -> bytes:
    """The file of an entry, whatever its header holds, with the digest that fits."""
    frame_of = encoding.encode_entry(StoredEntry(key, {}, payloads), kind)
    text = json.dumps(header, separators=(",", ":")).encode()
    prefix, table = frame_of[:56], frame_of[56 : frame_of.index(b"{}", 56)]
    rest = frame_of[56 + len(table) + 2 : -16]
    size = len(frame_of) - 2 + len(text)
    prefix = prefix[:12] + len(text).to_bytes(4, "little") + size.to_bytes(8, "little") + prefix[24:]
    body = prefix + table + text + rest
    return body + xxh3_128(body).digest()


READERS: tuple[Callable[[Bases, random.Random], None], ...] = (entries, manifests, records, counters, bundles)
BY_NAME = {reader.__name__: reader for reader in READERS}


def runs(folder: Path, reader: Callable[[Bases, random.Random], None], seeds: Iterator[int]) -> int:
    """Pass one mutation for each seed to a reader; return their number."""
    bases, count = Bases(folder), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            try:
                reader(bases, random.Random(f"{reader.__name__} {seed}"))
            except Exception as error:
                raise AssertionError(f"{reader.__name__} with seed {seed}: {error!r}") from error
            count += 1
    return count


PART = 500
"""Mutations that one process takes at a time."""


def part(reader: str, first: int, number: int) -> tuple[str, int]:
    """Run some of one reader's mutations in a folder of their own, in memory where there is such a folder."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        return reader, runs(Path(folder), BY_NAME[reader], iter(range(first, first + number)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="mutations in all")
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    each, last = arguments.count // len(READERS), arguments.seed + arguments.count // len(READERS)
    parts = [(name, at, min(PART, last - at)) for at in range(arguments.seed, last, PART) for name in BY_NAME]
    done, found, start = Counter[str](), list[str](), time.monotonic()
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool:
        for running in as_completed([pool.submit(part, *each) for each in parts]):
            try:
                name, number = running.result()
                done[name] += number
            except AssertionError as error:
                found.append(str(error))
                print(error, flush=True)
    print(f"seeds {arguments.seed} to {arguments.seed + each - 1} of each reader: {dict(done)}")
    print(f"{done.total()} mutations in {time.monotonic() - start:.0f} s, {len(found)} findings")
    return bool(found)


if __name__ == "__main__":
    os.environ.pop("NUMBA_KCACHE_MODE", None)
    sys.exit(main())
