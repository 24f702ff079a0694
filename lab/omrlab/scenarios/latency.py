"""The talk's demonstration: memory stress in the background, a latency-sensitive task, and reclaim.

Part one compares the response times of the foreground task in six arms: nothing reclaims, omr's
daemon runs and lets the foreground work, nothing reclaims and another program writes to the disk at
its speed, one big write reclaims the whole root as the seed did, omr sweeps the whole machine, omr
sweeps the background only. Part two lets
foreground work begin while omr's daemon sweeps, and measures how long the kernel goes on
reclaiming: in sweeps of memory of any age, and in sweeps by age.
"""

import re
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import CLASSES, CONFIG, Daemon
from ..guest import MGLRU_SWITCH, Disk, Guest, GuestError, Process
from ..plots import COLOURS, canvas, save
from ..results import Metric, progress, quantile
from ..scenario import Comparison, Results, arms_option, option

LABELS = {
    "nothing": "no reclaim",
    "daemon": "omr's daemon, which waits",
    "disk": "no reclaim, and the disk is written to",
    "seed": "whole root in one write (the seed's way)",
    "machine": "omr, whole machine",
    "background": "omr, background only",
}

ARM_COLOURS = {
    "nothing": COLOURS["off"],
    "daemon": COLOURS["swap"],
    "disk": COLOURS["prepare"],
    "seed": COLOURS["seed"],
    "machine": COLOURS["machine"],
    "background": COLOURS["on"],
}

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}

GOALS = {
    "fg_p999_ratio": "<= 1.1",
    "fg_p999_ratio_daemon": "<= 1.1",
    "stop_p99_ms": "<= 100",
    "stop_p99_ms_by_age": "<= 100",
}

RATIOS = {
    "fg_p999_ratio": ("background", "nothing"),
    "fg_p999_ratio_machine": ("machine", "nothing"),
    "fg_p999_ratio_seed": ("seed", "nothing"),
    "fg_p999_ratio_disk": ("disk", "nothing"),
    "fg_p999_ratio_daemon": ("daemon", "nothing"),
    "fg_p999_over_disk": ("background", "disk"),
}
"""Two arms, and the name of the ratio of their p99.9."""

WARM_UP = 5.0
"""Seconds for which the foreground task runs before anything reclaims."""

TRACING = "/sys/kernel/debug/tracing"

PROBES = ("memory_reclaim", "lru_gen_seq_write")
"""The kernel's functions behind a write to memory.reclaim, and to MGLRU's file in debugfs."""

BY_AGE = CLASSES + 'older_than = "8s"\n'
"""The last rule is that of the background."""

GAP = ("4s", "9s")
"""Between two bursts of foreground work. The daemon sweeps again after some 3 s."""


class Run(TypedDict):
    arm: str
    summary: dict[str, Any]
    sweep: dict[str, Any] | None
    """Exit code and output of the command that reclaimed; None in the arm without one."""
    swapped_out_mib: float
    sweep_began_ms: float
    """From the task's start, as is `due_ms`."""
    due_ms: list[float]
    """The start of each period of the task."""
    late_us: list[int]
    """The delay of the task's wake-up in each period."""
    busy_us: list[int]
    """The working time of the task in each period."""


class Stop(TypedDict):
    """Foreground work that began during a sweep."""

    first_ran_ns: float
    stop_ms: float
    """Time from then until the last write to memory.reclaim returned."""


