"""The errors that numba_kcache raises on purpose.

Promise     Every error says what could not be done, why, and what to do next; all can be pickled, so that a worker
            process can send them to its parent. All text for people goes through `plain` or `plain_lines`, so that
            text from a store, a server or a path can neither control a terminal nor forge a second line of a log.
Not here    Failures of the cache: where a store fails there is a miss, a warning and a count, never an exception.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


def plain(text: str) -> str:
    """Escape everything in `text` that a terminal would act on, line feeds included."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """Escape each line of `text` as `plain` does, keep the line feeds, and replace tabs by spaces."""
    return text if text.isprintable() else "\n".join([plain(line.expandtabs()) for line in text.split("\n")])


def in_cells(text: str, path: str) -> str:
    """Replace a path, also `path(line)`, by the name that a notebook's tracebacks have, if it is that of a cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(path)
    if number is None:
        return text
    import re

    placed = re.sub(rf"{re.escape(path)}(?:\(|:)(\d+)\)?", rf"Cell In[{number}], line \1", text)
    return placed.replace(path, f"Cell In[{number}]")


def why_of(error: BaseException) -> str:
    """The reason in an error of the system or of a library, without its number; its class if it has no text."""
    nameless = "not enough memory" if isinstance(error, MemoryError) else type(error).__name__
    return getattr(error, "strerror", None) or str(error) or nameless


def shorten(error: BaseException) -> None:
    """Remove the frames of this package and of Numba from the traceback of `error`; a bare `raise` follows.

    Frames of other code stay, and with `python -X dev` all do. An error that may be a bug of this package keeps its
    frames: one that neither was raised on purpose nor left user code. So does one of Numba that is no refusal.
    """
    own, python = os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep
    steps = _steps(error)
    last = steps[-1].tb_frame.f_code.co_filename if steps else own
    is_own_or_pythons = last.startswith((own, python, "<frozen")) and "-packages" not in last.removeprefix(own)
    is_ours = isinstance(error, KCacheError)
    if sys.flags.dev_mode or (is_own_or_pythons and not is_ours):
        return  # possibly a bug of this package: its frames are needed to find it
    hidden = [own]
    if isinstance(error, _REFUSALS) or type(error).__module__.startswith("numba"):
        hidden += [f"{os.sep}{name}{os.sep}" for name in ("numba", "numba_cuda", "numba_cuda_mlir")]
    if is_ours:  # the message says what the errors said that led to it, unless the user's code raised them
        error.__suppress_context__ = True
        if error.__cause__ is not None and not _kept(_steps(error.__cause__), hidden):
            error.__cause__ = None
    error.__traceback__ = _kept(steps, hidden)


def _misfit(function: Callable[..., Any], args: Any, named: Any) -> OptionError | None:
    """The error for arguments that a function does not take; None if it takes them."""
    import inspect

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **named)
    except TypeError as why:
        own = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
        hint = f"write {function.__name__}{inspect.Signature(own)}"
        return OptionError(f"cannot call {function.__name__}", str(why), hint)
    return None


def _steps(error: BaseException) -> list[TracebackType]:
    steps, step = [], error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    return steps


def _kept(steps: list[TracebackType], hidden: list[str]) -> TracebackType | None:
    """Chain the steps of a traceback again, without those whose file has one of these texts in its path."""
    kept = None
    for step in reversed(steps):
        if not any(part in step.tb_frame.f_code.co_filename for part in hidden):
            kept = TracebackType(kept, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return kept


def shortening(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that users call: errors that leave it have no frames of this package.

    Arguments that it does not take are an OptionError with its parameters.
    """

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except Exception as raised:
            error = (type(raised) is TypeError and _misfit(function, args, named)) or raised
            shorten(error)
            if error is raised:
                raise
            raise error from None

    return call


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


_REFUSALS = (KCacheError, TypeError, ValueError, NotImplementedError)
"""Errors that Numba raises about the user's code or arguments."""


class SettingsError(KCacheError, ValueError):
    """A setting has a value that cannot be used; names the setting, the value and where it came from."""


class OptionError(KCacheError, TypeError):
    """An option of a kernel is unknown, misspelt, out of range or not for this kind of kernel."""


class UnknownTargetError(OptionError):
    """The installed compiler does not compile for the target.

    Attributes:
        newest: The newest target that it compiles for.
    """

    def __init__(self, what: str, why: str, hint: str, newest: Any) -> None:
        super().__init__(what, why, hint)
        self.args = (what, why, hint, newest)
        self.newest = newest


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


class CodeRefusedError(LaunchError):
    """The driver refuses the code of a kernel, or the code contradicts what is recorded about it."""


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
