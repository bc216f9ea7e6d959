"""Which entries go into a bundle, and out of one.

Promise     What is exported was verified, every payload of it. What is imported is all there or nothing is, and
            what was there under the same key stays.
Method      An entry belongs to a kernel if it was made of the same components, target, signature and compilers aside:
            its report holds their digests. What was linked from the LTO-IR of an entry goes with it.
Not here    The file of a bundle (tiers.bundle), finding and mounting one (tiers.opening, resolver), and which kernels
            a module has (finding).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .closures import without_stats
from .errors import BundleError, OptionError
from .keys.components import Component
from .keys.digests import sha256
from .model.artifact import artifact_from_header
from .model.target import Target, read_arch
from .resolver import Resolver
from .store.entry import MANIFEST, DamagedEntry, StoredEntry, check_payloads, decode_entry, encode_entry
from .store.manifest import Variant, variants_of
from .tiers.bundle import Bundle, BundledFile, BundleReport, write_bundle
from .tiers.opening import open_any

Identity = Sequence[Component]
"""The components that all entries of one kernel share."""


def export_bundle(
    resolver: Resolver, path: str, identities: Iterable[Identity] | None, arch: Any, *, sign: bool | None
) -> BundleReport:
    """Write entries of a cache into a bundle.

    Args:
        resolver: Of the cache.
        path: Where to.
        identities: Of the kernels that go in; None for all that the cache holds.
        arch: Targets that go in; None for all.
        sign: Whether it must be signed; None: if there is a `signing_key`.

    Raises:
        BundleError: It would be empty, or cannot be written.
        OptionError: It shall be signed and no key is set.
    """
    signing_key = resolver.settings.signing_key if sign is not False else None
    if sign and signing_key is None:
        raise OptionError(f"cannot sign the bundle {path}", "there is no key", "configure(signing_key=...)")
    targets = None if arch is None else read_arch(arch)
    wanted = None if identities is None else [{each.name: each.digest for each in one} for one in identities]
    entries = _chosen(resolver, wanted, targets)
    if not entries:
        raise BundleError(f"cannot write the bundle {path}", "this cache holds no entry that was asked for")
    manifests = dict(_manifests(resolver, {each.key for each in entries}))
    files = [BundledFile(family, len(data), sha256(data).hexdigest()) for family, data in manifests.items()]

    def read(is_entry: bool, key: str) -> bytes | None:
        return resolver.local.get_encoded(key) if is_entry else manifests[key]

    return write_bundle(path, entries, files, read, signing_key=signing_key)


def _chosen(
    resolver: Resolver, wanted: Sequence[dict[str, str]] | None, targets: Sequence[Target] | None
) -> list[BundledFile]:
    chosen: dict[str, BundledFile] = {}
    linked: list[tuple[str, BundledFile]] = []
    for key in sorted(each.key for each in resolver.local.entries()):
        data = resolver.local.get_encoded(key) or b""
        try:
            entry = decode_entry(data, key)
            check_payloads(entry)
            artifact = artifact_from_header(entry.header, entry.payloads)
        except ValueError:
            continue  # damaged, or gone meanwhile: verify() says so
        if targets is not None and artifact.target not in targets:
            continue
        names = tuple(each.name for each in artifact.entries)
        file = BundledFile(key, len(data), sha256(data).hexdigest(), artifact.target.name, names)
        made_of = _made_of(entry)
        if wanted is None or any(all(made_of[name][0] == one[name] for name in one) for one in wanted):
            chosen[key] = file
        elif "module" in made_of:
            linked.append((str(made_of["module"][1]), file))
    return [*chosen.values(), *(file for module, file in linked if module in chosen)]


def _made_of(entry: StoredEntry) -> defaultdict[str, tuple[str, Any]]:
    """Digest, and value where it is small, of each component that an entry was made of."""
    made_of: defaultdict[str, tuple[str, Any]] = defaultdict(lambda: ("", None))
    try:
        records = json.loads(entry.payloads["report"])["components"]
        made_of.update({name: (digest, value) for name, digest, value in records})
    except (KeyError, ValueError, TypeError):
        pass  # a report of another version: it belongs to no kernel that is asked for
    return made_of


def _manifests(resolver: Resolver, keys: set[str]) -> Iterator[tuple[str, bytes]]:
    """Each manifest with the variants that are for these entries, in an order that depends on nothing else."""
    for family, variants in resolver.local.manifests():
        kept = sorted((each for each in variants if each["key"] in keys), key=lambda each: str(each["key"]))
        if kept:
            header = {"variants": [without_stats(each) for each in kept]}
            yield family, encode_entry(StoredEntry(family, header, {}), MANIFEST)


def import_bundle(resolver: Resolver, source: Any) -> BundleReport:
    """Verify a bundle and add its entries to a cache.

    Args:
        resolver: Of the cache.
        source: Path, `"package:resource"` or Traversable.

    Raises:
        BundleError: It is refused, or cannot be added; nothing of it was.
    """
    bundle = open_any(source, resolver.settings)
    cannot = f"cannot import the bundle {bundle.name}"
    try:
        variants = [(each.key, _variants(bundle, each)) for each in bundle.manifests]
        new = [each for each in bundle.entries if _is_new(resolver, bundle, each)]
        files = ((each.key, bundle.get_entry(each.key) or b"") for each in new)
        resolver.local.put_all(files, sum(each.size_bytes for each in new))
    except (ValueError, OSError) as error:
        raise BundleError(cannot, getattr(error, "strerror", None) or str(error), "nothing of it was added") from None
    for family, rows in variants:
        resolver.local.add_variant(family, *reversed(rows))
    return bundle.report


def _is_new(resolver: Resolver, bundle: Bundle, file: BundledFile) -> bool:
    """Whether a file of a bundle, which is verified, is not in the cache.

    Raises:
        ValueError: It is not the entry that the index says.
    """
    entry = decode_entry(bundle.get_entry(file.key) or b"", file.key)
    check_payloads(entry)
    artifact = artifact_from_header(entry.header, entry.payloads)
    if artifact.target.name != file.target:
        raise DamagedEntry(f"the entry {file.key} is for {artifact.target}, and not for {file.target}")
    return resolver.local.peek(file.key) is None


def _variants(bundle: Bundle, file: BundledFile) -> list[Variant]:
    variants = variants_of(decode_entry(bundle.get_manifest(file.key) or b"", file.key, MANIFEST).header)
    held = {each.key for each in bundle.entries}
    if any(variant["key"] not in held for variant in variants):
        raise DamagedEntry(f"the manifest {file.key} names an entry that is not there")
    return variants
