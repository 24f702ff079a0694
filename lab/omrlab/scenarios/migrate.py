"""Fill the memory, leave the machine idle, migrate it live over a slow link, and verify every byte.

The arms: not prepared, prepared by omr, left to omr's daemon while the machine is idle, and
prepared by hand.
"""

import dataclasses
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from matplotlib.axes import Axes

from ..guest import MIB, Disk, Guest
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..prepare import Prepared, idle_daemon, omr_prepare, timed
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

LOAD = "load"

LABELS = {"off": "without omr", "on": "with omr", "daemon": "omr daemon", "by-hand": "by hand"}

ARM_COLOURS = COLOURS | {"daemon": COLOURS["prepare"]}

BACKGROUND = f"""
[[group]]
match = "{LOAD}"
class = "background"
"""

GOALS = {"migrate_time_speedup": ">= 4", "migrate_bytes_ratio": ">= 5"}


class Run(TypedDict):
    arm: str
    filled: dict[str, Any]
    prepared: Prepared
    host_resident_filled: int
    """Bytes of the host's memory that QEMU used when the guest was full."""
    before: dict[str, Any]
    """The guest's memory before the migration."""
    migration: dict[str, Any]
    """A `guest.Migration`."""
    verified: dict[str, Any]


@dataclass(kw_only=True)
class Migrate(Comparison[Run]):
    name = "migrate"
    help = "live migration over a slow link: time and bytes, omr on and off (15 minutes)"
    title = "Live migration"
    labels = LABELS

    arms: str = arms_option(LABELS, "off,on")
    mem: int = option(1024, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    link: float = option(25, "speed of the link", "MB/S")
    fill: int = option(85, "memory that the load fills", "PERCENT")
    idle: float = option(10, "idle time before migration", "S", least=0)
    away: float = option(90, "idle time of omr's daemon in its arm", "S")

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, Disk(2 * self.mem, self.mb_s), balloon=True) as guest:
            guest.group(LOAD)
            load = guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group=LOAD)
            filled = load.line_with("ready", timeout=300)
            guest.shell(f"sleep {self.idle}", timeout=self.idle + 60)
            resident = guest.host_resident()
            prepared = self.prepare(guest, arm, filled["bytes"])
            before = {
                "meminfo": guest.meminfo(),
                "buddyinfo": guest.read("/proc/buddyinfo"),
                "host_resident": guest.host_resident(),
            }
            migration = guest.migrate(self.link, timeout=60 + 4 * self.mem * MIB / (self.link * 1e6))
            guest.throttle_swap(None)  # the verification is not timed
            load.kill(signal.SIGUSR1)
            return {
                "arm": arm,
                "filled": filled,
                "prepared": prepared,
                "host_resident_filled": resident,
                "before": before,
                "migration": dataclasses.asdict(migration),
                "verified": load.line_with("verified", timeout=900),
            }

    def prepare(self, guest: Guest, arm: str, filled: int) -> Prepared:
        """Prepares the migration by the method of the arm."""
        # Enough time for the disk to take all memory four times, and to wait for page reports.
        limit = 120 + 4 * filled / (self.mb_s * 1e6)

        def by_hand() -> Prepared:
            guest.run(["omr-guest", "by-hand", LOAD, str(filled)], timeout=limit)
            guest.shell("echo 1 > /proc/sys/vm/compact_memory; sleep 20", timeout=limit)
            return {}

        match arm:
            case "by-hand":
                return timed(guest, by_hand)
            case "daemon":
                return timed(guest, lambda: idle_daemon(guest, BACKGROUND, self.away))
            case "on":
                return timed(guest, lambda: omr_prepare(guest, "migrate", "--json", timeout=limit))
        return {}

    def summary(self, run: Run) -> str:
        migration = run["migration"]
        return f"{migration['total_s']:.1f} s, {migration['sent'] / MIB:.0f} MiB sent"

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "link_mb_s": self.link,
            "swap": "disk",
            "fill_percent": self.fill,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair."""
        found: dict[str, Metric] = {}
        for arm, suffix in (("on", ""), ("daemon", "_daemon"), ("by-hand", "_by_hand")):
            if arm not in results or "off" not in results:
                continue
            for name, field in (("migrate_time_speedup", "total_s"), ("migrate_bytes_ratio", "sent")):
                pairs = zip(results["off"], results[arm])
                ratios = [off["migration"][field] / other["migration"][field] for off, other in pairs]
                found[f"{name}{suffix}"] = Metric(ratios, "ratio", GOALS[name] if arm == "on" else None)
        for arm, runs in results.items():
            suffix = arm.replace("-", "_")
            found[f"migrate_{suffix}"] = Metric([run["migration"]["total_s"] for run in runs], "s")
            found[f"downtime_{suffix}"] = Metric([1000 * run["migration"]["downtime_s"] for run in runs], "ms")
            found[f"sent_{suffix}"] = Metric([run["migration"]["sent"] / MIB for run in runs], "MiB")
            if all(run["prepared"] for run in runs):
                found[f"prepare_{suffix}"] = Metric([run["prepared"]["seconds"] for run in runs], "s")
        errors = [run["verified"]["errors"] for runs in results.values() for run in runs]
        found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (times, sent, course) = canvas(
            columns=3, width=12, height=4.2, gridspec_kw={"width_ratios": [1, 1, 1.8]}
        )
        draw_bars(times, results, "total_s", 1, "s", "Time")
        draw_bars(sent, results, "sent", MIB, "MiB", "Sent")
        draw_course(course, results, self.mem)
        headline(
            figure,
            f"Migrating a machine whose memory is {self.fill} % full"
            f" ({self.mem / 1024:g} GiB, link {self.link:g} MB/s)",
        )
        save(figure, directory / "migrate.png")
        return {
            "migrate.png": "Left: how long the migration took and how much was sent, each run a dot, the bar their"
            " median. Right: what had been sent when, first run of each arm."
        }


def draw_bars(axes: Axes, results: Results[Run], field: str, divisor: float, unit: str, title: str) -> None:
    values = {arm: Metric([run["migration"][field] / divisor for run in runs], unit) for arm, runs in results.items()}
    for place, (arm, metric) in enumerate(values.items()):
        text = f"{metric.value:.3g} {unit}"
        if arm != "off" and "off" in values:
            text += f"\n{values['off'].value / metric.value:.1f} x"
        bar(axes, place, metric, ARM_COLOURS[arm], text)
    name_bars(axes, [LABELS[arm] for arm in values], unit, title, room=1.2)


def draw_course(axes: Axes, results: Results[Run], mem_mib: int) -> None:
    for arm, runs in results.items():
        seconds, sent = zip(*runs[0]["migration"]["progress"])
        mib = [value / MIB for value in sent]
        axes.plot(seconds, mib, color=ARM_COLOURS[arm], linewidth=2, label=LABELS[arm])
        axes.plot(seconds[-1], mib[-1], "o", color=ARM_COLOURS[arm])
    axes.axhline(mem_mib, color="#777777", linewidth=1, linestyle=":")
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate("all memory", (1, mem_mib), (-3, 3), fontsize=8, color="#777777", **place)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * mem_mib)
    axes.set_xlabel("seconds since the migration began")
    axes.set_ylabel("MiB sent")
    axes.set_title("Course")
    axes.legend(loc="lower right")
