"""Ten groups with memory whose use is known: how much of it was not used for two minutes?

The arms: `omr wss` with each of its trackers, and damo.
"""

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, Process
from ..packages import DAMO
from ..plots import COLOURS, canvas, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option
from .footprint import DAMO_COMMAND

REGIONS = {"1s": 18, "20s": 20, "90s": 30, "5m": 12, "never": 20}
"""Percent of a group that is touched at this period. 32 % are cold for two minutes or more."""

KINDS = {"anon": 3, "huge": 2, "shared": 2, "forked": 2, "file": 1}
"""Groups of each kind of memory. omr knows no age of `file`, so it must call nothing there cold."""

DAMO_KINDS = ("anon", "huge", "shared")
"""The kinds that damo measures. It counts memory that processes share once for each of them."""

WINDOW = 120.0

SETTLE = 5.0
"""Seconds between the last group's filling and the first aging."""

ARMS = {"lru-gen": "", "damon": "damon_", "damo": "damo_"}
"""omr's trackers and a peer, and the first letters of their figures' names."""

DAMO_INTERVALS = ("200ms", "2s", "10s")
"""Sampling, aggregation, update.

An emulated CPU needs longer than damo's defaults, 5 ms and 100 ms, to check 1000 regions once.
"""

AGGREGATION = 2.0
"""Seconds: the second interval, which is the unit of damo's ages."""

DAMO_REGION = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \(.*\) +(\d+) +(\d+)$", re.MULTILINE)
"""A line of `damo report access --raw_form`: addresses, size, accesses, age."""

GOALS = {"cold2m_error_pct": "<= 3", "cold2m_off_planted_pct": "<= 1", "file_called_cold_mib": "<= 1"}

PLANTED = REGIONS["5m"] + REGIONS["never"]
"""Percent that is cold for two minutes or more."""


class Idle(TypedDict):
    """The bytes of a group that were not used for some time, between two bounds."""

    seconds: float
    least: int
    most: int


class EstimatedGroup(TypedDict):
    group: str
    idle: list[Idle]


class Estimate(TypedDict):
    """`omr wss --json`, as far as it is used here."""

    groups: list[EstimatedGroup]
    cpu_seconds: NotRequired[float]


class TrueRegion(TypedDict):
    bytes: int
    touched_ns: int


class TrueGroup(TypedDict):
    """A line of `omr-guest regions`."""

    now_ns: int
    regions: list[TrueRegion]


class Run(TypedDict):
    said: Estimate
    true: dict[str, TrueGroup]


class Compared(TypedDict):
    """One group: its figures by omr, and the true ones."""

    group: str
    memory: int
    true: int
    seconds: float
    least: int
    most: int


@dataclass(kw_only=True)
class ColdAge(Comparison[Run]):
    name = "cold-age"
    help = "how much memory was not used for two minutes, estimated by omr and true (30 minutes)"
    title = "Cold memory, estimated and true"
    labels = ARMS

    pairs: int = option(3, "how often each arm runs", flag="--runs", setting=False)
    arms: str = arms_option(ARMS)
    mem: int = option(1024, "memory of the guest", "MIB")
    group: int = option(50, "memory of each of 10 groups", "MIB")

    def run_name(self, arm: str, pair: int) -> str:
        return f"{arm}-{pair:02}"

    def turns(self, arms: list[str], pair: int) -> list[str]:
        return arms

    def measure(self, arm: str, pair: int) -> Run:
        kinds = {kind: count for kind, count in KINDS.items() if arm != "damo" or kind in DAMO_KINDS}
        packages = (DAMO,) if arm == "damo" else ()
        with Guest(self.kernel, self.mem, Disk(self.mem), data_mib=2 * self.group, debian=packages) as guest:
            # A tracker clears the accessed bits that the other one needs.
            guest.write(MGLRU_SWITCH, "y" if arm == "lru-gen" else "n")
            loads = {}
            for kind, count in kinds.items():
                for number in range(count):
                    group = f"{kind}-{number}"
                    guest.group(group)
                    regions = [f"{period}:{self.group * percent * 1024 // 100}K" for period, percent in REGIONS.items()]
                    path = ["--path", f"/data/{group}"] if kind == "file" else []
                    loads[group] = guest.spawn(["omr-guest", "regions", *regions, "--kind", kind, *path], group=group)
            for load in loads.values():
                load.line_with("ready", timeout=120)
            guest.shell(f"sleep {SETTLE}", timeout=60)
            if arm == "damo":
                estimate = by_damo(guest, loads)
            else:
                command = ["omr", "wss", "/", "--window", f"{WINDOW:.0f}s", "--tracker", arm, "--json"]
                estimate = guest.run(command, timeout=WINDOW * 4 + 120).json()
            true: dict[str, TrueGroup] = {}
            for group, load in loads.items():
                load.kill(signal.SIGUSR1)
                true[group] = cast(TrueGroup, load.line_with("regions"))
            return {"said": estimate, "true": true}

    def summary(self, run: Run) -> str:
        return f"{100 * share(run):.1f} % cold for 2 min, worst group off by {100 * worst(run):.2f} %"

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "disk", "group_mib": self.group, "planted_percent": PLANTED}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        found = {}
        for arm, runs in results.items():
            of, goal = ARMS[arm], GOALS.get if arm == "lru-gen" else lambda name: None
            shares = [100 * share(run) for run in runs]
            half = [[group for group in groups(run) if group["seconds"] == WINDOW / 2] for run in runs]
            off = [abs(value - PLANTED) for value in shares]
            found[f"{of}cold2m_error_pct"] = Metric([100 * worst(run) for run in runs], "%", goal("cold2m_error_pct"))
            found[f"{of}cold2m_share_reported_pct"] = Metric(shares, "%")
            found[f"{of}cold2m_off_planted_pct"] = Metric(off, "%", goal("cold2m_off_planted_pct"))
            found[f"{of}cold1m_error_pct"] = Metric([100 * max(map(error, groups)) for groups in half], "%")
            if arm != "damo":
                files = [file_called_cold(run) / MIB for run in runs]
                found[f"{of}file_called_cold_mib"] = Metric(files, "MiB", goal("file_called_cold_mib"))
            if arm == "lru-gen":
                found["aging_cpu_ms"] = Metric([1000 * run["said"]["cpu_seconds"] for run in runs], "ms")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (axes,) = canvas()
        found = cold(next(iter(results.values()))[0])
        for place, group in enumerate(found):
            axes.bar(place - 0.2, group["true"] / MIB, 0.4, color=COLOURS["off"], label=None if place else "true")
            axes.bar(place + 0.2, group["least"] / MIB, 0.4, color=COLOURS["on"], label=None if place else "omr, least")
            more = (group["most"] - group["least"]) / MIB
            label = None if place else "omr, most"
            axes.bar(place + 0.2, more, 0.4, bottom=group["least"] / MIB, color=COLOURS["machine"], label=label)
        axes.set_xticks(range(len(found)), [group["group"] for group in found])
        axes.set_ylabel("MiB not used for 2 min")
        axes.grid(axis="x", visible=False)
        axes.legend()
        save(figure, directory / f"{self.name}.png")
        return {f"{self.name}.png": "Memory of each group not used for two minutes: true, and by omr; the first run."}


