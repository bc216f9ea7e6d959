"""The command line: parses, calls, prints; decides nothing.

Promise     Exit codes: 0 fine, 1 something wrong was found or happened, 2 wrong usage. `--json` prints one JSON value
            and nothing else on standard output. No verb needs a GPU unless its help says so. Whatever the arguments and
            the cache hold, a verb ends with a result or a message, and all that it prints is plain text.
Method      A verb is a function that takes the process's cache and the parsed arguments and returns a `Result`; its
            docstring is its help. Modules that few verbs need are imported in these.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import CompileError, EntryError, KCacheError, SettingsError, plain, plain_lines
from .model import NamedTuple
from .model.artifact import BUILT
from .observe.console import Parser, count, fill_streams, json_text, put, say, seconds
from .observe.text import age_text, bytes_text, entries_text, seconds_text, table
from .store.entry import is_key
from .version import __version__

if TYPE_CHECKING:
    from .cache import KernelCache

_DESCRIPTION = """Look at, check and tidy the cache of compiled CUDA kernels that numba_kcache keeps.

The cache is a directory: --directory, else NUMBA_KCACHE_DIR, else the user's cache folder."""

_EPILOG = """exit codes: 0 fine, 1 something wrong was found or happened, 2 wrong usage"""


class Result(NamedTuple):
    """The outcome of a verb: the value that `--json` prints, the text for people, the exit code, a table above it."""

    value: Any
    text: str
    code: int = 0
    rows: tuple[Sequence[str], Sequence[Sequence[str]], Sequence[int]] | None = None


Verb = Callable[["KernelCache", argparse.Namespace], Result]
Argument = tuple[str, dict[str, Any]]

