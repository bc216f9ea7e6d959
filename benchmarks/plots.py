"""Draw the pictures of the documents from the committed results, for light and for dark pages.

Promise     The same results and the same matplotlib give the same bytes. A picture contains the name and the digest of
            its result; tests/contract/test_figures.py compares the digest with the file.
Output      docs/img/NAME-light.svg and NAME-dark.svg.
Run         python benchmarks/plots.py [NAME ...]    (matplotlib: pip install --group bench)
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from results import RESULTS, digits, found_at, machine_of, result_of

IMAGES = Path(__file__).resolve().parent.parent / "docs/img"
SHOWN = {
    "first_launch": ("numba_kcache", "numba_kcache, Numba kernel", "cupy RawKernel",
                     "cuda.core FileStreamProgramCache", "Numba cache=True", "Triton"),
    "launch": ("bare cuLaunchKernel, packed before", "numba_kcache, Numba arrays",
               "numba_kcache, Numba-typed, Numba arrays", "CuPy RawKernel, CuPy arrays", "Numba cuda.jit, Numba arrays",
               "Triton, PyTorch tensors"),
    "warm_steps": ("numba_kcache, CUDA C++", "numba_kcache, CUDA C++ on Numba arrays", "numba_kcache, Numba kernel",
                   "numba_kcache.install()", "CuPy RawKernel", "bare cuda.bindings, a cubin from a file"),
}  # fmt: skip
"""The systems in the pictures of results that have more of them than a picture shows well; the table has all."""


class Colours(NamedTuple):
    """The colours of one kind of page: `ours` and `others` for bars, `least` for the bare calls, `more` for lines."""

    text: str
    grid: str
    ours: str
    others: str
    least: str
    more: tuple[str, ...]


PAGES = {
    "light": Colours(
        "#1f2328", "#d1d9e0", "#3f7d20", "#8b949e", "#b8860b",
        ("#3f7d20", "#0969da", "#8250df", "#cf222e", "#bf8700", "#57606a", "#1b7c83", "#bc4c00", "#7d4e57", "#24292f"),
    ),
    "dark": Colours(
        "#e6edf3", "#3d444d", "#76c442", "#7d8590", "#e3b341",
        ("#76c442", "#58a6ff", "#bc8cff", "#ff7b72", "#e3b341", "#8b949e", "#39c5cf", "#ffa657", "#d8a3a9", "#f0f6fc"),
    ),
}  # fmt: skip


def rows_of(name: str, path: str) -> list[tuple[str, float]]:
    """The median milliseconds of each system that the picture shows, the least first; `{}` in the path is a system."""
    result, (case, _, figure) = result_of(name), path.partition("{} > ")
    measured = result["samples"].get(case.removesuffix(" > "), {}) if case else ()
    found = dict[str, float]()
    for system in SHOWN.get(name) or measured:
        with contextlib.suppress(KeyError):
            found[system] = median(found_at(result, f"{case}{system} > {figure}")) * 1e3
    return sorted(found.items(), key=lambda row: row[1])


def bars(axes: Any, colours: Colours, title: str, rows: list[tuple[str, float]]) -> None:
    """Draw bars, ours in colour, each with its figure; on a logarithmic axis if their values are far apart."""
    if not rows:
        axes.set_title(f"{title}: not measured", loc="left", fontsize=10, color=colours.text)
        axes.set_axis_off()
        return
    names, values = zip(*rows, strict=True)
    bar_colours = [
        colours.ours if "numba_kcache" in name else colours.least if name.startswith("bare") else colours.others
        for name in names
    ]
    axes.barh(range(len(rows)), values, color=bar_colours, height=0.65)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    is_wide = max(values) > 20 * min(values)
    if is_wide:
        axes.set_xscale("log")
    axes.set_xlim(min(values) / 2.5 if is_wide else 0, max(values) * (4 if is_wide else 1.2))
    title = f"{title}, ms{', logarithmic' if is_wide else ''}"
    axes.set_title(title, loc="left", fontsize=10, color=colours.text)
    for position, value in enumerate(values):
        axes.annotate(digits(value), (value, position), (4, 0), textcoords="offset points", va="center",
                      fontsize=9, color=colours.text)  # fmt: skip
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def launch(axes: Any, colours: Colours) -> None:
    """Host time by number of arguments, one line for a system."""
    samples = result_of("launch")["samples"]
    for number, (system, by_count) in enumerate((each, samples[each]) for each in SHOWN["launch"] if each in samples):
        counts = sorted(map(int, by_count))
        values = [median(by_count[str(count)]) for count in counts]
        axes.plot(counts, values, marker="o", markersize=3, linewidth=2.2 if "numba_kcache" in system else 1.2,
                  linestyle="--" if system.startswith("bare") else "-", label=system,
                  color=colours.more[number % len(colours.more)])  # fmt: skip
    axes.set_yscale("log")
    axes.set_yticks([3, 5, 10, 20, 40], ["3", "5", "10", "20", "40"])
    axes.minorticks_off()
    axes.set_xticks([0, 2, 4, 8, 16])
    axes.set_xlabel("arguments", color=colours.text)
    axes.set_title("one launch, microseconds of host time", loc="left", fontsize=10, color=colours.text)
    axes.grid(axis="y", color=colours.grid, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, labelcolor=colours.text, loc="upper left", bbox_to_anchor=(1.0, 1.02))


NUMBAS, CUB, MANY = "20 Numba kernels in four files", "block sum with CUB", "31 kernels of one source"
PICTURES: dict[str, tuple[tuple[float, float], dict[str, str]]] = {
    "first_launch": ((9.5, 3.2), {
        "first launch, warm": "1 > {} > warm first", "first launch, cold": "1 > {} > cold first"}),
    "programs": ((12.5, 1.9), {
        "Numba: first launch": f"{NUMBAS} > {{}} > warm first", "with CUB: first launch": f"{CUB} > {{}} > warm first",
        "31 kernels: first launch": f"{MANY} > {{}} > warm first"}),
    "launch": ((9.0, 4.2), {}),
    "warm_steps": ((10.5, 3.6), {
        "import, decoration, first launch and exit, warm": "{} > warm > sum",
        "first launch, warm": "{} > warm > first"}),
    "workloads": ((12.0, 6.0), {
        f"{workload}, warm": f"{workload} > {{}} > warm all"
        for workload in (MANY, NUMBAS, f"{NUMBAS}, no compiler", CUB, f"{CUB}, no compiler",
                         "20 Numba kernels, 8 processes")}),
}  # fmt: skip
"""By name, the size of a picture in inches, and its panels of bars: their titles and figures; `launch` has lines. A
picture has the name of its result, unless `RESULT_OF` has another one."""

RESULT_OF = {"programs": "workloads"}
"""The result of each picture that has another name than its result."""


def source_of(name: str) -> str:
    """The name and digest of the result that a picture is drawn from, as the picture contains them."""
    path = RESULTS / f"{RESULT_OF.get(name, name)}.json"
    return f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def draw(name: str, page: str, colours: Colours) -> None:
    """Write one picture for one kind of page."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "text.color": colours.text,
        "font.size": 9, "axes.edgecolor": colours.grid, "xtick.color": colours.text, "ytick.color": colours.text,
    }  # fmt: skip
    size, panels = PICTURES[name]
    result = RESULT_OF.get(name, name)
    drawn = [partial(bars, title=title, rows=rows_of(result, path)) for title, path in panels.items()] or [launch]
    columns = 2 if len(drawn) > 3 else len(drawn)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        places = figure.subplots(-(-len(drawn) // columns), columns, squeeze=False).flat
        for panel, axes in zip(drawn, places, strict=False):
            panel(axes, colours)
        for axes in list(places):
            axes.set_axis_off()
        machine = machine_of(result_of(result))
        figure.supxlabel(machine, fontsize=7, color=colours.others, x=0.99, ha="right")
        IMAGES.mkdir(parents=True, exist_ok=True)
        path = IMAGES / f"{name}-{page}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None, "Source": source_of(name)})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    for picture in sys.argv[1:] or PICTURES:
        for kind, page_colours in PAGES.items():
            draw(picture, kind, page_colours)
