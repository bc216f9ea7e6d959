"""Settings: the origin of each, its valid values, and the error texts."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache.errors import SettingsError
from numba_kcache.model.tier_address import TierAddress
from numba_kcache.settings import SETTINGS, Setting, Settings, default_directory, read_settings, variables
from tests.support.compiling import in_python

PUBLIC = bytes(range(32))
RAW = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
PEM_LINE = "MCowBQYDK2VwAyEAAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

READ = [
    ("directory", "NUMBA_KCACHE_DIR", "/somewhere/./x", "/somewhere/x"),
    ("directory", "NUMBA_KCACHE_DIR", "~/kernels", str(Path("~/kernels").expanduser())),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "512MB", 512 * 10**6),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "2GiB", 2 * 2**30),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", " 1.5 gib ", 3 * 2**29),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "1000", 1000),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "3tb", 3 * 10**12),
    ("max_entries", "NUMBA_KCACHE_MAX_ENTRIES", "77", 77),
    *(("mode", "NUMBA_KCACHE_MODE", mode, mode)
      for mode in ("readwrite", "readonly", "off", "frozen", "refresh", "verify")),
    ("mode", "NUMBA_KCACHE_MODE", " Frozen ", "frozen"),
    *(("toolchain", "NUMBA_KCACHE_TOOLCHAIN", which, which) for which in ("exact", "any")),
    *(("shared", "NUMBA_KCACHE_SHARED", text, True) for text in ("1", "true", "Yes", "on")),
    *(("shared", "NUMBA_KCACHE_SHARED", text, False) for text in ("0", "false", "No", "off")),
    *(("debug_launches", "NUMBA_KCACHE_DEBUG", text, text == "1") for text in ("1", "0")),
    *(("progress", "NUMBA_KCACHE_PROGRESS", text, text == "1") for text in ("1", "0")),
    *(("durability", "NUMBA_KCACHE_DURABILITY", kind, kind) for kind in ("none", "data", "full")),
    *(("build_wait_s", "NUMBA_KCACHE_BUILD_WAIT", text, float(text)) for text in ("0", "30", " 2.5 ", "86400")),
    *(("log_level", "NUMBA_KCACHE_LOG", level, level) for level in ("debug", "info", "warning", "error", "off")),
    ("tiers", "NUMBA_KCACHE_TIERS", "/opt/./kernels", (TierAddress("directory", "/opt/kernels"),)),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a?readonly=0, /b/c.kcache ,pack.age:k/all.kcache", (
        TierAddress("directory", "/a", {"readonly": "0"}),
        TierAddress("bundle", "/b/c.kcache"),
        TierAddress("resource", "pack.age:k/all.kcache"),
    )),
    ("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", f"team={PEM_LINE}, ci={RAW}", (("team", PUBLIC), ("ci", PUBLIC))),
    ("signing_key", "NUMBA_KCACHE_SIGNING_KEY", "/etc/./kernels.pem", "/etc/kernels.pem"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "variable", "text", "value"), READ)
def test_setting_is_read_from_both_places(name: str, variable: str, text: str, value: object) -> None:
    """A text means the same in the environment and in configure()."""
    assert getattr(read_settings({}, {variable: text}), name) == value
    assert getattr(read_settings({name: text}, {}), name) == value


def test_every_setting_is_tried_above() -> None:
    """A new row of the table needs its line here."""
    assert {name for name, *_ in READ} == {each.name for each in SETTINGS}
    assert {variable for _, variable, *_ in READ} == {each.variable for each in SETTINGS}


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"directory": Path("/x")}, "directory", "/x"),
        ({"directory": Path("/a $b'")}, "directory", "/a $b'"),
        ({"directory": "/o'neil/a b/5$"}, "directory", "/o'neil/a b/5$"),
        ({"max_size_bytes": 4096}, "max_size_bytes", 4096),
        ({"max_entries": 3}, "max_entries", 3),
        ({"shared": True}, "shared", True),
        ({"shared": 1}, "shared", True),
        ({"tiers": Path("/a,b")}, "tiers", (TierAddress("directory", "/a,b"),)),
        (
            {"tiers": ["/a", Path("/b.kcache")]},
            "tiers",
            (
                TierAddress("directory", "/a"),
                TierAddress("bundle", "/b.kcache"),
            ),
        ),
        ({"tiers": []}, "tiers", ()),
        ({"trusted_keys": {"team": PEM_LINE, "ci": PUBLIC}}, "trusted_keys", (("team", PUBLIC), ("ci", PUBLIC))),
    ],
)
def test_configure_takes_python_values(given: dict[str, Any], name: str, value: object) -> None:
    """Paths, numbers and flags are accepted as Python objects."""
    assert getattr(read_settings(given, {}), name) == value


def test_configure_goes_before_environment_before_default() -> None:
    """None in configure() means "not given"; so does an empty variable."""
    environ = {"NUMBA_KCACHE_MODE": "readonly", "NUMBA_KCACHE_MAX_ENTRIES": ""}

    assert read_settings({}, {}) == Settings()
    assert read_settings({}, environ).mode == "readonly"
    assert read_settings({"mode": "frozen"}, environ).mode == "frozen"
    assert read_settings({"mode": None}, environ).mode == "readonly"
    assert read_settings({}, environ).max_entries == Settings().max_entries


REFUSED: list[tuple[str, str, Any, str]] = [
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "much", "it is not a size; write 512MB, 2GiB or a number of bytes"),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "-5", "it is not a size"),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "5 XB", "it is not a size"),
    ("max_size_bytes", "NUMBA_KCACHE_MAX_SIZE", "0", "it must be at least 1 byte"),
    ("max_size_bytes", "", 0, "it must be at least 1 byte"),
    ("max_size_bytes", "", 1.5, "it is not a size"),
    ("max_size_bytes", "", True, "it is not a size"),
    ("max_entries", "NUMBA_KCACHE_MAX_ENTRIES", "0", "it must be a whole number of at least 1"),
    ("max_entries", "NUMBA_KCACHE_MAX_ENTRIES", "many", "it must be a whole number of at least 1"),
    ("max_entries", "NUMBA_KCACHE_MAX_ENTRIES", "\u00b2", "it must be a whole number of at least 1"),
    ("max_entries", "", 2.0, "it must be a whole number of at least 1"),
    *(("directory", "NUMBA_KCACHE_DIR", text, "only ~ of a known user is replaced; a variable, and quotes or spaces")
      for text in (" ", "/x ", " /x", "'/x'", '"/x"', "$HOME/x", "/x/${USER}", "~nobody-here/x", "\t", "/x\r\n")),
    ("signing_key", "NUMBA_KCACHE_SIGNING_KEY", "$HOME/key.pem", "only ~ of a known user is replaced"),
    ("tiers", "NUMBA_KCACHE_TIERS", "$SCRATCH/kernels", "only ~ of a known user is replaced"),
    ("mode", "NUMBA_KCACHE_MODE", "fast", "it must be one of readwrite, readonly, off, frozen, refresh, verify"),
    ("mode", "", 3, "it must be one of readwrite"),
    ("mode", "", ["off"], "it must be one of readwrite"),
    ("toolchain", "NUMBA_KCACHE_TOOLCHAIN", "newest", "it must be one of exact, any"),
    ("shared", "NUMBA_KCACHE_SHARED", "perhaps", "it must be 1 or 0"),
    ("shared", "", 2, "it must be 1 or 0"),
    ("durability", "NUMBA_KCACHE_DURABILITY", "some", "it must be one of none, data, full"),
    ("log_level", "NUMBA_KCACHE_LOG", "loud", "it must be one of debug, info, warning, error, off"),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a,gopher://host", "gopher:// is not one of the known kinds of tiers"),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a?ttl=5", "/a takes readonly=1 or readonly=0"),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a?readonly=perhaps", "/a takes readonly=1 or readonly=0"),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a.kcache?readonly=0", "/a.kcache is a bundle, and bundles are read-only"),
    ("tiers", "NUMBA_KCACHE_TIERS", "/a,?readonly=0", "a tier is empty"),
    ("tiers", "", [3], ""),
    ("tiers", "", 3, ""),
    ("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", "team", "it must be name=key, the key 32 bytes in base64"),
    ("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", f"={RAW}", "it must be name=key"),
    ("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", "team=AAEC", "it must be name=key"),
    ("trusted_keys", "NUMBA_KCACHE_TRUSTED_KEYS", "team=***", ""),
    ("trusted_keys", "", {"team": 3}, "it must be name=key"),
    ("trusted_keys", "", 3, ""),
    ("signing_key", "", 3, ""),
    ("directory", "", b"/x", "it is not a path"),
    ("directory", "", "", "it is not a path"),
    ("directory", "", 3, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "variable", "value", "why"), REFUSED)
def test_refusal_names_setting_value_and_origin(name: str, variable: str, value: object, why: str) -> None:
    """The error has the setting, its value and origin, the reason, and what to write."""
    with pytest.raises(SettingsError) as caught:
        read_settings({name: value}, {})
    assert str(caught.value).startswith(f"cannot use {name} = {value!r} from configure(): {why}")
    assert caught.value.hint.startswith(f"write {name}=")

    if variable:
        with pytest.raises(SettingsError) as caught:
            read_settings({}, {variable: str(value)})
        assert f"{name} = {value!r} from environment variable {variable}: {why}" in str(caught.value)


@pytest.mark.parametrize("value", ["gopher://me:hush@host:1/0?password=hush2,/x", ["gopher://:hush@host?k=hush2"]])
def test_refused_tier_shows_no_secret(value: Any) -> None:
    """User, password and query of a URL stay out of the message."""
    with pytest.raises(SettingsError) as caught:
        read_settings({"tiers": value}, {})

    assert "gopher://host" in str(caught.value)
    assert "hush" not in repr(caught.value)


def test_unknown_setting_lists_the_known() -> None:
    """A misspelling in configure() is an error, not an ignored wish."""
    with pytest.raises(SettingsError, match="cannot configure 'max_size': there is no such setting") as caught:
        read_settings({"max_size": 1}, {})

    assert "max_size_bytes" in caught.value.hint


def test_bad_variable_is_told_at_the_first_use_of_the_cache() -> None:
    """`import numba_kcache` works with any environment; the first use raises the error."""
    code = """
