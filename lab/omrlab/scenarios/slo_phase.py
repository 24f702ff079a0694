"""A program whose hot memory moves every 20 minutes, to memory that was not used for 40 minutes.
How soon does what comes back stay within the objective again, in agings of the program's group?
"""

from dataclasses import dataclass
from typing import ClassVar

from ..results import Metric
from ..scenario import Results, option
from .slo import OBJECTIVE, Run, Slo, all_rates, moves

LAW = "phases"


@dataclass(kw_only=True)
class SloPhase(Slo):
    name = "slo-phase"
    help = "the hot memory of a program moves: how soon omr keeps its objective again (20 minutes a run)"
    title = "The promotion objective after a phase change"
    goals: ClassVar[dict[str, str]] = {"agings_to_slo": "<= 2"}

    arms: str = option("omr", "arms in turn, of those of slo", setting=False)
    mem: int = option(768, "memory of the guest", "MIB")
    redis: int = option(0, "values in Redis; 0: no Redis", "MIB", least=0)
    laws: str = option(LAW, "planted loads")
    learn: float = option(0, "before the measurement", "MINUTES", least=0)
    minutes: float = option(100, "measured", "MINUTES", least=2)

    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark, with those of `slo`."""
        found = super().metrics(results)
        if "omr" not in results:
            return found
        needed = [max(agings_to_slo(run, 60 * self.phase)) for run in results["omr"]]
        goal = self.goals["agings_to_slo"]
        return {"agings_to_slo": Metric([float(agings) for agings in needed], "agings", goal)} | found

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        each = {
            f"run {number}": ", ".join(map(str, agings_to_slo(run, 60 * self.phase)))
            for number, run in enumerate(results.get("omr", []), 1)
        }
        return {"Agings after each move until the objective holds": each} | super().tables(results)


def agings_to_slo(run: Run, phase_s: float) -> list[int]:
    """After each move, the agings of the group from the last reading before the move to the end of
    the last minute in which too much came back. 0: it never did.
    """
    found = []
    generations = [(reading["monotonic"], reading["groups"][LAW]["agings"]) for reading in run["readings"]]
    for move in moves(run, LAW, phase_s):
        over = [at for at, rate in all_rates(run, LAW) if move < at <= move + phase_s and rate > OBJECTIVE]
        before = max(seq for at, seq in generations if at <= move)
        after = max((seq for at, seq in generations if at <= max(over)), default=before) if over else before
        found.append(after - before)
    return found
