"""A job runs at full size, and again at the size that `omr advise --verify` found: how much slower is it, and how much is saved?"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from ..guest import MIB, Disk, Guest, Process
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress

NAME = "advise"

GROUP = "job"

GOALS = {"slowdown_pct": "<= 1", "saved_pct": ">= 30"}

TURNS = 5
"""The rounds that are compared are run in so many parts, with the limit and without it in turn."""

PERIOD = 0.5
"""Seconds from the beginning of one round of the job to the next."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=768, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument(
        "--used", type=int, default=96, metavar="MIB", help="what the job uses in each round (default: %(default)s)"
    )
    parser.add_argument(
        "--cold", type=int, default=192, metavar="MIB", help="what it holds and never uses (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=40, help="rounds that are compared (default: %(default)s)")
    parser.add_argument("--step", default="10%", help="step of omr advise (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="how often it runs (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/advise)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    setting = {name: vars(arguments)[name] for name in ("mem", "used", "cold", "rounds", "step")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)
    results = []
    for number in range(1, arguments.runs + 1):
        measured = runs.run(f"run-{number:02}", lambda name: measure(arguments))
        results.append(measured)
        found = f"{measured['held'] / MIB:.0f} MiB held" if measured["held"] else "no smaller size held"
        progress(f"{NAME}: {found}, {slowdown(measured):.2f} % slower, {saved(measured):.1f} % of the peak saved")
    guest = {"mem_mib": arguments.mem, "swap": "disk", "used_mib": arguments.used, "cold_mib": arguments.cold}
    result = runs.finish(guest, arguments.runs, metrics(results))
    plots = draw(results, runs.directory)
    command = (
        f"lab/run advise {' '.join(f'--{name} {value}' for name, value in setting.items())} --runs {arguments.runs}"
    )
    write_report(runs.directory, "A job at full size and at the size advised", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in a guest of its own."""
    with Guest(arguments.kernel, arguments.mem, Disk(arguments.mem, mb_s=100)) as guest:
        guest.write("/sys/kernel/mm/lru_gen/enabled", "y")
        directory = guest.group(GROUP)
        cold = guest.spawn(["omr-testkit", "fill", f"{arguments.cold}M"], group=GROUP)
        job = guest.spawn(["omr-testkit", "touch", f"{arguments.used}M"], group=GROUP)
        for process in (cold, job):
            process.line_with("ready", timeout=120)
        guest.spawn(["sh", "-c", f"while kill -USR1 {job.pid}; do sleep {PERIOD}; done"])
        full = rounds(job, arguments.rounds)
        peak = guest.group_value(GROUP, "memory.peak")
        words = ["omr", "advise", "--verify", GROUP, "--for", "30s", "--step", arguments.step, "--json"]
        verified = guest.run(words, timeout=900).json()
        held = verified["held"]
        # In turn: between the first rounds and the last an emulated machine may get faster or slower by itself.
        arms: dict[str, list[dict[str, Any]]] = {"unlimited": [], "advised": []}
        for _ in range(TURNS):
            for arm, limit in (("unlimited", "max"), ("advised", held or "max")):
                guest.write(f"{directory}/memory.high", str(limit))
                arms[arm] += rounds(job, arguments.rounds // TURNS)
        return {"full": full, "peak": peak, "held": held, "verified": verified} | arms


def rounds(job: Process, number: int) -> list[dict[str, Any]]:
    """The next rounds of the job."""
    before = sum("touched" in line for line in job.lines())
    job.line_with("touched", before + number, timeout=20 * PERIOD * number)
    return [line for line in job.lines() if "touched" in line][before : before + number]


def slowdown(measured: dict[str, Any]) -> float:
    """Percent that a round takes longer at the size advised: of the medians, as a busy host stretches single rounds."""
    unlimited, advised = (
        statistics.median(line["seconds"] for line in measured[arm]) for arm in ("unlimited", "advised")
    )
    return 100 * (advised / unlimited - 1)


def saved(measured: dict[str, Any]) -> float:
    """Percent of the most that the job held."""
    return 100 * (1 - measured["held"] / measured["peak"]) if measured["held"] else 0


def metrics(results: list[dict[str, Any]]) -> dict[str, Metric]:
    faults = [sum(line["major_faults"] for line in measured["advised"]) for measured in results]
    errors = [
        sum(line["errors"] for line in measured["full"] + measured["unlimited"] + measured["advised"])
        for measured in results
    ]
    return {
        "slowdown_pct": Metric([slowdown(measured) for measured in results], "%", GOALS["slowdown_pct"]),
        "saved_pct": Metric([saved(measured) for measured in results], "%", GOALS["saved_pct"]),
        "major_faults": Metric([float(count) for count in faults], "faults"),
        "content_errors": Metric([float(count) for count in errors], "words", "<= 0"),
    }


def draw(results: list[dict[str, Any]], directory: Path) -> dict[str, str]:
    figure, (axes,) = canvas()
    for arm, label, colour in (
        ("full", "full size, before", COLOURS["by-hand"]),
        ("unlimited", "without the limit", COLOURS["off"]),
        ("advised", "size advised", COLOURS["on"]),
    ):
        axes.plot([1000 * line["seconds"] for line in results[0][arm]], color=colour, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    save(figure, directory / f"{NAME}.png")
    return {f"{NAME}.png": "How long each round of the job took; the first run."}
