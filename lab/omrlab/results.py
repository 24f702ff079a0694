"""What a scenario leaves behind: raw/, result.json, and the numbers in between."""

import fcntl
import hashlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, Callable

from .binaries import build
from .guest import GuestError, GuestPanicked, accelerator
from .host import cpu_time, stolen
from .kernels import kernel
from .paths import OUT

ATTEMPTS = 3

MUCH = 5.0
"""Percent of the host's CPU time: a run that has lost more than that to others is told of at once."""


def progress(message: str) -> None:
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)


@dataclass
class Metric:
    """One figure over all pairs."""

    values: list[float]
    unit: str
    goal: str | None = None
    seed: float | None = None
    """The same figure in the seed's own publication."""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    def json(self) -> dict[str, Any]:
        known = {"goal": self.goal, "seed": self.seed}
        return {
            "value": rounded(self.value),
            "min": rounded(min(self.values)),
            "max": rounded(max(self.values)),
            "values": [rounded(value) for value in self.values],
            "unit": self.unit,
            **{name: value for name, value in known.items() if value is not None},
        }


def quantile(values: list[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


@dataclass
class Runs:
    """The raw results of a scenario's runs, a file each: an interrupted benchmark goes on where it was.

    Runs made with other parameters, another kernel or another omr are no runs of this benchmark; they are put aside, in
    place of what was put aside before.
    """

    scenario: str
    parameters: dict[str, Any]
    fresh: bool = False
    out: InitVar[Path | None] = None
    directory: Path = field(init=False)
    """Where it all goes; lab/out/SCENARIO unless said otherwise."""
    thrown_away: list[dict[str, str]] = field(init=False, default_factory=list)
    stolen: list[float] = field(init=False, default_factory=list)
    """Of each run that was used: percent of the host's CPU time that its hypervisor gave to others meanwhile."""

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
        """Two labs in one directory would take each other's runs for their own."""
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # Held open, and so locked, as long as this process lives.
        self.lock_file = open(self.directory.with_name(f".{self.directory.name}.lock"), "w")
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GuestError(f"another lab is at work in {self.directory}") from error

    @property
    def raw(self) -> Path:
        return self.directory / "raw"

    def run(self, name: str, measure: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """The result of one run; measures it unless that is done. A run whose guest panicked is made again."""
        path = self.raw / f"{name}.json"
        if path.exists():
            return self.used(json.loads(path.read_text()))
        for attempt in range(1, ATTEMPTS + 1):
            progress(f"{self.scenario}: {name}" + (f", attempt {attempt}" if attempt > 1 else ""))
            before = cpu_time()
            try:
                result = measure(name)
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
                    progress(
                        f"{self.scenario}: {name}: {result['host_stolen_pct']:g} % of the host's CPU time were taken from it meanwhile"
                    )
                return self.used(result)
        raise AssertionError("the last attempt returns or raises")

    def used(self, result: dict[str, Any]) -> dict[str, Any]:
        self.stolen.append(result.get("host_stolen_pct", 0.0))
        return result

    def finish(self, guest: dict[str, Any], pairs: int, metrics: dict[str, Metric], **more: Any) -> dict[str, Any]:
        """Writes result.json."""
        result = {
            "scenario": self.scenario,
            "kernel": self.parameters["kernel"],
            "guest": guest,
            "pairs": pairs,
            "metrics": {name: metric.json() for name, metric in metrics.items()},
            "thrown_away": self.thrown_away,
            "environment": environment() | {"host_stolen_pct": max(self.stolen, default=0.0)},
            **more,
        }
        (self.directory / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        return result


def identity(release: str) -> dict[str, Any]:
    """What makes two runs comparable: the kernel package, the accelerator, the very programs."""
    return {
        "kernel": kernel(release).version,
        "accelerator": accelerator().name,
        "programs": {
            name: hashlib.sha256(build(name).read_bytes()).hexdigest()[:16] for name in ("omr", "omr-testkit")
        },
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
