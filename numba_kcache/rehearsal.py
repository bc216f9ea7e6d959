"""Run the warm path once on nothing, at the first decoration, so that the first launch finds it ready.

Promise     Reads three files of the cache at most, writes nothing, calls no driver, loads no compiler and runs nothing
            of the user's. Whatever goes wrong is met again, and told, at the first use.
Method      Most of a warm start's time is the first use of each function, decoder and digest, not work: in a fresh
            process the path of 0.3 ms takes 1.2 ms the first time. So a made-up entry is keyed, framed, read back, and
            launched with a driver that does nothing; for Numba kernels, which have a path of their own, with arguments
            of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import KCacheError
from .inputs.source import SourceDefinition
from .jobs import CUDA_SOURCE, source_job
from .keys.components import component, derive
from .launch.arguments import Launcher
from .launch.config import DeviceLimits, check_launch, launch_shape
from .launch.numba_abi import flatten
from .launch.numba_arguments import NumbaLauncher, slots_of
from .launch.numba_dispatcher import declare, rehearsal_types, types_of
from .launch.pointers import Surroundings
from .model.artifact import Artifact, Entry, artifact_from_header, artifact_header
from .model.options import CompileOptions
from .model.parameter import Parameter
from .model.request import Origin
from .model.target import Target
from .numba_jobs import NUMBA_KERNEL, NumbaPlan, numba_job, read_function
from .plans import source_plan
from .process_cache import process_resolver
from .resolver import Resolver
from .store.entry import StoredEntry, decode_entry, encode_entry

MadeBy = tuple[tuple[str, ...], tuple[str, ...]]
"""Which kind of kernel, by what takes part in making one: `CUDA_SOURCE` or `NUMBA_KERNEL`."""

_TARGET = Target(9, 0, "a")
_PARAMETERS = (Parameter(0, 4, "f4", "float"), Parameter(8, 8, "*f4", "float*"), Parameter(16, 4, "i4", "int"))
_SCALE = 2.0

_done: set[tuple[MadeBy, bool]] = set()


def rehearse(resolver: Resolver | None, made_by: MadeBy = CUDA_SOURCE, *, is_keyed: bool = False) -> None:
    """Rehearse a kind of kernel once for the process's cache (None), and once for any other cache.

    For Numba kernels `numba.cuda` has been imported; where one `is_keyed` already, read ahead of its use, that was
    the rehearsal of reading and keying.
    """
    is_process_cache = resolver is None
    if (made_by, is_process_cache) in _done:
        return
    _done.add((made_by, is_process_cache))
    try:
        if made_by == NUMBA_KERNEL and not is_keyed:
            rehearse(resolver)  # half of the way is the same
        (process_resolver() if resolver is None else resolver).prepare(made_by)
        if made_by == NUMBA_KERNEL:
            _type_key_and_launch(is_keyed=is_keyed)
            return
        _key_and_read()
        _launch(_PARAMETERS, (1.0, _Lent(), 1))
    except KCacheError:
        pass


class _Lent:
    """Memory that is nobody's, as other libraries' arrays show theirs."""

    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "strides": None, "version": 3}  # noqa: RUF012


def _key_and_read() -> None:
    definition = SourceDefinition("cuda", "rehearsal", "k", Origin(), "", lambda: "")
    job = source_job(source_plan(definition, None, CompileOptions()), "", _TARGET, None)
    key = derive((*job.components, component("compilers", {"nvrtc": ""}), component("versions", {"numba": ""})))
    entry = Entry("k", "k", _PARAMETERS, True)
    artifact = Artifact("cuda", _TARGET, (entry,), bytes(1024), extras={"log": b""})
    stored = StoredEntry(key, artifact_header(artifact), {"cubin": artifact.cubin, **artifact.extras})
    found = decode_entry(encode_entry(stored), key)
    artifact_from_header(found.header, found.payloads)


def _type_key_and_launch(*, is_keyed: bool) -> None:
    """What a Numba kernel does otherwise than a source."""
    arguments = (2.0, 1)
    types = types_of(arguments)
    if not is_keyed:
        plan = NumbaPlan(declare(_kernel, {}), "rehearsal")
        derive(numba_job(plan, read_function(plan), rehearsal_types(), _TARGET, None).components)
    flat = flatten(types)
    slots_of(rehearsal_types(), flatten(rehearsal_types()))
    words = "".join(each.letters for each in flat)
    parameters = [Parameter(8 * index, 8, {"q": "i8", "d": "f8"}[word]) for index, word in enumerate(words)]
    slots = slots_of(types, flat)
    _launch(parameters, arguments, NumbaLauncher, slots=slots, otherwise=lambda _config, _arguments: None)


def _kernel(x: Any, out: Any) -> None:
    for i in range(len(x)):
        out[i] = _scaled(x[i])


def _scaled(value: Any) -> Any:
    return value * _SCALE


def _launch(
    parameters: Sequence[Parameter], arguments: tuple[Any, ...], make: type[Launcher] = Launcher, **more: Any
) -> None:
    shape = launch_shape(1, (1, 1), 0)
    check_launch(shape, DeviceLimits((1, 1, 1), (1, 1, 1), 1, 0))
    launcher = make(
        "rehearsal",
        parameters,
        typed=True,
        function=0,
        driver=NoDriver,
        around=Surroundings(device=0, order_after=lambda _producer, _consumer: None),
        live=[True],
        **more,
    )
    launcher.bind(shape)(*arguments)


class NoDriver:
    """Answers as `cuda.bindings.driver` would, and does nothing."""

    CUstream = int

    @staticmethod
    def cuCtxGetDevice() -> tuple[int, int]:
        return 0, 0

    @staticmethod
    def cuLaunchKernel(*_arguments: Any) -> tuple[int]:
        return (0,)
