"""Three files that reclaim: the patched kernel's memory.swap.reclaim, the one of omr mount, and memory.reclaim as it is.

How much is sent to a slow swap disk for the amount that was asked for, and how soon a write ends when its writer gets a signal.
"""

import argparse
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import patched
from ..guest import MIB, Disk, Guest, GuestError
from ..mount import DIR, FILE, mount, prepare
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress, quantile

NAME = "swap-reclaim"

GROUP = "bg"


@dataclass(frozen=True)
class Arm:
    label: str
    colour: str
    kernel: str
    file: str
    mounted: bool = False


ARMS = {
    "patched": Arm(
        "patched kernel: memory.swap.reclaim", COLOURS["prepare"], patched.RELEASE, f"/sys/fs/cgroup/{GROUP}/{FILE}"
    ),
    "mount": Arm("omr mount: memory.swap.reclaim", COLOURS["on"], "6.12", f"{DIR}/{GROUP}/{FILE}", mounted=True),
    "kernel": Arm("memory.reclaim", COLOURS["seed"], "6.12", f"/sys/fs/cgroup/{GROUP}/memory.reclaim"),
}

GOALS = {
    "stop_p99_ms_patched": "<= 100",
    "stop_p99_ms_mount": "<= 100",
    "sent_ratio_patched": "<= 1.05",
    "sent_ratio_mount": "<= 1.25",
}

ENOUGH = 128 * MIB
"""With less than that left in memory a write may end by itself before the signal."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=20, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--fill", type=int, default=70, metavar="PERCENT", help="memory the load fills (default: %(default)s)"
    )
    parser.add_argument(
        "--ask", type=int, default=64, metavar="MIB", help="how much is asked for (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each arm is asked (default: %(default)s)")
    parser.add_argument("--stops", type=int, default=20, help="how often each arm is stopped (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(ARMS), help="arms in turn (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT / NAME,
        metavar="DIR",
        help="where the results go (default: lab/out/swap-reclaim)",
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(ARMS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    if "patched" in arms:
        patched.build(patched.RELEASE)
    setting = {name: vars(arguments)[name] for name in ("mem", "mb_s", "fill", "ask")}
    series = {"patched": patched.key(patched.RELEASE)} if "patched" in arms else {}
    runs = Runs(NAME, identity("6.12") | series | setting, arguments.fresh, arguments.out)

    asked: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    stopped: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: ask(arguments, ARMS[arm]))
            asked[arm].append(measured)
            progress(
                f"{NAME}: {arm}: {sent_ratio(measured):.2f} of what was asked for sent, in {seconds(measured):.1f} s"
            )
    for arm in arms:
        guests = 0
        while len(stopped[arm]) < arguments.stops:
            guests += 1
            if guests > 3 + arguments.stops:
                raise GuestError(f"{arm}: only {len(stopped[arm])} writes were stopped in {guests - 1} guests")
            stopped[arm] += runs.run(
                f"stops-{arm}-{guests:02}", lambda name: {"stops": stop(arguments, ARMS[arm], guests)}
            )["stops"]
            progress(
                f"{NAME}: {arm}: stopped in " + ", ".join(f"{milliseconds(one):.1f}" for one in stopped[arm]) + " ms"
            )
        del stopped[arm][arguments.stops :]

    guest = {
        "mem_mib": arguments.mem,
        "disk_mb_s": arguments.mb_s,
        "swap": "disk",
        "fill_percent": arguments.fill,
        "asked_mib": arguments.ask,
    }
    result = runs.finish(guest, arguments.pairs, metrics(asked, stopped))
    plots = draw(asked, stopped, runs.directory, guest)
    command = (
        f"lab/run swap-reclaim --mem {arguments.mem} --mb-s {arguments.mb_s:g} --fill {arguments.fill} --ask {arguments.ask}"
        f" --pairs {arguments.pairs} --stops {arguments.stops} --arms {arguments.arms}"
    )
    write_report(runs.directory, "memory.swap.reclaim", __doc__ or "", command, result, plots)
    return result


@contextmanager
def loaded(arguments: argparse.Namespace, arm: Arm) -> Iterator[Guest]:
    """A guest whose background group holds much, with the arm's file."""
    with Guest(arm.kernel, arguments.mem, Disk(2 * arguments.mem, arguments.mb_s)) as guest:
        if arm.mounted:
            prepare(guest)
            mount(guest, group="omr.service")
        guest.group(GROUP)
        guest.spawn(["omr-testkit", "fill", f"{arguments.fill}%"], group=GROUP).line_with("ready", timeout=300)
        yield guest


