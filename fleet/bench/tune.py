"""How good is the search? Run by hand:

    python bench/tune.py grid OMR FLEET grid.json        all policies of a grid, in a few passes
    python bench/tune.py search grid.json                100 searches on that grid, and by chance
    python bench/tune.py ceiling FLEET                   what hindsight would hold (needs pyarrow)
    python bench/tune.py gain OMR FLEET HELD_OUT SEEDS   whole searches, and what other shards hold;
                                                         SEEDS: 10, or 10-20 for the next ten

The grid is over `promotions` and `kept`; the other keys have their defaults.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import qmc

from omr_fleet import run, space, tune
from omr_fleet.optimizer import Optimizer, Told
from omr_fleet.tune import Figures, Limits

SIDE = 24
SEARCHES = 100
EVALUATIONS = 25
FIRST = 8
LIMITS = Limits(0.2)
TEXTS = ("time", "boot", "group")


def policy(x: float, y: float) -> dict[str, str]:
    default = space.default()
    return space.slo((x, y, *default[2:]))


def grid(omr: str, fleet: str, file: str) -> None:
    at = np.linspace(0, 1, SIDE)
    named = {f"{i} {j}": policy(at[i], at[j]) for i in range(SIDE) for j in range(SIDE)}
    names = list(named)
    found = {}
    with tempfile.TemporaryDirectory() as out:
        for begin in range(0, len(names), 192):
            some = {name: named[name] for name in names[begin : begin + 192]}
            told = run.fleet(fleet, tune.policies_file(some, "memory"), out, omr, per_group=1)
            for of in told["policies"]:
                figures = Figures.of(told, of)
                found[of["policy"]["name"]] = [100 * figures.held, figures.constraints(LIMITS)[0]]
    Path(file).write_text(json.dumps({"side": SIDE, "default": found.pop("default"), "policies": found}) + "\n")


def search(file: str) -> None:
    known = json.loads(Path(file).read_text())["policies"]
    best = max(held for held, broken in known.values() if broken <= 0)

    def look(point: tuple[float, ...]) -> Told:
        i, j = (round(value * (SIDE - 1)) for value in point)
        held, broken = known[f"{i} {j}"]
        return Told((i / (SIDE - 1), j / (SIDE - 1)), held, (broken,))

    def snap(point) -> tuple[float, ...]:
        return tuple(round(value * (SIDE - 1)) / (SIDE - 1) for value in point)

    def found(told: list[Told]) -> float:
        return max((of.objective for of in told if of.is_feasible), default=0.0)

    results: dict[str, list[float]] = {"search": [], "chance": [], "sobol": []}
    for seed in range(SEARCHES):
        optimizer = Optimizer(2, seed, snap)
        for point in optimizer.first(FIRST):
            optimizer.tell(look(point))
        while len(optimizer.told) < EVALUATIONS:
            for point in optimizer.ask(1):
                optimizer.tell(look(point))
        results["search"].append(found(optimizer.told))
        random = np.random.default_rng(seed).random((EVALUATIONS, 2))
        results["chance"].append(found([look(point) for point in random]))
        sobol = qmc.Sobol(2, seed=seed).random_base2(5)[:EVALUATIONS]
        results["sobol"].append(found([look(point) for point in sobol]))
    for name, values in results.items():
        within = sum(value >= 0.99 * best for value in values)
        print(f"{name}: within 1 % of {best:.2f} in {within} of {SEARCHES}; median {np.median(values):.2f}")


def ceiling(fleet: str) -> None:
    """What is held by whoever knows the future. The shards are of `--exact`."""
    import pyarrow.parquet as parquet

    ages = [60 * minutes for minutes in space.MINUTES]
    held, rates, memory, jobs = [], [], [], []
    for number, file in enumerate(sorted(Path(fleet).rglob("*.parquet"))):
        table = parquet.read_table(file)
        table = table.filter(table["promoted_over_ms"].is_valid())
        column = {name: table[name].to_numpy().astype(float) for name in table.column_names if name not in TEXTS}
        minutes = column["promoted_over_ms"] / 60_000
        held.append(np.stack([column[f"idle_{age}s_most"] for age in ages], 1))
        back = np.stack([column[f"promoted_{age}s_most"] for age in ages], 1)
        rates.append(100 * back / ((column["memory"] - column["idle_120s_most"]) * minutes)[:, None])
        memory.append(column["memory"])
        jobs += [f"{number} {group}" for group in table["group"].to_pylist()]
    out, rate, all_memory, job = (
        np.concatenate(held),
        np.concatenate(rates),
        np.concatenate(memory).sum(),
        np.array(jobs),
    )
    keeps = rate <= LIMITS.promotions
    longest = len(ages) - 1
    best = np.where(keeps.any(axis=1), keeps.argmax(axis=1), longest)
    each = out[np.arange(len(out)), best]
    # 2 % of the windows may break the limit: those that gain most.
    most = np.sort(out[:, 0] - each)[-len(out) // 50 :]
    fixed = 0.0
    for name in np.unique(job):
        of = job == name
        kept = (keeps[of].mean(axis=0) >= 0.98).nonzero()[0]
        fixed += out[of][:, kept[0] if len(kept) else longest].sum()
    print(f"unused for 2 min: {100 * out[:, 0].sum() / all_memory:.2f} %")
    print(f"the best threshold of each window: {100 * (each.sum() + most.sum()) / all_memory:.2f} %")
    print(f"the best threshold of each job: {100 * fixed / all_memory:.2f} %")


def gain(omr: str, fleet: str, held_out: str, seeds: str) -> None:
    first, _, last = seeds.rpartition("-")
    for seed in range(int(first or 0), int(last)):
        with tempfile.TemporaryDirectory() as out:

            def evaluate(shards: str, named: dict[str, dict[str, str]], out: str = out) -> dict[str, Figures]:
                told = run.fleet(shards, tune.policies_file(named, "memory"), out, omr, per_group=1, quiet=True)
                return {of["policy"]["name"]: Figures.of(told, of) for of in told["policies"]}

            tuned = tune.tune(lambda named: evaluate(fleet, named), LIMITS, seed, 6, 8, say=lambda _: None)
            assert tuned.best is not None
            other = evaluate(held_out, {"tuned": space.slo(tuned.best)})
            print(
                json.dumps(
                    {
                        "seed": seed,
                        "slo": space.slo(tuned.best),
                        "gain": round(tune.gain(tuned.figures(tuned.best), tuned.default), 4),
                        "gain_held_out": round(tune.gain(other["tuned"], other["default"]), 4),
                        "upper_held_out": other["tuned"].upper,
                        "p98_held_out": other["tuned"].p98,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    {"grid": grid, "search": search, "ceiling": ceiling, "gain": gain}[sys.argv[1]](*sys.argv[2:])