import numba_kcache
try:
    numba_kcache.info()
except numba_kcache.SettingsError as error:
    print(error)
"""
    assert "'fast' from environment variable NUMBA_KCACHE_MODE" in in_python(code, NUMBA_KCACHE_MODE="fast")


def test_bad_configure_changes_nothing(tmp_path: Path) -> None:
    """A refused call leaves all settings unchanged."""
    numba_kcache.configure(directory=tmp_path / "one")
    with pytest.raises(SettingsError):
        numba_kcache.configure(directory=tmp_path / "two", mode="fast")

    assert numba_kcache.info().directory == str(tmp_path / "one")


def test_configure_none_takes_a_setting_back(tmp_path: Path) -> None:
    """None restores the environment's value or the default."""
    numba_kcache.configure(directory=tmp_path / "one", max_entries=5)
    numba_kcache.configure(directory=None)

    assert numba_kcache.info().directory == os.environ["NUMBA_KCACHE_DIR"]


@pytest.mark.parametrize(
    ("cache_home", "home", "directory"),
    [
        (None, "/home/me", "/home/me/.cache/numba_kcache"), ("", "/home/me", "/home/me/.cache/numba_kcache"),
        ("/var/cache/me", "/home/me", "/var/cache/me/numba_kcache"), (" /a ", "/b", "/b/.cache/numba_kcache"),
        ("relative/cache", "/home/me", "/home/me/.cache/numba_kcache"), (None, "nowhere", None),
    ],
)  # fmt: skip
def test_default_directory_is_in_the_user_s_cache_folder(
    monkeypatch: pytest.MonkeyPatch, cache_home: str | None, home: str, directory: str | None
) -> None:
    """It follows XDG_CACHE_HOME, a relative one of which does not count, and is None where no home is known."""
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache_home is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache_home)

    assert default_directory() == directory


