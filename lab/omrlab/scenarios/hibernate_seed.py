"""The seed's table: hibernate and resume a full machine with a swap file, with omr and without.

image_size is the kernel's default, and 0. Further workloads: one with page cache, and a foreground
program that needs its working set after resume.
"""

import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from matplotlib.axes import Axes

from ..binaries import build
from ..daemon import CLASSES, Daemon
from ..debian import DebianGuest
from ..guest import MIB, Guest, Hibernation, Process, SwapFile
from ..paths import REPOSITORY
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..prepare import PARTIAL
from ..results import Metric, MetricJson, progress
from ..scenario import Benchmark, option
from .hibernate import OVER_UNLOADED, ROOT_FILE
from .hibernate import prepare as prepare_by_daemon

LOAD = "load"
FOREGROUND = "fg"
WORKING_SET = 200 * MIB

LABELS = {
    "off": "without omr",
    "drop-caches": "caches dropped",
    "on": "omr daemon",
    "prepare": "omr prepare --target min",
    "by-hand": "by hand",
    "seed": "the original way",
}

PROTOCOLS = ("seed", "finished")
"""`seed`: the machine hibernates `idle` seconds after the load is ready, whatever was reclaimed by
then. `finished`: it hibernates `idle` seconds after the arm has reclaimed all that it could.
"""

SPOT = REPOSITORY / "docs/use/spot.md"
"""Its example is the daemon's only configuration under the protocol `seed`."""

AFTER_BOOT = 120
"""The default of `sweep.after_boot` in seconds. The original's machine had been up for longer."""

NOTICES_IDLE = 5
"""Seconds until `seed` writes. The original's daemon waited, too; its time was not published."""

SIZES = ("default", "zero")
"""/sys/power/image_size."""

HOOK = ("sh", "-c", "omr prepare snapshot && exec omr-guest hibernate")
"""Hibernation after the step of the package's sleep hook. The step's time counts, too."""

SEED = {
    ("hibernate", "default"): (49.07, 3.40),
    ("resume", "default"): (18.35, 7.13),
    ("hibernate", "zero"): (71.55, 4.72),
    ("resume", "zero"): (7.49, 7.41),
}

"""Seconds on 5.9, and on 5.9 with the seed's patch and daemon; 8 GB, 100 MB/s. From its README."""

GOALS = {
    2048: {("hibernate", "default"): 30, ("resume", "default"): 5, ("hibernate", "zero"): 35, ("resume", "zero"): 1},
    8192: {("hibernate", "default"): 20, ("resume", "default"): 4, ("hibernate", "zero"): 20, ("resume", "zero"): 1},
}
"""By the guest's memory in MiB. They are for disks of 25 and of 100 MB/s."""

HIBERNATION_TIMEOUT = 1800


@dataclass(frozen=True)
class Case:
    """The subject of one run."""

    workload: str
    """`seed`, `mixed`, `working-set` or `unloaded`."""
    size: str
    arm: str

    def __str__(self) -> str:
        return f"{self.workload}-{self.size}-{self.arm}"


UNLOADED = Case("unloaded", "default", "off")
FAULTING = Case("working-set", "zero", "faulting")
WARMED = Case("working-set", "zero", "warm")


class WorkingSet(TypedDict):
    """The use of a foreground program's working set after resume."""

    resident_after_resume: int
    warm_s: float
    touch_s: float
    major_faults: int
    errors: int


class Run(TypedDict):
    case: str
    boot_s: float
    hibernate_s: float
    resume_s: float
    image: dict[str, float]
    """The kernel's figures about the image."""
    verified: dict[str, int]
    filled: NotRequired[int]
    left_in_memory: NotRequired[int]
    """Bytes of the load's group when the machine was asked to hibernate."""
    prepared: NotRequired[dict[str, Any]]
    meminfo: NotRequired[dict[str, int]]
    working_set: NotRequired[WorkingSet]
    ledger: NotRequired[list[dict[str, Any]]]


Results = dict[Case, list[Run]]

FIGURES: dict[str, Callable[[Run], float]] = {
    "hibernate": lambda run: run["hibernate_s"],
    "resume": lambda run: run["resume_s"],
    "image": lambda run: run["image"]["image_kib"] / 1024,
}
"""Seconds, seconds, and MiB."""


