"""A user without rights makes as much as the kernel allows: 50,000 groups, a path that is too long,
storms of attributes, floods of the control socket, 64 TiB of reserved addresses, all inotify
watches. Does omr still sweep others' groups, how soon does a sweep end, and what does the daemon
cost? The arms: without this user, and with.

The guest's clock counts instructions, a thousand million in a second of one CPU: a slow real CPU.
So the host's load changes no figure. All CPUs of the guest share that clock, so two that work at
once are half as fast, and the bound of 100 ms for the end of a sweep is 200 ms here.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..adversary import RULES, WATCHES, Adversary, add_users, cost, interrupt
from ..daemon import Daemon
from ..guest import COUNTED, Guest, Zram
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option
from .latency import trace_writes

LABELS = {"alone": "without the adversary", "beside": "with the adversary"}

ARM_COLOURS = {"alone": COLOURS["off"], "beside": COLOURS["on"]}

GOALS = {"cpu_pct": "<= 1", "resident_mib": "<= 8", "stop_ms": "<= 200", "not_stopped": "= 0"}


class Run(TypedDict):
    proof: dict[str, Any]
    """What each attack said of itself."""
    done: dict[str, Any]
    """What the attacks have done that do something again and again."""
    stops: list[float]
    """Milliseconds."""
    not_stopped: int
    """Sweeps that work did not end, of as many as there are stops."""
    cost: dict[str, float]
    log: str


@dataclass(kw_only=True)
class AdversaryCost(Comparison[Run]):
    name = "adversary"
    help = "a user who makes all that can be made: stops of sweeps, the daemon's cost (20 minutes a pair)"
    title = "A user without rights"
    labels = LABELS

    pairs: int = option(1, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(3072, "memory of the guest", "MIB")
    groups: int = option(50_000, "groups that the user makes")
    stops: int = option(8, "how often work begins during a sweep")
    seconds: int = option(120, "how long the daemon is watched", "S")

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, Zram(1024), accelerator=COUNTED, boot_timeout=600) as guest:
            add_users(guest)
            guest.write("/proc/sys/fs/inotify/max_user_watches", str(WATCHES))
            trace_writes(guest)
            with Daemon(guest, idle="2s", config=RULES) as daemon:
                adversary = Adversary(guest)
                proof = adversary.everything(self.groups) if arm == "beside" else {}
                # The scans that the new groups cause are over.
                guest.run(["sleep", "60"], timeout=3600)
                stopped = [interrupt(guest, daemon) for _ in range(self.stops)]
                used = cost(guest, daemon, self.seconds)
                return {
                    "proof": proof,
                    "done": adversary.end(),
                    "stops": [one.stop_ms for one in stopped],
                    "not_stopped": sum(one.sweep["end"] != "stopped" or one.writes == 0 for one in stopped),
                    "cost": asdict(used),
                    "log": daemon.process.stderr()[-2000:],
                }

    def summary(self, run: Run) -> str:
        used = run["cost"]
        return (
            f"{used['cpu_pct']:.2f} % of a CPU, {used['resident_mib']:.1f} MiB, stops within {max(run['stops']):.0f} ms"
        )

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "zram", "groups": self.groups}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """Figures without the name of an arm belong to the arm `beside`."""
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            suffix = "" if arm == "beside" else f"_{arm}"
            units = {"cpu_pct": "%", "resident_mib": "MiB", "descriptors": "", "watches": ""}
            for name, unit in units.items():
                found[name + suffix] = Metric([run["cost"][name] for run in runs], unit, GOALS.get(name + suffix))
            found[f"stop_ms{suffix}"] = Metric([max(run["stops"]) for run in runs], "ms", GOALS.get(f"stop_ms{suffix}"))
            missed = [float(run["not_stopped"]) for run in runs]
            found[f"not_stopped{suffix}"] = Metric(missed, "", GOALS.get(f"not_stopped{suffix}"))
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (cpu, resident, stop) = canvas(columns=3, width=11, height=4)
        for place, (arm, runs) in enumerate(results.items()):
            panels = {
                cpu: Metric([run["cost"]["cpu_pct"] for run in runs], "%"),
                resident: Metric([run["cost"]["resident_mib"] for run in runs], "MiB"),
                stop: Metric([time for run in runs for time in run["stops"]], "ms"),
            }
            for axis, metric in panels.items():
                bar(axis, place, metric, ARM_COLOURS[arm], f"{metric.value:.2g}", width=0.5)
        names = [LABELS[arm].replace("out the", "out\nthe").replace("with the", "with\nthe") for arm in results]
        name_bars(cpu, names, "% of a CPU", "The daemon's CPU time", room=1.2)
        name_bars(resident, names, "MiB", "Its resident memory", room=1.2)
        name_bars(stop, names, "ms", "Until a sweep has ended", room=1.2)
        headline(figure, f"A user without rights, with {self.groups:,} groups")
        save(figure, directory / "adversary.png")
        return {"adversary.png": "Bars are medians; each run, or stop, is a dot."}
