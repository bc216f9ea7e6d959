"""Signatures beside the files of tiers: what is trusted, what is refused, and how that is reported."""

from __future__ import annotations

import errno
import os
import random
import shutil
from base64 import b64encode
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.settings import Settings, read_settings
from numba_kcache.store import ENTRY, MANIFEST, StoredEntry, disk
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry
from numba_kcache.store.signed import SignedTree
from numba_kcache.tiers.directory import DirectoryTier
from numba_kcache.tiers.trust import Trust, trust_of
from tests.support.stores import Events, file_of, key_of, open_store, sealed, small_entry
from tests.support.tiers import Chain, MemoryTier

pytest.importorskip("cryptography", reason="no cryptography: pip install numba-kcache[sign]")

ENTRY_1 = StoredEntry(key_of(1), {"target": "sm_90"}, {"cubin": b"code"})
KEYS = (("team", bytes(32)),)
VARIANT = {"key": key_of(1), "target": "sm_90", "request": key_of(2)}


@pytest.fixture
def events() -> Events:
    return Events()


def trust(tmp_path: Path, *, signs: str | None = None, trusts: str | None = None) -> Trust:
    """The trust of settings with this signing key and this trusted key, by name."""
    given: dict[str, object] = {}
    if signs is not None:
        given["signing_key"] = make_key(tmp_path, signs)[0]
    if trusts is not None:
        given["trusted_keys"] = {trusts: make_key(tmp_path, trusts)[1]}
    return trust_of(read_settings(given, {}))


