"""A trial writes and reads one small file that is neither an entry nor a manifest, and words each failure."""

from __future__ import annotations

from typing import NoReturn

import pytest

from numba_kcache.errors import KCacheError
from numba_kcache.store import ENTRY
from numba_kcache.tiers.tier import round_trip
from numba_kcache.tiers.trust import SIGNATURE


class Tier:
    """A tier that notes the kinds of files it is asked for."""

    name, is_remote, is_trusted = "toy", True, False

    def __init__(self, *, readonly: bool = False, forgets: bool = False) -> None:
        self.readonly, self.forgets = readonly, forgets
        self.files: dict[tuple[int, str], bytes] = {}
        self.asked: list[tuple[str, int]] = []

    def get(self, kind: int, key: str) -> bytes | None:
        self.asked.append(("get", kind))
        return self.files.get((kind, key))

    def put(self, kind: int, key: str, data: bytes) -> None:
        self.asked.append(("put", kind))
        if not self.forgets:
            self.files[kind, key] = data


def tried(tier: Tier) -> tuple[str, str]:
    """Reason and hint of a trial's failure, empty where there was none."""
    trial = round_trip(tier)  # type: ignore[arg-type]
    return trial.why, trial.hint


def test_writable_tier_gets_a_file_of_its_own_kind() -> None:
    """The file's kind is neither entry nor manifest, so readers of the tier skip it."""
    tier = Tier()

    assert tried(tier) == ("", "")
    assert tier.asked == [("put", ENTRY + SIGNATURE), ("get", ENTRY + SIGNATURE)]


def test_read_only_tier_is_asked_for_an_entry_as_a_launch_would() -> None:
    """Nothing is written, and an answer of "not there" is a success."""
    tier = Tier(readonly=True)

    assert tried(tier) == ("", "")
    assert tier.asked == [("get", ENTRY)]


def test_tier_that_forgets_what_was_written_fails() -> None:
    """A bucket that accepts files and keeps none would cost an upload for every compile."""
    assert tried(Tier(forgets=True)) == ("the file that was just written cannot be read", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KCacheError("cannot reach it", "nobody listens", "start the server"),
         ("cannot reach it: nobody listens", "start the server")),
        (KCacheError("cannot reach it"), ("cannot reach it", "")),
        (OSError("disk on fire\nand more"), ("disk on fire", "")),
        (TimeoutError(), ("TimeoutError", "")),
    ],
)  # fmt: skip
def test_failure_is_said_in_the_words_of_its_error(error: Exception, said: tuple[str, str]) -> None:
    """An error of this package is shown with reason and hint, any other by its first line or its class."""
    tier = Tier()

    def fail(kind: int, key: str) -> NoReturn:
        raise error

    tier.get = fail  # type: ignore[method-assign]
    assert tried(tier) == said
