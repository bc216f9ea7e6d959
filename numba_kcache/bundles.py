"""Export and import bundles, push and pull entries of a tier: choose the entries and copy them.

Promise     Every payload of an exported entry was verified. An import adds entries only once all of the bundle are
            verified, and does not replace entries that the cache already has under the same key.
Method      An entry belongs to a kernel if their components are equal, except target, signature and compilers; the
            entry's report holds the digests of its components. Kernels linked from an entry's LTO-IR are exported
            with it.
Not here    The file of a bundle (tiers.bundle), finding and mounting one (tiers.opening, engine), and which kernels
            a module has (warmup.discovery).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from . import store as entry_format
from .engine import Session, arrived
from .errors import BundleError, KCacheError, OptionError, SettingsError, why_of
from .frontends import named_targets, require_directory
from .headers.lookup import without_stats
from .keys import Component, sha256
from .model import NO_TARGET, NamedTuple, Target
from .model.json_values import read_json
from .model.tier_address import shown_tiers
from .settings import path_from, read_settings, working_directory
from .store import ENTRY, MANIFEST, DamagedEntry, StoredEntry, StoredRow
from .store.encoding import check_payloads, encode_manifest
from .tiers.bundle import Bundle, BundledFile, BundleReport, assemble, write_bundle
from .tiers.chain import CheckedTier
from .tiers.opening import find_layout, open_any, open_tiers
from .tiers.trust import trust_of

Identity = Sequence[Component]
"""The components that all entries of one kernel share."""


def export_bundle(
    session: Session, path: Any, identities: Iterable[Identity] | None, arch: Any, *, sign: bool | None
) -> BundleReport:
    """Write entries of a cache into a bundle, or into an image that contains a bundle.

    Args:
        session: Session of the cache.
        path: Path of the bundle; `"oci:DIRECTORY[:TAG]"` for an image in a layout.
        identities: Components of the kernels to export; None for all that the cache holds.
        arch: Targets to export; None for all.
        sign: Whether it must be signed; None: if there is a `signing_key`.

    Raises:
        BundleError: It would be empty, or cannot be written.
        OptionError: `sign` is True and no key is set.
    """
    if not isinstance(path, (str, os.PathLike)):
        what = f"cannot write the bundle {path!r:.80}"
        raise OptionError(what, "it is not a path", 'write export_bundle("kernels.kcache", kernels)')
    layout = find_layout(path)
    path = str(layout) if layout else path_from(working_directory(), path)
    signing_key = session.settings.signing_key if sign is not False else None
    if sign and signing_key is None:
        raise OptionError(f"cannot sign the bundle {path}", "there is no key", "configure(signing_key=...)")
    targets = named_targets(arch)
    wanted = None if identities is None else [{each.name: each.digest for each in one} for one in identities]
    entries = _chosen(session, wanted, targets)
    if not entries:
        left_out = "; entries that arrived unsigned are not exported" if trust_of(session.settings).demands else ""
        why = f"this cache has none of the requested entries{left_out}"
        hint = "warm it up first: numba-kcache warm MODULE --arch sm_90"
        raise BundleError(f"cannot write the bundle {path}", why, hint)
    manifests = dict(_manifests(session, {each.key for each in entries}))
    bundle = assemble(path, entries, manifests, session.local.get_encoded, signing_key=signing_key)
    if layout is None:
        return write_bundle(bundle)
    from .tiers.image import write_image

    return write_image(layout, bundle, entries)


def _chosen(
    session: Session, wanted: Sequence[dict[str, str]] | None, targets: Sequence[Target] | None
) -> list[BundledFile]:
    chosen: list[BundledFile] = []
    linked: list[tuple[str, BundledFile]] = []
    kinds = set[str]()
    facts: list[BundledFile] = []  # what is known of a Numba, by which its kernels are found without it
    for key in sorted({file.key for file in session.local.files(ENTRY)}):
        data = session.local.get_encoded(key) or b""
        try:
            entry = entry_format.decode_entry(data, key)
            check_payloads(entry)
            artifact = arrived(entry)
        except (ValueError, MemoryError):
            continue  # damaged, or removed meanwhile: verify() reports it
        if targets is not None and artifact.target not in (*targets, NO_TARGET):
            continue
        file = BundledFile(key, len(data), sha256(data).hexdigest(), artifact.target.name, artifact.names)
        made_of = _made_of(entry)
        if type(made_of["kind"][1]) is list:
            facts.append(file)
        elif wanted is None or any(all(made_of[name][0] == one[name] for name in one) for one in wanted):
            chosen.append(file)
            kinds.add(artifact.kind)
        elif "module" in made_of:
            linked.append((str(made_of["module"][1]), file))
    if kinds & {"numba", "mlir"}:
        from .frontends.numba.learning import record

        if record(session, kinds):
            return _chosen(session, wanted, targets)  # with the facts
    keys = {file.key for file in chosen}
    return [
        *chosen,
        *(facts if kinds & {"numba", "mlir"} else ()),
        *(file for module, file in linked if module in keys),
    ]


def _made_of(entry: StoredEntry) -> defaultdict[str, tuple[str, Any]]:
    """Digest, and value where it is small, of each component of an entry."""
    made_of: defaultdict[str, tuple[str, Any]] = defaultdict(lambda: ("", None))
    try:
        records = read_json(entry.payloads["report"])["components"]
        made_of.update({name: (digest, value) for name, digest, value in records})
    except (KeyError, ValueError, TypeError):
        pass  # a report of another version: it matches no kernel
    return made_of


def _manifests(session: Session, keys: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each manifest with only the rows of these entries, in an order determined by them."""
    for family, rows in session.local.manifests():
        kept = []
        for each in sorted((each for each in rows if each["key"] in keys), key=lambda each: str(each["key"])):
            with suppress(ValueError):  # a header set of another version, which cannot be used
                kept.append(without_stats(each))
        if kept:
            yield family, encode_manifest(family, kept)


