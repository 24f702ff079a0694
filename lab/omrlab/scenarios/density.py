"""Several guests on one host, which report free memory to it: how much of the host's memory do they
use after an hour of light work, and do their requests get slower?

The arms: no omr, omr with its defaults in every guest, and omr with goal = "free". The defaults
take nothing in the first ten minutes.
"""

import signal
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import Daemon
from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, Process
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric, quantile
from ..scenario import Comparison, Results, arms_option, option

LABELS = {"off": "without omr", "daemon": "omr, default", "free": "omr, goal free"}

ARM_COLOURS = {"off": COLOURS["off"], "daemon": COLOURS["on"], "free": COLOURS["seed"]}

CONFIGS = {"daemon": "", "free": 'goal = "free"\n'}

LOAD = "load"

SAMPLES = "/tmp/samples"

EVERY = 15.0
"""Seconds between two readings of the host's memory."""

GOALS = {"host_mib_ratio": ">= 1.5", "p99_ratio": "<= 1.1"}


class Run(TypedDict):
    arm: str
    host: list[list[float]]
    """Seconds, and bytes of the host's memory that all guests use together."""
    response_us: list[int]
    """All requests of all guests."""
    cold_out: list[int]
    """Bytes of each guest's cold memory that were not in memory at the end."""
    swapped_out: list[int]
    """Bytes that each guest wrote to its swap."""
    errors: int
    status: list[str]