def by_damo(guest: Guest, loads: dict[str, Process]) -> Estimate:
    """The answer of damo about the same processes, in the form of omr's. damo gives no bounds."""
    # damo pipes long answers through a pager, with options that busybox's pager does not know.
    guest.shell("rm /bin/less")
    guest.write("/bin/less", '#!/bin/sh\ncat "$3"\n', create=True)
    guest.shell("chmod +x /bin/less && mount -t tracefs tracefs /sys/kernel/tracing")
    # Python compiles damo now, and not during the measurement.
    guest.run([*DAMO_COMMAND, "report", "sysinfo"], timeout=300)
    targets = [word for load in loads.values() for word in ("--target_pid", str(load.pid))]
    options = ["--monitoring_intervals", *DAMO_INTERVALS, "--damos_action", "stat"]
    guest.run([*DAMO_COMMAND, "start", *targets, *options], timeout=300)
    # Its ages lag behind: its thread takes time, and a split or merged region changes its age.
    guest.shell(f"sleep {WINDOW * 1.25}", timeout=WINDOW * 2)
    report = [*DAMO_COMMAND, "report", "access", "--raw_form", "--raw_number", "--dont_merge_regions"]
    guest.shell(f"{' '.join(report)} > /tmp/regions", timeout=300)
    regions = damo_regions(guest.read_long("/tmp/regions").decode())
    if len(regions) != len(loads):
        raise RuntimeError(f"damo reports {len(regions)} processes of {len(loads)}")

    def idle(of: list[tuple[int, int, int]], seconds: float) -> Idle:
        unused = sum(size for size, accesses, age in of if accesses == 0 and age * AGGREGATION >= seconds)
        return {"seconds": seconds, "least": unused, "most": unused}

    return {
        "groups": [
            {"group": f"/{name}", "idle": [idle(of, WINDOW / 2), idle(of, WINDOW)]} for name, of in zip(loads, regions)
        ]
    }


def damo_regions(report: str) -> list[list[tuple[int, int, int]]]:
    """The regions of each process: size, accesses, age."""
    regions: list[list[tuple[int, int, int]]] = []
    last = 0
    for first, after, accesses, age in DAMO_REGION.findall(report):
        start, end = int(first, 16), int(after, 16)
        # The report goes through each process from its lowest address on.
        if not regions or start < last:
            regions.append([])
        regions[-1].append((end - start, int(accesses), int(age)))
        last = end
    return regions


def groups(run: Run) -> list[Compared]:
    """Compares each group and each age, without the groups of files."""
    estimates = {group["group"].removeprefix("/"): group for group in run["said"]["groups"]}
    found: list[Compared] = []
    for name, true in run["true"].items():
        if name.startswith("file"):
            continue
        for idle in estimates[name]["idle"]:
            cold = [r["bytes"] for r in true["regions"] if true["now_ns"] - r["touched_ns"] >= idle["seconds"] * 1e9]
            memory = sum(region["bytes"] for region in true["regions"])
            found.append(Compared(group=name, memory=memory, true=sum(cold), **idle))
    return found


def file_called_cold(run: Run) -> float:
    """The least number of bytes that omr calls cold in groups that hold hardly anything but mapped
    files.
    """
    files = [group for group in run["said"]["groups"] if group["group"].startswith("/file")]
    return sum(idle["least"] for group in files for idle in group["idle"] if idle["seconds"] == WINDOW)


def cold(run: Run) -> list[Compared]:
    return [group for group in groups(run) if group["seconds"] == WINDOW]


def error(group: Compared) -> float:
    """The error of the worse bound, as a share of the group's memory."""
    return max(abs(group[bound] - group["true"]) for bound in ("least", "most")) / group["memory"]


def worst(run: Run) -> float:
    return max(error(group) for group in cold(run))


def share(run: Run) -> float:
    """The share of all memory that omr calls cold: the middle of its bounds."""
    found = cold(run)
    return sum((group["least"] + group["most"]) / 2 for group in found) / sum(group["memory"] for group in found)
