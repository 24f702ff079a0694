"""A job runs at full size, and again at the size that `omr advise --verify` found.

How much slower is the job, and how much memory is saved?
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, Process
from ..plots import COLOURS, canvas, save
from ..results import Metric, MetricJson, progress
from ..scenario import Benchmark, option

GROUP = "job"

GOALS = {"slowdown_pct": "<= 1", "saved_pct": ">= 30"}

TURNS = 5
"""The number of parts of the compared rounds. Each part runs without the limit, then with it."""

PERIOD = 0.5
"""Seconds from the start of one round of the job to the start of the next."""


class Round(TypedDict):
    """A line of `omr-guest touch`."""

    seconds: float
    major_faults: int
    errors: int


class Verified(TypedDict):
    """The output of `omr advise --verify --json`, as far as it is used here."""

    held: int | None


class Run(TypedDict):
    full: list[Round]
    """The first rounds, before omr advises."""
    peak: int
    """Bytes: the memory.peak of the job."""
    held: int | None
    """Bytes: the smallest size at which the job was not slower; None where there is none."""
    verified: Verified
    unlimited: list[Round]
    advised: list[Round]


@dataclass(kw_only=True)
class Advise(Benchmark):
    name = "advise"
    help = "a job at full size and at the size omr advise found: how much slower, how much saved (10 minutes)"
    title = "A job at full size and at the size advised"

    pairs: int = option(3, "how often it runs", flag="--runs", setting=False)
    mem: int = option(768, "memory of the guest", "MIB")
    used: int = option(96, "memory that the job uses in each round", "MIB")
    cold: int = option(192, "memory that it holds and never uses", "MIB")
    rounds: int = option(40, "rounds that are compared")
    step: str = option("10%", "step of omr advise")

    def run(self) -> dict[str, MetricJson]:
        runs = self.open_runs()
        results = []
        for number in range(1, self.pairs + 1):
            run = runs.run(f"run-{number:02}", self.measure)
            results.append(run)
            found = f"{run['held'] / MIB:.0f} MiB held" if run["held"] else "no smaller size held"
            progress(f"{self.name}: {found}, {slowdown(run):.2f} % slower, {saved(run):.1f} % of the peak saved")
        return self.publish(runs, metrics(results), lambda directory: draw(results, directory))

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "disk", "used_mib": self.used, "cold_mib": self.cold}

    def measure(self) -> Run:
        with Guest(self.kernel, self.mem, Disk(self.mem, mb_s=100)) as guest:
            guest.write(MGLRU_SWITCH, "y")
            directory = guest.group(GROUP)
            cold = guest.spawn(["omr-guest", "fill", f"{self.cold}M"], group=GROUP)
            job = guest.spawn(["omr-guest", "touch", f"{self.used}M"], group=GROUP)
            for process in (cold, job):
                process.line_with("ready", timeout=120)
            guest.spawn(["sh", "-c", f"while kill -USR1 {job.pid}; do sleep {PERIOD}; done"])
            full = next_rounds(job, self.rounds)
            peak = guest.group_value(GROUP, "memory.peak")
            words = ["omr", "advise", "--verify", GROUP, "--for", "30s", "--step", self.step, "--json"]
            verified: Verified = guest.run(words, timeout=900).json()
            held = verified["held"]
            unlimited: list[Round] = []
            advised: list[Round] = []
            # In turn, because an emulated machine may get faster or slower by itself.
            for _ in range(TURNS):
                for rounds, limit in ((unlimited, "max"), (advised, held or "max")):
                    guest.write(f"{directory}/memory.high", str(limit))
                    rounds += next_rounds(job, self.rounds // TURNS)
            return {
                "full": full,
                "peak": peak,
                "held": held,
                "verified": verified,
                "unlimited": unlimited,
                "advised": advised,
            }


def next_rounds(job: Process, number: int) -> list[Round]:
    """Waits for the job's next rounds."""
    before = sum("touched" in line for line in job.lines())
    job.line_with("touched", before + number, timeout=20 * PERIOD * number)
    rounds = [line for line in job.lines() if "touched" in line]
    return cast(list[Round], rounds[before : before + number])


def slowdown(run: Run) -> float:
    """Percent that a round takes longer at the size advised.

    Of the medians, because a busy host stretches single rounds.
    """
    unlimited, advised = (
        statistics.median(round["seconds"] for round in rounds) for rounds in (run["unlimited"], run["advised"])
    )
    return 100 * (advised / unlimited - 1)


def saved(run: Run) -> float:
    """Percent of the job's peak that its smaller size saves."""
    return 100 * (1 - run["held"] / run["peak"]) if run["held"] else 0


def metrics(results: list[Run]) -> dict[str, Metric]:
    faults = [sum(round["major_faults"] for round in run["advised"]) for run in results]
    errors = [sum(round["errors"] for round in run["full"] + run["unlimited"] + run["advised"]) for run in results]
    return {
        "slowdown_pct": Metric([slowdown(run) for run in results], "%", GOALS["slowdown_pct"]),
        "saved_pct": Metric([saved(run) for run in results], "%", GOALS["saved_pct"]),
        "major_faults": Metric([float(count) for count in faults], "faults"),
        "content_errors": Metric([float(count) for count in errors], "words", "<= 0"),
    }


def draw(results: list[Run], directory: Path) -> dict[str, str]:
    figure, (axes,) = canvas()
    first = results[0]
    for rounds, label, colour in (
        (first["full"], "full size, before", COLOURS["by-hand"]),
        (first["unlimited"], "without the limit", COLOURS["off"]),
        (first["advised"], "size advised", COLOURS["on"]),
    ):
        axes.plot([1000 * round["seconds"] for round in rounds], color=colour, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    save(figure, directory / "advise.png")
    return {"advise.png": "How long each round of the job took; the first run."}
