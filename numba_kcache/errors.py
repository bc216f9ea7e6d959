"""The errors that numba_kcache raises on purpose.

Promise     Every one says what could not be done, why, and what to do next; all survive pickling, so that
            a worker process can hand them to its parent. Their text, and all other that is for people, goes through
            `plain` or `plain_lines` on its way out: nothing that a store, a server or a path holds is obeyed by a
            terminal, or makes a second line of a log.
Not here    Cache trouble. A store that fails is a miss, a warning and a count, never an exception.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def plain(text: str) -> str:
    """`text` on one line without what a terminal would act on."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """`text` with its lines, each of them plain, and with spaces for tabs."""
    return text if text.isprintable() else "\n".join([plain(line.expandtabs()) for line in text.split("\n")])


def shortened(error: Exception) -> Exception:
    """`error` with a traceback that has none of this package's frames; for `raise`, in what users call.

    Only an error that is raised on purpose, or that comes out of code which is neither this package's nor Python's own,
    is shortened, and nobody else's frame is left out. Under `python -X dev` all of them stay.
    """
    own, python = os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep
    steps, step = [], error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    last = steps[-1].tb_frame.f_code.co_filename if steps else own
    is_pythons = last.startswith((own, python, "<frozen")) and "-packages" not in last.removeprefix(own)
    if sys.flags.dev_mode or (is_pythons and not isinstance(error, KCacheError)):
        return error  # it may be a bug of this package, whose place has to be seen
    kept = None
    for step in reversed(steps):
        if not step.tb_frame.f_code.co_filename.startswith(own):
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return error.with_traceback(kept)


class KCacheError(Exception):
    """Root of all errors raised on purpose. Says what happened, why, and what to do.

    Args:
        what: What could not be done, as `cannot ...`.
        why: The reason, with the number or name that shows it.
        hint: The next step for the user.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)  # pickle hands args back to __init__
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        return plain_lines(self.what + (self.why and f": {self.why}") + (self.hint and f"\n  hint: {self.hint}"))


class SettingsError(KCacheError, ValueError):
    """A setting has a value that cannot be used; names the setting, the value and where it came from."""


class OptionError(KCacheError, TypeError):
    """An option of a kernel is unknown, misspelt, out of range or not for this kind of kernel."""


class EntryError(KCacheError, LookupError):
    """The source has no kernel of the wanted name, none at all, or several to choose from."""


class NoDeviceError(KCacheError):
    """A launch, or `arch="auto"`, needs a CUDA device and there is none."""


class ToolchainMissingError(KCacheError, ImportError):
    """A compiler library, header tree or Python package that this request needs is not installed."""


class CompileError(KCacheError):
    """The compiler refused the source.

    Attributes:
        log: All the compiler said, with lines of the user's own file where they are known.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what, why, hint)
        self.args = (what, why, hint, log)
        self.log = log


class LinkError(CompileError):
    """nvJitLink refused the inputs; `log` holds all it said."""


class ArgumentError(KCacheError, TypeError):
    """An argument of a launch does not fit the kernel's parameter; nothing has been queued."""


class LaunchConfigError(KCacheError, ValueError):
    """Grid, block, shared memory or stream of a launch cannot be used; nothing has been queued."""


class LaunchError(KCacheError):
    """The driver refused a launch or a load, or a launch failed on the device."""


class UncacheableError(KCacheError):
    """The kernel cannot be keyed, and the caller asked for a cached one or nothing."""

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint or "take that out; a launch without strict=True compiles it uncached")


class FrozenCacheError(KCacheError):
    """`mode="frozen"`, and the kernel is not in the cache."""


class BundleError(KCacheError):
    """A bundle is damaged, not trusted, or of a format this version cannot read."""


class KCacheWarning(UserWarning):
    """The cache goes on without something, or a kernel runs uncached. Said once per subject and process."""
