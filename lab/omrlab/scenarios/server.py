"""A server with PostgreSQL, Redis, nginx and Tomcat from Debian's packages: a light steady load,
then a burst. A part of each service's memory is never used again.

The arms: no omr, omr with goal = "auto" and the thresholds that it learns, omr with one named age,
and omr with goal = "free" as the negative control. How much of the unused memory does omr take, and
do the services' answers get slower?
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from matplotlib.axes import Axes

from ..guest import MIB, SwapFile
from ..host import Others
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric, quantile
from ..scenario import Comparison, Results, arms_option, option
from ..services import CLIENTS, GROUPS, OMR, Answers, Load, ServerGuest, Services, Sizes

LABELS = {"off": "without omr", "auto": "omr, goal auto", "age": "omr, a named age", "free": "omr, goal free"}

ARM_COLOURS = {"off": COLOURS["off"], "auto": COLOURS["on"], "age": COLOURS["by-hand"], "free": COLOURS["seed"]}

# The clients stand for other machines: their CPU time is not work of this one, and their memory
# stays. The lab's agent asks for nothing meanwhile.
EVERY_ARM = f"""
[[group]]
match = "{CLIENTS}"
class = "background"
older_than = "1d"

[[group]]
unit = "omr-lab-agent.service"
class = "protected"
"""

CONFIGS = {
    "auto": """
goal = "auto"
""",
    "age": """
goal = "auto"

[[group]]
match = "system.slice/**"
older_than = "{age}m"
""",
    "free": """
goal = "free"
""",
}
"""The daemon's configuration in each arm."""

SERVICES = {"pg": ("PostgreSQL", "p99", 0.99), "redis": ("Redis", "p999", 0.999), "nginx": ("nginx", "p99", 0.99)}
"""The services that are asked: their names, and the quantile of their answers that counts."""

PHASES = ("steady", "burst")

GOALS = {"pg_p99_ratio": "<= 1.05", "redis_p999_ratio": "<= 1.1", "nginx_p99_ratio": "<= 1.05"}

COLD_GOAL = ">= 80"

EVERY = 5.0
"""Seconds between two readings of memory and counters."""


class Run(TypedDict):
    arm: str
    age_minutes: float
    steady_at: float
    """The start of the steady load on the guest's monotonic clock, in seconds."""
    burst_at: float
    unused: dict[str, int]
    """Bytes that nobody used since the steady load began, for each service."""
    answers: dict[str, Answers]
    """The answers of each phase."""
    watched: list[dict[str, Any]]
    """Memory and counters, every 5 seconds."""
    host_others_pct: dict[str, float]
    """Percent of the host's CPU time that other programs used, in each phase."""
    ledger: list[dict[str, Any]]
    log: list[str]


