"""More applications than memory holds, a user who switches between them, and earlyoom to kill what does not fit: without swap,
with zram and the kernel alone, and with omr."""

import argparse
import signal
from pathlib import Path
from typing import Any

from ..daemon import Daemon
from ..guest import Guest, Zram
from ..paths import OUT
from ..plots import COLOURS, canvas, save
from ..report import write_report
from ..results import Metric, Runs, identity, progress, quantile

NAME = "app-switch"

LABELS = {
    "vanilla": "no swap",
    "zram": "zram",
    "rules": "zram, omr's process rules",
    "sweeps": "zram, omr's sweeps only",
    "prefetch": "zram, omr's process rules, prefetch",
}
ARM_COLOURS = {
    "vanilla": COLOURS["off"],
    "zram": COLOURS["seed"],
    "rules": COLOURS["on"],
    "sweeps": COLOURS["by-hand"],
    "prefetch": COLOURS["prepare"],
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
CONFIGS["prefetch"] = CONFIGS["rules"].replace("[hints]", '[hints]\nprefetch = "on"')
"""By arm: how the daemon knows the applications. Which one is in the foreground it is told."""

SETTING = (
    "mem", "zram", "apps", "least", "most", "compressible", "start", "switches", "stay", "earlyoom",
    "cold", "pageout", "available", "smallest",
)  # fmt: skip

GOALS = {"kills": "<= -50", "cold_starts": "<= -40", "switch_mean": "<= -30", "allocstall": "<= -60"}

SEED = {"kills": -18, "cold_starts": -17, "switch_mean": -7, "allocstall": -28}
"""What the seed measured, percent: process-madvise.txt on Android; a launch there, a switch here."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="6.12", help="kernel release (default: %(default)s)")
    parser.add_argument(
        "--mem", type=int, default=1024, metavar="MIB", help="memory of the guest (default: %(default)s)"
    )
    parser.add_argument(
        "--zram", type=int, default=2048, metavar="MIB", help="zram of the guest (default: %(default)s)"
    )
    parser.add_argument("--apps", type=int, default=12, help="applications (default: %(default)s)")
    parser.add_argument(
        "--least", type=int, default=40, metavar="MIB", help="heap of the smallest (default: %(default)s)"
    )
    parser.add_argument(
        "--most", type=int, default=200, metavar="MIB", help="heap of the largest (default: %(default)s)"
    )
    parser.add_argument(
        "--compressible",
        type=int,
        default=67,
        metavar="%",
        help="zero in each page, for zram's 3:1 of ChromeOS (default: %(default)s)",
    )
    parser.add_argument(
        "--start",
        type=int,
        default=14,
        metavar="S",
        help="CPU time that starting one that was killed costs (default: %(default)s)",
    )
    parser.add_argument("--switches", type=int, default=40, help="switches between them (default: %(default)s)")
    parser.add_argument(
        "--stay", type=float, default=3, metavar="S", help="how long the user stays (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=5,
        dest="pairs",
        help="users, each of whom works in every arm (default: %(default)s)",
    )
    parser.add_argument(
        "--earlyoom", default="-m 2 -s 100", metavar="OPTIONS", help="options of earlyoom (default: %(default)s)"
    )
    parser.add_argument("--cold", type=int, default=2, metavar="S", help="[hints] cold_after (default: %(default)s)")
    parser.add_argument(
        "--pageout", type=int, default=9, metavar="S", help="[hints] pageout_after (default: %(default)s)"
    )
    parser.add_argument(
        "--available", type=int, default=10, metavar="%", help="[hints] available (default: %(default)s)"
    )
    parser.add_argument(
        "--smallest", type=int, default=12, metavar="MIB", help="[hints] smallest (default: %(default)s)"
    )
    parser.add_argument("--arms", default="vanilla,zram,rules,sweeps", help="arms in turn (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")
    parser.add_argument(
        "--out", type=Path, default=OUT / NAME, metavar="DIR", help="where the results go (default: lab/out/app-switch)"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(LABELS):
        raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}")
    setting = {name: vars(arguments)[name] for name in SETTING}
    runs = Runs(NAME, identity(arguments.kernel) | setting, arguments.fresh, arguments.out)

    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for seed in range(1, arguments.pairs + 1):
        # A B C, C B A, ...: what drifts with time falls on all arms.
        for arm in arms if seed % 2 else reversed(arms):
            measured = runs.run(f"seed-{seed:02}-{arm}", lambda name: measure(arguments, arm, seed))
            results[arm].append(measured)
            progress(
                f"{NAME}: {arm}: {measured['kills']} kills, {cold_starts(measured)} cold starts, {mean(measured):.2f} s"
            )

    guest = {
        "mem_mib": arguments.mem,
        "zram_mib": arguments.zram,
        "heaps": f"{arguments.least} to {arguments.most} MiB",
    }
    guest |= {"apps": arguments.apps, "switches": arguments.switches}
    result = runs.finish(guest, arguments.pairs, metrics(results))
    plots = draw(results, runs.directory, guest)
    command = (
        f"lab/run app-switch --kernel {arguments.kernel} --mem {arguments.mem} --zram {arguments.zram} --apps {arguments.apps}"
        f" --least {arguments.least} --most {arguments.most} --smallest {arguments.smallest}"
        f" --compressible {arguments.compressible} --start {arguments.start}"
        f" --switches {arguments.switches} --stay {arguments.stay:g} --seeds {arguments.pairs} --arms {arguments.arms}"
    )
    write_report(runs.directory, "Switching between applications", __doc__ or "", command, result, plots)
    return result


def measure(arguments: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """One user in one arm, in a guest of its own."""
    swap = None if arm == "vanilla" else Zram(arguments.zram)
    # The applications' files are on a disk without limits: what is looked at is memory.
    with Guest(arguments.kernel, arguments.mem, swap, data_mib=256, prealloc=True, debian=("earlyoom",)) as guest:
        daemon = Daemon(guest, idle="5s", config=CONFIGS[arm].format(**vars(arguments))) if arm in CONFIGS else None
        killer = guest.spawn(["earlyoom", "-r", "0", *arguments.earlyoom.split()], group="init.scope")
        told = ["--tell", "/run/omr/omr.sock"] if daemon else []
        user = guest.spawn(
            [
                "omr-testkit",
                "user",
                "--seed",
                str(seed),
                "--apps",
                str(arguments.apps),
                "--switches",
                str(arguments.switches),
            ]
            + [
                "--least",
                str(arguments.least),
                "--most",
                str(arguments.most),
                "--stay",
                f"{arguments.stay * 1000:.0f}ms",
            ]
            + ["--compressible", str(arguments.compressible), "--start", f"{arguments.start}s", *told],
            group="init.scope",
        )
        # Nothing is asked of the guest while the user works.
        ended = user.wait(timeout=600 + arguments.switches * (arguments.stay + 60))
        if ended.code != 0:
            raise RuntimeError(f"the user ended with {ended.code or ended.signal}: {ended.stderr}")
        measured = ended.json()
        cpu = guest.read("/sys/fs/cgroup/omr.service/cpu.stat") if daemon else "usage_usec 0"
        killer.kill(signal.SIGTERM)
        return measured | {
            "arm": arm,
            "seed": seed,
            "killer": killer.wait().stderr.splitlines()[-200:],
            "omr_cpu_s": int(cpu.split()[1]) / 1e6,
            "ledger": daemon.ledger() if daemon else [],
            "log": daemon.process.stderr().splitlines()[-200:] if daemon else [],
        }


def cold_starts(measured: dict[str, Any]) -> int:
    return sum(switch["kind"] == "cold" for switch in measured["switches"])


def switches(measured: dict[str, Any]) -> list[float]:
    """Seconds of all but the first starts, which are the same in all arms."""
    return [switch["seconds"] for switch in measured["switches"] if switch["kind"] != "first"]


def hot(measured: dict[str, Any]) -> list[float]:
    """Seconds of the switches to what was still running."""
    return [switch["seconds"] for switch in measured["switches"] if switch["kind"] == "hot"]


def mean(measured: dict[str, Any]) -> float:
    times = switches(measured)
    return sum(times) / len(times)


FIGURES = {
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
    "omr_cpu": lambda run: run["omr_cpu_s"],
    # What a page costs that comes back: by this measure, too, a start has to be as dear as it is elsewhere.
    "us_per_page_in": lambda run: 1e6 * sum(hot(run)) / max(1, run["events"]["pswpin"]),
}

UNITS = {
    "switch_mean": "s",
    "switch_p50": "s",
    "switch_p90": "s",
    "switch_p99": "s",
    "stalled_some": "s",
    "omr_cpu": "s",
    "us_per_page_in": "us",
}


def metrics(results: dict[str, list[dict[str, Any]]]) -> dict[str, Metric]:
    """Changes are taken user by user: omr's process rules against zram alone."""
    found: dict[str, Metric] = {}
    if {"zram", "rules"} <= set(results):
        for name in ("kills", "cold_starts", "switch_mean", "switch_p99", "allocstall"):
            figure = FIGURES[name]
            pairs = [
                (figure(without), figure(with_omr)) for without, with_omr in zip(results["zram"], results["rules"])
            ]
            # Nothing to gain where there was none.
            changes = [100 * (after / before - 1) for before, after in pairs if before] or [0.0]
            found[f"{name}_delta_pct"] = Metric(changes, "%", GOALS.get(name), SEED.get(name))
    if {"rules", "prefetch"} <= set(results):
        for name in ("switch_mean", "switch_p50", "switch_p99"):
            figure = FIGURES[name]
            changes = [100 * (figure(on) / figure(off) - 1) for off, on in zip(results["rules"], results["prefetch"])]
            found[f"{name}_prefetch_pct"] = Metric(changes, "%")
    for arm, runs in results.items():
        for name, figure in FIGURES.items():
            found[f"{name}_{arm}"] = Metric([figure(run) for run in runs], UNITS.get(name, "count"))
    errors = [switch["errors"] for runs in results.values() for run in runs for switch in run["switches"]]
    found["content_errors"] = Metric([float(sum(errors))], "words", "= 0")
    return found


def draw(results: dict[str, list[dict[str, Any]]], directory: Path, guest: dict[str, Any]) -> dict[str, str]:
    figure, (bars, times) = canvas(columns=2, width=11, height=4.2, gridspec_kw={"width_ratios": [1, 1.35]})
    for place, (arm, runs) in enumerate(results.items()):
        for offset, name, hatch in ((-0.2, "kills", ""), (0.2, "cold_starts", "//")):
            metric = Metric([FIGURES[name](run) for run in runs], "count")
            label = {"kills": "killed", "cold_starts": "cold starts"}[name] if not place else None
            bars.bar(
                place + offset, metric.value, 0.38, color=ARM_COLOURS[arm], hatch=hatch, edgecolor="white", label=label
            )
            bars.plot([place + offset] * len(runs), metric.values, ".", color="#333333", markersize=4)
    bars.set_xticks(range(len(results)), [LABELS[arm].replace(", ", ",\n") for arm in results])
    bars.set_title("Killed, and started again")
    bars.set_ylabel("times a user, median")
    bars.grid(axis="x", visible=False)
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
    figure.suptitle(
        f"{guest['apps']} applications of {guest['heaps']} on {guest['mem_mib']} MiB, {guest['switches']} switches",
        x=0.01, ha="left", fontsize=12, fontweight="bold",
    )  # fmt: skip
    save(figure, directory / "app-switch.png")
    return {
        "app-switch.png": "Left: how often an application was killed, and how often it had to be started again, the median of all"
        " users and each user a dot. Right: share of the switches that took no longer than this."
    }
