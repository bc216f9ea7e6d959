"""Signals, forks and subscribers at any instant: a call that re-enters the package never blocks for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_driver import needs_fake_driver, run
from tests.support.storm import SOURCE, prepared

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = f"""
import faulthandler, logging, os, signal, sys, threading, time, weakref
faulthandler.dump_traceback_later(8, exit=True)
import numba_kcache
from numba_kcache import KernelCache, LaunchError, cached_kernel
kernel = cached_kernel({SOURCE!r})
launch = lambda: kernel[1, 32](None, 7)
def in_a_thread(work):
    failed = []
    def body():
        try:
            work()
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join()
    assert not failed, failed
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Make the environment of a process on the fake driver with its own cache and a table with one toy."""
    return prepared(tmp_path)


@pytest.mark.parametrize(("kind", "count"), [("lines", 60), ("signals", 200), ("forks", 12)])
def test_package_survives_what_comes_at_any_instant(environ: dict[str, str], kind: str, count: int) -> None:
    """Handlers launch, compile, look up, clear and configure, and children compile and look up: none hangs."""
    assert run(["-m", "tests.support.storm", f"-{kind}", str(count), "0"], env=environ, timeout_s=60).stdout


def test_subscriber_may_use_the_very_kernel(environ: dict[str, str]) -> None:
    """At each event of its first launch the kernel is launched again and explained, without a deadlock."""
    script = """
heard, depth = [], []
def on_event(event):
    heard.append(event.kind)
    if not depth:
        depth.append(1)
        launch()
        other = KernelCache(numba_kcache.info().directory).get_or_compile(SOURCE)  # with turns of its own
        other.compile("sm_90")
        numba_kcache.info(), kernel.explain(), kernel.key("sm_90")
        depth.clear()
numba_kcache.subscribe(on_event)
launch()
assert {"miss", "compile_begin", "compile_end", "stored", "load"} <= {str(each) for each in heard}, heard
"""
    run(HEAD + f"SOURCE = {SOURCE!r}\n" + script, env=environ)


def test_subscriber_may_wait_for_a_thread_that_launches(environ: dict[str, str]) -> None:
    """No lock is held during the call: the other thread launches, compiles and looks up meanwhile."""
    script = """
depth = []
def on_event(event):
    if not depth:
        depth.append(1)
        in_a_thread(lambda: (launch(), numba_kcache.info(), kernel.explain()))
        depth.clear()
numba_kcache.subscribe(on_event)
launch()
"""
    run(HEAD + script, env=environ)


def test_source_function_may_wait_for_a_thread_that_launches(environ: dict[str, str]) -> None:
    """The function that returns the source is the user's code, for which other threads do not wait long."""
    script = f"""
asked = []
@cached_kernel
def scale() -> str:
    asked.append(1)
    if len(asked) == 1:
        in_a_thread(lambda: scale[1, 32](None, 7))
    return {SOURCE!r}
scale[1, 32](None, 7)
"""
    run(HEAD + script, env=environ)


def test_subscriber_to_an_unusable_directory_may_launch(environ: dict[str, str], tmp_path: Path) -> None:
    """The trouble with a refused directory is reported once, while no lock is held."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    script = """
import warnings
warnings.simplefilter("ignore")
troubles = []
def on_event(event):
    if event.kind == "trouble":
        troubles.append(event)
        launch()
        in_a_thread(launch)
numba_kcache.subscribe(on_event)
launch()
assert len(troubles) == 1, troubles
"""
    run(HEAD + script, env=environ)


@pytest.mark.parametrize("hook", ["log", "warning", "audit", "del", "weakref"])
def test_hook_may_use_the_package(environ: dict[str, str], hook: str) -> None:
    """Handlers of logs and warnings, audit hooks, finalizers and callbacks of weak references launch and ask."""
    script = f"""
hook, inside, came, most = {hook!r}, [], [], {5 if hook in ("del", "weakref") else 40}
def use(*_):
    if not inside and len(came) < most:
        inside.append(1)
        came.append(1)
        launch(), numba_kcache.info("process"), kernel.compile("sm_90")
        inside.clear()
launch()
numba_kcache.info(), kernel.explain(), numba_kcache.clear()
if hook == "log":
    class Handler(logging.Handler):
        def emit(self, record): use()
    logging.getLogger("numba_kcache").addHandler(Handler())
    logging.getLogger("numba_kcache").setLevel(10)
