"""The command line: parses, calls, prints; decides nothing.

Promise     Exit codes: 0 fine, 1 something wrong was found or happened, 2 wrong usage. `--json` prints one JSON value
            and nothing else on standard output. No verb needs a GPU unless its help says so.
Method      A verb is a function that takes the parsed arguments and returns an exit code. What it calls is imported
            in it: `numba-kcache info` imports what info needs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .errors import CompileError, EntryError, KCacheError, SettingsError
from .version import __version__

_DESCRIPTION = """Look at, check and tidy the cache of compiled CUDA kernels that numba_kcache keeps.

The cache is a directory: --directory, else NUMBA_KCACHE_DIR, else the user's cache folder."""

_EPILOG = """exit codes: 0 fine, 1 something wrong was found or happened, 2 wrong usage"""

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after the program's name; None for the process's own.
    """
    parsed = make_parser().parse_args(arguments)
    if arguments is None and parsed.name in ("list", "report"):
        gc.disable()  # this process ends soon; collecting takes half the time of listing twenty thousand entries
    try:
        if parsed.directory is not None:
            from .cache import configure

            configure(directory=parsed.directory)
        code = int(parsed.verb(parsed))
        sys.stdout.flush()
        return code
    except KCacheError as error:
        if parsed.json:
            _print_json({"error": {"what": error.what, "why": error.why, "hint": error.hint}})
        else:
            print(f"numba-kcache: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"numba-kcache: cannot {parsed.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The parser of every verb."""
    parser = argparse.ArgumentParser(
        "numba-kcache", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"numba-kcache {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="name")

    def add(name: str, verb: Callable[[Any], int], help: str, more: str = "") -> argparse.ArgumentParser:
        description = help[0].upper() + help[1:] + "." + (f"\n\n{more}" if more else "")
        own = verbs.add_parser(
            name,
            help=help,
            description=description,
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(verb=verb)
        own.add_argument("--directory", metavar="DIR", help="the cache's directory")
        own.add_argument("--json", action="store_true", help="print JSON")
        return own

    add("info", _info, "what the cache holds and what it has saved", _INFO_MORE)
    own = add("list", _list, "the entries in the cache", _LIST_MORE)
    own.add_argument(
        "--sort",
        choices=("age", "size", "cost", "hits"),
        default="age",
        help="used last first (default), largest, longest to compile, or most hits first",
    )
    own.add_argument("--limit", type=_count, metavar="N", help="how many: 50, or all with --json; 0 for all")
    own = add("show", _show, "all that is known of one entry", _SHOW_MORE)
    own.add_argument("key", metavar="KEY", help="a key of `list`, or its first digits")
    own.add_argument("--cubin", metavar="FILE", help="write the machine code to FILE")
    own.add_argument("--ptx", metavar="FILE", help="write the PTX to FILE, if it was kept")
    own = add("explain", _explain, "why a kernel is, or is not, served from the cache", _EXPLAIN_MORE)
    own.add_argument("what", metavar="KEY|MODULE:KERNEL", help="a key of `list`, or a kernel of a module or .py file")
    own.add_argument("--arch", metavar="ARCH", help="the target: sm_90; default: the kernel's own, or the device")
    own.add_argument("--signature", metavar="TYPES", help="of a Numba kernel: 'void(float32[:])'")
    add("verify", _verify, "read every file in full and set aside what is damaged", _VERIFY_MORE)
    own = add("prune", _prune, "remove the entries that were used longest ago", _PRUNE_MORE)
    own.add_argument("--max-size", metavar="SIZE", help="get down to this size: 512MB, 2GiB")
    own.add_argument("--older-than", type=_seconds, metavar="AGE", help="remove what was not used for: 30d, 12h")
    add("clear", _clear, "remove every entry", "The counts that `info` shows stay. Kernels compile again when used.")
    own = add("warm", _warm, "compile the kernels of modules ahead", _WARM_MORE)
    own.add_argument("what", metavar="MODULE|FILE", nargs="+", help="a module's dotted name, or a .py file")
    own.add_argument("--arch", metavar="ARCH", action="append", help="a target: sm_80; may be given several times")
    own.add_argument("--workers", type=_count, metavar="N", help="processes that compile; default: one for each core")
    own = add("export", _export, "write entries into one file, to be shipped", _EXPORT_MORE)
    own.add_argument("file", metavar="FILE", help="the bundle to write: kernels.kcache")
    own.add_argument("--kernels", metavar="MODULE|FILE", action="append", help="only the kernels of these")
    own.add_argument("--arch", metavar="ARCH", action="append", help="only code for these targets")
    own.add_argument("--sign", action="store_true", help="refuse to write it without a signature")
    own = add("import", _import, "verify a bundle and add its entries, all or none", _IMPORT_MORE)
    own.add_argument("file", metavar="FILE", help="the bundle, or package:resource.kcache")
    for name, verb, help in (
        ("push", _push, "hand entries on to a tier that lacks them"),
        ("pull", _pull, "take the entries of a tier"),
    ):
        own = add(name, verb, help, _MOVE_MORE)
        own.add_argument("tier", metavar="TIER", nargs="?", help="redis://host/0, s3://bucket/path, a directory")
    own = add("report", _report, "write a page about the cache, with drawings", _REPORT_MORE)
    own.add_argument("file", metavar="FILE.html", help="where to write it; - for standard output")
    add("doctor", _doctor, "look for what is wrong with driver, compilers, versions and directory", _DOCTOR_MORE)
    return parser


_INFO_MORE = """The counts are over all processes since the cache began. A hit or a miss is counted once for
each kernel, target and signature in a process; launches count nothing."""

_LIST_MORE = """Key, kernels, target, size, time since it was last used (to the hour), compile time and hits."""

_SHOW_MORE = """Kernels with their parameters, registers and memory; what is in its key; where and when it was
compiled; what the compilers said."""

_EXPLAIN_MORE = """Of a kernel: a hit, or every difference from the nearest entry that is stored, with what to do. The
module is imported, and nothing is compiled. Of a key: what it is and how other entries of its kernel
differ from it. Exits with 1 if the kernel is not in the cache."""

_WARM_MORE = """The modules are imported, and what they decorate with cached_kernel or cached_module is compiled for
each target and stored; what is there already is left. With --arch no GPU is needed. Numba kernels need
signature=. Exits with 1 if some kernels could not be compiled; the others are stored."""

_EXPORT_MORE = """The same entries give the same bytes. Signed if a signing key is set. With --kernels the modules are
imported; without, neither CUDA nor Numba is needed."""

_IMPORT_MORE = """What was there under the same key stays."""

_VERIFY_MORE = """Each file is held against its digest, its key and the digests of its parts. Damaged files go
to the quarantine folder, and the next launch compiles them again. Exits with 1 if there were any."""

_PRUNE_MORE = """Without options: down to the cache's own limits."""


_MOVE_MORE = """TIER is what the setting `tiers` takes; without it, the first that is set (and, for push, written to).
Every entry is verified on its way. Exits with 1 if some could not go."""

_REPORT_MORE = """Time saved over days, hits and misses and why, what costs most, sizes, evictions. One file
of HTML that needs nothing else, no network either."""


_DOCTOR_MORE = """Driver and devices, compilers and headers, versions that do not fit together; rights, space and
clock of the directory; tiers. Ends with what to do. Exits with 1 if something is wrong; what is merely
absent is a note."""


def _info(arguments: Any) -> int:
    from .cache import ask_tiers, info

    ask_tiers()
    found = info()
    _print(arguments, found.to_dict(), str(found))
    return 0


def _list(arguments: Any) -> int:
    from .cache import info, listing
    from .observe.info import bytes_text, entries_text, seconds_text
    from .observe.tables import age_text, print_table

    limit = arguments.limit if arguments.limit is not None else 0 if arguments.json else 50
    entries = listing(arguments.sort, limit or None)
    if arguments.json:
        _print_json([each.to_dict() for each in entries])
        return 0
    now_s = time.time()
    rows = [
        (
            each.key[:12],
            ", ".join(each.kernels[:3]) + (f" and {len(each.kernels) - 3} more" if len(each.kernels) > 3 else ""),
            each.target,
            bytes_text(each.size_bytes),
            age_text(now_s - each.used_s),
            seconds_text(each.compile_time_s),
            str(each.hits),
        )
        for each in entries
    ]
    columns = ("key", "kernels", "target", "size", "used", "compiled in", "hits")
    print_table(columns, rows, right=("size", "used", "compiled in", "hits"))
    held = info()
    of_all = f"{len(entries)} of " if held.entries > len(entries) else ""
    more = "; --limit 0 shows all" if of_all else ""
    total = entries_text(max(held.entries, len(entries)))
    print(f"\n{of_all}{total} in {held.directory or 'memory'}, {bytes_text(held.size_bytes)}{more}")
    return 0


def _show(arguments: Any) -> int:
    from .cache import entry

    found = entry(arguments.key)
    for path, code, what in (
        (arguments.cubin, found.artifact.cubin, "machine code"),
        (arguments.ptx, found.artifact.ptx, "PTX"),
    ):
        if path is not None:
            if not code:
                raise KCacheError(f"cannot write the {what} of {found.key[:12]}", "the entry holds none")
            with open(path, "wb") as file:
                file.write(code)
            print(f"wrote {len(code)} bytes to {path}", file=sys.stderr)
    _print(arguments, found.to_dict(), str(found))
    return 0


def _explain(arguments: Any) -> int:
    from .cache import explain
    from .observe.detail import plain

    found = explain(_kernel(arguments.what), arguments.arch, arguments.signature)
    _print(arguments, found.to_dict(), "\n".join(map(plain, str(found).splitlines())))
    return 0 if found.is_hit else 1


def _kernel(text: str) -> Any:
    """The kernel that `module:name` or `file.py:name` names; a key as it is."""
    module, colon, name = text.rpartition(":")
    if not colon:
        return text
    from .warmup.discovery import load_module

    found = load_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise EntryError(f"cannot explain {text!r}", f"{module} has no {name}")
        found = getattr(found, part)
    return found


def _warm(arguments: Any) -> int:
    from .cache import warm_up
    from .observe.detail import plain

    try:
        report, error = (
            warm_up(arguments.what, arguments.arch, workers=arguments.workers, progress=not arguments.json),
            "",
        )
    except CompileError as raised:
        if not hasattr(raised, "report"):
            raise
        report, error = raised.report, str(raised)
    results = [each._asdict() for each in report.results]
    value = {"results": results, "seconds": report.seconds, "workers": report.workers}
    _print(arguments, value, "\n".join(map(plain, [str(report), *error.splitlines()])))
    return 1 if report.failed else 0


def _export(arguments: Any) -> int:
    from .cache import export_bundle

    report = export_bundle(arguments.file, arguments.kernels, arguments.arch, sign=arguments.sign or None)
    return _shipped(arguments, report, "wrote")


def _import(arguments: Any) -> int:
    from .cache import import_bundle

    return _shipped(arguments, import_bundle(arguments.file), "imported")


def _shipped(arguments: Any, report: Any, what: str) -> int:
    from .observe.info import bytes_text, entries_text

    signed = f", signed by {report.signed_by}" if report.signed_by else ", not signed"
    targets = ", ".join(report.targets)
    text = (
        f"{what} {report.path}: {entries_text(report.entries)} for {targets}, {bytes_text(report.size_bytes)}{signed}"
    )
    _print(arguments, report._asdict(), text)
    return 0


def _verify(arguments: Any) -> int:
    from .cache import info, verify

    problems = verify()
    lines = [f"{each.key[:12]}  {each.reason}" for each in problems]
    lines.append(f"{len(problems)} damaged, {info().entries} whole")
    _print(arguments, {"damaged": [each._asdict() for each in problems]}, "\n".join(lines))
    return 1 if problems else 0


def _prune(arguments: Any) -> int:
    from .cache import prune
    from .settings import size_bytes

    try:
        limit = None if arguments.max_size is None else size_bytes(arguments.max_size)
    except ValueError as error:
        raise SettingsError(f"cannot use --max-size {arguments.max_size}", str(error)) from None
    return _removed(arguments, prune(limit, arguments.older_than))


def _clear(arguments: Any) -> int:
    from .cache import clear

    return _removed(arguments, clear())


def _push(arguments: Any) -> int:
    from .cache import push

    return _moved(arguments, push(arguments.tier), "to")


def _pull(arguments: Any) -> int:
    from .cache import pull

    return _moved(arguments, pull(arguments.tier), "from")


def _moved(arguments: Any, moved: Any, way: str) -> int:
    from .observe.info import bytes_text

    went = f"{moved.entries} entries went {way} {moved.tier}, {bytes_text(moved.size_bytes)}"
    text = f"{went}; {moved.present} were there already, {moved.failed} could not go"
    _print(arguments, moved._asdict(), text)
    return 1 if moved.failed else 0


def _report(arguments: Any) -> int:
    from .cache import report

    text = report()
    if arguments.file == "-":
        print(text)
        return 0
    with open(arguments.file, "w", encoding="utf-8") as file:
        file.write(text)
    _print(arguments, {"file": arguments.file, "size_bytes": len(text.encode())}, f"wrote {arguments.file}")
    return 0


def _doctor(arguments: Any) -> int:
    from .cache import doctor

    found = doctor()
    _print(arguments, found.to_dict(), str(found))
    return 0 if found.is_well else 1


def _removed(arguments: Any, entries: int) -> int:
    from .cache import info
    from .observe.info import entries_text

    left = info()
    text = f"removed {entries_text(entries)}, {left.entries} left in {left.directory or 'memory'}"
    _print(arguments, {"removed": entries, "entries": left.entries, "size_bytes": left.size_bytes}, text)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 30d, 12h, 90min or 60s")
    return float(match[1]) * _UNITS_S[match[2]]


def _print(arguments: Any, value: Any, text: str) -> None:
    if arguments.json:
        _print_json(value)
    else:
        print(text)


def _print_json(value: Any) -> None:
    if isinstance(value, list):  # an entry a line: quick for twenty thousand, and for grep
        lines = ",\n".join([json.dumps(each, default=repr) for each in value])
        print(f"[\n{lines}\n]")
    else:
        print(json.dumps(value, indent=2, default=repr))
