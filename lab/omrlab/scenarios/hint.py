"""What `omr hint` takes beside the bare system calls, for a process of many mappings: it looks at what is in memory, notices what
changes, and can be stopped between two calls."""

import argparse
import signal
from pathlib import Path
from typing import Any

from ..guest import Guest, Zram
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress

NAME = "hint"

HINTS = ("cold", "pageout")

GOALS = {"cold_overhead_pct": "<= 5", "pageout_overhead_pct": "<= 5"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument("--cold", type=int, default=4096, metavar="MIB", help="what is marked cold (default: %(default)s)")
    parser.add_argument("--pageout", type=int, default=1024, metavar="MIB", help="what is paged out (default: %(default)s)")
    parser.add_argument("--mappings", type=int, default=20000, help="mappings of 4 GiB (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument("--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/hint)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    setting = {name: vars(arguments)[name] for name in ("cold", "pageout", "mappings", "pairs")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)
    results = {}
    for hint in HINTS:
        results[hint] = runs.run(hint, lambda name: {"rounds": measure(arguments, hint)})["rounds"]
        progress(f"{NAME}: {hint}: {overhead(results[hint])} % more than the bare calls")
    guest = {"cold_mib": arguments.cold, "pageout_mib": arguments.pageout, "mappings_of_4_gib": arguments.mappings}
    metrics = {f"{hint}_overhead_pct": Metric(overhead(results[hint]), "%", GOALS[f"{hint}_overhead_pct"]) for hint in HINTS}
    for hint, rounds in results.items():
        for arm in ("bare", "omr"):
            metrics[f"{hint}_{arm}"] = Metric([taken[arm] for taken in rounds], "s")
    result = runs.finish(guest, arguments.pairs, metrics)
    plots = draw(results, runs.directory)
    command = (
        f"lab/run hint --kernel {arguments.kernel} --cold {arguments.cold} --pageout {arguments.pageout}"
        f" --mappings {arguments.mappings} --pairs {arguments.pairs}"
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


def overhead(rounds: list[dict[str, float]]) -> list[float]:
    return [round(100 * (taken["omr"] / taken["bare"] - 1), 1) for taken in rounds]


def draw(results: dict[str, list[dict[str, float]]], directory: Path) -> dict[str, str]:
    figure, axes = canvas(columns=2, width=9, height=3.6)
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
    return {"hint.png": "How long a hint about all memory of the process took, by a few bare calls and by `omr hint`; each round a dot."}
