"""The results of a scenario: the files in raw/, the figures, and result.json."""

import fcntl
import hashlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict, TypeVar, cast

from .binaries import PROGRAMS, build
from .guest import GuestError, GuestPanicked, accelerator
from .host import cpu_time, stolen
from .kernels import kernel
from .paths import OUT

ATTEMPTS = 3
"""Attempts at a run whose guest panics."""

MUCH = 5.0
"""Percent of the host's CPU time. The lab warns when a run lost more to other guests."""

Run = TypeVar("Run", bound=Mapping[str, Any])


class MetricJson(TypedDict):
    """A figure in result.json."""

    value: float
    """The median of the values."""
    min: float
    max: float
    values: list[float]
    unit: str
    goal: NotRequired[str]
    seed: NotRequired[float]


class Result(TypedDict):
    """The contents of every result.json. Some scenarios add values of their own."""

    scenario: str
    kernel: str
    guest: dict[str, Any]
    pairs: int
    metrics: dict[str, MetricJson]
    thrown_away: list[dict[str, str]]
    environment: dict[str, Any]


def progress(message: str) -> None:
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)


@dataclass
class Metric:
    """One figure over all pairs."""

    values: list[float]
    unit: str
    goal: str | None = None
    seed: float | None = None
    """The figure that the seed published."""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    def json(self) -> MetricJson:
        json: MetricJson = {
            "value": rounded(self.value),
            "min": rounded(min(self.values)),
            "max": rounded(max(self.values)),
            "values": [rounded(value) for value in self.values],
            "unit": self.unit,
        }
        if self.goal is not None:
            json["goal"] = self.goal
        if self.seed is not None:
            json["seed"] = self.seed
        return json


def quantile(values: list[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass
class Runs:
    """The runs of a benchmark, each in a file of raw/. An interrupted benchmark goes on.

    Runs with other parameters, another kernel or another omr belong to another benchmark. They are
    moved aside, and replace the runs that were moved aside before.
    """

    scenario: str
    parameters: dict[str, Any]
    fresh: bool = False
    out: InitVar[Path | None] = None
    directory: Path = field(init=False)
    """`out`, or lab/out/SCENARIO."""
    thrown_away: list[dict[str, str]] = field(init=False, default_factory=list)
    stolen: list[float] = field(init=False, default_factory=list)
    """Percent of the host's CPU time that its hypervisor gave to other guests, for each run."""

    def __post_init__(self, out: Path | None) -> None:
        self.directory = out or OUT / self.scenario
        self.lock()
        stamp = self.raw / "parameters.json"
        text = json.dumps(self.parameters, indent=1)
        if self.fresh or not stamp.exists() or stamp.read_text() != text:
            if self.directory.exists():
                aside = self.directory.with_name(f"{self.directory.name}.before")
                shutil.rmtree(aside, ignore_errors=True)
                self.directory.rename(aside)
            self.raw.mkdir(parents=True)
            stamp.write_text(text)
        thrown_away = self.raw / "thrown-away.json"
        if thrown_away.exists():
            self.thrown_away = json.loads(thrown_away.read_text())

    def lock(self) -> None:
        """Makes sure that no other lab works in this directory."""
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # The file stays open, and so locked, as long as this process lives.
        self.lock_file = open(self.directory.with_name(f".{self.directory.name}.lock"), "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GuestError(f"another lab is at work in {self.directory}") from error

    @property
    def raw(self) -> Path:
        return self.directory / "raw"

    def run(self, name: str, measure: Callable[[], Run]) -> Run:
        """The result of one run, from its file if it has one.

        A run whose guest panics is made again.
        """
        path = self.raw / f"{name}.json"
        if path.exists():
            return cast(Run, self.used(json.loads(path.read_text())))
        for attempt in range(1, ATTEMPTS + 1):
            progress(f"{self.scenario}: {name}" + (f", attempt {attempt}" if attempt > 1 else ""))
            before = cpu_time()
            try:
                result = dict(measure())
            except GuestPanicked as panic:
                progress(f"{self.scenario}: {name} thrown away: {panic}")
                self.thrown_away.append({"run": name, "reason": str(panic)})
                (self.raw / "thrown-away.json").write_text(json.dumps(self.thrown_away, indent=1))
                if attempt == ATTEMPTS:
                    raise
            else:
                result["host_stolen_pct"] = round(stolen(before, cpu_time()), 1)
                path.write_text(json.dumps(result, indent=1))
                if result["host_stolen_pct"] > MUCH:
                    lost = f"{result['host_stolen_pct']:g} % of the host's CPU time went to other guests"
                    progress(f"{self.scenario}: {name}: {lost}")
                return cast(Run, self.used(result))
        raise AssertionError("the last attempt returns or raises")

    def used(self, result: dict[str, Any]) -> dict[str, Any]:
        self.stolen.append(result.get("host_stolen_pct", 0.0))
        return result

    def finish(self, guest: dict[str, Any], pairs: int, metrics: dict[str, Metric], **more: Any) -> Result:
        """Writes result.json."""
        result: Result = {
            "scenario": self.scenario,
            "kernel": self.parameters["kernel"],
            "guest": guest,
            "pairs": pairs,
            "metrics": {name: metric.json() for name, metric in metrics.items()},
            "thrown_away": self.thrown_away,
            "environment": environment() | {"host_stolen_pct": max(self.stolen, default=0.0)},
        }
        (self.directory / "result.json").write_text(json.dumps({**result, **more}, indent=1) + "\n")
        return result


def identity(release: str) -> dict[str, Any]:
    """The values that two runs of one benchmark share: kernel package, accelerator, programs."""
    return {
        "kernel": kernel(release).version,
        "accelerator": accelerator().name,
        "programs": {name: hashlib.sha256(build(name).read_bytes()).hexdigest()[:16] for name in PROGRAMS},
    }


def environment() -> dict[str, Any]:
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=OUT.parent, capture_output=True, text=True)
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(": ", 1)[1] for line in cpuinfo.splitlines() if line.startswith("model name")), "unknown")
    return {
        "qemu": qemu,
        "accelerator": accelerator().name,
        "host_cpu": f"{cpuinfo.count('processor')} x {model}",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }
