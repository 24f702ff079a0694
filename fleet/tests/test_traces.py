"""Traces become quantiles, and a fleet is made from these."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from omr_fleet import traces
from omr_fleet.shards import Wrong

HEADER = "seconds,memory_percent"
JOBS = [(float(seconds), 0.1 * (seconds % 7)) for seconds in range(101)]


def jobs_as(kind: str) -> str:
    """The same jobs in each form."""
    lines = {
        "plain": [HEADER, *(f"{seconds},{memory}" for seconds, memory in JOBS)],
        "spar": [f"0,j_1,M1,ins_1,{seconds},50.0,{memory}" for seconds, memory in JOBS],
        "alibaba2018": [
            *(f"i,t,j,1,Terminated,1000,{1000 + seconds},m_1,1,1,0.3,0.4,{memory},9" for seconds, memory in JOBS),
            "i,t,j,1,Failed,1000,0,m_1,1,1,,,,",
        ],
    }
    return "\n".join(lines[kind]) + "\n"


def days_as(kind: str) -> str:
    """Two days: CPU time is 20 % above its mean at noon, and memory 5 % below it."""
    rows = []
    for number in range(2 * 288):
        is_noon = number // 12 % 24 == 12
        cpu, memory = (40.0, 80.0) if not is_noon else (60.0, 72.0)
        rows.append((300 * number, cpu, memory))
    lines = {
        "plain": ["seconds,cpu_percent,memory_percent", *(",".join(map(str, row)) for row in rows)],
        "averages": ["cpu_util_percent,mem_util_percent", *(f"{cpu},{memory}" for _, cpu, memory in rows)],
        "alibaba2018": [f"m_1,{at},{cpu},{memory},,,1,1,1" for at, cpu, memory in rows],
    }
    return "\n".join(lines[kind]) + "\n"


def written(place: Path, text: str) -> str:
    place.write_text(text)
    return str(place)


@pytest.mark.parametrize("kind", traces.JOBS)
def test_jobs_are_the_same_in_each_form(kind: str, tmp_path: Path) -> None:
    file = written(tmp_path / "jobs.csv", jobs_as(kind))
    assert [(seconds, pytest.approx(memory)) for seconds, memory in traces.read(traces.JOBS, f"{kind}:{file}")] == JOBS


@pytest.mark.parametrize("kind", traces.DAYS)
def test_days_are_the_same_in_each_form(kind: str, tmp_path: Path) -> None:
    file = written(tmp_path / "days.csv", days_as(kind))
    mean_cpu, mean_memory = 40 + 20 / 24, 80 - 8 / 24
    expected = (50 * 20 / mean_cpu, 50 * 8 / mean_memory)
    assert traces.swings(traces.read(traces.DAYS, f"{kind}:{file}")) == pytest.approx(expected)


def test_a_fleet_is_made_from_a_file_of_traces(omr: str, tmp_path: Path) -> None:
    jobs = written(tmp_path / "jobs.csv", jobs_as("plain"))
    days = written(tmp_path / "days.csv", days_as("plain"))
    out = tmp_path / "traces.json"
    command = [sys.executable, "-m", "omr_fleet.cli", "traces", "--jobs", f"plain:{jobs}", "--days", f"plain:{days}"]
    subprocess.run([*command, "--batch", "1", "--source", "a test", "--out", out], check=True)
    found = json.loads(out.read_text())
    assert found["batch"]["seconds"] == [[point, float(point)] for point in traces.POINTS]
    assert found["sources"] == ["a test"]
    makes = [omr, "fleet", "synthesize", "--seed", "1", "--machines", "1", "--out"]
    subprocess.run([*makes, tmp_path / "own", "--traces", out], check=True)
    subprocess.run([*makes, tmp_path / "default"], check=True)
    # All jobs end within 100 s and have one sample at most: fewer than with the published traces.
    sizes = [(tmp_path / place / "week=0/machine=0.parquet").stat().st_size for place in ("own", "default")]
    assert sizes[0] < sizes[1]
    found["batch"]["seconds"][3][1] = 1e6
    out.write_text(json.dumps(found))
    ran = subprocess.run([*makes, tmp_path / "wrong", "--traces", out], capture_output=True, text=True)
    assert ran.returncode == 2 and "traces.json: batch.seconds: expected values" in ran.stderr, ran
    assert not (tmp_path / "wrong").exists()


def test_of_a_large_trace_some_jobs_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST", 2_000)
    chance = random.Random(1)
    jobs = [(float(seconds), 1.0) for seconds in range(50_000)]
    chance.shuffle(jobs)
    seconds, memory = traces.drawn(iter(jobs))
    assert len(seconds) == len(memory) == 2_000 and len(set(seconds)) == 2_000
    middle = dict(map(tuple, traces.quantiles(seconds)))[50]
    assert middle == pytest.approx(25_000, rel=0.08)


def test_a_mistake_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    def says(named: str, kinds: dict[str, traces.Format] = traces.JOBS) -> str:
        with pytest.raises(Wrong) as refused:
            list(traces.read(kinds, named))
        return str(refused.value)

    def of(text: str) -> str:
        return written(tmp_path / "x.csv", text)

    assert "expected FORMAT:FILE" in says("x.csv") and "plain, spar" in says("other:x.csv")
    assert "nowhere" in says("plain:/nowhere.csv")
    assert "x.csv: line 1: no plain: no column seconds" in says(f"plain:{of('a,b')}")
    for wrong in ("1", "x,1", "-1,1", "nan,1", "1,inf"):
        assert "x.csv: line 3: no plain: " in says(f"plain:{of(HEADER + chr(10) + '1,1' + chr(10) + wrong)}"), wrong
    assert "x.csv: line 1: no spar" in says(f"spar:{of('1,2')}")
    with pytest.raises(Wrong, match="no jobs"):
        traces.traces(f"plain:{of(HEADER)}", [], 5, [])
    half_a_day = f"averages:{of('cpu_util_percent,mem_util_percent' + chr(10) + '1,1')}"
    with pytest.raises(Wrong, match="no whole day"):
        traces.swings(traces.read(traces.DAYS, half_a_day))
