"""Every engine gives the bits that `omr whatif --local` gives, whatever happens to its workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omr_fleet import replay, run, shards
from omr_fleet.shards import Wrong

from .conftest import MACHINES, POLICIES

ALL = MACHINES + 2


def replayed(omr: str, fleet: Path, out: Path, engine: str, address: str | None = None) -> bytes:
    told = run.fleet(str(fleet / "mixed"), POLICIES, str(out), omr, engine, address, per_group=1, quiet=True)
    assert told["shards"] == MACHINES and len(told["bad"]) == 2
    return (out / "total.json").read_bytes()


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_the_bits_are_those_of_local(engine: str, omr: str, fleet: Path, total: bytes, tmp_path: Path) -> None:
    assert replayed(omr, fleet, tmp_path, engine) == total


@pytest.mark.parametrize(("engine", "module"), [("ray", "ray"), ("spark", "pyspark")])
def test_the_bits_are_the_same_on_other_engines(
    engine: str, module: str, omr: str, fleet: Path, total: bytes, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    assert replayed(omr, fleet, tmp_path, engine) == total


@contextmanager
def processes(*commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of our own, each in a session of its own, that end with the test."""
    running = [subprocess.Popen(command, start_new_session=True) for command in commands]
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def dask(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"distributed.cli.{module}", *words]


def scheduler(place: Path) -> list[str]:
    return dask(
        "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(place)
    )


def worker(place: Path) -> list[str]:
    words = ["--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--scheduler-file", str(place)]
    return dask("dask_worker", *words)


def address(place: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return str(json.loads(place.read_text())["address"])
        except (OSError, ValueError, KeyError):
            time.sleep(0.1)
    raise TimeoutError(place)


def slow(omr: str, place: Path) -> str:
    """An omr that takes some time for each shard, and notes that it began."""
    program = place / "slow-omr"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--shard*machine*) echo >>{place}/began; sleep 1;; esac\nexec {omr} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def began(place: Path) -> int:
    try:
        return len((place / "began").read_text().splitlines())
    except FileNotFoundError:
        return 0


def wait_until_begun(place: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while began(place) < count:
        assert time.monotonic() < deadline, "nothing has begun"
        time.sleep(0.05)


def test_a_killed_worker_costs_nothing_but_time(omr: str, fleet: Path, total: bytes, tmp_path: Path) -> None:
    program, place = slow(omr, tmp_path), tmp_path / "scheduler.json"
    with processes(scheduler(place), worker(place), worker(place)) as (_, victim, _):
        where = address(place)

        def kill() -> None:
            wait_until_begun(tmp_path, 2)
            os.killpg(victim.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        assert replayed(program, fleet, tmp_path / "out", "dask", where) == total
        killer.join()
        assert victim.wait() == -signal.SIGKILL


def test_after_a_killed_scheduler_the_same_command_goes_on(omr: str, fleet: Path, total: bytes, tmp_path: Path) -> None:
    program, place, out = slow(omr, tmp_path), tmp_path / "scheduler.json", tmp_path / "out"
    command = [sys.executable, "-m", "omr_fleet.cli", "run", str(fleet / "mixed"), "--group", "1", "--omr", program]
    command += ["--policies", str(fleet / "policies.json"), "--out", str(out)]
    with (
        processes(scheduler(place), worker(place)) as (first, _),
        processes([*command, "--address", address(place)]),
    ):
        wait_until_begun(tmp_path, 4)
        os.killpg(first.pid, signal.SIGKILL)
    done = len(list((out / "groups").iterdir()))
    assert 0 < done < ALL and not (out / "total.json").exists()
    before = began(tmp_path)
    ran = subprocess.run([*command, "--engine", "local"], capture_output=True, text=True)
    assert ran.returncode == 4 and "bad shard: cut.parquet" in ran.stderr, ran
    assert (out / "total.json").read_bytes() == total
    # What was done is not done again.
    assert began(tmp_path) - before <= ALL - done


def test_a_changed_shard_is_replayed_again(omr: str, fleet: Path, tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    place.mkdir()
    shard, other = place / "a.parquet", fleet / "good/week=0/machine=1.parquet"
    shard.write_bytes((fleet / "good/week=0/machine=0.parquet").read_bytes())
    told = [run.fleet(str(place), POLICIES, str(tmp_path / "out"), omr, quiet=True) for _ in range(2)]
    assert told[0] == told[1]
    # A result that is gone is made again.
    for result in (tmp_path / "out").glob("*.json"):
        result.unlink()
    assert run.fleet(str(place), POLICIES, str(tmp_path / "out"), omr, quiet=True) == told[0]
    shard.write_bytes(other.read_bytes())
    assert run.fleet(str(place), POLICIES, str(tmp_path / "out"), omr, quiet=True) != told[0]


def test_bad_input_is_named(omr: str, fleet: Path, tmp_path: Path) -> None:
    for url, policies, program, says in [
        (tmp_path / "nowhere", POLICIES, omr, "nowhere: no file *.parquet there"),
        (fleet / "good", b"{", omr, "policies.json: not a list of policies"),
        (fleet / "good", b'{"policies": [{"name": "a", "slo": {"keep": "1%"}}]}', omr, "slo.keep: unknown key"),
        (fleet / "good", POLICIES, "no-such-omr", "no-such-omr: no such program"),
        ("nonsense://x", POLICIES, omr, "nonsense"),
    ]:
        with pytest.raises(Wrong) as refused:
            run.fleet(str(url), policies, str(tmp_path / "out"), program, quiet=True)
        assert says in str(refused.value)
    assert not (tmp_path / "out/total.json").exists()


def test_a_full_disk_leaves_nothing_half_written(omr: str, fleet: Path, tmp_path: Path) -> None:
    """A results directory that takes no file: an error, not a bad shard."""
    group = next(shards.groups(str(fleet / "good"), "/dev/full", POLICIES, omr, "1", 1))
    with pytest.raises((OSError, replay.ReplayError)):
        replay.replay(group)
    out = tmp_path / "out"
    out.mkdir()
    # The file's name is taken by a directory.
    group = next(shards.groups(str(fleet / "good"), str(out), POLICIES, omr, "1", 1))
    done = replay.replay(group)
    assert [path.name for path in out.iterdir() if path.suffix == ".tmp"] == [] and "result" in done[0]


def test_tasks_that_fail_are_tried_again_and_then_named(omr: str, fleet: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(replay, "PAUSE", 0.01)
    count = tmp_path / "count"
    flaky = tmp_path / "flaky"
    flaky.write_text(f'#!/bin/sh\necho >>{count}\n[ "$(wc -l <{count})" -gt "$LIMIT" ] || exit 1\nexec {omr} "$@"\n')
    flaky.chmod(0o755)
    group = next(shards.groups(str(fleet / "good"), str(tmp_path / "out"), POLICIES, str(flaky), "1", 1))
    monkeypatch.setenv("LIMIT", "2")
    assert "result" in replay.replay(group)[0], "the third attempt"
    count.unlink()
    monkeypatch.setenv("LIMIT", "3")
    other = next(shards.groups(str(fleet / "good"), str(tmp_path / "out"), POLICIES, str(flaky), "2", 1))
    with pytest.raises(replay.ReplayError, match=r"machine=0\.parquet"):
        replay.replay(other)
