"""Constrained Bayesian optimization behind ask and tell.

A Gaussian process (scikit-learn; Matern 5/2, a length for each parameter) for the objective and one
for each constraint. The next point has the highest log expected improvement plus the log
probability that each constraint holds, as in Optuna's GPSampler (Gardner et al., "Bayesian
Optimization with Inequality Constraints", ICML 2014). Of a batch, each further point is chosen as
if the ones before had come out as predicted (Ginsbourger et al., "Kriging Is Well-Suited to
Parallelize Optimization", 2010).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr
from scipy.stats import norm, qmc
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from .space import Point

Array: TypeAlias = NDArray[np.float64]

CANDIDATES = 1024
"""Points of a Sobol sequence at which the acquisition is looked at (a power of two)."""
NEAR = 256
"""As many again near the best point so far."""


@dataclass(frozen=True)
class Told:
    """A point that was evaluated."""

    point: Point
    objective: float
    """To be as large as can be."""
    constraints: tuple[float, ...]
    """A constraint holds at zero or below."""

    @property
    def is_feasible(self) -> bool:
        return all(value <= 0 for value in self.constraints)


class Optimizer:
    """Asks for points, and is told what they are worth."""

    def __init__(self, dimensions: int, seed: int, snap: Callable[[Sequence[float]], Point] = tuple) -> None:
        self.dimensions = dimensions
        self.snap = snap
        self.random = np.random.default_rng(seed)
        self.sobol = qmc.Sobol(dimensions, seed=self.random)
        self.told: list[Told] = []

    def tell(self, told: Told) -> None:
        values = (*told.point, told.objective, *told.constraints)
        if len(told.point) != self.dimensions or not all(np.isfinite(values)):
            raise ValueError(f"{told}: expected {self.dimensions} coordinates, and finite values")
        self.told.append(told)

    def best(self) -> Told | None:
        """The best feasible point of those that were evaluated; `None`: none is feasible."""
        return max((told for told in self.told if told.is_feasible), key=lambda told: told.objective, default=None)

    def first(self, count: int) -> list[Point]:
        """Points to begin with: spread evenly."""
        # Some of twice as many may be the same policy. Sobol's points come in powers of two.
        points = self.sobol.random_base2((2 * count - 1).bit_length())
        return self._new([self.snap(point) for point in points], count)

    def ask(self, count: int) -> list[Point]:
        """The next points to evaluate. Fewer than `count` if there is nothing new to ask."""
        if len(self.told) < 2:
            return self.first(count)
        points = np.array([told.point for told in self.told])
        targets = np.array([(told.objective, *told.constraints) for told in self.told])
        models = [fitted(points, column, self.random) for column in targets.T]
        asked: list[Point] = []
        for _ in range(count):
            candidates = self._candidates()
            predicted = [model.predict(candidates, return_std=True) for model in models]
            worth = acquisition(predicted, self._incumbent(targets))
            for index in np.argsort(-worth):
                new = self._new([self.snap(candidates[index])], 1, asked)
                if new:
                    break
            else:
                break
            asked += new
            points = np.vstack([points, new[0]])
            believed = [model.predict(points[-1:])[0] for model in models]
            targets = np.vstack([targets, believed])
            models = [believing(model, points, column) for model, column in zip(models, targets.T)]
        return asked

    def _incumbent(self, targets: Array) -> float | None:
        feasible = targets[(targets[:, 1:] <= 0).all(axis=1), 0]
        return feasible.max() if len(feasible) else None

    def _candidates(self) -> Array:
        best = self.best() or min(self.told, key=lambda told: max(told.constraints, default=0))
        spread = self.random.choice([0.02, 0.1], size=(NEAR, 1))
        near = np.asarray(best.point) + spread * self.random.standard_normal((NEAR, self.dimensions))
        candidates: Array = np.vstack([self.sobol.random(CANDIDATES), near.clip(0, 1)])
        return candidates

    def _new(self, points: Sequence[Point], count: int, asked: Sequence[Point] = ()) -> list[Point]:
        known = {told.point for told in self.told} | set(asked)
        new = [point for point in dict.fromkeys(points) if point not in known]
        return new[:count]


def fitted(points: Array, values: Array, random: np.random.Generator) -> GaussianProcessRegressor:
    """A process through these values."""
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(np.full(points.shape[1], 0.5), (0.05, 10.0), nu=2.5)
    kernel += WhiteKernel(1e-4, (1e-8, 1e-1))
    seed = int(random.integers(2**31))
    model = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=seed)
    # The matrices are so small that threads only wait for each other.
    with warnings.catch_warnings(), threadpool_limits(1):
        # A length at its bound: the parameter hardly matters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(points, values)


def believing(model: GaussianProcessRegressor, points: Array, values: Array) -> GaussianProcessRegressor:
    """The process with its parameters as they are, through further values."""
    return GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True).fit(points, values)


def acquisition(predicted: Sequence[tuple[Array, Array]], best: float | None) -> Array:
    """How worthwhile candidates are. `predicted`: the mean and the deviation of the objective, then
    of each constraint.
    """
    (mean, deviation), *constraints = predicted
    worth = np.zeros(len(mean))
    if best is not None:
        worth += log_expected_improvement((mean - best) / np.maximum(deviation, 1e-12)) + np.log(deviation + 1e-12)
    for mean, deviation in constraints:
        worth += log_ndtr(-mean / np.maximum(deviation, 1e-12))
    return worth


def log_expected_improvement(z: Array) -> Array:
    """log(phi(z) + z Phi(z)), also where both are too small for a difference (Ament et al.,
    "Unexpected Improvements to Expected Improvement", NeurIPS 2023).
    """
    plain = np.log(np.maximum(norm.pdf(z) + z * norm.cdf(z), 1e-300))
    far = norm.logpdf(z) - 2 * np.log(np.maximum(-z, 1.0))
    return np.where(z > -6, plain, far)