def ask(arguments: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """One write, to its end."""
    with loaded(arguments, arm) as guest:
        before, cpu = guest.vmstat(), system_time(guest)
        current = guest.group_value(GROUP)
        written = guest.run(["omr-testkit", "write", arm.file, f"{arguments.ask}M"], group="writer", timeout=300).json()
        freed = current - guest.group_value(GROUP)
        guest.shell("sleep 3")  # what is still on its way counts, too
        after = guest.vmstat()
        return {
            "asked": arguments.ask * MIB,
            "freed": freed,
            "sent": (after["pswpout"] - before["pswpout"]) * 4096,
            "system_s": system_time(guest) - cpu,
            "written": written,
        }


def system_time(guest: Guest) -> float:
    """CPU time in the kernel of all groups, in seconds: the writer's, and the server's where there is one."""
    text = guest.read("/sys/fs/cgroup/cpu.stat")
    return int(dict(line.split() for line in text.splitlines())["system_usec"]) / 1e6


def stop(arguments: argparse.Namespace, arm: Arm, seed: int) -> list[dict[str, Any]]:
    """Writes for as much as there is, each ended by a signal at a random time; while there is enough to take."""
    chance = random.Random(seed)
    stops = []
    with loaded(arguments, arm) as guest:
        while len(stops) < arguments.stops and guest.group_value(GROUP) > ENOUGH:
            after = chance.uniform(0.2, 1.2)
            # memory.reclaim does not know "max".
            command = ["omr-testkit", "write", arm.file, f"{arguments.mem}M", "--stop-after", f"{after * 1000:.0f}ms"]
            written = guest.run(command, group="writer", timeout=300).json()
            if written["stopped_ns"]:
                stops.append(written)
    return stops


def sent_ratio(measured: dict[str, Any]) -> float:
    return measured["sent"] / measured["asked"]


def seconds(measured: dict[str, Any]) -> float:
    return (measured["written"]["ended_ns"] - measured["written"]["began_ns"]) / 1e9


def milliseconds(stopped: dict[str, Any]) -> float:
    """From the signal until the write has returned."""
    return max(0.0, (stopped["ended_ns"] - stopped["stopped_ns"]) / 1e6)


def metrics(asked: dict[str, list[dict[str, Any]]], stopped: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for arm in asked:
        found[f"sent_ratio_{arm}"] = Metric(
            [sent_ratio(one) for one in asked[arm]], "x", GOALS.get(f"sent_ratio_{arm}")
        )
        found[f"freed_ratio_{arm}"] = Metric([one["freed"] / one["asked"] for one in asked[arm]], "x")
        found[f"write_s_{arm}"] = Metric([seconds(one) for one in asked[arm]], "s")
        found[f"system_s_{arm}"] = Metric([one["system_s"] for one in asked[arm]], "s")
        times = [milliseconds(one) for one in stopped[arm]]
        found[f"stop_p50_ms_{arm}"] = Metric([quantile(times, 0.5)], "ms")
        found[f"stop_p99_ms_{arm}"] = Metric([quantile(times, 0.99)], "ms", GOALS.get(f"stop_p99_ms_{arm}"))
    return found


def draw(
    asked: dict[str, list[dict[str, Any]]],
    stopped: dict[str, list[dict[str, Any]]],
    directory: Path,
    guest: dict[str, Any],
) -> dict[str, str]:
    figure, (left, right) = canvas(columns=2, width=11, height=3.4)
    rows = list(reversed(list(asked)))
    for row, arm in enumerate(rows):
        values = [one["sent"] / MIB for one in asked[arm]]
        middle = quantile(values, 0.5)
        left.barh(row, middle, color=ARMS[arm].colour, height=0.6)
        left.errorbar(middle, row, xerr=[[middle - min(values)], [max(values) - middle]], color="#222222", capsize=3)
        left.annotate(f"{middle:.0f}", (max(values), row), xytext=(6, 0), textcoords="offset points", va="center")
        times = [max(0.1, milliseconds(one)) for one in stopped[arm]]
        right.scatter(times, [row + offset for offset in spread(len(times))], s=14, color=ARMS[arm].colour)
    left.axvline(guest["asked_mib"], color="#222222", linestyle="--", linewidth=1)
    left.set_yticks(range(len(rows)), [ARMS[arm].label for arm in rows])
    left.set_xlim(0, 1.15 * max(one["sent"] / MIB for arm in asked for one in asked[arm]))
    left.set_xlabel("MiB sent to swap; dashed: asked for")
    left.set_title(f"{guest['asked_mib']} MiB wanted, disk {guest['disk_mb_s']:g} MB/s")
    right.set_xscale("log")
    right.axvline(100, color="#222222", linestyle="--", linewidth=1)
    right.set_yticks(range(len(rows)), [""] * len(rows))
    right.set_ylim(-0.5, len(rows) - 0.5)
    right.set_xlabel("ms from the signal to the end of the write; dashed: 100")
    right.set_title("Stopping it, at a random time")
    save(figure, directory / "swap-reclaim.png")
    return {
        "swap-reclaim.png": "What is sent to the swap disk for what was asked for (median, and the range); how soon a signal ends a write."
    }


def spread(count: int) -> list[float]:
    """Places side by side, so that equal values are seen."""
    return [0.5 * (index / max(1, count - 1) - 0.5) for index in range(count)]
