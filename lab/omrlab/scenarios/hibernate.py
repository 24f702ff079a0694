"""Fill the memory, leave the machine idle, hibernate, resume, verify every byte; with omr's daemon running and without."""

import argparse
import signal
import time
from pathlib import Path
from typing import Any

from ..daemon import Daemon
from ..guest import MIB, Disk, Guest, Hibernation
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress

NAME = "hibernate"

# The seed's README: 8 GB VM, disk of 100 MB/s, 85 % filled, 60 s idle, default image_size.
SEED = {"hibernate": (49.07, 3.40), "resume": (18.35, 7.13)}

LOAD = "load"

ROOT_FILE = "/sys/fs/cgroup/memory.swap.reclaim"

LABELS = {"off": "without omr", "on": "with omr", "by-hand": "by hand", "seed": "the original way"}
"""`seed` writes `max` to the root's memory.swap.reclaim, as the original did: it needs the patched kernel, 6.12-omr."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=2048, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=25, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--fill", type=int, default=85, metavar="PERCENT", help="memory the load fills (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=10, metavar="S", help="idle time before hibernation (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each arm runs (default: %(default)s)")
    parser.add_argument(
        "--arms", default="off,on", help="arms in turn, of off, on, by-hand, seed (default: %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/hibernate)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in ("mem", "mb_s", "fill", "idle")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        # A B, B A, ...: what drifts with time falls on both arms.
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: measure(arguments, arm, runs.raw / name))
            results[arm].append(measured)
            progress(f"{NAME}: {arm}: hibernate {measured['hibernate_s']:.1f} s, resume {measured['resume_s']:.1f} s")

    guest = {"mem_mib": arguments.mem, "disk_mb_s": arguments.mb_s, "swap": "disk", "fill_percent": arguments.fill}
    result = runs.finish(guest, arguments.pairs, metrics(results), arms=medians(results))
    plots = draw(results, runs.directory, guest)
    command = (
        f"lab/run hibernate --kernel {arguments.kernel} --mem {arguments.mem} --mb-s {arguments.mb_s:g}"
        f" --fill {arguments.fill} --idle {arguments.idle:g} --pairs {arguments.pairs} --arms {arguments.arms}"
    )
    write_report(runs.directory, "Hibernation", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace, arm: str, raw: Path) -> dict[str, Any]:
    """One run of one arm in a guest of its own."""
    with Guest(arguments.kernel, arguments.mem, Disk(2 * arguments.mem, arguments.mb_s)) as guest:
        guest.group(LOAD)
        record = guest.spawn(["omr-testkit", "record", LOAD], group="init.scope")
        daemon = Daemon(guest) if arm == "on" else None
        load = guest.spawn(["omr-testkit", "fill", f"{arguments.fill}%"], group=LOAD)
        filled = load.line_with("ready", timeout=300)
        prepared = prepare(guest, arm, daemon, filled["bytes"], arguments)
        guest.shell(f"sleep {arguments.idle}", timeout=arguments.idle + 60)
        before = guest.meminfo()
        timeline = record.lines()
        record.kill(signal.SIGKILL)
        ledger = daemon.ledger() if daemon else []

        round_trip: Hibernation = guest.hibernate_and_resume()
        guest.throttle_swap(None)  # the verification is not timed
        load.kill(signal.SIGUSR1)
        verified = load.line_with("verified", timeout=900)
        raw.with_suffix(".console.txt").write_text(guest.console())
        return {
            "arm": arm,
            "boot_s": guest.boot_s,
            "hibernate_s": round_trip.hibernate_s,
            "resume_s": round_trip.resume_s,
            "image": round_trip.image,
            "filled": filled,
            "prepared": prepared,
            "verified": verified,
            "meminfo": before,
            "timeline": timeline,
            "ledger": ledger,
        }


def prepare(
    guest: Guest, arm: str, daemon: Daemon | None, filled: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """What happens between filling and hibernating."""
    # Four times what the disk needs for everything, and time to find out that the machine is idle: a daemon that has not
    # finished by then hibernates with what it has done.
    limit = 120 + 4 * filled / (arguments.mb_s * 1e6)
    if arm == "by-hand":
        return guest.run(["omr-testkit", "by-hand", LOAD, str(filled)], timeout=limit).json()
    if arm == "seed":
        return guest.run(["omr-testkit", "write", ROOT_FILE, "max"], group="init.scope", timeout=limit).json()
    if daemon:
        began = time.monotonic()
        # Asking is work that begins, to the daemon: seldom, and little.
        while not (finished := swept(guest, daemon, filled)) and time.monotonic() - began < limit:
            time.sleep(4)
        return {"finished": finished, "seconds": time.monotonic() - began}
    return {}


def swept(guest: Guest, daemon: Daemon, filled: int) -> bool:
    """Whether a sweep took all there was."""
    if guest.group_value(LOAD) > 0.1 * filled:
        return False
    return any(entry["end"] in ("complete", "floor", "futile") for entry in daemon.sweeps(LOAD))


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """Ratios are taken pair by pair."""
    found: dict[str, Metric] = {}
    goals = {"hibernate": ">= 25", "resume": ">= 5.5"}
    for arm, suffix in (("on", ""), ("by-hand", "_by_hand"), ("seed", "_seed")):
        if arm not in results or "off" not in results:
            continue
        for what, goal in goals.items():
            ratios = [off[f"{what}_s"] / other[f"{what}_s"] for off, other in zip(results["off"], results[arm])]
            before, after = SEED[what]
            found[f"{what}_speedup{suffix}"] = Metric(
                ratios, "ratio", goal if arm == "on" else None, round(before / after, 1)
            )
    for arm, runs in results.items():
        suffix = arm.replace("-", "_")
        for what in ("hibernate", "resume"):
            found[f"{what}_{suffix}"] = Metric([run[f"{what}_s"] for run in runs], "s")
        found[f"image_{suffix}"] = Metric([run["image"]["image_kib"] / 1024 for run in runs], "MiB")
    errors = [sum(run["verified"]["errors"] for run in pair) for pair in zip(*results.values())]
    found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
    return found


def medians(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        arm: {what: Metric([run[what] for run in runs], "s").json() for what in ("hibernate_s", "resume_s")}
        for arm, runs in results.items()
    }


def draw(results: dict[str, list[dict[str, Any]]], directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    figure, (bars, memory) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
    draw_times(bars, results)
    draw_memory(memory, results)
    figure.suptitle(
        f"Hibernating a machine whose memory is {guest['fill_percent']} % full"
        f" ({guest['mem_mib'] / 1024:g} GiB, disk {guest['disk_mb_s']:g} MB/s)",
        x=0.01, ha="left", fontsize=12, fontweight="bold",
    )  # fmt: skip
    save(figure, directory / "hibernate.png")
    return {
        "hibernate.png": "Left: time to hibernate and to resume, each run a dot, the bar their median."
        " Right: memory in use from boot until hibernation."
    }


def draw_times(axes: Any, results: dict[str, list[dict[str, Any]]]) -> None:
    width = 0.8 / len(results)
    for number, (arm, runs) in enumerate(results.items()):
        for place, what in enumerate(("hibernate", "resume")):
            metric = Metric([run[f"{what}_s"] for run in runs], "s")
            x = place - 0.4 + width * (number + 0.5)
            axes.bar(x, metric.value, width * 0.92, color=COLOURS[arm], label=LABELS[arm] if place == 0 else None)
            axes.plot([x] * len(runs), metric.values, ".", color="#333333", markersize=4)
            text = f"{metric.value:.1f} s"
            if arm != "off" and "off" in results:
                pairs = zip(results["off"], runs)
                ratio = Metric([off[f"{what}_s"] / run[f"{what}_s"] for off, run in pairs], "ratio")
                text += f"\n{ratio.value:.1f} x"
            axes.annotate(
                text, (x, max(metric.values)), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=9
            )
    before, after = SEED["hibernate"]
    axes.set_xticks([0, 1], [
        f"hibernate\n(seed: {before / after:.1f} x)",
        f"resume\n(seed: {SEED['resume'][0] / SEED['resume'][1]:.1f} x)",
    ])  # fmt: skip
    axes.set_ylabel("seconds")
    axes.set_title("Time")
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.35 * axes.dataLim.ymax)  # room for the figures and the legend above the bars
    axes.legend(loc="upper right", ncols=len(results))


def draw_memory(axes: Any, results: dict[str, list[dict[str, Any]]]) -> None:
    for arm, runs in results.items():
        timeline = runs[0]["timeline"]
        start = timeline[0]["monotonic_ns"]
        seconds = [(line["monotonic_ns"] - start) / 1e9 for line in timeline]
        used = [(line["MemTotal"] - line["MemFree"]) / MIB for line in timeline]
        axes.plot(seconds, used, color=COLOURS[arm], linewidth=2, label=f"memory in use, {LABELS[arm]}")
        axes.plot(seconds[-1], used[-1], "o", color=COLOURS[arm])
        axes.annotate("hibernates", (seconds[-1], used[-1]), (6, 7), textcoords="offset points", ha="right", fontsize=8)
    total = next(iter(results.values()))[0]["timeline"][0]["MemTotal"] / MIB
    for level, label in ((total, "all memory"), (0.4 * total, "default image_size")):
        axes.axhline(level, color="#777777", linewidth=1, linestyle=":")
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes.annotate(label, (1, level), (-3, 3), fontsize=8, color="#777777", **place)
    axes.set_ylim(0, total * 1.3)
    axes.set_xlabel("seconds since boot")
    axes.set_ylabel("MiB")
    axes.set_title("Memory before hibernation")
    axes.legend(loc="upper right", fontsize=8)
