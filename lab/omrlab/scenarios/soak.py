"""Six hours of a guest with omr's daemon: groups come and go, memory is swept and comes back, the
control socket is flooded, and the machine freezes as for sleep. What the daemon holds must stay the
same: memory, descriptors, wake-ups, its files on disk.

The guest's clock counts instructions and jumps over idle time, so six hours of the guest take
minutes of the host. Everything happens inside the guest, by one script: while the host waits for a
second, the guest lives for minutes.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..adversary import ADVERSARY, GROUP, OTHER, add_users, spawn_as, subtree
from ..daemon import Daemon
from ..guest import COUNTED, MGLRU_SWITCH, Guest, GuestError, Zram
from ..plots import COLOURS, canvas, headline, save
from ..results import Metric, MetricJson, progress
from ..scenario import Benchmark, option

LOG = "/tmp/soak"

CONFIG = """
[[group]]
match = "bg/**"
class = "background"

[history]
every = "1m"
size = "16KiB"
"""

CHURN = """
turn=0
while :; do
    turn=$((turn + 1))
    echo $turn >> /tmp/turns
    group=bg/job-$turn
    omr-guest in $group -- omr-guest fill 8M > /dev/null &
    job=$!
    sleep 40
    kill $job
    wait $job
    rmdir /sys/fs/cgroup/$group
    # Twenty groups that nobody works in. An emulated fork is dear, so there is one.
    i=0 empty=
    while [ $i -lt 20 ]; do empty="$empty /sys/fs/cgroup/bg/empty-$turn-$i"; i=$((i + 1)); done
    mkdir $empty
    sleep 20
    rmdir $empty
    case $turn in
    *[05])
        for kind in connect half unread nonsense; do
            omr-guest in {member} --uid {uid} --gid {gid} -- \\
                omr-guest adversary flood $kind --rate 20 > /dev/null &
            flood=$!
            sleep 5
            kill $flood
            wait $flood
        done ;;
    *9) echo freeze > /sys/power/state ;;
    esac
done
"""
"""A turn takes a minute. Floods come every five minutes, a freeze as for sleep every ten."""

RECORD = """
process=$1
while :; do
    read uptime _ < /proc/uptime
    read _ cpu < /sys/fs/cgroup/omr.service/cpu.stat
    set -- /proc/$process/fd/*
    echo sample $uptime $cpu $# >> {log}
    grep -hE '^(VmRSS|voluntary_ctxt_switches):' /proc/$process/status /proc/$process/task/*/status >> {log}
    du -sk /var/lib/omr/history /var/lib/omr/ledger.jsonl >> {log}
    sleep {seconds}
done
"""

FIELDS = ("hours", "resident_mib", "switches", "descriptors", "history_kib", "ledger_kib", "cpu_s")
"""Of a sample. `switches` and `cpu_s` count from the start of the daemon."""

SETTLED = 1.0
"""Hours after which nothing may grow. Before that the history fills."""


class Run(TypedDict):
    samples: list[list[float]]
    """Of each, `FIELDS`."""
    sweeps: int
    """Sweeps in the ledger."""
    groups: int
    """Groups that were made and removed."""
    sleeps: int
    log: str
    """The daemon's last messages."""


@dataclass(kw_only=True)
class Soak(Benchmark):
    name = "soak"
    help = "six hours of guest time with groups that come and go, floods and sleeps: nothing grows (20 minutes)"
    title = "Six hours"

    pairs: int = option(1, "how often it is measured", setting=False)
    hours: float = option(6, "time of the guest's clock", "HOURS")
    mem: int = option(512, "memory of the guest", "MIB")
    every: int = option(60, "a sample each", "S")

    def run(self) -> dict[str, MetricJson]:
        runs = self.open_runs()
        made = [runs.run(f"run-{number}", self.measure) for number in range(1, self.pairs + 1)]
        return self.publish(runs, metrics(made), lambda directory: draw(made[0], directory))

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "zram", "hours": self.hours}

    def measure(self) -> Run:
        with Guest(self.kernel, self.mem, Zram(self.mem), accelerator=COUNTED, boot_timeout=600) as guest:
            add_users(guest)
            guest.write("/sys/power/pm_test", "freezer")
            # The kernel would wait in a loop of five thousand million instructions.
            guest.write("/sys/module/suspend/parameters/pm_test_delay", "0")
            guest.group("bg")
            # The groups below have the memory controller, as those of systemd.
            guest.write("/sys/fs/cgroup/bg/cgroup.subtree_control", "+memory")
            guest.write(MGLRU_SWITCH, "y")
            with Daemon(guest, idle="5s", config=CONFIG) as daemon:
                claim = spawn_as(guest, OTHER, "init.scope", "omr-guest", "claim", f"{subtree(OTHER)}/app.slice")
                guest.spawn(["sh", "-c", RECORD.format(log=LOG, seconds=self.every), "sh", str(daemon.process.pid)])
                member = f"{subtree(ADVERSARY)}/init.scope"
                guest.spawn(["sh", "-c", CHURN.format(member=member, uid=ADVERSARY, gid=GROUP)])
                for hour in range(1, round(self.hours) + 1):
                    guest.run(["sleep", "3600"], timeout=7200)
                    progress(f"{self.name}: hour {hour}")
                samples = parsed(guest.read_long(LOG).decode())
                if "error" in claim.stderr().lower():
                    raise GuestError(f"the statement of another user was lost: {claim.stderr()}")
                log = daemon.process.stderr()
                turns = guest.shell("cat /tmp/turns").split()
            return {
                "samples": samples,
                "sweeps": log.count(" freed, "),
                "groups": 21 * len(turns),
                "sleeps": sum(turn.endswith("9") for turn in turns),
                "log": log[-2000:],
            }


