"""Figures and plots of scenarios, made from invented runs. These tests need no VM."""

import argparse
import base64
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from omrlab import desktop, packages
from omrlab.guest import MIB
from omrlab.paths import REPOSITORY
from omrlab.report import reached
from omrlab.scenarios import advise, footprint, hibernate_seed, hint, self_cost, soak
from omrlab.scenarios.app_switch import AppSwitch
from omrlab.scenarios.burst import Burst
from omrlab.scenarios.cold_age import ColdAge
from omrlab.scenarios.desk import Desk
from omrlab.scenarios.footprint import Footprint
from omrlab.scenarios.hibernate_seed import Case
from omrlab.scenarios.migrate import Migrate
from omrlab.scenarios.probe import Probe
from omrlab.scenarios.replay import Replay
from omrlab.scenarios.roomy import Roomy
from omrlab.scenarios.server import Server
from omrlab.scenarios.slo import LOG, READ, Slo, parsed
from omrlab.scenarios.slo_phase import SloPhase, agings_to_slo
from omrlab.services import CLIENTS, GROUPS, OMR

app_switch, burst, cold_age, desk, migrate = AppSwitch(), Burst(), ColdAge(), Desk(), Migrate()
roomy, server = Roomy(), Server()
slo, slo_phase, probe = (kind(laws="phases", redis=0) for kind in (Slo, SloPhase, Probe))


