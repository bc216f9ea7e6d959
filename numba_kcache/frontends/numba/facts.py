"""What a look-up without Numba has to know of it, observed once in a process that imported it, and stored.

Promise     Facts are observed just after this package imported Numba, before the program can change anything, and are
            found again only under what may change them: the variables that count, Python, and the builds and versions
            of all compilers. A distribution counts as installed only if an import would take it from the folder of its
            metadata. Whatever fails here leaves no facts: Numba is then imported.
Method      Facts are an entry of the store like any other, so that they travel in bundles, tiers and images, and are
            accepted where code of another compiler is. Storing and finding them counts neither a hit nor a miss.
Not here    Their use (light).
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...engine import Request, candidates, only
from ...keys import component, derive
from ...model import NO_TARGET
from ...settings import variables
from .code import scalar_form
from .configuration import code_variables
from .graph import ABSENT
from .stand_in import Home
from .value import Refused, Trust

if TYPE_CHECKING:
    from ...engine.session import Session
    from .flavour import Flavour

FORM = 1
"""Number of the form of the facts below; a later form is not read."""

CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c4", "c8")
"""Type codes of the numbers whose types are among the facts."""

_CONFIG_FILE = ".numba_config.yaml"
"""The file in the working directory from which Numba reads settings."""

_ALSO = ("LIBLLVM7", "NUMBA_CUDA_DEBUGINFO", "NUMBA_OPT")
"""Variables that change facts, beside those that change code."""

_ROOTS = {"numba-cuda": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir", "cuda-core": "cuda/core"}

observed: dict[str, bytes] = {}
"""The facts that this process observed, by kind, as they are stored."""

_found: weakref.WeakKeyDictionary[Session, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The facts found in each session's stores, by request; None where there are none."""


def facts_of(home: Home, flavour: Flavour, session: Session) -> dict[str, Any] | None:
    """Find the facts of the Numba that an import would load now; None if there are none, or it cannot be told."""
    if os.path.exists(_CONFIG_FILE):
        return None
    request = _request(home, flavour)
    name = derive(request.components)
    known = _found.setdefault(session, {})
    if name not in known:
        found = session.first(candidates(session, only(request)), is_counted=False)
        is_usable = found is not None and _is_importable(session.components(request)[-1].value)
        known[name] = json.loads(found.artifact.cubin) if found is not None and is_usable else None
    facts: dict[str, Any] | None = known[name]
    return facts


def _request(home: Home, flavour: Flavour) -> Request:
    components = (
        component("kind", "facts"),
        component("facts", [FORM, home.kind, sys.implementation.cache_tag, sys.platform]),
        component("numba settings", {**code_variables({}), **variables(_ALSO)}),
    )
    label = f"facts of {flavour.name}"
    return Request(label, NO_TARGET, components, flavour.libraries, flavour.distributions, _cannot_build, name=label)


def _cannot_build(_toolchain: Any) -> Any:
    raise NotImplementedError


def _is_importable(versions: Any) -> bool:
    """Check that an import would take each distribution from where its metadata is: no checkout comes before it."""
    for name, version in versions.items():
        root = _ROOTS.get(name, name)
        folder = next((each for each in sys.path if os.path.isdir(os.path.join(each or os.curdir, root))), None)
        metadata = f"{name.replace('-', '_')}-{version}.dist-info"
        if (folder is None) != (version is None):
            return False
        if folder is not None and not os.path.isdir(os.path.join(folder, metadata)):
            return False
    return True


# -- observing -------------------------------------------------------------------------------------------------------


def learn(home: Home) -> None:
    """Observe the facts of a Numba that this package has just imported."""
    from .. import front_end

    flavour = front_end(home.kind).flavour
    try:
        if not (os.path.exists(_CONFIG_FILE) or import_module(flavour.config).ENABLE_CUDASIM):
            observed[home.kind] = json.dumps(_observe(home, flavour)).encode()
    except Exception:  # another version of Numba, or a broken one: what fails here fails later with its own error
        observed.pop(home.kind, None)


def store(home: Home, flavour: Flavour, session: Session) -> None:
    """Store the facts that this process has observed, unless they are stored already."""
    facts = observed.get(home.kind)
    if facts is None or session.settings.mode not in ("readwrite", "refresh", "verify"):
        return
    from ...engine.compile import publish
    from ...headers import HeadersRead
    from ...model.built import built_artifact

    request = _request(home, flavour)
    components = session.components(request)
    key = derive(components)
    if session.local.peek(key) is None:
        artifact = built_artifact(request.label, {"facts": facts}, {}, 0.0)
        publish(session, request, components, HeadersRead(), artifact, key)
    _found.pop(session, None)


def _observe(home: Home, flavour: Flavour) -> dict[str, Any]:
    import numpy

    from ...launch.arguments import NUMPY_NAMES
    from .function import Reader
    from .parts import surface

    parts, cuda = surface(flavour), import_module(home.cuda)
    reader = Reader(flavour, False)
    names, forms, modules, added = dict[str, str](), dict[str, Any](), {"": cuda.__name__}, dict[str, list[str]]()
    for path, value in _walk(home, cuda, reader.trust):
        if isinstance(value, ModuleType):
            modules[path] = value.__name__
        elif reader.registrations.of_value(value):
            continue
        elif (pinned := reader.trust.name_of(value)) is not None:
            if not path.startswith("types."):  # device code uses its types, not their classes
                names[path] = pinned
            public = [each for each in dir(value) if each[0] != "_"] if isinstance(value, type) else []
            odd = [each for each in public if reader.is_added(value, each)]
            added |= {path: odd} if odd else {}
        elif value is None or type(value) is int:
            forms[path] = scalar_form(value)
        else:
            with suppress(Refused):
                form = flavour.type_form(value)
                forms |= {} if form is None else {path: form}
    registrations = reader.registrations
    if registrations.of_all or registrations.of_attribute:
        raise Refused("its registries are not empty at the start")
    config = parts.config
    environment = [
        [(each.name, each.value) for each in flavour.code_environment(has_lines=lines)] for lines in (False, True)
    ]
    return {
        "names": names, "forms": forms, "modules": modules, "added": added,
        "scalars": {code: flavour.form_of_type(parts.from_dtype(numpy.dtype(NUMPY_NAMES[code]))) for code in CODES},
        "environment": environment, "debug": config.CUDA_DEBUGINFO_DEFAULT, "opt": config.OPT != 0,
    }  # fmt: skip


def _walk(home: Home, cuda: Any, trust: Trust) -> Iterator[tuple[str, Any]]:
    """Yield each name of device code with its object: in the module `cuda`, and in the modules in that."""
    for name in sorted(home.names | home.modules):
        value = trust.attribute(cuda, name)
        if value is not ABSENT:
            yield name, value
        for inner in dir(value) if name in home.modules and isinstance(value, ModuleType) else ():
            if inner[0] != "_" and not isinstance(getattr(value, inner), ModuleType):
                yield f"{name}.{inner}", getattr(value, inner)