def make_key(tmp_path: Path, name: str) -> tuple[str, str]:
    """The file of a secret key, and the public one in base64."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret = Ed25519PrivateKey.from_private_bytes(random.Random(name).randbytes(32))
    path = tmp_path / f"{name}.pem"
    path.write_bytes(
        secret.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()),
    )
    return str(path), b64encode(secret.public_key().public_bytes_raw()).decode()


def filled(tmp_path: Path, tier: MemoryTier | DirectoryTier, signs: str | None) -> None:
    """Store the entry and its manifest in the tier."""
    node = Chain(open_store(tmp_path / "source"), [tier], Events(), trust(tmp_path, signs=signs))
    node.put(ENTRY_1)
    node.add_rows(key_of(9), VARIANT)


def believer(tmp_path: Path, tier: MemoryTier | DirectoryTier, events: Events, **asked: str) -> Chain:
    return Chain(open_store(tmp_path / "local"), [tier], events, trust(tmp_path, **(asked or {"trusts": "team"})))


def test_what_a_trusted_key_signed_is_served(tmp_path: Path, events: Events) -> None:
    """Entry and manifest are served; their bytes are those without a signature."""
    tier = MemoryTier()
    filled(tmp_path, tier, "team")
    node = believer(tmp_path, tier, events)

    assert node.get(key_of(1)) == ENTRY_1
    assert node.tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert events.of(EventKind.TROUBLE) == []
    assert tier.entries[key_of(1)] == encode_entry(ENTRY_1)


def test_two_that_sign_add_to_one_manifest(tmp_path: Path, events: Events) -> None:
    """Each signs the rows of the other with its own."""
    tier, variants = MemoryTier(), [{**VARIANT, "key": key_of(number)} for number in range(3)]
    filled(tmp_path, tier, "team")
    trusted = trust(tmp_path, signs="team", trusts="team")
    first, second = (Chain(open_store(tmp_path / name), [tier], events, trusted).tiers[0] for name in ("a", "b"))
    second.add_rows(key_of(9), variants[2])
    first.add_rows(key_of(9), variants[0])

    assert second.get_manifest(key_of(9)) == [variants[0], variants[2], VARIANT]
    assert events.of(EventKind.TROUBLE) == []


@pytest.mark.parametrize("signs", [None, "stranger"])
def test_unsigned_and_strangers_code_is_a_miss_and_an_error(tmp_path: Path, events: Events, signs: str | None) -> None:
    """Nothing of it is stored."""
    tier = MemoryTier()
    filled(tmp_path, tier, signs)
    node = believer(tmp_path, tier, events)

    assert node.get(key_of(1)) is None
    assert node.tiers[0].get_manifest(key_of(9)) == []
    assert node.tiers[0].peek(key_of(1)) is None
    said = [str(event.fields["error"]) for event in events.of(EventKind.TROUBLE)]
    assert ["is not trusted" in each for each in said] == [True] * 3
    assert not file_of(node.local, key_of(1)).exists()
    report = node.reports()[0]
    assert (report.hits, report.misses, report.errors) == (0, 1, 3)


def _changed_bytes(tier: MemoryTier) -> None:
    forged = encode_entry(StoredEntry(key_of(1), {"target": "sm_90"}, {"cubin": b"evil"}))
    tier.entries[key_of(1)] = forged


def _another_target(tier: MemoryTier) -> None:
    signature = tier.signatures[ENTRY, key_of(1)]
    tier.signatures[ENTRY, key_of(1)] = signature[:72] + b"sm_80"


def _another_entry(tier: MemoryTier) -> None:
    other = encode_entry(StoredEntry(key_of(1), {"target": "sm_90"}, {"cubin": b"other kernel"}))
    tier.entries[key_of(1)] = other
    tier.signatures[ENTRY, key_of(1)] = tier.signatures[ENTRY, key_of(2)]


def _manifest_as_entry(tier: MemoryTier) -> None:
    tier.signatures[ENTRY, key_of(1)] = tier.signatures[MANIFEST, key_of(9)]


def _no_record(tier: MemoryTier) -> None:
    tier.signatures[ENTRY, key_of(1)] = b""


def _garbage(tier: MemoryTier) -> None:
    tier.signatures[ENTRY, key_of(1)] = bytes(72) + b"\xff" * 1000


@pytest.mark.parametrize(
    "forge", [_changed_bytes, _another_target, _another_entry, _manifest_as_entry, _no_record, _garbage]
)
def test_forgery_is_a_miss(tmp_path: Path, events: Events, forge: object) -> None:
    """The forger can write to the server, but has no key."""
    tier = MemoryTier()
    filled(tmp_path, tier, "team")
    Chain(open_store(tmp_path / "more"), [tier], Events(), trust(tmp_path, signs="team")).put(
        StoredEntry(key_of(2), {"target": "sm_90"}, {"cubin": b"other kernel"})
    )
    forge(tier)  # type: ignore[operator]
    node = believer(tmp_path, tier, events)

    assert node.get(key_of(1)) is None
    assert node.reports()[0].errors == 1


def test_target_inside_must_be_the_one_that_was_signed(tmp_path: Path, events: Events) -> None:
    """The signer was given another target than the entry has."""
    tier, data = MemoryTier(), encode_entry(ENTRY_1)
    tier.entries[key_of(1)] = data
    tier.signatures[ENTRY, key_of(1)] = trust(tmp_path, signs="team").record(ENTRY, key_of(1), data, "sm_80")
    node = believer(tmp_path, tier, events)

    assert node.get(key_of(1)) is None
    assert "not for sm_80" in str(events[-1].fields["error"])


def test_what_is_not_signed_is_not_unpacked(tmp_path: Path, events: Events) -> None:
    """The signature is checked before the file: a forged file is reported as unsigned, not as damaged."""
    tier = MemoryTier()
    tier.entries[key_of(1)] = sealed(b"not a file of this store")
    node = believer(tmp_path, tier, events)

    assert node.get(key_of(1)) is None
    assert "it is not signed" in str(events[-1].fields["error"])


def test_vouched_tier_needs_no_signatures(tmp_path: Path, events: Events) -> None:
    """The option `?unsigned=1` is for an image layer that its build has filled."""
    tier = MemoryTier()
    filled(tmp_path, tier, None)
    tier.is_trusted = True

    assert believer(tmp_path, tier, events).get(key_of(1)) == ENTRY_1


def test_directory_keeps_signatures_beside_its_files(tmp_path: Path, events: Events) -> None:
    """Entries and manifests have signatures in files of their own."""
    share = DirectoryTier(str(tmp_path / "share"))
    share.readonly = False
    filled(tmp_path, share, "team")
    node = believer(tmp_path, DirectoryTier(str(tmp_path / "share")), events)

    assert node.tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert node.get(key_of(1)) == ENTRY_1


def test_who_trusts_and_cannot_sign_writes_nothing(tmp_path: Path, events: Events) -> None:
    """Others would not accept an unsigned entry, and a changed manifest would lose its valid signature."""
    tier = MemoryTier()
    node = believer(tmp_path, tier, events)
    node.put(ENTRY_1)
    node.add_rows(key_of(9), VARIANT)

    assert (tier.entries, tier.manifests) == ({}, {})


@pytest.mark.parametrize("signs", [None, "stranger"])
def test_signer_takes_nothing_unsigned(tmp_path: Path, events: Events, signs: str | None) -> None:
    """A push or export would sign it, and so vouch for code of unknown origin."""
    tier = MemoryTier()
    filled(tmp_path, tier, signs)
    node = believer(tmp_path, tier, events, signs="team")

    assert node.get(key_of(1)) is None
    assert node.tiers[0].get_manifest(key_of(9)) == []
    assert not file_of(node.local, key_of(1)).exists()
    assert ["is not trusted" in str(event.fields["error"]) for event in events.of(EventKind.TROUBLE)] == [True] * 2


@pytest.mark.parametrize("asked", [{"signs": "team"}, {"signs": "team", "trusts": "stranger"}])
def test_signer_takes_what_it_signed_itself(tmp_path: Path, events: Events, asked: dict[str, str]) -> None:
    """Its own key need not be among the trusted ones; a tier with `?unsigned=1` needs no signature."""
    tier = MemoryTier()
    filled(tmp_path, tier, "team")
    assert believer(tmp_path, tier, events, **asked).get(key_of(1)) == ENTRY_1

    unsigned = MemoryTier().with_rows(key_of(9), VARIANT)
    unsigned.is_trusted = True
    assert believer(tmp_path, unsigned, events, **asked).tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert events.of(EventKind.TROUBLE) == []


@pytest.mark.parametrize("asked", [{"signs": "team"}, {"signs": "team", "trusts": "team"}])
def test_signer_vouches_for_no_one_else_s_rows(tmp_path: Path, events: Events, asked: dict[str, str]) -> None:
    """A manifest of unknown origin is replaced; the signer's own is added to."""
    tier = MemoryTier().with_rows(key_of(9), {"key": key_of(66)})
    node = believer(tmp_path, tier, events, **asked)
    node.add_rows(key_of(9), VARIANT)
    node.add_rows(key_of(9), {**VARIANT, "key": key_of(3)})

    found = believer(tmp_path, tier, Events()).tiers[0].get_manifest(key_of(9))
    assert [each["key"] for each in found] == [key_of(3), key_of(1)]


