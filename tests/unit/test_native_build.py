"""The build of the compiled module: the contents and tag of a wheel, and what a machine must have for it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_driver import ROOT, needs_fake_driver
from tests.support.programs import program

PYTHON_H = Path(sysconfig.get_path("include"), "Python.h")
VALUES = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#define SIZE(type) printf(#type " %zu\\n", sizeof(type));
#define PLACE(type, member) printf(#member " %zu %zu\\n", offsetof(type, member), sizeof(((type *)0)->member));
#define VALUE(name) printf(#name " %ld\\n", (long)name);
int main(void) {
    SIZE(PyObject) SIZE(Py_ssize_t)
    SIZE(PyMethodDef) PLACE(PyMethodDef, ml_name) PLACE(PyMethodDef, ml_meth) PLACE(PyMethodDef, ml_flags)
    SIZE(PyModuleDef_Base) PLACE(PyModuleDef_Base, m_init) PLACE(PyModuleDef_Base, m_index)
    SIZE(PyModuleDef) PLACE(PyModuleDef, m_name) PLACE(PyModuleDef, m_doc) PLACE(PyModuleDef, m_size)
    PLACE(PyModuleDef, m_methods) PLACE(PyModuleDef, m_slots) PLACE(PyModuleDef, m_traverse) PLACE(PyModuleDef, m_free)
    SIZE(Py_buffer) PLACE(Py_buffer, buf) PLACE(Py_buffer, obj) PLACE(Py_buffer, len) PLACE(Py_buffer, itemsize)
    PLACE(Py_buffer, readonly) PLACE(Py_buffer, ndim) PLACE(Py_buffer, format) PLACE(Py_buffer, shape)
    PLACE(Py_buffer, internal)
    VALUE(METH_VARARGS) VALUE(METH_KEYWORDS) VALUE(METH_NOARGS) VALUE(METH_O) VALUE(METH_FASTCALL)
    VALUE(Py_tp_descr_get) VALUE(Py_tp_descr_set) VALUE(PyBUF_SIMPLE) VALUE(PYTHON_ABI_VERSION)
    PyModuleDef definition = {PyModuleDef_HEAD_INIT, "name", NULL, -1};
    VALUE(definition.m_base.m_index) VALUE(definition.m_size)
}
"""


