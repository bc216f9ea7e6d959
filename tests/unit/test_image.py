"""Bundles in OCI image layouts: equal digests each time, and nothing used before it was verified."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import BundleError, KCacheWarning, KernelCache, cached_kernel
from numba_kcache.cli import main
from numba_kcache.model import Target
from numba_kcache.tiers import bundle as form
from numba_kcache.tiers import image
from numba_kcache.tiers.bundle import BundleTier
from numba_kcache.tiers.opening import open_any
from tests.support.compiling import EMPTY
from tests.support.keying import MadeUpToolchain
from tests.support.programs import program
from tests.support.resolving import resolutions_of
from tests.unit.test_bundle import TWO, make_key, small_bundle

pytestmark = pytest.mark.usefixtures("compiled_once")

NO_COMPILER = MadeUpToolchain({}, {})
TAR = "application/vnd.oci.image.layer.v1.tar"


def open_cache(directory: Path, **settings: Any) -> KernelCache:
    return KernelCache(directory, durability="none", **settings)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels for one target, one of them as PTX as well."""
    folder = tmp_path_factory.mktemp("compiled")
    cached_kernel(EMPTY, cache=open_cache(folder)).compile(["sm_80", "compute_80"])
    cached_kernel(TWO, cache=open_cache(folder)).compile("sm_80")
    return folder


@pytest.fixture
def filled(compiled: Path, tmp_path: Path) -> KernelCache:
    shutil.copytree(compiled, tmp_path / "filled")
    return open_cache(tmp_path / "filled")


@pytest.fixture
def layout(filled: KernelCache, tmp_path: Path) -> Path:
    filled.export_bundle(f"oci:{tmp_path / 'layout'}:v1")
    return tmp_path / "layout"


def files_of(layout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(layout)): path.read_bytes() for path in layout.rglob("*") if path.is_file()}


def manifest_of(layout: Path, number: int = 0) -> dict[str, Any]:
    index = json.loads((layout / "index.json").read_bytes())
    found: dict[str, Any] = json.loads(blob(layout, index["manifests"][number]["digest"]).read_bytes())
    return found


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def resolved(cache: KernelCache, source: str = EMPTY) -> Target:
    cache.session.toolchain = NO_COMPILER  # type: ignore[assignment]
    return resolutions_of(cached_kernel(source, cache=cache)).for_device(Target(8, 0)).artifact.target


# -- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_same_entries_give_the_same_digests(filled: KernelCache, layout: Path, tmp_path: Path) -> None:
    """The digests depend neither on time, directory or cache, nor on a second export in place."""
    other = open_cache(tmp_path / "other")
    other.import_bundle(f"oci:{layout}")
    other.export_bundle(f"oci:{tmp_path / 'second'}:v1")
    before = files_of(layout)
    filled.export_bundle(f"oci:{layout}:v1")

    assert files_of(tmp_path / "second") == files_of(layout) == before


@pytest.mark.slow
def test_image_says_what_is_in_it(layout: Path) -> None:
    """Targets and kernels, and the GPUs in the form that operators of model caches expect; also as labels."""
    manifest = manifest_of(layout)
    about = manifest["annotations"]
    config = json.loads(blob(layout, manifest["config"]["digest"]).read_bytes())

    assert config["config"]["Labels"] == about
    assert about["io.github.numba-kcache.targets"] == "compute_80,sm_80"
    assert about["io.github.numba-kcache.kernels"] == "k,two"
    assert about["cache.triton.image/entry-count"] == "3"
    assert json.loads(about["cache.triton.image/summary"]) == {
        "targets": [{"arch": "80", "backend": "cuda", "warp_size": 32}]
    }


@pytest.mark.slow
def test_layer_is_an_archive_that_others_unpack(layout: Path, filled: KernelCache, tmp_path: Path) -> None:
    """It holds the bundle under the folder that operators use, and as kernels.kcache; its size is that of the label."""
    manifest = manifest_of(layout)
    filled.export_bundle(tmp_path / "all.kcache")
    with tarfile.open(blob(layout, manifest["layers"][0]["digest"]), "r:gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    config = json.loads(blob(layout, manifest["config"]["digest"]).read_bytes())
    tar = gzip.decompress(blob(layout, manifest["layers"][0]["digest"]).read_bytes())

    whole = (tmp_path / "all.kcache").read_bytes()
    assert (tmp_path / "unpacked/kernels.kcache").read_bytes() == whole
    assert (tmp_path / "unpacked/io.triton.cache/kernels.kcache").read_bytes() == whole
    assert manifest["annotations"]["cache.triton.image/cache-size-bytes"] == str(len(whole))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}"]


