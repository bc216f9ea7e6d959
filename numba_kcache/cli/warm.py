"""The verb `warm`, which compiles kernels ahead."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from ..errors import KCacheError
from ..frontends import require_lasting
from ..observe.console import count
from .verb import Result, arch_argument, argument, import_from_here, targets_of, verb

if TYPE_CHECKING:
    from ..cache import KernelCache


@verb(
    argument("what", help="a module's dotted name, or a .py file", metavar="MODULE|FILE", nargs="+"),
    arch_argument("targets: sm_80,sm_90, or native for the devices here; may be given several times"),
    argument("--workers", help="processes that compile; default: one for each core", metavar="N", type=count),
)
def _warm(cache: KernelCache, arguments: Namespace) -> Result:
    """Compile the kernels of modules ahead.

    The modules are imported, also from the working directory. Their kernels (cached_kernel, cached_module) are
    compiled for each target and stored, unless they are stored already. Kernels are found under names of the
    module, in its classes, and in lists, tuples, sets and dicts. With --arch no GPU is needed, unless it is
    native. Numba kernels need signature=. Exits with 1 unless every kernel is stored.
    """
    targets, error = targets_of(arguments), ""
    require_lasting(cache.session, "warm up")
    import_from_here()
    try:
        report = cache.warm_up(arguments.what, targets, workers=arguments.workers, progress=not arguments.json)
    except KCacheError as raised:
        failed: Any = raised
        if not hasattr(failed, "report"):
            raise
        report, hint = failed.report, "correct these, and warm up again"
        error = f"\n{failed.what}: {failed.why.splitlines()[0]}\n\n{failed.log}\n  hint: {hint}"
    is_live = sys.stderr is not None and sys.stderr.isatty()  # there the bar vanishes; elsewhere each is a line already
    value = {**report._asdict(), "results": [each._asdict() for each in report.results]}
    return Result(value, f"{report}{error}", 1 if report.failed else 0, report.table() if is_live else None)
