"""Run a Numba kernel's warm path once on nothing, at the first decoration, so that the first launch finds it ready.

Promise     As in `rehearsal`: nothing is written, no driver is called, no compiler loaded, nothing of the user's run.
"""

from __future__ import annotations

from typing import Any

from .errors import KCacheError
from .keys.components import derive
from .launch.config import launch_shape
from .launch.numba_abi import flatten
from .launch.numba_arguments import NumbaLauncher, slots_of
from .launch.numba_dispatcher import make_dispatcher, rehearsal_types, types_of
from .launch.pointers import Surroundings
from .model.parameter import Parameter
from .model.target import Target
from .numba_jobs import NUMBA_KERNEL, NumbaPlan, numba_job, read_function
from .rehearsal import NoDriver, rehearse
from .resolver import Resolver, process_resolver

_SCALE = 2.0

_done: set[bool] = set()


def rehearse_numba(resolver: Resolver | None) -> None:
    """Rehearse once for the process's cache and once for any other; `numba.cuda` has been imported."""
    rehearse(resolver)
    is_process_cache = resolver is None
    if is_process_cache in _done:
        return
    _done.add(is_process_cache)
    try:
        (process_resolver() if resolver is None else resolver).prepare(NUMBA_KERNEL)
        arguments = (2.0, 1)
        types = types_of(arguments)
        plan = NumbaPlan(make_dispatcher(_kernel, {}), "rehearsal")
        derive(numba_job(plan, read_function(plan), rehearsal_types(), Target(9, 0, "a"), None).components)
        _launch(types, arguments)
    except KCacheError:
        pass


def _kernel(x: Any, out: Any) -> None:
    for i in range(len(x)):
        out[i] = _scaled(x[i])


def _scaled(value: Any) -> Any:
    return value * _SCALE


def _launch(types: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
    slots_of(rehearsal_types())
    words = "".join(each.letters for each in flatten(types))
    parameters = [Parameter(8 * index, 8, {"q": "i8", "d": "f8"}[word]) for index, word in enumerate(words)]
    launcher = NumbaLauncher(
        "rehearsal",
        parameters,
        typed=True,
        function=0,
        driver=NoDriver,
        around=Surroundings(device=0, order_after=lambda _producer, _consumer: None),
        live=[True],
        slots=slots_of(types),
        otherwise=lambda _config, _arguments: None,
    )
    launcher.bind(launch_shape(1, (1, 1), 0))(*arguments)
