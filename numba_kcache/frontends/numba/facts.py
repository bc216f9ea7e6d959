"""What a look-up without Numba has to know of it: found in the stores, where another process put it.

Promise     Facts are observed just after this package imported Numba, before the program can change anything, and are
            found again only under what may change them: the variables that count, Python, and the builds and versions
            of all compilers. A distribution counts as installed only if an import would take it from the folder of its
            metadata. Whatever fails here leaves no facts: Numba is then imported.
Method      Facts are an entry of the store like any other, so that they travel in bundles, tiers and images, and are
            accepted where code of another compiler is. Storing and finding them counts neither a hit nor a miss.
Not here    Their use (light), observing and storing them (learning).
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from ...engine import Request
from ...keys import component, derive
from ...model import NO_TARGET
from ...model.json_values import read_json
from ...settings import toolchain_surroundings, variables
from . import code_variables

if TYPE_CHECKING:
    from ...engine import Session
    from . import Flavour
    from .stand_in import Home

FORM = 2
"""Number of the form of the facts below; a later form is not read."""

CONFIG_FILE = ".numba_config.yaml"
"""The file in the working directory from which Numba reads settings."""

CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c4", "c8")
"""Type codes of the numbers whose types are among the facts."""

_ALSO = ("LIBLLVM7", "NUMBA_CUDA_DEBUGINFO", "NUMBA_OPT")
"""Variables that change facts, beside those that change code."""

_PARTS = {dict: "names forms modules added scalars options", list: "typed environment", bool: "debug opt"}
"""The names of facts, by their type."""


found_in: weakref.WeakKeyDictionary[Session, dict[str, dict[str, Any] | str]] = weakref.WeakKeyDictionary()
"""The facts found in each session's stores, by request; or why there are none."""


def facts_of(home: Home, flavour: Flavour, session: Session) -> dict[str, Any] | str:
    """Find the facts of the Numba that an import would load now; or the reason why there are none."""
    if os.path.exists(CONFIG_FILE):
        return f"only Numba reads {CONFIG_FILE}"
    request = request_of(home, flavour)
    name = derive(request.components)
    known = found_in.setdefault(session, {})
    if name not in known:
        found = session.first(session.candidates(request), is_counted=False)
        told = found and (_elsewhere(session.components(request)[-1].value) or _read(found.artifact.cubin))
        known[name] = told or f"nothing of this {flavour.name} is stored yet"
    return known[name]


def _read(stored: bytes) -> dict[str, Any] | None:
    """The facts, if they have the form of facts: stored bytes may be anything's."""
    try:
        found = read_json(stored)
        is_sound = all(type(found[name]) is kind for kind, names in _PARTS.items() for name in names.split())
        return found if is_sound and found["scalars"].keys() >= {*CODES} else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def request_of(home: Home, flavour: Flavour) -> Request:
    """The request whose artifact is the facts."""
    form: Any = ["facts", FORM, home.kind, sys.implementation.cache_tag, sys.platform]
    settings = {**code_variables({}), **variables(_ALSO)}
    components = component("kind", form), component("numba settings", settings)
    label = f"facts of {flavour.name}"
    return Request(label, NO_TARGET, components, flavour.libraries, flavour.distributions, _cannot_build, name=label)


def _cannot_build(_toolchain: Any) -> Any:
    raise NotImplementedError


def _elsewhere(versions: Any) -> str:
    """Say which distribution an import would take from elsewhere than where it is installed; "" for none."""
    installed, _found_by = toolchain_surroundings()
    for name, version in versions.items():
        module = name.replace("-", "_")
        root = module if module != "cuda_core" else "cuda/core"
        folder = next((each for each in sys.path if os.path.isdir(os.path.join(each or os.curdir, root))), "")
        is_whole = folder in installed and os.path.isdir(os.path.join(folder, f"{module}-{version}.dist-info"))
        if (folder or version) and not is_whole:
            return f"{name} in {folder} counts by its files, not by a version"
    return ""
