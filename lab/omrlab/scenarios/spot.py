"""A cloud takes a busy machine back at a random moment: seconds from the notice until it is off.

The arms: without omr, with its daemon, and with its daemon and `omr watch`, which lets the daemon
use the seconds before the machine hibernates.
"""

import json
import random
import signal
import time
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import CLASSES, CONFIG, Daemon
from ..guest import Guest, GuestError, SwapFile
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option
from .hibernate_seed import AFTER_BOOT, HIBERNATION_TIMEOUT, HOOK, spot

LABELS = {"off": "without omr", "daemon": "omr daemon", "watch": "omr daemon\nand omr watch"}

ARM_COLOURS = {"off": COLOURS["off"], "daemon": COLOURS["on"], "watch": COLOURS["prepare"]}

WITHIN = (30, 120)
"""Seconds that clouds give: Azure and Google 30, EC2 120."""

CLOUD = """
[cloud]
provider = "azure"
endpoint = "http://127.0.0.1:1338"
"""

METADATA = "/www/metadata"


class Run(TypedDict):
    arm: str
    notice_after_s: float
    """From the moment at which the load was ready."""
    left_pct: float
    """The share of the load that had left memory when the notice came."""
    hibernated_after_s: float
    """From the notice until the machine was asked to hibernate."""
    off_s: float
    """From the notice until the machine was off."""
    resume_s: float
    image: dict[str, float]
    ledger: list[dict[str, Any]]
    errors: int


