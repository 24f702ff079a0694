"""A machine with much more memory than its load needs: nobody gains from reclaim.

The arms: omr with goal = "auto", which must take nothing, and omr with goal = "free" as the
negative control, which must take something. What does the daemon cost meanwhile?

The guest's clock counts instructions, 1 ns each, so a busy host changes nothing, and the daemon's
CPU time is the number of its instructions and of the kernel's for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import Daemon
from ..guest import COUNTED, MGLRU_SWITCH, MIB, Guest, Zram
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

LABELS = {"auto": "goal auto", "free": "goal free"}

ARM_COLOURS = {"auto": COLOURS["on"], "free": COLOURS["seed"]}

GOALS = {"bytes_taken": "= 0", "bytes_taken_free": ">= 1", "daemon_cpu_pct": "<= 0.1"}

LOAD = "load"

DAEMON = "/sys/fs/cgroup/omr.service"

PAGE = 4096


class Run(TypedDict):
    arm: str
    seconds: float
    taken: int
    """Bytes that the kernel reclaimed, whoever asked for them."""
    swapped_out: int
    """Bytes."""
    refaulted: int
    """Bytes that came back."""
    available: list[int]
    """MemAvailable in bytes before and after."""
    daemon_cpu_s: float
    state: str
    """The daemon's state at the end, in words."""
    ledger: list[dict[str, Any]]


@dataclass(kw_only=True)
class Roomy(Comparison[Run]):
    name = "roomy"
    help = "a load of a quarter of the memory: goal auto takes nothing, goal free does (5 minutes a pair)"
    title = "A machine with room"
    labels = LABELS

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(4096, "memory of the guest", "MIB")
    fill: int = option(25, "memory that the load fills", "PERCENT")
    minutes: float = option(15, "measured", "MINUTES")

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, Zram(self.mem), accelerator=COUNTED, boot_timeout=600) as guest:
            guest.write(MGLRU_SWITCH, "y")
            guest.group(LOAD)
            guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group=LOAD).line_with("ready", timeout=600)
            before = Reading.of(guest)
            with Daemon(guest, top=f'goal = "{arm}"') as daemon:
                began = Reading.of(guest)
                # The lab asks the guest for nothing while omr is measured.
                guest.run(["sleep", f"{60 * self.minutes:.0f}"], timeout=60 * self.minutes + 120)
                after = Reading.of(guest)
                return {
                    "arm": arm,
                    "seconds": (after.at_ns - began.at_ns) / 1e9,
                    "taken": after.taken - before.taken,
                    "swapped_out": after.swapped_out - before.swapped_out,
                    "refaulted": after.refaulted - before.refaulted,
                    "available": [before.available, after.available],
                    "daemon_cpu_s": after.daemon_cpu_s - began.daemon_cpu_s,
                    "state": guest.run(["omr", "status"]).stdout,
                    "ledger": daemon.ledger(),
                }

    def summary(self, run: Run) -> str:
        return f"{run['taken'] / MIB:.1f} MiB taken, the daemon used {daemon_cpu(run):.2f} % of a CPU"

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "zram", "fill_percent": self.fill, "minutes": self.minutes}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. Figures without the name of an arm belong to the arm
        `auto`.
        """
        found = {}
        for arm, runs in results.items():
            suffix = "" if arm == "auto" else f"_{arm}"
            for name, (figure, unit) in FIGURES.items():
                goal = GOALS.get(name + suffix)
                found[name + suffix] = Metric([figure(run) for run in runs], unit, goal)
        return found

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        return {"omr status at the end": {LABELS[arm]: runs[-1]["state"] for arm, runs in results.items()}}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (taken, cpu) = canvas(columns=2, width=9, height=4)
        for place, (arm, runs) in enumerate(results.items()):
            mib = Metric([run["taken"] / MIB for run in runs], "MiB")
            bar(taken, place, mib, ARM_COLOURS[arm], f"{mib.value:.4g} MiB", width=0.5)
            share = Metric([daemon_cpu(run) for run in runs], "%")
            bar(cpu, place, share, ARM_COLOURS[arm], f"{share.value:.2g} %", width=0.5)
        names = [LABELS[arm] for arm in results]
        name_bars(taken, names, "MiB", "Memory that was taken", room=1.2)
        name_bars(cpu, names, "% of a CPU", "The daemon's CPU time", room=1.2)
        headline(figure, f"A load of {self.fill} % on {self.mem / 1024:g} GiB, {self.minutes:g} minutes")
        save(figure, directory / "roomy.png")
        return {
            "roomy.png": "Left: memory that the kernel reclaimed, for omr or by itself. Right: CPU time of the daemon,"
            " of a CPU that executes 1,000 million instructions a second. Bars are medians, each run a dot."
        }


@dataclass(frozen=True)
class Reading:
    """The kernel's counters at one time."""

    at_ns: int
    taken: int
    swapped_out: int
    refaulted: int
    available: int
    daemon_cpu_s: float

    @classmethod
    def of(cls, guest: Guest) -> "Reading":
        # Both at one time: while the host waits for an answer, the guest lives on.
        look = guest.shell(f"cat /proc/uptime {DAEMON}/cpu.stat 2> /dev/null || :").split()
        vmstat = guest.vmstat()
        return cls(
            at_ns=round(1e9 * float(look[0])),
            taken=taken(vmstat),
            swapped_out=vmstat["pswpout"] * PAGE,
            refaulted=(vmstat["workingset_refault_anon"] + vmstat["workingset_refault_file"]) * PAGE,
            available=guest.meminfo()["MemAvailable"],
            # Before the daemon starts, its group is not there.
            daemon_cpu_s=int(look[3]) / 1e6 if len(look) > 3 else 0.0,
        )


def taken(vmstat: dict[str, int]) -> int:
    """Bytes that the kernel reclaimed since boot, whoever asked for them."""
    return (vmstat["pgsteal_anon"] + vmstat["pgsteal_file"]) * PAGE


def daemon_cpu(run: Run) -> float:
    """CPU time of the daemon in percent of one CPU."""
    return 100 * run["daemon_cpu_s"] / run["seconds"]


FIGURES: dict[str, tuple[Callable[[Run], float], str]] = {
    "bytes_taken": (lambda run: float(run["taken"]), "bytes"),
    "swapped_out": (lambda run: run["swapped_out"] / MIB, "MiB"),
    "refaulted": (lambda run: run["refaulted"] / MIB, "MiB"),
    "available_gained": (lambda run: (run["available"][1] - run["available"][0]) / MIB, "MiB"),
    "daemon_cpu_pct": (daemon_cpu, "%"),
}
