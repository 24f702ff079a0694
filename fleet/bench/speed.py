"""How many windows does a policy take in a second? Run by hand, on a host that does nothing else:

    python bench/speed.py OMR SHARD ROUNDS       needs pyarrow

`omr whatif` replays a machine's week through two policies and through 51, in turns: the time of the
other 49 is what policies cost. Then the same with the jobs alone that are there all week. User and
system time of the program.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FEW, MANY = 1, 50
"""Policies beside the defaults."""
ALL_WEEK = 900
"""More samples than this in a week: the job was there for nearly all of it."""


def policies(count: int) -> str:
    named = [{"name": f"p{at}", "slo": {"promotions": f"{0.02 * (at + 1):.2f}%"}} for at in range(count)]
    return json.dumps({"policies": named})


def replayed(omr: str, shard: Path, count: int, place: Path) -> tuple[float, int]:
    """The CPU seconds, and the windows."""
    file = place / "policies.json"
    file.write_text(policies(count))
    with tempfile.TemporaryDirectory() as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [omr, "whatif", "--shard", shard, "--policies", file, "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        [result] = Path(out).glob("*.json")
        windows = json.loads(result.read_text())["shard"]["windows"]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, windows


def lasting(shard: Path, to: Path) -> Path:
    """The same week with the jobs alone that are there all week."""
    rows = pq.read_table(shard)
    counted = pc.value_counts(rows["group"]).to_pylist()
    groups = [of["values"] for of in counted if of["counts"] > ALL_WEEK]
    pq.write_table(rows.filter(pc.is_in(rows["group"], pa.array(groups))), to, compression="zstd")
    return to


def main() -> None:
    omr, shard, rounds = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for name, week in (("all jobs", Path(shard)), ("all week", lasting(Path(shard), place / "week.parquet"))):
            times: dict[int, list[float]] = {FEW: [], MANY: []}
            for _ in range(int(rounds)):
                for count, found in times.items():
                    seconds, windows = replayed(omr, week, count, place)
                    found.append(seconds)
            few, many = median(times[FEW]), median(times[MANY])
            rates = [(MANY - FEW) * windows / 1e6 / (b - a) for a, b in zip(times[FEW], times[MANY])]
            print(
                f"{name}: {windows} windows; {FEW + 1} policies {few:.2f} s, {MANY + 1} {many:.2f} s; million windows "
                f"a second and policy: {median(rates):.1f} [{min(rates):.1f} .. {max(rates):.1f}]"
            )


if __name__ == "__main__":
    main()
