"""A program holds much that it does not use, until part of that is needed after all: how much do omr and its peers take from it,
what does the program feel, how soon is all well again, and what is left behind when the one who took is killed?"""

import argparse
import json
import signal
import statistics
import struct
from pathlib import Path
from typing import Any

from .. import packages
from ..agent import AgentError
from ..guest import MIB, Guest, Zram
from ..host import Calm
from ..packages import DAMO, PackageMissing
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress, quantile

NAME = "footprint"

LABELS = {
    "none": "nothing",
    "ages": "omr, by age",
    "blind": "omr, told how much",
    "senpai-limit": "oomd's Senpai, limit",
    "senpai-poke": "oomd's Senpai, poke",
    "damo": "damo, pageout by age",
}

ARM_COLOURS = dict(
    zip(
        LABELS,
        (COLOURS["off"], COLOURS["on"], COLOURS["machine"], COLOURS["seed"], COLOURS["by-hand"], COLOURS["swap"]),
    )
)

NEEDS = {"senpai-limit": "oomd", "senpai-poke": "oomd", "damo": DAMO}
"""By arm: the package of the peer."""

NORMAL = 1.1
"""So much of the p99 without reclaim is normal."""

WINDOW = 1.0
"""Seconds over which that p99 is taken."""

ENOUGH = 500
"""Requests, for a p99."""

GOALS = {
    "cold_freed_pct_60s": ">= 95",
    "refaults_before_phase": "= 0",
    "hot_p99_ratio": f"<= {NORMAL}",
    "recovery_over_senpai": ">= 5",
}

OOMD_CONFIG = "/etc/oomd.json"

PART = 60_000
"""Bytes of a file in one answer of the agent."""

