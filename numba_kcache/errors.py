"""The errors that numba_kcache raises on purpose.

Promise     Every error says what could not be done, why, and what to do next; all can be pickled, so that a worker
            process can send them to its parent. All text for people goes through `plain` or `plain_lines`, so that
            text from a store, a server or a path can neither control a terminal nor forge a second line of a log.
Not here    Failures of the cache: where a store fails there is a miss, a warning and a count, never an exception.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


def plain(text: str) -> str:
    """Escape everything in `text` that a terminal would act on, line feeds included."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """Escape each line of `text` as `plain` does, keep the line feeds, and replace tabs by spaces."""
    return text if text.isprintable() else "\n".join([plain(line.expandtabs()) for line in text.split("\n")])


def shortened(error: Exception) -> Exception:
    """Remove this package's frames from the traceback of `error`; public functions use it in `raise`.

    Only errors raised on purpose, or by code that belongs neither to this package nor to Python, are shortened, and
    no frame of other code is removed. Under `python -X dev` all frames stay.
    """
    own, python = os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep
    steps, step = [], error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    last = steps[-1].tb_frame.f_code.co_filename if steps else own
    is_own_or_pythons = last.startswith((own, python, "<frozen")) and "-packages" not in last.removeprefix(own)
    if sys.flags.dev_mode or (is_own_or_pythons and not isinstance(error, KCacheError)):
        return error  # possibly a bug of this package: its frames are needed to find it
    kept = None
    for step in reversed(steps):
        if not step.tb_frame.f_code.co_filename.startswith(own):
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return error.with_traceback(kept)


class KCacheError(Exception):
    """The root of all errors raised on purpose: says what could not be done, why, and what to do next.

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
        log: The compiler's whole output, with lines of the user's own file where they are known.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what, why, hint)
        self.args = (what, why, hint, log)
        self.log = log


class LinkError(CompileError):
    """nvJitLink refused the inputs; `log` has its whole output."""


class ArgumentError(KCacheError, TypeError):
    """An argument of a launch does not fit the kernel's parameter; nothing has been queued."""


class LaunchConfigError(KCacheError, ValueError):
    """Grid, block, shared memory or stream of a launch cannot be used; nothing has been queued."""


class LaunchError(KCacheError):
    """The driver refused a launch or a load, or a launch failed on the device."""


class UncacheableError(KCacheError):
    """The kernel cannot be keyed, and the caller requested a cached one or nothing."""

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint or "remove the cause; without strict=True a launch runs the kernel uncached")


class FrozenCacheError(KCacheError):
    """The kernel is not in the cache, and `mode="frozen"` forbids to compile it."""


class BundleError(KCacheError):
    """A bundle is damaged, not trusted, or of a format this version cannot read."""


class KCacheWarning(UserWarning):
    """Part of the cache cannot be used, or a kernel runs uncached. Issued once per subject and process."""
