"""Parse and print for the command line: output is free of control characters, and closed streams are tolerated."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from typing import Any, NoReturn

from ..errors import plain, plain_lines
from ..model.text import meant

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors have the form of this package's messages, without control characters."""

    def error(self, message: str) -> NoReturn:
        """Print the error with a hint, and exit with status 2."""
        self.print_usage(sys.stderr)
        say(f"numba-kcache: cannot read the command line: {plain(message)}\n  hint: {self._hint(message)}")
        sys.exit(2)

    def _hint(self, message: str) -> str:
        """The hint: the verb that was probably meant, or the help."""
        wrong = re.match(r"(?:argument VERB: invalid choice: '|unrecognized arguments: )([\w-]*)(.*)", message)
        known = [*re.findall(r"'(\w+)'", wrong[2]), *self._option_string_actions] if wrong else []
        if wrong and wrong[1] in ("--json", "--directory"):  # the verb itself knows them
            return f"write it after the verb: {self.prog} {wrong[1]}"
        return f"{meant(wrong[1], known) if wrong else ''}`{self.prog} --help` lists what it takes"


def count(text: str) -> int:
    """Parse a whole number of the command line."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number below a billion")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration of the command line, `30d`, `12h`, `90min` or `60s`, into seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a time: write 30d, 12h, 90min or 60s")
    return float(match[1]) * _UNITS_S[match[2]]


def fill_streams() -> None:
    """Open standard streams that are closed (daemons do that), so that no other file gets their numbers."""
    with contextlib.suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(fd)


def json_text(value: Any) -> str:
    """A value as JSON; a list has one entry per line, which is fast for 20,000 entries and suits grep."""
    if isinstance(value, list):
        lines = ",\n".join([json.dumps(each, default=repr) for each in value])
        return f"[\n{lines}\n]"
    return json.dumps(value, indent=2, default=repr)


def put(text: str) -> None:
    """Print the result of a command, which must be free of control characters already.

    Raises:
        OSError: Standard output is closed.
    """
    if sys.stdout is None or sys.stdout.closed:
        if sys.stderr is None:
            return  # a daemon without standard output
        raise OSError("standard output is closed")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal's encoding lacks
    print(text, flush=True)


def say(text: str) -> None:
    """Print a message on standard error; do nothing where that is closed."""
    if sys.stderr is not None and not sys.stderr.closed:
        with contextlib.suppress(OSError):
            print(plain_lines(text), file=sys.stderr)
