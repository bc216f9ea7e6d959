"""Render the parser as docs/reference/cli.md has it: the same text under every Python version, unlike `--help`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from numba_kcache.cli import make_parser


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb."""
    (actions,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(actions.choices)


def section(name: str, parser: argparse.ArgumentParser) -> str:
    """The page's section on a verb, without its example."""
    return "\n".join(
        [f"## {name}", "", str(parser.description), "", "| argument | meaning |", "| --- | --- |", *rows(parser)]
    )


def rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if "--help" in action.option_strings or action.help is argparse.SUPPRESS:
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))
        words = " ".join(filter(None, (*action.option_strings[-1:], metavar)))
        escaped = words.replace("|", "\\|")
        yield f"| `{escaped}` | {action.help} |"


if __name__ == "__main__":
    print("\n\n".join(section(name, parser) for name, parser in verbs().items()))
