"""Four programs of which a part of the memory is used again after a while: three with planted
laws, and Redis. How much does a program that reclaims hold out of memory, and how often does too
much come back?

The arms: omr with its default configuration, and oomd's Senpai with several settings. The best
fixed age in hindsight is computed from the planted laws.

The guest's clock counts instructions, so a busy host changes nothing. A script in the guest takes
the readings: while the host waits for a second, such a guest lives for minutes.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from matplotlib.axes import Axes

from ..daemon import Daemon
from ..guest import COUNTED, MGLRU_SWITCH, MIB, Guest, Process, Zram
from ..plots import COLOURS, canvas, headline, save
from ..results import Metric, quantile
from ..scenario import Comparison, Results, arms_option, option

LABELS = {
    "omr": "omr, default",
    "senpai": "Senpai, default",
    "senpai-poke": "Senpai, poke",
    "senpai-gentle": "Senpai, poke, a tenth of the pressure",
    "senpai-slow": "Senpai, poke, a twentieth of the steps",
}

ARM_COLOURS = {
    "omr": COLOURS["on"],
    "senpai": COLOURS["seed"],
    "senpai-poke": COLOURS["by-hand"],
    "senpai-gentle": COLOURS["swap"],
    "senpai-slow": COLOURS["prepare"],
}

SENPAI: dict[str, dict[str, str]] = {
    "senpai": {},
    "senpai-poke": {"immediate_backoff": "true"},
    "senpai-gentle": {"immediate_backoff": "true", "pressure_pct": "0.01", "io_pressure_pct": "0.01"},
    "senpai-slow": {"immediate_backoff": "true", "max_probe": "0.0005"},
}
"""What each arm of Senpai changes of its defaults."""

LAWS = ("zipf", "phases", "drift")

REDIS = "redis"

OOMD_CONFIG = "/etc/oomd.json"

OBJECTIVE = 0.002
"""P: the part of the working set that may come back each minute. zram is fast: P is not scaled."""

KEPT = 0.98
"""K: the part of all minutes in which P must hold, for the best fixed age."""

EVERY = 60.0
"""Seconds between two readings."""

SCRIPT = "/tmp/readings.sh"

LOG = "/tmp/readings"

READ = """
left=$1
while :; do
    read uptime _ < /proc/uptime
    echo "reading $uptime"
    for name in {groups}; do
        read held < /sys/fs/cgroup/load/$name/memory.swap.current
        echo "held $name $held"
        while read key value; do
            case $key in workingset_refault_*) echo "back $name $value" ;; esac
        done < /sys/fs/cgroup/load/$name/memory.stat
    done
    while read number rest; do
        case $number in memcg) echo "memcg $rest" ;; [0-9]*) echo "generation $number" ;; esac
    done 2> /dev/null < /sys/kernel/debug/lru_gen
    [ $left -gt 0 ] || break
    left=$((left - 1))
    sleep $2
done > {log}
"""
"""Writes a reading every so many seconds. /sys/kernel/debug/lru_gen is there with MGLRU alone."""

SERVER = "redis-server --save '' --appendonly no --enable-debug-command yes --port 6379"

# Eight keys that the time chooses, as the random numbers of Redis's Lua begin anew in each script.
ASK = """
local now = redis.call('TIME')
local number = now[1] * 1000003 + now[2]
for turn = 1, 8 do
    number = (number * 48271 + turn) % 2147483647
    redis.call('GET', 'key:' .. number % {keys})
end
"""

ASK_EVERY = 0.02

PAGE = 4096

VALUE = 2000
"""Bytes of a value in Redis. It takes 2 KiB."""


class Minute(TypedDict):
    """What a planted load printed, in blocks."""

    minute: int
    monotonic_ns: int
    working: int
    unused: list[int]
    again: list[int]


class Planted(TypedDict):
    block: int
    ages_s: list[int]
    minutes: list[Minute]
    errors: int


class Look(TypedDict):
    """The counters of one group."""

    held: int
    """Bytes in swap."""
    back: int
    """Bytes that came back since boot."""
    agings: int
    """The number of the youngest generation. 0 without MGLRU."""


class Reading(TypedDict):
    monotonic: float
    groups: dict[str, Look]


class Run(TypedDict):
    arm: str
    since: float
    """The start of the measurement on the guest's monotonic clock, in seconds."""
    planted: dict[str, Planted]
    redis_hot: int
    """Bytes of the values that are read."""
    readings: list[Reading]
    explained: dict[str, str]
    """omr explain at the end."""
    ledger: list[dict[str, Any]]


