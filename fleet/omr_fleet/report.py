"""The report of tuning: one HTML file."""

import html
import io
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from . import files, space
from .optimizer import fitted
from .rollout import STAGES, Outcome
from .tune import Figures

BLUE, ORANGE, GREY = "#1f77b4", "#d95f02", "#888888"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .25em .8em; border-bottom: 1px solid #ddd }
td { text-align: right } td:first-child, th { text-align: left } figure { margin: 1.5em 0 } svg { max-width: 100% }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } svg { background: #fff } }
"""
HEAD = ("held out", "p98", "p98, bound", "windows over", "written a day")


def write_report(outcome: Outcome, path: Path) -> None:
    """Writes the report."""
    tuned = outcome.tuned
    tables = [
        table(
            "What the policies do",
            [
                ("tuned, shards that were tuned on", outcome.best),
                ("defaults, the same", tuned.default),
                ("tuned, held out", outcome.held_out),
                ("defaults, held out", outcome.held_out_default),
            ],
        ),
        table("The price of one step more", [("tuned", outcome.best), *outcome.beside.items()]),
    ]
    keys = "".join(f"<tr><td>{key}<td>{html.escape(value)}" for key, value in outcome.slo.items())
    stages = "".join(f"<li><b>{name}</b>: {html.escape(what)}" for name, what in STAGES)
    text = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>omr-fleet tune</title><style>{STYLE}</style>
<h1>Tuning omr's policy</h1>
<p>{html.escape(outcome.sentence())}. The limit: in 98 % of the windows at most {outcome.limits.promotions:g} % of
the memory in use comes back in a minute, in 95 % of the draws of a bootstrap over jobs.
<table><tr><th>[slo]<th>tuned{keys}</table>
{figure("Which policies keep the limit, and what do they hold?", scatter(outcome))}
{tables[0]}
{figure("How does what is held change with two parameters?", surface(outcome))}
{tables[1]}
<h2>Roll-out</h2><ol>{stages}</ol>
<p>After each stage: <code>omr record export</code> on these machines, <code>omr-fleet run</code>, then
<code>omr-fleet check</code>. Where it ends with 3, the machines have left the prediction by half: back to the
defaults.
"""
    files.write(path, text)


def table(title: str, rows: Iterable[tuple[str, Figures]]) -> str:
    cells = []
    for name, of in rows:
        values = (
            f"{100 * of.held:.1f} %",
            f"{of.p98:.2f} %/min",
            f"{of.upper:.2f} %/min",
            f"{100 * of.over:.1f} %",
            f"{of.written_gib_per_day:.0f} GiB",
        )
        cells.append(f"<tr><td>{html.escape(name)}" + "".join(f"<td>{value}" for value in values))
    head = "".join(f"<th>{name}" for name in HEAD)
    return f"<h2>{title}</h2><table><tr><th>policy{head}{''.join(cells)}</table>"


def figure(title: str, drawn: Figure) -> str:
    """A figure with its title, as SVG."""
    out = io.StringIO()
    drawn.savefig(out, format="svg", bbox_inches="tight")
    plt.close(drawn)
    svg = out.getvalue()
    return f"<figure><figcaption><h2>{title}</h2></figcaption>{svg[svg.index('<svg') :]}</figure>"


def scatter(outcome: Outcome) -> Figure:
    """Memory held against promotions, of all policies that were tried."""
    drawn, axes = plt.subplots(figsize=(7, 4))
    for keeps, colour, label in ((True, BLUE, "keeps the limits"), (False, GREY, "breaks them")):
        points = [of for _, of in outcome.tuned.tried if of.keeps(outcome.limits) is keeps]
        axes.scatter([of.upper for of in points], [100 * of.held for of in points], c=colour, label=label, s=24)
    for of, marker, label in ((outcome.tuned.default, "s", "defaults"), (outcome.best, "*", "tuned")):
        axes.scatter([of.upper], [100 * of.held], c=ORANGE, marker=marker, s=110, label=label, zorder=3)
    axes.axvline(outcome.limits.promotions, color=ORANGE, linestyle="--", linewidth=1)
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("p98 of promotions, upper bound (% of the memory in use a minute)")
    axes.set_ylabel("memory held out (%)")
    axes.legend(frameon=False)
    return drawn


def surface(outcome: Outcome) -> Figure:
    """The model of what is held, over the two parameters that matter most."""
    points = np.array([point for point, _ in outcome.tuned.tried])
    held = np.array([100 * of.held for _, of in outcome.tuned.tried])
    model = fitted(points, held, np.random.default_rng(0))
    lengths = model.kernel_.k1.k2.length_scale
    first, second = np.sort(np.argsort(lengths)[:2])
    side = np.linspace(0, 1, 60)
    grid = np.tile(np.asarray(outcome.tuned.best), (side.size**2, 1))
    grid[:, first], grid[:, second] = (axis.ravel() for axis in np.meshgrid(side, side))
    drawn, axes = plt.subplots(figsize=(7, 4.5))
    parameters = [space.PARAMETERS[index] for index in (first, second)]
    values = [[parameter.value(at) for at in side] for parameter in parameters]
    shown = axes.pcolormesh(*values, model.predict(grid).reshape(side.size, side.size), shading="auto", cmap="viridis")
    drawn.colorbar(shown, label="memory held out (%), model")
    for keeps, marker in ((True, "o"), (False, "x")):
        tried = [point for point, of in outcome.tuned.tried if of.keeps(outcome.limits) is keeps]
        at = [
            [parameter.value(point[index]) for point in tried] for parameter, index in zip(parameters, (first, second))
        ]
        axes.scatter(*at, c="white", edgecolors="black" if keeps else None, marker=marker, s=30)
    for parameter, axis, name in zip(parameters, (axes.xaxis, axes.yaxis), "xy"):
        getattr(axes, f"set_{name}scale")("log")
        axis.set_label_text(parameter.meaning)
    return drawn