_VERBS: dict[str, tuple[Verb, tuple[Argument, ...]]] = {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after the program's name; None for the process's own.
    """
    fill_streams()
    parsed = make_parser().parse_args(arguments)
    if arguments is None and parsed.name in ("list", "report"):
        gc.disable()  # this process ends soon; collecting takes half the time of listing twenty thousand entries
    try:
        return _run(parsed)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _failed(f"cannot {parsed.name}: {error}")
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:  # of a module that is imported, or what nobody thought of
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _failed(f"cannot {parsed.name}: {type(error).__name__}: {error}, at {where.filename}:{where.lineno}")


def _run(parsed: argparse.Namespace) -> int:
    try:
        from .cache import configure, process_cache

        if parsed.directory is not None:
            configure(directory=parsed.directory)
        value, text, code, rows = parsed.verb(process_cache, parsed)
        above = "" if rows is None or parsed.json else f"{table(*rows)}\n\n"
        put(json_text(value) if parsed.json else above + plain_lines(text))
        return int(code)
    except KCacheError as error:
        if parsed.json:
            put(json_text({"error": {"what": error.what, "why": error.why, "hint": error.hint}}))
        else:
            _failed(str(error))
        return 2 if isinstance(error, SettingsError) else 1


def _failed(text: str) -> int:
    say(f"numba-kcache: {text}")
    return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of every verb."""
    form: Any = {"epilog": _EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser("numba-kcache", description=_DESCRIPTION, **form)
    parser.add_argument("--version", action="version", version=f"numba-kcache {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="name")
    for name, (verb, arguments) in _VERBS.items():
        description = inspect.getdoc(verb) or ""
        own = verbs.add_parser(name, help=description.partition("\n")[0], description=description, **form)
        own.set_defaults(verb=verb)
        own.add_argument("--directory", metavar="DIR", help="the cache's directory")
        own.add_argument("--json", action="store_true", help="print JSON")
        for argument, settings in arguments:
            own.add_argument(argument, **settings)
    return parser


def _verb(*arguments: Argument) -> Callable[[Verb], Verb]:
    """Make a function the verb of its name, with these arguments."""

    def add(verb: Verb) -> Verb:
        _VERBS[verb.__name__.strip("_")] = verb, arguments
        return verb

    return add


def _argument(name: str, help: str, **settings: Any) -> Argument:
    return name, {"help": help, **settings}


# -- verbs, in the order of the help ---------------------------------------------------------------------------


@_verb()
def _info(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Show what the cache holds and what it has saved.

    The counts are over all processes since the cache began. A hit or a miss is counted once for
    each kernel, target and signature in a process; launches count nothing.
    """
    cache.ask_tiers()
    found = cache.info()
    return Result(found.to_dict(), str(found))


_ORDERS = "used last first (default), largest, longest to compile, or most hits first"


@_verb(
    _argument("--sort", _ORDERS, choices=("age", "size", "cost", "hits"), default="age"),
    _argument("--limit", "how many: 50, or all with --json; 0 for all", metavar="N", type=count),
)
def _list(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """List the entries in the cache.

    Key, kernels, target, size, time since it was last used (to the hour), compile time and hits.
    """
    limit = arguments.limit if arguments.limit is not None else 0 if arguments.json else 50
    entries = cache.listing(arguments.sort, limit or None)
    if arguments.json:
        return Result([each.to_dict() for each in entries], "")
    now_s, rows = time.time(), []
    for each in entries:
        more = f" and {len(each.kernels) - 3} more" if len(each.kernels) > 3 else ""
        kernels, size, used = ", ".join(each.kernels[:3]) + more, bytes_text(each.size_bytes), now_s - each.used_s
        times = age_text(used), seconds_text(each.compile_time_s)
        rows.append((each.key[:12], kernels, each.target, size, *times, str(each.hits)))
    columns = ("key", "kernels", "target", "size", "used", "compiled in", "hits")
    held = cache.info()
    total = f"{entries_text(max(held.entries, len(entries)))} in {held.directory or 'memory'}"
    last = f"{total}, {bytes_text(held.size_bytes)}"
    if held.entries > len(entries):
        last = f"{len(entries)} of {last}; --limit 0 shows all"
    if held.obstacle:
        last += f"\n{held.directory} cannot be used: {held.obstacle}"
    return Result(None, last, rows=(columns, rows, range(3, 7)))


@_verb(
    _argument("key", "a key of `list`, or its first digits", metavar="KEY"),
    _argument("--cubin", "write the machine code to FILE", metavar="FILE"),
    _argument("--ptx", "write the PTX to FILE, if it was kept", metavar="FILE"),
)
def _show(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Show all that is known of one entry.

    Kernels with their parameters, registers and memory; what is in its key; where and when it was
    compiled; what the compilers said.
    """
    found = cache.entry(arguments.key)
    for path, name, what in (arguments.cubin, "cubin", "machine code"), (arguments.ptx, "ptx", "PTX"):
        if path is not None:
            code = b"" if found.artifact.kind == BUILT else getattr(found.artifact, name)
            if not code:
                raise KCacheError(f"cannot write the {what} of {found.key[:12]}", "the entry holds none")
            with open(path, "wb") as file:
                file.write(code)
            say(f"wrote {len(code)} bytes to {path}")
    return Result(found.to_dict(), str(found))


@_verb(
    _argument("what", "a key of `list`, or a kernel of a module or .py file", metavar="KEY|MODULE:KERNEL"),
    _argument("--arch", "the target: sm_90; default: the kernel's own, or the device", metavar="ARCH"),
    _argument("--signature", "of a Numba kernel: 'void(float32[:])'", metavar="TYPES"),
)
def _explain(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Explain why a kernel is, or is not, served from the cache.

    Of a kernel: a hit, or every difference from the nearest entry that is stored, with what to do. The
    module is imported, and nothing is compiled. Of a key: what it is and how other entries of its kernel
    differ from it. Exits with 1 if the kernel is not in the cache.
    """
    found = cache.explain(_kernel(arguments.what), arguments.arch, arguments.signature)
    return Result(found.to_dict(), str(found), 0 if found.is_hit else 1)


def _kernel(text: str) -> Any:
    """The kernel that `module:name` or `file.py:name` names; a key as it is."""
    module, colon, name = text.rpartition(":")
    if not colon:
        return text
    from .warmup.discovery import load_module

    found: Any = load_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise EntryError(f"cannot explain {text!r}", f"{module} has no {name or 'kernel of no name'}")
        found = getattr(found, part)
    return found


@_verb()
def _verify(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Read every file in full and set aside what is damaged.

    Each file is held against its digest, its key and the digests of its parts, and each entry against its
    own code: target, kernels, parameters and variables. Damaged files go to the quarantine folder, and the
    next launch compiles them again. What is not the cache's own (links, devices, files of other names) is
    named and left. Exits with 1 if there was any of this.
    """
    problems = cache.verify()
    lines = [f"{each.key[:12] if is_key(each.key) else plain(each.key)}  {plain(each.reason)}" for each in problems]
    damaged = sum(is_key(each.key) for each in problems)
    others = f", {len(problems) - damaged} not the cache's" if len(problems) > damaged else ""
    lines.append(f"{damaged} damaged, {cache.info().entries} whole{others}")
    return Result({"damaged": [each._asdict() for each in problems]}, "\n".join(lines), 1 if problems else 0)


@_verb(
    _argument("--max-size", "get down to this size: 512MB, 2GiB", metavar="SIZE"),
    _argument("--older-than", "remove what was not used for: 30d, 12h", metavar="AGE", type=seconds),
)
def _prune(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Remove the entries that were used longest ago.

    Without options: down to the cache's own limits.
    """
    from .settings import size_bytes

    try:
        limit = None if arguments.max_size is None else size_bytes(arguments.max_size)
    except ValueError as error:
        raise SettingsError(f"cannot use --max-size {arguments.max_size}", str(error)) from None
    return _removed(cache, cache.prune(limit, arguments.older_than))


@_verb()
def _clear(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Remove every entry.

    The counts that `info` shows stay. Kernels compile again when used.
    """
    return _removed(cache, cache.clear())


def _removed(cache: KernelCache, entries: int) -> Result:
    left = cache.info()
    text = f"removed {entries_text(entries)}, {left.entries} left in {left.directory or 'memory'}"
    return Result({"removed": entries, "entries": left.entries, "size_bytes": left.size_bytes}, text)


@_verb(
    _argument("what", "a module's dotted name, or a .py file", metavar="MODULE|FILE", nargs="+"),
    _argument("--arch", "a target: sm_80; may be given several times", metavar="ARCH", action="append"),
    _argument("--workers", "processes that compile; default: one for each core", metavar="N", type=count),
)
def _warm(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Compile the kernels of modules ahead.

    The modules are imported, and what they decorate with cached_kernel or cached_module is compiled for
    each target and stored; what is there already is left. With --arch no GPU is needed. Numba kernels need
    signature=. Exits with 1 if some kernels could not be compiled; the others are stored.
    """
    error = ""
    cache.session.require_lasting("warm up")
    try:
        report = cache.warm_up(arguments.what, arguments.arch, workers=arguments.workers, progress=not arguments.json)
    except CompileError as raised:
        if not hasattr(raised, "report"):
            raise
        report, error = raised.report, f"\n{raised}"
    value = {**report._asdict(), "results": [each._asdict() for each in report.results]}
    return Result(value, f"{report}{error}", 1 if report.failed else 0)


@_verb(
    _argument("file", "the bundle to write: kernels.kcache", metavar="FILE", nargs="?"),
    _argument("--oci", "write it as an image into an OCI image layout", metavar="DIRECTORY[:TAG]"),
    _argument("--kernels", "only the kernels of these", metavar="MODULE|FILE", action="append"),
    _argument("--arch", "only code for these targets", metavar="ARCH", action="append"),
    _argument("--sign", "refuse to write it without a signature", action="store_true"),
)
def _export(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Write entries into one file, or an OCI image, to be shipped.

    The same entries give the same bytes. Signed if a signing key is set. With --kernels the modules are
    imported; without, neither CUDA nor Numba is needed.
    """
    if (arguments.file is None) is (arguments.oci is None):
        raise SettingsError("cannot export", "it takes either FILE or --oci DIRECTORY[:TAG]")
    path = arguments.file or f"oci:{arguments.oci}"
    return _shipped("wrote", cache.export_bundle(path, arguments.kernels, arguments.arch, sign=arguments.sign or None))


@_verb(_argument("file", "the bundle, package:resource.kcache, or oci:DIRECTORY[:TAG]", metavar="FILE"))
def _import(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Verify a bundle and add its entries, all or none.

    What was there under the same key stays.
    """
    cache.session.require_lasting("import a bundle")
    return _shipped("imported", cache.import_bundle(arguments.file))


def _shipped(done: str, report: Any) -> Result:
    held = f"{entries_text(report.entries)} for {', '.join(report.targets)}, {bytes_text(report.size_bytes)}"
    signed = f"signed by {report.signed_by}" if report.signed_by else "not signed"
    return Result(report._asdict(), f"{done} {report.path}: {held}, {signed}")


_TIER = _argument("tier", "redis://host/0, s3://bucket/path, a directory", metavar="TIER", nargs="?")


@_verb(_TIER)
def _push(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Hand entries on to a tier that lacks them.

    TIER is what the setting `tiers` takes; without it, the first that is set and written to.
    Every entry is verified on its way. Exits with 1 if some could not go.
    """
    return _moved("to", cache.push(arguments.tier))


@_verb(_TIER)
def _pull(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Take the entries of a tier.

    TIER is what the setting `tiers` takes; without it, the first that is set.
    Every entry is verified on its way. Exits with 1 if some could not go.
    """
    cache.session.require_lasting("pull")
    return _moved("from", cache.pull(arguments.tier))


def _moved(way: str, moved: Any) -> Result:
    went = f"{moved.entries} entries went {way} {moved.tier}, {bytes_text(moved.size_bytes)}"
    text = f"{went}; {moved.present} were there already, {moved.failed} could not go"
    return Result(moved._asdict(), text, 1 if moved.failed else 0)


@_verb(_argument("file", "where to write it; - for standard output", metavar="FILE.html"))
def _report(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Write a page about the cache, with drawings.

    Time saved over days, hits and misses and why, what costs most, sizes, evictions. One file
    of HTML that needs nothing else, no network either.
    """
    text = cache.report()
    if arguments.file == "-":
        return Result(text, text)
    with open(arguments.file, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Result({"file": arguments.file, "size_bytes": len(text.encode())}, f"wrote {arguments.file}")


@_verb()
def _doctor(cache: KernelCache, arguments: argparse.Namespace) -> Result:
    """Look for what is wrong with driver, compilers, versions and directory.

    Driver and devices, compilers and headers, versions that do not fit together; rights, space and
    clock of the directory; tiers. Ends with what to do. Exits with 1 if something is wrong; what is merely
    absent is a note.
    """
    found = cache.doctor()
    return Result(found.to_dict(), str(found), 0 if found.is_well else 1)
