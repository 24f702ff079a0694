"""A person's day at a desk: work, reading, a call, a break, and work again, in Chromium, vim and
gcc. A part of the memory is never used again.

The arms: no omr, omr with its defaults, and omr with goal = "free" as the negative control. How
long does the person wait because of omr, and how much of the unused memory does omr take?
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from ..desktop import OMR, REDIS, USER, Action, Day, DeskGuest
from ..guest import MIB, SwapFile
from ..host import Others
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

LABELS = {"off": "without omr", "auto": "omr, default", "free": "omr, goal free"}

ARM_COLOURS = {"off": COLOURS["off"], "auto": COLOURS["on"], "free": COLOURS["seed"]}

CONFIGS = {"auto": "", "free": 'goal = "free"\n'}

# The lab's agent stands for no program of the desk.
EVERY_ARM = """
[[group]]
unit = "omr-lab-agent.service"
class = "protected"
"""

DAY: tuple[tuple[str, float], ...] = (
    ("work", 40),
    ("read", 2),
    ("work", 8),
    ("call", 5),
    ("work", 5),
    ("away", 15),
    ("work", 15),
)
"""The phases of the day and their minutes, an hour and a half in all."""

GOALS = {
    "regret_s_per_h": "<= 1",
    "return_ratio": "<= 1.1",
    "cold10m_taken_pct": ">= 70",
    "regret_free_over_default": ">= 5",
}

LEAST_REGRET = 0.01
"""Seconds per hour. Less than this is not told from none."""

EVERY = 5.0
"""Seconds between two readings of memory and counters."""

RETURN = 60.0
"""Seconds after the break in which the person notices what is slow."""


class Run(TypedDict):
    arm: str
    day: Day
    ended: float
    """The end of the day on the guest's monotonic clock, in seconds."""
    unused: int
    """Bytes that nobody used since the day began."""
    watched: list[dict[str, Any]]
    host_others_pct: float
    """Percent of the host's CPU time that other programs used."""
    ledger: list[dict[str, Any]]
    status: str
    """omr status at the end."""
    log: list[str]


