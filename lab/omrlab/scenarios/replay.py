"""How far is a replay from what really happens? One guest records. `omr whatif`
says from that recording what other policies would have held and what would have come back. Then the
same loads run again with each of these policies in force.

The loads and the clock are those of `slo`.
"""

import base64
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypedDict

from ..binaries import build
from ..daemon import Daemon
from ..plots import COLOURS, canvas, headline, save
from ..results import Metric
from ..scenario import Comparison, Results, arms_option, option
from .slo import LAWS, Slo

LABELS = {
    "record": "recorded only",
    "two": "2 min",
    "eight": "8 min",
    "thirty": "30 min",
    "controller": "the controller",
}

FIXED = {"two": "2min", "eight": "8min", "thirty": "30min"}

CONFIG = """\
mode = "{mode}"

[history]
every = "{every}s"

[sweep]
after_boot = "0s"

[slo]
{slo}
"""

SHARD = "/tmp/week.parquet"

PROMOTIONS = 0.2
"""The objective of the default policy, in percent of the working set a minute."""

OBJECTIVE_MILLIONTHS = round(PROMOTIONS * 10_000)


def slo_of(arm: str) -> dict[str, str]:
    """The keys of `[slo]`. A fixed threshold has an objective that it never breaks by much."""
    if arm not in FIXED:
        return {}
    return {"shortest": FIXED[arm], "longest": FIXED[arm], "promotions": "10%"}


POLICIES = {"policies": [{"name": arm, "slo": slo_of(arm)} for arm in LABELS if arm != "record"]}


class Recording(TypedDict):
    """What `omr whatif` makes of the recording of one guest."""

    arm: str
    recorded: dict[str, Any]
    """What really happened."""
    refaulted_p98: int | None
    policies: dict[str, dict[str, Any]]
    """What would have happened, by policy."""
    shard: str
    """The recording itself, in base64, so that a later program can replay it."""


class Predicted(NamedTuple):
    """A figure of a policy."""

    least: float
    likely: float
    most: float


