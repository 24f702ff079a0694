"""Three files that reclaim: memory.swap.reclaim of the patched kernel and of omr mount, and
memory.reclaim.

How much goes to a slow swap disk for the amount that was asked for, and how soon does a write end
when its writer gets a signal?
"""

import functools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from .. import patched
from ..guest import MIB, Disk, Guest, GuestError
from ..mount import DIR, FILE, mount, prepare
from ..plots import COLOURS, canvas, save
from ..results import Metric, identity, progress, quantile
from ..scenario import Comparison, Results, arms_option, option

GROUP = "bg"


@dataclass(frozen=True)
class Arm:
    """A file that reclaims when an amount is written to it."""

    colour: str
    kernel: str
    file: str
    mounted: bool = False
    keys: str = ""
    """What is written after the amount."""


ARMS = {
    "patched": Arm(COLOURS["prepare"], patched.RELEASE, f"/sys/fs/cgroup/{GROUP}/{FILE}"),
    "mount": Arm(COLOURS["on"], "6.12", f"{DIR}/{GROUP}/{FILE}", mounted=True),
    "kernel": Arm(COLOURS["seed"], "6.12", f"/sys/fs/cgroup/{GROUP}/memory.reclaim"),
}

LABELS = {
    "patched": "patched kernel: memory.swap.reclaim",
    "mount": "omr mount: memory.swap.reclaim",
    "kernel": "memory.reclaim",
}

GOALS = {
    "stop_p99_ms_patched": "<= 100",
    "stop_p99_ms_mount": "<= 100",
    "sent_ratio_patched": "<= 1.05",
    "sent_ratio_mount": "<= 1.25",
}

ENOUGH = 128 * MIB
"""Bytes. A write may end before the signal where the group has less left in memory."""


class Written(TypedDict):
    """A line of `omr-guest write`."""

    began_ns: int
    stopped_ns: int
    """The time of the signal to the writer; 0 where there was none."""
    ended_ns: int


class Run(TypedDict):
    asked: int
    freed: int
    sent: int
    """Bytes that went to swap."""
    system_s: float
    written: Written


