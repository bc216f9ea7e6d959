"""`triton.runtime.cache` without Triton: its own cache manager, by which every process has files of kernels.

`CODE` is the module's source; `TRITON_CACHE_DIR` is its folder, as in Triton. Children run `add`.
"""

from __future__ import annotations

import sys
from types import ModuleType

CODE = """
import os, uuid

class FileCacheManager:
    asked = []

    def __init__(self, key, override=False, dump=False):
        self.made = key, override, dump
        self.cache_dir = os.path.join(os.environ["TRITON_CACHE_DIR"], key)
        os.makedirs(self.cache_dir, exist_ok=True)

    def get_file(self, name):
        path = os.path.join(self.cache_dir, name)
        return path if os.path.exists(path) else None

    def put(self, data, name, binary=True):
        self.asked.append((*self.made, name, data))
        private = os.path.join(self.cache_dir, f"tmp.{uuid.uuid4()}")
        with open(private, "wb" if isinstance(data, bytes) else "w") as file:
            file.write(data)
        os.replace(private, os.path.join(self.cache_dir, name))
        return os.path.join(self.cache_dir, name)
"""


def modules() -> dict[str, ModuleType]:
    """The module and its packages, by name."""
    found = {name: ModuleType(name) for name in ("triton", "triton.runtime", "triton.runtime.cache")}
    exec(compile(CODE, "<triton.runtime.cache>", "exec"), found["triton.runtime.cache"].__dict__)
    return found


def add() -> None:
    """Have it imported in this process."""
    sys.modules.update(modules())
