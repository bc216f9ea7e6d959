"""Have many processes of two users share a store while a third user of their group plants links and swaps folders.

Run         python -m tests.support.chaos SECONDS FOLDER [PROCESSES] [SEED], as root, with setpriv of util-linux. The
            exit code is 1 if a promise was broken.
Promise     No file in a folder that a planted link leads to is touched, replaced or removed. Each process ends by
            itself or by the signal that it was sent, and none hangs. In the end no stored entry is damaged.
Method      Workers launch, list, prune, clear, verify and explain on the fake driver, in the shared store or in their
            user's store in a folder that everybody may write to. They are killed and stopped at random. The intruder
            renames folders, shards, files and the store itself, and puts links, FIFOs, folders and hard links in their
            place. All processes may read every file, so that this repository may be in a private folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numba_kcache
from tests.support.storm import launch, new_kernel, prepared

GROUP, USERS, INTRUDER = 54320, (54322, 54323), 54324
HANG_S = 150
NAMES = ("a", "ab" * 31, "0" * 62, "ab" * 32, "1." + "ab" * 8, "2020-01-01.jsonl", "total", "evict.lock")
"""Files in the foreign folders: the first name is of another program, the others have the form of a store's files."""

FOLDERS = ("entries", "manifests", "records", "locks", "quarantine")


def work(seconds: float) -> None:
    """Launch kernels for so many seconds, with other calls of the cache at random between the launches."""
    warnings.simplefilter("ignore")
    chance, end_s = random.Random(), time.monotonic() + seconds
    while time.monotonic() < end_s:
        kernel = new_kernel(chance.randrange(60))
        launch(kernel)
        verb = chance.choices(range(8), (40, 5, 3, 2, 1, 2, 3, 4))[0]
        if verb == 1:
            numba_kcache.info()
        elif verb == 2:
            list(numba_kcache.entries())
        elif verb == 3:
            numba_kcache.prune(max_size_bytes=20_000)
        elif verb == 4:
            numba_kcache.clear()
        elif verb == 5:
            numba_kcache.verify()
        elif verb == 6:
            kernel.explain("sm_90")
        elif verb == 7:
            numba_kcache.configure(max_size_bytes=chance.randrange(10**6, 10**9))


def intrude(shared: Path, parent: Path, foreign: list[Path], seconds: float) -> None:
    """Put links and other objects in the place of the store's files and folders, and remove them again."""
    chance, end_s, done = random.Random(), time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < end_s:
        time.sleep(chance.uniform(0, 0.02))
        try:
            done[_intrusion(shared, parent, chance.choice(foreign), chance)] += 1
        except (OSError, IndexError):
            done["failed"] += 1
    print(dict(done))


def _intrusion(shared: Path, parent: Path, target: Path, chance: random.Random) -> str:
    tree, aside = shared / "v1", shared / f"aside{chance.randrange(10**9)}"
    folder = tree / chance.choice(FOLDERS)
    way = chance.choices(range(7), (2, 4, 4, 4, 3, 6, 0.1))[0]
    if way == 0:
        folder.rename(aside)
        folder.symlink_to(target)
        return "folder became a link"
    if way == 1:
        (folder / f"{chance.randrange(256):02x}").symlink_to(target)
        return "shard planted"
    if way == 2:
        found = _inside(folder, chance)
        found.rename(aside)
        found.symlink_to(target if chance.random() < 0.5 else target / chance.choice(NAMES))
        return "shard or file became a link"
    if way == 3:
        found = _inside(_inside(folder, chance), chance)
        found.rename(aside)
        chance.choice((os.mkfifo, os.mkdir, lambda path: os.link(target / "a", path)))(found)
        return "file became a FIFO, a folder or a hard link"
    if way == 4:
        own = _inside(parent, chance)
        own.rename(parent / aside.name)
        if chance.random() < 0.5:
            own.symlink_to(target)
        else:
            own.mkdir(0o777)
        time.sleep(0.05)
        own.unlink() if own.is_symlink() else own.rmdir()
        return "directory swapped"
    if way == 5:
        remove_planted(shared)
        return "planted things removed"
    tree.rename(aside)
    tree.symlink_to(target)
    return "tree became a link"


def _inside(folder: Path, chance: random.Random) -> Path:
    return folder / chance.choice(os.listdir(folder)) if folder.is_dir() and not folder.is_symlink() else folder


def remove_planted(shared: Path) -> None:
    """Remove links and FIFOs from the store."""
    for root, folders, files in os.walk(shared):
        for path in (Path(root, name) for name in (*folders, *files)):
            with contextlib.suppress(OSError):
                if path.is_symlink() or stat.S_ISFIFO(path.lstat().st_mode):
                    path.unlink()


