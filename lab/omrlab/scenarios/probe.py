"""The programs of `slo` on a kernel without ages, as Debian 12 runs it: omr probes each group. How
much does it hold out of memory, how often does too much come back, and how much does oomd's Senpai
hold, which probes as well?
"""

from dataclasses import dataclass
from typing import ClassVar

from ..results import Metric
from ..scenario import Results, option
from .slo import Run, Slo, held_mib


@dataclass(kw_only=True)
class Probe(Slo):
    name = "probe"
    help = "planted loads and Redis without MGLRU: omr's probes and Senpai (40 minutes a pair)"
    title = "Probes where ages are not known"
    lru_gen: ClassVar[str] = "n"
    goals: ClassVar[dict[str, str]] = {"slo_minutes_over_pct": "<= 5", "taken_over_senpai": ">= 1"}

    kernel: str = option("6.1", "kernel release", setting=False)
    arms: str = option("omr,senpai", "arms in turn, of those of slo", setting=False)

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark, with those of `slo`."""
        found = super().metrics(results)
        if {"omr", "senpai"} <= results.keys():
            ratios = [held_mib(run) / held_mib(other) for run, other in zip(results["omr"], results["senpai"])]
            goal = self.goals["taken_over_senpai"]
            found = {"taken_over_senpai": Metric(ratios, "ratio", goal)} | found
        return found
