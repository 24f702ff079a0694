"""The seed's table: hibernate and resume a full machine with a swap file, image_size as it is and 0; with omr and without."""

import argparse
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..binaries import build
from ..daemon import CLASSES, Daemon
from ..debian import DebianGuest
from ..guest import MIB, Guest, SwapFile
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress
from .hibernate import prepare as prepare_by_daemon

NAME = "hibernate-seed"

LOAD = "load"
FOREGROUND = "fg"
WORKING_SET = 200 * MIB

LABELS = {
    "off": "without omr",
    "drop-caches": "caches dropped",
    "on": "omr daemon",
    "prepare": "omr prepare --target min",
    "by-hand": "by hand",
}

SIZES = ("default", "zero")
"""/sys/power/image_size."""

HOOK = ("sh", "-c", "omr prepare snapshot && exec omr-testkit hibernate")
"""What the package's hook does before every hibernation, and its time counted as such."""

# The seed's README: seconds on 5.9 and on 5.9 with its patch and daemon; 8 GB, 100 MB/s.
SEED = {
    ("hibernate", "default"): (49.07, 3.40),
    ("resume", "default"): (18.35, 7.13),
    ("hibernate", "zero"): (71.55, 4.72),
    ("resume", "zero"): (7.49, 7.41),
}

GOALS = {
    2048: {("hibernate", "default"): 30, ("resume", "default"): 5, ("hibernate", "zero"): 35, ("resume", "zero"): 1},
    8192: {("hibernate", "default"): 20, ("resume", "default"): 4, ("hibernate", "zero"): 20, ("resume", "zero"): 1},
}
"""By the guest's memory in MiB: with another disk than 25 and 100 MB/s they mean little."""

HIBERNATION_TIMEOUT = 1800


@dataclass(frozen=True)
class Case:
    """What one run is about."""

    workload: str
    """`seed`, `mixed`, `working-set` or `unloaded`."""
    size: str
    arm: str

    def __str__(self) -> str:
        return f"{self.workload}-{self.size}-{self.arm}"


UNLOADED = Case("unloaded", "default", "off")
FAULTING = Case("working-set", "zero", "faulting")
WARMED = Case("working-set", "zero", "warm")