@pytest.mark.slow
def test_tags_of_one_layout_lead_to_their_images(filled: KernelCache, layout: Path, tmp_path: Path) -> None:
    """A tag that is written again leads to the new image, and the others stay. The default tag is `latest`."""
    filled.export_bundle(f"oci:{layout}", arch="compute_80")
    filled.export_bundle(f"oci:{layout}:old")
    filled.export_bundle(f"oci:{layout}:old", arch="sm_80")

    def entries(place: str) -> int:
        return open_cache(tmp_path / "new").register_bundle(place).entries

    assert entries(f"oci:{layout}:v1") == 3
    assert entries(f"oci:{layout}:old") == 2
    assert entries(f"oci:{layout}") == entries(f"oci:{layout}:latest") == 1
    with pytest.raises(BundleError, match=r"0 images with the tag 'v2'; its tags are latest, old, v1"):
        entries(f"oci:{layout}:v2")


@pytest.mark.parametrize("holder", ["another export", "a stopped process"])
def test_tag_written_at_the_same_time_is_not_lost(
    filled: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    """The index is read and written under a lock, for whose owner an export waits a bounded time."""
    layout, locked, waits = tmp_path / "layout", image.within, []
    layout.mkdir()
    stopped = os.open(layout, os.O_RDONLY) if holder == "a stopped process" else -1
    if stopped >= 0:
        fcntl.flock(stopped, fcntl.LOCK_EX)

    def lock(seconds: float, work: Callable[[], object], late: str) -> object:
        waits.append(seconds)
        if len(waits) == 1:
            filled.export_bundle(f"oci:{layout}:second")
        return locked(0.01 if stopped >= 0 else seconds, work, late)

    monkeypatch.setattr(image, "within", lock)
    filled.export_bundle(f"oci:{layout}:first")
    if stopped >= 0:
        os.close(stopped)

    assert waits == [image.INDEX_WAIT_S] * 2
    for tag in ("first", "second"):
        assert open_cache(tmp_path / "new").register_bundle(f"oci:{layout}:{tag}").entries == 3


def test_directory_with_something_else_is_left_as_it_is(filled: KernelCache, tmp_path: Path) -> None:
    """Foreign files, a folder of blobs that is a link, and a name that is no regular file are not overwritten."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(BundleError, match="neither empty nor an OCI image layout"):
        filled.export_bundle(f"oci:{tmp_path / 'mine'}")
    assert files_of(tmp_path / "mine") == {"letter.txt": b"dear"}

    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
    (tmp_path / "linked/blobs").symlink_to(tmp_path / "mine")
    with pytest.raises(BundleError, match="cannot write the image"):
        filled.export_bundle(f"oci:{tmp_path / 'linked'}")
    assert files_of(tmp_path / "mine") == {"letter.txt": b"dear"}

    with pytest.raises(BundleError, match="cannot write the image"):
        filled.export_bundle(f"oci:{tmp_path / 'mine/letter.txt'}")


def test_command_line_writes_and_reads_images(
    filled: KernelCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly one of FILE and --oci is accepted."""
    place, directory = str(tmp_path / "cli"), ["--directory", str(tmp_path / "filled")]
    assert main(["export", "--oci", f"{place}:v1", *directory]) == 0
    assert f"wrote oci:{place}:v1: 3 entries" in capsys.readouterr().out
    assert main(["import", f"oci:{place}:v1", "--directory", str(tmp_path / "new")]) == 0
    assert "3 entries" in capsys.readouterr().out

    assert main(["export", *directory]) == main(["export", "x.kcache", "--oci", place, *directory]) == 2
    assert "either FILE or --oci" in capsys.readouterr().err


# -- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["imported", "registered", "tier"])
def test_image_serves_what_is_in_it(layout: Path, tmp_path: Path, way: str) -> None:
    """It serves without a compiler, in a frozen cache, and from a layout that cannot be written to."""
    for path in (*layout.rglob("*"), layout):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache = open_cache(tmp_path / "new", mode="frozen", **({"tiers": f"oci:{layout}:v1"} if way == "tier" else {}))
    if way == "imported":
        open_cache(tmp_path / "new").import_bundle(f"oci:{layout}:v1")
    elif way == "registered":
        cache.register_bundle(f"oci:{layout}")

    assert resolved(cache) == resolved(cache, TWO) == Target(8, 0)


def test_registered_image_outlives_its_layout(layout: Path, tmp_path: Path) -> None:
    """The unpacked file has no name: no file is left behind, and none can be put in its place."""
    cache = open_cache(tmp_path / "new", mode="frozen")
    cache.register_bundle(f"oci:{layout}")
    shutil.rmtree(layout)

    assert resolved(cache) == Target(8, 0)


def test_program_that_closes_descriptors_loses_no_image(layout: Path) -> None:
    """A daemon closes all descriptors that it does not know: the image is then unpacked again."""
    before = links()
    settings = KernelCache(layout.parent / "c").session.settings
    bundle = BundleTier("image", lambda: open_any(f"oci:{layout}", settings))
    keys = bundle.keys(1)
    (number,) = [each for each, link in links().items() if "(deleted)" in link and before.get(each) != link]
    os.close(int(number))

    assert all(bundle.get(1, key) for key in keys)


def links() -> dict[str, str]:
    """The target of each open descriptor."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def test_image_in_tiers_that_is_damaged_is_a_miss(layout: Path, tmp_path: Path) -> None:
    """One warning and a count; the kernel compiles."""
    manifest = manifest_of(layout)
    flip(blob(layout, manifest["layers"][0]["digest"]), 700)
    cache = open_cache(tmp_path / "new", tiers=f"oci:{layout}")
    with pytest.warns(KCacheWarning, match="was damaged"):
        resolutions_of(cached_kernel(EMPTY, cache=cache)).for_device(Target(8, 0))

    assert cache.info("process").compiles == 1


def test_signature_of_the_bundle_is_that_of_its_image(filled: KernelCache, layout: Path, tmp_path: Path) -> None:
    """An image that no trusted key signed is refused."""
    secret, trusted = make_key(tmp_path / "team.pem")
    signer = open_cache(tmp_path / "filled", signing_key=secret)
    report = signer.export_bundle(f"oci:{tmp_path / 'signed'}")
    reader = open_cache(tmp_path / "new", trusted_keys=trusted)

    assert manifest_of(tmp_path / "signed")["annotations"]["io.github.numba-kcache.signed-by"] == report.signed_by
    assert reader.register_bundle(f"oci:{tmp_path / 'signed'}").signed_by == "team"
    with pytest.raises(BundleError, match="it is not signed"):
        reader.import_bundle(f"oci:{layout}")


# -- attacks ----------------------------------------------------------------------------------------------------


def why_refused(layout: Path, tmp_path: Path) -> str:
    """The reason for which a layout is refused, by import and by registering; nothing of it is stored."""
    cache = open_cache(tmp_path / "untouched")
    for use in (cache.register_bundle, cache.import_bundle):
        with pytest.raises(BundleError) as caught:
            use(f"oci:{layout}")
    assert not (tmp_path / "untouched").exists()
    return str(caught.value)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << at % 8
    path.write_bytes(data)


@pytest.mark.slow
def test_changed_byte_of_any_blob_is_refused(tmp_path: Path) -> None:
    """Manifest, config and layer, at sixty offsets of each; the unchanged layout is accepted."""
    layout = forged(tmp_path, small_bundle(tmp_path))
    chance = random.Random(3)
    for path in sorted((layout / "blobs/sha256").iterdir()):
        data = path.read_bytes()
        for at in [0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(60))]:
            flip(path, at)
            with pytest.raises(BundleError, match="was damaged"):
                open_any(f"oci:{layout}", open_cache(tmp_path / "c").session.settings)
            path.write_bytes(data)
    assert open_any(f"oci:{layout}", open_cache(tmp_path / "c").session.settings).report.entries == 1


def put_blob(layout: Path, data: bytes, kind: str = "x") -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (layout / "blobs/sha256" / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def zeros(size_bytes: int) -> bytes:
    """So many zeros as gzip, which joins the contents of members that follow each other."""
    return gzip.compress(bytes(1 << 20)) * (size_bytes >> 20) + gzip.compress(bytes(size_bytes % (1 << 20)))


def archive_of(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar archive of names, types and contents."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = "" if kind == tarfile.REGTYPE else content.decode()
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


def forged(tmp_path: Path, bundle: bytes = b"", *, layer: bytes | None = None, **changes: Any) -> Path:
    """A forger's layout: any layer and any fields, under digests that fit."""
    layout = tmp_path / "forged"
    shutil.rmtree(layout, ignore_errors=True)
    layout.mkdir()
    if layer is None:
        layer = gzip.compress(archive_of(("kernels.kcache", tarfile.REGTYPE, bundle)))
    kind = changes.get("kind", TAR + "+gzip")
    layers = [{**put_blob(layout, layer, kind), **changes.get("layer_row", {})}]
    manifest = {"config": put_blob(layout, b"{}"), "layers": layers, **changes.get("manifest", {})}
    row = put_blob(layout, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    index = {"manifests": [{**row, **changes.get("row", {})}], **changes.get("index", {})}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return layout


EMPTY_BUNDLE = form.PREFIX.pack(form.MAGIC, form.FORMAT, 0, 0, 0) + bytes(form.DIGEST_BYTES)
UP = "sha256:" + "../" * 21 + "x"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"row": {"digest": UP}}, "is not the digest of a blob"),
        ({"row": {"digest": "sha512:" + "0" * 128}}, "is not the digest of a blob"),
        ({"row": {"digest": "sha256:" + "0" * 64}}, "it is not a complete OCI image layout"),
        ({"row": {"size": 1 << 40}}, "a blob in it has 1099511627776 bytes; at most"),
        ({"row": {"size": -1}}, "a blob in it has a negative size"),
        ({"row": {"size": 3}}, "bytes, but 3 were written"),
        ({"row": {"size": "3"}}, "index.json is malformed"),
        ({"row": {"mediaType": "application/vnd.oci.image.index.v1+json"}}, "its image is of the type"),
        ({"index": {"manifests": []}}, "it has 0 images"),
        ({"index": {"manifests": {}}}, "index.json is malformed"),
        ({"manifest": {"layers": []}}, "a config and one layer"),
        ({"manifest": {"config": None}}, "a config and one layer"),
        ({"layer_row": {"digest": UP}}, "is not the digest of a blob"),
        ({"layer_row": {"size": 1 << 62}}, "a blob in it has"),
        ({"kind": TAR + "+zstd"}, "neither tar nor tar"),
        ({"layer": b"no gzip"}, "Not a gzipped file"),
        ({"layer": gzip.compress(b"no tar" * 200)}, "not a tar archive"),
        ({"layer": gzip.compress(archive_of(("a", tarfile.REGTYPE, random.randbytes(5000))))[:-3000]}, "ended before"),
        ({"layer": gzip.compress(archive_of(("a", tarfile.REGTYPE, b"x")))}, "holds no files .kcache"),
        ({"layer": gzip.compress(archive_of(("a.kcache", tarfile.SYMTYPE, b"/etc/passwd")))}, "holds no files .kcache"),
        ({"layer": gzip.compress(archive_of(*[("a.kcache", tarfile.REGTYPE, EMPTY_BUNDLE)] * 2))}, "holds 2 files"),
        ({"layer": gzip.compress(archive_of(("a.kcache", tarfile.REGTYPE, b"x")))}, "it is not a bundle"),
        ({"layer": gzip.compress(archive_of(("a.kcache", tarfile.REGTYPE, b"x"))[:600])}, "cut short"),
        ({"layer": zeros(1 << 28)}, "holds no files .kcache"),
    ],
)  # fmt: skip
def test_forged_image_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Digests that are paths, impossible sizes, archives with other contents."""
    assert why in why_refused(forged(tmp_path, **changes), tmp_path)


@pytest.mark.slow
def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that pack well behind a header that promises a gigabyte: neither disk nor memory is spent on them."""
    import resource

    bundle = archive_of(("a.kcache", tarfile.REGTYPE, b""))[:512]
    front = bundle[:124] + b"%011o\0" % (1 << 30) + bundle[136:148] + b" " * 8 + bundle[156:]
    header = front[:148] + b"%06o\0 " % sum(front) + front[156:]
    layout = forged(tmp_path, layer=gzip.compress(header) + zeros(1 << 28))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert "a file of 1073741824 bytes in its layer is too large" in why_refused(layout, tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def packed_zeros(name: str, front: bytes, size_bytes: int) -> bytes:
    """A layer with one file that begins with `front` and goes on with zeros, in 0.1 % of its size."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    begun = gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + front)
    return begun + zeros(size_bytes - len(front) + -size_bytes % 512 + 1024)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.kcache", "other"])
def test_layer_unpacks_to_no_more_than_its_size_and_one_kernel(tmp_path: Path, name: str) -> None:
    """A file of 200 MiB in a layer of 1 MiB is refused by its header, whether it is the bundle or is skipped."""
    layout = forged(tmp_path, layer=packed_zeros(name, EMPTY_BUNDLE, 200 << 20))

    assert f"a file of {200 << 20} bytes in its layer is too large" in why_refused(layout, tmp_path)


@pytest.mark.slow
def test_bundle_of_another_size_than_it_states_is_refused_at_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 100 MiB behind a bundle's first bytes, which state forty, none is unpacked."""
    read, taken = gzip.GzipFile.read, list[int]()

    def counted(file: gzip.GzipFile, size: int = -1) -> bytes:
        taken.append(size)
        return read(file, size)

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    layout = forged(tmp_path, layer=packed_zeros("a.kcache", EMPTY_BUNDLE, 100 << 20))

    assert "bytes, but 40 were written" in why_refused(layout, tmp_path)
    assert sum(taken) <= 2 * (512 + (1 << 20))


def test_image_that_takes_long_to_unpack_is_refused_at_a_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do; a call that opens it on purpose takes its time."""
    monkeypatch.setattr(image, "UNPACK_S", -1.0)
    source, settings = f"oci:{forged(tmp_path, small_bundle(tmp_path))}", open_cache(tmp_path / "c").session.settings
    with pytest.raises(BundleError, match=r"takes more than -1 s, too long for a launch: import it"):
        open_any(source, settings, is_awaited=True)

    assert open_any(source, settings).report.entries == 1


def a_link(path: Path, target: Path) -> None:
    shutil.move(path, target)
    path.symlink_to(target)


@pytest.mark.parametrize("which", ["index.json", "oci-layout", "blobs", "blobs/sha256", "blob"])
def test_link_in_a_layout_is_not_followed(tmp_path: Path, which: str) -> None:
    """A link in place of a blob, an index or a folder is refused, though it leads to the right content."""
    layout = forged(tmp_path, small_bundle(tmp_path))
    path = next((layout / "blobs/sha256").iterdir()) if which == "blob" else layout / which
    a_link(path, tmp_path / "elsewhere")

    assert "cannot use the bundle" in why_refused(layout, tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_pipe_or_folder_for_a_blob_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Reading does not block on a pipe."""
    layout = forged(tmp_path, small_bundle(tmp_path))
    for path in (layout / "blobs/sha256").iterdir():
        path.unlink()
        make(path)

    assert "cannot use the bundle" in why_refused(layout, tmp_path)


def test_layout_without_one_is_said(tmp_path: Path) -> None:
    """The error covers a missing directory, an empty one, and a layout of another version."""
    assert "No such file" in why_refused(tmp_path / "nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "it is not a complete OCI image layout" in why_refused(tmp_path / "empty", tmp_path)
    (tmp_path / "empty/oci-layout").write_text('{"imageLayoutVersion":"2"}')
    assert "not of version 1.0.0" in why_refused(tmp_path / "empty", tmp_path)


# -- other tools ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_skopeo_reads_copies_and_repacks_an_image(layout: Path, tmp_path: Path) -> None:
    """skopeo inspects it, copies it, and converts it through a Docker archive, which packs the layer again."""

    def skopeo(*words: str) -> str:
        command = [program("skopeo"), "--insecure-policy", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    shown = json.loads(skopeo("inspect", f"oci:{layout}:v1"))
    skopeo("copy", f"oci:{layout}:v1", f"oci:{tmp_path / 'copied'}:there")
    skopeo("copy", f"oci:{layout}:v1", f"docker-archive:{tmp_path / 'image.tar'}:kernels:v1")
    skopeo("copy", f"docker-archive:{tmp_path / 'image.tar'}", f"oci:{tmp_path / 'repacked'}:again")

    assert shown["Labels"] == manifest_of(layout)["annotations"]
    assert manifest_of(tmp_path / "copied") == manifest_of(layout)
    for place in ("copied:there", "repacked:again"):
        cache = open_cache(tmp_path / "new", mode="frozen")
        assert cache.register_bundle(f"oci:{tmp_path / place}").entries == 3
        assert resolved(cache) == Target(8, 0)
