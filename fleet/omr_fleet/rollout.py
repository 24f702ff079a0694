"""What follows tuning: the files for the machines, and the rule for going back."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import files, space, tune
from .tune import Figures, Limits, Tuned

HALF = 0.5
"""Reality may leave the prediction by half."""
STAGES = (
    ("record", '1 % of the machines record with the policy in mode = "record" for a week'),
    ("canary", "1 % act for a week; as many others stay as they are, to compare"),
    ("tenth", "10 % act for a week"),
    ("all", 'all act; 1 % go on in mode = "record", for the next tuning'),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of tuning, on shards that were seen and on others."""

    limits: Limits
    tuned: Tuned
    held_out: Figures
    held_out_default: Figures
    beside: dict[str, Figures]
    """One step further in each parameter."""

    @property
    def best(self) -> Figures:
        assert self.tuned.best is not None
        return self.tuned.figures(self.tuned.best)

    @property
    def slo(self) -> dict[str, str]:
        assert self.tuned.best is not None
        return space.slo(self.tuned.best)

    def is_better(self) -> bool:
        """It keeps the limits on shards that tuning did not see, and holds more there."""
        return self.held_out.keeps(self.limits) and self.held_out.held > self.held_out_default.held

    def sentence(self) -> str:
        gain = 100 * tune.gain(self.held_out, self.held_out_default)
        kept = "keeps" if self.held_out.keeps(self.limits) else "BREAKS"
        verdict = "" if self.is_better() else "; the defaults stay"
        return (
            f"on shards that tuning did not see: {100 * self.held_out.held:.1f} % held, the defaults "
            f"{100 * self.held_out_default.held:.1f} % ({gain:+.0f} %); it {kept} the limits{verdict}"
        )


def write(outcome: Outcome, out: Path) -> None:
    """Writes tuned.toml and prediction.json, if the policy is better than the defaults."""
    target, predicted = out / "tuned.toml", out / "prediction.json"
    for old in (target, predicted):
        old.unlink(missing_ok=True)
    if not outcome.is_better():
        return
    prediction = {
        "slo": outcome.slo,
        "limits": {"promotions": outcome.limits.promotions},
        "held": outcome.held_out.held,
        "p98": outcome.held_out.p98,
        "upper": outcome.held_out.upper,
        "default": asdict(outcome.held_out_default),
    }
    files.write(predicted, json.dumps(prediction, indent=1) + "\n")
    notes = [
        "Written by omr-fleet tune. Roll it out in stages: see report.html.",
        outcome.sentence(),
        f"98 % of the windows: at most {outcome.held_out.p98:.2f} % promotions a minute",
    ]
    files.write(target, tune.toml(outcome.slo, notes))


def departures(prediction: dict[str, Any], total: dict[str, Any]) -> list[str]:
    """Where machines that act by a policy have left its prediction by more than half."""
    recorded = total["recorded"]
    held = recorded["swap_kib_min"] / max(recorded["all_memory_kib_min"], 1)
    refaulted = tune.percent(total["refaulted_p98"])
    found = []
    if held < HALF * prediction["held"]:
        found.append(f"{100 * held:.1f} % of the memory is held out; predicted {100 * prediction['held']:.1f} %")
    # A prediction of nothing would be left by a single page.
    allowed = (1 + HALF) * max(prediction["upper"], prediction["limits"]["promotions"] / 10)
    if refaulted > allowed:
        found.append(f"p98 of what comes back is {refaulted:.2f} % a minute; predicted {prediction['upper']:.2f} %")
    return found