def parsed(log: str) -> list[list[float]]:
    """The samples in what `RECORD` has written."""
    samples = []
    for text in log.split("sample ")[1:]:
        first, *lines = text.splitlines()
        found = [line.split() for line in lines]
        sizes = [float(words[0]) for words in found if words[0].isdigit()]
        if len(sizes) < 2:
            # Before the first sweep there is no ledger; and the last sample may be half written.
            continue
        history, ledger = sizes
        uptime, cpu_us, descriptors = (float(word) for word in first.split())
        # The first process status is that of the main thread, which is among the threads again.
        resident_kib = float(next(words[1] for words in found if words[0] == "VmRSS:"))
        switches = [float(words[1]) for words in found if words[0] == "voluntary_ctxt_switches:"][1:]
        hours, resident_mib = round(uptime / 3600, 4), round(resident_kib / 1024, 3)
        samples.append([hours, resident_mib, sum(switches), descriptors, history, ledger, round(cpu_us / 1e6, 3)])
    return samples


def column(run: Run, name: str) -> list[float]:
    place = FIELDS.index(name)
    return [sample[place] for sample in run["samples"]]


def rate(run: Run, name: str) -> list[float]:
    """How much a counter grows in a second, from one sample to the next. The first has none."""
    hours, values = column(run, "hours"), column(run, name)
    steps = zip(hours, hours[1:], values, values[1:])
    return [(after - before) / (3600 * (end - begin)) for begin, end, before, after in steps]


def slope(hours: list[float], values: list[float]) -> float:
    """What is added in an hour, by least squares, from `SETTLED` on, in percent of the median."""
    settled = [(hour, value) for hour, value in zip(hours, values) if hour >= hours[0] + SETTLED]
    found = statistics.linear_regression(*zip(*settled)).slope
    return 100 * found / statistics.median(value for _, value in settled)


def metrics(runs: list[Run]) -> dict[str, Metric]:
    hours = [column(run, "hours") for run in runs]
    slopes = {
        "resident_slope": [slope(when, column(run, "resident_mib")) for when, run in zip(hours, runs)],
        "descriptors_slope": [slope(when, column(run, "descriptors")) for when, run in zip(hours, runs)],
        "wakeups_slope": [slope(when[1:], rate(run, "switches")) for when, run in zip(hours, runs)],
        "history_slope": [slope(when, column(run, "history_kib")) for when, run in zip(hours, runs)],
    }
    return {name: Metric(values, "%/hour", "<= 1") for name, values in slopes.items()} | {
        "resident_mib": Metric([max(column(run, "resident_mib")) for run in runs], "MiB", "<= 8"),
        "descriptors": Metric([max(column(run, "descriptors")) for run in runs], ""),
        "wakeups_per_s": Metric([statistics.mean(rate(run, "switches")) for run in runs], "1/s"),
        "cpu_pct": Metric([100 * statistics.mean(rate(run, "cpu_s")) for run in runs], "%", "<= 1"),
        "history_kib": Metric([max(column(run, "history_kib")) for run in runs], "KiB"),
        "ledger_kib": Metric([max(column(run, "ledger_kib")) for run in runs], "KiB"),
        "sweeps": Metric([run["sweeps"] for run in runs], "", ">= 100"),
        "groups": Metric([run["groups"] for run in runs], "", ">= 1000"),
        "sleeps": Metric([run["sleeps"] for run in runs], "", ">= 1"),
    }


def draw(run: Run, directory: Path) -> dict[str, str]:
    figure, axes = canvas(columns=2, rows=2, width=10, height=5.6, sharex=True)
    hours = column(run, "hours")
    panels: list[tuple[str, list[float], list[float]]] = [
        ("Resident memory (MiB)", hours, column(run, "resident_mib")),
        ("Open descriptors", hours, column(run, "descriptors")),
        ("Wake-ups (per second)", hours[1:], rate(run, "switches")),
        ("History on disk (KiB)", hours, column(run, "history_kib")),
    ]
    for axis, (title, when, values) in zip(axes, panels):
        axis.plot(when, values, color=COLOURS["on"], linewidth=1.2)
        axis.set_ylim(0, 1.15 * max(values))
        axis.set_title(title)
    for axis in axes[2:]:
        axis.set_xlabel("hours of the guest's clock")
    headline(figure, "omr's daemon while groups come and go, with floods and sleeps")
    save(figure, directory / "soak.png")
    return {"soak.png": "A sample a minute. Wake-ups are the voluntary context switches of all threads."}