@dataclass(kw_only=True)
class Desk(Comparison[Run]):
    name = "desk"
    help = "a person's day of 90 min with Chromium, vim and gcc, with omr and without (5 hours a pair)"
    title = "A person at a desk"
    labels = LABELS

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(1536, "memory of the guest", "MIB")
    mb_s: float = option(100, "speed of its disk in MB/s")
    iops: int = option(5000, "requests of its disk per second")
    speed: float = option(1, "how many times faster the day passes, but for the break")
    every: float = option(8, "seconds between two actions of the person", "S")
    redis: int = option(200, "values in Redis that nobody uses", "MIB")

    def phases(self) -> list[dict[str, Any]]:
        def seconds(kind: str, minutes: float) -> float:
            return 60 * minutes / (1 if kind == "away" else self.speed)

        return [{"kind": kind, "seconds": seconds(kind, minutes)} for kind, minutes in DAY]

    def measure(self, arm: str, pair: int) -> Run:
        swap = SwapFile(self.mem, self.mb_s, iops=self.iops)
        # The guest gives free memory back to its host, so all cold memory is wanted.
        options: dict[str, Any] = {"append": "nohibernate", "balloon": True}
        with DeskGuest(kernel_release=self.kernel, mem_mib=self.mem, swap=swap, **options) as guest:
            guest.settle()
            guest.fill_redis(self.redis)
            daemon = guest.start_omr(CONFIGS[arm] + EVERY_ARM) if arm in CONFIGS else None
            watching = guest.watch(EVERY)
            phases = self.phases()
            guest.sit_down({"seed": pair, "every": self.every, "phases": phases})
            others = Others(guest)
            day = guest.wait_for_day(sum(phase["seconds"] for phase in phases))
            busy = others.percent()
            ended = guest.monotonic_ns() / 1e9
            watching.kill()
            return {
                "arm": arm,
                "day": day,
                "ended": ended,
                "unused": self.redis * MIB,
                "watched": guest.watched(),
                "host_others_pct": busy,
                "ledger": daemon.ledger() if daemon else [],
                "status": guest.run(["omr", "status"], check=False).stdout if daemon else "",
                "log": daemon.log() if daemon else [],
            }

    def summary(self, run: Run) -> str:
        return (
            f"{taken_pct(run):.0f} % of the unused memory taken, waited {waited(run):.2f} s for memory,"
            f" back from the break: {came_back(run):.0f} ms an action"
        )

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "iops": self.iops,
            "swap": "file",
            "free_page_reporting": "yes",
            "unused_mib": self.redis,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. Figures without the name of an arm belong to the arm
        `auto`. What is compared with `off` is compared within a pair.
        """
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            suffix = "" if arm == "auto" else f"_{arm}"
            for name, (figure, unit) in FIGURES.items():
                found[name + suffix] = Metric([figure(run) for run in runs], unit, GOALS.get(name + suffix))
            if arm != "off" and "off" in results:
                pairs = list(zip(results["off"], runs))
                regret = [max(0.0, waited(run) - waited(off)) / hours(run) for off, run in pairs]
                ratio = [came_back(run) / came_back(off) for off, run in pairs]
                for name, values, unit in (("regret_s_per_h", regret, "s/h"), ("return_ratio", ratio, "ratio")):
                    found[name + suffix] = Metric(values, unit, GOALS.get(name + suffix))
        # The negative control: the goal "free" must show harm.
        if {"regret_s_per_h", "regret_s_per_h_free"} <= found.keys():
            both = zip(found["regret_s_per_h_free"].values, found["regret_s_per_h"].values)
            name = "regret_free_over_default"
            found[name] = Metric([free / max(auto, LEAST_REGRET) for free, auto in both], "ratio", GOALS[name])
        return found

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        return {
            "omr status at the end": {LABELS[arm]: runs[-1]["status"] for arm, runs in results.items() if arm != "off"}
        }

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (memory, stall, back, taken) = canvas(
            columns=2, rows=2, width=11, height=7.5, gridspec_kw={"width_ratios": [1.5, 1]}
        )
        for arm, runs in results.items():
            for number, run in enumerate(runs):
                began = run["day"]["phases"][0]["at"]
                looks = [look for look in run["watched"] if look["monotonic"] >= began]
                minutes = [(look["monotonic"] - began) / 60 for look in looks]
                label = None if number else LABELS[arm]
                swap = [sum(look["groups"][group]["swap"] for group in (USER, REDIS)) / MIB for look in looks]
                memory.plot(minutes, swap, color=ARM_COLOURS[arm], linewidth=1, label=label)
                stalled = [(stalled_s(look) - stalled_s(looks[0])) for look in looks]
                stall.plot(minutes, stalled, color=ARM_COLOURS[arm], linewidth=1)
        for axes in (memory, stall):
            for phase in next(iter(results.values()))[0]["day"]["phases"]:
                at = (phase["at"] - next(iter(results.values()))[0]["day"]["phases"][0]["at"]) / 60
                axes.axvline(at, color="#333333", linewidth=0.8, linestyle=":")
                axes.text(
                    at, 0.5, phase["kind"], transform=axes.get_xaxis_transform(), rotation=90, ha="right", fontsize=7
                )
            axes.set_xlabel("minutes of the day")
        memory.set_ylabel("MiB")
        memory.set_title("In swap: the person's programs and Redis")
        memory.legend(loc="upper left", bbox_to_anchor=(0.0, 0.95))
        stall.set_ylabel("seconds")
        stall.set_title("They waited for memory (PSI, some)")
        for place, (arm, runs) in enumerate(results.items()):
            metric = Metric([came_back(run) for run in runs], "ms")
            bar(back, place, metric, ARM_COLOURS[arm], f"{metric.value:.0f} ms", width=0.5)
            share = Metric([taken_pct(run) for run in runs], "%")
            bar(taken, place, share, ARM_COLOURS[arm], f"{share.value:.0f} %", width=0.5)
        names = [LABELS[arm] for arm in results]
        name_bars(back, names, "ms", "An action in the minute after the break", room=1.2)
        name_bars(taken, names, "%", "Unused memory that was taken", room=1.2)
        headline(figure, f"A person's day on {self.mem / 1024:g} GiB, disk {self.mb_s:g} MB/s, {self.speed:g} x speed")
        save(figure, directory / "desk.png")
        return {
            "desk.png": "Left: swap of the person's programs and of Redis, and how long some program of the person"
            " waited for memory since the day began, every run. Right: the mean of an action in the first minute after"
            " the break, and the part of the unused memory that had left memory at the end. Bars are medians, each run"
            " a dot."
        }


def stalled_s(look: dict[str, Any]) -> float:
    """Seconds in which some program of the person waited for memory, since boot."""
    return float(look["groups"][USER]["stalled_us"]) / 1e6


def during(run: Run) -> list[dict[str, Any]]:
    """The readings of the day."""
    return [look for look in run["watched"] if run["day"]["phases"][0]["at"] <= look["monotonic"] <= run["ended"]]


def hours(run: Run) -> float:
    return (run["ended"] - run["day"]["phases"][0]["at"]) / 3600


def waited(run: Run) -> float:
    """Seconds in which some program of the person waited for memory during the day."""
    looks = during(run)
    return stalled_s(looks[-1]) - stalled_s(looks[0])


def after_break(run: Run) -> list[Action]:
    """The actions of the first minute after the break."""
    phases = run["day"]["phases"]
    back = next(number for number, phase in enumerate(phases) if number and phases[number - 1]["kind"] == "away")
    first = [action for action in run["day"]["actions"] if action["phase"] == back]
    return [action for action in first if action["at"] <= phases[back]["at"] + RETURN]


def came_back(run: Run) -> float:
    """Milliseconds of an action in the first minute after the break, on average."""
    actions = after_break(run)
    return sum(action["ms"] for action in actions) / len(actions)


def taken_pct(run: Run) -> float:
    """The part of Redis's unused memory that was not in memory at the end of the day."""
    looks = during(run)
    left = looks[0]["groups"][REDIS]["anon"] - looks[-1]["groups"][REDIS]["anon"]
    return 100 * float(min(max(0, left), run["unused"])) / run["unused"]


def difference(group: str, name: str, run: Run) -> float:
    """How much a counter of a group grew during the day."""
    looks = during(run)
    return float(looks[-1]["groups"][group][name] - looks[0]["groups"][group][name])


def action_ms(run: Run) -> float:
    """Milliseconds of an action, on average over the day."""
    actions = run["day"]["actions"]
    return sum(action["ms"] for action in actions) / len(actions)


FIGURES: dict[str, tuple[Callable[[Run], float], str]] = {
    "cold10m_taken_pct": (taken_pct, "%"),
    "waited": (waited, "s"),
    "major_faults": (partial(difference, USER, "pgmajfault"), "count"),
    "action": (action_ms, "ms"),
    "action_after_break": (came_back, "ms"),
    "daemon_cpu_pct": (lambda run: 1e-4 * difference(OMR, "cpu_us", run) / (3600 * hours(run)), "%"),
    "host_others_pct": (lambda run: run["host_others_pct"], "%"),
}
