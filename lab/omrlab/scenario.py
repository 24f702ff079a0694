"""The base classes of the scenarios: an experiment with its options, and a comparison of arms.

Each module in `scenarios/` defines one class derived from `Scenario`. The module's docstring
describes the scenario in `--help` and in the report. No list names the scenarios: `lab/run` finds
them.
"""

import argparse
import dataclasses
import inspect
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar, get_type_hints

from .kernels import KERNEL
from .report import write_report
from .results import Metric, MetricJson, Runs, identity, progress


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    flag: str = "",
    setting: bool = True,
    least: float | None = None,
    **more: Any,
) -> Any:
    """A field of a scenario that is an option on its command line.

    `setting`: a run with another value belongs to another benchmark. `flag`: the option's name,
    where the field's name does not fit. `least`: the smallest number that is allowed; without it
    any above 0. `more`: for argparse.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "flag": flag,
            "setting": setting,
            "least": least,
            "argparse": {"help": help, "metavar": metavar} | more,
        },
    )


def number(kind: type[int] | type[float], least: float | None) -> Callable[[str], float]:
    """Reads a number from the command line, as `option` describes `least`."""

    def read(text: str) -> float:
        value = kind(text)
        if least is not None and not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is not a number of {least} or more")
        if least is None and not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
        return value

    read.__name__ = kind.__name__
    return read


def arms_option(known: Iterable[str], default: str = "") -> Any:
    """The option that chooses the arms; all of them unless `default` names some."""
    return option(default or ",".join(known), f"arms in turn, of {', '.join(known)}", setting=False)


@dataclass(kw_only=True)
class Scenario(ABC):
    """An experiment. Its fields made by `option` are the options of `lab/run NAME`."""

    name: ClassVar[str]
    help: ClassVar[str]
    """One line for the list of scenarios."""

    @abstractmethod
    def run(self) -> dict[str, MetricJson]:
        """Runs the experiment, and returns its figures."""

    @classmethod
    def about(cls) -> str:
        """The docstring of the module."""
        return inspect.getdoc(sys.modules[cls.__module__]) or ""

    @classmethod
    def options(cls) -> list[Field[Any]]:
        return [field for field in dataclasses.fields(cls) if "argparse" in field.metadata]

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        types = get_type_hints(cls)
        for field in cls.options():
            more = dict(field.metadata["argparse"])
            if types[field.name] is bool:
                more = {"help": more["help"], "action": "store_true"}
            elif field.default is not None:
                more = {"type": types[field.name], "default": field.default} | more
                more["help"] += " (default: %(default)s)"
            if more.get("type") in (int, float):
                more["type"] = number(more["type"], field.metadata["least"])
            parser.add_argument(flag(field), **more)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        return cls(**{field.name: getattr(arguments, argument(field)) for field in cls.options()})

    def settings(self) -> dict[str, Any]:
        """The values that all runs of one benchmark share."""
        fields = [field for field in self.options() if field.metadata["setting"]]
        return {argument(field): getattr(self, field.name) for field in fields}

    def command(self) -> str:
        """The command that makes these runs again."""
        words = ["lab/run", self.name]
        for field in self.options():
            value = getattr(self, field.name)
            if field.name in ("fresh", "out") or value is None or value is False:
                continue
            words.append(flag(field))
            if value is not True:
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
        return shlex.join(words)


def flag(field: Field[Any]) -> str:
    """The option as it is on the command line."""
    return field.metadata["flag"] or f"--{field.name.replace('_', '-')}"


def argument(field: Field[Any]) -> str:
    """The name under which argparse keeps the option's value."""
    return flag(field).lstrip("-").replace("-", "_")