@dataclass(kw_only=True)
class Latency(Comparison[Run]):
    name = "latency"
    help = "the effect of a sweep on a latency-sensitive task, and how soon a sweep stops (35 minutes)"
    title = "Latency"
    labels = LABELS

    arms: str = arms_option(LABELS)
    mem: int = option(1024, "memory of the guest", "MIB")
    mb_s: float = option(20, "speed of its disk in MB/s")
    fill: int = option(60, "memory that the background load fills", "PERCENT")
    window: float = option(40, "seconds measured in each run", "S")
    period: int = option(10, "the foreground task's period", "MS")
    # The background memory of one guest is enough for some 12 interrupted sweeps.
    bursts: int = option(12, "bursts of foreground work in one guest")
    stops: int = option(40, "how often foreground work interrupts a sweep", setting=False, least=0)
    stops_by_age: int = option(20, "how often it interrupts a sweep by age", setting=False, least=0)

    def __post_init__(self) -> None:
        self.stopped: list[Stop] = []
        self.stopped_by_age: list[Stop] = []

    # Part one: response times in the foreground

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, Disk(2 * self.mem, self.mb_s)) as guest, ExitStack() as stack:
            guest.group("fg")
            guest.group("bg")
            if arm == "daemon":
                stack.enter_context(Daemon(guest, config=CLASSES))
            else:
                guest.write(CONFIG, CLASSES, create=True)
            stress = guest.spawn(["omr-guest", "stress", f"{self.fill}%", "--rate", "4M"], group="bg")
            stress.line_with("ready", timeout=300)
            task = guest.spawn(
                [
                    *("omr-guest", "latency", "--raw", "/tmp/samples", "--period", f"{self.period}ms"),
                    *("--duration", f"{int((WARM_UP + self.window) * 1000)}ms"),
                ],
                group="fg",
            )
            start_ns = task.line_with("start_ns")["start_ns"]
            guest.shell(f"sleep {max(0.0, WARM_UP - (guest.monotonic_ns() - start_ns) / 1e9):.3f}")

            before = guest.vmstat()
            began = guest.monotonic_ns()
            sweep = begin_sweep(guest, arm, self.window)
            # The lab asks the guest for nothing while it is measured.
            summary = task.wait(timeout=WARM_UP + self.window + 120).json()
            ended = sweep.wait(timeout=300) if sweep else None
            after = guest.vmstat()
            samples = list(struct.iter_unpack("<QII", guest.read_bytes("/tmp/samples")))
            return {
                "arm": arm,
                "summary": summary,
                "sweep": {"code": ended.code, "stdout": ended.stdout, "stderr": ended.stderr} if ended else None,
                "swapped_out_mib": (after["pswpout"] - before["pswpout"]) / 256,
                "sweep_began_ms": (began - start_ns) / 1e6,
                "due_ms": [round((due - start_ns) / 1e6, 3) for due, _, _ in samples],
                "late_us": [late // 1000 for _, late, _ in samples],
                "busy_us": [busy // 1000 for _, _, busy in samples],
            }

    # Part two: how soon a sweep stops

    def measure_more(self) -> None:
        self.interrupt("stops", self.stopped, self.stops, lambda: self.measure_stops(CLASSES))
        self.interrupt("stops-by-age", self.stopped_by_age, self.stops_by_age, lambda: self.measure_stops(BY_AGE))

    def interrupt(
        self, name: str, stopped: list[Stop], wanted: int, measure: Callable[[], dict[str, list[Stop]]]
    ) -> None:
        """Starts guests until so many sweeps were interrupted."""
        guests = 0
        while len(stopped) < wanted:
            guests += 1
            if guests > 3 + wanted // 2:
                raise GuestError(f"only {len(stopped)} sweeps were interrupted in {guests - 1} guests")
            stopped += self.runs.run(f"{name}-{guests:02}", measure)["stops"]
            times = ", ".join(f"{stop['stop_ms']:.1f}" for stop in stopped)
            progress(f"{self.name}: {len(stopped)} {name} so far: {times} ms")

    def measure_stops(self, config: str) -> dict[str, list[Stop]]:
        """Foreground work begins at random moments, some of which are during the daemon's sweeps.

        The kernel's trace tells how long reclaim went on, whatever omr says about itself. The lab
        asks the guest for nothing meanwhile: the agent's answers are work, too.
        """
        # As much memory for each sweep as the disk takes in five seconds.
        with Guest(self.kernel, 2 * self.mem, Disk(4 * self.mem, self.mb_s)) as guest:
            guest.group("fg")
            guest.group("bg")
            trace_writes(guest)
            if config is BY_AGE:
                guest.write(MGLRU_SWITCH, "y")
            load = guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group="bg")
            load.line_with("ready", timeout=300)
            with Daemon(guest, idle="2s", config=config) as daemon:
                # Ages are known after two agings.
                guest.wait_for(lambda: daemon.sweeps("bg") or daemon.status()["sweep"], 120, "a sweep")
                gaps = ["--gap-min", GAP[0], "--gap-max", GAP[1]]
                spin = guest.spawn(
                    ["omr-guest", "spin", "--burst", "1s", "--times", str(self.bursts), *gaps], group="fg"
                )
                spin.wait(timeout=20 * self.bursts)
                returned = write_ends(guest.read(f"{TRACING}/trace"))
                bursts = [line for line in spin.lines() if "first_ran_ns" in line]
        return {"stops": [stop for burst in bursts if (stop := stop_time(burst, returned)) is not None]}

    # Results

    def summary(self, run: Run) -> str:
        return ", ".join(f"{name} {value:.1f} ms" for name, value in quantiles(run).items())

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "disk_mb_s": self.mb_s, "swap": "disk", "fill_percent": self.fill}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        found: dict[str, Metric] = {}
        for name, (arm, other) in RATIOS.items():
            if arm in results and other in results:
                pairs = zip(results[arm], results[other])
                p999 = [quantiles(run)["p999"] / quantiles(base)["p999"] for run, base in pairs]
                found[name] = Metric(p999, "ratio", GOALS.get(name))
        if self.stopped:
            times = [stop["stop_ms"] for stop in self.stopped]
            found["stop_p99_ms"] = Metric([quantile(times, 0.99)], "ms", GOALS["stop_p99_ms"])
            found["stop_max_ms"] = Metric([max(times)], "ms")
            found["stop_p50_ms"] = Metric([quantile(times, 0.5)], "ms")
        if self.stopped_by_age:
            times = [stop["stop_ms"] for stop in self.stopped_by_age]
            found["stop_p99_ms_by_age"] = Metric([quantile(times, 0.99)], "ms", GOALS["stop_p99_ms_by_age"])
        for arm, runs in results.items():
            for name in QUANTILES:
                found[f"{name}_{arm}"] = Metric([quantiles(run)[name] for run in runs], "ms")
        return found

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        table = {
            arm: {name: Metric([quantiles(run)[name] for run in runs], "ms").json() for name in QUANTILES}
            for arm, runs in results.items()
        }
        return {"arms": table}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        draw_first_runs(results, directory / "latency.png")
        draw_distribution(results, directory / "distribution.png")
        plots = {
            "latency.png": "Response of the foreground task in each period: from the moment it should run to the"
            " end of its work. First run of each arm.",
            "distribution.png": "The same over all runs: further left and lower is better.",
        }
        if self.stopped:
            draw_stops([stop["stop_ms"] for stop in self.stopped], directory / "stops.png")
            plots["stops.png"] = "0 ms: no write was under way when the work began."
        return plots


