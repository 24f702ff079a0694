"""Fill the memory, leave the machine idle, migrate it live over a slow link, verify every byte; prepared by omr and not."""

import argparse
import dataclasses
import signal
from pathlib import Path
from typing import Any

from ..guest import MIB, Disk, Guest, GuestError
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress

NAME = "migrate"

LOAD = "load"

LABELS = {"off": "without omr", "on": "with omr", "by-hand": "by hand"}

PARTIAL = 4
"""omr's exit code for less than asked: measured all the same."""

GOALS = {"migrate_time_speedup": ">= 4", "migrate_bytes_ratio": ">= 5"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=25, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--link", type=float, default=25, metavar="MB/S", help="speed of the link (default: %(default)s)"
    )
    parser.add_argument(
        "--fill", type=int, default=85, metavar="PERCENT", help="memory the load fills (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=10, metavar="S", help="idle time before migration (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each arm runs (default: %(default)s)")
    parser.add_argument("--arms", default="off,on", help="arms in turn, of off, on, by-hand (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/migrate)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in ("mem", "mb_s", "link", "fill", "idle")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        # A B, B A, ...: what drifts with time falls on both arms.
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: measure(arguments, arm))
            results[arm].append(measured)
            migration = measured["migration"]
            progress(f"{NAME}: {arm}: {migration['total_s']:.1f} s, {migration['sent'] / MIB:.0f} MiB sent")

    guest = {
        "mem_mib": arguments.mem,
        "disk_mb_s": arguments.mb_s,
        "link_mb_s": arguments.link,
        "swap": "disk",
        "fill_percent": arguments.fill,
    }
    result = runs.finish(guest, arguments.pairs, metrics(results))
    plots = draw(results, runs.directory, guest)
    command = (
        f"lab/run migrate --kernel {arguments.kernel} --mem {arguments.mem} --mb-s {arguments.mb_s:g} --link {arguments.link:g}"
        f" --fill {arguments.fill} --idle {arguments.idle:g} --pairs {arguments.pairs} --arms {arguments.arms}"
    )
    write_report(runs.directory, "Live migration", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace, arm: str) -> dict[str, Any]:
    """One run of one arm in a guest of its own."""
    with Guest(arguments.kernel, arguments.mem, Disk(2 * arguments.mem, arguments.mb_s), balloon=True) as guest:
        guest.group(LOAD)
        load = guest.spawn(["omr-testkit", "fill", f"{arguments.fill}%"], group=LOAD)
        filled = load.line_with("ready", timeout=300)
        guest.shell(f"sleep {arguments.idle}", timeout=arguments.idle + 60)
        resident = guest.host_resident()
        # Four times what the disk needs for everything, and what waiting for the reports takes.
        limit = 120 + 4 * filled["bytes"] / (arguments.mb_s * 1e6)
        prepared = prepare(guest, arm, filled["bytes"], limit)
        before = {
            "meminfo": guest.meminfo(),
            "buddyinfo": guest.read("/proc/buddyinfo"),
            "host_resident": guest.host_resident(),
        }
        migration = guest.migrate(arguments.link, timeout=60 + 4 * arguments.mem * MIB / (arguments.link * 1e6))
        guest.throttle_swap(None)  # the verification is not timed
        load.kill(signal.SIGUSR1)
        return {
            "arm": arm,
            "filled": filled,
            "prepared": prepared,
            "host_resident_filled": resident,
            "before": before,
            "migration": dataclasses.asdict(migration),
            "verified": load.line_with("verified", timeout=900),
        }


def prepare(guest: Guest, arm: str, filled: int, limit: float) -> dict[str, Any]:
    """What happens between filling and migrating."""
    began = guest.monotonic_ns()
    if arm == "by-hand":
        guest.run(["omr-testkit", "by-hand", LOAD, str(filled)], timeout=limit)
        guest.shell("echo 1 > /proc/sys/vm/compact_memory; sleep 20", timeout=limit)
        ended: dict[str, Any] = {}
    elif arm == "on":
        omr = guest.run(["omr", "prepare", "migrate", "--json"], group="omr.service", timeout=limit, check=False)
        if omr.code not in (0, PARTIAL):
            raise GuestError(f"omr prepare ended with {omr.code}: {omr.stderr}")
        ended = {"code": omr.code, "stdout": omr.stdout, "stderr": omr.stderr}
    else:
        return {}
    return {"seconds": (guest.monotonic_ns() - began) / 1e9, **ended}


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """Ratios are taken pair by pair."""
    found: dict[str, Metric] = {}
    for arm, suffix in (("on", ""), ("by-hand", "_by_hand")):
        if arm not in results or "off" not in results:
            continue
        for name, field in (("migrate_time_speedup", "total_s"), ("migrate_bytes_ratio", "sent")):
            pairs = zip(results["off"], results[arm])
            ratios = [off["migration"][field] / other["migration"][field] for off, other in pairs]
            found[f"{name}{suffix}"] = Metric(ratios, "ratio", GOALS[name] if arm == "on" else None)
    for arm, runs in results.items():
        suffix = arm.replace("-", "_")
        found[f"migrate_{suffix}"] = Metric([run["migration"]["total_s"] for run in runs], "s")
        found[f"downtime_{suffix}"] = Metric([1000 * run["migration"]["downtime_s"] for run in runs], "ms")
        found[f"sent_{suffix}"] = Metric([run["migration"]["sent"] / MIB for run in runs], "MiB")
        if all(run["prepared"] for run in runs):
            found[f"prepare_{suffix}"] = Metric([run["prepared"]["seconds"] for run in runs], "s")
    errors = [sum(run["verified"]["errors"] for run in pair) for pair in zip(*results.values())]
    found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
    return found


def draw(results: dict[str, list[dict[str, Any]]], directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    figure, (times, sent, course) = canvas(columns=3, width=12, height=4.2, gridspec_kw={"width_ratios": [1, 1, 1.8]})
    draw_bars(times, results, "total_s", 1, "s", "Time")
    draw_bars(sent, results, "sent", MIB, "MiB", "Sent")
    draw_course(course, results, guest)
    figure.suptitle(
        f"Migrating a machine whose memory is {guest['fill_percent']} % full"
        f" ({guest['mem_mib'] / 1024:g} GiB, link {guest['link_mb_s']:g} MB/s)",
        x=0.01, ha="left", fontsize=12, fontweight="bold",
    )  # fmt: skip
    save(figure, directory / "migrate.png")
    return {
        "migrate.png": "Left: how long the migration took and how much was sent, each run a dot, the bar their median."
        " Right: what had been sent when, first run of each arm."
    }


def draw_bars(
    axes: Any, results: dict[str, list[dict[str, Any]]], field: str, divisor: float, unit: str, title: str
) -> None:
    values = {arm: Metric([run["migration"][field] / divisor for run in runs], unit) for arm, runs in results.items()}
    for place, (arm, metric) in enumerate(values.items()):
        axes.bar(place, metric.value, 0.75, color=COLOURS[arm])
        axes.plot([place] * len(metric.values), metric.values, ".", color="#333333", markersize=4)
        text = f"{metric.value:.3g} {unit}"
        if arm != "off" and "off" in values:
            text += f"\n{values['off'].value / metric.value:.1f} x"
        axes.annotate(
            text, (place, max(metric.values)), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    axes.set_xticks(range(len(values)), [LABELS[arm] for arm in values])
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.2 * axes.dataLim.ymax)  # room for the figures above the bars


def draw_course(axes: Any, results: dict[str, list[dict[str, Any]]], guest: dict[str, Any]) -> None:
    for arm, runs in results.items():
        points = runs[0]["migration"]["progress"]
        axes.plot(
            [when for when, _ in points],
            [sent / MIB for _, sent in points],
            color=COLOURS[arm],
            linewidth=2,
            label=LABELS[arm],
        )
        axes.plot(points[-1][0], points[-1][1] / MIB, "o", color=COLOURS[arm])
    axes.axhline(guest["mem_mib"], color="#777777", linewidth=1, linestyle=":")
    axes.annotate(
        "all memory", (1, guest["mem_mib"]), (-3, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", fontsize=8, color="#777777",
    )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * guest["mem_mib"])
    axes.set_xlabel("seconds since the migration began")
    axes.set_ylabel("MiB sent")
    axes.set_title("Course")
    axes.legend(loc="lower right")