Results = dict[Case, list[dict[str, Any]]]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--guest", choices=("debian", "mini"), default="debian", help="what boots (default: %(default)s)"
    )
    parser.add_argument(
        "--mem", type=int, default=2048, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument("--mb-s", type=float, default=25, help="speed of its disk in MB/s (default: %(default)s)")
    parser.add_argument(
        "--iops", type=int, metavar="N", help="requests a second it answers at most (default: as many as come)"
    )
    parser.add_argument(
        "--fill", type=int, default=85, metavar="PERCENT", help="memory the load fills (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=10, metavar="S", help="idle time before hibernation (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="how often each case runs (default: %(default)s)")
    parser.add_argument(
        "--arms", default="off,drop-caches,on,prepare", help=f"of {', '.join(LABELS)} (default: %(default)s)"
    )
    parser.add_argument("--sizes", default="default,zero", help="image sizes (default: %(default)s)")
    parser.add_argument("--workloads", default="seed,mixed", help="of seed, mixed, working-set (default: %(default)s)")
    parser.add_argument(
        "--order",
        choices=("random", "sequential"),
        default="random",
        help="of working-set's touches (default: %(default)s)",
    )
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help=f"where the results go (default: lab/out/{NAME})"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    cases = chosen(arguments)
    setting = {name: vars(arguments)[name] for name in ("guest", "mem", "mb_s", "iops", "fill", "idle", "order")}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: Results = {case: [] for case in cases}
    for pair in range(1, arguments.pairs + 1):
        # A B, B A, ...: what drifts with time falls on all cases.
        for case in cases if pair % 2 else reversed(cases):
            measured = runs.run(f"pair-{pair:02}-{case}", lambda name: measure(arguments, case, runs.raw / name))
            results[case].append(measured)
            progress(f"{NAME}: {case}: hibernate {measured['hibernate_s']:.1f} s, resume {measured['resume_s']:.1f} s")

    guest = {
        "mem_mib": arguments.mem,
        "disk_mb_s": arguments.mb_s,
        "swap": "file",
        "fill_percent": arguments.fill,
        "system": arguments.guest,
    }
    result = runs.finish(guest, arguments.pairs, metrics(results, arguments.mem))
    plots = draw(results, runs.directory, guest)
    command = (
        f"lab/run {NAME} --kernel {arguments.kernel} --guest {arguments.guest} --mem {arguments.mem} --mb-s {arguments.mb_s:g}"
        f" --fill {arguments.fill} --idle {arguments.idle:g} --pairs {arguments.pairs} --arms {arguments.arms}"
        f" --sizes {arguments.sizes} --workloads {arguments.workloads} --order {arguments.order}"
        + (f" --iops {arguments.iops}" if arguments.iops else "")
    )
    write_report(runs.directory, "The seed's table", __doc__ or "", command, result, plots)
    return result


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases of a pair, in their order."""
    arms, sizes, workloads = (vars(arguments)[name].split(",") for name in ("arms", "sizes", "workloads"))
    for given, known in ((arms, LABELS), (sizes, SIZES), (workloads, ("seed", "mixed", "working-set"))):
        if unknown := set(given) - set(known):
            raise SystemExit(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    cases = [UNLOADED]
    if "seed" in workloads:
        cases += [Case("unloaded", size, "off") for size in sizes if size != UNLOADED.size]
        cases += [Case("seed", size, arm) for size in sizes for arm in arms]
    if "mixed" in workloads:
        cases += [Case("mixed", "default", arm) for arm in arms]
    if "working-set" in workloads:
        cases += [FAULTING, WARMED]
    return cases


def measure(arguments: argparse.Namespace, case: Case, raw: Path) -> dict[str, Any]:
    """One run of one case in a guest of its own."""
    with booted(arguments) as guest:
        began = time.monotonic()
        if isinstance(guest, DebianGuest):
            guest.settle()
        boot_s = guest.boot_s + time.monotonic() - began
        if case.workload == "unloaded":
            return {"case": str(case), "boot_s": boot_s, "verified": {"errors": 0}} | hibernate(guest, case, raw)

        guest.throttle_swap(None)  # filling is not timed
        guest.group(LOAD)
        daemon = None
        if case.arm == "on" or case.workload == "working-set":
            guest.shell("mkdir -p /etc/omr /var/lib/omr /run/omr")
            daemon = Daemon(guest, config=CLASSES)
        loads = start(guest, case, arguments)
        guest.throttle_swap(arguments.mb_s)
        filled = sum(load.line_with("ready")["bytes"] for load in loads)
        prepared = prepare(guest, case, daemon, filled, arguments)
        measured = {
            "case": str(case),
            "boot_s": boot_s,
            "filled": filled,
            "prepared": prepared,
            "meminfo": guest.meminfo(),
        }
        if case == WARMED:
            guest.run(["omr", "warm", "--record"])
        measured |= hibernate(guest, case, raw)
        if case.workload == "working-set":
            measured["working_set"] = come_back(guest, case, loads.pop())
        guest.throttle_swap(None)  # neither is the verification
        for load in loads:
            load.kill(signal.SIGUSR1)
        errors = sum(load.line_with("verified", timeout=1800)["errors"] for load in loads)
        errors += measured.get("working_set", {}).get("errors", 0)
        return measured | {"verified": {"errors": errors}, "ledger": daemon.ledger() if daemon else []}


def booted(arguments: argparse.Namespace) -> Guest:
    """As in the seed: as much swap as memory, in a file. Beside it is room for the file of the mixed workload."""
    swap = SwapFile(arguments.mem, arguments.mb_s, room_mib=64 + arguments.mem, iops=arguments.iops)
    if arguments.guest == "mini":
        return Guest(arguments.kernel, arguments.mem, swap)
    return DebianGuest(arguments.mem, swap, files={"omr": build("omr")}, kernel_release=arguments.kernel)


def start(guest: Guest, case: Case, arguments: argparse.Namespace) -> list[Any]:
    """The loads of a workload, filled."""
    anonymous = arguments.fill * arguments.mem * MIB // 100
    words = ["omr-testkit", "fill"]
    loads = []
    if case.workload == "mixed":
        # 1 GiB of page cache in a guest of 2 GiB; of the rest half can be compressed, and a fifth is used all the time.
        file = arguments.mem * MIB // 2
        anonymous -= file
        directory = "/swap" if arguments.guest == "mini" else "/var/tmp"
        words += ["--compressible", "50", "--hot", "20", "--file", f"{directory}/file", "--file-amount", str(file)]
        loads.append(guest.spawn([*words, str(anonymous)], group=LOAD))
    elif case.workload == "working-set":
        loads.append(guest.spawn([*words, str(anonymous - WORKING_SET)], group=LOAD))
        guest.group(FOREGROUND)
        touch = ["omr-testkit", "touch", str(WORKING_SET), "--order", arguments.order]
        loads.append(guest.spawn(touch, group=FOREGROUND))
    else:
        loads.append(guest.spawn([*words, str(anonymous)], group=LOAD))
    for load in loads:
        load.line_with("ready", timeout=900)
    return loads


def prepare(
    guest: Guest, case: Case, daemon: Daemon | None, filled: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """What happens between filling and hibernating, the idle time included."""
    prepared: dict[str, Any] = {}
    if daemon:
        if case.workload == "working-set":
            filled -= WORKING_SET
        prepared = prepare_by_daemon(guest, "on", daemon, filled, arguments)
    elif case.arm == "by-hand":
        prepared = prepare_by_daemon(guest, "by-hand", None, filled, arguments)
    guest.shell(f"sleep {arguments.idle}", timeout=arguments.idle + 60)
    if case.arm == "drop-caches":
        guest.shell("sync; echo 3 > /proc/sys/vm/drop_caches", timeout=300)
    if case.arm == "prepare":
        began = time.monotonic()
        limit = 120 + 4 * filled / (arguments.mb_s * 1e6)
        ran = guest.run(
            ["omr", "prepare", "hibernate", "--target", "min", "--deadline", f"{limit:.0f}s"],
            timeout=limit + 60,
            check=False,
        )
        if ran.code not in (0, 4):
            raise RuntimeError(f"omr prepare hibernate ended with {ran.code}: {ran.stderr}")
        prepared = {"seconds": time.monotonic() - began, "code": ran.code, "stdout": ran.stdout, "stderr": ran.stderr}
    return prepared


def hibernate(guest: Guest, case: Case, raw: Path) -> dict[str, Any]:
    if case.size == "zero":
        guest.write("/sys/power/image_size", "0")
    argv = HOOK if case.arm in ("on", "prepare") else ("omr-testkit", "hibernate")
    round_trip = guest.hibernate_and_resume(HIBERNATION_TIMEOUT, argv)
    raw.with_suffix(".console.txt").write_text(guest.console())
    return {"hibernate_s": round_trip.hibernate_s, "resume_s": round_trip.resume_s, "image": round_trip.image}


def come_back(guest: Guest, case: Case, foreground: Any) -> dict[str, Any]:
    """After resume, the foreground program touches its working set."""
    resident = guest.group_value(FOREGROUND)
    began = time.monotonic()
    if case.arm == "warm":
        ran = guest.run(["omr", "warm", FOREGROUND, "--ignore-busy"], timeout=600, check=False)
        if ran.code not in (0, 4):
            raise RuntimeError(f"omr warm ended with {ran.code}: {ran.stderr}")
    warm_s = time.monotonic() - began if case.arm == "warm" else 0.0
    foreground.kill(signal.SIGUSR1)
    touched = foreground.line_with("touched", timeout=900)
    return {
        "resident_after_resume": resident,
        "warm_s": warm_s,
        "touch_s": touched["seconds"],
        "major_faults": touched["major_faults"],
        "errors": touched["errors"],
    }


def metrics(results: Results, mem_mib: int) -> dict[str, Metric]:
    """Ratios are taken pair by pair."""
    found: dict[str, Metric] = {}

    def values(case: Case, what: str) -> list[float]:
        return [run["image"]["image_kib"] / 1024 if what == "image" else run[f"{what}_s"] for run in results[case]]

    def ratios(above: list[float], below: list[float]) -> list[float]:
        return [first / second for first, second in zip(above, below)]

    for case in results:
        off = Case(case.workload, case.size, "off")
        if case.workload not in ("seed", "mixed") or case == off or off not in results:
            continue
        suffix = (case.size if case.workload == "seed" else "mixed") + (
            "" if case.arm == "on" else "_" + case.arm.replace("-", "_")
        )
        for what in ("hibernate", "resume"):
            ours = case.workload == "seed" and case.arm == "on"
            goal = GOALS.get(mem_mib, {}).get((what, case.size)) if ours else None
            before, after = SEED[what, case.size]
            found[f"{what}_speedup_{suffix}"] = Metric(
                ratios(values(off, what), values(case, what)),
                "ratio",
                f">= {goal}" if goal else None,
                round(before / after, 1) if ours else None,
            )
    for arm, suffix in (("on", ""), ("prepare", "_prepare"), ("by-hand", "_by_hand")):
        case = Case("seed", "default", arm)
        if case in results:
            boot = [run["boot_s"] for run in results[case]]
            found[f"resume_over_boot{suffix}"] = Metric(
                ratios(values(case, "resume"), boot), "ratio", None if suffix else "<= 1.25"
            )
            image = ratios(values(case, "image"), values(UNLOADED, "image"))
            found[f"image_over_unloaded{suffix}"] = Metric(image, "ratio", None if suffix else "<= 1.15")
    if WARMED in results:
        back = {
            case: [run["working_set"]["warm_s"] + run["working_set"]["touch_s"] for run in results[case]]
            for case in (FAULTING, WARMED)
        }
        found["warm_speedup"] = Metric(ratios(back[FAULTING], back[WARMED]), "ratio", ">= 3")
        found["back_faulting"] = Metric(back[FAULTING], "s")
        found["back_warm"] = Metric(back[WARMED], "s")
    for case in results:
        name = str(case).replace("-", "_")
        found[f"hibernate_{name}"] = Metric(values(case, "hibernate"), "s")
        found[f"resume_{name}"] = Metric(values(case, "resume"), "s")
        found[f"image_{name}"] = Metric(values(case, "image"), "MiB")
    found["boot"] = Metric([run["boot_s"] for runs in results.values() for run in runs], "s")
    errors = sum(run["verified"]["errors"] for runs in results.values() for run in runs)
    found["content_errors"] = Metric([float(errors)], "words", "= 0")
    return found


def draw(results: Results, directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    plots = (
        draw_tables(results, directory, guest) if any(case.workload in ("seed", "mixed") for case in results) else {}
    )
    return plots | (draw_return(results, directory) if WARMED in results else {})


def draw_return(results: Results, directory: Path) -> dict[str, str]:
    figure, (axes,) = canvas(width=7, height=2.6)
    for place, (case, label, colour) in enumerate(
        ((FAULTING, "by faults", COLOURS["off"]), (WARMED, "after omr warm", COLOURS["on"]))
    ):
        runs = [run["working_set"] for run in results[case]]
        warm, touch = (Metric([run[what] for run in runs], "s") for what in ("warm_s", "touch_s"))
        axes.barh(place, warm.value, color=COLOURS["machine"], label="omr warm" if case == WARMED else None)
        axes.barh(place, touch.value, left=warm.value, color=colour, label=f"use, {label}")
        axes.plot(
            [run["warm_s"] + run["touch_s"] for run in runs], [place] * len(runs), ".", color="#333333", markersize=4
        )
    axes.set_yticks((0, 1), ("by faults", "warmed"))
    axes.invert_yaxis()
    axes.set_xlabel("seconds until the working set was used once, after resume")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", fontsize=8)
    save(figure, directory / "return.png")
    return {
        "return.png": "Time until a program has used its working set once after resume; each run a dot, the bars medians."
    }


def draw_tables(results: Results, directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    groups = {
        label: {case.arm: runs for case, runs in results.items() if (case.workload, case.size) == key}
        for label, key in (
            ("image_size\ndefault", ("seed", "default")),
            ("image_size\n0", ("seed", "zero")),
            ("mixed load\ndefault", ("mixed", "default")),
        )
    }
    groups = {label: arms for label, arms in groups.items() if arms}
    figure, (hibernating, resuming, images) = canvas(columns=3, width=13, height=4.4)
    draw_bars(hibernating, groups, lambda run: run["hibernate_s"], "hibernate", "seconds")
    draw_bars(resuming, groups, lambda run: run["resume_s"], "resume", "seconds")
    draw_bars(images, groups, lambda run: run["image"]["image_kib"] / 1024, "image", "MiB")
    for axes, value, label in (
        (resuming, Metric([run["boot_s"] for run in results[UNLOADED]], "s").value, "boot"),
        (images, Metric([run["image"]["image_kib"] / 1024 for run in results[UNLOADED]], "MiB").value, "never loaded"),
    ):
        axes.axhline(value, color="#777777", linewidth=1, linestyle=":")
        # Between two groups of bars, or at the edge.
        place = (0.5, "center") if len(groups) == 2 else (1, "right")
        axes.annotate(
            label,
            (place[0], value),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha=place[1],
            fontsize=8,
        )
    figure.suptitle(
        f"Hibernating a machine with a swap file ({guest['mem_mib'] / 1024:g} GiB, {guest['fill_percent']} % full,"
        f" disk {guest['disk_mb_s']:g} MB/s)",
        x=0.01, ha="left", fontsize=12, fontweight="bold",
    )  # fmt: skip
    save(figure, directory / "hibernate-seed.png")
    return {
        "hibernate-seed.png": "Time to hibernate, time to resume, size of the image; each run a dot, the bar their median."
        " Dotted: a plain boot of the same guest, and the image of one that never ran a load."
    }


def draw_bars(axes: Any, groups: dict[str, dict[str, list[dict[str, Any]]]], value: Any, title: str, unit: str) -> None:
    arms = [arm for arm in LABELS if any(arm in group for group in groups.values())]
    width = 0.8 / max(1, len(arms))
    for place, group in enumerate(groups.values()):
        for arm, runs in group.items():
            metric = Metric([value(run) for run in runs], unit)
            x = place - 0.4 + width * (arms.index(arm) + 0.5)
            axes.bar(x, metric.value, width * 0.92, color=COLOURS[arm], label=LABELS[arm] if place == 0 else None)
            axes.plot([x] * len(runs), metric.values, ".", color="#333333", markersize=4)
            axes.annotate(
                f"{metric.value:,.0f}" if metric.value >= 100 else f"{metric.value:.3g}",
                (x, max(metric.values)),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.35 * axes.dataLim.ymax)
    axes.legend(loc="upper right", fontsize=8)
