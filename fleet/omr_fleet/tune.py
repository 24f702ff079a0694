"""Tuning: the policy that holds the most memory within an objective for what comes back."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import space
from .space import Point

KIB_PER_GIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a policy must keep."""

    promotions: float
    """98 % of the windows have no more promotions, in percent of the memory in use a minute."""
    written_gib_per_day: float = math.inf
    """Written to swap by one machine."""


def percent(millionths: int | None) -> float:
    """A rate of `omr whatif`; `None`: there were no windows, and nothing came back."""
    return (millionths or 0) / 10_000


@dataclass(frozen=True)
class Figures:
    """What a policy would have done on some shards."""

    held: float
    """Memory held out, of all memory; at least, for what is not known."""
    p98: float
    """98 % of the windows had no more promotions, in percent a minute; at most."""
    upper: float
    """The same in 95 % of the draws of a bootstrap over jobs."""
    over: float
    """The share of windows with more than the policy's own objective allows, at most."""
    written_gib_per_day: float

    @classmethod
    def of(cls, told: dict[str, Any], policy: dict[str, Any]) -> "Figures":
        memory = max(told["recorded"]["memory_kib_min"], 1)
        return cls(
            held=policy["sums"]["held_least_kib_min"] / memory,
            p98=percent(policy["promoted_p98"][1]),
            upper=percent(policy["promoted_p98_upper"][1]),
            over=policy["over_permyriad"][1] / 10_000,
            written_gib_per_day=policy["written_kib_per_day"] / KIB_PER_GIB,
        )

    def constraints(self, limits: Limits) -> tuple[float, ...]:
        """How far a limit is exceeded: as a logarithm, since promotions differ by powers of ten."""
        limited = [(self.upper, limits.promotions), (self.written_gib_per_day, limits.written_gib_per_day)]
        return tuple(math.log(max(value, 1e-4) / limit) for value, limit in limited if math.isfinite(limit))

    def keeps(self, limits: Limits) -> bool:
        return all(value <= 0 for value in self.constraints(limits))


Evaluate = Callable[[dict[str, dict[str, str]]], dict[str, Figures]]
"""The figures of policies by name; `default` is always among them."""


def policies_file(named: dict[str, dict[str, str]], swap: str) -> bytes:
    """The text for `omr whatif --policies`."""
    policies = [{"name": name, "slo": slo} for name, slo in named.items()]
    return json.dumps({"swap": swap, "policies": policies}, indent=1).encode()


@dataclass
class Tuned:
    """The outcome of tuning."""

    best: Point | None
    """`None`: nothing that was tried keeps the limits."""
    default: Figures
    tried: list[tuple[Point, Figures]] = field(default_factory=list)

    def figures(self, point: Point) -> Figures:
        return next(figures for tried, figures in self.tried if tried == point)


def tune(
    evaluate: Evaluate, limits: Limits, seed: int, rounds: int, batch: int, say: Callable[[str], None] = print
) -> Tuned:
    """Looks for the policy that holds the most memory and keeps the limits."""
    # It takes two seconds, for which other commands need not wait.
    from .optimizer import Optimizer, Told

    optimizer = Optimizer(len(space.PARAMETERS), seed, space.snapped)
    tuned = Tuned(None, Figures(0, 0, 0, 0, 0))
    start = space.snapped(space.default())
    for number in range(rounds):
        points = optimizer.ask(batch) if number else [start, *optimizer.first(batch - 1)]
        if not points:
            break
        found = evaluate({f"p{at}": space.slo(point) for at, point in enumerate(points)})
        tuned.default = found["default"]
        for at, point in enumerate(points):
            figures = found[f"p{at}"]
            tuned.tried.append((point, figures))
            optimizer.tell(Told(point, 100 * figures.held, figures.constraints(limits)))
        best = optimizer.best()
        tuned.best = best.point if best else None
        held = f"{best.objective:.2f} % held" if best else "nothing keeps the limits yet"
        say(f"round {number + 1} of {rounds}: {held}; the defaults: {100 * tuned.default.held:.2f} %")
    return tuned


def neighbours(point: Point, step: float = 0.1) -> list[tuple[str, Point]]:
    """The points one step further in each parameter, both ways."""
    found = []
    for at, parameter in enumerate(space.PARAMETERS):
        for way, sign in (("more", 1), ("less", -1)):
            moved = [*point]
            moved[at] = min(max(moved[at] + sign * step, 0.0), 1.0)
            snapped = space.snapped(moved)
            if snapped != point:
                found.append((f"{parameter.key}, {way}", snapped))
    return found


def gain(tuned: Figures, default: Figures) -> float:
    """How much more memory is held, as a share of what the defaults hold."""
    return tuned.held / default.held - 1 if default.held else math.inf


def toml(slo: dict[str, str], notes: Sequence[str]) -> str:
    """A file for /etc/omr/conf.d."""
    lines = [f"# {note}" for note in notes]
    return "\n".join([*lines, "", "[slo]", *(f'{key} = "{value}"' for key, value in slo.items()), ""])
