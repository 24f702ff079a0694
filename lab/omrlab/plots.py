"""The common look of all plots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import Metric

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {
    "off": "#999999",
    "on": "#0072b2",
    "by-hand": "#e69f00",
    "seed": "#d55e00",
    "machine": "#56b4e9",
    "swap": "#cc79a7",
}
COLOURS |= {"drop-caches": "#f0e442", "prepare": "#009e73"}

pyplot.rcParams.update(
    {
        "figure.dpi": 120,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "axes.grid": True,
        "grid.color": "#e5e5e5",
        "axes.axisbelow": True,
    }
)


def canvas(
    columns: int = 1, width: float = 9, height: float = 4, rows: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    size = (width, height)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
    return figure, list(axes.flat)


def headline(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=12, fontweight="bold")


def bar(
    axes: Axes, place: float, metric: Metric, colour: str, text: str = "", width: float = 0.75, **options: Any
) -> None:
    """A bar as high as the median, a dot for each run, and `text` above the highest dot."""
    axes.bar(place, metric.value, width, color=colour, **options)
    axes.plot([place] * len(metric.values), metric.values, ".", color="#333333", markersize=4)
    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 9}
    axes.annotate(text, (place, max(metric.values)), **above)


def name_bars(axes: Axes, names: Sequence[str], unit: str, title: str, room: float = 1.05) -> None:
    """Names the bars and their unit. `room`: the height of the plot, as a multiple of its highest
    value.
    """
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, room * axes.dataLim.ymax)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
