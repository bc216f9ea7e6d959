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
from ...settings import variables
from .configuration import code_variables

if TYPE_CHECKING:
    from ...engine import Session
    from .flavour import Flavour
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


found_in: weakref.WeakKeyDictionary[Session, dict[str, dict[str, Any] | None]] = weakref.WeakKeyDictionary()
"""The facts found in each session's stores, by request; None where there are none."""


def facts_of(home: Home, flavour: Flavour, session: Session) -> dict[str, Any] | None:
    """Find the facts of the Numba that an import would load now; None if there are none, or it cannot be told."""
    if os.path.exists(CONFIG_FILE):
        return None
    request = request_of(home, flavour)
    name = derive(request.components)
    known = found_in.setdefault(session, {})
    if name not in known:
        found = session.first(session.candidates(request), is_counted=False)
        is_usable = found is not None and _is_importable(session.components(request)[-1].value)
        known[name] = _read(found.artifact.cubin) if found is not None and is_usable else None
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


def _is_importable(versions: Any) -> bool:
    """Check that an import would take each distribution from where its metadata is: no checkout comes before it."""
    for name, version in versions.items():
        module = name.replace("-", "_")
        root = module if module != "cuda_core" else "cuda/core"
        folder = next((each for each in sys.path if os.path.isdir(os.path.join(each or os.curdir, root))), None)
        metadata = f"{module}-{version}.dist-info"
        if (folder is None) != (version is None):
            return False
        if folder is not None and not os.path.isdir(os.path.join(folder, metadata)):
            return False
    return True