@dataclass(kw_only=True)
class Density(Comparison[Run]):
    name = "density"
    help = "three guests that report free memory to the host: its memory, and their requests (hours)"
    title = "Guests on a host"
    labels = LABELS

    pairs: int = option(1, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS, "off,daemon")
    guests: int = option(3, "guests")
    mem: int = option(1024, "memory of each", "MIB")
    mb_s: float = option(25, "speed of the disk of each in MB/s")
    hot: int = option(100, "memory that requests read", "MIB")
    cold: int = option(500, "memory that is never read again", "MIB")
    period: int = option(200, "time between two requests of a guest", "MS")
    minutes: float = option(60, "measured", "MINUTES")

    def measure(self, arm: str, pair: int) -> Run:
        with ExitStack() as stack:
            guests = [stack.enter_context(self.booted()) for _ in range(self.guests)]
            loads = [self.begin(guest, arm) for guest in guests]
            host = []
            began = time.monotonic()
            while (after := time.monotonic() - began) < 60 * self.minutes:
                host.append([round(after, 1), float(sum(guest.host_resident() for guest in guests))])
                time.sleep(EVERY)
            status = [guest.run(["omr", "status"], timeout=300).stdout for guest in guests if arm != "off"]
            out = [cold_out(load) for load in loads]
            errors = [end(load) for load in loads]
            samples = [sample for guest in guests for sample in struct.iter_unpack("<QIII", guest.read_long(SAMPLES))]
            return {
                "arm": arm,
                "host": host,
                "response_us": [(late + busy) // 1000 for _, late, busy, _ in samples],
                "cold_out": out,
                "swapped_out": [guest.vmstat()["pswpout"] * 4096 for guest in guests],
                "errors": sum(errors),
                "status": status,
            }

    def booted(self) -> Guest:
        return Guest(self.kernel, self.mem, Disk(2 * self.mem, self.mb_s), smp=1, balloon=True)

    def begin(self, guest: Guest, arm: str) -> Process:
        """Starts the load, and then the daemon."""
        guest.write(MGLRU_SWITCH, "y")
        guest.group(LOAD)
        sizes = ["--hot", f"{self.hot}M", "--cold", f"{self.cold}M", "--wakes", "0M", "--pages", "64"]
        words = ["omr-guest", "footprint", "--raw", SAMPLES, "--period", f"{self.period}ms", *sizes]
        load = guest.spawn(words, group=LOAD)
        load.line_with("ready", timeout=300)
        if arm in CONFIGS:
            Daemon(guest, whole=CONFIGS[arm])
        return load

    def summary(self, run: Run) -> str:
        return f"{host_mib(run):.0f} MiB of the host, p99 {response_ms(run, 0.99):.1f} ms"

    def guest(self) -> dict[str, Any]:
        return {
            "guests": self.guests,
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "swap": "disk",
            "hot_mib": self.hot,
            "cold_mib": self.cold,
            "minutes": self.minutes,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair. Figures without the
        name of an arm belong to the arm `daemon`.
        """
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            suffix = "" if arm == "daemon" else f"_{arm}"
            if arm != "off" and "off" in results:
                pairs = list(zip(results["off"], runs))
                host = [host_mib(off) / host_mib(run) for off, run in pairs]
                found[f"host_mib_ratio{suffix}"] = Metric(host, "ratio", GOALS.get(f"host_mib_ratio{suffix}"))
                p99 = [response_ms(run, 0.99) / response_ms(off, 0.99) for off, run in pairs]
                found[f"p99_ratio{suffix}"] = Metric(p99, "ratio", GOALS.get(f"p99_ratio{suffix}"))
            found[f"host_mib_{arm}"] = Metric([host_mib(run) for run in runs], "MiB")
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
                found[f"{name}_{arm}"] = Metric([response_ms(run, share) for run in runs], "ms")
            cold = self.guests * self.cold * MIB
            found[f"cold_out_pct_{arm}"] = Metric([100 * sum(run["cold_out"]) / cold for run in runs], "%")
            found[f"swapped_out_{arm}"] = Metric([sum(run["swapped_out"]) / MIB for run in runs], "MiB")
        errors = sum(run["errors"] for runs in results.values() for run in runs)
        found["content_errors"] = Metric([float(errors)], "words", "= 0")
        return found

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        runs = {arm: runs[-1] for arm, runs in results.items() if arm != "off"}
        return {
            "omr status at the end, in the first guest": {LABELS[arm]: run["status"][0] for arm, run in runs.items()}
        }

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (course, times) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1.6, 1]})
        for place, (arm, runs) in enumerate(results.items()):
            for number, run in enumerate(runs):
                minutes, mib = zip(*((at / 60, size / MIB) for at, size in run["host"]))
                label = None if number else LABELS[arm]
                course.plot(minutes, mib, color=ARM_COLOURS[arm], linewidth=1.5, label=label)
            p99 = Metric([response_ms(run, 0.99) for run in runs], "ms")
            bar(times, place, p99, ARM_COLOURS[arm], f"{p99.value:.1f} ms", width=0.5)
        course.set_ylim(bottom=0)
        course.set_xlabel("minutes")
        course.set_ylabel("MiB")
        course.set_title("The host's memory that all guests use")
        course.legend(loc="lower left")
        name_bars(times, [LABELS[arm] for arm in results], "ms", "p99 of their requests", room=1.2)
        headline(
            figure,
            f"{self.guests} guests of {self.mem / 1024:g} GiB, each with {self.hot} MiB in use"
            f" and {self.cold} MiB that nobody reads",
        )
        save(figure, directory / "density.png")
        return {"density.png": "Left: each run a line. Right: each run a dot, the bar their median."}


def host_mib(run: Run) -> float:
    """MiB of the host's memory at the end: the median of a minute, as reports come in rounds."""
    end = run["host"][-1][0]
    return quantile([size for at, size in run["host"] if at >= end - 60], 0.5) / MIB


def response_ms(run: Run, share: float) -> float:
    """This quantile of all guests' responses."""
    return quantile([us / 1000 for us in run["response_us"]], share)


def cold_out(load: Process) -> int:
    load.kill(signal.SIGUSR1)
    return int(load.line_with("changed_ns", timeout=300)["cold_out"])


def end(load: Process) -> int:
    """Ends a load. Returns the number of words that were not what was written."""
    load.kill()
    errors: int = load.wait(timeout=300).json()["errors"]
    return errors
