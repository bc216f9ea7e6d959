"""The report in a real browser: it requests nothing, fits a phone, has a dark mode, and shows what the cache did."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache
from numba_kcache.cli import main
from tests.support.stores import open_store, small_entry

pytestmark = pytest.mark.slow

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about a cache with ninety days of counts, five entries and a kernel with a hostile name."""
    directory = tmp_path_factory.mktemp("report") / "cache"
    store = open_store(directory)
    for number in range(5):
        entry = small_entry(number)
        entry.header.update(
            compile_time_s=0.5 * number, target="sm_90", entries=[[f"kernel{number}", "s", False, [0, 0, 0, 0], []]]
        )
        store.put(entry)
    store.put(evil_entry())
    counts: dict[str, float] = {"hits": 900, "misses": 1000, "evictions": 7, "time_saved_s": 3000.0}
    for day in range(90):
        date = time.strftime("%Y-%m-%d", time.gmtime(1_790_000_000 + day * 86400))
        counts |= {f"day/{date}/hits": day, f"day/{date}/misses": 10, f"day/{date}/time_saved_s": 2.5 * day}
    store.counters.add(
        counts | {"reason/header a.cuh changed": 930, f"reason/{EVIL}": 4, "day/2026-12-01/evictions": 7}
    )
    path = directory.parent / "report.html"
    assert main(["report", str(path), "--directory", str(directory)]) == 0
    return path


def evil_entry() -> Any:
    entry = small_entry(99)
    entry.header.update(entries=[[EVIL, "s", False, [0, 0, 0, 0], []]], target="sm_90", compile_time_s=9.0)
    return entry


class Tags(HTMLParser):
    """The tags of a page, and the attributes that load or link to something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.leading: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.leading += [name for name, _ in attrs if name in ("src", "href", "srcset", "action") or name[:2] == "on"]


def test_report_is_one_file_that_leads_nowhere(written: Path) -> None:
    """It has no script, link, picture or font; texts of the cache are escaped."""
    text = written.read_text()
    page = Tags(text)

    assert not page.tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not page.leading
    assert "url(" not in text
    assert "&lt;script&gt;" in text


def test_report_says_what_the_cache_did(written: Path) -> None:
    """It shows time saved, hit rate, the costliest entries first, reasons of misses, and advice."""
    text = written.read_text()

    assert "50 min 0 s" in text
    assert "47%" in text
    assert text.index(">kernel4<") < text.index(">kernel3<")
    assert "header a.cuh changed" in text
    assert "compiled again and again, mostly for this reason: header a.cuh changed" in text
    assert text.count("<tr><td>2026-") == 30, "the last thirty days"
    assert text.index(">2026-12-19<") < text.index(">2026-12-18<")


def test_report_of_an_empty_cache_is_a_page_too(tmp_path: Path) -> None:
    """The page says that nothing is stored yet."""
    text = KernelCache(tmp_path / "none").report()

    assert "nothing yet" in text
    assert "<table" not in text
    assert not (tmp_path / "none").exists()


# -- in a browser ---------------------------------------------------------------------------------------------


def where() -> dict[str, Any]:
    """The system's Chromium if there is one, else playwright's own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return {"executable_path": path} if path else {}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="no headless browser: it lacks the package playwright")
    with api.sync_playwright() as play:
        try:
            started = play.chromium.launch(**where())
        except api.Error as error:
            pytest.skip(f"no headless browser: it lacks a Chromium that starts: {str(error).splitlines()[0]}")
        yield started
        started.close()


FORMS = {"phone": (360, 640), "desk": (1280, 800)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_reads_well(browser: Any, written: Path, form: str, scheme: str) -> None:
    """No request, no error of the browser, nothing wider than the screen, and enough contrast."""
    width, height = FORMS[form]
    view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    asked: list[str] = []
    said: list[str] = []
    view.on("request", lambda request: asked.append(request.url))
    view.on("console", lambda message: said.append(message.text))
    view.goto(written.as_uri())

    assert asked == [written.as_uri()]
    assert said == []
    assert view.title() == "numba_kcache report"
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.locator("table").count() == 4
    ground, ink = (view.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert contrast(ground, ink) > 7
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    assert smallest_contrast(view, ground) > 3
    view.close()


def smallest_contrast(view: Any, ground: str) -> float:
    """Compute the smallest contrast of text or bars with the page's background."""
    colours = view.evaluate(
        """[...document.querySelectorAll('p,td,th,dt,dd,.bar')].map(each => {
            const style = getComputedStyle(each);
            return each.className == 'bar' ? style.backgroundColor : style.color })"""
    )
    return min(contrast(ground, colour) for colour in set(colours))


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(each) / 255 for each in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
