"""Processes to ask from: forked off a process that has loaded no compiler, told what to call by a pipe.

A called function may stop at a moment of its work (`reach`) until the caller has done what belongs there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

ANSWER_S = 120.0


class Gone(Exception):
    """The process died, or did not answer in time."""


class Child:
    """A forked process that calls functions one after another and keeps what they leave in memory."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            try:
                self._pipe.close()
                _serve(theirs, parent)
            finally:  # the work of the process that was forked goes on there alone
                os._exit(0)
        theirs.close()

    def call(self, function: Callable[..., Any], *arguments: Any, at: Callable[[str], Any] = str) -> Any:
        """The function's result in that process.

        Args:
            function, arguments: What is called there.
            at: Called here with each moment that it reaches.

        Raises:
            Gone: It died, or takes longer than `ANSWER_S`.
            RuntimeError: The function raised; its traceback is the message.
        """
        try:
            self._pipe.send((function, arguments))
            while True:
                if not self._pipe.poll(ANSWER_S):
                    raise Gone(f"no answer in {ANSWER_S} s")
                is_result, answer = self._pipe.recv()
                if is_result is not None:
                    break
                self._pipe.send(at(answer))
        except (EOFError, ConnectionError) as error:
            raise Gone("the process died") from error
        if not is_result:
            raise RuntimeError(answer)
        return answer

    def end(self) -> None:
        """End the process and wait for it."""
        self._pipe.close()
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def alone(function: Callable[..., Any], *arguments: Any, at: Callable[[str], Any] = str) -> Any:
    """The function's result in a fresh process, as by `Child.call`."""
    child = Child()
    try:
        return child.call(function, *arguments, at=at)
    finally:
        child.end()


def reach(moment: str) -> Any:
    """Wait, in a function that was called, until the caller's `at` has returned for this moment; its result."""
    _caller[-1].send((None, moment))
    return _caller[-1].recv()


_caller: list[Any] = []
"""The pipe of this process, if it is a forked one."""


def _serve(pipe: Any, parent: int) -> None:
    _caller.append(pipe)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 1)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    while True:
        while not pipe.poll(5.0):
            if os.getppid() != parent:
                return
        function, arguments = pipe.recv()
        try:
            answer = True, function(*arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)
