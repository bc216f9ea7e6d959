"""The HTML report: the time that a cache saved, its contents and the reasons of misses, as tables with bars.

Promise     One self-contained file: no script, font, image or link to another place. Readable on a phone and in dark
            mode. The contents of a cache are escaped.
Method      Colours are CSS variables that follow the reader's preference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .info import CacheInfo, Day, History
from .text import bytes_text, html, reason_text, seconds_text

_MOST_DAYS = 30
"""Number of days shown, the latest ones."""

_MOST_REASONS = 12

_ABOVE = ("directory", "tier")
"""Rows of the information that are not among the figures."""

_WORDS = ("day", "reason", "kernel", "target", "key")
"""Columns that hold no numbers."""

_PAGE = """<!doctype html>
<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>
<meta http-equiv='Content-Security-Policy' content="default-src 'none'; style-src 'unsafe-inline'">
<title>numba_kcache report</title><style>
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--soft:#667;--line:#d8dde3;--panel:#f5f7f9;
--bad:#c2572b;--mark:#2b62b3}
@media (prefers-color-scheme:dark){:root{--ground:#14171b;--ink:#e6e9ed;--soft:#99a3ae;--line:#333a42;--panel:#1c2126;
--bad:#ee8a5c;--mark:#7fb0f5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0;color:var(--soft);overflow-wrap:anywhere}
.hint{color:var(--ink);border-left:4px solid var(--bad);padding:.2rem .6rem;background:var(--panel)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:1rem 0;padding:0}
.figures div{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem}
.figures dt{color:var(--soft);font-size:.85rem}.figures dd{margin:0;font-size:1.25rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
td:first-child{min-width:9rem;white-space:normal;overflow-wrap:anywhere}
@media(max-width:30rem){th:nth-child(3):nth-last-child(3),td:nth-child(3):nth-last-child(3){display:none}
td:first-child{min-width:7rem}}
.number{text-align:right}
.bar{display:block;height:.35rem;background:var(--mark);border-radius:.2rem;min-width:1px}
</style></head>
<body>
BODY
</body></html>
"""


def page(info: CacheInfo, history: History, costly: Sequence[Any], large: Sequence[Any], *, now_s: float) -> str:
    """The report as HTML.

    Args:
        info: The information for all processes.
        history: Counts by day and reason.
        costly: Entries that took longest to compile (`store.listing.EntryInfo`).
        large: The largest entries.
        now_s: Time of the report, in seconds since the epoch.
    """
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now_s))
    figures = (f"<div><dt>{name}</dt><dd>{html(text)}</dd></div>" for name, text in info._rows() if name not in _ABOVE)
    parts = [
        "<h1>numba_kcache</h1>",
        f"<p>{html(info.directory or 'in memory')}, all processes since the cache began, as of {made}</p>",
        *(f"<p class='hint'>{html(each)}</p>" for each in info.advice),
        f"<dl class='figures'>{''.join(figures)}</dl>",
        "<h2>Days</h2>",
        "<p>Time saved: compile time of what was served from the cache less the time to load it, by day (UTC).</p>",
        _table(("day", "time saved", "hits", "misses", "evictions"), history.days[-_MOST_DAYS:][::-1], _saved, _of_day),
        "<h2>Why kernels missed</h2>",
        "<p>A miss that has several reasons counts for each.</p>",
        _table(("reason", "misses"), list(history.reasons.items())[:_MOST_REASONS], lambda each: each[1],
               lambda each: (reason_text(each[0]), _number(each[1]))),
        "<h2>What costs most</h2>",
        _kernels(costly, "compiled in", lambda each: each.compile_time_s, seconds_text),
        "<h2>What takes most room</h2>",
        _kernels(large, "size", lambda each: each.size_bytes, bytes_text),
    ]  # fmt: skip
    return _PAGE.replace("BODY", "\n".join(parts))


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _saved(day: Day) -> float:
    return max(day.counts.time_saved_s, 0.0)


def _of_day(day: Day) -> tuple[str, ...]:
    counts = day.counts
    return day.date, seconds_text(_saved(day)), *map(_number, (counts.hits, counts.misses, counts.evictions))


def _kernels(kernels: Sequence[Any], what: str, value: Callable[[Any], float], shown: Callable[[float], str]) -> str:
    def cells(each: Any) -> tuple[str, ...]:
        return ", ".join(each.kernels) or "?", each.target, each.key[:12], shown(value(each)), _number(each.hits)

    return _table(("kernel", "target", "key", what, "hits"), kernels, value, cells)


def _table(
    columns: Sequence[str], items: Sequence[Any], value: Callable[[Any], float], cells: Callable[[Any], Sequence[str]]
) -> str:
    """A row for each item, with a bar in its first cell, as long as its value is large."""
    if not items:
        return "<p>nothing yet</p>"
    largest = max(map(value, items)) or 1.0
    kinds = ["" if name in _WORDS else " class='number'" for name in columns]

    def row(tag: str, texts: Iterable[str], bar: str = "") -> str:
        filled = [f"<{tag}{kind}>{html(text)}" for kind, text in zip(kinds, texts, strict=True)]
        return f"<tr>{filled[0]}{bar}{''.join(filled[1:])}</tr>"

    bars = (f"<span class='bar' style='width:{100 * value(each) / largest:.1f}%'></span>" for each in items)
    body = "".join(row("td", cells(each), bar) for each, bar in zip(items, bars, strict=True))
    return f"<div class='scroll'><table><thead>{row('th', columns)}</thead><tbody>{body}</tbody></table></div>"