def trace_writes(guest: Guest) -> None:
    """The kernel notes when each write that reclaims returns. See `write_ends`."""
    guest.write(f"{TRACING}/trace_clock", "mono")
    for number, function in enumerate(PROBES):
        guest.shell(f"echo r:ends_{number} {function} >> {TRACING}/kprobe_events")
    guest.write(f"{TRACING}/events/kprobes/enable", "1")


def begin_sweep(guest: Guest, arm: str, window: float) -> Process | None:
    """Starts to reclaim by the method of the arm, or to write to the disk without any reclaim: the
    least that a sweep to this disk can cost. All but the seed's way end with the window.
    """
    omr = ["omr", "reclaim", "--json", "--timeout", f"{int(window)}s"]
    match arm:
        case "disk":
            guest.shell("swapoff /dev/vda")
            write = f"timeout {int(window)} dd if=/dev/zero of=/dev/vda bs=128k oflag=direct"
            return guest.spawn(["sh", "-c", f"{write} || true"], group="omr.service")
        case "seed":
            return guest.spawn(["omr-guest", "seed-reclaim", "/", "100%"], group="init.scope")
        case "machine":
            return guest.spawn([*omr, "/", "max"], group="omr.service")
        case "background":
            return guest.spawn([*omr, "bg", "max"], group="omr.service")
    return None