@dataclass(kw_only=True)
class HibernateSeed(Benchmark):
    name = "hibernate-seed"
    help = "the seed's table: a swap file, image_size default and 0, a mixed load (hours)"
    title = "The seed's table"

    pairs: int = option(5, "how often each case runs", setting=False)
    system: str = option("debian", "system of the guest", flag="--guest", choices=("debian", "mini"))
    mem: int = option(2048, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    iops: int | None = option(None, "requests a second it answers at most (default: no limit)", "N", type=int)
    fill: int = option(85, "memory that the load fills", "PERCENT")
    protocol: str = option("finished", "when the guest hibernates", choices=PROTOCOLS)
    idle: float = option(10, "idle time before hibernation (the original: 60)", "S", least=0)
    compressible: int = option(0, "share of seed's load that can be compressed", "PERCENT", least=0)
    order: str = option("random", "of working-set's touches", choices=("random", "sequential"))
    arms: str = option("off,drop-caches,on,prepare", f"of {', '.join(LABELS)}", setting=False)
    sizes: str = option("default,zero", "image sizes", setting=False)
    workloads: str = option("seed,mixed", "of seed, mixed, working-set", setting=False)

    def run(self) -> dict[str, MetricJson]:
        cases = self.chosen()
        runs = self.open_runs()
        results: Results = {case: [] for case in cases}
        for pair in range(1, self.pairs + 1):
            # A B, B A, ...: a slow drift of the host affects all cases.
            for case in cases if pair % 2 else reversed(cases):
                name = f"pair-{pair:02}-{case}"
                run = runs.run(name, partial(self.measure, case, runs.raw / f"{name}.console.txt"))
                results[case].append(run)
                progress(f"{self.name}: {case}: hibernate {run['hibernate_s']:.1f} s, resume {run['resume_s']:.1f} s")
        # What the goals ask for cannot be reached in the seed's 60 s.
        goals = GOALS.get(self.mem, {}) if self.protocol == "finished" else {}
        found = metrics(results, goals, self.idle)
        return self.publish(runs, found, lambda directory: draw(results, directory, self.guest()))

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "swap": "file",
            "fill_percent": self.fill,
            "system": self.system,
        }

    def chosen(self) -> list[Case]:
        """The cases of a pair, in their order."""
        arms, sizes, workloads = self.arms.split(","), self.sizes.split(","), self.workloads.split(",")
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

    def measure(self, case: Case, console: Path) -> Run:
        """One run of one case in a guest of its own."""
        with self.booted() as guest:
            began = time.monotonic()
            if isinstance(guest, DebianGuest):
                guest.settle()
            boot_s = guest.boot_s + time.monotonic() - began
            if case.workload == "unloaded":
                slept = hibernate(guest, case, console)
                return {
                    "case": str(case),
                    "boot_s": boot_s,
                    "hibernate_s": slept.hibernate_s,
                    "resume_s": slept.resume_s,
                    "image": slept.image,
                    "verified": {"errors": 0},
                }

            guest.throttle_swap(None)  # filling is not timed
            guest.group(LOAD)
            daemon = None
            if case.arm == "on" or case.workload == "working-set":
                guest.shell("mkdir -p /etc/omr /var/lib/omr /run/omr")
                if self.protocol == "seed":
                    left = f"awk '{{ print ($1 < {AFTER_BOOT}) * ({AFTER_BOOT} - $1) }}' /proc/uptime"
                    guest.shell(f"sleep $({left})", timeout=2 * AFTER_BOOT)
                    daemon = Daemon(guest, whole=spot())
                else:
                    daemon = Daemon(guest, config=CLASSES)
            loads = self.start(guest, case)
            guest.throttle_swap(self.mb_s)
            filled = sum(load.line_with("ready")["bytes"] for load in loads)
            if self.protocol == "seed":
                prepared = self.wait(guest, case, filled)
            else:
                prepared = self.prepare(guest, case, daemon, filled)
            meminfo, left_in_memory = guest.meminfo(), guest.group_value(LOAD)
            if case == WARMED:
                guest.run(["omr", "warm", "--record"])
            slept = hibernate(guest, case, console)
            run: Run = {
                "case": str(case),
                "boot_s": boot_s,
                "filled": filled,
                "left_in_memory": left_in_memory,
                "prepared": prepared,
                "meminfo": meminfo,
                "hibernate_s": slept.hibernate_s,
                "resume_s": slept.resume_s,
                "image": slept.image,
                "verified": {"errors": 0},
            }
            if case.workload == "working-set":
                run["working_set"] = come_back(guest, loads.pop(), warm=case.arm == "warm")
                run["verified"]["errors"] += run["working_set"]["errors"]
            guest.throttle_swap(None)  # the verification is not timed
            for load in loads:
                load.kill(signal.SIGUSR1)
            run["verified"]["errors"] += sum(load.line_with("verified", timeout=1800)["errors"] for load in loads)
            run["ledger"] = daemon.ledger() if daemon else []
            return run

    def booted(self) -> Guest:
        """A guest as in the seed: as much swap as memory, in a file.

        The file system also has room for the file of the mixed workload.
        """
        swap = SwapFile(self.mem, self.mb_s, room_mib=64 + self.mem, iops=self.iops)
        if self.system == "mini":
            return Guest(self.kernel, self.mem, swap)
        files = {program: build(program) for program in ("omr", "omr-daemon")}
        return DebianGuest(self.mem, swap, files=files, kernel_release=self.kernel)

    def start(self, guest: Guest, case: Case) -> list[Process]:
        """Starts the loads of a workload, and waits until they have filled their memory."""
        anonymous = self.fill * self.mem * MIB // 100
        words = ["omr-guest", "fill"]
        loads = []
        if case.workload == "mixed":
            # 1 GiB of page cache in a guest of 2 GiB. Half of the other memory can be compressed,
            # and the program always uses a fifth of it.
            file = self.mem * MIB // 2
            anonymous -= file
            directory = "/swap" if self.system == "mini" else "/var/tmp"
            words += ["--compressible", "50", "--hot", "20", "--file", f"{directory}/file", "--file-amount", str(file)]
            loads.append(guest.spawn([*words, str(anonymous)], group=LOAD))
        elif case.workload == "working-set":
            loads.append(guest.spawn([*words, str(anonymous - WORKING_SET)], group=LOAD))
            guest.group(FOREGROUND)
            touch = ["omr-guest", "touch", str(WORKING_SET), "--order", self.order]
            loads.append(guest.spawn(touch, group=FOREGROUND))
        else:
            words += ["--compressible", str(self.compressible)]
            loads.append(guest.spawn([*words, str(anonymous)], group=LOAD))
        for load in loads:
            load.line_with("ready", timeout=900)
        return loads

    def wait(self, guest: Guest, case: Case, filled: int) -> dict[str, Any]:
        """Leaves the guest idle, and lets the arm reclaim until that time is over."""
        reclaim = None
        if case.arm == "by-hand":
            reclaim = guest.spawn(["omr-guest", "by-hand", LOAD, str(filled)])
        elif case.arm == "seed":
            write = f"sleep {NOTICES_IDLE}; exec omr-guest write {ROOT_FILE} max"
            reclaim = guest.spawn(["sh", "-c", write], group="init.scope")
        guest.shell(f"sleep {self.idle}", timeout=4 * self.idle + 60)
        if reclaim:
            reclaim.kill(signal.SIGKILL)
        return {}

    def prepare(self, guest: Guest, case: Case, daemon: Daemon | None, filled: int) -> dict[str, Any]:
        """Prepares the hibernation by the method of the arm, and leaves the guest idle."""
        prepared: dict[str, Any] = {}
        if daemon:
            if case.workload == "working-set":
                filled -= WORKING_SET
            prepared = prepare_by_daemon(guest, "on", daemon, filled, self.mb_s)
        elif case.arm == "by-hand":
            prepared = prepare_by_daemon(guest, "by-hand", None, filled, self.mb_s)
        guest.shell(f"sleep {self.idle}", timeout=self.idle + 60)
        if case.arm == "drop-caches":
            guest.shell("sync; echo 3 > /proc/sys/vm/drop_caches", timeout=300)
        if case.arm == "prepare":
            began = time.monotonic()
            limit = 120 + 4 * filled / (self.mb_s * 1e6)
            words = ["omr", "prepare", "hibernate", "--target", "min", "--deadline", f"{limit:.0f}s"]
            ran = guest.run(words, timeout=limit + 60, check=False)
            if ran.code not in (0, PARTIAL):
                raise RuntimeError(f"omr prepare hibernate ended with {ran.code}: {ran.stderr}")
            prepared = {
                "seconds": time.monotonic() - began,
                "code": ran.code,
                "stdout": ran.stdout,
                "stderr": ran.stderr,
            }
        return prepared


