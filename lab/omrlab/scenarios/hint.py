"""What `omr hint` takes beside the bare system calls, for a process of many mappings: it looks at what is in memory, notices what
changes, and can be stopped between two calls. And what somebody else feels while a large process is paged out."""

import argparse
import signal
import struct
from pathlib import Path
from typing import Any

from ..guest import Guest, Zram
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress, quantile

NAME = "hint"

HINTS = ("cold", "pageout")

GOALS = {"cold_overhead_pct": "<= 5", "pageout_overhead_pct": "<= 5", "fg_p999_ratio": "<= 1.1"}

ARMS = ("nothing", "bare", "omr")
"""What is done to the large process while the foreground is measured."""

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}

PERIOD_MS = 20

WARM_UP = 3.0
"""Seconds before the hint."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--cold", type=int, default=4096, metavar="MIB", help="what is marked cold (default: %(default)s)"
    )
    parser.add_argument(
        "--pageout", type=int, default=1024, metavar="MIB", help="what is paged out (default: %(default)s)"
    )
    parser.add_argument("--mappings", type=int, default=20000, help="mappings of 4 GiB (default: %(default)s)")
    parser.add_argument(
        "--large",
        type=int,
        default=1024,
        metavar="MIB",
        help="what is paged out beside a foreground task (default: %(default)s)",
    )
    parser.add_argument(
        "--window", type=float, default=30, metavar="S", help="how long that task runs at most (default: %(default)s)"
    )
    parser.add_argument("--parts", default="cold,pageout,latency", help="which of them (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/hint)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    parts = arguments.parts.split(",")
    if unknown := set(parts) - {*HINTS, "latency"}:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in ("cold", "pageout", "mappings", "large", "window", "pairs")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)
    results = {}
    for hint in (hint for hint in HINTS if hint in parts):
        results[hint] = runs.run(hint, lambda name: {"rounds": measure(arguments, hint)})["rounds"]
        progress(f"{NAME}: {hint}: {overhead(results[hint])} % more than the bare calls")
    felt: list[dict[str, Any]] = []
    for pair in range(1, arguments.pairs + 1) if "latency" in parts else ():
        felt.append(runs.run(f"latency-{pair:02}", lambda name: measure_latency(arguments, pair)))
        progress(f"{NAME}: latency: " + ", ".join(f"{arm} {quantiles(felt[-1][arm])['p999']:.1f} ms" for arm in ARMS))
    guest = {
        "cold_mib": arguments.cold, "pageout_mib": arguments.pageout, "mappings_of_4_gib": arguments.mappings, "large_mib": arguments.large
    }  # fmt: skip
    metrics = {
        f"{hint}_overhead_pct": Metric(overhead(results[hint]), "%", GOALS[f"{hint}_overhead_pct"]) for hint in results
    }
    for hint, rounds in results.items():
        for arm in ("bare", "omr"):
            metrics[f"{hint}_{arm}"] = Metric([taken[arm] for taken in rounds], "s")
    metrics |= felt_metrics(felt)
    result = runs.finish(guest, arguments.pairs, metrics)
    plots = draw(results, runs.directory) if results else {}
    plots |= draw_latency(felt, runs.directory) if felt else {}
    command = (
        f"lab/run hint --kernel {arguments.kernel} --cold {arguments.cold} --pageout {arguments.pageout}"
        f" --mappings {arguments.mappings} --large {arguments.large} --window {arguments.window:g} --parts {arguments.parts}"
        f" --pairs {arguments.pairs}"
    )
    write_report(runs.directory, "omr hint beside the bare system calls", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace, hint: str) -> list[dict[str, float]]:
    """Seconds by the bare calls and by omr, in turn, about one process."""
    size = vars(arguments)[hint]
    swap = Zram(size + size // 4) if hint == "pageout" else None
    rounds = []
    # What is paged out does not get smaller: it cannot be compressed.
    with Guest(arguments.kernel, size * (3 if swap else 1) + 768, swap) as guest:
        guest.group("bg")
        mappings = str(arguments.mappings * size // 4096)
        process = guest.spawn(["omr-testkit", "map", f"{size}M", "--mappings", mappings], group="bg")
        process.line_with("ready", timeout=600)
        for number in range(1, arguments.pairs + 1):
            taken = {}
            for arm in ("bare", "omr") if number % 2 else ("omr", "bare"):
                if arm == "bare":
                    said = guest.run(["omr-testkit", "advise", hint, str(process.pid)], timeout=600).json()
                else:
                    asked = ["omr", "hint", str(process.pid), f"--{hint}", "--anon", "--ignore-class", "--json"]
                    said = guest.run(asked, timeout=600).json()
                taken[arm] = said["seconds"]
                # All of it is used again.
                process.kill(signal.SIGUSR1)
                errors = process.line_with("verified", (number - 1) * 2 + len(taken), timeout=600)["errors"]
                if errors:
                    raise RuntimeError(f"{errors} words are not what they were")
            rounds.append(taken)
    return rounds


def measure_latency(arguments: argparse.Namespace, pair: int) -> dict[str, Any]:
    """What a foreground task feels while a large process in the background is paged out to zram, in one guest."""
    with Guest(arguments.kernel, arguments.large * 3 + 768, Zram(arguments.large + arguments.large // 4)) as guest:
        guest.group("fg")
        guest.group("bg")
        process = guest.spawn(["omr-testkit", "map", f"{arguments.large}M"], group="bg")
        process.line_with("ready", timeout=600)
        measured: dict[str, Any] = {}
        order = ARMS[pair % 3 :] + ARMS[: pair % 3]
        for number, arm in enumerate(order, 1):
            measured[arm] = felt_while(guest, arm, process.pid, arguments.window)
            # All of it is used again.
            process.kill(signal.SIGUSR1)
            errors = process.line_with("verified", number, timeout=600)["errors"]
            if errors:
                raise RuntimeError(f"{errors} words are not what they were")
        return measured


def felt_while(guest: Guest, arm: str, pid: int, window: float) -> dict[str, Any]:
    duration = f"{int((WARM_UP + window) * 1000)}ms"
    task = guest.spawn(
        ["omr-testkit", "latency", "--raw", "/tmp/samples", "--period", f"{PERIOD_MS}ms", "--duration", duration],
        group="fg",
    )
    start_ns = task.line_with("start_ns")["start_ns"]
    guest.shell(f"sleep {max(0.0, WARM_UP - (guest.monotonic_ns() - start_ns) / 1e9):.3f}")
    began = guest.monotonic_ns()
    # Nothing is asked of the guest until it is done.
    commands = {
        "bare": ["omr-testkit", "advise", "pageout", str(pid)],
        "omr": ["omr", "hint", str(pid), "--pageout", "--anon", "--ignore-class", "--json"],
    }
    before = guest.vmstat()["pswpout"]
    hint = guest.spawn(commands[arm], group="omr.service") if arm in commands else None
    task.wait(timeout=WARM_UP + window + 120)
    ended = hint.wait(timeout=600) if hint else None
    if ended and ended.code != 0:
        raise RuntimeError(f"{commands[arm]} ended with {ended.code or ended.signal}: {ended.stderr}")
    seconds = ended.json()["seconds"] if ended else window
    samples = struct.iter_unpack("<QII", guest.read_bytes("/tmp/samples"))
    return {
        "seconds": seconds,
        "swapped_out_mib": (guest.vmstat()["pswpout"] - before) / 256,
        # From its start until it was done, as it says itself.
        "response_ms": [
            round((late + busy) / 1e6, 3) for due, late, busy in samples if began <= due < began + seconds * 1e9
        ],
    }


def quantiles(felt: dict[str, Any]) -> dict[str, float]:
    return {name: quantile(felt["response_ms"], share) for name, share in QUANTILES.items()}


def felt_metrics(felt: list[dict[str, Any]]) -> dict[str, Metric]:
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
    return [round(100 * (taken["omr"] / taken["bare"] - 1), 1) for taken in rounds]


def draw(results: dict[str, list[dict[str, float]]], directory: Path) -> dict[str, str]:
    figure, axes = canvas(columns=len(results), width=9, height=3.6)
    for axis, (hint, rounds) in zip(axes, results.items()):
        for place, arm in enumerate(("bare", "omr")):
            values = [taken[arm] for taken in rounds]
            axis.bar(place, Metric(values, "s").value, 0.6, color=COLOURS["on" if arm == "omr" else "off"])
            axis.plot([place] * len(values), values, ".", color="#333333", markersize=5)
        axis.set_xticks([0, 1], ["bare system calls", "omr hint"])
        axis.set_title(f"--{hint}")
        axis.set_ylabel("seconds, median")
        axis.grid(axis="x", visible=False)
    save(figure, directory / "hint.png")
    return {
        "hint.png": "How long a hint about all memory of the process took, by a few bare calls and by `omr hint`; each round a dot."
    }


def draw_latency(felt: list[dict[str, Any]], directory: Path) -> dict[str, str]:
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
        "latency.png": "What a foreground task felt while a large process in the background was paged out to zram, all rounds together."
    }
