"""Each backend of omr on each kernel: what goes to swap, and what gets free, for the amount that
was asked for.

The kernel sends more than it is asked for while pages are on their way to a slow disk. omr asks for
little at a time and waits in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, GuestError, Zram
from ..mount import DIR, FILE, mount, prepare
from ..plots import COLOURS, canvas, save
from ..results import Metric, quantile
from ..scenario import Comparison, Results, arms_option, option

LABELS = {"6.1": "Linux 6.1", "6.12": "Linux 6.12", "7": "Linux 7.3", "7.3-omr": "Linux 7.3, patched"}

ARMS = "6.1,6.12,7"
"""The patched kernel has to be built before: make kernel RELEASE=7.3."""

ARM_COLOURS = {
    "6.1": COLOURS["machine"],
    "6.12": COLOURS["on"],
    "7": COLOURS["prepare"],
    "7.3-omr": COLOURS["off"],
}

AGE = 8
"""Seconds. The memory of each group is unused for longer."""

Command = Callable[[str, int, int], list[str]]
"""A command from a group, the pid of its process, and an amount in MiB."""


def reclaim(*options: str) -> Command:
    return lambda group, _, mib: ["omr", "reclaim", group, f"{mib}M", *options]


BACKENDS: dict[str, Command] = {
    "memory.reclaim": reclaim(),
    "memory.high": reclaim("--backend", "memory.high"),
    "lru_gen": reclaim("--older-than", f"{AGE}s", "--wait"),
    "process_madvise": lambda _, pid, mib: ["omr", "reclaim", str(pid), f"{mib}M"],
    "memory.swap.reclaim": lambda group, _, mib: ["omr-guest", "write", f"{DIR}/{group}/{FILE}", f"{mib}M"],
    "memory.reclaim without omr": lambda group, _, mib: [
        *("omr-guest", "write", f"/sys/fs/cgroup/{group}/memory.reclaim", f"{mib}M")
    ],
}

PARTIAL = 4
"""omr's exit code for less than asked."""

GOAL = "<= 1.25"


class Taken(TypedDict):
    asked: int
    sent: int
    """Bytes that went to swap."""
    freed: int


class Run(TypedDict):
    backends: dict[str, Taken]


@dataclass(kw_only=True)
class Pacing(Comparison[Run]):
    name = "pacing"
    help = "what each backend sends to swap for the amount asked for, on 6.1, 6.12 and 7.x (5 minutes)"
    title = "Sent to swap for the amount asked for"
    labels = LABELS

    # No option: each arm is a kernel.
    kernel: str = field(default="6.12", init=False)
    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS, ARMS)
    swap: str = option("disk", "what is swapped to", choices=["disk", "zram", "zswap"])
    mb_s: float = option(20, "speed of the disk in MB/s")
    load: int = option(160, "memory of each group", "MIB")
    ask: int = option(64, "the amount that is asked for", "MIB")

    def measure(self, arm: str, pair: int) -> Run:
        # Enough that the kernel itself reclaims nothing.
        mem = len(BACKENDS) * self.load * 3 // 2
        swap = Zram(mem) if self.swap == "zram" else Disk(2 * mem, self.mb_s)
        with Guest(arm, mem, swap) as guest:
            guest.write(MGLRU_SWITCH, "y")
            if self.swap == "zswap":
                guest.write("/sys/module/zswap/parameters/enabled", "Y")
            prepare(guest)
            mount(guest, group="omr.service")
            groups = {backend: f"group{number}" for number, backend in enumerate(BACKENDS)}
            fill = ["omr-guest", "fill", f"{self.load}M", "--compressible", f"{60 * (self.swap != 'disk')}"]
            loads = {backend: guest.spawn(fill, group=guest_group(guest, groups[backend])) for backend in BACKENDS}
            for load in loads.values():
                load.line_with("ready", timeout=300)
            guest.shell(f"sleep {AGE}")
            return {
                "backends": {
                    backend: self.take(guest, groups[backend], command(groups[backend], loads[backend].pid, self.ask))
                    for backend, command in BACKENDS.items()
                }
            }

    def take(self, guest: Guest, group: str, command: list[str]) -> Taken:
        before, size = sent(guest), guest.group_value(group)
        ended = guest.run(command, group="writer", timeout=300, check=False)
        # Less than asked is a figure, and no error.
        if command[0] == "omr" and ended.code not in (0, PARTIAL):
            raise GuestError(f"{command} ended with {ended.code}: {ended.stderr}")
        freed = size - guest.group_value(group)
        # Pages that are still on their way count, too, and the next backend has an idle disk.
        guest.shell("sleep 5")
        return {"asked": self.ask * MIB, "sent": sent(guest) - before, "freed": freed}

    def summary(self, run: Run) -> str:
        return ", ".join(f"{backend} {ratio(taken, 'sent'):.2f}" for backend, taken in run["backends"].items())

    def guest(self) -> dict[str, Any]:
        return {"swap": self.swap, "disk_mb_s": self.mb_s, "load_mib": self.load, "asked_mib": self.ask}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        found = {}
        for arm, runs in results.items():
            for backend in BACKENDS:
                goal = None if backend.endswith("without omr") or self.swap == "zswap" else GOAL
                name = f"{backend.replace('.', '_').replace(' ', '_')}_{arm.replace('.', '_')}"
                found[f"sent_ratio_{name}"] = Metric(ratios(runs, backend, "sent"), "x", goal)
                found[f"freed_ratio_{name}"] = Metric(ratios(runs, backend, "freed"), "x")
        return found

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        def cell(runs: list[Run], backend: str) -> str:
            return ", ".join(
                f"{what} {quantile(values, 0.5):.2f} [{min(values):.2f} .. {max(values):.2f}]"
                for what in ("sent", "freed")
                for values in [ratios(runs, backend, what)]
            )

        return {
            f"{LABELS[arm]}: over the amount asked for": {backend: cell(runs, backend) for backend in BACKENDS}
            for arm, runs in results.items()
        }

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (axes,) = canvas(columns=1, width=9, height=3.6)
        rows = list(reversed(BACKENDS))
        height = 0.8 / len(results)
        for place, (arm, runs) in enumerate(reversed(results.items())):
            for row, backend in enumerate(rows):
                values = ratios(runs, backend, "sent")
                middle, at = quantile(values, 0.5), row + (place - (len(results) - 1) / 2) * height
                label = LABELS[arm] if row == 0 else None
                axes.barh(at, middle, color=ARM_COLOURS[arm], height=0.9 * height, label=label)
                axes.errorbar(middle, at, xerr=[[middle - min(values)], [max(values) - middle]], color="#222222")
        axes.axvline(1, color="#222222", linestyle="--", linewidth=1)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel("sent to swap over asked for; dashed: 1")
        axes.set_title(f"{self.ask} MiB wanted, {self.swap}")
        axes.legend(loc="center right")
        save(figure, directory / "pacing.png")
        return {"pacing.png": "What goes to swap for the amount that was asked for: median, and the range."}


def guest_group(guest: Guest, name: str) -> str:
    guest.group(name)
    return name


def sent(guest: Guest) -> int:
    """Bytes that went to swap so far, compressed in memory or not."""
    found = guest.vmstat()
    return (found["pswpout"] + found.get("zswpout", 0)) * 4096


def ratio(taken: Taken, what: str) -> float:
    return (taken["sent"] if what == "sent" else taken["freed"]) / taken["asked"]


def ratios(runs: list[Run], backend: str, what: str) -> list[float]:
    return [ratio(run["backends"][backend], what) for run in runs]