def load() -> Any:
    """A fresh `.ci/native_build.py`."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / ".ci/native_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module over copies of the sources in `tmp_path`, with a hook as Hatchling makes one."""
    module = load()
    for each in module.SOURCES[0].parent.glob("*.[ch]"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    monkeypatch.setattr(module, "SOURCES", tuple(tmp_path / each.name for each in module.SOURCES))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(module.NativeBuildHook, "metadata", SimpleNamespace(version="9.8.7"), raising=False)
    module.hook = object.__new__(module.NativeBuildHook)
    return module


@needs_fake_driver
@pytest.mark.slow
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_module_is_added_to_a_wheel_and_left_beside_its_source(builder: Any, tmp_path: Path, version: str) -> None:
    """The wheel has the tag of the build; an editable install finds the module in the checkout."""
    data: dict[str, Any] = {"force_include": {}}

    assert builder.hook.dependencies() == []
    builder.hook.initialize(version, data)

    (made,) = tmp_path.glob("native*.so")
    assert data["pure_python"] is False
    python, abi, platform = data["tag"].split("-")
    assert (python, abi) == ("cp311", "abi3") or python + "t" == abi
    assert platform.startswith(("manylinux_2_", "linux_"))
    placed = data["force_include"]
    if version == "editable":
        assert placed == {}
    else:
        assert placed[str(made)] == f"numba_kcache/launch/{made.name}"
        (stated,) = (Path(file) for file, target in placed.items() if target == "numba_kcache/version.py")
        assert '__version__ = "9.8.7"' in stated.read_text()
        builder.hook.finalize(version, data, "a.whl")
        assert not stated.exists()


@needs_fake_driver
@pytest.mark.slow
def test_module_is_built_without_pythons_headers_and_stays_loaded(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tree declares what the module uses of the limited API; the module imports, and calls into Python."""
    if builder.IS_FREE_THREADED:
        pytest.skip("a Python without the GIL has no limited API")
    monkeypatch.setattr(builder.sysconfig, "get_path", lambda name: str(tmp_path / name))

    made, _ = builder.build()

    script = (
        "from importlib.machinery import ExtensionFileLoader as Loader\n"
        "from importlib.util import module_from_spec, spec_from_loader\n"
        f"loader = Loader('native', {str(made)!r})\n"
        "native = module_from_spec(spec_from_loader('native', loader))\n"
        "print(native.function('cuNoSuchFunction', 'n'), native.address_of(bytearray(8)) > 0)\n"
        "import _ctypes\n"
        "handle = _ctypes.dlopen(loader.path, 2)\n"
        "_ctypes.dlclose(handle), _ctypes.dlclose(handle)\n"  # the import's, too
        "print('native' in open('/proc/self/maps').read(), native.address_of(bytearray(8)) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["None", "True", "True", "True"], done.stderr


@needs_fake_driver
@pytest.mark.slow
@pytest.mark.skipif(not PYTHON_H.is_file(), reason="Python's headers are missing")
def test_declarations_in_the_tree_agree_with_pythons_own(builder: Any, tmp_path: Path) -> None:
    """A compiler accepts both, one after the other; sizes, places and values are the same under either."""
    if builder.IS_FREE_THREADED:
        pytest.skip("a Python without the GIL has no limited API")
    limited = ("-std=c11", "-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030b0000", "-Werror", "-Wno-missing-field-initializers")
    both = tmp_path / "both.c"
    both.write_text(f'#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n#include "{builder.DECLARATIONS}/Python.h"\n')
    values = tmp_path / "values.c"
    values.write_text(VALUES)

    subprocess.run([program("cc"), *limited, f"-I{PYTHON_H.parent}", "-fsyntax-only", str(both)], check=True)
    printed = []
    for include in (PYTHON_H.parent, builder.DECLARATIONS):
        subprocess.run(
            [program("cc"), *limited, f"-I{include}", str(values), "-o", str(tmp_path / "values")], check=True
        )
        printed.append(subprocess.run([str(tmp_path / "values")], capture_output=True, text=True, check=True).stdout)
    assert printed[0] == printed[1]


def test_build_without_a_compiler_requires_one_from_the_index(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither $CC nor cc works: the build asks for ziglang, and otherwise for nothing."""
    monkeypatch.setenv("CC", "no-such-cc")
    monkeypatch.setenv("PATH", "")

    assert builder.hook.dependencies() == ["ziglang==0.17.*"]


def test_build_without_any_compiler_stops_with_what_to_install(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One sentence says so, and no file is left behind."""
    monkeypatch.setenv("CC", "no-such-cc")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(builder, "zig", lambda machine, python: [python, "-S", "-m", "ziglang", "cc"])

    with pytest.raises(SystemExit) as stopped:
        builder.hook.initialize("standard", {"force_include": {}})

    assert str(stopped.value) == (
        "cannot build numba-kcache: neither $CC nor cc works: "
        "install a C compiler (Debian and Ubuntu: apt install gcc libc6-dev), or pip install ziglang"
    )
    assert {each.suffix for each in tmp_path.iterdir()} <= {".c", ".h"}


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_ziglang_builds_the_module_for_either_processor_and_an_old_glibc(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str
) -> None:
    """With no other compiler and without Python's headers; the module for this processor is loaded and observes."""
    pytest.importorskip("ziglang", reason="ziglang is not installed")
    monkeypatch.setattr(builder.sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(builder, "IS_FREE_THREADED", False)
    if machine != os.uname().machine:
        monkeypatch.setenv("CC", shlex.join(builder.zig(machine, sys.executable)))

    made, tag = builder.build()

    assert tag == f"cp311-abi3-manylinux_2_17_{machine}"
    if machine == os.uname().machine:
        script = (
            "from importlib.machinery import ExtensionFileLoader as Loader\n"
            "from importlib.util import module_from_spec, spec_from_loader\n"
            f"native = module_from_spec(spec_from_loader('native', Loader('native', {str(made)!r})))\n"
            "native.watch(False)\n"
            "print(native.unwatch(), native.observe(0))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "[] no library is mapped there", done.stderr


@pytest.mark.parametrize("does_first_work", [True, False])
def test_first_compiler_that_works_is_taken(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does_first_work: bool
) -> None:
    """`$CC`, with its options, comes before `cc`; one that fails is passed over."""
    for name, code in (("mine", int(not does_first_work)), ("cc", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "mine -m64")

    assert builder.installed_compiler() == (["mine", "-m64"] if does_first_work else ["cc"])


@pytest.mark.parametrize(
    ("machine", "needed", "platform"),
    [
        (62, b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0", "manylinux_2_34_x86_64"),
        (183, b"\0GLIBC_2.17\0", "manylinux_2_17_aarch64"),
        (62, b"\0GLIBC_2.2.5\0", "manylinux_2_17_x86_64"),
        (183, b"\0libc.musl-aarch64.so.1\0", "linux_aarch64"),
    ],
)
def test_tag_names_the_glibc_and_the_processor_of_the_module(
    builder: Any, tmp_path: Path, machine: int, needed: bytes, platform: str
) -> None:
    """Both are read from the module, so a cross compiler's wheel has the tag of its target."""
    module = tmp_path / "module.so"
    module.write_bytes(b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little") + needed)

    assert builder.tag_of(module).split("-")[2] == platform


def test_build_stops_on_another_platform(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is downloaded or compiled, one sentence names what the package needs."""
    monkeypatch.setattr(builder.sysconfig, "get_platform", lambda: "macosx-14.0-arm64")
    monkeypatch.setattr(builder, "sys", SimpleNamespace(platform="darwin"))

    for step in (builder.hook.dependencies, builder.build):
        with pytest.raises(SystemExit) as stopped:
            step()
        assert str(stopped.value) == (
            "cannot build numba-kcache: it needs Linux on x86-64 or aarch64, and this is macosx-14.0-arm64"
        )


@pytest.mark.parametrize(
    ("platform", "hint"),
    [
        ("linux", "pip install --force-reinstall numba-kcache; in a checkout: python3 .ci/native_build.py"),
        ("darwin", "use Linux on x86-64 or aarch64: there is no such module for darwin"),
    ],
)
def test_package_without_its_module_says_so_at_first_use(tmp_path: Path, platform: str, hint: str) -> None:
    """The import is possible; then there is one error, an ImportError, with reason and next step."""
    script = f"""
import sys
import numba_kcache
sys.modules["numba_kcache.launch.native"] = None
sys.platform = {platform!r}
info = lambda: numba_kcache.info()
kernel = lambda: numba_kcache.cached_kernel('extern "C" __global__ void k() {{}}', arch="sm_90").compile()
for use in (info, kernel, kernel):
    try:
        use()
    except numba_kcache.ToolchainMissingError as error:
        assert isinstance(error, ImportError)
        print(error)
"""
    env = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)

    why = "import of numba_kcache.launch.native halted; None in sys.modules"
    said = [f"cannot use numba_kcache: its compiled module cannot be imported: {why}", f"  hint: {hint}"]
    assert done.stdout.splitlines() == 3 * said, done.stderr
