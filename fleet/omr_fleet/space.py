"""The parameters of a policy, as points of a unit cube."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

GRID = ("2min", "4min", "8min", "15min", "30min", "1h", "2h", "4h", "8h")
"""The ages that a threshold can have: `crates/policy/src/threshold/grid.rs`."""
MINUTES = (2, 4, 8, 15, 30, 60, 120, 240, 480)

Point = tuple[float, ...]


@dataclass(frozen=True)
class Parameter:
    """A key of `[slo]` that is tuned, and the values between 0 and 1 for it."""

    key: str
    meaning: str
    lowest: float
    highest: float

    def value(self, at: float) -> float:
        """Values are as far apart as their logarithms."""
        low, high = math.log(self.lowest), math.log(self.highest)
        return math.exp(low + (high - low) * min(max(at, 0.0), 1.0))

    def at(self, value: float) -> float:
        low, high = math.log(self.lowest), math.log(self.highest)
        return min(max((math.log(value) - low) / (high - low), 0.0), 1.0)


PARAMETERS = (
    Parameter("promotions", "promotions that the controller allows, % a minute", 0.02, 2.0),
    Parameter("kept", "share of the day in which an age must not have kept it, %", 0.1, 20.0),
    Parameter("warm_up", "time for which a new group is only observed, s", 60, 14_400),
    Parameter("shortest", "the shortest threshold, min", 2, 480),
)
"""What `omr-fleet tune` moves."""

DEFAULTS = {"promotions": 0.2, "kept": 2.0, "warm_up": 600, "shortest": 2}
"""omr's own: `crates/policy/src/threshold/slo.rs`. A test compares."""


def slo(point: Sequence[float]) -> dict[str, str]:
    """The keys of `[slo]` at a point, as `omr.toml` has them."""
    values = {parameter.key: parameter.value(at) for parameter, at in zip(PARAMETERS, point)}
    nearest = min(range(len(GRID)), key=lambda index: abs(math.log(MINUTES[index] / values["shortest"])))
    return {
        "promotions": f"{values['promotions']:.4f}%",
        "kept": f"{100 - values['kept']:.2f}%",
        "warm_up": f"{round(values['warm_up'])}s",
        "shortest": GRID[nearest],
    }


def snapped(point: Sequence[float]) -> Point:
    """The point of the values that `slo` writes: points with the same policy are one."""
    keys = slo(point)
    values = {
        "promotions": float(keys["promotions"][:-1]),
        "kept": max(100 - float(keys["kept"][:-1]), 0.01),
        "warm_up": float(keys["warm_up"][:-1]),
        "shortest": MINUTES[GRID.index(keys["shortest"])],
    }
    return tuple(parameter.at(values[parameter.key]) for parameter in PARAMETERS)


def default() -> Point:
    """The point of omr's defaults."""
    return tuple(parameter.at(DEFAULTS[parameter.key]) for parameter in PARAMETERS)