def migrated(seconds: float, mib: int, errors: int = 0) -> dict[str, Any]:
    return {
        "migration": {
            "total_s": seconds,
            "downtime_s": 0.02,
            "sent": mib * MIB,
            "progress": [(0.0, 0), (seconds, mib * MIB)],
        },
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


def used(kinds: str, seconds: float, stalls: int = 0, errors: int = 0) -> dict[str, Any]:
    """The run of a user. `kinds` has the first letter of each switch's kind."""
    names = {"f": "first", "h": "hot", "c": "cold"}
    return {
        "switches": [{"app": 0, "kind": names[kind], "seconds": seconds, "errors": errors} for kind in kinds],
        "kills": kinds.count("c"),
        "events": dict.fromkeys(("allocstall", "pgscan_direct", "pswpin", "pswpout"), stalls),
        "stalled_s": [1.0, 0.5],
        "vmstat": {"oom_kill": 0},
        "kswapd_cpu_s": seconds,
        "omr_cpu_s": 0.1,
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


def test_each_user_is_compared_with_the_same_user_in_another_arm() -> None:
    results = {
        "zram": [used("ffcchh", 2, 100), used("ffhhhh", 1)],
        "rules": [used("ffchhh", 1, 25), used("ffhhhh", 0.5)],
    }
    figures = app_switch.metrics(results)
    # A user without cold starts cannot have fewer.
    assert figures["cold_starts_delta_pct"].values == [-50]
    assert figures["switch_mean_delta_pct"].values == [-50, -50]
    assert figures["allocstall_delta_pct"].values == [-75]
    assert reached(figures["switch_mean_delta_pct"].json())
    assert figures["switch_median_ratio"].values == [0.5, 0.5]
    slower = app_switch.metrics({"zram": [used("ffhh", 1)], "rules": [used("ffhh", 3)]})
    assert not reached(slower["switch_median_ratio"].json())
    assert not reached(app_switch.metrics({"rules": [used("fh", 1, errors=1)]})["content_errors"].json())


def test_mglru_is_compared_without_omr_and_on_top_of_it() -> None:
    figures = app_switch.metrics(
        {
            "zram": [used("ffcc", 2)],
            "mglru": [used("ffch", 1)],
            "rules": [used("ffch", 2)],
            "rules-mglru": [used("ffhh", 4)],
        }
    )
    assert figures["cold_starts_mglru_pct"].values == [-50] and figures["kswapd_cpu_mglru_pct"].values == [-50]
    assert figures["cold_starts_rules_mglru_pct"].values == [-100]
    assert figures["kswapd_cpu_rules_mglru_pct"].values == [100]
    assert figures["kswapd_cpu_mglru_pct"].json()["seed"] == -51
    # Nobody was killed by the kernel, so nothing can be fewer.
    assert "oom_kills_mglru_pct" not in figures


def served(taken_mib: int, slow_ms: float, faults: int, reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    """A run of 10 minutes, with 100 MiB in each of three services that nobody uses."""

    def look(at: float, part: float) -> dict[str, Any]:
        group = {
            "anon": int((200 - part * taken_mib) * MIB),
            "shmem": 0,
            "cpu_us": int(at * 10**4),
            "pgmajfault": int(part * faults),
            "stalled_us": int(part * 10**6),
        }
        return {
            "monotonic": at,
            "meminfo": {"MemAvailable": int((500 + part * taken_mib) * MIB)},
            "vmstat": dict.fromkeys(("pswpout", "pswpin", "pgsteal_anon", "pgsteal_file"), int(part * 256)),
            "groups": dict.fromkeys((*GROUPS.values(), CLIENTS, OMR), group),
        }

    times = {name: [(float(second), 1.0) for second in range(90)] + [(95.0, slow_ms)] * 10 for name in ("pg", "nginx")}
    answers = {"times": times | {"redis": times["pg"]}, "failed": 0}
    return {
        "arm": "auto",
        "age_minutes": 10.0,
        "steady_at": 100.0,
        "burst_at": 700.0,
        "unused": {"pg": 100 * MIB, "redis": 100 * MIB, "java": 100 * MIB, "nginx": 0},
        "answers": {"steady": answers, "burst": answers},
        "watched": [look(95.0, 0), look(400.0, 0.5), look(699.0, 1), look(760.0, 1)],
        "host_others_pct": {"steady": 50.0, "burst": 60.0},
        "ledger": [{"kind": "sweep", "stop_reason": reason} for reason in reasons],
    }


def test_services_are_compared_with_themselves_without_omr(tmp_path: Path) -> None:
    results = {
        "off": [served(0, 10, 0)],
        "auto": [served(90, 10.4, 3, ("work began: 36 % of a CPU", "work began: 98 % of a CPU"))],
        "free": [served(150, 30, 900)],
    }
    figures = server.metrics(results)
    assert figures["pg_p99_ratio"].value == pytest.approx(1.04) and figures["redis_p999_ratio_free"].value == 3
    assert figures["cold10m_taken_pct"].value == pytest.approx(90)
    # Memory in use that was taken as well does not count.
    assert figures["cold10m_taken_pct_free"].value == pytest.approx(100)
    assert figures["major_faults"].value == 12 and figures["major_faults_free"].value == 3600
    assert figures["available_gained"].value == pytest.approx(90) and figures["stalled"].value == 4
    assert figures["daemon_cpu_pct"].value == pytest.approx(1) and figures["services_cpu_pct"].value == pytest.approx(4)
    assert all(reached(metric.json()) for metric in figures.values())
    assert not reached(server.metrics({**results, "auto": results["free"]})["pg_p99_ratio"].json())
    assert server.extra(results)["ended"]["auto"] == [{"work began: N % of a CPU": 2}]
    server.plot(results, tmp_path)
    assert (tmp_path / "server.png").stat().st_size > 0


def roomy_run(taken: int) -> dict[str, Any]:
    return {
        "seconds": 900.0,
        "taken": taken,
        "swapped_out": taken,
        "refaulted": 0,
        "available": [3000 * MIB, 3000 * MIB + taken],
        "daemon_cpu_s": 0.45,
        "state": "nothing to gain",
    }


def test_one_page_taken_from_a_machine_with_room_misses_the_goal(tmp_path: Path) -> None:
    figures = roomy.metrics({"auto": [roomy_run(0)], "free": [roomy_run(MIB)]})
    assert figures["daemon_cpu_pct"].value == pytest.approx(0.05)
    assert all(reached(metric.json()) for metric in figures.values())
    assert not reached(roomy.metrics({"auto": [roomy_run(4096)]})["bytes_taken"].json())
    # The control: with the goal free something must have been taken.
    assert not reached(roomy.metrics({"free": [roomy_run(0)]})["bytes_taken_free"].json())
    roomy.plot({"auto": [roomy_run(0)], "free": [roomy_run(MIB)]}, tmp_path)
    assert (tmp_path / "roomy.png").stat().st_size > 0


def day_of(taken_mib: int, waited_s: float, back_ms: float) -> dict[str, Any]:
    """An hour: work, a break, work. Redis has 100 MiB that nobody uses."""

    def look(at: float, part: float) -> dict[str, Any]:
        group = {
            "anon": int((150 - part * taken_mib) * MIB),
            "swap": int(part * taken_mib * MIB),
            "cpu_us": int(at * 10**4),
            "pgmajfault": 0,
            "stalled_us": int(part * waited_s * 10**6),
        }
        return {"monotonic": at, "groups": dict.fromkeys((desktop.USER, desktop.REDIS, desktop.OMR), group)}

    phases = [{"kind": kind, "at": at} for kind, at in (("work", 100.0), ("away", 1900.0), ("work", 2800.0))]
    times = ((0, 110.0, 50.0), (2, 2810.0, back_ms), (2, 2850.0, back_ms), (2, 2900.0, 10 * back_ms))
    actions = [{"kind": "browse", "phase": phase, "at": at, "ms": ms} for phase, at, ms in times]
    return {
        "day": {"phases": phases, "actions": actions},
        "ended": 3700.0,
        "unused": 100 * MIB,
        # Before the day and after it, the same counters grow.
        "watched": [look(50.0, -1), look(100.0, 0), look(1900.0, 0.5), look(3700.0, 1), look(3800.0, 2)],
        "host_others_pct": 5.0,
        "status": "nothing to gain",
    }


def test_a_day_is_compared_with_the_same_day_without_omr(tmp_path: Path) -> None:
    results = {"off": [day_of(0, 0.5, 100)], "auto": [day_of(80, 1.0, 105)], "free": [day_of(120, 9.5, 300)]}
    figures = desk.metrics(results)
    assert figures["regret_s_per_h"].value == pytest.approx(0.5)
    assert figures["regret_s_per_h_free"].value == pytest.approx(9)
    # Only the minute after the break counts.
    assert figures["return_ratio"].value == pytest.approx(1.05) and figures["return_ratio_free"].value == 3
    assert figures["cold10m_taken_pct"].value == 80 and figures["cold10m_taken_pct_free"].value == 100
    assert figures["regret_free_over_default"].value == pytest.approx(18)
    assert all(reached(metric.json()) for metric in figures.values())
    swapped = desk.metrics({**results, "auto": results["free"], "free": results["auto"]})
    for name in ("regret_s_per_h", "return_ratio", "regret_free_over_default"):
        assert not reached(swapped[name].json()), name
    desk.plot(results, tmp_path)
    assert (tmp_path / "desk.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["density", "--minutes", "0"], "argument --minutes: 0 is not a number above 0"),
        (["density", "--pairs", "-1"], "argument --pairs: -1 is not a number above 0"),
        (["hibernate-seed", "--iops", "0"], "argument --iops: 0 is not a number above 0"),
        (["burst", "--idle", "-1"], "argument --idle: -1 is not a number of 0 or more"),
        (["slo", "--minutes", "1.5"], "argument --minutes: 1.5 is not a number of 2 or more"),
        (["slo", "--minutes", "nan"], "argument --minutes: nan is not a number of 2 or more"),
        (["slo", "--pairs", "many"], "argument --pairs: invalid int value: 'many'"),
    ],
)
def test_a_number_that_no_scenario_can_use_is_refused(options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "omrlab", *options]
    ended = subprocess.run(command, cwd=REPOSITORY / "lab", capture_output=True, text=True)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_idle_time_can_be_left_out() -> None:
    parser = argparse.ArgumentParser()
    Burst.add_options(parser)
    assert Burst.from_arguments(parser.parse_args(["--idle", "0"])).idle == 0


def test_plots_are_drawn(tmp_path: Path) -> None:
    migrate.plot({"off": [migrated(40, 900)], "on": [migrated(4, 90)]}, tmp_path)
    burst.plot({"empty": [burst_of(2, 0)], "off": [burst_of(20, 90)], "on": [burst_of(2, 0)]}, tmp_path)
    app_switch.plot({"zram": [used("ffch", 2)], "rules": [used("ffhh", 1)]}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"migrate.png", "burst.png", "app-switch.png"}


def felt(*response_ms: float) -> dict[str, Any]:
    return {"seconds": 5.0, "response_ms": list(response_ms)}


def test_foreground_latencies_are_compared_within_a_guest(tmp_path: Path) -> None:
    pairs = [
        {"nothing": felt(2, 4, 4), "bare": felt(2, 4, 40), "omr": felt(2, 4, 4.2)},
        {"nothing": felt(1, 2, 2), "bare": felt(1, 2, 40), "omr": felt(1, 2, 2.2)},
        {"nothing": felt(2, 4, 4), "bare": felt(2, 4, 16), "omr": felt(2, 4, 4)},
    ]
    figures = hint.felt_metrics(pairs)
    assert figures["fg_p999_ratio"].value == 1.05 and figures["fg_p999_ratio_bare"].value == 10
    assert reached(figures["fg_p999_ratio"].json())
    # The control: the goal is missed when the median of the rounds is too high.
    assert not reached(hint.felt_metrics([pairs[1] | {"omr": felt(1, 2, 3)}] * 3)["fg_p999_ratio"].json())
    hint.draw_latency(pairs, tmp_path)
    assert (tmp_path / "latency.png").stat().st_size > 0


def looked_at(least: int, most: int, file: int = 0) -> dict[str, Any]:
    """One group of 100 MiB: 32 MiB were not used for two minutes, and 62 MiB for one. A second
    group maps files.
    """
    regions = [(18, 0.5), (20, 10), (30, 70), (12, 140), (20, 140)]
    true = [{"bytes": mib * MIB, "touched_ns": int((200 - idle) * 1e9)} for mib, idle in regions]
    idle = [
        {"seconds": 60.0, "least": 62 * MIB, "most": 62 * MIB},
        {"seconds": 120.0, "least": least * MIB, "most": most * MIB},
    ]
    files = {"group": "/file-0", "idle": [{"seconds": 120.0, "least": file * MIB, "most": file * MIB}]}
    said = {"groups": [{"group": "/anon-0", "idle": idle}, files], "cpu_seconds": 0.1}
    return {"said": said, "true": {name: {"now_ns": 200 * 10**9, "regions": true} for name in ("anon-0", "file-0")}}


def test_estimated_cold_memory_is_compared_with_the_true_amount() -> None:
    figures = cold_age.metrics({"lru-gen": [looked_at(32, 32), looked_at(30, 35)], "damon": [looked_at(28, 40)]})
    assert figures["cold2m_error_pct"].values == [0, pytest.approx(3)]
    assert figures["cold2m_share_reported_pct"].values == [32, pytest.approx(32.5)]
    assert figures["cold1m_error_pct"].value == 0
    assert figures["damon_cold2m_error_pct"].value == pytest.approx(8)
    assert all(reached(metric.json()) for metric in figures.values())
    # omr knows no age of file pages, so it must not call them cold.
    assert figures["file_called_cold_mib"].value == 0
    assert not reached(cold_age.metrics({"lru-gen": [looked_at(32, 32, file=2)]})["file_called_cold_mib"].json())
    # Hot memory called cold, and cold memory not found, are both wrong.
    for least, most in ((32, 62), (0, 32)):
        assert not reached(cold_age.metrics({"lru-gen": [looked_at(least, most)]})["cold2m_error_pct"].json())


def advised(full: float, small: float, held: int | None, errors: int = 0) -> dict[str, Any]:
    """A job whose rounds take this many seconds. Every fifth round takes ten times as long."""

    def arm(seconds: float) -> list[dict[str, Any]]:
        rounds = [seconds * (10 if n % 5 == 0 else 1) for n in range(10)]
        return [{"seconds": each, "major_faults": 0, "errors": errors} for each in rounds]

    return {
        "full": arm(full),
        "unlimited": arm(full),
        "advised": arm(small),
        "peak": 300 * MIB,
        "held": held and held * MIB,
    }


def test_a_job_is_compared_with_itself_at_full_size() -> None:
    figures = advise.metrics([advised(1.0, 1.005, 150), advised(1.0, 1.005, 150)])
    assert figures["slowdown_pct"].value == pytest.approx(0.5) and figures["saved_pct"].value == 50
    assert all(reached(figures[name].json()) for name in ("slowdown_pct", "saved_pct", "content_errors"))
    # The job is slower, nothing is saved, no size is found, or memory has changed.
    for measured, name in (
        (advised(1.0, 1.02, 150), "slowdown_pct"),
        (advised(1.0, 1.0, 290), "saved_pct"),
        (advised(1.0, 1.0, None), "saved_pct"),
        (advised(1.0, 1.0, 150, errors=1), "content_errors"),
    ):
        assert not reached(advise.metrics([measured])[name].json())


def slept(hibernate_s: float, resume_s: float, image_mib: int, errors: int = 0) -> dict[str, Any]:
    image = {"image_kib": image_mib * 1024}
    return {
        "hibernate_s": hibernate_s,
        "resume_s": resume_s,
        "boot_s": 10.0,
        "image": image,
        "verified": {"errors": errors},
    }


def seed_table(on: dict[str, Any]) -> hibernate_seed.Results:
    return {
        hibernate_seed.UNLOADED: [slept(3, 7, 100), slept(6, 14, 100)],
        Case("seed", "default", "off"): [slept(80, 36, 800), slept(160, 72, 800)],
        Case("seed", "default", "on"): [on, slept(on["hibernate_s"] * 2, on["resume_s"] * 2, 100)],
    }


def test_hibernations_are_compared_pair_by_pair_and_have_goals_at_known_guest_sizes_only() -> None:
    figures = hibernate_seed.metrics(seed_table(slept(2, 6, 105)), hibernate_seed.GOALS[2048])
    assert figures["hibernate_speedup_default"].values == [40, 40]
    assert figures["hibernate_speedup_default"].json()["goal"] == ">= 30"
    assert figures["hibernate_speedup_default"].seed == pytest.approx(14.4)
    assert figures["resume_speedup_default"].values == [6, 6]
    assert figures["resume_over_boot"].values == [0.6, 1.2]
    assert figures["image_over_unloaded"].values == [1.05, 1]
    assert all(reached(metric.json()) for metric in figures.values())
    assert "goal" not in hibernate_seed.metrics(seed_table(slept(2, 6, 105)), {})["hibernate_speedup_default"].json()


@pytest.mark.parametrize(
    ("on", "name"),
    [
        (slept(3, 6, 100), "hibernate_speedup_default"),
        (slept(2, 8, 100), "resume_speedup_default"),
        (slept(2, 9, 100), "resume_over_boot"),
        (slept(4, 6, 100), "hibernate_over_unloaded_default"),
        (slept(2, 9, 100), "resume_over_unloaded_default"),
        (slept(2, 6, 140), "image_over_unloaded"),
        (slept(2, 6, 100, errors=1), "content_errors"),
    ],
)
def test_a_hibernation_goal_can_be_missed(on: dict[str, Any], name: str) -> None:
    assert not reached(hibernate_seed.metrics(seed_table(on), hibernate_seed.GOALS[2048])[name].json())


def waited(hibernate_s: float, resume_s: float, left_mib: int) -> dict[str, Any]:
    return slept(hibernate_s, resume_s, 100) | {"filled": 1000 * MIB, "left_in_memory": left_mib * MIB}


def test_the_seeds_protocol_compares_with_the_original_way_and_with_a_machine_without_the_load() -> None:
    results = {
        hibernate_seed.UNLOADED: [slept(3, 7, 100)] * 2,
        Case("seed", "zero", "seed"): [waited(4, 8, 300), waited(6, 8, 300)],
        Case("seed", "zero", "on"): [waited(3, 8, 250), waited(3, 8, 150)],
    }
    figures = hibernate_seed.metrics(results, {})
    assert figures["hibernate_over_unloaded_zero"].values == [1, 1]
    assert figures["hibernate_over_seed_way_zero"].values == [0.75, 0.5]
    assert figures["left_in_60s_pct"].values == [75, 85]
    assert figures["left_in_60s_pct_seed"].values == [70, 70]
    assert reached(figures["resume_over_unloaded_zero"].json())
    results[Case("seed", "zero", "on")] = [waited(5, 9, 250)] * 2
    worse = hibernate_seed.metrics(results, {})
    for name in ("hibernate_over_unloaded_zero", "resume_over_unloaded_zero", "hibernate_over_seed_way_zero"):
        assert not reached(worse[name].json()), name


def test_the_seeds_protocol_runs_the_configuration_that_the_page_about_spot_vms_shows() -> None:
    assert tomllib.loads(hibernate_seed.spot())["goal"] == "free"


def footprint_of(
    cold_out: int = 98,
    hot_out: int = 0,
    refaults: int = 0,
    ms: float = 1.0,
    slow_s: float = 1.0,
    left: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A run of a program with 100 MiB of cold memory. It answers within `ms`. For `slow_s` seconds
    from the phase change on, each answer takes a second.
    """
    due = [tick / 100 for tick in range(-1000, 1000)]
    slow = [0 <= at < slow_s for at in due]
    figures = [{"refaults": count, "stalled_s": 0.0, "peer_cpu_s": 0.0} for count in (0, refaults, refaults)]
    return {
        "cold": 100 * MIB,
        "within_s": 60,
        "cold_s": -60.0,
        "change": {"cold_out": cold_out * MIB, "hot_out": hot_out * MIB},
        "figures": figures,
        "left_behind": list(left),
        "errors": 0,
        "current": [[-10.0, 140 * MIB], [0.0, 40 * MIB]],
        "calm_s": [float(second) for second in range(-10, 10)],
        "due_s": due,
        "response_us": [1_000_000 if late else int(1000 * ms) for late in slow],
        "major_faults": [int(late) for late in slow],
    }


def test_peers_are_compared_with_no_reclaim_and_with_each_other() -> None:
    results = {
        "none": [footprint_of(cold_out=0, slow_s=0)],
        "ages": [footprint_of(slow_s=1)],
        "senpai-limit": [footprint_of(refaults=9, slow_s=7, left=("memory.high 4096",))],
    }
    figures = Footprint().metrics(results)
    assert figures["recovery_none"].value == 0 and figures["last_fault_none"].value == 0
    assert figures["recovery_ages"].value == 1 and figures["last_fault_ages"].value == pytest.approx(0.99)
    assert figures["recovery_over_senpai"].value == 7 and figures["last_fault_over_senpai"].value == pytest.approx(
        6.99 / 0.99
    )
    assert figures["refaults_before_phase_senpai-limit"].value == 9 and figures["left_behind_senpai-limit"].value == 1
    assert all(reached(figures[name].json()) for name in footprint.GOALS)


@pytest.mark.parametrize(
    "ages, name",
    [
        (footprint_of(cold_out=94), "cold_freed_pct_60s"),
        (footprint_of(refaults=1), "refaults_before_phase"),
        (footprint_of(ms=1.2), "hot_p99_ratio"),
        (footprint_of(slow_s=2), "recovery_over_senpai"),
    ],
)
def test_a_footprint_goal_can_be_missed(ages: dict[str, Any], name: str) -> None:
    results = {"none": [footprint_of(slow_s=0)], "ages": [ages], "senpai-limit": [footprint_of(slow_s=7)]}
    assert not reached(Footprint().metrics(results)[name].json())


def test_the_p99_counts_calm_seconds_only() -> None:
    disturbed = footprint_of(ms=50)
    calm = [place for place, due in enumerate(disturbed["due_s"]) if -8 <= due < -2]
    for place in calm:
        disturbed["response_us"][place] = 1000
    assert footprint.hot_p99(disturbed) == 50
    disturbed["calm_s"] = [float(second) for second in range(-8, -2)]
    assert footprint.hot_p99(disturbed) == 1
    disturbed["calm_s"] = [-8.0]
    assert footprint.hot_p99(disturbed) is None, "too few to tell"
    assert "hot_p99_ratio" not in Footprint().metrics({"none": [footprint_of()], "ages": [disturbed]})


def test_requests_that_were_never_served_count_as_late() -> None:
    none, stuck = footprint_of(slow_s=0), footprint_of(slow_s=0)
    served = [place for place, due in enumerate(stuck["due_s"]) if not 0 < due < 5]
    stuck |= {name: [stuck[name][place] for place in served] for name in ("due_s", "response_us", "major_faults")}
    assert footprint.recovery(stuck, footprint.normal(none)) == pytest.approx(5, abs=0.11)


def test_a_peer_that_is_not_available_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def programs(package: str) -> dict[str, Path]:
        if package == "damo":
            raise packages.PackageMissing("no pip")
        return {}

    monkeypatch.setattr(packages, "programs", programs)
    assert footprint.missing(list(footprint.LABELS)) == {"damo": "no pip"}


def test_the_footprint_plot_is_drawn(tmp_path: Path) -> None:
    Footprint().plot({arm: [footprint_of()] for arm in footprint.LABELS}, tmp_path)
    assert (tmp_path / "footprint.png").stat().st_size > 10_000


def slo_run(held_mib: int, back_mib: list[float]) -> dict[str, Any]:
    """A program with 100 MiB in use and 300 more: of those, 5 MiB are used each minute after 2 min,
    and none after 4 min. `back_mib` came back in each minute. There is an aging each 2 minutes.
    """
    count = len(back_mib)
    minutes = [
        {
            "minute": number,
            "monotonic_ns": 60 * number * 10**9,
            "working": 100,
            "unused": [300, 200, 100],
            "again": [5, 0, 0],
        }
        for number in range(1, count + 1)
    ]
    readings = [
        {
            "monotonic": 60.0 * number,
            "groups": {
                "phases": {
                    "held": held_mib * MIB,
                    "back": int(sum(back_mib[:number]) * MIB),
                    "agings": 10 + number // 2,
                }
            },
        }
        for number in range(count + 1)
    ]
    planted = {"block": MIB, "ages_s": [120, 240, 480], "minutes": minutes, "errors": 0}
    run = {"since": 0.0, "planted": {"phases": planted}, "readings": readings}
    return run | {"explained": {"phases": "threshold 4 min"}}


def test_what_is_held_is_compared_with_the_best_age_and_what_comes_back_with_the_objective(tmp_path: Path) -> None:
    good, much = slo_run(180, [0.1] * 98 + [0.3] * 2), slo_run(250, [5.0] * 100)
    results = {"omr": [good], "senpai": [much], "senpai-gentle": [slo_run(120, [0.1] * 100)]}
    figures = slo.metrics(results)
    assert figures["best_age_phases"].value == 4 and figures["best_held_phases"].value == 200
    assert figures["cold_held_of_best_pct"].value == pytest.approx(90)
    assert figures["slo_minutes_over_pct"].value == pytest.approx(2)
    # Senpai's defaults hold more, but far too much comes back.
    assert figures["cold_held_over_senpai"].value == pytest.approx(1.5)
    assert all(reached(metric.json()) for metric in figures.values())
    missed = slo.metrics({"omr": [much]})
    assert not reached(missed["slo_minutes_over_pct"].json())
    assert not reached(slo.metrics({"omr": [slo_run(150, [0.0] * 100)]})["cold_held_of_best_pct"].json())
    slo.plot(results, tmp_path)
    assert (tmp_path / "slo.png").stat().st_size > 0


def test_without_ages_omr_must_hold_what_senpai_holds() -> None:
    figures = probe.metrics({"omr": [slo_run(100, [0.0] * 50)], "senpai": [slo_run(100, [1.0] * 50)]})
    assert figures["taken_over_senpai"].value == 1 and reached(figures["taken_over_senpai"].json())
    assert not reached(figures["slo_minutes_over_pct_senpai"].json() | {"goal": probe.goals["slo_minutes_over_pct"]})


def test_agings_are_counted_from_a_move_to_the_last_minute_over_the_objective() -> None:
    # It moves in minutes 20 and 40. Then too much comes back for 2 minutes, and for 10.
    back = [0.0] * 20 + [9.0] * 2 + [0.0] * 18 + [9.0] * 10 + [0.0] * 10
    run = slo_run(100, back)
    assert agings_to_slo(run, 1200) == [1, 5]
    assert not reached(slo_phase.metrics({"omr": [run]})["agings_to_slo"].json())
    assert agings_to_slo(slo_run(100, [0.0] * 60), 1200) == [0, 0]


def test_the_script_in_the_guest_reads_the_kernels_files_by_group(tmp_path: Path) -> None:
    stat = "anon 5\nworkingset_refault_anon 3\nworkingset_refault_file 2\npgfault 9\n"
    lru_gen = "memcg     1 /\n node     0\n        4  900  1  2\nmemcg    23 /load/zipf\n node     0\n"
    lru_gen += "          7       1234      10 0 \n          8       234      10 0 \n"
    files = {
        "/proc/uptime": "12.50 3.00\n",
        "/sys/fs/cgroup/load/zipf/memory.swap.current": "4096\n",
        "/sys/fs/cgroup/load/zipf/memory.stat": stat,
        "/sys/kernel/debug/lru_gen": lru_gen,
    }
    script = READ.format(groups="zipf", log=LOG).replace(LOG, f"{tmp_path}/log")
    for path, text in files.items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text(text)
        script = script.replace(path.replace("zipf", "$name"), f"{tmp_path}{path}".replace("zipf", "$name"))
    subprocess.run(["busybox", "sh", "-c", script, "sh", "1", "0.01"], check=True)
    look = {"held": 4096, "back": 5 * 4096, "agings": 8}
    assert parsed((tmp_path / "log").read_text()) == 2 * [{"monotonic": 12.5, "groups": {"zipf": look}}]
    # Without MGLRU there is no such file.
    (tmp_path / "sys/kernel/debug/lru_gen").unlink()
    subprocess.run(["busybox", "sh", "-c", script, "sh", "0", "0.01"], check=True, stderr=subprocess.DEVNULL)
    assert parsed((tmp_path / "log").read_text())[0]["groups"]["zipf"]["agings"] == 0


def soaked(leak_kib: int) -> soak.Run:
    """Three hours of samples as the guest writes them; memory grows by this much in each minute."""
    log = "".join(
        f"sample {60 * minute}.0 {1000 * minute} 20\nVmRSS:\t{3000 + leak_kib * minute} kB\n"
        f"voluntary_ctxt_switches:\t{40 * minute}\nvoluntary_ctxt_switches:\t{40 * minute}\n"
        f"voluntary_ctxt_switches:\t{20 * minute}\n256\t/var/lib/omr/history\n8\t/var/lib/omr/ledger.jsonl\n"
        for minute in range(1, 181)
    )
    return {"samples": soak.parsed(log), "sweeps": 200, "groups": 3780, "sleeps": 18, "log": ""}


def test_a_leak_is_a_slope_and_a_daemon_that_stays_the_same_has_none(tmp_path: Path) -> None:
    still, leaking = soak.metrics([soaked(0)]), soak.metrics([soaked(1)])
    slopes = [name for name in still if name.endswith("_slope")]
    assert len(slopes) == 4 and all(abs(still[name].value) < 0.1 for name in slopes), still
    # 60 KiB an hour of 3 MiB.
    assert 1.5 < leaking["resident_slope"].value < 2.5 and leaking["resident_slope"].goal == "<= 1"
    # The main thread and another one.
    assert still["wakeups_per_s"].value == pytest.approx(1.0, rel=0.01)
    assert still["cpu_pct"].value == pytest.approx(100 * 0.001 / 60, rel=0.01)
    assert soak.draw(soaked(1), tmp_path).keys() == {"soak.png"} and (tmp_path / "soak.png").exists()


def test_the_daemon_that_is_watched_is_compared_with_the_one_at_the_same_time() -> None:
    def pair(cpu_ratio: float, top_mib: float) -> dict[str, Any]:
        program = {"rss_mib": top_mib, "peak_rss_mib": top_mib + 1, "cpu_pct": 0.1}
        ratios = {"cpu_pct_ratio": cpu_ratio, "rss_mib_ratio": 1.0, "wakeups_per_s_ratio": 1.01}
        return ratios | {"top": program, "web": program | {"cpu_pct": 0.9}}

    figures = self_cost.metrics(
        {"watched-100": [pair(1.01, 6), pair(1.05, 13)], "watched-1000": [pair(1, 7), pair(1, 7)]}
    )
    assert figures["watched_cpu_ratio_100"].values == [1.01, 1.05]
    assert not reached(figures["watched_cpu_ratio_100"].json()) and reached(figures["watched_cpu_ratio_1000"].json())
    assert reached(figures["watched_rss_ratio_100"].json()) and reached(figures["watched_wakeups_ratio_100"].json())
    # The worst number of groups of each pair.
    assert figures["top_rss_mib"].values == [7, 13]
    assert reached(figures["top_rss_mib"].json()) and reached(figures["top_cpu_pct"].json())
    assert figures["web_cpu_pct"].goal is None


def recording(arm: str, swap: int, refaulted: int, p98: int | None, policies: dict[str, tuple[int, ...]]) -> dict:
    """100 minutes of a machine with 1,000 KiB of memory, of which a replay knows a half. For each
    policy what is held, and what comes back: least, likely, most.
    """
    sides = ("least", "likely", "most")
    told = {
        name: {
            "sums": {f"held_{side}_kib_min": 50 * value for side, value in zip(sides, values)}
            | {f"promoted_{side}_kib": value for side, value in zip(sides, values[3:])},
            "promoted_p98": [values[3], values[5]],
        }
        for name, values in policies.items()
    }
    recorded = {
        "machine_ms": 100 * 60_000,
        "memory_kib_min": 50 * 1000,
        "all_memory_kib_min": 100 * 1000,
        "swap_kib_min": 100 * swap,
        "refaulted_kib": refaulted,
    }
    return {"arm": arm, "recorded": recorded, "refaulted_p98": p98, "policies": told}


def test_a_replay_is_compared_with_what_happened() -> None:
    """Half of what comes back is in the time that is not known."""
    predicted = {"two": (300, 420, 500, 2_500, 3_000, 3_500), "eight": (110, 200, 300, 1_000, 1_250, 1_500)}
    before = recording("record", 0, 0, 0, predicted)
    after = {
        "two": [recording("two", 400, 6_000, 3_000, {})],
        "eight": [recording("eight", 100, 6_000, None, {})],
    }
    found = Replay().metrics({"record": [before], **after})
    assert found["held_two"].values == [40.0]
    predicted_held = [found[f"held_predicted_{side}_two"].values for side in ("least", "likely", "most")]
    assert predicted_held == [[30.0], [42.0], [50.0]]
    assert found["held_error_pct"].values == pytest.approx([5, 100])
    assert found["promoted_error_pct"].values == pytest.approx([0, 100 * (6_000 - 2_500) / 6_000])
    errors = [100 * (6_000 - 5_000) / 6_000, 100 * (6_000 - 2_000) / 6_000]
    assert found["promoted_error_of_least_pct"].values == pytest.approx(errors)
    # Both figures of eight: 10 % held is less than the least, and 6,000 KiB are more than the most.
    assert found["outside_of_the_bounds"].values == [2.0]
    # That eight would keep the objective may be wrong, but what really happened is not known.
    assert found["wrong_about_the_objective"].values == [0.0]
    after["eight"] = [recording("eight", 100, 6_000, 3_000, {})]
    found = Replay().metrics({"record": [before], **after})
    assert found["wrong_about_the_objective"].values == [1.0]


def test_the_published_replay_is_what_the_program_says() -> None:
    """The recordings are kept, so that a change of the replay that makes it worse shows here."""
    text = (REPOSITORY / "docs" / "measure" / "data" / "replay.json").read_text()
    seeds = list(json.loads(text)["runs"].values())
    recorded = [seed["record"] for seed in seeds]
    replayed = [Replay().replayed("record", base64.b64decode(run["shard"])) for run in recorded]
    acted = {arm: [seed[arm] for seed in seeds] for arm in seeds[0] if arm != "record"}
    found = Replay().metrics({"record": replayed, **acted})
    published = Replay().metrics({"record": recorded, **acted})
    assert {name: metric.values for name, metric in found.items()} == {
        name: metric.values for name, metric in published.items()
    }
    assert reached(found["held_error_pct"].json()) and reached(found["wrong_about_the_objective"].json())
    # The control: what really happened with another policy is not what was predicted.
    mixed = Replay().metrics({"record": replayed, "two": acted["thirty"], "thirty": acted["two"]})
    outside = found["outside_of_the_bounds"].values[0]
    assert mixed["outside_of_the_bounds"].values[0] > outside and not reached(mixed["promoted_error_pct"].json())