elif hook == "warning":
    import warnings
    warnings.showwarning = use
    warnings.simplefilter("always")
    os.chmod(numba_kcache.info().directory, 0o777)
    numba_kcache.configure(max_size_bytes=1 << 29)
elif hook == "audit":
    sys.addaudithook(lambda event, _: use() if event in ("open", "os.rename", "os.mkdir") else None)
else:
    import gc
    class Cycle:
        def __init__(self): self.self = self
        if hook == "del":
            def __del__(self): use()
    gc.set_threshold(1)
    kept = [weakref.ref(Cycle(), use) for _ in range(3)]
    sys.setprofile(lambda frame, event, _: Cycle() if event == "call" and not inside and len(came) < most else None)
launch()
assert came
"""
    run(HEAD + script, env=environ)


def test_child_launches_if_its_parent_had_not_used_cuda(environ: dict[str, str]) -> None:
    """It is forked while another thread compiles and looks up; it then compiles, looks up, counts and launches."""
    script = """
kernels = [cached_kernel(SOURCE.replace("*= 2", f"*= {n}")) for n in range(3, 7)]
compiling, go_on = threading.Event(), threading.Event()
def on_event(event):
    if event.kind == "compile_end" and threading.current_thread() is not threading.main_thread():
        compiling.set()
        go_on.wait()
numba_kcache.subscribe(on_event)
thread = threading.Thread(target=lambda: [each.compile("sm_90") for each in kernels])
thread.start()
compiling.wait()
child = os.fork()
if child == 0:
    signal.alarm(8)
    for each in kernels:
        each[1, 32](None, 7)
    assert numba_kcache.info("process").misses == len(kernels)
    os._exit(0)
status = os.waitpid(child, 0)[1]
go_on.set()
thread.join()
assert status == 0, status
"""
    run(HEAD + f"SOURCE = {SOURCE!r}\n" + script, env=environ)


def test_child_imports_what_another_thread_was_importing(environ: dict[str, str], tmp_path: Path) -> None:
    """A module that another thread of the parent was importing is imported again in the child."""
    (tmp_path / "slow_import.py").write_text(
        "import threading, __main__\n"
        "if threading.current_thread() is not threading.main_thread():\n"
        "    __main__.begun.set()\n"
        "    __main__.end.wait()\n"
    )
    script = f"""
sys.path.insert(0, {str(tmp_path)!r})
launch()
begun, end = threading.Event(), threading.Event()
thread = threading.Thread(target=__import__, args=("slow_import",))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(8)
    import slow_import
    os._exit(0)
status = os.waitpid(child, 0)[1]
end.set()
thread.join()
assert status == 0, status
"""
    run(HEAD + script, env=environ)


def test_handler_may_come_as_a_subscriber_returns(environ: dict[str, str]) -> None:
    """A signal handler launches at the moment when an event ends its call of subscribers: both launches succeed."""
    script = """
from numba_kcache import model
class Marks(dict):
    def __setitem__(self, thread, depth):
        super().__setitem__(thread, depth)
        if depth == 0 and not came:
            came.append(1)
            kernel[1, 32](None, 7)
came = []
model.IN_USER_CODE = Marks()
from numba_kcache import cached_kernel, subscribe
subscribe(lambda event: None)
"""
    run(script + f"kernel = cached_kernel({SOURCE!r})\nkernel[1, 32](None, 7)\nassert came", env=environ)


def test_launch_at_the_end_of_the_stack_is_a_recursion_error(environ: dict[str, str]) -> None:
    """At every depth of the stack there is no other error and nothing in quarantine, and the next launch works."""
    script = """
ended = set()
def at(depth, kernel):
    if depth:
        return at(depth - 1, kernel)
    try:
        kernel[1, 32](None, 7)
        ended.add("launched")
    except RecursionError:
        ended.add("refused")
for depth in range(990, 900, -5):
    at(depth, cached_kernel(SOURCE))
launch()
assert ended == {"launched", "refused"}, ended
assert not numba_kcache.info("process").errors and not numba_kcache.verify()
"""
    run(HEAD + f"SOURCE = {SOURCE!r}\n" + script, env=environ)
