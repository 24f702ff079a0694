"""Fill the memory, then let a foreground program allocate and use much memory at once.

The arms: an empty machine, and a full one without omr, prepared by omr, left to omr's daemon while
it is idle, and prepared by hand.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from matplotlib.axes import Axes

from ..daemon import CLASSES, CONFIG
from ..guest import MIB, Disk, Guest
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..prepare import Prepared, idle_daemon, omr_prepare, timed
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

LOAD = "bg"

LABELS = {
    "empty": "empty machine",
    "off": "full, without omr",
    "on": "full, with omr",
    "daemon": "full, omr daemon",
    "by-hand": "full, by hand",
}

ARM_COLOURS = COLOURS | {"empty": COLOURS["machine"], "daemon": COLOURS["prepare"]}

GOALS = {"allocstall": "= 0", "burst_time_over_empty": "<= 1.1"}


class Run(TypedDict):
    arm: str
    prepared: Prepared
    taken_from_foreground: int
    """Bytes of the foreground program that went to swap while omr prepared."""
    before: dict[str, Any]
    """The kernel's memory counters before the burst."""
    burst: dict[str, Any]
    """The result of `omr-guest burst`: begin and end, events, times of page faults."""
    verified: dict[str, Any]


@dataclass(kw_only=True)
class Burst(Comparison[Run]):
    name = "burst"
    help = "a program allocates much at once: stalls and time, omr on and off, and on an empty machine (15 minutes)"
    title = "A burst of allocation"
    labels = LABELS

    arms: str = arms_option(LABELS, "empty,off,on")
    mem: int = option(1024, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    fill: int = option(85, "memory that the load fills", "PERCENT")
    burst: int = option(40, "memory that the burst uses", "PERCENT")
    idle: float = option(5, "idle time before the burst", "S", least=0)
    away: float = option(60, "idle time of omr's daemon in its arm", "S")

    def measure(self, arm: str, pair: int) -> Run:
        # QEMU touches all memory first. Otherwise an empty guest would pay for the host's first
        # touch of each page during the burst, and a filled guest would not.
        with Guest(self.kernel, self.mem, Disk(2 * self.mem, self.mb_s), prealloc=True) as guest:
            guest.group("fg")
            guest.group(LOAD)
            guest.write(CONFIG, CLASSES, create=True)
            program = guest.spawn(["omr-guest", "burst", f"{self.burst}%"], group="fg")
            size = program.line_with("ready")["bytes"]
            load = None
            if arm != "empty":
                load = guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group=LOAD)
                load.line_with("ready", timeout=300)
            guest.shell(f"sleep {self.idle}", timeout=self.idle + 60)
            # The load may have swapped out some of the program. Only the further swap is the
            # preparation's.
            swapped = guest.group_value("fg", "memory.swap.current")
            prepared = self.prepare(guest, arm, size)
            swapped = guest.group_value("fg", "memory.swap.current") - swapped
            before = {
                "meminfo": guest.meminfo(),
                "buddyinfo": guest.read("/proc/buddyinfo"),
                "zoneinfo": guest.read("/proc/zoneinfo"),
            }
            program.kill(signal.SIGUSR1)
            # The lab asks the guest for nothing during the burst.
            burst = program.wait(timeout=600).json()
            guest.throttle_swap(None)  # the verification is not timed
            if load:
                load.kill(signal.SIGUSR1)
            return {
                "arm": arm,
                "prepared": prepared,
                "taken_from_foreground": swapped,
                "before": before,
                "burst": burst,
                "verified": load.line_with("verified", timeout=900) if load else {"errors": 0},
            }

    def prepare(self, guest: Guest, arm: str, size: int) -> Prepared:
        """Makes room for the burst by the method of the arm."""
        limit = 120 + 8 * size / (self.mb_s * 1e6)

        def by_hand() -> Prepared:
            guest.run(["omr-guest", "by-hand", LOAD, str(size)], timeout=limit)
            return {}

        match arm:
            case "by-hand":
                return timed(guest, by_hand)
            case "daemon":
                return timed(guest, lambda: idle_daemon(guest, CLASSES, self.away))
            case "on":
                return timed(guest, lambda: omr_prepare(guest, "burst", f"{size}B", "--json", timeout=limit))
        return {}

    def summary(self, run: Run) -> str:
        return f"{seconds(run):.2f} s, {stalls(run):.0f} stalls"

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "swap": "disk",
            "fill_percent": self.fill,
            "burst_percent": self.burst,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair."""
        found: dict[str, Metric] = {}
        if "on" in results:
            # The worst run counts: a program that stalls in one run of five is a program that
            # stalls.
            found["allocstall"] = Metric([max(map(stalls, results["on"]))], "stalls", GOALS["allocstall"])
        for arm, name in (("on", "taken_from_foreground"), ("daemon", "taken_from_foreground_daemon")):
            if arm in results:
                swapped = [run["taken_from_foreground"] / MIB for run in results[arm]]
                found[name] = Metric([max(swapped)], "MiB", "= 0")
        for arm, runs in results.items():
            suffix = arm.replace("-", "_")
            if arm != "empty" and "empty" in results:
                ratios = [seconds(run) / seconds(empty) for run, empty in zip(runs, results["empty"])]
                name = "burst_time_over_empty" if arm == "on" else f"burst_time_over_empty_{suffix}"
                found[name] = Metric(ratios, "ratio", GOALS.get(name))
            found[f"burst_{suffix}"] = Metric([seconds(run) for run in runs], "s")
            if arm != "on":
                found[f"allocstall_{suffix}"] = Metric([stalls(run) for run in runs], "stalls")
            for name in ("p50", "p99", "max"):
                found[f"fault_{name}_{suffix}"] = Metric([run["burst"][f"{name}_ns"] / 1e6 for run in runs], "ms")
            if all(run["prepared"] for run in runs):
                found[f"prepare_{suffix}"] = Metric([run["prepared"]["seconds"] for run in runs], "s")
        errors = [run["verified"]["errors"] for runs in results.values() for run in runs]
        found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (bars, course) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
        draw_times(bars, results)
        draw_course(course, results)
        headline(
            figure,
            f"Allocating {self.burst} % of a machine's memory that is {self.fill} % full"
            f" ({self.mem / 1024:g} GiB, disk {self.mb_s:g} MB/s)",
        )
        save(figure, directory / "burst.png")
        return {
            "burst.png": "Left: how long the program took to touch its memory, each run a dot, the bar their median,"
            " and how often it had to reclaim by itself. Right: how far it had come when, every run; the scale of time"
            " is logarithmic."
        }


def seconds(run: Run) -> float:
    """The time of the burst."""
    return float(run["burst"]["ended_ns"] - run["burst"]["began_ns"]) / 1e9


def stalls(run: Run) -> float:
    return float(run["burst"]["events"]["allocstall"])


def draw_times(axes: Axes, results: Results[Run]) -> None:
    for place, (arm, runs) in enumerate(results.items()):
        times = Metric([seconds(run) for run in runs], "s")
        stalled = Metric([stalls(run) for run in runs], "stalls")
        text = f"{times.value:.2f} s\n{stalled.value:.0f} stalls"
        bar(axes, place, times, ARM_COLOURS[arm], text)
    name_bars(axes, [LABELS[arm].replace(", ", ",\n") for arm in results], "seconds", "Time", room=1.25)


def draw_course(axes: Axes, results: Results[Run]) -> None:
    for arm, runs in results.items():
        for number, run in enumerate(runs):
            course = run["burst"]["progress_s"]
            touched = [100 * (place + 1) / len(course) for place in range(len(course))]
            label = None if number else LABELS[arm]
            axes.plot(course, touched, color=ARM_COLOURS[arm], linewidth=1.5, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("seconds since the burst began")
    axes.set_ylabel("% of the burst's memory touched")
    axes.set_title("Course")
    axes.legend(loc="upper left")
