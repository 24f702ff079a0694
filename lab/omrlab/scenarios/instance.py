"""A warm instance: a service that takes long to start is started once, and its machine hibernates.
Seconds from power-on until the service has answered.

The arms: the machine boots and starts the service, it resumes an image that omr has not made small,
it resumes one that omr has, and the same with `omr warm` before the first request.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..daemon import CLASSES, CONFIG
from ..guest import MIB, Guest, Process, SwapFile
from ..plots import COLOURS, canvas, headline, name_bars, save
from ..prepare import omr_prepare
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option
from .hibernate_seed import FOREGROUND, HIBERNATION_TIMEOUT, come_back

LABELS = {"boot": "boot", "plain": "resume,\nwithout omr", "resume": "resume,\nwith omr", "warm": "resume\nand warm"}

PARTS = {
    "power_s": "boot or resume",
    "start_s": "start of the service",
    "warm_s": "omr warm",
    "touch_s": "first request",
}

PART_COLOURS = dict(zip(PARTS, (COLOURS["off"], COLOURS["by-hand"], COLOURS["prepare"], COLOURS["on"])))

AWAY = """
[[group]]
match = "fg"
class = "background"
"""
"""Nobody uses the instance before it hibernates."""


class Run(TypedDict):
    arm: str
    power_s: float
    """From power-on until the machine runs programs."""
    start_s: float
    """The start of the service; 0 after a resume."""
    warm_s: float
    touch_s: float
    """The first request, which reads all pages of the service once, in random order."""
    major_faults: int
    hibernate_s: float
    image: dict[str, float]
    errors: int


@dataclass(kw_only=True)
class Instance(Comparison[Run]):
    name = "instance"
    help = "a warm instance: power-on to the first answer by boot, by resume, and warmed (6 minutes a pair)"
    title = "A warm instance"
    labels = LABELS

    pairs: int = option(3, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(1024, "memory of the guest", "MIB")
    mb_s: float = option(25, "speed of its disk in MB/s")
    iops: int | None = option(600, "requests a second it answers at most", "N", type=int)
    service: int = option(300, "memory of the service, which a request reads", "MIB")
    start: int = option(20, "CPU time that its start takes", "S", least=0)

    def measure(self, arm: str, pair: int) -> Run:
        with Guest(self.kernel, self.mem, SwapFile(self.mem, self.mb_s, room_mib=64, iops=self.iops)) as guest:
            guest.group(FOREGROUND)
            guest.write(CONFIG, CLASSES, create=True)
            power_s, hibernate_s, image = guest.boot_s, 0.0, {}
            began = time.monotonic()
            service = self.begin(guest)
            start_s = time.monotonic() - began
            if arm != "boot":
                if arm != "plain":
                    self.empty(guest)
                slept = guest.hibernate_and_resume(HIBERNATION_TIMEOUT)
                power_s, hibernate_s, image, start_s = slept.resume_s, slept.hibernate_s, slept.image, 0.0
            answered = come_back(guest, service, warm=arm == "warm")
            return {
                "arm": arm,
                "power_s": power_s,
                "start_s": start_s,
                "warm_s": answered["warm_s"],
                "touch_s": answered["touch_s"],
                "major_faults": answered["major_faults"],
                "hibernate_s": hibernate_s,
                "image": image,
                "errors": answered["errors"],
            }

    def begin(self, guest: Guest) -> Process:
        """Starts the service, and waits until it is up."""
        start = f"omr-guest app 1M --helpers 0 --start {self.start}s < /dev/null > /dev/null"
        service = guest.spawn(["sh", "-c", f"{start} && exec omr-guest touch {self.service}M"], group=FOREGROUND)
        service.line_with("ready", timeout=60 * self.start + 300)
        return service

    def empty(self, guest: Guest) -> None:
        """Has omr make the image small, and record before what the service has in memory."""
        guest.run(["omr", "warm", "--record"])
        guest.write(CONFIG, AWAY)
        limit = 120 + 4 * self.mem * MIB / (self.mb_s * 1e6)
        omr_prepare(guest, "hibernate", "--target", "min", "--deadline", f"{limit:.0f}s", timeout=limit + 60)
        guest.write(CONFIG, CLASSES)

    def summary(self, run: Run) -> str:
        return f"the first answer after {answer(run):.1f} s"

    def guest(self) -> dict[str, Any]:
        return {
            "mem_mib": self.mem,
            "disk_mb_s": self.mb_s,
            "iops": self.iops,
            "swap": "file",
            "service_mib": self.service,
            "start_s": self.start,
        }

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark. A ratio compares the runs of one pair."""
        found: dict[str, Metric] = {}
        for arm in ("resume", "warm"):
            for other in ("boot", "plain"):
                pairs = list(zip(results.get(other, []), results.get(arm, [])))
                if pairs:
                    found[f"answer_speedup_{arm}_over_{other}"] = Metric(
                        [answer(a) / answer(b) for a, b in pairs], "ratio"
                    )
        for arm, runs in results.items():
            found[f"answer_{arm}"] = Metric([answer(run) for run in runs], "s")
            for part in PARTS:
                found[f"{part.removesuffix('_s')}_{arm}"] = Metric([run[part] for run in runs], "s")  # type: ignore[literal-required]
            found[f"major_faults_{arm}"] = Metric([float(run["major_faults"]) for run in runs], "faults")
            if arm != "boot":
                found[f"hibernate_{arm}"] = Metric([run["hibernate_s"] for run in runs], "s")
                found[f"image_{arm}"] = Metric([run["image"]["image_kib"] / 1024 for run in runs], "MiB")
        errors = sum(run["errors"] for runs in results.values() for run in runs)
        found["content_errors"] = Metric([float(errors)], "words", "= 0")
        return found

    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        figure, (axes,) = canvas(width=7, height=4.2)
        for place, runs in enumerate(results.values()):
            bottom = 0.0
            for part, label in PARTS.items():
                seconds = Metric([run[part] for run in runs], "s").value  # type: ignore[literal-required]
                style: dict[str, Any] = {"label": None if place else label}
                axes.bar(place, seconds, 0.6, bottom, color=PART_COLOURS[part], **style)
                bottom += seconds
            axes.annotate(f"{bottom:.0f} s", (place, bottom), (0, 3), textcoords="offset points", ha="center")
        name_bars(axes, [LABELS[arm] for arm in results], "seconds", "From power-on until the first answer", room=1.2)
        axes.legend()
        headline(
            figure,
            f"A service of {self.service} MiB that takes {self.start} s to start"
            f" ({self.mem / 1024:g} GiB, disk {self.mb_s:g} MB/s)",
        )
        save(figure, directory / "instance.png")
        return {"instance.png": "The medians of the parts, one above the other."}


def answer(run: Run) -> float:
    """Seconds from power-on until the service has answered."""
    return run["power_s"] + run["start_s"] + run["warm_s"] + run["touch_s"]
