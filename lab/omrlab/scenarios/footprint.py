"""A program does not use most of its memory, until it needs a part of it again.

The arms: omr and its peers. How much memory does each free, how slow does the program get, how soon
is it as fast as before, and which settings are left when the peer is killed?
"""

import json
import signal
import statistics
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from .. import packages
from ..agent import AgentError
from ..apt import PackageMissing
from ..daemon import CONFIG, QUICK
from ..guest import MGLRU_SWITCH, MIB, Guest, Zram
from ..host import Calm
from ..packages import DAMO
from ..plots import COLOURS, canvas, save
from ..results import Metric, progress, quantile
from ..scenario import Comparison, Results, arms_option, option

DAMO_COMMAND = ("env", "PYTHONPATH=/lib", "python3", "-m", "damo.damo")

LABELS = {
    "none": "nothing",
    "ages": "omr, by age",
    "daemon": "omr daemon, by age",
    "blind": "omr, told how much",
    "senpai-limit": "oomd's Senpai, limit",
    "senpai-poke": "oomd's Senpai, poke",
    "damo": "damo, pageout by age",
}

ARM_COLOURS = {
    "none": COLOURS["off"],
    "ages": COLOURS["on"],
    "daemon": COLOURS["prepare"],
    "blind": COLOURS["machine"],
    "senpai-limit": COLOURS["seed"],
    "senpai-poke": COLOURS["by-hand"],
    "damo": COLOURS["swap"],
}

NEEDS = {"senpai-limit": "oomd", "senpai-poke": "oomd", "damo": DAMO}
"""The package of the peer, for each arm that needs one."""

NORMAL = 1.1
"""A p99 is normal up to this factor over the p99 without reclaim."""

WINDOW = 1.0
"""Seconds of requests in a p99."""

ENOUGH = 500
"""The least number of requests for a p99."""

GOALS = {
    "cold_freed_pct_60s": ">= 95",
    "refaults_before_phase": "= 0",
    "hot_p99_ratio": f"<= {NORMAL}",
    "recovery_over_senpai": ">= 5",
}

OOMD_CONFIG = "/etc/oomd.json"

DAMON = "/sys/kernel/mm/damon/admin/kdamonds"


class Counters(TypedDict):
    refaults: int
    stalled_s: float
    peer_cpu_s: float


class Run(TypedDict):
    arm: str
    cold: int
    """Bytes that the program does not use."""
    within_s: int
    cold_s: float
    """The time at which the cold memory reached its age. Times count from the phase change."""
    change: dict[str, int]
    """The program's memory at the phase change."""
    figures: list[Counters]
    """At the start, at the phase change, at the end."""
    left_behind: list[str]
    errors: int
    current: list[list[float]]
    """Times, and the program's memory.current then."""
    calm_s: list[float]
    """The start of each second in which the host lost no CPU time."""
    due_s: list[float]
    """The time at which each request was due."""
    response_us: list[int]
    major_faults: list[int]


