"""More applications than memory holds, a user who switches between them, and earlyoom, which kills.

The arms: no swap, zram with the kernel alone, and zram with omr in several configurations; two of
them with MGLRU as well. With
`--seeds 1 --arms zram,rules` it takes about 15 minutes.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import Daemon
from ..guest import MGLRU_SWITCH, Guest, Zram
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric, quantile
from ..scenario import Comparison, Results, arms_option, option
from ..seed_vmstat import SEED_VMSTAT, change, counter

LABELS = {
    "vanilla": "no swap",
    "zram": "zram",
    "mglru": "zram, MGLRU",
    "rules": "zram, omr's process rules",
    "sweeps": "zram, omr's sweeps only",
    "prefetch": "zram, omr's process rules, prefetch",
    "rules-mglru": "zram, omr's process rules, MGLRU",
}
ARM_COLOURS = {
    "vanilla": COLOURS["off"],
    "zram": COLOURS["seed"],
    "mglru": COLOURS["machine"],
    "rules": COLOURS["on"],
    "sweeps": COLOURS["by-hand"],
    "prefetch": COLOURS["prepare"],
    "rules-mglru": COLOURS["swap"],
}

CONFIGS = {
    "rules": """
[hints]
cold_after = "{cold}s"
pageout_after = "{pageout}s"
available = "{available}%"
smallest = "{smallest}MiB"

[[process]]
group = "apps/*"
class = "background"
""",
    "sweeps": """
[[group]]
match = "apps/*"
class = "background"
""",
}
CONFIGS["rules-mglru"] = CONFIGS["rules"]
CONFIGS["prefetch"] = CONFIGS["rules"].replace("[hints]", '[hints]\nprefetch = "on"')
"""The daemon's configuration in each arm. The user tells the daemon who is in the foreground."""

GOALS = {"kills": "<= -50", "cold_starts": "<= -40", "switch_mean": "<= -30", "allocstall": "<= -60"}

MEDIAN = "<= 2"
"""The goal for the median of a switch, over that with zram alone."""

SEED = {"kills": -18, "cold_starts": -17, "switch_mean": -7, "allocstall": -28}
"""The seed's changes in percent: process-madvise.txt, on Android. Its launch is a switch here."""


MGLRU = {
    "kills": -18,
    "cold_starts": -16,
    "kswapd_cpu": -51,
    "stalled_some": -45,
    "stalled_full": -52,
    "oom_kills": -59,
}
"""The changes in percent that mglru.txt reports. Its kills and cold starts are on top of a
per-process reclaim, the others on ChromeOS without one.
"""


class Switch(TypedDict):
    """The user turned to an application."""

    app: int
    kind: str
    """`first` start, `cold` start after a kill, or `hot`."""
    seconds: float
    """Until the user could work with it."""
    errors: int
    """Words of its memory that were not what they were."""


class Run(TypedDict):
    arm: str
    seed: int
    switches: list[Switch]
    kills: int
    events: dict[str, int]
    """Counters of /proc/vmstat, as the program in the guest has summed them up."""
    vmstat: dict[str, int]
    """All of /proc/vmstat: what was added from the first start to the last switch."""
    stalled_s: list[float]
    """Memory pressure: some, full."""
    kswapd_cpu_s: float
    killer: list[str]
    """The last lines of earlyoom."""
    omr_cpu_s: float
    ledger: list[dict[str, Any]]
    log: list[str]


