"""Ten groups with memory whose use is known: how much of it does `omr wss` say was not used for two minutes, and what does damo say?"""

import argparse
import re
import signal
from pathlib import Path
from typing import Any

from ..guest import MIB, Disk, Guest, Process
from ..packages import DAMO
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress
from .footprint import DAMO_COMMAND, in_parts

NAME = "cold-age"

REGIONS = {"1s": 18, "20s": 20, "90s": 30, "5m": 12, "never": 20}
"""Percent of a group that is touched at this period. 32 % are cold for two minutes and more when it is asked."""

KINDS = {"anon": 3, "huge": 2, "shared": 2, "forked": 2, "file": 1}
"""Groups of each kind of memory. Of the last no age is known, so nothing may be said to be cold."""

DAMO_KINDS = ("anon", "huge", "shared")
"""What damo is asked about: it looks at processes, and counts what several have together once for each."""

WINDOW = 120.0

SETTLE = 5.0
"""Seconds between the last group's filling and the first aging."""

ARMS = {"lru-gen": "", "damon": "damon_", "damo": "damo_"}
"""omr's trackers and a peer, and what the names of their figures begin with."""

DAMO_INTERVALS = ("200ms", "2s", "10s")
"""Sampling, aggregation, update. Its own, 5 ms and 100 ms, are shorter than an emulated CPU takes to look at 1000 regions once."""

AGGREGATION = 2.0
"""The second in seconds: ages are counted in it."""

DAMO_REGION = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \(.*\) +(\d+) +(\d+)$", re.MULTILINE)
"""A line of `damo report access --raw_form`: addresses, size, accesses, age."""

