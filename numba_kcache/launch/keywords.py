"""Put the named arguments of a launch into the order of the parameters.

Source      Compiled C++ does not contain the names of a kernel's parameters: they are read from the source text, and a
            parameter to which two declarations give different names has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError


def in_order(
    kernel: str,
    arguments: Sequence[Any],
    given: Sequence[str],
    names: Sequence[str],
    *,
    labels: Sequence[object],
    defaults: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """Put arguments into the order of the parameters.

    Args:
        kernel: Its name, for messages.
        arguments: Arguments of the launch; named ones come last.
        given: Names of the last arguments.
        names: Names of the parameters; `""` for an unknown one.
        labels: The parameters, for messages.
        defaults: Values of the last parameters, where they may be left out.

    Raises:
        ArgumentError: A name is unknown or given twice, or an argument is missing.
    """
    positional = len(arguments) - len(given)
    found: dict[str, Any] = dict(zip(given, arguments[positional:], strict=True))
    for each in given:
        if each not in names:
            raise _unknown(kernel, each, names, labels)
        if each in names[:positional]:
            raise ArgumentError(
                f"cannot launch {kernel} with two arguments for {each!r}",
                f"argument {list(names).index(each) + 1}, given by position, is {each!r} already",
                "pass it once",
            )
    rest = names[positional:]
    default_values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) if defaults else {}
    values = {**default_values, **found}
    missing = [name or str(label) for name, label in zip(rest, labels[positional:], strict=True) if name not in values]
    if missing:
        raise wrong_count(kernel, len(arguments), labels, missing)
    return (*arguments[:positional], *[values[name] for name in rest])


def _unknown(kernel: str, name: str, names: Sequence[str], labels: Sequence[object]) -> ArgumentError:
    from ..model.text import meant

    what = f"cannot launch {kernel} with an argument named {name!r}"
    known = [each for each in names if each]
    if labels and not known:
        why = "the names of its parameters are not known: they are read from CUDA C++ text, and macros hide them"
        return ArgumentError(what, why, f"pass the arguments by position: it takes {_listed(labels)}")
    why = f"it takes {_listed(labels)}"
    if len(known) < len(names):
        return ArgumentError(what, f"{why}, and some parameters have no known name", "pass those by position")
    return ArgumentError(what, why, f"{meant(name, known)}the names are {', '.join(known)}" if known else "pass none")


def wrong_count(kernel: str, count: int, labels: Sequence[object], missing: Sequence[str] = ()) -> ArgumentError:
    """Make the error for a wrong number of arguments.

    Args:
        kernel: Its name.
        count: Number of arguments given.
        labels: The parameters.
        missing: Names of those that were not given, where some were given by name.
    """
    what = f"cannot launch {kernel} with {count} argument{'' if count == 1 else 's'}"
    lacks = f"; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
    return ArgumentError(
        what, f"it takes {len(labels)}: {_listed(labels)}{lacks}", "pass one argument for each parameter"
    )


def _listed(labels: Sequence[object]) -> str:
    return ", ".join(map(str, labels)) or "none"