def import_bundle(session: Session, source: Any) -> BundleReport:
    """Verify a bundle and add its entries to a cache.

    Args:
        session: Session of the cache.
        source: Path, `"package:resource"` or Traversable.

    Raises:
        BundleError: It is refused, and no entry was added; or the cache stopped taking entries.
        KCacheError: A directory was configured and cannot be used.
    """
    bundle = open_any(source, session.settings)
    cannot = f"cannot import the bundle {bundle.name}"
    try:
        for each in bundle.manifests:
            _rows(bundle, each)  # checked only; read again below, since all at once take too much memory
        new = [each for each in bundle.entries if _is_new(session, bundle, each)]
        require_directory(session, f"import the bundle {bundle.name}")
        session.local.require_room(sum(each.size_bytes for each in new))
    except (ValueError, OSError, MemoryError) as error:
        raise BundleError(cannot, why_of(error), "nothing was imported") from None
    if not trust_of(session.settings).demands:
        session.local.tree.takes_unsigned = True
    for number, each in enumerate(new):
        if not session.local.put_encoded(each.key, bundle.get(ENTRY, each.key) or b""):
            raise BundleError(
                cannot, f"the cache took {number} of {len(new)} entries", "`numba-kcache doctor` may say why"
            )
    for each in bundle.manifests:
        session.local.add_rows(each.key, *reversed(_rows(bundle, each)))
    return bundle.report


def _is_new(session: Session, bundle: Bundle, file: BundledFile) -> bool:
    """Verify a file of a bundle, and check whether the cache lacks it.

    Raises:
        ValueError: It is not the entry described in the index.
    """
    entry = entry_format.decode_entry(bundle.get(ENTRY, file.key) or b"", file.key)
    check_payloads(entry)
    artifact = arrived(entry)
    if artifact.target.name != file.target:
        raise DamagedEntry(f"the entry {file.key} is for {artifact.target}, and not for {file.target}")
    return session.local.peeking.get(file.key) is None


def _rows(bundle: Bundle, file: BundledFile) -> list[StoredRow]:
    rows = entry_format.decode_manifest(bundle.get(MANIFEST, file.key) or b"", file.key)
    held = {each.key for each in bundle.entries}
    if any(row["key"] not in held for row in rows):
        raise DamagedEntry(f"the manifest {file.key} names an entry that the bundle lacks")
    return rows


