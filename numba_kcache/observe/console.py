"""Output and words of the command line: plain text whatever it holds, on streams in whatever state they are."""

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
from .paint import painted

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Parser(argparse.ArgumentParser):
    """A parser of command lines whose complaints about words are plain text."""

    def error(self, message: str) -> NoReturn:
        """End the process with a complaint in the words of all other errors."""
        self.print_usage(sys.stderr)
        say(f"numba-kcache: cannot read the command line: {plain(message)}\n  hint: {self._hint(message)}")
        sys.exit(2)

    def _hint(self, message: str) -> str:
        """The next step: the verb that is meant, or the help."""
        wrong = re.match(r"argument VERB: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        known = [each.strip("' ") for each in wrong[2].split(",")] if wrong else []
        return f"{meant(wrong[1], known) if wrong else ''}`{self.prog} --help` lists what it takes"


class Help(argparse.HelpFormatter):
    """Help whose paragraphs fill the lines of the terminal, whatever its width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(Help, self)._fill_text(each, width, indent) for each in text.split("\n\n"))


def count(text: str) -> int:
    """Read a number among the words of a command line."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number below a billion")
    return int(text)


def seconds(text: str) -> float:
    """Read a time among the words of a command line, in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a time: write 30d, 12h, 90min or 60s")
    return float(match[1]) * _UNITS_S[match[2]]


def fill_streams() -> None:
    """Open the standard streams that a daemon has closed: else the next files opened take their numbers."""
    with contextlib.suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(fd)


def json_text(value: Any) -> str:
    """A value as JSON, a list with an entry a line: quick for twenty thousand, and for grep."""
    if isinstance(value, list):
        lines = ",\n".join([json.dumps(each, default=repr) for each in value])
        return f"[\n{lines}\n]"
    return json.dumps(value, indent=2, default=repr)


def put(text: str, *, is_verbatim: bool = False, above: str = "") -> None:
    """Print a text that is plain already, as the result of a command.

    Args:
        text: On a terminal in colours, and broken between words.
        is_verbatim: It is for a shell, a file or a program, and stays as it is.
        above: What is printed before it, as it is.

    Raises:
        OSError: Nobody reads it.
    """
    if sys.stdout is None or sys.stdout.closed:
        if sys.stderr is None:
            return  # a daemon, with nobody to tell
        raise OSError("standard output is closed")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal's encoding does not have
    print(above + (text if is_verbatim else painted(text, sys.stdout)), flush=True)


def say(text: str) -> None:
    """Print a message on standard error, if anybody can read it."""
    if sys.stderr is not None and not sys.stderr.closed:
        with contextlib.suppress(OSError):
            print(painted(plain_lines(text), sys.stderr), file=sys.stderr)
