"""Fill the memory, leave the machine idle, hibernate, resume, and verify every byte.

The arms: with omr's daemon, without it, by hand, and in the way of the original. With `--away`
somebody leaves before; then also with omr's defaults, and a guest that never ran the load.
"""

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from matplotlib.axes import Axes

from .. import records
from ..daemon import Daemon
from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, Process
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

SEED = {"hibernate": (49.07, 3.40), "resume": (18.35, 7.13)}
"""Seconds without and with the seed's daemon, from its README.

There the VM has 8 GB, 85 % filled, a disk of 100 MB/s, 60 s idle, and the default image_size.
"""

GOALS = {"hibernate": ">= 25", "resume": ">= 5.5"}

LOAD = "load"

ROOT_FILE = "/sys/fs/cgroup/memory.swap.reclaim"

LABELS = {
    "off": "without omr",
    "on": "with omr",
    "by-hand": "by hand",
    "seed": "the original way",
    "unloaded": "never loaded",
    "default": "omr, default",
}
"""`on` has `goal = "free"` and acts at once. `default` acts by itself while somebody is away.

`seed` writes `max` to the root's memory.swap.reclaim, as the original did. That file needs the
patched kernel, 6.12-omr.
"""

ARM_COLOURS = COLOURS | {"unloaded": COLOURS["machine"], "default": COLOURS["prepare"]}

OVER_UNLOADED = "<= 1.15"

LOOK = 120
"""Seconds between two questions to the daemon while somebody is away. Each is a little work."""


class Run(TypedDict):
    arm: str
    boot_s: float
    hibernate_s: float
    resume_s: float
    image: dict[str, float]
    """The kernel's figures about the image."""
    filled: dict[str, Any]
    prepared: dict[str, Any]
    verified: dict[str, Any]
    meminfo: dict[str, int]
    timeline: list[dict[str, Any]]
    """/proc/meminfo from boot until hibernation."""
    ledger: list[dict[str, Any]]