class Chaos:
    """One run: folders, users and processes.

    Args:
        root: An empty folder; all users get access to it.
        seed: The seed of the random kills, stops and users.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.environ = prepared(root) | {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        self.environ.pop("NUMBA_KCACHE_DURABILITY")
        self.shared, self.parent = root / "shared", root / "parent"
        self.shared.mkdir()
        os.chown(self.shared, USERS[0], GROUP)
        self.shared.chmod(0o2770)
        self.parent.mkdir()
        self.parent.chmod(0o777)
        self.foreign = [self._foreign_of(user) for user in USERS]
        for path in root.glob("*.*"):
            path.chmod(0o644)
        root.chmod(0o755)
        self.running: dict[subprocess.Popen[str], tuple[float, Path]] = {}
        self.tally = Counter[str]()
        self.findings: list[str] = []

    def _foreign_of(self, user: int) -> Path:
        folder = self.root / f"foreign{user}"
        for inner in (folder, *(folder / f"{number:02x}" for number in range(0, 256, 16))):
            inner.mkdir()
            for name in NAMES:
                (inner / name).write_text("mine")
                os.chown(inner / name, user, GROUP)
                (inner / name).chmod(0o660)
            os.chown(inner, user, GROUP)
            inner.chmod(0o750)
        return folder

    def state(self) -> dict[str, Any]:
        """Names, status and contents of everything in the foreign folders, without the counts of hard links."""
        found: dict[str, Any] = {}
        for folder in self.foreign:
            for root, folders, files in os.walk(folder):
                status = os.lstat(root)
                found[root] = status.st_mode, status.st_uid, sorted(folders), sorted(files)
                for path in (Path(root, name) for name in files):
                    status = path.lstat()
                    named = status.st_ino, status.st_size, status.st_mode, status.st_uid, status.st_gid
                    found[str(path)] = *named, status.st_mtime_ns, path.read_text()
        return found

    def start(self, user: int, *command: str, store: Path | None = None, error: Path) -> subprocess.Popen[str]:
        """Start a Python module as a user of the group who may read every file."""
        reads = "+dac_read_search"
        become = ("setpriv", f"--reuid={user}", f"--regid={GROUP}", f"--groups={GROUP}",
                  f"--inh-caps={reads}", f"--ambient-caps={reads}")  # fmt: skip
        settings = {"NUMBA_KCACHE_DIR": str(store)} if store else {}
        if store == self.shared:
            settings["NUMBA_KCACHE_SHARED"] = "1"
        with error.open("w") as stderr:
            return subprocess.Popen(
                [*become, sys.executable, "-m", *command],
                env=self.environ | settings,
                umask=0o077 if user % 2 else 0o022,
                stdout=subprocess.PIPE if store is None or "verify" in command else subprocess.DEVNULL,
                stderr=stderr,
                text=True,
            )

    def run(self, seconds: float, processes: int) -> None:
        """Keep so many workers running, kill and stop some, run the intruder beside them, and verify the stores."""
        before, end_s = self.state(), time.monotonic() + seconds
        arguments = (str(self.shared), str(self.parent), ":".join(map(str, self.foreign)), str(seconds - 3))
        intruder = self.start(INTRUDER, "tests.support.chaos", "intrude", *arguments, error=self.root / "intruder")
        while time.monotonic() < end_s and not self.findings:
            while len(self.running) < processes:
                self._start_worker()
            time.sleep(0.05)
            self._disturb()
            self._reap()
            if self.state() != before:
                self.findings.append("a foreign file was touched")
        print("intruder:", intruder.communicate()[0].strip())
        for each in self.running:
            each.send_signal(signal.SIGCONT)
            each.kill()
        for each in self.running:
            each.wait()
        remove_planted(self.shared)
        stores = [(user, store) for user in USERS for store in (self.shared, self.parent / f"own{user}")]
        for user, store in stores:
            error = self.root / "verify"
            output = self.start(user, "numba_kcache", "verify", store=store, error=error).communicate()[0]
            print(f"verify {store.name} by {user}:", output.splitlines()[-1:], error.read_text()[-200:])
            if "0 damaged" not in output:
                self.findings.append(f"verify of {store.name} by {user}: {output[-500:]}")
        if self.state() != before:
            self.findings.append("a foreign file was touched in the end")
        print(dict(self.tally))

    def _start_worker(self) -> None:
        user = self.chance.choice(USERS)
        store = self.shared if self.chance.random() < 0.7 else self.parent / f"own{user}"
        error, seconds = self.root / f"error{self.tally['started']}", str(self.chance.uniform(5, 40))
        process = self.start(user, "tests.support.chaos", "work", seconds, store=store, error=error)
        self.running[process] = time.monotonic(), error
        self.tally["started"] += 1

    def _disturb(self) -> None:
        process, way = self.chance.choice(list(self.running)), self.chance.random()
        if way < 0.12:
            process.kill()
            self.tally["killed"] += 1
        elif way < 0.24:
            process.send_signal(signal.SIGSTOP)
            self.tally["stopped"] += 1
            later = threading.Timer(self.chance.choice((0.05, 0.5, 3, 14)), process.send_signal, (signal.SIGCONT,))
            later.daemon = True
            later.start()

    def _reap(self) -> None:
        for process, (since_s, error) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[process]
                self.tally["ended by itself" if process.returncode == 0 else "ended by a signal"] += 1
                if process.returncode not in (0, -signal.SIGKILL):
                    self.findings.append(f"a worker ended with {process.returncode}: {error.read_text()[-2000:]}")
                error.unlink()
            elif time.monotonic() - since_s > HANG_S:
                self.findings.append(f"a worker hangs: {error.read_text()[-2000:]}")
                process.kill()


def main() -> int:
    kind, *arguments = sys.argv[1:]
    if kind == "work":
        work(float(arguments[0]))
        return 0
    if kind == "intrude":
        shared, parent, foreign, seconds = arguments
        intrude(Path(shared), Path(parent), [Path(each) for each in foreign.split(":")], float(seconds))
        return 0
    if os.getuid() or not shutil.which("setpriv"):
        raise SystemExit("cannot run: needs root, to become other users, and setpriv (util-linux)")
    root, processes, seed = (*arguments, *("60", "1")[len(arguments) - 1 :])
    chaos = Chaos(Path(root), int(seed))
    chaos.run(float(kind), int(processes))
    print("\n".join(chaos.findings) or "nothing found")
    return bool(chaos.findings)


if __name__ == "__main__":
    sys.exit(main())
