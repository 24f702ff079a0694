"""Fill the memory, then let a foreground program allocate and touch much of it at once; prepared by omr and not, and on an
empty machine."""

import argparse
import signal
from pathlib import Path
from typing import Any

from ..daemon import CLASSES, CONFIG
from ..guest import MIB, Disk, Guest, GuestError
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress

NAME = "burst"

LOAD = "bg"

LABELS = {"empty": "empty machine", "off": "full, without omr", "on": "full, with omr", "by-hand": "full, by hand"}

ARM_COLOURS = COLOURS | {"empty": COLOURS["machine"]}

PARTIAL = 4
"""omr's exit code for less than asked: measured all the same."""

GOALS = {"allocstall": "= 0", "burst_time_over_empty": "<= 1.1"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=25, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--fill", type=int, default=85, metavar="PERCENT", help="memory the load fills (default: %(default)s)"
    )
    parser.add_argument(
        "--burst", type=int, default=40, metavar="PERCENT", help="memory the burst takes (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=5, metavar="S", help="idle time before the burst (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each arm runs (default: %(default)s)")
    parser.add_argument(
        "--arms", default="empty,off,on", help="arms in turn, of empty, off, on, by-hand (default: %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/burst)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in ("mem", "mb_s", "fill", "burst", "idle")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        # A B C, C B A, ...: what drifts with time falls on all arms.
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: measure(arguments, arm))
            results[arm].append(measured)
            stalls = measured["burst"]["events"]["allocstall"]
            progress(f"{NAME}: {arm}: {seconds(measured):.2f} s, {stalls} stalls")

    guest = {
        "mem_mib": arguments.mem,
        "disk_mb_s": arguments.mb_s,
        "swap": "disk",
        "fill_percent": arguments.fill,
        "burst_percent": arguments.burst,
    }
    result = runs.finish(guest, arguments.pairs, metrics(results))
    plots = draw(results, runs.directory, guest)
    command = (
        f"lab/run burst --kernel {arguments.kernel} --mem {arguments.mem} --mb-s {arguments.mb_s:g} --fill {arguments.fill}"
        f" --burst {arguments.burst} --idle {arguments.idle:g} --pairs {arguments.pairs} --arms {arguments.arms}"
    )
    write_report(runs.directory, "A burst of allocation", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace, arm: str) -> dict[str, Any]:
    """One run of one arm in a guest of its own."""
    # The host's first touch of a page would cost an empty guest what a filled one has paid already.
    with Guest(arguments.kernel, arguments.mem, Disk(2 * arguments.mem, arguments.mb_s), prealloc=True) as guest:
        guest.group("fg")
        guest.group(LOAD)
        guest.write(CONFIG, CLASSES, create=True)
        program = guest.spawn(["omr-testkit", "burst", f"{arguments.burst}%"], group="fg")
        size = program.line_with("ready")["bytes"]
        load = None
        if arm != "empty":
            load = guest.spawn(["omr-testkit", "fill", f"{arguments.fill}%"], group=LOAD)
            load.line_with("ready", timeout=300)
        # Filling may have cost the program its own memory; it is not the burst that pays for that.
        guest.shell(f"sleep {arguments.idle}", timeout=arguments.idle + 60)
        limit = 120 + 8 * size / (arguments.mb_s * 1e6)
        taken = guest.group_value("fg", "memory.swap.current")
        prepared = prepare(guest, arm, size, limit)
        taken = guest.group_value("fg", "memory.swap.current") - taken
        before = {
            "meminfo": guest.meminfo(),
            "buddyinfo": guest.read("/proc/buddyinfo"),
            "zoneinfo": guest.read("/proc/zoneinfo"),
        }
        program.kill(signal.SIGUSR1)
        # Nothing is asked of the guest while it is measured.
        burst = program.wait(timeout=600).json()
        guest.throttle_swap(None)  # the verification is not timed
        if load:
            load.kill(signal.SIGUSR1)
        return {
            "arm": arm,
            "prepared": prepared,
            "taken_from_foreground": taken,
            "before": before,
            "burst": burst,
            "verified": load.line_with("verified", timeout=900) if load else {"errors": 0},
        }


def prepare(guest: Guest, arm: str, size: int, limit: float) -> dict[str, Any]:
    """What happens between filling and the burst."""
    began = guest.monotonic_ns()
    if arm == "by-hand":
        guest.run(["omr-testkit", "by-hand", LOAD, str(size)], timeout=limit)
        ended: dict[str, Any] = {}
    elif arm == "on":
        omr = guest.run(
            ["omr", "prepare", "burst", f"{size}B", "--json"], group="omr.service", timeout=limit, check=False
        )
        if omr.code not in (0, PARTIAL):
            raise GuestError(f"omr prepare ended with {omr.code}: {omr.stderr}")
        ended = {"code": omr.code, "stdout": omr.stdout, "stderr": omr.stderr}
    else:
        return {}
    return {"seconds": (guest.monotonic_ns() - began) / 1e9, **ended}


def seconds(measured: dict[str, Any]) -> float:
    """How long the burst took."""
    return (measured["burst"]["ended_ns"] - measured["burst"]["began_ns"]) / 1e9


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """Ratios are taken pair by pair."""
    found: dict[str, Metric] = {}
    stalls = {arm: [float(run["burst"]["events"]["allocstall"]) for run in runs] for arm, runs in results.items()}
    if "on" in results:
        # The worst of them: a program that stalls in one run of five stalls.
        found["allocstall"] = Metric([max(stalls["on"])], "stalls", GOALS["allocstall"])
        taken = [run["taken_from_foreground"] / MIB for run in results["on"]]
        found["taken_from_foreground"] = Metric([max(taken)], "MiB", "= 0")
    for arm, runs in results.items():
        suffix = arm.replace("-", "_")
        if arm != "empty" and "empty" in results:
            ratios = [seconds(run) / seconds(empty) for run, empty in zip(runs, results["empty"])]
            name = "burst_time_over_empty" if arm == "on" else f"burst_time_over_empty_{suffix}"
            found[name] = Metric(ratios, "ratio", GOALS.get(name))
        found[f"burst_{suffix}"] = Metric([seconds(run) for run in runs], "s")
        if arm != "on":
            found[f"allocstall_{suffix}"] = Metric(stalls[arm], "stalls")
        for name in ("p50", "p99", "max"):
            found[f"fault_{name}_{suffix}"] = Metric([run["burst"][f"{name}_ns"] / 1e6 for run in runs], "ms")
        if all(run["prepared"] for run in runs):
            found[f"prepare_{suffix}"] = Metric([run["prepared"]["seconds"] for run in runs], "s")
    errors = [run["verified"]["errors"] for runs in results.values() for run in runs]
    found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
    return found


def draw(results: dict[str, list[dict[str, Any]]], directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    figure, (bars, course) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
    draw_times(bars, results)
    draw_course(course, results)
    figure.suptitle(
        f"Allocating {guest['burst_percent']} % of a machine's memory that is {guest['fill_percent']} % full"
        f" ({guest['mem_mib'] / 1024:g} GiB, disk {guest['disk_mb_s']:g} MB/s)",
        x=0.01, ha="left", fontsize=12, fontweight="bold",
    )  # fmt: skip
    save(figure, directory / "burst.png")
    return {
        "burst.png": "Left: how long the program took to touch its memory, each run a dot, the bar their median, and how often it"
        " had to reclaim by itself. Right: how far it had come when, every run; the scale of time is logarithmic."
    }


def draw_times(axes: Any, results: dict[str, list[dict[str, Any]]]) -> None:
    for place, (arm, runs) in enumerate(results.items()):
        metric = Metric([seconds(run) for run in runs], "s")
        stalls = Metric([float(run["burst"]["events"]["allocstall"]) for run in runs], "stalls")
        axes.bar(place, metric.value, 0.75, color=ARM_COLOURS[arm])
        axes.plot([place] * len(runs), metric.values, ".", color="#333333", markersize=4)
        text = f"{metric.value:.2f} s\n{stalls.value:.0f} stalls"
        axes.annotate(
            text, (place, max(metric.values)), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    axes.set_xticks(range(len(results)), [LABELS[arm].replace(", ", ",\n") for arm in results])
    axes.set_ylabel("seconds")
    axes.set_title("Time")
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.25 * axes.dataLim.ymax)  # room for the figures above the bars


def draw_course(axes: Any, results: dict[str, list[dict[str, Any]]]) -> None:
    for arm, runs in results.items():
        for number, run in enumerate(runs):
            course = run["burst"]["progress_s"]
            touched = [100 * (place + 1) / len(course) for place in range(len(course))]
            axes.plot(course, touched, color=ARM_COLOURS[arm], linewidth=1.5, label=None if number else LABELS[arm])
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("seconds since the burst began")
    axes.set_ylabel("% of the burst's memory touched")
    axes.set_title("Course")
    axes.legend(loc="upper left")
