"""The search for a policy, on functions whose best is known, and on a fleet."""

import json
import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from omr_fleet import cli, rollout, space, tune
from omr_fleet.optimizer import Optimizer, Told, acquisition, log_expected_improvement
from omr_fleet.tune import Figures, Limits

from .conftest import ROOT

SEEDS = 6


def objective(point: tuple[float, ...]) -> float:
    """More the farther to the right and to the top, with a ripple."""
    x, y = point
    return 10 * x + 6 * y + math.sin(9 * x) - 4 * (x - 0.4) ** 2


def constraint(point: tuple[float, ...]) -> float:
    """Holds below a curve."""
    x, y = point
    return x**2 + y**2 - 0.8 + 0.1 * math.sin(8 * y)


def optimum() -> float:
    side = np.linspace(0, 1, 401)
    return max(objective((x, y)) for x in side for y in side if constraint((x, y)) <= 0)


def search(seed: int, evaluations: int, ask) -> Optimizer:
    optimizer = Optimizer(2, seed)
    points = optimizer.first(5)
    while len(optimizer.told) < evaluations:
        for point in points:
            optimizer.tell(Told(tuple(point), objective(point), (constraint(point),)))
        points = ask(optimizer)
    return optimizer


def test_it_comes_within_a_percent_in_25_evaluations_where_chance_does_not() -> None:
    best = optimum()
    random = np.random.default_rng(0)

    def is_near(optimizer: Optimizer) -> bool:
        found = optimizer.best()
        return found is not None and found.objective >= best - 0.01 * abs(best)

    found = sum(is_near(search(seed, 25, lambda optimizer: optimizer.ask(1))) for seed in range(SEEDS))
    by_chance = sum(is_near(search(seed, 25, lambda _: [tuple(random.random(2))])) for seed in range(SEEDS))
    assert found >= SEEDS - 1 and by_chance <= SEEDS // 2, (found, by_chance)


def test_the_best_was_evaluated_and_is_feasible() -> None:
    optimizer = Optimizer(1, 0)
    assert optimizer.best() is None
    for x, broken in ((0.1, -1.0), (0.5, -0.1), (0.9, 0.1)):
        optimizer.tell(Told((x,), x, (broken,)))
    assert optimizer.best() == Told((0.5,), 0.5, (-0.1,))
    asked = optimizer.ask(4)
    assert len(set(asked)) == 4 and not {(0.1,), (0.5,), (0.9,)} & set(asked)


def test_nonsense_is_refused() -> None:
    optimizer = Optimizer(1, 0)
    for told in (Told((0.5,), math.nan, ()), Told((0.5,), 1.0, (math.inf,)), Told((0.5, 0.5), 1.0, ())):
        with pytest.raises(ValueError):
            optimizer.tell(told)


def test_the_expected_improvement_is_that_of_the_definition() -> None:
    z = np.linspace(-5.9, 3, 50)
    assert np.allclose(np.exp(log_expected_improvement(z)), norm.pdf(z) + z * norm.cdf(z))
    far = log_expected_improvement(np.array([-40.0, -30.0, -20.0, -6.01, -5.99]))
    assert np.all(np.isfinite(far)) and np.all(np.diff(far) > 0)
    # What breaks a constraint for sure is worth less than what gains nothing.
    sure, open_ = (np.array([0.0]), np.array([0.1])), (np.array([1.0]), np.array([0.1]))
    assert acquisition([sure, open_], 0.0) < acquisition([sure, (-open_[0], open_[1])], 0.0)


def test_the_defaults_and_the_grid_are_omrs(omr: str) -> None:
    shown = subprocess.run([omr, "config", "show"], capture_output=True, text=True, check=True).stdout
    slo = tomllib.loads(shown)["slo"]
    written = space.slo(space.default())
    assert float(written["promotions"].rstrip("%")) == float(re.match(r"[\d.]+", slo["promotions"])[0])
    assert float(written["kept"].rstrip("%")) == float(slo["kept"].rstrip("%"))
    assert (written["warm_up"], slo["warm_up"]) == ("600s", "10m")
    assert (written["shortest"], slo["shortest"]) == ("2min", "2m")
    grid = (ROOT / "crates/policy/src/threshold/grid.rs").read_text()
    minutes = re.search(r"const MINUTES: \[u64; STEPS\] = \[([\d, ]+)\]", grid)
    assert minutes and tuple(int(number) for number in minutes[1].split(",")) == space.MINUTES


def test_points_with_the_same_policy_are_one() -> None:
    for point in np.random.default_rng(1).random((200, 4)):
        snapped = space.snapped(point)
        assert space.slo(snapped) == space.slo(point) and space.snapped(snapped) == pytest.approx(snapped)
    assert len(tune.neighbours(space.snapped(space.default()))) >= 6


def figures(held: float, upper: float, written: float = 1.0) -> Figures:
    return Figures(held, upper, upper, 0.0, written)


