"""The command line: parses the arguments, calls the public functions and prints their results.

Promise     Exit codes: 0 success, 1 a problem was found or the command failed, 2 wrong usage. `--json` prints one JSON
            value and nothing else on standard output. No verb needs a GPU unless its help says so. Whatever the
            arguments and the cache contain, a verb ends with a result or a message, without control characters.
Method      A verb (a subcommand) is a function under `@verb` in entries, warm or installation. Modules that few verbs
            need are imported inside these.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from ..cache import configure, process_cache
from ..errors import KCacheError, SettingsError, plain_lines
from ..numba_hook import run_program
from ..observe.console import Parser, fill_streams, json_text, put, say
from ..observe.text import aligned
from ..version import __version__
from . import entries, installation, warm  # noqa: F401  each registers its verbs; the help lists them in this order
from .verb import DIAGNOSING, VERBS, in_shell_words

_DESCRIPTION = """List, check and prune the compiled CUDA kernels in a cache of numba_kcache.

The cache is a directory: --directory, else NUMBA_KCACHE_DIR, else the user's cache folder."""

_EPILOG = """exit codes: 0 success, 1 a problem was found or the command failed, 2 wrong usage"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after the program's name; None for the process's own.
    """
    fill_streams()
    parsed, unknown = make_parser().parse_known_args(arguments)
    if unknown:
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _say_warning  # type: ignore[assignment]
            code = _run(parsed)
    except BrokenPipeError:  # the reader, `| head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _failed(f"cannot {parsed.name}: {named}\n  hint: name an existing file or folder that this user may use")
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:  # raised by a module of the user, or a bug of this package
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _failed(f"cannot {parsed.name}: {type(error).__name__}: {error}, at {where.filename}:{where.lineno}")
    if code or parsed.name != "run":
        return code
    return run_program(parsed.program, parsed.all, parsed.is_module)


def _run(parsed: argparse.Namespace) -> int:
    try:
        if parsed.directory is not None:
            configure(directory=parsed.directory)
        directory, is_named = process_cache.directory, parsed.directory is not None
        is_needed = parsed.name not in DIAGNOSING
        if os.path.lexists(directory) and not os.path.isdir(directory) and (is_named or is_needed):
            origin = "--directory" if is_named else "NUMBA_KCACHE_DIR"
            raise KCacheError(f"cannot use {directory} from {origin}", "it is not a directory", "name a folder")
        result = parsed.verb(process_cache, parsed)
        is_misspelt = is_named and is_needed and not os.path.lexists(directory)
        if is_misspelt:
            say(f"numba-kcache: there is no directory {directory}")
        if result is None:
            return 0
        if parsed.json:
            put(json_text(result.value))
        else:
            columns, rows, right = result.rows or ((), (), ())
            lines = [*(aligned([columns, *rows], right) if columns else ()), *([""] if columns and result.text else ())]
            put("\n".join([*lines, plain_lines(result.text)]))
        return int(result.code or (is_misspelt and parsed.name == "verify"))
    except KCacheError as error:
        if parsed.json:
            parts = {"what": error.what, "why": error.why, "hint": error.hint}
            put(json_text({"error": parts}))
        else:
            _failed(in_shell_words(str(error)))
        return 2 if isinstance(error, SettingsError) else 1


def _say_warning(message: Warning | str, *_where: Any) -> None:
    """Print a warning without the line of code that issued it, which means nothing to a user of a shell."""
    say(f"numba-kcache: warning: {message}")


def _failed(text: str) -> int:
    say(f"numba-kcache: {text}")
    return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of every verb."""
    form: Any = {"epilog": _EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser("numba-kcache", description=_DESCRIPTION, **form)
    parser.add_argument("--version", action="version", version=f"numba-kcache {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="name")
    for name, (function, arguments) in VERBS.items():
        description = inspect.getdoc(function) or ""
        own = verbs.add_parser(name, help=description.partition("\n")[0], description=description, **form)
        own.set_defaults(verb=function, parser=own)
        own.add_argument("--directory", metavar="DIR", help="the cache's directory")
        own.add_argument("--json", action="store_true", help="print JSON")
        for names, settings in arguments:
            own.add_argument(*names, **settings)
    return parser
