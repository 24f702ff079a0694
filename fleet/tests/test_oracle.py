"""The search beside Optuna's, where Optuna is installed: run by hand."""

import statistics
import warnings

import pytest

from .test_tune import constraint, objective, optimum, search

optuna = pytest.importorskip("optuna")

SEEDS, EVALUATIONS = 20, 25


def samplers() -> list[str]:
    """Its Gaussian process needs PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return ["TPESampler"]
    return ["TPESampler", "GPSampler"]


def of_optuna(sampler: str, seed: int) -> float:
    def evaluate(trial: "optuna.Trial") -> float:
        point = (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1))
        trial.set_user_attr("constraint", (constraint(point),))
        return objective(point)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = getattr(optuna.samplers, sampler)(
            seed=seed, constraints_func=lambda trial: trial.user_attrs["constraint"]
        )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=chosen)
        study.optimize(evaluate, n_trials=EVALUATIONS)
    found = [trial.value for trial in study.trials if trial.user_attrs["constraint"][0] <= 0]
    return max(found, default=0.0)


def of_omr(seed: int) -> float:
    found = search(seed, EVALUATIONS, lambda optimizer: optimizer.ask(1)).best()
    return found.objective if found else 0.0


@pytest.mark.parametrize("sampler", samplers())
def test_it_finds_what_optuna_finds(sampler: str, capsys: pytest.CaptureFixture[str]) -> None:
    best = optimum()
    found = {
        "omr": [of_omr(seed) for seed in range(SEEDS)],
        sampler: [of_optuna(sampler, seed) for seed in range(SEEDS)],
    }
    with capsys.disabled():
        for name, values in found.items():
            within = sum(value >= best - 0.01 * abs(best) for value in values)
            print(f"\n{name}: within 1 % in {within} of {SEEDS}; median {statistics.median(values):.3f} of {best:.3f}")
    assert statistics.median(found["omr"]) >= statistics.median(found[sampler]) - 0.01 * abs(best)