@dataclass(kw_only=True)
class AppSwitch(Comparison[Run]):
    name = "app-switch"
    help = "a user switches between more applications than memory holds: kills, cold starts, time (hours)"
    title = "Switching between applications"
    labels = LABELS

    pairs: int = option(5, "users, each of whom works in every arm", flag="--seeds", setting=False)
    arms: str = arms_option(LABELS, "vanilla,zram,rules,sweeps")
    mem: int = option(1024, "memory of the guest", "MIB")
    zram: int = option(2048, "zram of the guest", "MIB")
    apps: int = option(12, "applications")
    least: int = option(40, "heap of the smallest", "MIB")
    most: int = option(200, "heap of the largest", "MIB")
    compressible: int = option(67, "zero in each page, for zram's 3:1 of ChromeOS", "%", least=0)
    start: int = option(14, "CPU time that a start after a kill costs", "S", least=0)
    switches: int = option(40, "switches between them")
    stay: float = option(3, "how long the user stays", "S", least=0)
    earlyoom: str = option("-m 2 -s 100", "options of earlyoom", "OPTIONS")
    cold: int = option(2, "[hints] cold_after", "S")
    pageout: int = option(9, "[hints] pageout_after", "S")
    available: int = option(25, "[hints] available", "%")
    smallest: int = option(12, "[hints] smallest", "MIB")

    def run_name(self, arm: str, pair: int) -> str:
        return f"seed-{pair:02}-{arm}"

    def measure(self, arm: str, pair: int) -> Run:
        swap = None if arm == "vanilla" else Zram(self.zram)
        # The applications' files are on a disk without limits, as the scenario is about memory.
        with Guest(self.kernel, self.mem, swap, data_mib=256, prealloc=True, debian=("earlyoom",)) as guest:
            daemon = Daemon(guest, idle="5s", config=CONFIGS[arm].format(**vars(self))) if arm in CONFIGS else None
            guest.write(MGLRU_SWITCH, "y" if arm.endswith("mglru") else "n")
            killer = guest.spawn(["earlyoom", "-r", "0", *self.earlyoom.split()], group="init.scope")
            tell = ["--tell", "/run/omr/omr.sock"] if daemon else []
            words = {
                "seed": pair,
                "apps": self.apps,
                "switches": self.switches,
                "least": self.least,
                "most": self.most,
                "stay": f"{self.stay * 1000:.0f}ms",
                "compressible": self.compressible,
                "start": f"{self.start}s",
            }
            options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
            before, kswapd = guest.vmstat(), kswapd_cpu(guest)
            user = guest.spawn(["omr-guest", "user", *options, *tell], group="init.scope")
            # The lab asks the guest for nothing while the user works.
            ended = user.wait(timeout=600 + self.switches * (self.stay + 60))
            if ended.code != 0:
                raise RuntimeError(f"the user ended with {ended.code or ended.signal}: {ended.stderr}")
            after, kswapd = guest.vmstat(), kswapd_cpu(guest) - kswapd
            measured: Run = ended.json()
            cpu = guest.read("/sys/fs/cgroup/omr.service/cpu.stat") if daemon else "usage_usec 0"
            killer.kill(signal.SIGTERM)
            return measured | {
                "arm": arm,
                "seed": pair,
                "vmstat": {name: value - before[name] for name, value in after.items()},
                "kswapd_cpu_s": kswapd,
                "killer": killer.wait().stderr.splitlines()[-200:],
                "omr_cpu_s": int(cpu.split()[1]) / 1e6,
                "ledger": daemon.ledger() if daemon else [],
                "log": daemon.process.stderr().splitlines()[-200:] if daemon else [],
            }

    def summary(self, run: Run) -> str:
        return f"{run['kills']} kills, {cold_starts(run)} cold starts, {mean(run):.2f} s"

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "zram_mib": self.zram,
            "heaps": f"{self.least} to {self.most} MiB",
            "apps": self.apps,
            "switches": self.switches,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A change compares the runs of one user: omr's process rules
        with zram alone.
        """
        found: dict[str, Metric] = {}
        if {"zram", "rules"} <= set(results):
            for name in ("kills", "cold_starts", "switch_mean", "switch_p99", "allocstall"):
                figure = FIGURES[name]
                pairs = [
                    (figure(without), figure(with_omr)) for without, with_omr in zip(results["zram"], results["rules"])
                ]
                # A user without kills or cold starts cannot have fewer.
                changes = [100 * (after / before - 1) for before, after in pairs if before] or [0.0]
                found[f"{name}_delta_pct"] = Metric(changes, "%", GOALS.get(name), SEED.get(name))
            median = FIGURES["switch_p50"]
            ratios = [median(with_omr) / median(off) for off, with_omr in zip(results["zram"], results["rules"])]
            found["switch_median_ratio"] = Metric(ratios, "x", MEDIAN)
        for without, arm in (("zram", "mglru"), ("rules", "rules-mglru")):
            for name, seed in MGLRU.items():
                figure = FIGURES[name]
                pairs = [(figure(off), figure(on)) for off, on in zip(results.get(without, []), results.get(arm, []))]
                if changes := [100 * (on / off - 1) for off, on in pairs if off]:
                    found[f"{name}_{arm.replace('-', '_')}_pct"] = Metric(changes, "%", seed=seed)
        if {"rules", "prefetch"} <= set(results):
            for name in ("switch_mean", "switch_p50", "switch_p99"):
                figure = FIGURES[name]
                changes = [
                    100 * (figure(on) / figure(off) - 1) for off, on in zip(results["rules"], results["prefetch"])
                ]
                found[f"{name}_prefetch_pct"] = Metric(changes, "%")
        for arm, runs in results.items():
            for name, figure in FIGURES.items():
                found[f"{name}_{arm.replace('-', '_')}"] = Metric(
                    [figure(run) for run in runs], UNITS.get(name, "count")
                )
        errors = [switch["errors"] for runs in results.values() for run in runs for switch in run["switches"]]
        found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
        return found

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        """The seed's table of /proc/vmstat, with the medians of all users beside it."""
        table = {}
        for name, (without, with_hints) in SEED_VMSTAT.items():
            row: dict[str, Any] = {"seed_change_pct": change(without, with_hints)}
            for arm in ("zram", "rules"):
                values = [counter(name, run["vmstat"]) for run in results.get(arm, [])]
                known = [float(value) for value in values if value is not None]
                row[arm] = quantile(known, 0.5) if known else None
            if row["zram"] is not None and row["rules"] is not None:
                row["change_pct"] = change(row["zram"], row["rules"])
            table[name] = row
        return {"vmstat": table}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (bars, times) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
        for place, (arm, runs) in enumerate(results.items()):
            for offset, name, label, hatch in (
                (-0.2, "kills", "killed", ""),
                (0.2, "cold_starts", "cold starts", "//"),
            ):
                metric = Metric([FIGURES[name](run) for run in runs], "count")
                style: dict[str, Any] = {"hatch": hatch, "edgecolor": "white", "label": None if place else label}
                bar(bars, place + offset, metric, ARM_COLOURS[arm], width=0.38, **style)
        names = [LABELS[arm].replace(", ", ",\n") for arm in results]
        name_bars(bars, names, "times a user, median", "Killed, and started again")
        bars.legend()
        for arm, runs in results.items():
            values = sorted(value for run in runs for value in switches(run))
            share = [100 * (place + 1) / len(values) for place in range(len(values))]
            times.plot(values, share, color=ARM_COLOURS[arm], label=LABELS[arm])
        times.set_xscale("log")
        times.set_xlabel("seconds until the application could be used")
        times.set_ylabel("% of all switches")
        times.set_title("Time of a switch")
        times.legend(loc="lower right")
        heaps = f"{self.least} to {self.most} MiB"
        headline(figure, f"{self.apps} applications of {heaps} on {self.mem} MiB, {self.switches} switches")
        save(figure, directory / "app-switch.png")
        return {
            "app-switch.png": "Left: how often an application was killed, and how often it had to be started again, the"
            " median of all users and each user a dot. Right: share of the switches that took no longer than this."
        }