def test_reader_between_the_two_files_of_a_manifest_misses_silently(tmp_path: Path, events: Events) -> None:
    """A writer replaces the signature first: until the manifest follows, they do not fit each other."""
    tier = MemoryTier()
    filled(tmp_path, tier, "team")
    node, before = believer(tmp_path, tier, events), tier.manifests[key_of(9)]
    believer(tmp_path, tier, events, signs="team").add_rows(key_of(9), {**VARIANT, "key": key_of(3)})
    after, tier.manifests[key_of(9)] = tier.manifests[key_of(9)], before

    assert node.tiers[0].get_manifest(key_of(9)) == []
    assert events.of(EventKind.TROUBLE) == []

    tier.manifests[key_of(9)] = after
    assert [each["key"] for each in node.tiers[0].get_manifest(key_of(9))] == [key_of(3), key_of(1)]


def test_bad_signing_key_hands_nothing_on(tmp_path: Path, events: Events) -> None:
    """The failure is an event, not the user's exception; local entries are stored."""
    (tmp_path / "bad.pem").write_text("no key")
    tier = MemoryTier()
    settings = read_settings({"signing_key": str(tmp_path / "bad.pem")}, {})
    node = Chain(open_store(tmp_path / "local"), [tier], events, trust_of(settings))

    assert node.put(ENTRY_1)
    assert tier.entries == {}
    assert "signing_key" in str(events.of(EventKind.TROUBLE)[0].fields["error"])


