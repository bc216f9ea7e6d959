"""Verbs for the entries of a cache: list, show, explain, verify, remove, export, import, push, pull, report."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

from ..engine.inspection import keys_named
from ..errors import EntryError, KCacheError, SettingsError, plain
from ..frontends import require_lasting
from ..model import BUILT
from ..observe.console import count, say, seconds
from ..observe.detail import EntryList
from ..observe.text import bytes_text, entries_text
from ..settings import size_bytes
from .verb import Result, arch_argument, argument, import_from_here, targets_of, verb

if TYPE_CHECKING:
    from ..cache import KernelCache


@verb(argument("--zero", help="reset all counters and recorded failures; entries stay", action="store_true"))
def _info(cache: KernelCache, arguments: Namespace) -> Result:
    """Show what the cache holds and what it has saved.

    The counts cover all processes since the cache was made or they were reset. A hit or a miss is counted once for
    each kernel, target and signature in a process; launches count nothing.
    """
    if arguments.zero:
        cache.forget_statistics()
    cache.ask_tiers()
    found = cache.info()
    return Result(found.to_dict(), str(found))


_ORDERS = "most recently used first (default), largest, longest to compile, or most hits first"


@verb(
    argument("--sort", help=_ORDERS, choices=("age", "size", "cost", "hits"), default="age"),
    argument("--limit", help="most entries shown; 0 for all; default: 50, or all with --json", metavar="N", type=count),
)
def _list(cache: KernelCache, arguments: Namespace) -> Result:
    """List the entries in the cache.

    The columns are key, kernels, target, size, time since the last use (to the hour), compile time and hits. In
    a pipe each entry is one line: numba-kcache list --limit 0 | grep saxpy
    """
    limit = arguments.limit if arguments.limit is not None else 0 if arguments.json else 50
    entries = cache.listing(arguments.sort, limit or None)
    if arguments.json:
        return Result([each.to_dict() for each in entries], "")
    shown, held = EntryList(entries), cache.info()
    last = f"{entries_text(max(held.entries, len(entries)))} in {held.directory or 'memory'}"
    last += f", {bytes_text(held.size_bytes)}"
    if len(entries) == limit < held.entries:
        last = f"{limit} of {last}; --limit 0 shows all"
    elif held.entries > len(entries):
        last += f"; {held.entries - len(entries)} cannot be read: `numba-kcache verify` says why"
    if held.obstacle:
        last += f"\n{held.directory or 'the directory'} cannot be used: {held.obstacle}"
    return Result(None, last, rows=(shown.COLUMNS, shown.rows(), shown.NUMBERS))


@verb(
    argument("key", help="a key of `list`, or its first digits", metavar="KEY"),
    argument("--cubin", help="write the machine code to FILE", metavar="FILE"),
    argument("--ptx", help="write the PTX to FILE, if it was kept", metavar="FILE"),
)
def _show(cache: KernelCache, arguments: Namespace) -> Result:
    """Show all that is known of one entry.

    That is: its kernels with their parameters, registers and memory; the components of its key; when it
    was compiled; the log of the compilers.
    """
    found = cache.entry(arguments.key)
    for path, name, what in (arguments.cubin, "cubin", "machine code"), (arguments.ptx, "ptx", "PTX"):
        if path is not None:
            code = b"" if found.artifact.kind == BUILT else getattr(found.artifact, name)
            if not code:
                raise KCacheError(
                    f"cannot write the {what} of {found.key[:12]}",
                    "the entry holds none",
                    "compile it with keep_ptx=True",
                )
            with open(path, "wb") as file:
                file.write(code)
            say(f"wrote {len(code)} bytes to {path}")
    return Result(found.to_dict(), str(found))


@verb(
    argument(
        "what",
        help="a key or kernel's name of `list`, or a kernel of a module or .py file",
        metavar="KEY|NAME|MODULE:KERNEL",
    ),
    arch_argument("the target: sm_90, or native; default: the kernel's own, or the device"),
    argument("--signature", help="the signature of a Numba kernel: 'void(float32[:])'", metavar="TYPES"),
)
def _explain(cache: KernelCache, arguments: Namespace) -> Result:
    """Explain why a kernel is, or is not, served from the cache.

    For a kernel: a hit, or every difference from the nearest stored entry, each with the next step. The
    module is imported, and nothing is compiled. For a key, or the name of a stored kernel: its entry (the one
    used last), and how the other entries of the same kernel differ from it. Exits with 1 if the kernel is not
    in the cache.
    """
    targets = targets_of(arguments) or []
    if len(targets) > 1:
        raise SettingsError("cannot explain", f"--arch names {len(targets)} targets", "name one at a time")
    found = cache.explain(_kernel(arguments.what), targets[0] if targets else None, arguments.signature)
    return Result(found.to_dict(), str(found), 0 if found.is_hit else 1)


def _kernel(text: str) -> Any:
    """Load the kernel named by `module:name` or `file.py:name`; return a key, or a name alone, unchanged.

    The name is that of an attribute, however deep, or of a kernel that `warm` finds in the module.
    """
    module, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not colon and not text.endswith(".py"):
        return text
    from ..warmup.discovery import kernels_of, load_module

    import_from_here()
    found: Any = load_module(module)
    kernels: dict[str, Any] = {}
    with suppress(AttributeError):
        return reduce(getattr, name.split("."), found)
    with suppress(EntryError):  # there are none
        kernels = {each.__name__.rpartition(".")[2]: each for each in kernels_of(found)}
    if len(kernels) == 1:
        name = name or next(iter(kernels))
    if name in kernels:
        return kernels[name]
    why = f"{module} has no {name}" if name else f"{module} has {len(kernels)} kernels"
    names = " or ".join(f"{module}:{each}" for each in kernels or ["KERNEL"])
    raise EntryError(f"cannot explain {text!r}", why, f"write {names}")


@verb()
def _verify(cache: KernelCache, arguments: Namespace) -> Result:
    """Read every file in full and quarantine damaged ones.

    Each file is checked against its digest, its key and the digests of its parts, and each entry against its
    own code: target, kernels, parameters and variables. Damaged files are moved to the quarantine folder, and
    the next launch compiles their kernels again. Files that the cache did not make (links, devices, files of
    other names) stay. Exits with 1 if a damaged file was found.
    """
    problems = cache.verify()
    lines = [f"{each.key[:12]}  {plain(each.reason)}" for each in problems]
    lines.append(f"{len(problems)} damaged, {cache.info().entries} whole")
    return Result({"damaged": [each._asdict() for each in problems]}, "\n".join(lines), 1 if problems else 0)


@verb(
    argument("--max-size", help="remove entries until the cache has this size: 512MB, 2GiB", metavar="SIZE"),
    argument("--older-than", help="remove entries unused for this long: 30d, 12h", metavar="AGE", type=seconds),
)
def _prune(cache: KernelCache, arguments: Namespace) -> Result:
    """Remove the least recently used entries.

    Without options, entries are removed until the cache is within its limits.
    """
    try:
        limit = None if arguments.max_size is None else size_bytes(arguments.max_size)
    except ValueError as error:
        what = f"cannot use --max-size {arguments.max_size}"
        raise SettingsError(what, str(error), "write --max-size 512MB") from None
    return _removed(cache, cache.prune(limit, arguments.older_than))


@verb(
    argument(
        "which", help="a key of `list` or its first digits, or a kernel's name: saxpy, 'gemm*'", metavar="KEY|PATTERN"
    ),
)
def _remove(cache: KernelCache, arguments: Namespace) -> Result:
    """Remove one entry by its key, or all that have a kernel of a name.

    A pattern must match the whole name of a kernel: * matches any text, ? one character. A word that could be
    a key or a name is a name if there is such a kernel. Exits with 1 if nothing matches.
    """
    which = arguments.which
    found = keys_named(cache.session, which)
    if not found and not which.strip("0123456789abcdef"):
        found = sorted({file.key for file in cache.session.local.find(which)} if which else ())
        if len(found) > 1:
            why = f"{len(found)} keys in {cache.directory or 'memory'} begin with it"
            raise EntryError(f"cannot remove {which!r}", why, "give more of its digits")
    if not found:
        why = f"no key in {cache.directory or 'memory'} begins with it, and no kernel has this name"
        raise EntryError(f"cannot remove {which!r}", why, "`numba-kcache list` shows both")
    return _removed(cache, cache.remove(*found))


@verb()
def _clear(cache: KernelCache, arguments: Namespace) -> Result:
    """Remove every entry.

    The counts that `info` shows are kept. Kernels are compiled again at their next use.
    """
    return _removed(cache, cache.clear())


def _removed(cache: KernelCache, entries: int) -> Result:
    if cache.session.local.readonly:
        why = f"nothing is removed in mode {cache.session.settings.mode}"
        raise KCacheError("cannot remove entries", why, "set mode='readwrite'")
    left = cache.info()
    text = f"removed {entries_text(entries)}, {left.entries} left in {left.directory or 'memory'}"
    return Result({"removed": entries, "entries": left.entries, "size_bytes": left.size_bytes}, text)


@verb(
    argument("file", help="the bundle to write: kernels.kcache", metavar="FILE", nargs="?"),
    argument("--oci", help="write it as an image into this OCI image layout", metavar="DIRECTORY[:TAG]"),
    argument("--kernels", help="only the kernels of these modules", metavar="MODULE|FILE", action="append"),
    arch_argument("only code for these targets: sm_80,sm_90, or native"),
    argument("--sign", help="fail if it cannot be signed", action="store_true"),
)
def _export(cache: KernelCache, arguments: Namespace) -> Result:
    """Write entries into a bundle: one file, or an OCI image.

    The same entries give the same bytes. The bundle is signed if a signing key is set. With --kernels the
    modules are imported; without it, neither CUDA nor Numba is needed.
    """
    if (arguments.file is None) is (arguments.oci is None):
        raise SettingsError("cannot export", "it takes either FILE or --oci DIRECTORY[:TAG]", "give one of them")
    path, targets, sign = arguments.file or f"oci:{arguments.oci}", targets_of(arguments), arguments.sign or None
    if arguments.kernels:
        import_from_here()
    return _shipped("wrote", cache.export_bundle(path, arguments.kernels, targets, sign=sign))


@verb(argument("file", help="the bundle, package:resource.kcache, or oci:DIRECTORY[:TAG]", metavar="FILE"))
def _import(cache: KernelCache, arguments: Namespace) -> Result:
    """Verify a bundle as a whole, then add its entries.

    An entry whose key the cache already has is not replaced.
    """
    require_lasting(cache.session, "import a bundle")
    return _shipped("imported", cache.import_bundle(arguments.file))


def _shipped(done: str, report: Any) -> Result:
    held = f"{entries_text(report.entries)} for {', '.join(report.targets)}, {bytes_text(report.size_bytes)}"
    signed = f"signed by {report.signed_by}" if report.signed_by else "not signed"
    return Result(report._asdict(), f"{done} {report.path}: {held}, {signed}")


_TIER = argument("tier", help="redis://host/0, s3://bucket/path, a directory", metavar="TIER", nargs="?")


@verb(_TIER)
def _push(cache: KernelCache, arguments: Namespace) -> Result:
    """Copy entries to a tier that lacks them.

    TIER is an address as in the setting `tiers`; the default is the first writable tier of the setting.
    Every entry is verified before it is copied. Exits with 1 if some could not be copied.
    """
    return _moved("to", cache.push(arguments.tier))


@verb(_TIER)
def _pull(cache: KernelCache, arguments: Namespace) -> Result:
    """Copy the entries of a tier into the cache.

    TIER is an address as in the setting `tiers`; the default is the first tier of the setting.
    Every entry is verified before it is copied. Exits with 1 if some could not be copied.
    """
    require_lasting(cache.session, "pull")
    return _moved("from", cache.pull(arguments.tier))


def _moved(way: str, moved: Any) -> Result:
    done = f"copied {entries_text(moved.entries)} {way} {moved.tier}, {bytes_text(moved.size_bytes)}"
    text = f"{done}; {moved.present} {'was' if moved.present == 1 else 'were'} there already, {moved.failed} failed"
    return Result(moved._asdict(), text, 1 if moved.failed else 0)


@verb(argument("file", help="where to write it; - for standard output", metavar="FILE.html"))
def _report(cache: KernelCache, arguments: Namespace) -> Result:
    """Write an HTML report about the cache.

    It shows the time saved on each day, hits, misses and their reasons, the kernels that cost most, sizes and
    evictions. The file is complete in itself and loads nothing from the network.
    """
    text = cache.report()
    if arguments.file == "-":
        return Result(text, text)
    with open(arguments.file, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Result({"file": arguments.file, "size_bytes": len(text.encode())}, f"wrote {arguments.file}")
