"""Read the objects that few kernels name: modules as values, and imports inside functions."""

from __future__ import annotations

from importlib import import_module
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from .code import all_words
from .value import Refused, state_of

if TYPE_CHECKING:
    from .function import Reader


def add_import(reader: Reader, code: CodeType, name: str, label: str) -> int | str:
    """The node of an import inside a function: of what its code may take from that module."""
    if not reader.trust[name]:
        return reader.refused(Refused("it is imported inside the function"), label)
    try:
        modules = [import_module(each) for each in dict.fromkeys((name.partition(".")[0], name))]  # as the code will do
    except ImportError as error:
        return reader.refused(Refused(str(error)), label)
    node = reader.add(label, name, None)
    for each in modules:
        reader.edge(node, each.__name__, add_module(reader, code, each, label))
    return node


def add_module(reader: Reader, code: CodeType, module: ModuleType, label: str) -> int | str:
    """The node of a module that is used as a value: of all its attributes that the code may name."""
    name, at = reader.trust.name_of(module), (id(module.__dict__), f"{id(code)}")
    if name is None:
        return reader.refused(Refused("it is a module that is used as a value, not by its attributes alone"), label)
    state = state_of(name, reader.dialect.stateful)
    if state:
        return reader.refused(Refused(f"it is {state}, whose state no key can hold"), label)
    if at not in reader.values:
        node = reader.values[at] = reader.add(label, name, name)
        for word in sorted(all_words(code) & vars(module).keys()):
            value, inner = vars(module)[word], f"global {word} of {name}"
            is_module = isinstance(value, ModuleType)
            goal = add_module(reader, code, value, inner) if is_module else reader.add_value(value, inner)
            reader.edge(node, word, goal)
    return reader.values[at]
