"""report.html: one file with the figures, the plots and the command that makes them again."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .results import MetricJson, Result

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
code { background: #f4f4f4; padding: .1rem .3rem; }
.missed { color: #b00020; }
"""


def write_report(
    directory: Path,
    title: str,
    summary: str,
    command: str,
    result: Result,
    plots: dict[str, str],
    tables: Mapping[str, dict[str, str]],
) -> Path:
    """Writes the report. `plots`: captions by file name in `directory`; SVG are omr's own charts,
    and come first. `tables`: by title.
    """
    environment = result["environment"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{text(title)}</title><style>{STYLE}</style>",
        f"<h1>{text(title)}</h1><p>{text(summary)}</p>",
        *(figure(directory / name, caption) for name, caption in plots.items() if name.endswith(".svg")),
        metrics_table(result["metrics"]),
        *(figure(directory / name, caption) for name, caption in plots.items() if not name.endswith(".svg")),
        *(f"<h2>{text(name)}</h2>{definitions(table)}" for name, table in tables.items()),
        "<h2>How it was measured</h2>",
        f"<p><code>{text(command)}</code></p>",
        definitions(
            {
                "kernel": result["kernel"],
                "guest": ", ".join(f"{name} {value}" for name, value in result["guest"].items()),
                "runs of each arm": result["pairs"],
                "runs thrown away (the guest panicked)": len(result["thrown_away"]),
                **environment,
            }
        ),
        "<p>Raw data: <code>raw/</code> beside this file. The value is the median over the runs.</p></html>",
    ]
    path = directory / "report.html"
    path.write_text("\n".join(parts))
    return path


def metrics_table(metrics: dict[str, MetricJson]) -> str:
    rows = ["<tr><th>figure<th>median<th>min<th>max<th>unit<th>goal<th>seed"]
    for name, metric in metrics.items():
        cells = [
            metric["value"],
            metric["min"],
            metric["max"],
            metric["unit"],
            metric.get("goal", ""),
            metric.get("seed", ""),
        ]
        missed = "" if reached(metric) else " class=missed"
        rows.append(f"<tr{missed}><td>{text(name)}" + "".join(f"<td>{text(cell)}" for cell in cells))
    return f"<table>{''.join(rows)}</table>"


def reached(metric: MetricJson) -> bool:
    """True when the median meets its goal, or there is no goal."""
    if "goal" not in metric:
        return True
    relation, goal = metric["goal"].split()
    value = metric["value"]
    return {"<=": value <= float(goal), ">=": value >= float(goal), "=": value == float(goal)}[relation]


def figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    image = f'<img alt="{text(caption)}" src="data:image/{kind};base64,{data}">'
    return f"<figure>{image}<figcaption>{text(caption)}</figcaption></figure>"


def definitions(values: dict[str, Any]) -> str:
    return "<table>" + "".join(f"<tr><td>{text(name)}<td>{text(value)}" for name, value in values.items()) + "</table>"


def text(value: Any) -> str:
    return html.escape(str(value))