class Moved(NamedTuple):
    """Result of copying entries between the local store and a tier.

    Args:
        tier: Name of the tier.
        entries: Entries copied.
        size_bytes: Their bytes.
        present: Entries that the destination had already.
        failed: Entries not copied: damaged, not trusted, or refused by the destination.
    """

    tier: str
    entries: int
    size_bytes: int
    present: int
    failed: int


def push(session: Session, to: str | None) -> Moved:
    """Copy entries of a cache to a tier: those that the tier lacks, or all if this machine signs.

    Args:
        session: Session of the cache.
        to: Address of the tier as in the setting; None for the first configured one that is not read-only.

    Raises:
        KCacheError: The tier does not answer.
    """
    tier = _tier(session, to, writes=True)
    signs = session.settings.signing_key is not None
    there = set() if signs else _keys(tier, ENTRY, "push to")
    copied: dict[str, int] = {}
    chosen = {file.key: file for file in _chosen(session, None, None)}
    present = chosen.keys() & there
    for key in sorted(chosen.keys() - there):
        data = session.local.get_encoded(key) or b""
        if sha256(data).hexdigest() == chosen[key].sha256 and tier.put(entry_format.decode_entry(data, key), data):
            copied[key] = len(data)
    for family, data in _manifests(session, present.union(copied)):
        tier.add_rows(family, *reversed(entry_format.decode_manifest(data, family)))
    failed = len(chosen) - len(copied) - len(present)
    return Moved(tier.tier.name, len(copied), sum(copied.values()), len(present), failed)


def pull(session: Session, source: str | None) -> Moved:
    """Copy all entries of a tier into a cache, verified as they are on a miss.

    Args:
        session: Session of the cache.
        source: Address of the tier as in the setting; None for the first configured one.

    Raises:
        KCacheError: The tier does not answer, or the mode forbids writing.
    """
    tier = _tier(session, source, writes=False)
    if session.local.readonly:
        raise KCacheError(
            f"cannot pull from {tier.tier.name}",
            f"nothing is written in mode {session.settings.mode}",
            "set mode='readwrite'",
        )
    require_directory(session, f"pull from {tier.tier.name}")
    keys = _keys(tier, ENTRY, "pull from")
    present = {key for key in keys if session.local.peeking.get(key) is not None}
    before_bytes = tier.report().bytes_read
    found = {key for key in sorted(keys - present) if tier.get(key) is not None}
    copied = {key for key in found if session.local.peeking.get(key) is not None}
    size_bytes = tier.report().bytes_read - before_bytes
    for family in sorted(_keys(tier, MANIFEST, "pull from")):
        rows = [each for each in tier.get_manifest(family) if each["key"] in copied | present]
        if rows:
            session.local.add_rows(family, *reversed(rows))
    return Moved(tier.tier.name, len(copied), size_bytes, len(present), len(keys) - len(present) - len(copied))


def _tier(session: Session, text: str | None, *, writes: bool) -> CheckedTier:
    settings = session.settings
    try:
        addresses = settings.tiers if text is None else read_settings({"tiers": [text]}, {}).tiers
    except SettingsError as error:
        hint = "write redis://host:6379, s3://bucket/path, a directory or a bundle"
        raise SettingsError(f"cannot use the tier {shown_tiers(text)}", error.why, hint) from None
    if text is not None and writes and addresses[0].readonly is None:
        addresses = (addresses[0]._replace(options={**addresses[0].options, "readonly": "0"}),)
    for tier in session.chain_of(open_tiers(settings._replace(tiers=addresses))).tiers:
        if tier.takes or not writes:
            tier.is_patient = True
            return tier
    what = "cannot push" if writes else "cannot pull"
    why = "no writable tier is set or named" if writes else "no tier is set"
    raise KCacheError(what, why, "name one, redis://host/0 or a directory, or set tiers")


def _keys(tier: CheckedTier, kind: int, what: str) -> set[str]:
    try:
        return set(filter(entry_format.is_key, tier.tier.keys(kind)))
    except Exception as error:  # of any client
        cannot, hint = f"cannot {what} {tier.tier.name}", "`numba-kcache doctor` tests the tiers"
        raise KCacheError(cannot, why_of(error), hint) from None
