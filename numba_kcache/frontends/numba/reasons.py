"""The kinds of reason for the components of a Python kernel, for explanations."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.reason import ReasonKind

KINDS: Mapping[str, ReasonKind] = {
    "argument types": ReasonKind.SIGNATURE,
    "numba settings": ReasonKind.ENVIRONMENT,
    "numba toolkit": ReasonKind.COMPILER,
    "function": ReasonKind.SOURCE_CHANGED,
    "kernel ": ReasonKind.SOURCE_CHANGED,
    "device function ": ReasonKind.SOURCE_CHANGED,
    "function ": ReasonKind.SOURCE_CHANGED,
    "class ": ReasonKind.SOURCE_CHANGED,
    "declaration of ": ReasonKind.SOURCE_CHANGED,
    "overload of ": ReasonKind.SOURCE_CHANGED,
    "module ": ReasonKind.VALUE_CHANGED,
    "global ": ReasonKind.VALUE_CHANGED,
    "closure ": ReasonKind.VALUE_CHANGED,
    "defaults of ": ReasonKind.VALUE_CHANGED,
    "options of ": ReasonKind.OPTIONS,
    "link ": ReasonKind.LINK_INPUT,
    "depends[": ReasonKind.DEPENDS,
}
"""The kind of reason by the component's name, or a prefix of it. docs/keys.md has a row for each."""