# -- the local directory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"signs": "team"}, {"trusts": "team"}], ids=["signs", "trusts"])
@pytest.mark.parametrize("way", ["entry", "manifest"])
def test_what_came_unsigned_is_not_found_where_signatures_are_demanded(
    tmp_path: Path, way: str, asked: dict[str, str]
) -> None:
    """Neither are entries that were compiled here afterwards. A cache without the demand finds both; `clear` keeps the
    mark."""
    tier = MemoryTier()
    filled(tmp_path, tier, None)
    anyone = Chain(open_store(tmp_path / "local"), [tier], Events())
    before = open_store(tmp_path / "local", trusted_keys=KEYS)
    assert anyone.put(small_entry(3))
    assert before.get(key_of(3)) == small_entry(3)  # compiled here, before any unsigned file was accepted
    if way == "entry":
        assert anyone.get(key_of(1)) == ENTRY_1
    else:
        anyone.local.add_rows(key_of(9), anyone.tiers[0].get_manifest(key_of(9))[0])
    assert anyone.put(small_entry(4))

    after = open_store(tmp_path / "local", trusted_keys=KEYS)
    for store in (before, after):
        assert [store.get(key_of(number)) for number in (1, 3, 4)] == [None] * 3
        assert store.get_manifest(key_of(9)) == []
        assert list(store.entries()) == list(store.manifests()) == []
        assert store.get_encoded(key_of(4)) is None
    assert after.put(small_entry(5))
    assert before.get(key_of(5)) == small_entry(5)
    assert open_store(tmp_path / "local").get(key_of(4)) == small_entry(4)
    assert after.verify() == open_store(tmp_path / "local").verify() == []
    open_store(tmp_path / "local").clear()
    assert open_store(tmp_path / "local").put(small_entry(6))
    assert open_store(tmp_path / "local", trusted_keys=KEYS).get(key_of(6)) is None


def test_what_a_demand_accepted_marks_nothing(tmp_path: Path, events: Events) -> None:
    """A signed file that one cache with the demand has accepted is found by the next one."""
    tier = MemoryTier()
    filled(tmp_path, tier, "team")
    node = believer(tmp_path, tier, events)
    assert node.get(key_of(1)) == ENTRY_1

    assert open_store(tmp_path / "local", trusted_keys=KEYS).get(key_of(1)) == ENTRY_1


def test_without_its_mark_nothing_unsigned_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory cannot be marked, nothing unsigned is stored: a later cache with the demand could not tell it
    apart."""
    tier = MemoryTier()
    filled(tmp_path, tier, None)
    node = Chain(open_store(tmp_path / "local"), [tier], Events())

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no disk")

    monkeypatch.setattr(os, "fsync", fail)
    assert node.get(key_of(1)) == ENTRY_1
    monkeypatch.undo()

    assert open_store(tmp_path / "local").get(key_of(1)) is None


def test_directory_removed_meanwhile_is_made_and_marked_again(tmp_path: Path) -> None:
    """Another program may remove a cache directory while a session that took unsigned code writes to it."""
    store = open_store(tmp_path / "local")
    store.tree.takes_unsigned = True
    assert store.put(small_entry(1))
    shutil.rmtree(tmp_path / "local")

    assert store.put(small_entry(2))

    assert store.get(key_of(2)) == small_entry(2)
    assert open_store(tmp_path / "local", trusted_keys=KEYS).get(key_of(2)) is None


@pytest.mark.parametrize("keys", [(), (("ci", bytes(32)),)], ids=["no trusted keys", "a trusted key"])
@pytest.mark.parametrize("signing_key", [None, "key.pem"])
def test_store_demands_signatures_where_the_tiers_do(
    tmp_path: Path, keys: tuple[tuple[str, bytes], ...], signing_key: str | None
) -> None:
    """The store, which a warm hit opens without the tiers, decides for itself: by the same rule."""
    settings = Settings(trusted_keys=keys, signing_key=signing_key)

    store = disk.open_store(settings, str(tmp_path), lambda _event: None)

    assert isinstance(store, DiskStore)
    assert isinstance(store.tree, SignedTree) == trust_of(settings).demands == bool(keys or signing_key)