def responses(run: Run) -> list[tuple[float, float]]:
    """The time of each period, in ms since the sweep began, and its response time in ms."""
    began = run["sweep_began_ms"]
    samples = zip(run["due_ms"], run["late_us"], run["busy_us"])
    return [(due - began, (late + busy) / 1000) for due, late, busy in samples if due >= began]


def quantiles(run: Run) -> dict[str, float]:
    values = [response for _, response in responses(run)]
    return {name: quantile(values, share) for name, share in QUANTILES.items()}


def write_ends(trace: str) -> list[float]:
    """The time at which each write that reclaims returned: ns of CLOCK_MONOTONIC."""
    return [float(seconds) * 1e9 for seconds in re.findall(r"(\d+\.\d+): ends_\d:", trace)]


def stop_time(burst: dict[str, int], returned: list[float]) -> Stop | None:
    """The stop that a burst of work caused. None where no sweep ran when the burst began."""
    began = burst["first_ran_ns"]
    if not any(began - 1e9 < end <= began for end in returned):
        return None
    last = max((end for end in returned if began < end <= burst["ended_ns"]), default=began)
    return {"first_ran_ns": began, "stop_ms": (last - began) / 1e6}


def draw_first_runs(results: Results[Run], path: Path) -> None:
    figure, axes = canvas(rows=len(results), width=10, height=1.9 * len(results), sharex=True, sharey=True)
    for axis, (arm, runs) in zip(axes, results.items()):
        due, response = zip(*responses(runs[0]))
        axis.plot([ms / 1000 for ms in due], response, ".", markersize=2.5, color=ARM_COLOURS[arm])
        worst = quantiles(runs[0])
        figures = f"p99 {worst['p99']:.1f} ms, p99.9 {worst['p999']:.1f} ms, max {worst['max']:.0f} ms"
        axis.set_yscale("log")
        axis.set_title(f"{LABELS[arm]}: {figures}")
        axis.set_ylabel("response (ms)")
    axes[-1].set_xlabel("seconds since the reclaim began")
    save(figure, path)


def draw_distribution(results: Results[Run], path: Path) -> None:
    figure, (axis,) = canvas(width=9, height=4.5)
    for arm, runs in results.items():
        values = sorted(response for run in runs for _, response in responses(run))
        longer = [1 - number / len(values) for number in range(len(values))]
        axis.plot(values, longer, color=ARM_COLOURS[arm], linewidth=2, label=LABELS[arm])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("response time of the foreground task (ms)")
    axis.set_ylabel("share of periods that took longer")
    axis.set_title("How often the foreground task is late, all runs")
    axis.legend()
    save(figure, path)


def draw_stops(times: list[float], path: Path) -> None:
    figure, (axis,) = canvas(width=9, height=3)
    times = sorted(times)
    share = [(number + 1) / len(times) for number in range(len(times))]
    axis.step(times, share, where="post", color=COLOURS["on"], linewidth=2)
    axis.plot(times, share, ".", color=COLOURS["on"])
    axis.axvline(100, color=COLOURS["seed"], linestyle="--", linewidth=1)
    axis.annotate("goal", (100, 0), (3, 4), textcoords="offset points", color=COLOURS["seed"], fontsize=9)
    axis.set_xlim(left=0)
    axis.set_xlabel("ms from the first foreground work to the end of the last reclaim batch")
    axis.set_ylabel("share of stops")
    axis.set_title(f"How soon a sweep stops, {len(times)} stops")
    save(figure, path)