DAMON = "/sys/kernel/mm/damon/admin/kdamonds"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument(
        "--cold", type=int, default=400, metavar="MIB", help="what the program does not use (default: %(default)s)"
    )
    parser.add_argument(
        "--hot", type=int, default=40, metavar="MIB", help="what it reads all the time (default: %(default)s)"
    )
    parser.add_argument(
        "--wakes", type=int, default=100, metavar="MIB", help="of the cold, what is needed later (default: %(default)s)"
    )
    parser.add_argument(
        "--age", type=int, default=15, metavar="S", help="not used for so long is cold (default: %(default)s)"
    )
    parser.add_argument(
        "--within", type=int, default=60, metavar="S", help="from then until the phase change (default: %(default)s)"
    )
    parser.add_argument(
        "--after", type=int, default=45, metavar="S", help="measured after the phase change (default: %(default)s)"
    )
    # Its default is 1 % every 30 s: after a minute it would have taken nothing, and there would be nothing to come back from.
    parser.add_argument(
        "--probe",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="Senpai's max_probe, each second (default: %(default)s)",
    )
    parser.add_argument("--pairs", type=int, default=3, help="how often each arm runs (default: %(default)s)")
    parser.add_argument("--arms", default=",".join(LABELS), help="arms in turn (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/footprint)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = arguments.arms.split(",")
    if unknown := set(asked) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    skipped = missing(asked)
    for arm, reason in skipped.items():
        progress(f"{NAME}: {arm} SKIPPED: {reason}")
    arms = [arm for arm in asked if arm not in skipped]
    # One image for all arms.
    image = tuple(sorted({NEEDS[arm] for arm in arms if arm in NEEDS}))
    setting = {
        name: vars(arguments)[name] for name in ("mem", "cold", "hot", "wakes", "age", "within", "after", "probe")
    }
    runs = Runs(NAME, identity(arguments.kernel) | setting | {"image": image}, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for pair in range(1, arguments.pairs + 1):
        for arm in arms if pair % 2 else reversed(arms):
            measured = runs.run(f"pair-{pair:02}-{arm}", lambda name: measure(arguments, arm, image))
            results[arm].append(measured)
            progress(
                f"{NAME}: {arm}: {freed(measured):.1f} % of the cold taken, {measured['change']['hot_out'] // 4096} hot pages,"
                f" {refaults(measured):.0f} refaults before the change, p99 {hot_p99(measured) or float('nan'):.1f} ms"
            )

    guest = {
        "mem_mib": arguments.mem,
        "swap": "zram",
        **{f"{name}_mib": setting[name] for name in ("cold", "hot", "wakes")},
    }
    left = {LABELS[arm]: ", ".join(runs[-1]["left_behind"]) or "nothing" for arm, runs in results.items()}
    figures = metrics(results)
    if {"none", "ages"} <= set(results) and "hot_p99_ratio" not in figures:
        skipped["hot_p99_ratio"] = f"not {ENOUGH} requests in seconds in which nobody took the host's CPUs"
    result = runs.finish(guest, arguments.pairs, figures, left_behind=left, skipped=skipped)
    plots = draw(results, runs.directory)
    command = (
        f"lab/run footprint --kernel {arguments.kernel} {' '.join(f'--{name} {value}' for name, value in setting.items())}"
        f" --pairs {arguments.pairs} --arms {arguments.arms}"
    )
    tables = {"What is left behind after kill -9": left} | ({"Not run": skipped} if skipped else {})
    write_report(runs.directory, "omr beside its peers", __doc__ or "", command, result, plots, tables)
    return result


def missing(arms: list[str]) -> dict[str, str]:
    """Arms whose peer cannot be had here, and why."""
    found = {}
    for arm in arms:
        try:
            if arm in NEEDS:
                packages.programs(NEEDS[arm])
        except PackageMissing as reason:
            found[arm] = str(reason)
    return found


def measure(arguments: argparse.Namespace, arm: str, image: tuple[str, ...]) -> dict[str, Any]:
    """One run of one arm in a guest of its own."""
    with (
        Calm() as calm,
        Guest(arguments.kernel, arguments.mem, Zram(2 * arguments.cold), prealloc=True, debian=image) as guest,
    ):
        guest.write("/sys/kernel/mm/lru_gen/enabled", "y")
        for group in ("load", "peer"):
            guest.group(group)
        # Where systemd is process 1 it is there; damo asks for it.
        guest.shell("mount -t tracefs tracefs /sys/kernel/tracing")
        if arm == "damo":
            # Python compiles it and it looks at the kernel now, and not while something is measured.
            guest.run([*DAMO_COMMAND, "report", "sysinfo"], timeout=300)
        untouched = state(guest)
        load = guest.spawn(
            ["omr-testkit", "footprint", "--raw", "/tmp/samples", "--compressible", "75"]
            + [word for name in ("hot", "cold", "wakes") for word in (f"--{name}", f"{vars(arguments)[name]}M")],
            group="load",
        )
        cold_since = load.line_with("cold_since_ns", timeout=300)["cold_since_ns"]
        recorder = guest.spawn(["omr-testkit", "record", "--every", "500ms", "load"])
        first = figures(guest)
        begin(guest, arm, load.pid, arguments)

        # Nothing is asked of the guest while the program is measured.
        until(guest, cold_since + (arguments.age + arguments.within) * 10**9)
        changing = figures(guest)
        load.kill(signal.SIGUSR1)
        until(guest, guest.monotonic_ns() + arguments.after * 10**9)
        last = figures(guest)
        change = load.line_with("changed_ns")

        guest.write("/sys/fs/cgroup/peer/cgroup.kill", "1")
        left = [f"{name} {value}" for name, value in state(guest).items() if value != untouched.get(name)]
        recorder.kill()
        load.kill()
        ended = load.wait(timeout=120).stdout.splitlines()
        samples = list(struct.iter_unpack("<QIII", in_parts(guest, "/tmp/samples")))
        zero = change["changed_ns"]
        return {
            "arm": arm,
            "cold": arguments.cold * MIB,
            "within_s": arguments.within,
            "cold_s": (cold_since + arguments.age * 10**9 - zero) / 1e9,
            "change": change,
            "figures": [first, changing, last],
            "left_behind": left,
            "errors": json.loads(ended[-1])["errors"],
            # Seconds from the phase change, before it negative.
            "current": [
                [round((line["monotonic_ns"] - zero) / 1e9, 3), line["groups"]["load"]] for line in recorder.lines()
            ],
            "calm_s": calm.seconds(guest, zero),
            "due_s": [round((due - zero) / 1e9, 4) for due, *_ in samples],
            "response_us": [(late + busy) // 1000 for _, late, busy, _ in samples],
            "major_faults": [faults for *_, faults in samples],
        }


DAMO_COMMAND = ("env", "PYTHONPATH=/lib", "python3", "-m", "damo.damo")


def begin(guest: Guest, arm: str, pid: int, arguments: argparse.Namespace) -> None:
    """Starts the arm's program, in a group of its own."""
    age = f"{arguments.age}s"
    match arm:
        case "ages":
            guest.spawn(["sh", "-c", f"while :; do omr reclaim load max --older-than {age} --wait; done"], group="peer")
        case "blind":
            guest.spawn(["omr", "reclaim", "load", f"{arguments.cold}M"], group="peer")
        case "senpai-limit" | "senpai-poke":
            poke = {"immediate_backoff": "true"} if arm == "senpai-poke" else {}
            senpai = {
                "cgroup": "load",
                "interval": "1",
                "max_probe": str(arguments.probe),
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
            # Of the program alone: of the whole machine it takes from everybody, the lab's agent included.
            scheme = ["--damos_action", "pageout", "--damos_access_rate", "0%", "0%", "--damos_age", age, "max"]
            guest.run([*DAMO_COMMAND, "start", "--target_pid", str(pid), *scheme], group="peer", timeout=120)


def until(guest: Guest, monotonic_ns: int) -> None:
    left = (monotonic_ns - guest.monotonic_ns()) / 1e9
    guest.run(["sleep", f"{max(0.0, left):.3f}"], timeout=left + 120)


def in_parts(guest: Guest, path: str) -> bytes:
    """A file that is too long for one answer over an emulated serial port: 480 kB took more than a minute on a busy host."""
    found = b""
    while True:
        guest.shell(f"dd if={path} of={path}.part bs={PART} skip={len(found) // PART} count=1 2> /dev/null")
        part = guest.read_bytes(f"{path}.part")
        found += part
        if len(part) < PART:
            return found


def figures(guest: Guest) -> dict[str, float]:
    """What is counted from the beginning on."""
    stat = dict(line.split() for line in guest.read("/sys/fs/cgroup/load/memory.stat").splitlines())
    stalled = guest.read("/sys/fs/cgroup/load/memory.pressure").split("total=")[1].split()[0]
    cpu = guest.read("/sys/fs/cgroup/peer/cpu.stat").split()[1]
    # The kernel's thread works for damo.
    threads = guest.shell("cat /proc/[0-9]*/stat 2> /dev/null | grep '(kdamond' || :").splitlines()
    ticks = sum(int(field) for line in threads for field in line.rsplit(")", 1)[1].split()[11:13])
    return {
        "refaults": int(stat["workingset_refault_anon"]) + int(stat["workingset_refault_file"]),
        "stalled_s": int(stalled) / 1e6,
        "peer_cpu_s": int(cpu) / 1e6 + ticks / 100,
    }


def state(guest: Guest) -> dict[str, str]:
    """What a peer could leave behind."""
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


def freed(measured: dict[str, Any]) -> float:
    """Percent of the cold memory that was not in memory when the phase change came."""
    return 100 * measured["change"]["cold_out"] / measured["cold"]


def refaults(measured: dict[str, Any]) -> float:
    first, changing, _ = measured["figures"]
    return float(changing["refaults"] - first["refaults"])


def responses(measured: dict[str, Any], begin: float, end: float) -> list[float]:
    """Milliseconds that requests took which were due between these seconds."""
    return [taken / 1000 for due, taken in zip(measured["due_s"], measured["response_us"]) if begin <= due < end]


def hot_p99(measured: dict[str, Any]) -> float | None:
    """Before the phase change, in seconds in which nobody took the host's CPUs; `None` where there were too few."""
    calm = [second for second in measured["calm_s"] if measured["due_s"][0] <= second <= -1]
    found = [taken for second in calm for taken in responses(measured, second, second + 1)]
    return quantile(found, 0.99) if len(found) >= ENOUGH else None


def normal(measured: dict[str, Any]) -> float:
    """A usual second's p99 after the phase change, of a run in which nothing was taken."""
    seconds = range(int(measured["due_s"][-1]))
    return statistics.median(
        quantile(found, 0.99) for second in seconds if (found := responses(measured, second, second + WINDOW))
    )


def recovery(measured: dict[str, Any], usual: float) -> float:
    """Seconds from the phase change until a second is normal again; to the end where none is."""
    end = measured["due_s"][-1]
    rate = len(responses(measured, -10, 0)) / 10
    for tenth in range(max(1, int(10 * (end - WINDOW)))):
        found = responses(measured, tenth / 10, tenth / 10 + WINDOW)
        # Requests that were lost in between would have been late.
        if len(found) >= 0.9 * WINDOW * rate and quantile(found, 0.99) <= NORMAL * usual:
            return tenth / 10
    return end


def last_fault(measured: dict[str, Any]) -> float:
    """Seconds from the phase change until the last time that the program waited for swap."""
    return max(
        [due for due, faults in zip(measured["due_s"], measured["major_faults"]) if faults and due > 0], default=0.0
    )


FIGURES = {
    "cold_freed_pct": (freed, "%"),
    "hot_out_mib": (lambda run: run["change"]["hot_out"] / MIB, "MiB"),
    "refaults_before_phase": (refaults, "pages"),
    "stalled_before_phase": (lambda run: run["figures"][1]["stalled_s"] - run["figures"][0]["stalled_s"], "s"),
    "stalled_after_phase": (lambda run: run["figures"][2]["stalled_s"] - run["figures"][1]["stalled_s"], "s"),
    "last_fault": (last_fault, "s"),
    "peer_cpu": (lambda run: run["figures"][2]["peer_cpu_s"], "s"),
    "left_behind": (lambda run: float(len(run["left_behind"])), "settings"),
}


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """Those without an arm's name are of omr by age."""
    arms: dict[str, dict[str, Metric]] = {}
    for arm, runs in results.items():
        arms[arm] = {name: Metric([figure(run) for run in runs], unit) for name, (figure, unit) in FIGURES.items()}
        arms[arm][f"cold_freed_pct_{runs[0]['within_s']}s"] = arms[arm].pop("cold_freed_pct")
        if "none" in results:
            pairs = list(zip(results["none"], runs))
            known = [(usual, felt) for none, run in pairs if (usual := hot_p99(none)) and (felt := hot_p99(run))]
            if known:
                arms[arm]["hot_p99_ratio"] = Metric([felt / usual for usual, felt in known], "ratio")
            arms[arm]["recovery"] = Metric([recovery(run, normal(none)) for none, run in pairs], "s")
    found = {}
    if "ages" in arms:
        for name in ("cold_freed_pct_60s", "refaults_before_phase", "hot_p99_ratio"):
            if metric := arms["ages"].get(name):
                found[name] = Metric(metric.values, metric.unit, GOALS[name])
        for name in ("recovery", "last_fault"):
            if metric := arms.get("senpai-limit", {}).get(name):
                # Looked at each tenth of a second.
                ratios = [senpai / max(omr, 0.1) for senpai, omr in zip(metric.values, arms["ages"][name].values)]
                found[f"{name}_over_senpai"] = Metric(ratios, "ratio", GOALS.get(f"{name}_over_senpai"))
    found |= {f"{name}_{arm}": metric for arm, figures in arms.items() for name, metric in figures.items()}
    errors = [float(run["errors"]) for runs in results.values() for run in runs]
    return found | {"content_errors": Metric([sum(errors)], "words", "= 0")}


def draw(results: dict[str, list[dict[str, Any]]], directory: Path) -> dict[str, str]:
    figure, (memory, time) = canvas(rows=2, height=7.5, sharex=True)
    for arm, runs in results.items():
        for number, measured in enumerate(runs):
            seconds, current = zip(*measured["current"])
            label = None if number else LABELS[arm]
            freed_mib = [(current[0] - value) / MIB for value in current]
            memory.plot(seconds, freed_mib, color=ARM_COLOURS[arm], linewidth=1, label=label)
        begin, end = (round(statistics.median(run["due_s"][place] for run in runs)) for place in (0, -1))
        felt = {
            second: [found for run in runs if (found := responses(run, second, second + WINDOW))]
            for second in range(begin, end)
        }
        slow = [(second, statistics.median(quantile(found, 0.99) for found in of)) for second, of in felt.items() if of]
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
    save(figure, directory / f"{NAME}.png")
    return {
        f"{NAME}.png": "Above all runs of each arm, below the median of their p99 in each second. From the first dotted line on the cold"
        " memory (the level line) is cold by the rule; at 0 part of it is needed again."
    }
