"""Figures and plots of scenarios from runs that are made up: needs no VM."""

from pathlib import Path
from typing import Any

import pytest

from omrlab.guest import MIB
from omrlab.report import reached
from omrlab.scenarios import burst, migrate


def migrated(seconds: float, mib: int, errors: int = 0) -> dict[str, Any]:
    return {
        "migration": {"total_s": seconds, "downtime_s": 0.02, "sent": mib * MIB, "progress": [(0.0, 0), (seconds, mib * MIB)]},
        "prepared": {"seconds": 30.0},
        "verified": {"errors": errors},
    }


def burst_of(seconds: float, stalls: int, taken: int = 0) -> dict[str, Any]:
    course = [seconds * percent / 100 for percent in range(1, 101)]
    return {
        "burst": {
            "began_ns": 10**9,
            "ended_ns": 10**9 + int(seconds * 1e9),
            "events": {"allocstall": stalls},
            "progress_s": course,
            **{f"{name}_ns": 5000 for name in ("p50", "p99", "max")},
        },
        "prepared": {},
        "taken_from_foreground": taken,
        "verified": {"errors": 0},
    }


def test_migrations_are_compared_pair_by_pair() -> None:
    results = {"off": [migrated(40, 900), migrated(80, 900)], "on": [migrated(4, 90), migrated(16, 100)]}
    figures = migrate.metrics(results)
    assert figures["migrate_time_speedup"].values == [10, 5]
    assert figures["migrate_bytes_ratio"].values == [10, 9]
    assert figures["content_errors"].value == 0
    assert all(reached(metric.json()) for metric in figures.values())


def test_a_migration_that_changes_memory_misses_its_goal() -> None:
    figures = migrate.metrics({"off": [migrated(40, 900)], "on": [migrated(4, 90, errors=1)]})
    assert not reached(figures["content_errors"].json())


def test_bursts_are_compared_with_an_empty_machine() -> None:
    results = {"empty": [burst_of(2, 0)] * 2, "off": [burst_of(20, 90)] * 2, "on": [burst_of(2, 0), burst_of(2.1, 0)]}
    figures = burst.metrics(results)
    assert figures["burst_time_over_empty"].values == [1, pytest.approx(1.05)]
    assert figures["burst_time_over_empty_off"].value == 10
    assert all(reached(metric.json()) for metric in figures.values())


def test_one_stall_in_one_run_misses_the_goal() -> None:
    figures = burst.metrics({"on": [burst_of(2, 0), burst_of(2, 0), burst_of(2, 1)]})
    assert not reached(figures["allocstall"].json())


def test_memory_taken_from_the_foreground_misses_the_goal() -> None:
    assert not reached(burst.metrics({"on": [burst_of(2, 0, taken=4096)]})["taken_from_foreground"].json())


def test_plots_are_drawn(tmp_path: Path) -> None:
    guest = {"mem_mib": 1024, "disk_mb_s": 25, "link_mb_s": 25, "fill_percent": 85, "burst_percent": 40}
    migrate.draw({"off": [migrated(40, 900)], "on": [migrated(4, 90)]}, tmp_path, guest)
    burst.draw({"empty": [burst_of(2, 0)], "off": [burst_of(20, 90)], "on": [burst_of(2, 0)]}, tmp_path, guest)
    assert {path.name for path in tmp_path.iterdir()} == {"migrate.png", "burst.png"}
