"""The command `numba-kcache`, and `python -m numba_kcache`.

Method      `run` with a program starts it at once: it must add no more than `install()` does. The command line's own
            modules, which parse everything else, take longer to import than all that a cached kernel needs.
"""

from __future__ import annotations

import sys
from itertools import takewhile

from .numba_hook import run_program


def main() -> int:
    """Run the process's command line and return its exit code."""
    options = list(takewhile(("--all", "-m").__contains__, sys.argv[2:]))
    words = sys.argv[2 + len(options) :]
    if sys.argv[1:2] == ["run"] and words and not words[0].startswith("-"):
        return run_program(words, "--all" in options, "-m" in options)
    from .cli import main as main_of_verbs

    return main_of_verbs()


if __name__ == "__main__":
    sys.exit(main())