@dataclass(kw_only=True)
class Server(Comparison[Run]):
    name = "server"
    help = "PostgreSQL, Redis, nginx and Java under a light load, with omr and without (2 hours a pair)"
    title = "A server with a light load"
    labels = LABELS

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(1536, "memory of the guest", "MIB")
    mb_s: float = option(40, "speed of its disk in MB/s")
    iops: int = option(1500, "requests of its disk per second")
    no_reporting: bool = option(False, "no free page reporting: the goal auto frees only what lacks to half of memory")
    learn: float = option(40, "steady load before it, in which omr learns thresholds", "MINUTES", least=0)
    minutes: float = option(30, "steady load", "MINUTES")
    burst: float = option(60, "burst after it", "S")
    factor: int = option(4, "requests and connections of the burst, as a multiple of the steady load's")
    age: float = option(10, "in the arm age, memory is cold when it was not used for this time", "MINUTES")
    pg: int = option(200, "buffers of PostgreSQL that nobody uses", "MIB")
    redis: int = option(180, "values in Redis that nobody uses", "MIB")
    java: int = option(120, "heap of Java that nobody uses", "MIB")
    hot: int = option(1, "data in use, of PostgreSQL and of Redis each", "MIB")

    def measure(self, arm: str, pair: int) -> Run:
        swap = SwapFile(self.mem, self.mb_s, iops=self.iops)
        # A server does not hibernate. Otherwise omr would keep swap free for an image.
        options: dict[str, Any] = {"append": "nohibernate", "balloon": not self.no_reporting}
        with ServerGuest(kernel_release=self.kernel, mem_mib=self.mem, swap=swap, **options) as guest:
            guest.settle()
            sizes = Sizes(self.pg, self.redis, self.java, self.hot)
            services = Services(guest, sizes)
            watching = services.watch(EVERY)
            daemon = guest.start_omr(CONFIGS[arm].format(age=f"{self.age:g}") + EVERY_ARM) if arm in CONFIGS else None
            load = Load(pg=8, redis=10, nginx=5, connections=1)
            if self.learn:
                services.ask("learn", 60 * self.learn, load)
            others = Others(guest)
            steady_at = guest.monotonic_ns() / 1e9
            steady = services.ask("steady", 60 * self.minutes, load)
            busy = {"steady": others.percent()}
            others = Others(guest)
            burst_at = guest.monotonic_ns() / 1e9
            burst = services.ask("burst", self.burst, load.times(self.factor))
            busy["burst"] = others.percent()
            watching.kill()
            return {
                "arm": arm,
                "age_minutes": self.age,
                "steady_at": steady_at,
                "burst_at": burst_at,
                "unused": sizes.unused,
                "answers": {"steady": steady, "burst": burst},
                "watched": services.watched(),
                "host_others_pct": busy,
                "ledger": daemon.ledger() if daemon else [],
                "log": daemon.log() if daemon else [],
            }

    def summary(self, run: Run) -> str:
        slow = ", ".join(f"{name} {slowest(run, service):.1f} ms" for service, (name, *_) in SERVICES.items())
        return (
            f"{taken_pct(run):.0f} % of the unused memory taken, {available(run):+.0f} MiB available,"
            f" {major_faults(run):.0f} major faults; {slow}"
        )

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "iops": self.iops,
            "swap": "file",
            "free_page_reporting": "no" if self.no_reporting else "yes",
            "learn_minutes": self.learn,
            "steady_minutes": self.minutes,
            "unused_mib": self.pg + self.redis + self.java,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. Figures without the name of an arm belong to the arm
        `auto`. A ratio compares the runs of one pair.
        """
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            suffix = "" if arm == "auto" else f"_{arm}"
            if arm != "off":
                if "off" in results:
                    found |= ratios(results["off"], runs, suffix)
                goal = COLD_GOAL if arm == "auto" else None
                age = runs[0]["age_minutes"] if arm == "age" else 10
                name = f"cold{age:g}m_taken_pct{suffix}"
                found[name] = Metric([taken_pct(run) for run in runs], "%", goal)
            for name, (figure, unit) in FIGURES.items():
                found[f"{name}{suffix}"] = Metric([figure(run) for run in runs], unit)
        failed = sum(part["failed"] for runs in results.values() for run in runs for part in run["answers"].values())
        return found | {"failed_requests": Metric([float(failed)], "requests", "= 0")}

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        return {"ended": {arm: [ends(run) for run in runs] for arm, runs in results.items() if arm != "off"}}

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        table = {}
        for arm, runs in results.items():
            for number, run in enumerate(runs, 1):
                if arm != "off":
                    table[f"{LABELS[arm]}, run {number}"] = "; ".join(
                        f"{count} x {reason}" for reason, count in ends(run).items()
                    )
        return {"Why sweeps ended": table}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (memory, taken, faults, slow) = canvas(
            columns=2, rows=2, width=11, height=7.5, gridspec_kw={"width_ratios": [1.35, 1]}
        )
        for arm, runs in results.items():
            for number, run in enumerate(runs):
                label = None if number else LABELS[arm]
                minutes = [(look["monotonic"] - run["steady_at"]) / 60 for look in run["watched"]]
                mib = [look["meminfo"]["MemAvailable"] / MIB for look in run["watched"]]
                memory.plot(minutes, mib, color=ARM_COLOURS[arm], linewidth=1, label=label)
                counted = [faults_of(look) - faults_of(run["watched"][0]) for look in run["watched"]]
                faults.plot(minutes, counted, color=ARM_COLOURS[arm], linewidth=1)
        for axes in (memory, faults):
            for at in (-self.learn, 0, self.minutes):
                axes.axvline(at, color="#333333", linewidth=0.8, linestyle=":")
            axes.set_xlabel("minutes from the start of the measurement")
        memory.axhline(self.mem / 2, color="#333333", linewidth=0.8, linestyle="--")
        memory.set_ylabel("MiB")
        memory.set_title("Available memory (MemAvailable)")
        memory.legend(loc="upper left")
        faults.set_yscale("symlog", linthresh=10)
        faults.set_ylim(bottom=0)
        faults.set_ylabel("count")
        faults.set_title("Major faults of the services")
        draw_taken(taken, results)
        draw_slow(slow, results)
        headline(
            figure,
            f"PostgreSQL, Redis, nginx and Java on {self.mem / 1024:g} GiB, disk {self.mb_s:g} MB/s:"
            f" {self.minutes:g} minutes of light load, then a burst",
        )
        save(figure, directory / "server.png")
        return {
            "server.png": "Left: available memory and the services' major faults over time, every run. The dotted lines"
            " are the start of the steady load and of the burst, the dashed line is half of the memory. Right: the part"
            " of the unused memory that had left memory before the burst, and the slow answers; bars are medians, each"
            " run a dot."
        }


def slowest(run: Run, service: str, phase: str = "steady") -> float:
    """Milliseconds of a slow answer of a service: the quantile that counts."""
    return quantile([ms for _, ms in run["answers"][phase]["times"][service]], SERVICES[service][2])


def ratios(off: list[Run], runs: list[Run], suffix: str) -> dict[str, Metric]:
    """The slow answers of each service as a multiple of those without omr, pair by pair."""
    found = {}
    for phase in PHASES:
        for service, (_, of, _) in SERVICES.items():
            values = [slowest(run, service, phase) / slowest(none, service, phase) for none, run in zip(off, runs)]
            name = f"{service}_{of}_ratio" + "_burst" * (phase == "burst") + suffix
            found[name] = Metric(values, "ratio", GOALS.get(name))
    return found


def at(run: Run, monotonic: float) -> dict[str, Any]:
    """The last reading before this time, or the first one."""
    before = [look for look in run["watched"] if look["monotonic"] <= monotonic]
    return before[-1] if before else run["watched"][0]


def taken(run: Run, service: str) -> float:
    """Bytes of a service that left memory before the burst, at most its unused memory.

    Not all of them are in swap: Linux 6.12 frees pages of zeros when it splits a huge page.
    """
    before, after = (look["groups"][GROUPS[service]] for look in (run["watched"][0], at(run, run["burst_at"])))
    left = (before["anon"] + before["shmem"]) - (after["anon"] + after["shmem"])
    return float(min(max(0, left), run["unused"][service]))


def taken_pct(run: Run) -> float:
    """The part of the unused memory that had left memory before the burst."""
    return 100 * sum(taken(run, service) for service in run["unused"]) / sum(run["unused"].values())


def available(run: Run) -> float:
    """MiB that became available from the start of the daemon until the burst."""
    before, after = (look["meminfo"]["MemAvailable"] for look in (run["watched"][0], at(run, run["burst_at"])))
    return float(after - before) / MIB


def faults_of(look: dict[str, Any]) -> int:
    """Major faults of all services until now."""
    return sum(look["groups"][group]["pgmajfault"] for group in GROUPS.values())


def major_faults(run: Run) -> float:
    """Major faults of the services during the steady load."""
    return float(faults_of(at(run, run["burst_at"])) - faults_of(at(run, run["steady_at"])))


def stalled(run: Run) -> float:
    """Seconds that tasks of the services waited for memory during the steady load (PSI, some)."""
    before, after = (
        sum(at(run, when)["groups"][group]["stalled_us"] for group in GROUPS.values())
        for when in (run["steady_at"], run["burst_at"])
    )
    return float(after - before) / 1e6


def cpu_pct(run: Run, groups: tuple[str, ...]) -> float:
    """CPU time of these groups during the steady load, in percent of one CPU."""
    before, after = at(run, run["steady_at"]), at(run, run["burst_at"])
    used = sum(after["groups"][group]["cpu_us"] - before["groups"][group]["cpu_us"] for group in groups)
    return 1e-4 * float(used / (after["monotonic"] - before["monotonic"]))


def counted(name: str, pages: bool = False) -> Callable[[Run], float]:
    """How much a counter of /proc/vmstat grew, from the steady load's begin until the burst."""

    def difference(run: Run) -> float:
        before, after = (at(run, when)["vmstat"] for when in (run["steady_at"], run["burst_at"]))
        return float(after[name] - before[name]) * (4096 / MIB if pages else 1)

    return difference