@dataclass(kw_only=True)
class Hibernate(Comparison[Run]):
    name = "hibernate"
    help = "hibernation and resume time, omr on and off (25 minutes)"
    title = "Hibernation"
    labels = LABELS

    arms: str = arms_option(LABELS, "off,on")
    mem: int = option(2048, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    fill: int = option(85, "memory that the load fills", "PERCENT")
    idle: float = option(10, "idle time before hibernation", "S", least=0)
    present: float = option(0, "how long somebody is there after the load has filled its memory", "MINUTES", least=0)
    away: float = option(0, "how long that person is away before hibernation", "MINUTES", least=0)
    history: bool = option(False, "omr takes samples every ten seconds, and the report begins with its charts")

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, Disk(2 * self.mem, self.mb_s)) as guest:
            guest.group(LOAD)
            if self.history:
                # In both arms: omr knows ages by MGLRU, and the kernel reclaims in another way
                # with it.
                guest.write(MGLRU_SWITCH, "y")
            record = guest.spawn(["omr-guest", "record", LOAD], group="init.scope")
            daemon = self.start_omr(guest, arm)
            person = guest.spawn(["omr-guest", "present"], group="omr.service") if arm == "default" else None
            load = None if arm == "unloaded" else guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group=LOAD)
            filled = load.line_with("ready", timeout=300) if load else {"bytes": 0}
            prepared = (
                self.leave(guest, person) if self.away else prepare(guest, arm, daemon, filled["bytes"], self.mb_s)
            )
            guest.shell(f"sleep {self.idle}", timeout=self.idle + 60)
            before = guest.meminfo()
            timeline = record.lines()
            record.kill(signal.SIGKILL)
            ledger = daemon.ledger() if daemon else []

            round_trip = guest.hibernate_and_resume()
            guest.throttle_swap(None)  # the verification is not timed
            verified = {"errors": 0}
            if load:
                load.kill(signal.SIGUSR1)
                verified = load.line_with("verified", timeout=900)
            if self.history and daemon:
                records.copy(guest, self.runs.raw / f"{self.run_name(arm, pair)}.records")
            console = self.runs.raw / f"{self.run_name(arm, pair)}.console.txt"
            console.write_text(guest.console())
            return {
                "arm": arm,
                "boot_s": guest.boot_s,
                "hibernate_s": round_trip.hibernate_s,
                "resume_s": round_trip.resume_s,
                "image": round_trip.image,
                "filled": filled,
                "prepared": prepared,
                "verified": verified,
                "meminfo": before,
                "timeline": timeline,
                "ledger": ledger,
            }

    def start_omr(self, guest: Guest, arm: str) -> Daemon | None:
        if arm == "on":
            return Daemon(guest, config=records.OFTEN if self.history else "")
        if arm != "default":
            return None
        guest.write(MGLRU_SWITCH, "y")
        # The machine hibernated a moment ago, and its disk was measured then.
        guest.shell("mkdir -p /var/lib/omr-root; date +'{\"time\":%s}' > /var/lib/omr-root/hibernated.json")
        swap = guest.shell("awk 'NR == 2 { print $1 }' /proc/swaps").strip()
        rate = {"bytes_per_second": int(self.mb_s * 1e6), "device": swap}
        guest.write("/var/lib/omr/disk-rate.json", json.dumps(rate), create=True)
        return Daemon(guest, whole="")

    def leave(self, guest: Guest, person: Process | None) -> dict[str, Any]:
        """Lets the person stay for a while and leave; returns what omr says meanwhile."""
        guest.shell(f"sleep {60 * self.present}", timeout=60 * self.present + 120)
        if person:
            person.kill(signal.SIGUSR1)
        end = guest.monotonic_ns() + int(60e9 * self.away)
        said = []
        while (left := (end - guest.monotonic_ns()) / 1e9) > 0:
            guest.shell(f"sleep {min(left, LOOK)}", timeout=LOOK + 120)
            if person:
                explained = guest.run(["omr", "explain", LOAD], check=False).stdout
                said.append({"monotonic_ns": guest.monotonic_ns(), "omr_explain": explained})
        return {"said": said, "omr_status": guest.run(["omr", "status"], check=False).stdout if person else ""}

    def summary(self, run: Run) -> str:
        return f"hibernate {run['hibernate_s']:.1f} s, resume {run['resume_s']:.1f} s"

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "disk_mb_s": self.mb_s, "swap": "disk", "fill_percent": self.fill}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair."""
        found: dict[str, Metric] = {}
        for arm, suffix in (("on", ""), ("by-hand", "_by_hand"), ("seed", "_seed")):
            if arm not in results or "off" not in results:
                continue
            for part, (before, after) in SEED.items():
                goal = GOALS[part] if arm == "on" else None
                found[f"{part}_speedup{suffix}"] = Metric(
                    speedups(part, results["off"], results[arm]), "ratio", goal, round(before / after, 1)
                )
        for arm, runs in results.items():
            suffix = arm.replace("-", "_")
            for part in SEED:
                found[f"{part}_{suffix}"] = Metric(seconds(part, runs), "s")
            found[f"image_{suffix}"] = Metric([run["image"]["image_kib"] / 1024 for run in runs], "MiB")
        for arm, suffix in (("default", ""), ("off", "_off"), ("on", "_free")):
            if "unloaded" not in results or arm not in results:
                continue
            for part in SEED:
                ratios = speedups(part, results[arm], results["unloaded"])
                goal = OVER_UNLOADED if arm == "default" else None
                found[f"{part}_over_unloaded{suffix}"] = Metric(ratios, "ratio", goal)
        errors = [run["verified"]["errors"] for runs in results.values() for run in runs]
        found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
        return found

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        medians = {
            arm: {f"{part}_s": Metric(seconds(part, runs), "s").json() for part in SEED}
            for arm, runs in results.items()
        }
        return {"arms": medians}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (bars, memory) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
        draw_times(bars, results)
        draw_memory(memory, results)
        headline(
            figure,
            f"Hibernating a machine whose memory is {self.fill} % full"
            f" ({self.mem / 1024:g} GiB, disk {self.mb_s:g} MB/s)",
        )
        save(figure, directory / "hibernate.png")
        return self.charts(directory) | {
            "hibernate.png": "Left: time to hibernate and to resume, each run a dot, the bar their median."
            " Right: memory in use from boot until hibernation."
        }

    def charts(self, directory: Path) -> dict[str, str]:
        """Draws omr's own charts of the first run with omr; returns their captions."""
        copied = self.records()
        if not copied:
            return {}
        captions = {}
        for chart, caption in records.CHARTS.items():
            records.omr(copied, chart, "--svg", str(directory / f"{chart}.svg"))
            captions[f"{chart}.svg"] = caption
        return captions

    def records(self) -> Path | None:
        """The copy of omr's records in the first run with omr; None without one."""
        copied = self.runs.raw / f"{self.run_name('on', 1)}.records"
        return copied if self.history and copied.exists() else None