@dataclass(kw_only=True)
class Spot(Comparison[Run]):
    name = "spot"
    help = "a cloud's notice to a busy machine: seconds until it is off (20 minutes a pair)"
    title = "A spot VM"
    labels = LABELS

    arms: str = arms_option(LABELS)
    mem: int = option(2048, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    fill: int = option(80, "memory that the background load fills", "PERCENT")
    after: float = option(180, "the notice comes within so many seconds", "S", least=0)
    lead: float = option(10, "the time that omr watch has before the machine hibernates", "S")

    def measure(self, arm: str, pair: int) -> Run:
        # The same moment in each arm.
        notice_after = random.Random(pair).uniform(self.after / 6, self.after)
        with Guest(self.kernel, self.mem, SwapFile(self.mem, self.mb_s, room_mib=64 + self.mem)) as guest:
            guest.throttle_swap(None)  # filling is not timed
            guest.group("fg")
            guest.group("bg")
            daemon = watch = None
            if arm != "off":
                serve_metadata(guest)
                uptime = f"awk '{{ print ($1 < {AFTER_BOOT}) * ({AFTER_BOOT} - $1) }}' /proc/uptime"
                guest.shell(f"sleep $({uptime})", timeout=2 * AFTER_BOOT)
                daemon = Daemon(guest, whole=spot() + CLASSES + CLOUD)
            if arm == "watch":
                watch = guest.spawn(["omr", "watch", "--foreground", "--config", CONFIG])
                guest.wait_for(lambda: "watches azure" in watch.stderr(), 60, "start of omr watch")
            load = guest.spawn(["omr-guest", "fill", f"{self.fill}%"], group="bg")
            filled = load.line_with("ready", timeout=900)["bytes"]
            # Somebody works: bursts of 4 s, with pauses of 2 to 20 s.
            work = ["--threads", "1", "--burst", "4s", "--times", "1000", "--gap-min", "2s", "--gap-max", "20s"]
            guest.spawn(["omr-guest", "spin", *work], group="fg")
            guest.throttle_swap(self.mb_s)
            guest.shell(f"sleep {notice_after:.1f}", timeout=4 * notice_after + 60)
            left = 100 * (1 - guest.group_value("bg") / filled)

            noticed = time.monotonic()
            if daemon and watch:
                announce(guest, self.lead + 1)
                self.let_prepare(guest, daemon)
            waited = time.monotonic() - noticed
            argv = HOOK if daemon else ("omr-guest", "hibernate")
            slept = guest.hibernate_and_resume(HIBERNATION_TIMEOUT, argv)
            guest.throttle_swap(None)  # the verification is not timed
            load.kill(signal.SIGUSR1)
            return {
                "arm": arm,
                "notice_after_s": notice_after,
                "left_pct": left,
                "hibernated_after_s": waited,
                "off_s": waited + slept.hibernate_s,
                "resume_s": slept.resume_s,
                "image": slept.image,
                "ledger": daemon.ledger() if daemon else [],
                "errors": load.line_with("verified", timeout=1800)["errors"],
            }

    def let_prepare(self, guest: Guest, daemon: Daemon) -> None:
        """Waits until the daemon has prepared, or until its time is over."""
        try:
            guest.wait_for(lambda: any(e["kind"] == "prepare" for e in daemon.ledger()), self.lead, "preparation")
        except GuestError:
            guest.check()

    def summary(self, run: Run) -> str:
        return f"off after {run['off_s']:.1f} s; {run['left_pct']:.0f} % had left at the notice"

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "disk_mb_s": self.mb_s, "swap": "file", "fill_percent": self.fill}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair."""
        found: dict[str, Metric] = {}
        for arm, runs in results.items():
            off = [run["off_s"] for run in runs]
            for seconds in WITHIN:
                share = 100 * sum(after <= seconds for after in off) / len(off)
                found[f"within_{seconds}s_pct_{arm}"] = Metric([share], "%")
            found[f"off_{arm}"] = Metric(off, "s")
            found[f"resume_{arm}"] = Metric([run["resume_s"] for run in runs], "s")
            found[f"left_pct_{arm}"] = Metric([run["left_pct"] for run in runs], "%")
            found[f"image_{arm}"] = Metric([run["image"]["image_kib"] / 1024 for run in runs], "MiB")
            if arm != "off" and "off" in results:
                ratios = [without["off_s"] / run["off_s"] for without, run in zip(results["off"], runs)]
                found[f"off_speedup_{arm}"] = Metric(ratios, "ratio")
        errors = sum(run["errors"] for runs in results.values() for run in runs)
        found["content_errors"] = Metric([float(errors)], "words", "= 0")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (off, left) = canvas(columns=2, width=10, height=4.2)
        for place, (arm, runs) in enumerate(results.items()):
            seconds = Metric([run["off_s"] for run in runs], "s")
            bar(off, place, seconds, ARM_COLOURS[arm], f"{seconds.value:.3g} s")
            share = Metric([run["left_pct"] for run in runs], "%")
            bar(left, place, share, ARM_COLOURS[arm], f"{share.value:.0f} %")
        names = [LABELS[arm] for arm in results]
        name_bars(off, names, "seconds", "From the notice until the machine is off", room=1.2)
        off.axhline(WITHIN[0], color="#777777", linewidth=1, linestyle=":")
        off.annotate(
            "30 s", (1, WITHIN[0]), (-3, 3), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right"
        )
        name_bars(left, names, "% of the load", "Had left memory when the notice came", room=1.2)
        headline(
            figure,
            f"A notice to a busy machine ({self.mem / 1024:g} GiB, {self.fill} % full, disk {self.mb_s:g} MB/s)",
        )
        save(figure, directory / "spot.png")
        return {"spot.png": "Each run a dot, the bar their median. Dotted: the time that Azure and Google give."}


def serve_metadata(guest: Guest) -> None:
    """Starts a metadata server with Azure's paths, which announces nothing."""
    guest.shell(f"ip link set lo up; mkdir -p {METADATA}/instance/compute")
    guest.write(f"{METADATA}/instance/compute/name", "vm_1", create=True)
    write_events(guest, [])
    guest.spawn(["httpd", "-f", "-p", "127.0.0.1:1338", "-h", "/www"])


def announce(guest: Guest, seconds: float) -> None:
    """Announces that the machine is taken back after this time."""
    now = int(guest.shell("date +%s"))
    event = {"EventId": "spot", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["vm_1"]}
    at = formatdate(now + round(seconds), usegmt=True)
    write_events(guest, [event | {"EventStatus": "Scheduled", "NotBefore": at}])


def write_events(guest: Guest, events: list[dict[str, Any]]) -> None:
    """Replaces the list as a whole: a request meanwhile gets the old one."""
    path = f"{METADATA}/scheduledevents"
    guest.write(f"{path}.new", json.dumps({"DocumentIncarnation": 1, "Events": events}), create=True)
    guest.run(["mv", f"{path}.new", path])