def ends(run: Run) -> dict[str, int]:
    """The reasons why sweeps ended, without their numbers, and how often each."""
    reasons = [entry["stop_reason"] for entry in run["ledger"] if entry["kind"] == "sweep"]
    return dict(Counter(re.sub(r"\d[\d.,]*", "N", reason) for reason in reasons).most_common())


FIGURES: dict[str, tuple[Callable[[Run], float], str]] = {
    "major_faults": (major_faults, "count"),
    "major_faults_burst": (
        lambda run: float(faults_of(run["watched"][-1]) - faults_of(at(run, run["burst_at"]))),
        "count",
    ),
    "stalled": (stalled, "s"),
    "available_gained": (available, "MiB"),
    "available_before": (lambda run: run["watched"][0]["meminfo"]["MemAvailable"] / MIB, "MiB"),
    "available_after": (lambda run: at(run, run["burst_at"])["meminfo"]["MemAvailable"] / MIB, "MiB"),
    "swapped_out": (counted("pswpout", pages=True), "MiB"),
    "swapped_in": (counted("pswpin", pages=True), "MiB"),
    "reclaimed_anon": (counted("pgsteal_anon", pages=True), "MiB"),
    "reclaimed_file": (counted("pgsteal_file", pages=True), "MiB"),
    "host_others_pct": (lambda run: run["host_others_pct"]["steady"], "%"),
    "host_others_pct_burst": (lambda run: run["host_others_pct"]["burst"], "%"),
    "daemon_cpu_pct": (partial(cpu_pct, groups=(OMR,)), "%"),
    "services_cpu_pct": (partial(cpu_pct, groups=tuple(GROUPS.values())), "%"),
    "clients_cpu_pct": (partial(cpu_pct, groups=(CLIENTS,)), "%"),
}
FIGURES |= {f"{service}_{of}": (partial(slowest, service=service), "ms") for service, (_, of, _) in SERVICES.items()}


def draw_taken(axes: Axes, results: Results[Run]) -> None:
    arms = [arm for arm in results if arm != "off"]
    if not arms:
        return
    for place, arm in enumerate(arms):
        metric = Metric([taken_pct(run) for run in results[arm]], "%")
        faults = Metric([major_faults(run) for run in results[arm]], "count")
        text = f"{metric.value:.0f} %\n{faults.value:.0f} major faults"
        bar(axes, place, metric, ARM_COLOURS[arm], text, width=0.5)
    name_bars(axes, [LABELS[arm] for arm in arms], "%", "Unused memory that was taken")
    axes.set_ylim(0, 130)


def draw_slow(axes: Axes, results: Results[Run]) -> None:
    for place, service in enumerate(SERVICES):
        for number, (arm, runs) in enumerate(results.items()):
            offset = 0.8 / len(results) * (number - (len(results) - 1) / 2)
            metric = Metric([slowest(run, service) for run in runs], "ms")
            bar(axes, place + offset, metric, ARM_COLOURS[arm], f"{metric.value:.3g}", width=0.75 / len(results))
    names = [f"{name}\np{100 * share:g}" for name, _, share in SERVICES.values()]
    name_bars(axes, names, "ms", "Slow answers during the steady load", room=1.15)