def kswapd_cpu(guest: Guest) -> float:
    """CPU seconds of the guest's one kswapd until now."""
    stat = guest.shell("cat /proc/$(pidof kswapd0)/stat")
    user, system = stat.rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / 100


def cold_starts(run: Run) -> int:
    return sum(switch["kind"] == "cold" for switch in run["switches"])


def switches(run: Run) -> list[float]:
    """Seconds of each switch, without the first starts, which are the same in all arms."""
    return [switch["seconds"] for switch in run["switches"] if switch["kind"] != "first"]


def hot(run: Run) -> list[float]:
    """Seconds of each switch to an application that was still running."""
    return [switch["seconds"] for switch in run["switches"] if switch["kind"] == "hot"]


def mean(run: Run) -> float:
    times = switches(run)
    return sum(times) / len(times)


FIGURES: dict[str, Callable[[Run], float]] = {
    "kills": lambda run: float(run["kills"]),
    "cold_starts": lambda run: float(cold_starts(run)),
    "switch_mean": mean,
    "switch_p50": lambda run: quantile(switches(run), 0.5),
    "switch_p90": lambda run: quantile(switches(run), 0.9),
    "switch_p99": lambda run: quantile(switches(run), 0.99),
    "allocstall": lambda run: float(run["events"]["allocstall"]),
    "pgscan_direct": lambda run: float(run["events"]["pgscan_direct"]),
    "pswpin": lambda run: float(run["events"]["pswpin"]),
    "pswpout": lambda run: float(run["events"]["pswpout"]),
    "stalled_some": lambda run: run["stalled_s"][0],
    "stalled_full": lambda run: run["stalled_s"][1],
    "oom_kills": lambda run: float(run["vmstat"]["oom_kill"]),
    "kswapd_cpu": lambda run: run["kswapd_cpu_s"],
    "omr_cpu": lambda run: run["omr_cpu_s"],
    # The cost of a page that comes back. The ratio of this cost to the cost of a start must be
    # realistic.
    "us_per_page_in": lambda run: 1e6 * sum(hot(run)) / max(1, run["events"]["pswpin"]),
}

UNITS = {
    "switch_mean": "s",
    "switch_p50": "s",
    "switch_p90": "s",
    "switch_p99": "s",
    "stalled_some": "s",
    "stalled_full": "s",
    "kswapd_cpu": "s",
    "omr_cpu": "s",
    "us_per_page_in": "us",
}
