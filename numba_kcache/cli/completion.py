"""Generate scripts for tab completion in bash, zsh and fish from the argument parser.

Method      The words allowed at each position are computed here and written into the script; keys are completed by
            running `numba-kcache list` when Tab is pressed. Contents of a cache are never part of a script.
Source      bash: `compgen`, `complete -F`. zsh: `compadd`, `compdef`. fish: `complete -c`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from ..model import NamedTuple

_KEYS = r"""numba-kcache list --json 2>/dev/null | sed -n 's/^{"key": "\([0-9a-f]\{12\}\).*/\1/p'"""
"""Shell command that prints the keys of a cache; its output has hexadecimal digits only, whatever the cache
contains."""


class _Option(NamedTuple):
    """An option: its name, its help, the choices for its value, and whether it takes a value."""

    name: str
    help: str
    choices: tuple[str, ...]
    has_value: bool


class _Verb(NamedTuple):
    """A verb, and what may follow it: options, words, the key of an entry."""

    name: str
    help: str
    options: tuple[_Option, ...]
    choices: tuple[str, ...]
    takes_key: bool


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for one shell: `"bash"`, `"zsh"` or `"fish"`."""
    return "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](list(_verbs(parser))))


def _verbs(parser: argparse.ArgumentParser) -> Iterator[_Verb]:
    (verbs,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    helps = {each.dest: each.help or "" for each in verbs._choices_actions}
    for name, own in verbs.choices.items():
        positionals = [each for each in own._actions if not each.option_strings]
        options = tuple(
            _Option(each.option_strings[-1], each.help or "", tuple(map(str, each.choices or ())), each.nargs != 0)
            for each in own._actions
            if each.option_strings
        )
        choices = tuple(str(choice) for each in positionals for choice in each.choices or ())
        yield _Verb(name, helps[name], options, choices, any("KEY" in str(each.metavar) for each in positionals))


def _branches(verbs: list[_Verb], offer: Callable[[str], str], offer_files: str) -> Iterator[str]:
    """Branches of a `case` on (is this word the verb):(the verb):(the previous word), for bash and zsh.

    Args:
        verbs: All verbs.
        offer: Makes the shell command that offers these words.
        offer_files: The shell command that offers the names of files.
    """
    yield f"    1:*) {offer(' '.join(each.name for each in verbs))} ;;"
    for each in verbs:
        for option in each.options:
            if option.has_value:
                command = offer(" ".join(option.choices)) if option.choices else offer_files
                yield f"    0:{each.name}:{option.name}) {command} ;;"
        names = " ".join((*(option.name for option in each.options), *each.choices))
        yield f"    0:{each.name}:*) {offer(names + (f' $({_KEYS})' if each.takes_key else ''))} ;;"


def _bash(verbs: list[_Verb]) -> Iterator[str]:
    yield "_numba_kcache() {"
    yield "  local words="
    yield '  case "$((COMP_CWORD == 1)):${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD-1]}" in'
    yield from _branches(verbs, 'words="{}"'.format, "return")
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _numba_kcache numba-kcache"


def _zsh(verbs: list[_Verb]) -> Iterator[str]:
    yield "#compdef numba-kcache"
    yield "_numba_kcache() {"
    yield '  case "$((CURRENT == 2)):${words[2]}:${words[CURRENT-1]}" in'
    yield from _branches(verbs, "compadd -- {}; [ $CURRENT -eq 2 ] || _files".format, "_files")
    yield "  esac"
    yield "}"
    yield "compdef _numba_kcache numba-kcache"


def _fish(verbs: list[_Verb]) -> Iterator[str]:
    for each in verbs:
        yield f"complete -c numba-kcache -n __fish_use_subcommand -f -a {each.name} -d {_quoted(each.help)}"
    for each in verbs:
        start = f"complete -c numba-kcache -n '__fish_seen_subcommand_from {each.name}'"
        for option in each.options:
            takes = (
                f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.has_value else ""
            )
            yield f"{start} -l {option.name.removeprefix('--')}{takes} -d {_quoted(option.help)}"
        if each.choices:
            yield f"{start} -f -a {_quoted(' '.join(each.choices))}"
        if each.takes_key:
            yield f"{start} -f -a {_quoted(f'({_KEYS})')}"


def _quoted(text: str) -> str:
    """A word of fish, in which a quote and a backslash are escaped by a backslash."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
