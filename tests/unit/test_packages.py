"""Versions of distributions by their metadata, and packages that count by content."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from numba_kcache.toolchain import packages
from numba_kcache.toolchain.packages import find_installed, imported_digest


def test_first_folder_of_the_path_has_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search order is that of imports; names are normalised as installers do, and metadata without a version is
    ignored."""
    for folder, name, text in (
        ("a", "My_Dist-9", "Name: x\n"),
        ("b", "My_Dist-2", "Version: 2.0\n"),
        ("c", "my_dist-3", "Version: 3\n"),
    ):
        path = tmp_path / folder / f"{name}.dist-info" / "METADATA"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path / each) for each in ("none", "a", "b", "c")])

    metadata = tmp_path / "b" / "My_Dist-2.dist-info" / "METADATA"
    assert find_installed("my-dist") == (str(metadata), "2.0")
    assert find_installed("other-dist") == ("", None)


def test_builds_of_one_version_differ_by_their_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the installer noted of files of Python counts; order, scripts, metadata and compiled files do not."""
    folder = tmp_path / "dist-3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Version: 3\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = []
    for lines in (
        ["d/a.py,sha256=A,1", "d/b.py,sha256=B,1"],
        ["d/b.py,sha256=B,1", "d/c.so,sha256=C,1", "d/a.py,sha256=A,1", "dist-3.dist-info/INSTALLER,sha256=D,1"],
        ["../../../bin/tool,sha256=E,1", "d/__pycache__/a.pyc,,", "d/a.py,sha256=A,1", "d/b.py,sha256=B,1"],
        ["d/a.py,sha256=A,1", "d/b.py,sha256=F,1"],
    ):
        (folder / "RECORD").write_text("\n".join([*lines, ""]))
        found.append(find_installed("dist")[1])
    (folder / "RECORD").unlink()

    assert found[0] == found[1] == found[2] != found[3]
    assert str(found[0]).startswith("3 sha256:")
    assert find_installed("dist")[1] == "3"


def test_package_of_a_linux_distribution_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is in an `.egg-info`: without it, each start would read all files of the package."""
    path = tmp_path / "dist_one-3.egg-info" / "PKG-INFO"
    path.parent.mkdir()
    path.write_text("Metadata-Version: 1.2\nVersion: 3\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert find_installed("dist-one") == (str(path), "3")


def identity_of(package: Path) -> str:
    """The identity of a package that was imported after its files were written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "_started_ns", lambda running_at_ns: running_at_ns)
        return imported_digest(str(package), time.time_ns() + 10**12)


def test_content_counts_and_stats_do_not(tmp_path: Path) -> None:
    """A touched file is read again, an edited one changes the digest, and compiled files do not count."""
    (tmp_path / "__pycache__").mkdir()
    module = tmp_path / "module.py"
    module.write_text("one")
    first = identity_of(tmp_path)
    os.utime(module, ns=(1, 1))
    (tmp_path / "__pycache__" / "module.pyc").write_text("")
    assert identity_of(tmp_path) == first

    module.write_text("two")

    assert identity_of(tmp_path) != first


def test_linked_folder_counts_once(tmp_path: Path) -> None:
    """A link may lead to a folder outside the package, or back to one of its own."""
    outside, package = tmp_path / "outside", tmp_path / "package"
    outside.mkdir()
    package.mkdir()
    (outside / "module.py").write_text("one")
    (outside / "again").symlink_to(outside)
    (package / "inside").symlink_to(outside)
    first = identity_of(package)

    (outside / "module.py").write_text("two")

    assert identity_of(package) != first


def test_tests_count_once_one_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the files of NumPy and Numba are tests, which no compile reads unless the program imports them."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("one")
    (tmp_path / "module.py").write_text("one")
    names = [name for name in sys.modules if ".tests" in name]
    with monkeypatch.context() as patch:
        for name in names:
            patch.delitem(sys.modules, name)
        without = identity_of(tmp_path)
        (tmp_path / "tests" / "helper.py").write_text("two")
        assert identity_of(tmp_path) == without

        patch.setitem(sys.modules, "package.tests.helper", sys)
        both = [identity_of(tmp_path)]
        (tmp_path / "tests" / "helper.py").write_text("three")
        both.append(identity_of(tmp_path))

    assert len({without, *both}) == 3


def test_link_that_leads_nowhere_hides_no_file(tmp_path: Path) -> None:
    """Editors leave such links; every file beside one counts, in whatever order the folder is listed."""
    for number in range(4):
        (tmp_path / f"lock{number}").symlink_to("gone")
        (tmp_path / f"module{number}.py").write_text("one")
    digests = {identity_of(tmp_path)}
    for number in range(4):
        (tmp_path / f"module{number}.py").write_text("two")
        digests.add(identity_of(tmp_path))

    assert len(digests) == 5


def test_package_that_changed_since_the_start_is_nobody_s(tmp_path: Path) -> None:
    """The program may have imported the earlier state, so each request gets another identity and none is found
    again."""
    (tmp_path / "module.py").write_text("one")

    answers = {imported_digest(str(tmp_path), 0) for _ in range(2)}

    assert len(answers) == 2
    assert all(each.startswith("unknown:") for each in answers)


@pytest.mark.slow
def test_package_edited_before_this_one_was_imported_is_nobody_s(tmp_path: Path) -> None:
    """The session may have imported the package hours before: it compiles with what it imported, not with the files.
    A time of modification tells nothing: an archive may have brought one of the future."""
    folder = tmp_path / "edited"
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 1\n")
    program = (
        "import pathlib, sys, time; sys.path.insert(0, sys.argv[1]); import edited\n"
        "pathlib.Path(edited.__file__).write_text(sys.argv[2]) if sys.argv[2] else None\n"
        "from numba_kcache.toolchain.packages import imported_digest\n"
        "print(imported_digest(sys.argv[1] + '/edited', time.time_ns()))\n"
    )

    def identity(text: str, modified_s: int) -> str:
        os.utime(folder / "__init__.py", (modified_s, modified_s))
        given = [sys.executable, "-B", "-c", program, str(tmp_path), text]
        return subprocess.run(given, capture_output=True, text=True, check=True).stdout.partition(":")[0]

    assert [identity("VALUE = 2\n", 1), identity("", 2**32)] == ["unknown", "sha256"]


@pytest.mark.slow
def test_package_edited_before_a_fork_is_nobody_s_in_the_child(tmp_path: Path) -> None:
    """A forked child has what its parent imported, however young the child is."""
    folder = tmp_path / "edited"
    folder.mkdir()
    program = (
        "import os, pathlib, sys\n"
        "(pathlib.Path(sys.argv[1]) / 'edited' / '__init__.py').write_text('VALUE = 2')\n"
        "if os.fork() == 0 and os.fork() == 0:\n"
        "    import time\n"
        "    from numba_kcache.toolchain.packages import imported_digest\n"
        "    print(imported_digest(sys.argv[1] + '/edited', time.time_ns()), flush=True)\n"
        "else:\n"
        "    os.wait()\n"
    )

    given = [sys.executable, "-B", "-c", program, str(tmp_path)]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout.startswith("unknown:")