GOALS = {"cold2m_error_pct": "<= 3", "cold2m_off_planted_pct": "<= 1", "file_called_cold_mib": "<= 1"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument(
        "--group", type=int, default=50, metavar="MIB", help="memory of each of 10 groups (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=3, help="how often it runs (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(ARMS), help="trackers in turn (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/cold-age)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(ARMS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    setting = {name: vars(arguments)[name] for name in ("mem", "group")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for number in range(1, arguments.runs + 1):
        for arm in arms:
            measured = runs.run(f"{arm}-{number:02}", lambda name, arm=arm: measure(arguments, arm))
            results[arm].append(measured)
            progress(
                f"{NAME}: {arm}: {100 * share(measured):.1f} % cold for 2 min, worst group off by {100 * worst(measured):.2f} %"
            )
    guest = {"mem_mib": arguments.mem, "swap": "disk", "group_mib": arguments.group, "planted_percent": planted()}
    result = runs.finish(guest, arguments.runs, metrics(results))
    plots = draw(results[arms[0]], runs.directory)
    command = (
        f"lab/run cold-age --kernel {arguments.kernel} --mem {arguments.mem} --group {arguments.group} --runs {arguments.runs}"
        f" --arms {arguments.arms}"
    )
    write_report(runs.directory, "Cold memory, estimated and true", __doc__ or "", command, result, plots)
    return result


def planted() -> int:
    return REGIONS["5m"] + REGIONS["never"]


def measure(arguments: argparse.Namespace, arm: str) -> dict[str, Any]:
    """One run in a guest of its own: what is true, and what omr says by this tracker, by group."""
    kinds = {kind: count for kind, count in KINDS.items() if arm != "damo" or kind in DAMO_KINDS}
    packages = (DAMO,) if arm == "damo" else ()
    with Guest(
        arguments.kernel, arguments.mem, Disk(arguments.mem), data_mib=2 * arguments.group, debian=packages
    ) as guest:
        # Each tracker clears what the other would see.
        guest.write("/sys/kernel/mm/lru_gen/enabled", "y" if arm == "lru-gen" else "n")
        loads = {}
        for kind, count in kinds.items():
            for number in range(count):
                group = f"{kind}-{number}"
                guest.group(group)
                regions = [
                    f"{period}:{arguments.group * percent * 1024 // 100}K" for period, percent in REGIONS.items()
                ]
                path = ["--path", f"/data/{group}"] if kind == "file" else []
                loads[group] = guest.spawn(["omr-testkit", "regions", *regions, "--kind", kind, *path], group=group)
        for load in loads.values():
            load.line_with("ready", timeout=120)
        guest.shell(f"sleep {SETTLE}", timeout=60)
        if arm == "damo":
            said = by_damo(guest, loads)
        else:
            command = ["omr", "wss", "/", "--window", f"{WINDOW:.0f}s", "--tracker", arm, "--json"]
            said = guest.run(command, timeout=WINDOW * 4 + 120).json()
        true = {}
        for group, load in loads.items():
            load.kill(signal.SIGUSR1)
            true[group] = load.line_with("regions")
        return {"said": said, "true": true}


def by_damo(guest: Guest, loads: dict[str, Process]) -> dict[str, Any]:
    """The same from damo, which looks at the same processes; it knows one number, and no bounds."""
    # It shows long answers by a pager, wherever they go, with options that busybox's has not.
    guest.shell("rm /bin/less")
    guest.write("/bin/less", '#!/bin/sh\ncat "$3"\n', create=True)
    guest.shell("chmod +x /bin/less && mount -t tracefs tracefs /sys/kernel/tracing")
    # Python compiles it now, and not while it looks.
    guest.run([*DAMO_COMMAND, "report", "sysinfo"], timeout=300)
    targets = [word for load in loads.values() for word in ("--target_pid", str(load.pid))]
    looking = ["start", *targets, "--monitoring_intervals", *DAMO_INTERVALS, "--damos_action", "stat"]
    guest.run([*DAMO_COMMAND, *looking], timeout=300)
    # Its ages lag behind by what its thread needs, and by the age of a region when it was split or merged.
    guest.shell(f"sleep {WINDOW * 1.25}", timeout=WINDOW * 2)
    report = [*DAMO_COMMAND, "report", "access", "--raw_form", "--raw_number", "--dont_merge_regions"]
    guest.shell(f"{' '.join(report)} > /tmp/regions", timeout=300)
    found = DAMO_REGION.findall(in_parts(guest, "/tmp/regions").decode())
    # Regions of one process after the other, each from its lowest address on.
    regions: list[list[tuple[int, int, int]]] = []
    last = 0
    for start, end, accesses, age in (
        (int(start, 16), int(end, 16), int(accesses), int(age)) for start, end, accesses, age in found
    ):
        if not regions or start < last:
            regions.append([])
        regions[-1].append((end - start, accesses, age))
        last = end
    if len(regions) != len(loads):
        raise RuntimeError(f"damo tells of {len(regions)} processes where {len(loads)} are looked at")

    def idle(of: list[tuple[int, int, int]], seconds: float) -> dict[str, float]:
        unused = sum(size for size, accesses, age in of if accesses == 0 and age * AGGREGATION >= seconds)
        return {"seconds": seconds, "least": unused, "most": unused}

    return {
        "groups": [
            {"group": f"/{name}", "idle": [idle(of, WINDOW / 2), idle(of, WINDOW)]} for name, of in zip(loads, regions)
        ]
    }


def groups(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each group but those of files its memory, what of it was truly not used, and between what omr says that is."""
    said = {group["group"].removeprefix("/"): group for group in measured["said"]["groups"]}
    found = []
    for name, true in measured["true"].items():
        if name.startswith("file"):
            continue
        for idle in said[name]["idle"]:
            cold = [r["bytes"] for r in true["regions"] if true["now_ns"] - r["touched_ns"] >= idle["seconds"] * 1e9]
            memory = sum(region["bytes"] for region in true["regions"])
            found.append({"group": name, "memory": memory, "true": sum(cold), **idle})
    return found


def file_called_cold(measured: dict[str, Any]) -> float:
    """What at least is said to be cold of groups that hold mapped files and little else."""
    files = [group for group in measured["said"]["groups"] if group["group"].startswith("/file")]
    return sum(idle["least"] for group in files for idle in group["idle"] if idle["seconds"] == WINDOW)


def cold(measured: dict[str, Any]) -> list[dict[str, Any]]:
    return [group for group in groups(measured) if group["seconds"] == WINDOW]


def error(group: dict[str, Any]) -> float:
    """How far the bound that is further off is off, as a share of the group's memory."""
    return max(abs(group[bound] - group["true"]) for bound in ("least", "most")) / group["memory"]


def worst(measured: dict[str, Any]) -> float:
    return max(error(group) for group in cold(measured))


def share(measured: dict[str, Any]) -> float:
    """Of all groups' memory, what omr says is cold: the middle of its bounds."""
    found = cold(measured)
    return sum((group["least"] + group["most"]) / 2 for group in found) / sum(group["memory"] for group in found)


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    found = {}
    for arm, runs in results.items():
        of, goal = ARMS[arm], GOALS.get if arm == "lru-gen" else lambda name: None
        shares = [100 * share(measured) for measured in runs]
        half = [[group for group in groups(measured) if group["seconds"] == WINDOW / 2] for measured in runs]
        off = [abs(value - planted()) for value in shares]
        found[f"{of}cold2m_error_pct"] = Metric(
            [100 * worst(measured) for measured in runs], "%", goal("cold2m_error_pct")
        )
        found[f"{of}cold2m_share_reported_pct"] = Metric(shares, "%")
        found[f"{of}cold2m_off_planted_pct"] = Metric(off, "%", goal("cold2m_off_planted_pct"))
        found[f"{of}cold1m_error_pct"] = Metric([100 * max(map(error, run)) for run in half], "%")
        if arm != "damo":
            files = [file_called_cold(measured) / MIB for measured in runs]
            found[f"{of}file_called_cold_mib"] = Metric(files, "MiB", goal("file_called_cold_mib"))
        if arm == "lru-gen":
            found["aging_cpu_ms"] = Metric([1000 * measured["said"]["cpu_seconds"] for measured in runs], "ms")
    return found


def draw(results: list[dict[str, Any]], directory: Path) -> dict[str, str]:
    figure, (axes,) = canvas()
    found = cold(results[0])
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
    save(figure, directory / f"{NAME}.png")
    return {f"{NAME}.png": "Of each group, what was not used for two minutes, and what omr says; the first run."}
