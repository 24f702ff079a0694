"""The talk's demonstration: memory stress in the background, a latency-sensitive task in the foreground, reclaim running.

Part one compares what the foreground task feels when nothing reclaims, when the root is reclaimed in one big write as the
seed did, and when omr sweeps the whole machine or the background only. Part two lets foreground work begin while omr's
daemon sweeps, and measures how long the kernel goes on reclaiming after that.
"""

import argparse
import re
import struct
from pathlib import Path
from typing import Any

from ..daemon import CLASSES, CONFIG, Daemon
from ..guest import Disk, Guest, GuestError, Process
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress, quantile

NAME = "latency"

LABELS = {
    "nothing": "no reclaim",
    "seed": "whole root in one write (the seed's way)",
    "machine": "omr, whole machine",
    "background": "omr, background only",
}

ARM_COLOURS = {
    "nothing": COLOURS["off"],
    "seed": COLOURS["seed"],
    "machine": COLOURS["machine"],
    "background": COLOURS["on"],
}

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}

GOALS = {"fg_p999_ratio": "<= 1.1", "stop_p99_ms": "<= 100"}

WARM_UP = 5.0
"""Seconds in which the foreground task runs before anything reclaims."""

TRACING = "/sys/kernel/debug/tracing"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=20, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--fill",
        type=int,
        default=60,
        metavar="PERCENT",
        help="memory the background load fills (default: %(default)s)",
    )
    parser.add_argument(
        "--window", type=float, default=40, metavar="S", help="seconds measured in each run (default: %(default)s)"
    )
    parser.add_argument(
        "--period", type=int, default=10, metavar="MS", help="the foreground task's period (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each arm runs (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(LABELS), help="arms in turn (default: %(default)s)")
    parser.add_argument(
        "--stops", type=int, default=40, help="how often foreground work interrupts a sweep (default: %(default)s)"
    )
    # The background memory of one guest is enough for some 12 interrupted sweeps.
    parser.add_argument(
        "--bursts", type=int, default=12, help="bursts of foreground work in one guest (default: %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/latency)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in ("mem", "mb_s", "fill", "window", "period", "bursts")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: measure(arguments, arm))
            results[arm].append(measured)
            progress(
                f"{NAME}: {arm}: " + ", ".join(f"{name} {value:.1f} ms" for name, value in quantiles(measured).items())
            )

    stops: list[dict[str, float]] = []
    guests = 0
    while len(stops) < arguments.stops:
        guests += 1
        if guests > 3 + arguments.stops // 2:
            raise GuestError(f"only {len(stops)} sweeps were interrupted in {guests - 1} guests")
        stops += runs.run(f"stops-{guests:02}", lambda name: {"stops": measure_stops(arguments)})["stops"]
        progress(f"{NAME}: {len(stops)} stops so far: " + ", ".join(f"{stop['stop_ms']:.1f}" for stop in stops) + " ms")

    guest = {"mem_mib": arguments.mem, "disk_mb_s": arguments.mb_s, "swap": "disk", "fill_percent": arguments.fill}
    arms_table = {
        arm: {name: Metric([quantiles(one)[name] for one in results[arm]], "ms").json() for name in QUANTILES}
        for arm in arms
    }
    result = runs.finish(guest, arguments.pairs, metrics(results, stops), arms=arms_table)
    plots = draw(results, stops, runs.directory)
    command = (
        f"lab/run latency --kernel {arguments.kernel} --mem {arguments.mem} --mb-s {arguments.mb_s:g} --fill {arguments.fill}"
        f" --window {arguments.window:g} --pairs {arguments.pairs} --arms {arguments.arms} --stops {arguments.stops}"
    )
    write_report(runs.directory, "Latency", __doc__ or "", command, result, plots)
    return result


# Part one: what the foreground feels


def measure(arguments: argparse.Namespace, arm: str) -> dict[str, Any]:
    """One run of one arm in a guest of its own."""
    with Guest(arguments.kernel, arguments.mem, Disk(2 * arguments.mem, arguments.mb_s)) as guest:
        guest.group("fg")
        guest.group("bg")
        guest.write(CONFIG, CLASSES, create=True)
        stress = guest.spawn(["omr-testkit", "stress", f"{arguments.fill}%", "--rate", "4M"], group="bg")
        stress.line_with("ready", timeout=300)
        task = guest.spawn(
            [
                *("omr-testkit", "latency", "--raw", "/tmp/samples", "--period", f"{arguments.period}ms"),
                *("--duration", f"{int((WARM_UP + arguments.window) * 1000)}ms"),
            ],
            group="fg",
        )
        start_ns = task.line_with("start_ns")["start_ns"]
        guest.shell(f"sleep {max(0.0, WARM_UP - (guest.monotonic_ns() - start_ns) / 1e9):.3f}")

        before = guest.vmstat()
        began = guest.monotonic_ns()
        sweep = begin_sweep(guest, arm, arguments.window)
        # Nothing is asked of the guest while it is measured.
        summary = task.wait(timeout=WARM_UP + arguments.window + 120).json()
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


def begin_sweep(guest: Guest, arm: str, window: float) -> Process | None:
    """Starts the arm's way of reclaiming; omr's are ended with the window."""
    omr = ["omr", "reclaim", "--json", "--timeout", f"{int(window)}s"]
    match arm:
        case "seed":
            return guest.spawn(["omr-testkit", "seed-reclaim", "/", "100%"], group="init.scope")
        case "machine":
            return guest.spawn([*omr, "/", "max"], group="omr.service")
        case "background":
            return guest.spawn([*omr, "bg", "max"], group="omr.service")
    return None


def responses(measured: dict[str, Any]) -> list[tuple[float, float]]:
    """When, and how many ms from being due to having done its work; from the beginning of the sweep."""
    began = measured["sweep_began_ms"]
    samples = zip(measured["due_ms"], measured["late_us"], measured["busy_us"])
    return [(due - began, (late + busy) / 1000) for due, late, busy in samples if due >= began]


def quantiles(measured: dict[str, Any]) -> dict[str, float]:
    values = [response for _, response in responses(measured)]
    return {name: quantile(values, share) for name, share in QUANTILES.items()}


# Part two: how soon a sweep stops

GAP = ("4s", "9s")
"""Between two bursts. The daemon sweeps again after some 3 s."""


def measure_stops(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Foreground work begins at random moments, some of which fall into the daemon's sweeps.

    The kernel's own trace says when reclaim went on: a stop time is from the moment the foreground process ran until the last
    write to memory.reclaim returned. Whether omr thinks that it has stopped does not matter. Nothing is asked of the guest
    meanwhile: the agent's answers are work too.
    """
    # As much memory for each sweep as the disk takes in five seconds.
    with Guest(arguments.kernel, 2 * arguments.mem, Disk(4 * arguments.mem, arguments.mb_s)) as guest:
        guest.group("fg")
        guest.group("bg")
        guest.write(f"{TRACING}/trace_clock", "mono")
        guest.write(f"{TRACING}/kprobe_events", "r:reclaim_return memory_reclaim")
        guest.write(f"{TRACING}/events/kprobes/reclaim_return/enable", "1")
        load = guest.spawn(["omr-testkit", "fill", f"{arguments.fill}%"], group="bg")
        load.line_with("ready", timeout=300)
        with Daemon(guest, idle="2s", config=CLASSES):
            gaps = ["--gap-min", GAP[0], "--gap-max", GAP[1]]
            spin = guest.spawn(
                ["omr-testkit", "spin", "--burst", "1s", "--times", str(arguments.bursts), *gaps], group="fg"
            )
            spin.wait(timeout=20 * arguments.bursts)
            returned = write_ends(guest.read(f"{TRACING}/trace"))
            bursts = [line for line in spin.lines() if "first_ran_ns" in line]
    return [stop for burst in bursts if (stop := stop_time(burst, returned)) is not None]


def write_ends(trace: str) -> list[float]:
    """When each write to memory.reclaim returned, CLOCK_MONOTONIC in ns."""
    return [float(seconds) * 1e9 for seconds in re.findall(r"(\d+\.\d+): reclaim_return:", trace)]


def stop_time(burst: dict[str, int], returned: list[float]) -> dict[str, float] | None:
    """None where no sweep ran when the burst began: nothing was to be stopped."""
    began = burst["first_ran_ns"]
    if not any(began - 1e9 < end <= began for end in returned):
        return None
    last = max((end for end in returned if began < end <= burst["ended_ns"]), default=began)
    return {"first_ran_ns": began, "stop_ms": (last - began) / 1e6}


# Results


def metrics(results: dict[str, list[dict[str, Any]]], stops: list[dict[str, float]]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    ratios = {"background": "fg_p999_ratio", "machine": "fg_p999_ratio_machine", "seed": "fg_p999_ratio_seed"}
    for arm, name in ratios.items():
        if arm in results and "nothing" in results:
            pairs = zip(results[arm], results["nothing"])
            found[name] = Metric(
                [quantiles(one)["p999"] / quantiles(none)["p999"] for one, none in pairs], "ratio", GOALS.get(name)
            )
    if stops:
        times = [stop["stop_ms"] for stop in stops]
        found["stop_p99_ms"] = Metric([quantile(times, 0.99)], "ms", GOALS["stop_p99_ms"])
        found["stop_max_ms"] = Metric([max(times)], "ms")
        found["stop_p50_ms"] = Metric([quantile(times, 0.5)], "ms")
    for arm, runs in results.items():
        for name in QUANTILES:
            found[f"{name}_{arm}"] = Metric([quantiles(one)[name] for one in runs], "ms")
    return found


def draw(results: dict[str, list[dict[str, Any]]], stops: list[dict[str, float]], directory: Path) -> dict[str, str]:
    figure, axes = canvas(rows=len(results), width=10, height=1.9 * len(results), sharex=True, sharey=True)
    for axis, (arm, runs) in zip(axes, results.items()):
        points = responses(runs[0])
        axis.plot(
            [when / 1000 for when, _ in points],
            [response for _, response in points],
            ".",
            markersize=2.5,
            color=ARM_COLOURS[arm],
        )
        worst = quantiles(runs[0])
        axis.set_yscale("log")
        axis.set_title(
            f"{LABELS[arm]}: p99 {worst['p99']:.1f} ms, p99.9 {worst['p999']:.1f} ms, max {worst['max']:.0f} ms"
        )
        axis.set_ylabel("response (ms)")
    axes[-1].set_xlabel("seconds since the reclaim began")
    save(figure, directory / "latency.png")

    figure, (axis,) = canvas(width=9, height=4.5)
    for arm, runs in results.items():
        values = sorted(response for one in runs for _, response in responses(one))
        longer = [1 - number / len(values) for number in range(len(values))]
        axis.plot(values, longer, color=ARM_COLOURS[arm], linewidth=2, label=LABELS[arm])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("response time of the foreground task (ms)")
    axis.set_ylabel("share of periods that took longer")
    axis.set_title("How often the foreground task is late, all runs")
    axis.legend()
    save(figure, directory / "distribution.png")
    plots = {
        "latency.png": "Response of the foreground task in each period: from the moment it should run to the end of its work."
        " First run of each arm.",
        "distribution.png": "The same over all runs: further left and lower is better.",
    }
    if stops:
        figure, (axis,) = canvas(width=9, height=3)
        times = sorted(stop["stop_ms"] for stop in stops)
        axis.step(
            times,
            [(number + 1) / len(times) for number in range(len(times))],
            where="post",
            color=COLOURS["on"],
            linewidth=2,
        )
        axis.plot(times, [(number + 1) / len(times) for number in range(len(times))], ".", color=COLOURS["on"])
        axis.axvline(100, color=COLOURS["seed"], linestyle="--", linewidth=1)
        axis.annotate("goal", (100, 0), (3, 4), textcoords="offset points", color=COLOURS["seed"], fontsize=9)
        axis.set_xlim(left=0)
        axis.set_xlabel("ms from the first foreground work to the end of the last reclaim batch")
        axis.set_ylabel("share of stops")
        axis.set_title(f"How soon a sweep stops, {len(times)} stops")
        save(figure, directory / "stops.png")
        plots["stops.png"] = "0 ms: no write was under way when the work began."
    return plots