@dataclass(kw_only=True)
class SwapReclaim(Comparison[Run]):
    name = "swap-reclaim"
    help = "memory.swap.reclaim of a patched kernel and of omr mount, and memory.reclaim (15 minutes, and the kernel)"
    title = "memory.swap.reclaim"
    labels = LABELS
    ways: ClassVar[Mapping[str, Arm]] = ARMS
    goals: ClassVar[Mapping[str, str]] = GOALS

    # No option: each arm has its own kernel.
    kernel: str = field(default="6.12", init=False)
    arms: str = arms_option(LABELS)
    mem: int = option(1024, "memory of the guest", "MIB")
    mb_s: float = option(20, "speed of its disk in MB/s")
    fill: int = option(70, "memory that the load fills", "PERCENT")
    ask: int = option(64, "the amount that is asked for", "MIB")
    stops: int = option(20, "how often each arm is stopped", setting=False)

    def __post_init__(self) -> None:
        self.stopped: dict[str, list[Written]] = {}

    def chosen(self) -> list[str]:
        arms = super().chosen()
        self.stopped = {arm: [] for arm in arms}
        for release in self.built():
            patched.build(release)
        return arms

    def built(self) -> list[str]:
        """The patched kernels among those of the arms."""
        return sorted({self.ways[arm].kernel for arm in self.stopped if "-omr" in self.ways[arm].kernel})

    def parameters(self) -> dict[str, Any]:
        series = {"patched": "+".join(map(patched.key, self.built()))} if self.built() else {}
        return identity(self.kernel) | series | self.settings()

    @contextmanager
    def loaded(self, arm: Arm) -> Iterator[Guest]:
        """A guest whose background group holds much, with the arm's file."""
        with Guest(arm.kernel, self.mem, Disk(2 * self.mem, self.mb_s)) as guest:
            if arm.mounted:
                prepare(guest)
                mount(guest, group="omr.service")
            self.load(guest)
            yield guest

    def load(self, guest: Guest) -> None:
        guest.group(GROUP)
        guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group=GROUP).line_with("ready", timeout=300)

    def measure(self, arm: str, pair: int) -> Run:
        way = self.ways[arm]
        with self.loaded(way) as guest:
            before, cpu = guest.vmstat(), system_time(guest)
            current = guest.group_value(GROUP)
            command = ["omr-guest", "write", way.file, f"{self.ask}M{way.keys}"]
            written = guest.run(command, group="writer", timeout=300).json()
            freed = current - guest.group_value(GROUP)
            guest.shell("sleep 3")  # pages that are still on their way count, too
            after = guest.vmstat()
            return {
                "asked": self.ask * MIB,
                "freed": freed,
                "sent": (after["pswpout"] - before["pswpout"]) * 4096,
                "system_s": system_time(guest) - cpu,
                "written": written,
            }

    def measure_more(self) -> None:
        for arm, stopped in self.stopped.items():
            guests = 0
            while len(stopped) < self.stops:
                guests += 1
                if guests > 3 + self.stops:
                    raise GuestError(f"{arm}: only {len(stopped)} writes were stopped in {guests - 1} guests")
                stop = functools.partial(self.stop, arm, guests)
                stopped += self.runs.run(f"stops-{arm}-{guests:02}", stop)["stops"]
                times = ", ".join(f"{milliseconds(written):.1f}" for written in stopped)
                progress(f"{self.name}: {arm}: stopped in {times} ms")
            del stopped[self.stops :]

    def stop(self, arm: str, seed: int) -> dict[str, list[Written]]:
        """Writes that ask for all memory, each of which a signal ends at a random time."""
        chance = random.Random(seed)
        stops: list[Written] = []
        way = self.ways[arm]
        with self.loaded(way) as guest:
            while len(stops) < self.stops and guest.group_value(GROUP) > ENOUGH:
                after = chance.uniform(0.2, 1.2)
                # memory.reclaim does not know "max".
                command = ["omr-guest", "write", way.file, f"{self.mem}M{way.keys}"]
                signal = ["--stop-after", f"{after * 1000:.0f}ms"]
                written = guest.run([*command, *signal], group="writer", timeout=300).json()
                if written["stopped_ns"]:
                    stops.append(written)
        return {"stops": stops}

    def medium(self) -> str:
        return f"disk {self.mb_s:g} MB/s"

    def summary(self, run: Run) -> str:
        return f"{sent_ratio(run):.2f} of the amount asked for sent, in {seconds(run):.1f} s"

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "swap": "disk",
            "fill_percent": self.fill,
            "asked_mib": self.ask,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            ratios = [sent_ratio(run) for run in runs]
            found[f"sent_ratio_{arm}"] = Metric(ratios, "x", self.goals.get(f"sent_ratio_{arm}"))
            found[f"freed_ratio_{arm}"] = Metric([run["freed"] / run["asked"] for run in runs], "x")
            found[f"write_s_{arm}"] = Metric([seconds(run) for run in runs], "s")
            found[f"system_s_{arm}"] = Metric([run["system_s"] for run in runs], "s")
            times = [milliseconds(written) for written in self.stopped[arm]]
            found[f"stop_p50_ms_{arm}"] = Metric([quantile(times, 0.5)], "ms")
            found[f"stop_p99_ms_{arm}"] = Metric([quantile(times, 0.99)], "ms", self.goals.get(f"stop_p99_ms_{arm}"))
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (left, right) = canvas(columns=2, width=11, height=3.4)
        rows = list(reversed(list(results)))
        for row, arm in enumerate(rows):
            values = [run["sent"] / MIB for run in results[arm]]
            middle = quantile(values, 0.5)
            left.barh(row, middle, color=self.ways[arm].colour, height=0.6)
            spread_of_runs = [[middle - min(values)], [max(values) - middle]]
            left.errorbar(middle, row, xerr=spread_of_runs, color="#222222", capsize=3)
            left.annotate(f"{middle:.0f}", (max(values), row), xytext=(6, 0), textcoords="offset points", va="center")
            times = [max(0.1, milliseconds(written)) for written in self.stopped[arm]]
            right.scatter(times, [row + offset for offset in spread(len(times))], s=14, color=self.ways[arm].colour)
        left.axvline(self.ask, color="#222222", linestyle="--", linewidth=1)
        left.set_yticks(range(len(rows)), [self.labels[arm] for arm in rows])
        left.set_xlim(0, 1.15 * max(run["sent"] / MIB for arm in results for run in results[arm]))
        left.set_xlabel("MiB sent to swap; dashed: asked for")
        left.set_title(f"{self.ask} MiB wanted, {self.medium()}")
        right.set_xscale("log")
        right.axvline(100, color="#222222", linestyle="--", linewidth=1)
        right.set_yticks(range(len(rows)), [""] * len(rows))
        right.set_ylim(-0.5, len(rows) - 0.5)
        right.set_xlabel("ms from the signal to the end of the write; dashed: 100")
        right.set_title("Stopping it, at a random time")
        save(figure, directory / "swap-reclaim.png")
        return {
            "swap-reclaim.png": "What is sent to the swap disk for the amount that was asked for (median, and the"
            " range); how soon a signal ends a write."
        }


def system_time(guest: Guest) -> float:
    """CPU time in the kernel of all groups, in seconds: that of the writer and of omr mount."""
    text = guest.read("/sys/fs/cgroup/cpu.stat")
    return int(dict(line.split() for line in text.splitlines())["system_usec"]) / 1e6


def sent_ratio(run: Run) -> float:
    return run["sent"] / run["asked"]


def seconds(run: Run) -> float:
    return (run["written"]["ended_ns"] - run["written"]["began_ns"]) / 1e9


def milliseconds(stopped: Written) -> float:
    """Milliseconds from the signal until the write returned."""
    return max(0.0, (stopped["ended_ns"] - stopped["stopped_ns"]) / 1e6)


def spread(count: int) -> list[float]:
    """Offsets that keep dots of equal values apart."""
    return [0.5 * (index / max(1, count - 1) - 0.5) for index in range(count)]
