"""Comparisons of arms, and the list of scenarios. These tests need no VM."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from omrlab import results, scenario, scenarios
from omrlab.__main__ import find_scenarios
from omrlab.kernels import KERNEL
from omrlab.results import Metric
from omrlab.scenario import Comparison, Results, arms_option, option

LABELS = {"off": "without", "on": "with"}


@dataclass(kw_only=True)
class Example(Comparison[dict[str, Any]]):
    name = "example"
    help = "counts its runs"
    title = "Example"
    labels = LABELS

    arms: str = arms_option(LABELS)
    size: int = option(3, "size")
    made: list[str] = field(default_factory=list)

    def measure(self, arm: str, pair: int) -> dict[str, Any]:
        self.made.append(f"{arm} {pair}")
        return {"value": float(pair)}

    def summary(self, run: dict[str, Any]) -> str:
        return str(run["value"])

    def guest(self) -> dict[str, Any]:
        return {"size": self.size}

    def metrics(self, results: Results[dict[str, Any]]) -> dict[str, Metric]:
        return {arm: Metric([run["value"] for run in runs], "s") for arm, runs in results.items()}

    def plot(self, results: Results[dict[str, Any]], directory: Path) -> dict[str, str]:
        return {}


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "identity", lambda release: {"kernel": release})
    monkeypatch.setattr(results, "environment", dict)


def test_arms_take_turns_and_the_figures_go_into_files(tmp_path: Path) -> None:
    example = Example(pairs=2, out=tmp_path / "out")
    figures = example.run()
    assert example.made == ["off 1", "on 1", "on 2", "off 2"]
    assert figures["on"]["values"] == [1, 2]
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written["metrics"] == figures and written["guest"] == {"size": 3} and written["pairs"] == 2
    assert json.loads((tmp_path / "out" / "raw" / "pair-02-on.json").read_text())["value"] == 2
    report = (tmp_path / "out" / "report.html").read_text()
    assert f"lab/run example --kernel {KERNEL} --pairs 2 --arms off,on --size 3" in report


def runs_made(out: Path, **options: int) -> list[str]:
    """The runs that a new lab makes."""
    example = Example(out=out, **options)
    example.run()
    return example.made


def test_each_setting_has_runs_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert runs_made(out, pairs=1) == ["off 1", "on 1"]
    assert runs_made(out, pairs=2) == ["on 2", "off 2"]
    assert runs_made(out, pairs=1, size=4) == ["off 1", "on 1"]
    assert (tmp_path / "out.before" / "raw" / "pair-02-on.json").exists()


@dataclass(kw_only=True)
class Switched(Example):
    quiet: bool = option(False, "without noise")


def test_an_option_without_a_value_is_in_the_command_where_it_is_on() -> None:
    assert Switched(quiet=True).command().endswith("--size 3 --quiet")
    assert Switched().command().endswith("--size 3")


def test_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such arm: up; there are off, on"):
        Example(arms="off,up", out=tmp_path / "out").run()


def test_each_module_has_one_scenario_with_a_name_and_a_help_text() -> None:
    found = find_scenarios()
    modules = [path for path in Path(scenarios.__path__[0]).glob("*.py") if path.name != "__init__.py"]
    assert len(found) == len(modules) > 0
    assert all(name == each.name and each.help and each.about() for name, each in found.items())