@dataclass(kw_only=True)
class Benchmark(Scenario):
    """A scenario that is measured several times and leaves a report."""

    title: ClassVar[str]
    """The title of the report."""

    kernel: str = option(KERNEL, "kernel release", setting=False)
    pairs: int = option(5, "how often each arm runs", setting=False)
    fresh: bool = option(False, "do not use the runs made before", setting=False)
    out: Path | None = option(None, "where the results go (default: lab/out/SCENARIO)", "DIR", setting=False, type=Path)

    def parameters(self) -> dict[str, Any]:
        """Runs with other parameters are runs of another benchmark."""
        return identity(self.kernel) | self.settings()

    def open_runs(self) -> Runs:
        return Runs(self.name, self.parameters(), self.fresh, self.out)

    @abstractmethod
    def guest(self) -> dict[str, Any]:
        """The guest as the report describes it."""

    def publish(
        self,
        runs: Runs,
        metrics: dict[str, Metric],
        plot: Callable[[Path], dict[str, str]],
        extra: Mapping[str, Any] = MappingProxyType({}),
        tables: Mapping[str, dict[str, str]] = MappingProxyType({}),
    ) -> dict[str, MetricJson]:
        """Writes result.json, the plots and the report; returns the figures.

        `plot` draws into a directory and returns the caption of each file. `extra`: further values
        of result.json.
        """
        result = runs.finish(self.guest(), self.pairs, metrics, **extra)
        plots = plot(runs.directory)
        write_report(runs.directory, self.title, self.about(), self.command(), result, plots, tables)
        return result["metrics"]


Run = TypeVar("Run", bound=Mapping[str, Any])
"""The result of one run, as it is in raw/."""

Results = dict[str, list[Run]]
"""The runs of each arm, one of each pair."""


@dataclass(kw_only=True)
class Comparison(Benchmark, Generic[Run]):
    """A benchmark of several arms, such as one without omr and one with it.

    A pair is one run of each arm, and each run has a guest of its own. Every second pair takes the
    arms in reverse order, so that a slow drift of the host affects all arms.
    """

    labels: ClassVar[Mapping[str, str]]
    """The possible arms, and their names in plots."""

    arms: str
    """The arms of a pair, as on the command line. Each comparison has a default of its own."""

    runs: Runs = dataclasses.field(init=False, repr=False)

    @abstractmethod
    def measure(self, arm: str, pair: int) -> Run:
        """One run."""

    @abstractmethod
    def summary(self, run: Run) -> str:
        """The main figures of a run, for the terminal."""

    @abstractmethod
    def metrics(self, results: Results[Run]) -> dict[str, Metric]:
        """The figures of the benchmark."""

    @abstractmethod
    def plot(self, results: Results[Run], directory: Path) -> dict[str, str]:
        """Draws the plots; returns the caption of each file in `directory`."""

    def measure_more(self) -> None:
        """Measures, after the pairs, what does not belong to a pair."""

    def extra(self, results: Results[Run]) -> dict[str, Any]:
        """Further values for result.json."""
        return {}

    def tables(self, results: Results[Run]) -> dict[str, dict[str, str]]:
        """Tables for the report, by their title."""
        return {}

    def chosen(self) -> list[str]:
        """The arms of a pair, in their order."""
        arms = self.arms.split(",")
        if unknown := set(arms) - set(self.labels):
            raise SystemExit(f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(self.labels)}")
        return arms

    def turns(self, arms: list[str], pair: int) -> list[str]:
        """The arms in the order of this pair."""
        return arms if pair % 2 else arms[::-1]

    def run_name(self, arm: str, pair: int) -> str:
        """The name of a run's files in raw/."""
        return f"pair-{pair:02}-{arm}"

    def run(self) -> dict[str, MetricJson]:
        arms = self.chosen()
        self.runs = self.open_runs()
        results: Results[Run] = {arm: [] for arm in arms}
        for pair in range(1, self.pairs + 1):
            for arm in self.turns(arms, pair):
                results[arm].append(self.measured(arm, pair))
        self.measure_more()
        return self.publish(
            self.runs,
            self.metrics(results),
            lambda directory: self.plot(results, directory),
            self.extra(results),
            self.tables(results),
        )

    def measured(self, arm: str, pair: int) -> Run:
        run = self.runs.run(self.run_name(arm, pair), lambda: self.measure(arm, pair))
        progress(f"{self.name}: {arm}: {self.summary(run)}")
        return run
