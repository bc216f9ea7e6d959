"""Observe the facts of a Numba that this package has just imported, and store them for later processes.

Not here    What they are for, and finding them (stand_in).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from ...engine import Request, Session
from ...engine.built import built_artifact
from ...engine.compile import publish
from ...headers import HeadersRead
from ...keys import derive
from ...launch import NUMPY_NAMES
from ...settings import import_path
from ...store import json_of
from .. import front_end
from . import Flavour, surface
from .fingerprint import ABSENT, Reader, Refused, Trust, scalar_form
from .stand_in import CONFIG_FILE, HOMES, SCALARS, Facts, Home, facts_of, found_in, request_of

_observed: dict[str, tuple[Request, bytes]] = {}
"""The facts that this process observed, by kind, as they are stored; the request has the settings of that time."""


def learn(home: Home) -> None:
    """Observe the facts of a Numba that this package has just imported."""
    flavour = front_end(home.kind).flavour
    try:
        if not (os.path.exists(CONFIG_FILE) or flavour.setting("ENABLE_CUDASIM")):
            _observed[home.kind] = request_of(home, flavour), _observe(home, flavour)
    except Exception:  # another version of Numba, or a broken one: what fails here fails later with its own error
        _observed.pop(home.kind, None)


def store(home: Home, session: Session) -> None:
    """Store the facts that this process has observed, unless they are stored already."""
    request, facts = _observed.get(home.kind, (None, b""))
    if request is None or not session.stores:
        return
    components = session.components(request)
    key = derive(components)
    if session.local.peeking.get(key) is None:
        artifact = built_artifact(request.label, {"facts": facts}, {}, 0.0)
        publish(session, request, components, HeadersRead(), artifact, key)
    found_in.pop(session, None)


_OBSERVE = """
import sys
sys.path[:] = {path!r}
from numba_kcache.frontends.numba import learning, stand_in
import {name}
stand_in.real(stand_in.HOMES[{kind!r}], "")
print(learning._observed[{kind!r}][1].hex())
"""

_LONGEST_S = 60.0


def record(session: Session, kinds: Iterable[str]) -> bool:
    """Observe the facts in a process of their own and store them: programs that import Numba themselves store none.

    Args:
        session: Where kernels are stored.
        kinds: Their kinds.

    Returns:
        Whether facts were not known before, and are now.
    """
    missing = [each for each in HOMES.keys() & kinds if isinstance(_known(each, session), str)]
    for kind in missing:
        request, path = request_of(HOMES[kind], front_end(kind).flavour), import_path()
        command = [sys.executable, "-c", _OBSERVE.format(path=path, kind=kind, name=HOMES[kind].module)]
        with suppress(OSError, ValueError, subprocess.SubprocessError):  # the kernels need no facts where Numba is
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=True
            )
            _observed[kind] = request, bytes.fromhex(done.stdout.splitlines()[-1].decode())
            store(HOMES[kind], session)
    return any(isinstance(_known(each, session), Facts) for each in missing)


def _known(kind: str, session: Session) -> Facts | str:
    return facts_of(HOMES[kind], front_end(kind).flavour, session)


def _observe(home: Home, flavour: Flavour) -> bytes:
    import numpy

    parts, cuda = surface(flavour), import_module(home.cuda)
    reader = Reader(flavour, False)
    names, modules = dict[str, Any](), {"": cuda.__name__}
    for path, value in _walk(home, cuda, reader.trust):
        if isinstance(value, ModuleType):
            modules[path] = value.__name__
        elif reader.registrations.of_value(value):
            continue
        elif (pinned := reader.trust.name_of(value)) is not None:
            public = [each for each in dir(value) if each[0] != "_"] if isinstance(value, type) else []
            if not path.startswith("types."):  # device code uses its types, not their classes
                names[path] = {"name": pinned, "added": [each for each in public if reader.is_added(value, each)]}
        elif value is None or type(value) is int:
            names[path] = {"form": scalar_form(value)}
        else:
            with suppress(Refused):
                form = flavour.type_form(value)
                names |= {} if form is None else {path: {"form": form}}
    registrations = reader.registrations
    if registrations.of_all or registrations.of_attribute:
        raise Refused("its registries are not empty at the start")
    config = parts.config
    environment = [
        [(each.name, each.value) for each in flavour.code_environment(has_lines=lines)] for lines in (False, True)
    ]
    needed = {
        "modules": modules, "environment": environment,
        "scalars": {
            code: flavour.form_of_type(parts.from_dtype(numpy.dtype(NUMPY_NAMES[code]))) for code in SCALARS
        },
        "options": flavour.observed_options(), "debug": bool(config.CUDA_DEBUGINFO_DEFAULT), "opt": config.OPT != 0,
    }  # fmt: skip
    # an empty line behind the first: each name is found behind the end of a line
    lines = [f"{json_of(needed)}\n", *(f"{path} {json_of(each)}" for path, each in names.items()), ""]
    return "\n".join(lines).encode()


def _walk(home: Home, cuda: Any, trust: Trust) -> Iterator[tuple[str, Any]]:
    """Yield each name of device code with its object: in the module `cuda`, and in the modules in that."""
    for name in sorted(home.names | home.modules):
        value = trust.attribute(cuda, name)
        if value is not ABSENT:
            yield name, value
        for inner in dir(value) if name in home.modules and isinstance(value, ModuleType) else ():
            if inner[0] != "_" and not isinstance(getattr(value, inner), ModuleType):
                yield f"{name}.{inner}", getattr(value, inner)
