"""What do the engines cost, and how do they scale? Run by hand, on a host that does nothing else:

    python bench/scale.py OMR FLEET POLICIES.json GROUP ROUNDS scale.json

In each round every way replays the same shards into an empty directory, in another order. `bare` is
a loop over `omr whatif --shard` and nothing else. GROUP: the shards of a task.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from distributed import Client, LocalCluster

from omr_fleet import engines, replay, run, shards


def bare(omr: str, fleet: str, policies: str, out: str) -> None:
    for shard in shards.find(fleet):
        command = [omr, "whatif", "--shard", Path(fleet, shard.name), "--policies", policies, "--out", out]
        subprocess.run(command, check=True, capture_output=True)


def tasks(omr: str, fleet: str, policies: str, group: int, out: str) -> list[shards.Group]:
    found = list(shards.groups(fleet, out, Path(policies).read_bytes(), omr, "1", group))
    os.makedirs(out, exist_ok=True)
    return found


def measured(omr: str, fleet: str, policies: str, group: int, rounds: int) -> dict[str, list[float]]:
    """Seconds by way, a round after the other."""
    found: dict[str, list[float]] = {}
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as one,
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as two,
        Client(one) as client_of_one,
        Client(two) as client_of_two,
    ):
        addresses = {"dask, 1 worker": client_of_one, "dask, 2 workers": client_of_two}

        def by_dask(name: str) -> Callable[[str], None]:
            address = addresses[name].scheduler.address

            def way(out: str) -> None:
                list(engines.dask(replay.replay, tasks(omr, fleet, policies, group, out), address))

            return way

        ways: dict[str, Callable[[str], None]] = {
            "bare": lambda out: bare(omr, fleet, policies, out),
            "no engine, 2 CPUs": lambda out: (
                list(engines.local(replay.replay, tasks(omr, fleet, policies, group, out), None)) and None
            ),
            **{name: by_dask(name) for name in addresses},
            "whole command": lambda out: (
                run.fleet(fleet, Path(policies).read_bytes(), out, omr, "dask", None, group, quiet=True) and None
            ),
        }
        for number in range(rounds):
            names = list(ways)
            for name in names if number % 2 else reversed(names):
                with tempfile.TemporaryDirectory() as out:
                    began = time.monotonic()
                    ways[name](str(Path(out, "results")))
                    found.setdefault(name, []).append(round(time.monotonic() - began, 2))
                print(name, found[name][-1], flush=True)
    return found


def main() -> None:
    omr, fleet, policies, group, rounds, file = sys.argv[1:]
    found = measured(omr, fleet, policies, int(group), int(rounds))
    ratios = {
        "adapter overhead": ("dask, 1 worker", "bare", 1.0),
        "efficiency with 2 workers": ("bare", "dask, 2 workers", 0.5),
        "efficiency without an engine": ("bare", "no engine, 2 CPUs", 0.5),
    }
    for name, (above, below, part) in ratios.items():
        values = [part * a / b for a, b in zip(found[above], found[below])]
        print(f"{name}: {median(values):.3f} [{min(values):.3f} .. {max(values):.3f}]")
    told = {"shards": len(shards.find(fleet)), "group": int(group), "seconds": found}
    Path(file).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