def prepare(guest: Guest, arm: str, daemon: Daemon | None, filled: int, mb_s: float) -> dict[str, Any]:
    """Prepares the hibernation by the method of the arm."""
    # Enough time for the disk to take all memory four times, and for the daemon to see that the
    # machine is idle. If the daemon has not finished then, the machine hibernates with the memory
    # reclaimed so far.
    limit = 120 + 4 * filled / (mb_s * 1e6)
    prepared: dict[str, Any] = {}
    if arm == "by-hand":
        prepared = guest.run(["omr-guest", "by-hand", LOAD, str(filled)], timeout=limit).json()
    elif arm == "seed":
        prepared = guest.run(["omr-guest", "write", ROOT_FILE, "max"], group="init.scope", timeout=limit).json()
    elif daemon:
        began = time.monotonic()
        # A question is foreground work for the daemon, so the lab asks seldom.
        while not (finished := swept(guest, daemon, filled)) and time.monotonic() - began < limit:
            time.sleep(4)
        prepared = {"finished": finished, "seconds": time.monotonic() - began}
    return prepared


def swept(guest: Guest, daemon: Daemon, filled: int) -> bool:
    """True when a sweep has reclaimed all that it could."""
    if guest.group_value(LOAD) > 0.1 * filled:
        return False
    return any(entry["end"] in ("complete", "floor", "futile") for entry in daemon.sweeps(LOAD))


def seconds(part: str, runs: list[Run]) -> list[float]:
    """`part`: hibernate or resume."""
    return [run["hibernate_s"] if part == "hibernate" else run["resume_s"] for run in runs]


def speedups(part: str, off: list[Run], other: list[Run]) -> list[float]:
    return [before / after for before, after in zip(seconds(part, off), seconds(part, other))]


def draw_times(axes: Axes, results: Results[Run]) -> None:
    width = 0.8 / len(results)
    for number, (arm, runs) in enumerate(results.items()):
        for place, part in enumerate(SEED):
            metric = Metric(seconds(part, runs), "s")
            text = f"{metric.value:.1f} s"
            if arm != "off" and "off" in results:
                text += f"\n{Metric(speedups(part, results['off'], runs), 'ratio').value:.1f} x"
            label = LABELS[arm] if place == 0 else None
            bar(axes, place - 0.4 + width * (number + 0.5), metric, ARM_COLOURS[arm], text, width * 0.92, label=label)
    names = [f"{part}\n(seed: {before / after:.1f} x)" for part, (before, after) in SEED.items()]
    # Room for the legend above the figures.
    name_bars(axes, names, "seconds", "Time", room=1.35)
    axes.legend(loc="upper right", ncols=len(results))


def draw_memory(axes: Axes, results: Results[Run]) -> None:
    for arm, runs in results.items():
        timeline = runs[0]["timeline"]
        start = timeline[0]["monotonic_ns"]
        seconds = [(line["monotonic_ns"] - start) / 1e9 for line in timeline]
        used = [(line["MemTotal"] - line["MemFree"]) / MIB for line in timeline]
        axes.plot(seconds, used, color=ARM_COLOURS[arm], linewidth=2, label=f"memory in use, {LABELS[arm]}")
        axes.plot(seconds[-1], used[-1], "o", color=ARM_COLOURS[arm])
        end = (seconds[-1], used[-1])
        axes.annotate("hibernates", end, (6, 7), textcoords="offset points", ha="right", fontsize=8)
    total = next(iter(results.values()))[0]["timeline"][0]["MemTotal"] / MIB
    for level, label in ((total, "all memory"), (0.4 * total, "default image_size")):
        axes.axhline(level, color="#777777", linewidth=1, linestyle=":")
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes.annotate(label, (1, level), (-3, 3), fontsize=8, color="#777777", **place)
    axes.set_ylim(0, total * 1.3)
    axes.set_xlabel("seconds since boot")
    axes.set_ylabel("MiB")
    axes.set_title("Memory before hibernation")
    axes.legend(loc="upper right", fontsize=8)
