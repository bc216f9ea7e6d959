"""The folder that a program lives in, and the edits that a scenario makes to it.

Promise     An edit is plain data, does one thing to the file system, and can be left out of a scenario without making
            the others impossible: one whose file is gone does nothing.
Method      `apply` does it; `meaning` says what a compiler can learn from the folder: contents, and which paths are
            one file, but no times, no inode numbers and no file whose name begins with `noise`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import mmap
import os
import re
import shutil
from pathlib import Path
from typing import Any

Edit = dict[str, Any]
CHECKOUT = "@CHECKOUT@"
"""In the text of a file or an option: the absolute path of the checkout."""


class World:
    """A checkout in its own folder.

    Args:
        folder: An empty folder.
        name: Of the checkout in it, which a scenario may change.
    """

    def __init__(self, folder: Path, name: str = "checkout") -> None:
        self.folder = folder
        self.name = name
        self._mapped: dict[str, mmap.mmap] = {}
        self.root.mkdir(exist_ok=True)

    @property
    def root(self) -> Path:
        """The checkout's place now."""
        return self.folder / self.name

    @property
    def is_mapped(self) -> bool:
        """Check whether a file is mapped for writing."""
        return bool(self._mapped)

    def expand(self, text: str) -> str:
        """The text with the checkout's path in it."""
        return text.replace(CHECKOUT, str(self.root))

    def apply(self, edit: Edit) -> None:
        """Do one edit."""
        with contextlib.suppress(OSError):
            getattr(self, f"_{edit['edit']}")(edit)

    def _write(self, edit: Edit) -> None:
        path, content = self.root / edit["path"], self.expand(edit["text"]).encode("utf-8", "surrogateescape")
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat() if path.exists() else None
        way = edit.get("way", "in place")
        if way == "mapped" and before and content and before.st_size == len(content):
            self._map(path)[:] = content
        elif way == "replaced":
            fresh = path.with_name("noise-replacement")
            fresh.write_bytes(content)
            os.replace(fresh, path)
        else:
            path.write_bytes(content)
        if edit.get("keeps_time") and before:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _map(self, path: Path) -> mmap.mmap:
        """A mapping whose page is dirty already: a further write through it moves no time of the file."""
        stat = path.stat()
        key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}"
        if key not in self._mapped:
            with open(path, "r+b") as file:
                self._mapped[key] = mmap.mmap(file.fileno(), 0)
        return self._mapped[key]

    def _dirty(self, edit: Edit) -> None:
        if (self.root / edit["path"]).stat().st_size:
            mapping = self._map(self.root / edit["path"])
            mapping[:1] = mapping[:1]

    def _remove(self, edit: Edit) -> None:
        path = self.root / edit["path"]
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _symlink(self, edit: Edit) -> None:
        path = self.root / edit["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.symlink_to(self.expand(edit["to"]))

    def _hardlink(self, edit: Edit) -> None:
        path, source = self.root / edit["path"], self.root / edit["to"]
        if not source.is_file() or path.is_dir() or (path.exists() and path.samefile(source)):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(source, path)

    def _copy(self, edit: Edit) -> None:
        path, source = self.root / edit["path"], self.root / edit["from"]
        content = source.read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def _rename(self, edit: Edit) -> None:
        os.rename(self.root / edit["path"], self.root / edit["to"])

    def _touch(self, edit: Edit) -> None:
        os.utime(self.root / edit["path"])

    def _mkdir(self, edit: Edit) -> None:
        (self.root / edit["path"]).mkdir(parents=True, exist_ok=True)

    def _move(self, edit: Edit) -> None:
        os.rename(self.root, self.folder / edit["to"])
        self.name = edit["to"]

    def meaning(self, *, lines: bool = False) -> str:
        """A digest of all that a compiler can learn from the checkout, wherever it lies.

        Args:
            lines: Whether comments and empty lines of Python files count.
        """
        found = hashlib.sha256()
        files: dict[tuple[int, int], int] = {}
        for folder, names, plain in os.walk(self.root, followlinks=True):
            if len(Path(folder).parts) - len(self.root.parts) > 6:
                names.clear()
            names[:] = sorted(name for name in names if not name.startswith(("noise", "__pycache__")))
            for name in [*names, *sorted(plain)]:
                path = Path(folder, name)
                if name.startswith("noise") or not path.exists():
                    continue
                stat = path.stat()
                number = files.setdefault((stat.st_dev, stat.st_ino), len(files))
                content = b"" if name in names else self._content(path, lines)
                found.update(f"{path.relative_to(self.root)}\0{number}\0".encode("utf-8", "surrogateescape"))
                found.update(hashlib.sha256(content).digest())
        return found.hexdigest()

    def _content(self, path: Path, lines: bool) -> bytes:
        if path.suffix == ".py" and not lines:
            return without_what_means_nothing(path.read_text()).encode()
        return path.read_bytes().replace(str(self.root).encode(), CHECKOUT.encode())

    def says_place(self) -> bool:
        """Check whether the path of a file can get into the code, or into the key.

        NVRTC looks up the folder of a header that it found by a second name, a hard link, by its absolute path.
        """
        # A text that names a folder above may make the folder's path by macros: it counts, wherever the text leads.
        words = ("__FILE__", "__BASE_FILE__", "__builtin_FILE", "assert(", str(self.folder))
        linked = any(path.stat().st_nlink > 1 for path in self.root.rglob("*.h") if path.is_file())
        return linked or any(word in text for text in self.texts() for word in words)

    def texts(self) -> list[str]:
        """Every source and header."""
        kept = (".cu", ".h", ".py", ".ptx")
        files = [path for path in self.root.rglob("*") if path.suffix in kept and path.is_file()]
        return [path.read_bytes().decode("utf-8", "replace") for path in files]


def without_what_means_nothing(text: str) -> str:
    """A Python module without comments, lines, docstrings, local names of our own choice and unused definitions."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    tree.body = [each for each in tree.body if "unused" not in ast.dump(each).lower()]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None and len(node.body) > 1:
            del node.body[0]
        if isinstance(node, ast.Name) and re.fullmatch(r"u\d+", node.id):
            node.id = "t"
    return ast.unparse(tree)
