"""The time of `omr hint`, compared with that of the bare system calls, for a process of many
mappings.

omr checks which pages are in memory, notices changes, and can be stopped between two calls. The
last part, `--parts latency`, measures a foreground task while a large process is paged out.
"""

import signal
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from ..guest import Guest, Process, Zram
from ..plots import COLOURS, bar, canvas, name_bars, save
from ..results import Metric, MetricJson, progress, quantile
from ..scenario import Benchmark, option

HINTS = ("cold", "pageout")

GOALS = {"cold_overhead_pct": "<= 5", "pageout_overhead_pct": "<= 5", "fg_p999_ratio": "<= 1.1"}

ARMS = ("nothing", "bare", "omr")
"""Ways to hint the large process while the foreground is measured."""

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}

PERIOD_MS = 20

WARM_UP = 3.0
"""Seconds before the hint."""


class Felt(TypedDict):
    """The foreground task during an event that concerns the large process."""

    seconds: float
    """The duration of the event."""
    swapped_out_mib: float
    response_ms: list[float]


@dataclass(kw_only=True)
class Hint(Benchmark):
    name = "hint"
    help = "the time of omr hint compared with that of the bare system calls"
    title = "omr hint and the bare system calls"

    pairs: int = option(5, "rounds", setting=False)
    cold: int = option(4096, "memory that is marked cold", "MIB")
    pageout: int = option(1024, "memory that is paged out", "MIB")
    mappings: int = option(20000, "mappings of 4 GiB")
    large: int = option(1024, "memory that is paged out while a foreground task runs", "MIB")
    window: float = option(30, "how long that task runs at most", "S")
    parts: str = option("cold,pageout,latency", "the parts that are measured", setting=False)

    def parameters(self) -> dict[str, Any]:
        # One run measures all rounds of a part.
        return super().parameters() | {"pairs": self.pairs}

    def run(self) -> dict[str, MetricJson]:
        parts = self.parts.split(",")
        if unknown := set(parts) - {*HINTS, "latency"}:
            raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
        runs = self.open_runs()
        results = {}
        for hint in (hint for hint in HINTS if hint in parts):
            results[hint] = runs.run(hint, partial(self.measure, hint))["rounds"]
            progress(f"{self.name}: {hint}: {overhead(results[hint])} % more than the bare calls")
        felt: list[dict[str, Felt]] = []
        for pair in range(1, self.pairs + 1) if "latency" in parts else ():
            felt.append(runs.run(f"latency-{pair:02}", partial(self.measure_latency, pair)))
            p999 = ", ".join(f"{arm} {quantiles(felt[-1][arm])['p999']:.1f} ms" for arm in ARMS)
            progress(f"{self.name}: latency: {p999}")
        metrics = hint_metrics(results) | felt_metrics(felt)
        return self.publish(runs, metrics, lambda directory: draw(results, felt, directory))

    def guest(self) -> dict[str, Any]:
        return {
            "cold_mib": self.cold,
            "pageout_mib": self.pageout,
            "mappings_of_4_gib": self.mappings,
            "large_mib": self.large,
        }

    def measure(self, hint: str) -> dict[str, list[dict[str, float]]]:
        """Seconds by the bare calls and by omr, in turn, for one process."""
        size = self.cold if hint == "cold" else self.pageout
        swap = Zram(size + size // 4) if hint == "pageout" else None
        rounds: list[dict[str, float]] = []
        # The memory cannot be compressed, so zram needs as much as is paged out.
        with Guest(self.kernel, size * (3 if swap else 1) + 768, swap) as guest:
            guest.group("bg")
            mappings = str(self.mappings * size // 4096)
            process = guest.spawn(["omr-guest", "map", f"{size}M", "--mappings", mappings], group="bg")
            process.line_with("ready", timeout=600)
            for number in range(1, self.pairs + 1):
                seconds: dict[str, float] = {}
                for arm in ("bare", "omr") if number % 2 else ("omr", "bare"):
                    seconds[arm] = guest.run(command(arm, hint, process.pid), timeout=600).json()["seconds"]
                    use_again(process, (number - 1) * 2 + len(seconds))
                rounds.append(seconds)
        return {"rounds": rounds}

    def measure_latency(self, pair: int) -> dict[str, Felt]:
        """A foreground task while a large background process is paged out to zram, in one guest."""
        with Guest(self.kernel, self.large * 3 + 768, Zram(self.large + self.large // 4)) as guest:
            guest.group("fg")
            guest.group("bg")
            process = guest.spawn(["omr-guest", "map", f"{self.large}M"], group="bg")
            process.line_with("ready", timeout=600)
            felt: dict[str, Felt] = {}
            order = ARMS[pair % 3 :] + ARMS[: pair % 3]
            for number, arm in enumerate(order, 1):
                felt[arm] = felt_while(guest, arm, process.pid, self.window)
                use_again(process, number)
            return felt


def command(arm: str, hint: str, pid: int) -> list[str]:
    """The command that gives the hint in an arm."""
    if arm == "bare":
        return ["omr-guest", "advise", hint, str(pid)]
    return ["omr", "hint", str(pid), f"--{hint}", "--anon", "--ignore-class", "--json"]


def use_again(process: Process, number: int) -> None:
    """Lets the process verify all of its memory. `number`: the count of verifications so far, with
    this one.
    """
    process.kill(signal.SIGUSR1)
    errors = process.line_with("verified", number, timeout=600)["errors"]
    if errors:
        raise RuntimeError(f"{errors} words have changed")


def felt_while(guest: Guest, arm: str, pid: int, window: float) -> Felt:
    duration = f"{int((WARM_UP + window) * 1000)}ms"
    task = guest.spawn(
        ["omr-guest", "latency", "--raw", "/tmp/samples", "--period", f"{PERIOD_MS}ms", "--duration", duration],
        group="fg",
    )
    start_ns = task.line_with("start_ns")["start_ns"]
    guest.shell(f"sleep {max(0.0, WARM_UP - (guest.monotonic_ns() - start_ns) / 1e9):.3f}")
    began = guest.monotonic_ns()
    # The lab asks the guest for nothing until it is done.
    before = guest.vmstat()["pswpout"]
    words = command(arm, "pageout", pid)
    hint = guest.spawn(words, group="omr.service") if arm != "nothing" else None
    task.wait(timeout=WARM_UP + window + 120)
    ended = hint.wait(timeout=600) if hint else None
    if ended and ended.code != 0:
        raise RuntimeError(f"{words} ended with {ended.code or ended.signal}: {ended.stderr}")
    seconds = ended.json()["seconds"] if ended else window
    samples = struct.iter_unpack("<QII", guest.read_bytes("/tmp/samples"))
    return {
        "seconds": seconds,
        "swapped_out_mib": (guest.vmstat()["pswpout"] - before) / 256,
        # From the start of the hint to its end, as the program reports it.
        "response_ms": [
            round((late + busy) / 1e6, 3) for due, late, busy in samples if began <= due < began + seconds * 1e9
        ],
    }


def quantiles(felt: Felt) -> dict[str, float]:
    return {name: quantile(felt["response_ms"], share) for name, share in QUANTILES.items()}


def hint_metrics(results: dict[str, list[dict[str, float]]]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for hint, rounds in results.items():
        name = f"{hint}_overhead_pct"
        metrics[name] = Metric(overhead(rounds), "%", GOALS[name])
    for hint, rounds in results.items():
        for arm in ("bare", "omr"):
            metrics[f"{hint}_{arm}"] = Metric([seconds[arm] for seconds in rounds], "s")
    return metrics


def felt_metrics(felt: list[dict[str, Felt]]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    if not felt:
        return metrics
    for arm, suffix in (("omr", ""), ("bare", "_bare")):
        for name in QUANTILES:
            ratios = [quantiles(pair[arm])[name] / quantiles(pair["nothing"])[name] for pair in felt]
            metrics[f"fg_{name}_ratio{suffix}"] = Metric(ratios, "ratio", GOALS.get(f"fg_{name}_ratio{suffix}"))
        metrics[f"large_{arm}"] = Metric([pair[arm]["seconds"] for pair in felt], "s")
    for arm in ARMS:
        for name in QUANTILES:
            metrics[f"fg_{name}_{arm}"] = Metric([quantiles(pair[arm])[name] for pair in felt], "ms")
    return metrics


def overhead(rounds: list[dict[str, float]]) -> list[float]:
    return [round(100 * (seconds["omr"] / seconds["bare"] - 1), 1) for seconds in rounds]


def draw(results: dict[str, list[dict[str, float]]], felt: list[dict[str, Felt]], directory: Path) -> dict[str, str]:
    plots = draw_rounds(results, directory) if results else {}
    return plots | (draw_latency(felt, directory) if felt else {})


def draw_rounds(results: dict[str, list[dict[str, float]]], directory: Path) -> dict[str, str]:
    figure, axes = canvas(columns=len(results), width=9, height=3.6)
    for axis, (hint, rounds) in zip(axes, results.items()):
        for place, arm in enumerate(("bare", "omr")):
            values = [seconds[arm] for seconds in rounds]
            bar(axis, place, Metric(values, "s"), COLOURS["on" if arm == "omr" else "off"], width=0.6)
        name_bars(axis, ["bare system calls", "omr hint"], "seconds, median", f"--{hint}")
    save(figure, directory / "hint.png")
    return {
        "hint.png": "How long a hint about all memory of the process took, by a few bare calls and by `omr hint`; each"
        " round a dot."
    }


def draw_latency(felt: list[dict[str, Felt]], directory: Path) -> dict[str, str]:
    figure, [axis] = canvas(width=9, height=3.6)
    colours = {"nothing": COLOURS["by-hand"], "bare": COLOURS["off"], "omr": COLOURS["on"]}
    for arm, label in (("nothing", "nothing"), ("bare", "one bare system call"), ("omr", "omr hint")):
        values = sorted(value for pair in felt for value in pair[arm]["response_ms"])
        beyond = [100 * (1 - place / len(values)) for place in range(len(values))]
        axis.plot(values, beyond, color=colours[arm], label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("response of the foreground task, ms")
    axis.set_ylabel("% of its periods that took longer")
    axis.set_title("While a large process is paged out")
    axis.legend()
    save(figure, directory / "latency.png")
    return {
        "latency.png": "What a foreground task felt while a large process in the background was paged out to zram, all"
        " rounds together."
    }
