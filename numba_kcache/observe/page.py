"""The HTML report: the time that a cache saved, its contents and the reasons of misses, with charts.

Promise     One self-contained file: no script, font, image or link to another place. Readable on a phone and in dark
            mode. The contents of a cache are escaped.
Method      HTML with inline SVG; colours are CSS variables that follow the reader's preference.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..errors import plain
from . import Counts
from .history import Day, History
from .info import CacheInfo
from .text import bytes_text, reason_text, seconds_text

_MOST_DAYS = 60
"""Number of days drawn, the latest ones."""

_MOST_REASONS = 12

_PAGE = """<!doctype html>
<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>
<meta http-equiv='Content-Security-Policy' content="default-src 'none'; style-src 'unsafe-inline'">
<title>numba_kcache report</title><style>
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--soft:#667;--line:#d8dde3;--panel:#f5f7f9;
--good:#2f7d4f;--bad:#c2572b;--mark:#2b62b3}
@media (prefers-color-scheme:dark){:root{--ground:#14171b;--ink:#e6e9ed;--soft:#99a3ae;--line:#333a42;--panel:#1c2126;
--good:#5fbf87;--bad:#ee8a5c;--mark:#7fb0f5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0;color:var(--soft);overflow-wrap:anywhere}
.hint{color:var(--ink);border-left:4px solid var(--bad);padding:.2rem .6rem;background:var(--panel)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:1rem 0;padding:0}
.figures div{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem}
.figures dt{color:var(--soft);font-size:.85rem}.figures dd{margin:0;font-size:1.25rem;overflow-wrap:anywhere}
figure{margin:0}figcaption{color:var(--soft);font-size:.85rem}
svg{display:block;width:100%;height:9rem}
.ends{display:flex;justify-content:space-between;color:var(--soft);font-size:.85rem}
.good{fill:var(--good)}.bad{fill:var(--bad)}.mark{fill:var(--mark)}.axis{stroke:var(--line);stroke-width:1}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
td:first-child{min-width:9rem;white-space:normal;overflow-wrap:anywhere}
@media(max-width:30rem){th:nth-child(3):nth-last-child(3),td:nth-child(3):nth-last-child(3){display:none}
td:first-child{min-width:7rem}}
.number{text-align:right}
.bar{display:block;height:.35rem;background:var(--mark);border-radius:.2rem;min-width:1px}
.legend span::before{content:"";display:inline-block;width:.7em;height:.7em;margin:0 .3em 0 .8em;background:var(--own)}
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
    days = _without_gaps(history.days)[-_MOST_DAYS:]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now_s))
    saved = "Compile time of what was served from the cache less the time to load it, for each day (UTC)"
    served = "Kernels that were served, and kernels that were compiled, for each day"
    removed = "Entries removed to keep the limits, for each day"
    parts = [
        "<h1>numba_kcache</h1>",
        f"<p>{_text(info.directory or 'in memory')}, all processes since the cache began, as of {made}</p>",
        *(f"<p class='hint'>{_text(each)}</p>" for each in info.advice),
        _figures(info),
        "<h2>Time saved</h2>",
        _chart(days, saved, {"good": lambda day: max(day.counts.time_saved_s, 0.0)}, seconds_text),
        "<h2>Hits and misses</h2>",
        "<p class='legend'><span style='--own:var(--good)'>hits</span><span style='--own:var(--bad)'>misses</span></p>",
        _chart(days, served, {"good": lambda day: day.counts.hits, "bad": lambda day: day.counts.misses}, _number),
        "<h2>Why kernels missed</h2>",
        _reasons(history),
        "<h2>What costs most</h2>",
        _kernels(costly, "compiled in", lambda each: each.compile_time_s, seconds_text),
        "<h2>What takes most room</h2>",
        _kernels(large, "size", lambda each: each.size_bytes, bytes_text),
        "<h2>Evictions</h2>",
        _chart(days, removed, {"mark": lambda day: day.counts.evictions}, _number),
    ]
    return _PAGE.replace("BODY", "\n".join(parts))