def spot() -> str:
    """The configuration in the page about spot VMs."""
    return SPOT.read_text().split("```toml\n# /etc/omr/conf.d/spot.toml\n")[1].split("```")[0]


def hibernate(guest: Guest, case: Case, console: Path) -> Hibernation:
    if case.size == "zero":
        guest.write("/sys/power/image_size", "0")
    argv = HOOK if case.arm in ("on", "prepare") else ("omr-guest", "hibernate")
    round_trip = guest.hibernate_and_resume(HIBERNATION_TIMEOUT, argv)
    console.write_text(guest.console())
    return round_trip


def come_back(guest: Guest, foreground: Process, *, warm: bool) -> WorkingSet:
    """Lets the foreground program touch its working set after resume, or after `omr warm` then."""
    resident = guest.group_value(FOREGROUND)
    began = time.monotonic()
    if warm:
        ran = guest.run(["omr", "warm", FOREGROUND, "--ignore-busy"], timeout=600, check=False)
        if ran.code not in (0, PARTIAL):
            raise RuntimeError(f"omr warm ended with {ran.code}: {ran.stderr}")
    warm_s = time.monotonic() - began if warm else 0.0
    foreground.kill(signal.SIGUSR1)
    touched = foreground.line_with("touched", timeout=900)
    return {
        "resident_after_resume": resident,
        "warm_s": warm_s,
        "touch_s": touched["seconds"],
        "major_faults": touched["major_faults"],
        "errors": touched["errors"],
    }


