"""Draw the pictures of the documents from the committed results, for light and for dark pages.

Promise     The same results and the same matplotlib give the same bytes. A picture contains the name and the digest of
            its result; tests/contract/test_figures.py compares the digest with the file.
Output      docs/img/NAME-light.svg and NAME-dark.svg; no picture for a result that is not committed.
Run         python benchmarks/plots.py [NAME ...]    (matplotlib: pip install --group bench)
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from results import RESULTS, NoResult, digits, machine_of, result_of

IMAGES = Path(__file__).resolve().parent.parent / "docs/img"


MOST = 6
"""The largest number of bars or lines in a picture; the table has all."""

SHOWN = {
    "first_launch": ("numba_kcache", "numba_kcache, Numba kernel", "cupy RawKernel",
                     "cuda.core FileStreamProgramCache", "Numba cache=True", "Triton"),
    "launch": ("bare cuLaunchKernel, packed before", "numba_kcache, Numba arrays",
               "numba_kcache, Numba-typed, Numba arrays", "CuPy RawKernel, CuPy arrays", "Numba cuda.jit, Numba arrays",
               "Triton, PyTorch tensors"),
    "warm_steps": ("numba_kcache, CUDA C++", "numba_kcache, CUDA C++ on Numba arrays", "numba_kcache, Numba kernel",
                   "numba_kcache.install()", "CuPy RawKernel", "bare cuda.bindings, a cubin from a file"),
    "whole_process": ("bare cuda.bindings, a cubin from a file", "numba_kcache, memory of cuda.bindings",
                      "numba_kcache, CuPy arrays", "CuPy RawKernel", "numba_kcache, Numba arrays", "import numba.cuda"),
    "store": ("numba_kcache", "bare open+read, size known", "SQLite WAL, xxh3 checked", "LMDB, xxh3 checked",
              "cuda.core FileStreamProgramCache", "diskcache"),
    "growth": ("numba_kcache, dropped", "numba_kcache, Numba kernel, kept", "cuModuleLoadData, kept",
               "cuModuleLoadData, dropped", "cupy RawKernel, kept", "Numba cache=True, kept"),
    "cli": ("info", "list", "list, by hits", "list, all as JSON", "verify", "report"),
}  # fmt: skip
"""The systems in the pictures of results that have more than `MOST`."""


def shown(name: str, rows: Any) -> dict[str, Any]:
    """Select the systems of a result that its picture shows."""
    return {system: rows[system] for system in SHOWN[name] if system in rows}


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


def bars(axes: Any, rows: Sequence[tuple[str, float]], colours: Colours, title: str, unit: str = "ms") -> None:
    """Draw horizontal bars, ours in colour, each with its figure; on a logarithmic axis if their values are far apart.

    Raises:
        ValueError: There are more rows than `MOST`: `SHOWN` has to choose among them.
    """
    if len(rows) > MOST:
        raise ValueError(f"cannot draw {title}: {len(rows)} bars are more than {MOST}")
    if not rows:
        axes.set_title(f"{title}: not measured", loc="left", fontsize=10, color=colours.text)
        axes.set_axis_off()
        return
    names, values = [name for name, _ in rows], [value for _, value in rows]
    bar_colours = [colours.ours if "numba_kcache" in name else _colour_of_other(name, colours) for name in names]
    axes.barh(range(len(rows)), values, color=bar_colours, height=0.65)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    is_wide = max(values) > 20 * min(values)
    if is_wide:
        axes.set_xscale("log")
    axes.set_xlim(min(values) / 2.5 if is_wide else 0, max(values) * (4 if is_wide else 1.2))
    axes.set_title(f"{title}, {unit}{', logarithmic' if is_wide else ''}", loc="left", fontsize=10, color=colours.text)
    for position, value in enumerate(values):
        axes.annotate(digits(value), (value, position), (4, 0), textcoords="offset points", va="center",
                      fontsize=9, color=colours.text)  # fmt: skip
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _colour_of_other(name: str, colours: Colours) -> str:
    return colours.least if name.startswith(("floor", "bare")) else colours.others


def medians(rows: dict[str, Any], what: str, scale: float = 1e3) -> list[tuple[str, float]]:
    """Map each system to the median of one column, smallest first."""
    found = [(system, median(each[what]) * scale) for system, each in rows.items() if what in each]
    return sorted(found, key=lambda row: row[1])


def first_launch(figure: Any, colours: Colours) -> None:
    """One kernel, warm and cold."""
    rows = shown("first_launch", result_of("first_launch")["samples"]["1"])
    left, right = figure.subplots(1, 2)
    bars(left, medians(rows, "warm first"), colours, "first launch, warm")
    bars(right, medians(rows, "cold first"), colours, "first launch, cold")


def programs(figure: Any, colours: Colours) -> None:
    """Three of the real programs, warm, to the first result."""
    samples = result_of("workloads")["samples"]
    titles = {
        "20 Numba kernels in four files": "Numba", "block sum with CUB": "with CUB",
        "31 kernels of one source": "31 kernels",
    }  # fmt: skip
    for axes, (workload, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        bars(axes, medians(samples[workload], "warm first"), colours, f"{title}: first launch")


def launch(figure: Any, colours: Colours) -> None:
    """Host time by number of arguments, one line for a system."""
    axes = figure.subplots()
    for number, (system, by_count) in enumerate(shown("launch", result_of("launch")["samples"]).items()):
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


def warm_steps(figure: Any, colours: Colours) -> None:
    """The steps of a start that serve the kernel, added up; and the first launch alone."""
    found = shown("warm_steps", result_of("warm_steps")["samples"])
    samples = {system: states["warm"] for system, states in found.items()}
    left, right = figure.subplots(1, 2)
    bars(left, medians(samples, "sum"), colours, "import, decoration, first launch and exit, warm")
    bars(right, medians(samples, "first"), colours, "first launch, warm")


def whole_process(figure: Any, colours: Colours) -> None:
    rows = shown("whole_process", result_of("whole_process")["samples"])
    bars(figure.subplots(), medians(rows, "process"), colours, "whole process")


def processes(figure: Any, colours: Colours) -> None:
    """Time until the last rank has its results, cold, by number of ranks."""
    samples = result_of("processes")["samples"]
    panels = figure.subplots(1, len(samples), squeeze=False)[0]
    for axes, (count, rows) in zip(panels, samples.items(), strict=True):
        bars(axes, medians(rows, "cold last"), colours, f"{count} ranks, cold, until the last")


def numba_first_launch(figure: Any, colours: Colours) -> None:
    """Numba kernels, warm and cold, and one launch."""
    rows = result_of("numba_first_launch")["samples"]
    panels = figure.subplots(1, 3)
    for axes, (what, scale, unit) in zip(
        panels, (("warm first", 1e3, "ms"), ("cold first", 1e3, "ms"), ("launch", 1e6, "us")), strict=True
    ):
        bars(axes, medians(rows, what, scale), colours, what, unit)


def import_time(figure: Any, colours: Colours) -> None:
    rows = {name: {"process": times} for name, times in result_of("import_time")["samples"].items()}
    bars(figure.subplots(), medians(rows, "process"), colours, "whole process")


def numba_fingerprint(figure: Any, colours: Colours) -> None:
    rows = {f"numba_kcache, {name}": {"us": times} for name, times in result_of("numba_fingerprint")["samples"].items()}
    bars(figure.subplots(), medians(rows, "us", 1e6), colours, "fingerprint of ten callees", "us")


def modules(figure: Any, colours: Colours) -> None:
    """A source of 31 kernels."""
    rows = result_of("modules")["samples"]
    left, right = figure.subplots(1, 2)
    bars(left, medians(rows, "warm all"), colours, "31 kernels, warm")
    bars(right, medians(rows, "cold all"), colours, "31 kernels, cold")


def workloads(figure: Any, colours: Colours) -> None:
    """Each program, warm, to its last result."""
    samples = result_of("workloads")["samples"]
    panels = figure.subplots(-(-len(samples) // 2), 2).flat
    for axes, (workload, rows) in zip(panels, samples.items(), strict=False):
        bars(axes, medians(rows, "warm all"), colours, f"{workload}, warm")
    for axes in list(panels):
        axes.set_axis_off()


def growth(figure: Any, colours: Colours) -> None:
    """Memory of the host by kernel, and the time of one launch by tenths."""
    samples = result_of("growth")["samples"]
    left, right = figure.subplots(1, 2)
    grown = {part: (each["tenths"][-1][1] - each["tenths"][0][1]) / (each["count"] - each["count"] // 10) / 1e3
             for part, each in shown("growth", samples).items()}  # fmt: skip
    rows = sorted(((part, max(kilobytes, 0.01)) for part, kilobytes in grown.items()), key=lambda row: row[1])
    bars(left, rows, colours, "memory of the host for a kernel", "KB")
    if each := samples.get("launches"):
        size = each["count"] // 10
        spent = [tenth[0] / size * 1e6 for tenth in each["tenths"]]
        right.plot([(number + 1) * size for number in range(len(spent))], spent, marker="o", color=colours.ours)
        right.set_ylim(0, max(spent) * 1.3)
        right.set_title("one launch, us, by launches made", loc="left", fontsize=10, color=colours.text)
        right.grid(axis="y", color=colours.grid, linewidth=0.6)
    right.spines[["top", "right"]].set_visible(False)


def warm_up(figure: Any, colours: Colours) -> None:
    found = result_of("warm_up")["samples"]
    rows = [
        (f"numba_kcache, {found['many']['workers']} workers", found["many"]["wall_s"]),
        ("one warm worker", found["one"]["compiles_s"]),
    ]
    bars(figure.subplots(), rows, colours, f"{found['kernels']} kernels with CUB", "s")


def cli(figure: Any, colours: Colours) -> None:
    """Each verb in the largest cache."""
    samples = result_of("cli")["samples"]
    largest = list(samples)[-1].rpartition(", ")[2]
    rows = [(name.rpartition(", ")[0], max(median(times) * 1e3, 0.1)) for name, times in samples.items()
            if name.endswith(f", {largest}") and name.rpartition(", ")[0] in SHOWN["cli"]]  # fmt: skip
    bars(figure.subplots(), rows, colours, f"beyond the interpreter's start, {largest}")


def lookup(figure: Any, colours: Colours) -> None:
    """The first lookup of a process, without includes and with CUB."""
    rows = {system: each for system, each in result_of("lookup")["samples"]["lookup"].items() if isinstance(each, dict)}
    left, right = figure.subplots(1, 2)
    bars(left, medians(rows, "no includes, first", 1e6), colours, "first lookup, no includes", "us")
    bars(right, medians(rows, "cub/block/block_reduce.cuh, first", 1e6), colours, "first lookup, with CUB", "us")


def store(figure: Any, colours: Colours) -> None:
    """A hit and a publish of 50 KB in a small store, by one process."""
    rows = [row for row in result_of("store")["rows"] if row["size"] == "50 KB" and row["processes"] == 1]
    few = min(row["entries"] for row in rows)
    rows = [row for row in rows if row["system"] in SHOWN["store"]]
    for axes, verb in zip(figure.subplots(1, 2), ("hit", "put"), strict=True):
        found = [(row["system"], row["p50_us"]) for row in rows if row["verb"] == verb and row["entries"] == few]
        bars(axes, sorted(found, key=lambda row: row[1]), colours, f"{verb} of 50 KB, {few} entries", "us")


def nodes(figure: Any, colours: Colours) -> None:
    result = result_of("nodes")
    title = f"{result['nodes']} nodes of {result['ranks']} ranks, cold, until the last"
    bars(figure.subplots(), medians(result["samples"], "cold last", 1), colours, title, "s")


def fleet(figure: Any, colours: Colours) -> None:
    """The largest fleet of the simulation: the time until the last rank runs, and the number of compiles."""
    runs = result_of("fleet")["samples"]["fleet"]
    most = max(run["nodes"] for run in runs)
    named = {
        f"{'warm' if run['warm'] else 'cold'}"
        f"{', lease' if run['leases'] and not run['warm'] else ''}{', back-fill' if run['back_fill'] else ''}": run
        for run in runs if run["nodes"] == most
    }  # fmt: skip
    left, right = figure.subplots(1, 2)
    bars(left, [(name, run["last_rank_s"]) for name, run in named.items()], colours, f"{most:,} nodes: last rank", "s")
    bars(right, [(name, run["compiles"] or 0.5) for name, run in named.items()], colours, "compiles", "0.5 for none")


PICTURES: dict[str, tuple[Callable[[Any, Colours], None], tuple[float, float]]] = {
    "first_launch": (first_launch, (9.5, 3.2)),
    "programs": (programs, (12.5, 1.9)),
    "launch": (launch, (9.0, 4.2)),
    "warm_steps": (warm_steps, (10.5, 3.6)),
    "whole_process": (whole_process, (8.0, 2.8)),
    "processes": (processes, (9.5, 2.2)),
    "numba_first_launch": (numba_first_launch, (11.0, 1.9)),
    "import_time": (import_time, (7.0, 1.4)),
    "numba_fingerprint": (numba_fingerprint, (7.0, 1.4)),
    "modules": (modules, (9.5, 2.2)),
    "workloads": (workloads, (12.0, 6.0)),
    "growth": (growth, (10.5, 3.2)),
    "warm_up": (warm_up, (7.0, 1.4)),
    "cli": (cli, (7.5, 2.4)),
    "lookup": (lookup, (10.5, 2.4)),
    "store": (store, (11.5, 3.6)),
    "nodes": (nodes, (7.0, 1.6)),
    "fleet": (fleet, (10.0, 1.9)),
}
"""By name, the function that draws a picture, and its size in inches. A picture has the name of its result, unless
`RESULT_OF` has another one."""

RESULT_OF = {"programs": "workloads"}
"""The result of each picture that has another name than its result."""


def source_of(name: str) -> str:
    """The name and digest of the result that a picture is drawn from, as the picture contains them."""
    result = RESULT_OF.get(name, name)
    return f"{result}.json sha256:{hashlib.sha256((RESULTS / f'{result}.json').read_bytes()).hexdigest()}"


def draw(name: str, page: str, colours: Colours) -> None:
    """Write one picture for one kind of page."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "text.color": colours.text,
        "font.size": 9, "axes.edgecolor": colours.grid, "xtick.color": colours.text, "ytick.color": colours.text,
    }  # fmt: skip
    draw_on, size = PICTURES[name]
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        draw_on(figure, colours)
        machine = machine_of(result_of(RESULT_OF.get(name, name)))
        figure.supxlabel(machine, fontsize=7, color=colours.others, x=0.99, ha="right")
        IMAGES.mkdir(parents=True, exist_ok=True)
        path = IMAGES / f"{name}-{page}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None, "Source": source_of(name)})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        for page, colours in PAGES.items():
            try:
                draw(name, page, colours)
            except NoResult as missing:
                print(f"{name}: no picture, benchmarks/results/{missing}.json is not committed")
                break


if __name__ == "__main__":
    main()