@dataclass(kw_only=True)
class Replay(Comparison[Recording]):
    name = "replay"
    help = "what omr whatif predicts from a recording, against the same loads with these policies (20 minutes a run)"
    title = "A replay against reality"
    labels = LABELS
    goals: ClassVar[dict[str, str]] = {
        "held_error_pct": "<= 20",
        "promoted_error_pct": "<= 20",
        "wrong_about_the_objective": "= 0",
    }

    pairs: int = option(1, "how often each arm runs", setting=False)
    arms: str = arms_option(LABELS)
    mem: int = option(2048, "memory of the guest", "MIB")
    amount: int = option(320, "memory of each planted load", "MIB")
    redis: int = option(288, "values in Redis; 0: no Redis", "MIB", least=0)
    laws: str = option(",".join(LAWS), "planted loads")
    minutes: float = option(90, "recorded", "MINUTES")
    every: int = option(300, "from one sample to the next", "S")

    def measure(self, arm: str, pair: int) -> Recording:
        slo = Slo(kernel=self.kernel, mem=self.mem, amount=self.amount, redis=self.redis, laws=self.laws)
        with slo.programs(pair) as (guest, _):
            keys = "\n".join(f'{key} = "{value}"' for key, value in slo_of(arm).items())
            mode = "record" if arm == "record" else "act"
            with Daemon(guest, whole=CONFIG.format(mode=mode, every=self.every, slo=keys)):
                guest.run(["sleep", f"{60 * self.minutes:.0f}"], timeout=600 * self.minutes)
                guest.run(["omr", "record", "export", SHARD])
                return self.replayed(arm, guest.read_long(SHARD))

    def replayed(self, arm: str, shard: bytes) -> Recording:
        """What the program says of a shard, on this machine."""
        with tempfile.TemporaryDirectory() as place:
            file, policies = Path(place, "week.parquet"), Path(place, "policies.json")
            file.write_bytes(shard)
            policies.write_text(json.dumps(POLICIES))
            command: list[Any] = [build("omr"), "whatif", "--local", place, "--policies", policies, "--out", place]
            ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        told = json.loads(ran.stdout)
        return {
            "arm": arm,
            "recorded": told["recorded"],
            "refaulted_p98": told["refaulted_p98"],
            "policies": {policy["policy"]["name"]: policy for policy in told["policies"]},
            "shard": base64.b64encode(shard).decode(),
        }

    def summary(self, run: Recording) -> str:
        windows = run["recorded"]["windows"]
        return f"{windows} windows, {held_pct(run):.1f} % held, {back_mib(run):.2f} MiB/min came back"

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": self.mem, "swap": "zram", "load_mib": self.amount, "redis_mib": self.redis}

    def metrics(self, results: Results[Recording]) -> dict[str, Metric]:
        """The figures of the benchmark."""
        found: dict[str, Metric] = {}
        errors: dict[str, list[float]] = {"held": [], "promoted": [], "promoted_least": []}
        wrong: list[float] = []
        outside = 0
        for arm, runs in results.items():
            if arm == "record" or "record" not in results:
                continue
            for before, run in zip(results["record"], runs):
                held, really_held = predicted_held(before, arm), held_pct(run)
                back, really_back = predicted_back(before, arm), back_mib(run)
                for predicted, real in ((held, really_held), (back, really_back)):
                    outside += not 0.99 * predicted.least <= real <= 1.01 * predicted.most
                errors["held"].append(error_pct(held.likely, really_held))
                errors["promoted"].append(error_pct(back.likely, really_back))
                errors["promoted_least"].append(error_pct(back.least, really_back))
                promoted_p98 = before["policies"][arm]["promoted_p98"]
                wrong.append(float(is_wrong(promoted_p98, run["refaulted_p98"])))
            pairs = list(zip(results["record"], runs))
            found |= {
                f"held_{arm}": Metric([held_pct(run) for run in runs], "%"),
                f"back_{arm}": Metric([back_mib(run) for run in runs], "MiB/min"),
            }
            for name, predict, unit in (("held", predicted_held, "%"), ("back", predicted_back, "MiB/min")):
                for side in Predicted._fields:
                    values = [getattr(predict(before, arm), side) for before, _ in pairs]
                    found[f"{name}_predicted_{side}_{arm}"] = Metric(values, unit)
        if wrong:
            found |= {
                "held_error_pct": Metric(errors["held"], "%", self.goals["held_error_pct"]),
                "outside_of_the_bounds": Metric([float(outside)], "figures"),
                "promoted_error_pct": Metric(errors["promoted"], "%", self.goals["promoted_error_pct"]),
                "promoted_error_of_least_pct": Metric(errors["promoted_least"], "%"),
                "wrong_about_the_objective": Metric([sum(wrong)], "policies", self.goals["wrong_about_the_objective"]),
            }
        return found

    def plot(self, results: Results[Recording], directory: Path) -> dict[str, str]:
        arms = [arm for arm in results if arm != "record"]
        figure, axes = canvas(columns=2, rows=1, width=9, height=3.6)
        sides = (
            (axes[0], predicted_held, held_pct, "% of the memory held out"),
            (axes[1], predicted_back, back_mib, "MiB a minute that came back"),
        )
        for of, predicted, real, label in sides:
            for place, arm in enumerate(arms):
                for before, run in zip(results.get("record", []), results[arm]):
                    least, likely, most = predicted(before, arm)
                    of.plot([place - 0.12] * 2, [least, most], color=COLOURS["swap"], linewidth=6, alpha=0.7)
                    of.plot([place - 0.2, place - 0.04], [likely] * 2, color=COLOURS["swap"])
                    of.plot(place + 0.12, real(run), "o", color=COLOURS["on"])
            of.set_xticks(range(len(arms)), [LABELS[arm] for arm in arms])
            of.set_ylabel(label)
            of.set_ylim(bottom=0)
        headline(figure, "What a replay predicts (bar: least to most; line: likely), and what really happened (dot)")
        save(figure, directory / f"{self.name}.png")
        return {f"{self.name}.png": "Memory held out on average, and what came back, by threshold."}


def held_pct(run: Recording) -> float:
    """The part of all memory that was in swap, on average."""
    return 100 * float(run["recorded"]["swap_kib_min"]) / float(run["recorded"]["all_memory_kib_min"])


def back_mib(run: Recording) -> float:
    """What came back in a minute, on average."""
    return float(run["recorded"]["refaulted_kib"]) / 1024 / (float(run["recorded"]["machine_ms"]) / 60_000)


def predicted_held(run: Recording, policy: str) -> Predicted:
    sums, memory = run["policies"][policy]["sums"], float(run["recorded"]["memory_kib_min"])
    return Predicted(*(100 * sums[f"held_{side}_kib_min"] / memory for side in Predicted._fields))


def predicted_back(run: Recording, policy: str) -> Predicted:
    """In a minute, as if of all memory as much came back as of that of which enough is known."""
    sums, recorded = run["policies"][policy]["sums"], run["recorded"]
    of_all = recorded["all_memory_kib_min"] / recorded["memory_kib_min"] / 1024
    minutes = recorded["machine_ms"] / 60_000
    return Predicted(*(of_all * sums[f"promoted_{side}_kib"] / minutes for side in Predicted._fields))


def error_pct(predicted: float, real: float) -> float:
    """How far the prediction is from what happened."""
    return 100 * abs(predicted - real) / real if real else (0.0 if not predicted else 100.0)


def is_wrong(predicted: list[int | None], real: int | None) -> bool:
    """The replay was sure that the objective is kept, or broken, and it was not so."""
    if real is None:
        return False
    least, most = (rate or 0 for rate in predicted)
    is_broken = real > OBJECTIVE_MILLIONTHS
    return (most <= OBJECTIVE_MILLIONTHS and is_broken) or (least > OBJECTIVE_MILLIONTHS and not is_broken)