@dataclass(kw_only=True)
class Slo(Comparison[Run]):
    name = "slo"
    help = "planted loads and Redis: what omr and Senpai hold, and what comes back (2 hours a pair)"
    title = "The promotion objective"
    labels = LABELS
    lru_gen: ClassVar[str] = "y"
    goals: ClassVar[dict[str, str]] = {
        "slo_minutes_over_pct": "<= 3",
        "cold_held_of_best_pct": ">= 80",
        "cold_held_over_senpai": ">= 1.3",
    }

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(2048, "memory of the guest", "MIB")
    amount: int = option(320, "memory of each planted load", "MIB")
    redis: int = option(288, "values in Redis; 0: no Redis", "MIB", least=0)
    hot: int = option(24, "of them, those that are read", "MIB")
    laws: str = option(",".join(LAWS), "planted loads")
    phase: float = option(20, "from one move of the hot memory to the next, with phases", "MINUTES")
    learn: float = option(40, "before the measurement", "MINUTES", least=0)
    minutes: float = option(60, "measured", "MINUTES", least=2)

    @contextmanager
    def programs(self, seed: int) -> Iterator[tuple[Guest, dict[str, Process]]]:
        """A guest in which the programs run, and the planted loads."""
        # The guest gives free memory back to its host, so all cold memory is wanted.
        with Guest(
            self.kernel,
            self.mem,
            Zram(self.mem),
            # Linux 6.1 does not start a second CPU under this clock.
            smp=1,
            balloon=True,
            debian=("oomd", "redis-tools"),
            accelerator=COUNTED,
            boot_timeout=600,
        ) as guest:
            guest.write(MGLRU_SWITCH, self.lru_gen)
            for group in ("load", "peer"):
                guest.group(group)
            guest.write("/sys/fs/cgroup/load/cgroup.subtree_control", "+memory +cpu +io")
            loads = {law: self.plant(guest, law, seed) for law in self.laws.split(",")}
            if self.redis:
                self.start_redis(guest)
            yield guest, loads

    def measure(self, arm: str, pair: int) -> Run:
        with self.programs(pair) as (guest, loads):
            daemon = self.begin(guest, arm)
            since = guest.monotonic_ns() / 1e9 + 60 * self.learn
            readings = self.readings(guest, self.learn + self.minutes)
            # Before the programs end, and their memory with them.
            explained = {name: explain(guest, name) for name in self.groups()} if daemon else {}
            return {
                "arm": arm,
                "since": since,
                "planted": {law: result(guest, load) for law, load in loads.items()},
                "redis_hot": self.hot * MIB,
                "readings": readings,
                "explained": explained,
                "ledger": daemon.ledger() if daemon else [],
            }

    def groups(self) -> list[str]:
        return [*self.laws.split(","), *([REDIS] if self.redis else [])]

    def plant(self, guest: Guest, law: str, seed: int) -> Process:
        guest.group(f"load/{law}")
        command = ["omr-guest", "reuse", law, f"{self.amount}M", "--seed", str(seed)]
        command += ["--phase", f"{60 * self.phase:.0f}s"]
        load = guest.spawn(command, group=f"load/{law}")
        load.line_with("ready", timeout=300)
        return load

    def start_redis(self, guest: Guest) -> None:
        """Redis with values of which a part is read. The client is in a group of its own."""
        guest.group(f"load/{REDIS}")
        guest.group("clients")
        guest.shell("ip link set lo up; ln -s /bin/redis-check-rdb /bin/redis-server")
        guest.spawn(["sh", "-c", f"exec {SERVER}"], group=f"load/{REDIS}")
        guest.wait_for(lambda: guest.run(["redis-cli", "ping"], check=False).stdout.strip() == "PONG", 60, "Redis")
        keys = str(self.redis * MIB // 2048)
        guest.run(["redis-cli", "debug", "populate", keys, "key", str(VALUE)], timeout=300)
        script = ASK.format(keys=self.hot * MIB // 2048)
        guest.run(["redis-cli", "eval", script, "0"])
        asking = ["redis-cli", "-r", "-1", "-i", f"{ASK_EVERY:g}", "eval", script, "0"]
        guest.spawn(["sh", "-c", 'exec "$@" > /dev/null', "sh", *asking], group="clients")

    def begin(self, guest: Guest, arm: str) -> Daemon | None:
        """Starts the program that reclaims."""
        if arm == "omr":
            return Daemon(guest, whole="")
        args = {"cgroup": "load/*", "limit_min_bytes": str(10 * MIB)} | SENPAI[arm]
        ruleset = {
            "name": "senpai",
            "detectors": [["always", {"name": "continue", "args": {}}]],
            "actions": [{"name": "senpai", "args": args}],
        }
        guest.write(OOMD_CONFIG, json.dumps({"rulesets": [ruleset]}), create=True)
        guest.spawn(["oomd", "--interval", "1", "--config", OOMD_CONFIG], group="peer")
        return None

    def readings(self, guest: Guest, minutes: float) -> list[Reading]:
        """Takes a reading each minute, until the measurement is over."""
        number = round(60 * minutes / EVERY)
        guest.write(SCRIPT, READ.format(groups=" ".join(self.groups()), log=LOG), create=True)
        guest.run(["sh", SCRIPT, str(number), f"{EVERY:g}"], timeout=10 * EVERY * number)
        return parsed(guest.read_long(LOG).decode())

    def summary(self, run: Run) -> str:
        return (
            f"{held_mib(run):.0f} MiB held on average, too much came back in {over_pct(run):.1f} % of the minutes"
            f" (98 % of them: {100 * p98(run):.2g} % or less)"
        )

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "zram", "load_mib": self.amount, "redis_mib": self.redis}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A figure without the name of an arm belongs to the arm
        `omr`.
        """
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            suffix = "" if arm == "omr" else f"_{arm}"
            for name, (figure, unit) in FIGURES.items():
                found[name + suffix] = Metric([figure(run) for run in runs], unit, self.goals.get(name + suffix))
            for name in self.groups():
                over = Metric([100 * share_over(run, name) for run in runs], "%")
                held = Metric([mean_held(run, name) / MIB for run in runs], "MiB")
                found |= {f"over_{name}{suffix}": over, f"held_{name}{suffix}": held}
        for law in self.laws.split(","):
            runs = next(iter(results.values()))
            found[f"best_age_{law}"] = Metric([best(run, law)[0] / 60 for run in runs], "min")
            found[f"best_held_{law}"] = Metric([best(run, law)[1] / MIB for run in runs], "MiB")
        if "omr" in results and (equal := senpai_at_equal(results)):
            ratios = [held_mib(run) / held_mib(other) for run, other in zip(results["omr"], results[equal])]
            name = "cold_held_over_senpai"
            found[name] = Metric(ratios, "ratio", self.goals.get(name))
        planted = [load for runs in results.values() for run in runs for load in run["planted"].values()]
        errors = sum(load["errors"] for load in planted)
        return found | {"content_errors": Metric([float(errors)], "words", "= 0")}

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        explained = results["omr"][-1]["explained"] if "omr" in results else {}
        equal = senpai_at_equal(results) if "omr" in results else None
        compared = {"cold_held_over_senpai": LABELS[equal] if equal else "no Senpai keeps omr's p98"}
        return {"Compared at equal p98": compared, "omr explain at the end": explained}

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        groups = self.groups()
        figure, axes = canvas(columns=len(groups), rows=2, width=3.2 * len(groups), height=6.5, sharex=True)
        for place, name in enumerate(groups):
            self.draw(axes[place], axes[len(groups) + place], name, results)
        axes[0].set_ylabel("MiB held in swap")
        axes[len(groups)].set_ylabel("% of the working set per minute")
        axes[0].legend(loc="lower right", fontsize=7)
        headline(figure, "What is held out of memory, and what comes back")
        save(figure, directory / f"{self.name}.png")
        return {
            f"{self.name}.png": "Above: memory of each program in swap; the dashed line is what the best fixed age"
            " would have held. Below: what came back each minute; the dashed line is the objective, 0.2 %. The dotted"
            " line is the start of the measurement."
        }

    def draw(self, memory: Axes, rates: Axes, name: str, results: Results[Run]) -> None:
        for arm, runs in results.items():
            for number, run in enumerate(runs):
                label = None if number else LABELS[arm]
                start = run["readings"][0]["monotonic"]
                minutes = [(reading["monotonic"] - start) / 60 for reading in run["readings"]]
                held = [reading["groups"][name]["held"] / MIB for reading in run["readings"]]
                memory.plot(minutes, held, color=ARM_COLOURS[arm], linewidth=1, label=label)
                came = [100 * rate for _, rate in all_rates(run, name)]
                rates.plot(minutes[1:], came, ".", color=ARM_COLOURS[arm], markersize=2)
        first = next(iter(results.values()))[0]
        if name in first["planted"]:
            memory.axhline(best(first, name)[1] / MIB, color="#333333", linewidth=0.8, linestyle="--")
        rates.axhline(100 * OBJECTIVE, color="#333333", linewidth=0.8, linestyle="--")
        rates.set_yscale("symlog", linthresh=0.1)
        rates.set_ylim(bottom=0)
        rates.set_xlabel("minutes")
        for axes in (memory, rates):
            axes.axvline(self.learn, color="#333333", linewidth=0.8, linestyle=":")
        memory.set_title(name)


def explain(guest: Guest, name: str) -> str:
    return guest.run(["omr", "explain", f"load/{name}"]).stdout


def result(guest: Guest, load: Process) -> Planted:
    """Ends a planted load, and returns what it printed."""
    load.kill()
    load.wait(timeout=120)
    lines = [json.loads(line) for line in guest.read_long(load.stdout_path).decode().splitlines()]
    ready, *minutes, ended = lines
    return {"block": ready["block"], "ages_s": ready["ages_s"], "minutes": minutes, "errors": ended["errors"]}


def parsed(log: str) -> list[Reading]:
    """The readings in what `READ` has written."""
    readings: list[Reading] = []
    group = ""
    for line in log.splitlines():
        kind, *words = line.split()
        if kind == "reading":
            readings.append({"monotonic": float(words[0]), "groups": {}})
            continue
        groups = readings[-1]["groups"]
        if kind == "held":
            groups[words[0]] = {"held": int(words[1]), "back": 0, "agings": 0}
        elif kind == "back":
            groups[words[0]]["back"] += PAGE * int(words[1])
        elif kind == "memcg":
            group = words[1].removeprefix("/load/") if len(words) > 1 else ""
        elif group in groups:
            # The kernel names the oldest generation first.
            groups[group]["agings"] = int(words[0])
    return readings


def measured(run: Run) -> list[Reading]:
    """The readings of the measurement."""
    return [reading for reading in run["readings"] if reading["monotonic"] >= run["since"] - 1]


def in_measurement(run: Run, law: str) -> list[Minute]:
    """The minutes of a planted load within the measurement."""
    return [minute for minute in run["planted"][law]["minutes"] if minute["monotonic_ns"] / 1e9 > run["since"]]


def working_set(run: Run, name: str, monotonic: float) -> float:
    """Bytes of a program that were used within 2 minutes, about this time."""
    if name not in run["planted"]:
        return run["redis_hot"]
    planted = run["planted"][name]
    near = min(planted["minutes"], key=lambda minute: abs(minute["monotonic_ns"] / 1e9 - monotonic))
    return near["working"] * planted["block"]


def all_rates(run: Run, name: str) -> list[tuple[float, float]]:
    """The end of each interval between two readings, and the part of the working set that came back
    in it, per minute.
    """
    found = []
    for before, after in zip(run["readings"], run["readings"][1:]):
        back = after["groups"][name]["back"] - before["groups"][name]["back"]
        minutes = (after["monotonic"] - before["monotonic"]) / 60
        found.append((after["monotonic"], back / working_set(run, name, after["monotonic"]) / minutes))
    return found


def rates(run: Run, name: str) -> list[float]:
    """The same in the measurement alone."""
    return [rate for at, rate in all_rates(run, name) if at > run["since"] + 1]


def names(run: Run) -> list[str]:
    return list(run["readings"][0]["groups"])


def share_over(run: Run, name: str) -> float:
    """The part of the minutes in which too much of one program came back."""
    found = rates(run, name)
    return sum(rate > OBJECTIVE for rate in found) / len(found)


def over_pct(run: Run) -> float:
    """Percent of the minutes of all programs in which too much came back."""
    return 100 * sum(share_over(run, name) for name in names(run)) / len(names(run))


def p98(run: Run) -> float:
    """What came back in a minute, at most, in 98 % of the minutes of all programs."""
    return quantile([rate for name in names(run) for rate in rates(run, name)], 0.98)


def mean_held(run: Run, name: str) -> float:
    """Bytes of one program in swap, on average over the measurement."""
    looks = [reading["groups"][name]["held"] for reading in measured(run)]
    return sum(looks) / len(looks)


def held_mib(run: Run) -> float:
    """MiB of all programs in swap, on average over the measurement."""
    return sum(mean_held(run, name) for name in names(run)) / MIB


def best(run: Run, law: str) -> tuple[int, float]:
    """The best fixed age in hindsight: the seconds of the shortest age that keeps the objective in
    98 % of the minutes, and the bytes that it would have held on average.
    """
    planted = run["planted"][law]
    minutes = in_measurement(run, law)
    for place, age in enumerate(planted["ages_s"]):
        over = sum(minute["again"][place] > OBJECTIVE * minute["working"] for minute in minutes)
        if over <= (1 - KEPT) * len(minutes):
            return age, planted["block"] * sum(minute["unused"][place] for minute in minutes) / len(minutes)
    return planted["ages_s"][-1], 0.0


def of_best_pct(run: Run) -> float:
    """What is held of the planted loads, in percent of what their best fixed ages would hold."""
    held = sum(mean_held(run, law) for law in run["planted"])
    return 100 * held / sum(best(run, law)[1] for law in run["planted"])


def senpai_at_equal(results: Results[Run]) -> str | None:
    """The arm of Senpai that holds most, of those of which no more comes back than with omr, or
    than the objective allows.
    """
    allowed = max(OBJECTIVE, Metric([p98(run) for run in results["omr"]], "").value)
    kept = {
        arm: Metric([held_mib(run) for run in runs], "").value
        for arm, runs in results.items()
        if arm in SENPAI and Metric([p98(run) for run in runs], "").value <= allowed
    }
    return max(kept, key=lambda arm: kept[arm]) if kept else None


def moves(run: Run, law: str, phase_s: float) -> list[float]:
    """The times in the measurement at which the hot memory of `phases` moved."""
    first = run["planted"][law]["minutes"][0]
    start = first["monotonic_ns"] / 1e9 - 60 * first["minute"]
    end = run["readings"][-1]["monotonic"]
    every = range(1, int((end - start) / phase_s) + 1)
    return [at for number in every if run["since"] <= (at := start + number * phase_s) < end - 60]


FIGURES: dict[str, tuple[Callable[[Run], float], str]] = {
    "slo_minutes_over_pct": (over_pct, "%"),
    "cold_held_of_best_pct": (of_best_pct, "%"),
    "held": (held_mib, "MiB"),
    "came_back_p98": (lambda run: 100 * p98(run), "%/min"),
}