def test_a_policy_that_breaks_a_limit_is_never_the_best() -> None:
    """A fleet on which more promotions always hold more memory, and break the limit from 0.5 on."""
    for limits, seed in ((Limits(0.5), 0), (Limits(0.5), 1), (Limits(10.0, written_gib_per_day=5.0), 2)):

        def evaluate(named: dict[str, dict[str, str]]) -> dict[str, Figures]:
            rates = {name: float(slo["promotions"][:-1]) for name, slo in named.items()}
            found = {name: figures(0.2 + 0.05 * rate, rate, 10 * rate) for name, rate in rates.items()}
            return {"default": figures(0.2, 0.2, 2.0), **found}

        tuned = tune.tune(evaluate, limits, seed, rounds=5, batch=6, say=lambda _: None)
        assert tuned.best is not None and tuned.figures(tuned.best).keeps(limits)
        assert tuned.figures(tuned.best).held > 0.2 + 0.05 * 0.44, tuned.figures(tuned.best)
    tuned = tune.tune(evaluate, Limits(0.001), 0, rounds=2, batch=4, say=lambda _: None)
    assert tuned.best is None


@pytest.mark.parametrize(
    ("swap", "refaulted", "left"),
    [(15, 1_500, 0), (9, 1_500, 1), (15, 3_100, 1), (9, 3_100, 2), (15, None, 0)],
)
def test_machines_that_leave_the_prediction_by_half_go_back(swap: int, refaulted: int | None, left: int) -> None:
    prediction = {"held": 0.2, "upper": 0.2, "limits": {"promotions": 0.2}}
    total = {"recorded": {"swap_kib_min": swap, "all_memory_kib_min": 100}, "refaulted_p98": refaulted}
    assert len(rollout.departures(prediction, total)) == left


def omr_fleet(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "omr_fleet.cli", *words], capture_output=True, text=True)


def test_a_fleet_is_tuned_and_the_files_are_what_omr_reads(omr: str, fleet: Path, tmp_path: Path) -> None:
    seen, other = tmp_path / "seen", tmp_path / "other"
    for seed, place in (("8", seen), ("9", other)):
        command = [omr, "fleet", "synthesize", "--seed", seed, "--machines", "2", "--exact", "--out", place]
        subprocess.run(command, check=True, capture_output=True)
    (seen / "cut.parquet").write_bytes((fleet / "mixed/cut.parquet").read_bytes())
    out = tmp_path / "tuned"
    words = ["tune", seen, "--held-out", other, "--out", out, "--omr", omr, "--engine", "local", "--group", "1"]
    # A generous limit, so that there is something to find.
    ran = omr_fleet(*words, "--promotions", "1", "--rounds", "3", "--batch", "8")
    assert ran.returncode == 0, ran
    assert "bad shard: cut.parquet" in ran.stderr
    slo = tomllib.loads((out / "tuned.toml").read_text())["slo"]
    prediction = json.loads((out / "prediction.json").read_text())
    assert slo == prediction["slo"]
    checked = subprocess.run([omr, "config", "check", "--config", out / "tuned.toml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked
    report = (out / "report.html").read_text()
    assert report.count("<svg") == 2 and "mode = &quot;record&quot;" in report
    for heading in ("What the policies do", "The price of one step more", "Roll-out"):
        assert heading in report
    # What was only observed held nothing: the machines have left the prediction.
    total = out / "results/total.json"
    left = omr_fleet("check", "--prediction", out / "prediction.json", "--total", total)
    assert left.returncode == 3 and "back to the defaults" in left.stdout, left
    wrong = omr_fleet("check", "--prediction", total, "--total", total)
    assert wrong.returncode == 2 and "expected prediction.json" in wrong.stderr, wrong


def test_where_nothing_keeps_the_limits_nothing_is_written(omr: str, fleet: Path, tmp_path: Path) -> None:
    words = ["tune", fleet / "good", "--held-out", fleet / "mixed", "--out", tmp_path, "--omr", omr]
    ran = omr_fleet(*words, "--engine", "local", "--promotions", "0.0001", "--rounds", "1", "--batch", "3")
    assert ran.returncode == 1 and "nothing is written" in ran.stderr, ran
    assert not (tmp_path / "tuned.toml").exists() and not (tmp_path / "report.html").exists()
    # Shards that tuning has seen hold nothing out.
    words[3] = fleet / "good/week=0"
    ran = omr_fleet(*words)
    assert ran.returncode == 2 and "machine=0.parquet is among the shards to tune on" in ran.stderr, ran


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--promotions", ("0", "-1", "nan", "11", "x")),
        ("--written", ("0", "-1", "nan", "1e9", "x")),
        ("--rounds", ("0", "-1", "1.5", "10001", "x")),
        ("--seed", ("-1", "x", str(1 << 32))),
    ],
)
def test_a_bad_value_is_named(option: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "seen", "--held-out", "other", "--out", "out"]
    assert cli.parser().parse_args([*words, option, "1"])
    for value in values:
        with pytest.raises(SystemExit) as refused:
            cli.parser().parse_args([*words, f"{option}={value}"])
        assert refused.value.code == 2 and f"argument {option}: {value!r}: expected" in capsys.readouterr().err
