"""An application makes room for another one: killed and started again, or paged out and used again.
How long until it can be used, and how much memory did it make free?

The arms: it stays in memory, it is paged out to zram or to a swap file, and it is killed, with its
files still in the page cache or not. The start costs no CPU time but for filling the heap, so the
difference says from which cost of a start a page-out pays.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..guest import MIB, Guest, Process, SwapFile
from ..plots import COLOURS, bar, canvas, headline, name_bars, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option

LABELS = {
    "kept": "in memory",
    "zram": "paged out\nto zram",
    "disk": "paged out\nto a file",
    "cached": "killed,\nfiles cached",
    "kill": "killed",
}

ARM_COLOURS = {
    "kept": COLOURS["off"],
    "zram": COLOURS["on"],
    "disk": COLOURS["swap"],
    "cached": COLOURS["by-hand"],
    "kill": COLOURS["seed"],
}

FILE = "/swap/file"

INPUT = "/run/input"


class Run(TypedDict):
    arm: str
    freed: int
    """Bytes by which MemAvailable grew."""
    seconds: float
    """Until the application could be used again."""
    pages_in: int
    """Pages that came from swap."""
    errors: int


@dataclass(kw_only=True)
class ComeBack(Comparison[Run]):
    name = "come-back"
    help = "an application that was killed, or paged out: seconds until it can be used (2 minutes a pair)"
    title = "Killed or paged out"
    labels = LABELS

    arms: str = arms_option(LABELS)
    mem: int = option(768, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    heap: int = option(150, "heap of the application", "MIB")
    file: int = option(60, "files that it maps", "MIB")
    compressible: int = option(67, "zero in each page, for zram's 3:1 of ChromeOS", "%", least=0)

    def measure(self, arm: str, pair: int) -> Run:
        # The files are on the disk of the swap file.
        swap = SwapFile(self.mem, self.mb_s, room_mib=64 + self.file)
        with Guest(self.kernel, self.mem, swap, append=f"omr.zram={self.mem}M", prealloc=True) as guest:
            if arm == "zram":
                guest.shell("swapoff /swap/swapfile")
            else:
                guest.shell("swapoff /dev/zram0")
            guest.shell(f"dd if=/dev/urandom of={FILE} bs=1M count={self.file} && sync", timeout=300)
            guest.group("app")
            guest.shell(f"mkfifo {INPUT}")
            # The application ends when nobody has its input open any more.
            guest.spawn(["sh", "-c", f"exec sleep 100000 <> {INPUT}"])
            application = self.start(guest)
            guest.shell("sleep 2")
            before = guest.meminfo()["MemAvailable"]
            self.make_room(guest, arm, application)
            guest.shell("sleep 2")
            after, swapped = guest.meminfo()["MemAvailable"], guest.vmstat()["pswpin"]
            if arm in ("cached", "kill"):
                used = self.start(guest).line_with("ready")
            else:
                guest.write(INPUT, "\n")
                used = application.line_with("used", timeout=600)
            return {
                "arm": arm,
                "freed": after - before,
                "seconds": used["seconds"],
                "pages_in": guest.vmstat()["pswpin"] - swapped,
                "errors": used["errors"],
            }

    def start(self, guest: Guest) -> Process:
        """Starts the application, and waits until it can be used."""
        words = f"omr-guest app {self.heap}M --file {FILE} --compressible {self.compressible}"
        application = guest.spawn(["sh", "-c", f"exec {words} < {INPUT}"], group="app")
        application.line_with("ready", timeout=600)
        return application

    def make_room(self, guest: Guest, arm: str, application: Process) -> None:
        match arm:
            case "zram" | "disk":
                helper = guest.read(f"/proc/{application.pid}/task/{application.pid}/children").split()
                for pid in (str(application.pid), *helper):
                    guest.run(["omr", "hint", pid, "--pageout"], timeout=600)
            case "cached" | "kill":
                application.kill(signal.SIGKILL)
                application.wait()
        if arm == "kill":
            guest.shell("echo 3 > /proc/sys/vm/drop_caches")

    def summary(self, run: Run) -> str:
        return f"{run['freed'] / MIB:.0f} MiB freed, back after {run['seconds']:.2f} s"

    def guest(self) -> dict[str, Any]:
        sizes = {"heap_mib": self.heap, "file_mib": self.file}
        return {"mem_mib": self.mem, "disk_mb_s": self.mb_s, "swap": "zram or a file", **sizes}

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A difference compares the runs of one pair."""
        found: dict[str, Metric] = {}
        for arm in ("zram", "disk"):
            for other in ("kill", "cached"):
                pairs = list(zip(results.get(arm, []), results.get(other, [])))
                if pairs:
                    more = [out["seconds"] - killed["seconds"] for out, killed in pairs]
                    found[f"{arm}_pays_from_{other}"] = Metric(more, "s")
        for arm, runs in results.items():
            found[f"back_{arm}"] = Metric([run["seconds"] for run in runs], "s")
            found[f"freed_{arm}"] = Metric([run["freed"] / MIB for run in runs], "MiB")
            found[f"pages_in_{arm}"] = Metric([float(run["pages_in"]) for run in runs], "pages")
        errors = sum(run["errors"] for runs in results.values() for run in runs)
        found["content_errors"] = Metric([float(errors)], "words", "= 0")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (freed, back) = canvas(columns=2, width=10, height=4.2)
        for place, (arm, runs) in enumerate(results.items()):
            mib = Metric([run["freed"] / MIB for run in runs], "MiB")
            bar(freed, place, mib, ARM_COLOURS[arm], f"{mib.value:.0f} MiB")
            seconds = Metric([run["seconds"] for run in runs], "s")
            bar(back, place, seconds, ARM_COLOURS[arm], f"{seconds.value:.2g} s")
        names = [LABELS[arm] for arm in results]
        name_bars(freed, names, "MiB", "Memory that it made free", room=1.2)
        name_bars(back, names, "seconds", "Until it can be used again", room=1.2)
        headline(figure, f"An application with {self.heap} MiB of heap and {self.file} MiB of files")
        save(figure, directory / "come-back.png")
        return {
            "come-back.png": "Each run a dot, the bar their median. A start costs no CPU time but for filling the heap."
        }