def test_variables_are_those_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable is not an empty one."""
    monkeypatch.setenv("KCACHE_TEST_A", "")
    monkeypatch.delenv("KCACHE_TEST_B", raising=False)

    assert variables(("KCACHE_TEST_A", "KCACHE_TEST_B")) == {"KCACHE_TEST_A": ""}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_example_of_a_hint_is_a_value_that_works(setting: Setting) -> None:
    """The example in an error is accepted, with the same value as keyword and as variable."""
    hints = []
    for overrides, environ in (({setting.name: object()}, {}), ({}, {setting.variable: "\0"})):
        with pytest.raises(SettingsError) as caught:
            read_settings(overrides, environ)
        hints.append(caught.value.hint.removeprefix("write "))
    keyword, _, value = hints[0].partition("=")
    variable, _, text = hints[1].partition("=")

    assert (keyword, variable) == (setting.name, setting.variable)
    if setting.name != "trusted_keys":  # whose example has a placeholder
        assert read_settings({keyword: ast.literal_eval(value)}, {}) == read_settings({}, {variable: text})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("NUMBA_KCACHE_DIRECTORY", "did you mean NUMBA_KCACHE_DIR?"), ("NUMBA_KCACHE_COLOUR", "numba-kcache config")],
)
def test_misspelt_variable_is_one_warning_at_run_time(variable: str, meant: str, tmp_path: Path) -> None:
    """It has no effect, which a program is told once, also where it uses a cache of its own alone."""
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import numba_kcache\n"
        f"    numba_kcache.KernelCache({str(tmp_path)!r}).info()\n"
        "    numba_kcache.configure(mode='readonly'); numba_kcache.info()\n"
        "print([str(each.message) for each in seen])"
    )
    (said,) = ast.literal_eval(in_python(code, **{variable: "/x", "NUMBA_KCACHE_DIR": str(tmp_path)}))

    assert said.startswith(f"{variable} names no setting and is ignored: ")
    assert meant in said


def test_log_level_is_the_last_that_was_configured() -> None:
    """The default leaves the level to the program, until one was configured: then it is a level as the others are."""
    code = """
import logging, numba_kcache
def level(**settings):
    numba_kcache.configure(**settings)
    return logging.getLevelName(logging.getLogger("numba_kcache").level)
logging.getLogger("numba_kcache").setLevel(logging.INFO)
print(level(max_entries=5), level(log_level="debug"), level(max_entries=6), level(log_level="warning"))
"""
    assert in_python(code).split() == ["INFO", "DEBUG", "DEBUG", "WARNING"]