def metrics(results: Results, goals: dict[tuple[str, str], int], idle: float = 60) -> dict[str, Metric]:
    """The figures of the benchmark. A ratio compares the runs of one pair."""
    found: dict[str, Metric] = {}

    def values(case: Case, what: str) -> list[float]:
        return [FIGURES[what](run) for run in results[case]]

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
            goal = goals.get((what, case.size)) if ours else None
            before, after = SEED[what, case.size]
            found[f"{what}_speedup_{suffix}"] = Metric(
                ratios(values(off, what), values(case, what)),
                "ratio",
                f">= {goal}" if goal else None,
                round(before / after, 1) if ours else None,
            )
    for size in SIZES:
        on, unloaded = Case("seed", size, "on"), Case("unloaded", "default", "off")
        if on in results:
            for what in ("hibernate", "resume"):
                # The best that a machine without the load does, whatever its image_size.
                over = ratios(values(on, what), values(unloaded, what))
                found[f"{what}_over_unloaded_{size}"] = Metric(over, "ratio", OVER_UNLOADED)
                for arm, name, most in (("seed", "seed_way", "<= 1"), ("by-hand", "by_hand", None)):
                    if (other := Case("seed", size, arm)) in results:
                        over = ratios(values(on, what), values(other, what))
                        found[f"{what}_over_{name}_{size}"] = Metric(over, "ratio", most)
    for arm in ("on", "seed", "by-hand"):
        runs = [run for case in results if case.arm == arm for run in results[case] if "left_in_memory" in run]
        if runs:
            suffix = "" if arm == "on" else "_" + arm.replace("-", "_")
            left = [100 * (1 - run["left_in_memory"] / run["filled"]) for run in runs]
            found[f"left_in_{idle:g}s_pct{suffix}"] = Metric(left, "%")
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
        "return.png": "Time until a program has used its working set once after resume; each run a dot, the bars"
        " medians."
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
    draw_bars(hibernating, groups, "hibernate", "seconds")
    draw_level(resuming, [run["boot_s"] for run in results[UNLOADED]], "boot")
    draw_bars(resuming, groups, "resume", "seconds")
    draw_level(images, [FIGURES["image"](run) for run in results[UNLOADED]], "never loaded")
    draw_bars(images, groups, "image", "MiB")
    headline(
        figure,
        f"Hibernating a machine with a swap file ({guest['mem_mib'] / 1024:g} GiB, {guest['fill_percent']} % full,"
        f" disk {guest['disk_mb_s']:g} MB/s)",
    )
    save(figure, directory / "hibernate-seed.png")
    return {
        "hibernate-seed.png": "Time to hibernate, time to resume, size of the image; each run a dot, the bar their"
        " median."
        " Dotted: a plain boot of the same guest, and the image of one that never ran a load."
    }


def draw_level(axes: Axes, values: list[float], label: str) -> None:
    """A line at their median. It is named in the legend that `draw_bars` makes."""
    axes.axhline(statistics.median(values), color="#777777", linewidth=1, linestyle=":", label=label)


def draw_bars(axes: Axes, groups: dict[str, dict[str, list[Run]]], title: str, unit: str) -> None:
    arms = [arm for arm in LABELS if any(arm in group for group in groups.values())]
    width = 0.8 / max(1, len(arms))
    for place, group in enumerate(groups.values()):
        for arm in filter(group.__contains__, arms):
            metric = Metric([FIGURES[title](run) for run in group[arm]], unit)
            x = place - 0.4 + width * (arms.index(arm) + 0.5)
            text = f"{metric.value:,.0f}" if metric.value >= 100 else f"{metric.value:.3g}"
            bar(axes, x, metric, COLOURS[arm], text, width * 0.92, label=LABELS[arm] if place == 0 else None)
    name_bars(axes, list(groups), unit, title, room=1.5)
    axes.legend(loc="upper right", fontsize=8)