@dataclass(kw_only=True)
class Footprint(Comparison[Run]):
    name = "footprint"
    help = "memory that is not used and then is: omr, oomd's Senpai and damo side by side (45 minutes)"
    title = "omr and its peers"
    labels = LABELS

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS, "none,ages,blind,senpai-limit,senpai-poke,damo")
    mem: int = option(1024, "memory of the guest", "MIB")
    cold: int = option(400, "memory that the program does not use", "MIB")
    hot: int = option(40, "memory that it reads all the time", "MIB")
    wakes: int = option(100, "of the cold memory, the part that it needs later", "MIB", least=0)
    age: int = option(15, "memory is cold when it was not used for this time", "S")
    within: int = option(60, "from then until the phase change", "S")
    after: int = option(45, "measured after the phase change", "S")
    # Senpai's default is 1 % every 30 s: it would have freed nothing after a minute.
    probe: float = option(0.1, "Senpai's max_probe, each second", "SHARE")

    def __post_init__(self) -> None:
        self.skipped: dict[str, str] = {}
        """The arms that do not run, with the reason."""
        self.image: tuple[str, ...] = ()
        """The packages in the guest's image, which is the same for all arms."""

    def chosen(self) -> list[str]:
        asked = super().chosen()
        self.skipped = missing(asked)
        for arm, reason in self.skipped.items():
            progress(f"{self.name}: {arm} SKIPPED: {reason}")
        arms = [arm for arm in asked if arm not in self.skipped]
        self.image = tuple(sorted({NEEDS[arm] for arm in arms if arm in NEEDS}))
        return arms

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {"image": self.image}

    def measure(self, arm: str, pair: int) -> Run:
        with (
            Calm() as calm,
            Guest(self.kernel, self.mem, Zram(2 * self.cold), prealloc=True, debian=self.image) as guest,
        ):
            guest.write(MGLRU_SWITCH, "y")
            for group in ("load", "peer"):
                guest.group(group)
            # damo needs it. systemd mounts it where it is process 1.
            guest.shell("mount -t tracefs tracefs /sys/kernel/tracing")
            if arm == "damo":
                # Python compiles damo, and damo probes the kernel, before the measurement.
                guest.run([*DAMO_COMMAND, "report", "sysinfo"], timeout=300)
            untouched = state(guest)
            sizes = ("--hot", f"{self.hot}M", "--cold", f"{self.cold}M", "--wakes", f"{self.wakes}M")
            command = ["omr-guest", "footprint", "--raw", "/tmp/samples", "--compressible", "75", *sizes]
            load = guest.spawn(command, group="load")
            cold_since = load.line_with("cold_since_ns", timeout=300)["cold_since_ns"]
            recorder = guest.spawn(["omr-guest", "record", "--every", "500ms", "load"])
            first = figures(guest)
            self.begin(guest, arm, load.pid)

            # The lab asks the guest for nothing while the program is measured.
            until(guest, cold_since + (self.age + self.within) * 10**9)
            changing = figures(guest)
            load.kill(signal.SIGUSR1)
            until(guest, guest.monotonic_ns() + self.after * 10**9)
            last = figures(guest)
            change = load.line_with("changed_ns")

            guest.write("/sys/fs/cgroup/peer/cgroup.kill", "1")
            left = [f"{name} {value}" for name, value in state(guest).items() if value != untouched.get(name)]
            recorder.kill()
            load.kill()
            ended = load.wait(timeout=120).stdout.splitlines()
            samples = list(struct.iter_unpack("<QIII", guest.read_long("/tmp/samples")))
            zero = change["changed_ns"]
            return {
                "arm": arm,
                "cold": self.cold * MIB,
                "within_s": self.within,
                "cold_s": (cold_since + self.age * 10**9 - zero) / 1e9,
                "change": change,
                "figures": [first, changing, last],
                "left_behind": left,
                "errors": json.loads(ended[-1])["errors"],
                "current": [
                    [round((line["monotonic_ns"] - zero) / 1e9, 3), line["groups"]["load"]] for line in recorder.lines()
                ],
                "calm_s": calm.seconds(guest, zero),
                "due_s": [round((due - zero) / 1e9, 4) for due, *_ in samples],
                "response_us": [(late + busy) // 1000 for _, late, busy, _ in samples],
                "major_faults": [faults for *_, faults in samples],
            }

    def begin(self, guest: Guest, arm: str, pid: int) -> None:
        """Starts the program that reclaims, in a group of its own."""
        age = f"{self.age}s"
        match arm:
            case "ages":
                loop = f"while :; do omr reclaim load max --older-than {age} --wait; done"
                guest.spawn(["sh", "-c", loop], group="peer")
            case "daemon":
                rule = f'[[group]]\nmatch = "load"\nclass = "background"\nolder_than = "{age}"\n'
                guest.write(CONFIG, QUICK.format(idle="5s", top='goal = "free"') + rule, create=True)
                guest.spawn(["omr", "daemon", "--foreground", "--config", CONFIG], group="peer")
            case "blind":
                guest.spawn(["omr", "reclaim", "load", f"{self.cold}M"], group="peer")
            case "senpai-limit" | "senpai-poke":
                poke = {"immediate_backoff": "true"} if arm == "senpai-poke" else {}
                senpai = {
                    "cgroup": "load",
                    "interval": "1",
                    "max_probe": str(self.probe),
                    "limit_min_bytes": str(10 * MIB),
                } | poke
                ruleset = {
                    "name": "senpai",
                    "detectors": [["always", {"name": "continue", "args": {}}]],
                    "actions": [{"name": "senpai", "args": senpai}],
                }
                guest.write(OOMD_CONFIG, json.dumps({"rulesets": [ruleset]}), create=True)
                guest.spawn(["oomd", "--interval", "1", "--config", OOMD_CONFIG], group="peer")
            case "damo":
                # For the program alone: otherwise it would reclaim from the lab's agent, too.
                scheme = ["--damos_action", "pageout", "--damos_access_rate", "0%", "0%", "--damos_age", age, "max"]
                guest.run([*DAMO_COMMAND, "start", "--target_pid", str(pid), *scheme], group="peer", timeout=120)

    def summary(self, run: Run) -> str:
        return (
            f"{freed(run):.1f} % of the cold freed, {run['change']['hot_out'] // 4096} hot pages,"
            f" {refaults(run):.0f} refaults before the change, p99 {hot_p99(run) or float('nan'):.1f} ms"
        )

    def guest(self) -> dict[str, Any]:
        sizes = {"cold_mib": self.cold, "hot_mib": self.hot, "wakes_mib": self.wakes}
        return {"mem_mib": self.mem, "swap": "zram", **sizes}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A figure without the name of an arm belongs to the arm
        `ages`.
        """
        arms: dict[str, dict[str, Metric]] = {}
        for arm, runs in results.items():
            arms[arm] = {name: Metric([figure(run) for run in runs], unit) for name, (figure, unit) in FIGURES.items()}
            arms[arm][f"cold_freed_pct_{runs[0]['within_s']}s"] = arms[arm].pop("cold_freed_pct")
            if "none" in results:
                if ratios := p99_ratios(results["none"], runs):
                    arms[arm]["hot_p99_ratio"] = Metric(ratios, "ratio")
                pairs = zip(results["none"], runs)
                arms[arm]["recovery"] = Metric([recovery(run, normal(none)) for none, run in pairs], "s")
        found = {}
        if "ages" in arms:
            for name in ("cold_freed_pct_60s", "refaults_before_phase", "hot_p99_ratio"):
                if metric := arms["ages"].get(name):
                    found[name] = Metric(metric.values, metric.unit, GOALS[name])
            for name in ("recovery", "last_fault"):
                if metric := arms.get("senpai-limit", {}).get(name):
                    # The resolution of both is a tenth of a second.
                    ratios = [senpai / max(omr, 0.1) for senpai, omr in zip(metric.values, arms["ages"][name].values)]
                    found[f"{name}_over_senpai"] = Metric(ratios, "ratio", GOALS.get(f"{name}_over_senpai"))
        found |= {f"{name}_{arm}": metric for arm, figures in arms.items() for name, metric in figures.items()}
        errors = [float(run["errors"]) for runs in results.values() for run in runs]
        return found | {"content_errors": Metric([sum(errors)], "words", "= 0")}

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        return {"left_behind": self.left_behind(results), "skipped": self.not_run(results)}

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        tables = {"Settings that are left after kill -9": self.left_behind(results)}
        not_run = self.not_run(results)
        return tables | ({"Not run": not_run} if not_run else {})

    def left_behind(self, results: Results[Run]) -> dict[str, str]:
        return {LABELS[arm]: ", ".join(runs[-1]["left_behind"]) or "nothing" for arm, runs in results.items()}

    def not_run(self, results: Results[Run]) -> dict[str, str]:
        """The arms and figures that are missing, with the reason."""
        if {"none", "ages"} <= set(results) and not p99_ratios(results["none"], results["ages"]):
            few = f"not {ENOUGH} requests in seconds in which the host lost no CPU time"
            return self.skipped | {"hot_p99_ratio": few}
        return self.skipped

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (memory, time) = canvas(rows=2, height=7.5, sharex=True)
        for arm, runs in results.items():
            for number, run in enumerate(runs):
                seconds, current = zip(*run["current"])
                label = None if number else LABELS[arm]
                freed_mib = [(current[0] - value) / MIB for value in current]
                memory.plot(seconds, freed_mib, color=ARM_COLOURS[arm], linewidth=1, label=label)
            begin, end = (round(statistics.median(run["due_s"][place] for run in runs)) for place in (0, -1))
            felt = {
                second: [found for run in runs if (found := responses(run, second, second + WINDOW))]
                for second in range(begin, end)
            }
            slow = [
                (second, statistics.median(quantile(found, 0.99) for found in of)) for second, of in felt.items() if of
            ]
            time.plot(*zip(*slow), color=ARM_COLOURS[arm], linewidth=1)
        cold = next(iter(results.values()))[0]
        memory.axhline(cold["cold"] / MIB, color="#333333", linewidth=0.8, linestyle=":")
        for axes in (memory, time):
            axes.axvline(0, color="#333333", linewidth=0.8)
            axes.axvline(cold["cold_s"], color="#333333", linewidth=0.8, linestyle=":")
        memory.set_ylabel("MiB freed")
        memory.set_title("Memory freed")
        memory.legend(loc="upper left", bbox_to_anchor=(1, 1))
        time.set_yscale("log")
        time.set_ylabel("ms")
        time.set_xlabel("seconds from the phase change")
        time.set_title("p99 of the program's requests, each second")
        save(figure, directory / f"{self.name}.png")
        return {
            f"{self.name}.png": "Above all runs of each arm, below the median of their p99 in each second. From the"
            " first dotted line on the cold memory (the level line) is cold by the rule; at 0 part of it is needed"
            " again."
        }


def missing(arms: list[str]) -> dict[str, str]:
    """The arms whose peer is not available, with the reason."""
    found = {}
    for arm in arms:
        try:
            if arm in NEEDS:
                packages.programs(NEEDS[arm])
        except PackageMissing as reason:
            found[arm] = str(reason)
    return found


def until(guest: Guest, monotonic_ns: int) -> None:
    left = (monotonic_ns - guest.monotonic_ns()) / 1e9
    guest.run(["sleep", f"{max(0.0, left):.3f}"], timeout=left + 120)


def figures(guest: Guest) -> Counters:
    """The counters of the program and of the peer."""
    stat = dict(line.split() for line in guest.read("/sys/fs/cgroup/load/memory.stat").splitlines())
    stalled = guest.read("/sys/fs/cgroup/load/memory.pressure").split("total=")[1].split()[0]
    cpu = guest.read("/sys/fs/cgroup/peer/cpu.stat").split()[1]
    # A kernel thread does damo's work.
    threads = guest.shell("cat /proc/[0-9]*/stat 2> /dev/null | grep '(kdamond' || :").splitlines()
    ticks = sum(int(field) for line in threads for field in line.rsplit(")", 1)[1].split()[11:13])
    return {
        "refaults": int(stat["workingset_refault_anon"]) + int(stat["workingset_refault_file"]),
        "stalled_s": int(stalled) / 1e6,
        "peer_cpu_s": int(cpu) / 1e6 + ticks / 100,
    }


def state(guest: Guest) -> dict[str, str]:
    """The settings that a peer may change."""
    found = {
        name: guest.read(f"/sys/fs/cgroup/load/{name}").strip() for name in ("memory.high", "memory.max", "memory.low")
    }
    found["swappiness"] = guest.read("/proc/sys/vm/swappiness").strip()
    try:
        for number in range(int(guest.read(f"{DAMON}/nr_kdamonds"))):
            found[f"kdamond {number}"] = guest.read(f"{DAMON}/{number}/state").strip()
    except AgentError:
        pass
    return found


def freed(run: Run) -> float:
    """Percent of the cold memory that was out of memory at the phase change."""
    return 100 * run["change"]["cold_out"] / run["cold"]


def refaults(run: Run) -> float:
    first, changing, _ = run["figures"]
    return float(changing["refaults"] - first["refaults"])


def responses(run: Run, begin: float, end: float) -> list[float]:
    """Response times in ms of the requests that were due between these seconds."""
    return [response / 1000 for due, response in zip(run["due_s"], run["response_us"]) if begin <= due < end]


def hot_p99(run: Run) -> float | None:
    """The p99 before the phase change, of seconds in which the host lost no CPU time.

    None where these are too few requests.
    """
    calm = [second for second in run["calm_s"] if run["due_s"][0] <= second <= -1]
    found = [response for second in calm for response in responses(run, second, second + 1)]
    return quantile(found, 0.99) if len(found) >= ENOUGH else None


def p99_ratios(none: list[Run], runs: list[Run]) -> list[float]:
    """The ratio of each p99 to the p99 without reclaim, for the pairs in which both are known."""
    pairs = [(hot_p99(before), hot_p99(after)) for before, after in zip(none, runs)]
    return [felt / usual for usual, felt in pairs if usual and felt]


def normal(run: Run) -> float:
    """The median of the p99 in each second after the phase change, for a run without reclaim."""
    seconds = range(int(run["due_s"][-1]))
    return statistics.median(
        quantile(found, 0.99) for second in seconds if (found := responses(run, second, second + WINDOW))
    )


def recovery(run: Run, usual: float) -> float:
    """Seconds from the phase change until a second is normal again, or until the end."""
    end = run["due_s"][-1]
    rate = len(responses(run, -10, 0)) / 10
    for tenth in range(max(1, int(10 * (end - WINDOW)))):
        found = responses(run, tenth / 10, tenth / 10 + WINDOW)
        # Lost requests count as late.
        if len(found) >= 0.9 * WINDOW * rate and quantile(found, 0.99) <= NORMAL * usual:
            return tenth / 10
    return end


def last_fault(run: Run) -> float:
    """Seconds from the phase change until the program waited for swap for the last time."""
    return max([due for due, faults in zip(run["due_s"], run["major_faults"]) if faults and due > 0], default=0.0)


FIGURES: dict[str, tuple[Callable[[Run], float], str]] = {
    "cold_freed_pct": (freed, "%"),
    "hot_out_mib": (lambda run: run["change"]["hot_out"] / MIB, "MiB"),
    "refaults_before_phase": (refaults, "pages"),
    "stalled_before_phase": (lambda run: run["figures"][1]["stalled_s"] - run["figures"][0]["stalled_s"], "s"),
    "stalled_after_phase": (lambda run: run["figures"][2]["stalled_s"] - run["figures"][1]["stalled_s"], "s"),
    "last_fault": (last_fault, "s"),
    "peer_cpu": (lambda run: run["figures"][2]["peer_cpu_s"], "s"),
    "left_behind": (lambda run: float(len(run["left_behind"])), "settings"),
}
