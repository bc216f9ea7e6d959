"""How tests start programs of other packages: a machine without one skips, and no machine hides that it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import program, starts_programs


def test_program_that_is_missing_skips_the_test_with_the_package_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what to install, where that is known."""
    monkeypatch.setenv("PATH", "")

    for name, reason in (("git", "no git on PATH: apt-get install git"), ("unheard-of", "no unheard-of on PATH")):
        with pytest.raises(pytest.skip.Exception) as skipped:
            program(name)
        assert str(skipped.value) == reason


def test_program_is_started_by_its_path_alone(tmp_path: Path) -> None:
    """A bare name fails, although the program is there; a path, a shell and this Python do not."""
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(0o755)

    for start in (subprocess.run, subprocess.call, subprocess.check_output, subprocess.Popen):
        with pytest.raises(AssertionError, match=r"program\('cat'\)"):
            start(["cat", "/dev/null"])
    words = ([tool], tool, ["sh", tool], [sys.executable, "-c", "exit(4)"])
    assert [subprocess.call(each) for each in words] == [3, 3, 3, 4]


def test_tests_that_reach_a_program_through_support_are_of_the_lane() -> None:
    """By a function, or by a class that a function makes; what only stands in the same module is none of them."""
    from tests.support.redis_server import RedisServer

    assert starts_programs(test_program_that_is_missing_skips_the_test_with_the_package_s_name)
    assert starts_programs(RedisServer)
    assert not starts_programs(test_program_is_started_by_its_path_alone)
