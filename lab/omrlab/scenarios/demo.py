"""Hibernation and latency, small: shows omr's effect in a few minutes on any machine."""

import time
from dataclasses import dataclass

from .. import records
from ..binaries import PROGRAMS, build
from ..paths import OUT
from ..results import MetricJson, progress
from ..scenario import Scenario, option
from .hibernate import SEED, Hibernate
from .latency import Latency

DIRECTORY = OUT / "demo"
"""The benchmarks, whose results take longer to make, have directories of their own."""


class DemoFailed(Exception):
    """omr did harm, or had no effect."""


@dataclass(kw_only=True)
class Demo(Scenario):
    name = "demo"
    help = "hibernate and latency, small (5 minutes, and 3 to build omr)"

    fresh: bool = option(False, "do not use the runs made before")

    def run(self) -> dict[str, MetricJson]:
        for program in PROGRAMS:
            progress(f"demo: build {program} (a minute if it is not yet built)")
            build(program)
        # Every image holds the kernel's own memory: with less memory the ratio would be smaller.
        began = time.monotonic()
        hibernate = Hibernate(
            mem=2048,
            mb_s=32.0,
            idle=2.0,
            pairs=1,
            fresh=self.fresh,
            history=True,
            out=DIRECTORY / Hibernate.name,
        )
        hibernation = hibernate.run()
        halfway = time.monotonic()
        felt = Latency(
            mem=512,
            mb_s=12.0,
            window=15.0,
            pairs=1,
            arms="nothing,background",
            stops=2,
            stops_by_age=0,
            bursts=5,
            fresh=self.fresh,
            out=DIRECTORY / Latency.name,
        ).run()
        if copied := hibernate.records():
            print("\nomr's own charts of the guest with omr, also at the top of its report:\n")
            for chart in records.CHARTS:
                print(records.omr(copied, chart))
        print(table(hibernation | felt))
        progress(f"demo: hibernation {halfway - began:.0f} s, latency {time.monotonic() - halfway:.0f} s")
        for scenario in (Hibernate, Latency):
            print(f"report: {DIRECTORY / scenario.name / 'report.html'}")
        if hibernation["content_errors"]["value"]:
            raise DemoFailed("memory was not the same after resume")
        if min(hibernation["hibernate_speedup"]["value"], hibernation["resume_speedup"]["value"]) <= 1:
            raise DemoFailed("hibernation was not faster with omr")
        return {}


def table(figures: dict[str, MetricJson]) -> str:
    def value(name: str) -> float:
        return figures[name]["value"]

    def compared(what: str, off: str, on: str, unit: str, digits: int, seed: str = "") -> tuple[str, ...]:
        ratio = f"{value(off) / value(on):.1f} x"
        return (what, f"{value(off):.{digits}f} {unit}", f"{value(on):.{digits}f} {unit}", ratio, seed)

    seeds = {part: f"{before / after:.1f} x" for part, (before, after) in SEED.items()}
    rows = [
        ("", "without omr", "with omr", "ratio", "the seed's"),
        *(compared(part, f"{part}_off", f"{part}_on", "s", 1, seed) for part, seed in seeds.items()),
        compared("image", "image_off", "image_on", "MiB", 0),
        # An arm has 1,500 periods. 15 of them are above p99, but only one or two above p99.9.
        compared("foreground p99", "p99_nothing", "p99_background", "ms", 1),
        ("sweep stops within", "", f"{value('stop_max_ms'):.0f} ms", "", ""),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    note = "The seed's figures are those that its author published."
    return "\n".join(["", *lines, "", note, ""])