def _without_gaps(days: Sequence[Day]) -> list[Day]:
    """The days, with empty ones inserted for dates without counts."""
    filled: list[Day] = []
    for day in days:
        try:
            date = datetime.date.fromisoformat(day.date)
        except ValueError:  # a forged date, such as 2026-99-99
            continue
        previous = datetime.date.fromisoformat(filled[-1].date) if filled else date
        gaps = range(1, min((date - previous).days, _MOST_DAYS + 1))
        filled += [Day((previous + datetime.timedelta(gap)).isoformat(), Counts()) for gap in gaps]
        filled.append(day)
    return filled


def _text(text: str) -> str:
    return escape(plain(text))


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _figures(info: CacheInfo) -> str:
    cells = [
        f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
        for name, value in info._rows()
        if name not in ("directory", "tier")
    ]
    return f"<dl class='figures'>{''.join(cells)}</dl>"


def _chart(
    days: Sequence[Day], caption: str, series: Mapping[str, Callable[[Day], float]], shown: Callable[[float], str]
) -> str:
    """Draw a bar per day and series, labelled with the largest value and the first and last day."""
    largest = max((value(day) for day in days for value in series.values()), default=0)
    if not largest:
        return f"<p>{caption}: nothing yet.</p>"
    width, height = 640.0, 100.0
    day_width = width / max(len(days), 14)
    bar_width = day_width * 0.8 / len(series)
    bars = []
    for index, day in enumerate(days):
        for number, (name, value) in enumerate(series.items()):
            bar_height, x = height * value(day) / largest, (index + 0.1) * day_width + number * bar_width
            bars.append(
                f"<rect class='{name}' x='{x:.1f}' y='{height - bar_height:.1f}'"
                f" width='{bar_width:.1f}' height='{bar_height:.1f}'>"
                f"<title>{day.date}: {shown(value(day))}</title></rect>"
            )
    return (
        f"<figure><div class='ends'><span>up to {shown(largest)} a day</span></div>"
        f"<svg viewBox='0 0 {width:.0f} {height:.0f}' preserveAspectRatio='none' role='img' aria-label='{caption}'>"
        f"<line class='axis' x1='0' x2='{width}' y1='{height}' y2='{height}'/>{''.join(bars)}</svg>"
        f"<div class='ends'><span>{days[0].date}</span><span>{days[-1].date if len(days) > 1 else ''}</span></div>"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _reasons(history: History) -> str:
    shown = list(history.reasons.items())[:_MOST_REASONS]
    if not shown:
        return "<p>No kernel has missed yet.</p>"
    most = shown[0][1]
    return _table(
        ("reason", "misses"), [(_barred(reason_text(reason), count / most), _number(count)) for reason, count in shown]
    )


def _kernels(kernels: Sequence[Any], what: str, value: Callable[[Any], float], shown: Callable[[float], str]) -> str:
    if not kernels:
        return "<p>The cache holds nothing yet.</p>"
    largest = max(map(value, kernels)) or 1.0
    rows = []
    for each in kernels:
        kernel = _barred(", ".join(each.kernels) or "?", value(each) / largest)
        key = f"<code>{_text(each.key[:12])}</code>"
        rows.append((kernel, _text(each.target), key, shown(value(each)), _number(each.hits)))
    return _table(("kernel", "target", "key", what, "hits"), rows)


def _barred(text: str, share: float) -> str:
    return f"{_text(text)}<span class='bar' style='width:{100 * share:.1f}%'></span>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are HTML."""
    kinds = ["" if name in ("reason", "kernel", "target", "key") else " class='number'" for name in columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        filled = [f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
        return f"<tr>{''.join(filled)}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<div class='scroll'><table><thead>{row('th', columns)}</thead><tbody>{body}</tbody></table></div>"
