"""One look for all plots."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers too.
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
    columns: int = 1, width: float = 9, height: float = 4, rows: int = 1, **options: object
) -> tuple[Figure, list[Axes]]:
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options
    )
    return figure, list(axes.flat)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
