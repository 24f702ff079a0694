"""The daemon's history of groups: used and unused memory, measured at a limited cost."""

import json
import time

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Guest, Node, Zram

UNSUPPORTED = 3
"""omr's exit code for a feature that the kernel lacks."""


COLD, HOT = 96 * MIB, 64 * MIB


def boot() -> Guest:
    return Guest(KERNEL, 512, swap=Zram(256))


def fill(guest: Guest, group: str, *options: str):
    """Starts a process that fills memory. The options say which part it uses every second."""
    guest.group(group)
    process = guest.spawn(["omr-guest", "fill", f"{(COLD + HOT) // MIB}M", *options], group=group)
    process.line_with("ready", timeout=120)
    return process


def samples(guest: Guest, group: str) -> list[dict]:
    """All samples of a group, oldest first."""
    ended = guest.run(["omr", "history", "--groups", group, "--json", "-n", "1000"], timeout=60)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def seen(guest: Guest, group: str) -> list[dict]:
    """The samples that have figures of unused memory."""
    return [sample for sample in samples(guest, group) if sample["idle"]]


def idle(sample: dict, seconds: float) -> dict:
    return next(idle for idle in sample["idle"] if idle["seconds"] == seconds)


def wait_for_known(guest: Guest, group: str, cold: int, timeout: float) -> dict:
    """Waits until this much memory is known to be unused for half a minute; returns the sample."""

    def known() -> list[dict]:
        return [sample for sample in seen(guest, group) if idle(sample, 30)["least"] >= 0.97 * cold]

    return guest.wait_for(known, timeout, "known ages")[-1]


def history(every: str, budget: str) -> str:
    return f'\n[history]\nevery = "{every}"\nbudget = "{budget}"\n'


def test_the_history_has_used_and_unused_memory() -> None:
    with boot() as guest:
        guest.write(MGLRU_SWITCH, "y")
        fill(guest, "half", "--hot", "40")
        with Daemon(guest, idle="1h", config=history("10s", "10%")) as daemon:
            # The daemon knows the age of half a minute when it has aged the group for that time.
            sample = wait_for_known(guest, "half", COLD, 120)
            assert idle(sample, 30)["most"] <= 1.03 * COLD, sample
            assert all(idle(sample, 30)["least"] <= 1.03 * COLD for sample in seen(guest, "half"))
            # The control: used memory is never called cold, not even for a short age.
            assert sample["memory"] - idle(sample, 30)["most"] >= 0.97 * HOT
            # The daemon has not aged the group for an hour.
            assert idle(sample, 3600)["least"] == 0
            assert sample["peak"] >= sample["current"] >= COLD + HOT
            assert sample["refaults_anon"] == 0 and sample["over_ms"] >= 9_000
            # There is one node, so its figures are those of the group.
            assert "nodes" not in sample
            # There are also samples of the machine, which include all groups.
            machine = samples(guest, "/")[-1]
            assert machine["group"] == "/" and idle(machine, 30)["least"] >= 0.97 * COLD
            # Each cost is in one sample, and no cost is in two samples.
            before = daemon.status()["history"]
            costs = [(sample["agings"], sample["cpu_ms"]) for sample in samples(guest, "/")]
            # The thread writes a sample up to a second before the daemon counts its cost.
            time.sleep(1.5)
            after = daemon.status()["history"]
            assert all(cpu > 0 for _, cpu in costs), costs
            agings, cpu_ms = sum(agings for agings, _ in costs), sum(cpu for _, cpu in costs)
            assert 0.5 * before["agings"] <= agings <= after["agings"], (costs, before, after)
            assert 0.5 * before["cpu_ms"] <= cpu_ms <= after["cpu_ms"] + len(costs), (costs, before, after)

            # `omr wss` shows these figures without agings of its own.
            for options in ([], ["--at", "5s"], ["--at", sample["time"]]):
                shown = guest.run(["omr", "wss", "half", *options, "--json"]).json()
                assert idle(shown, 30)["least"] >= 0.97 * COLD and "agings" not in shown, shown
                assert shown["cost"]["agings"] > 0 and shown["cost"]["cpu_ms"] > 0, shown
            assert "cost of measuring all groups in " in guest.run(["omr", "wss", "half"]).stdout
            nothing = guest.run(["omr", "wss", "half", "--at", "3h"], check=False)
            assert nothing.code == 1 and "its history is from" in nothing.stderr

            # A replay reads the recording.
            guest.run(["omr", "history", "--groups", "--parquet", "/run/shard.parquet"])
            guest.write("/run/policies.json", '{"policies": [{"name": "default"}]}', create=True)
            words = ["omr", "whatif", "--shard", "/run/shard.parquet", "--policies", "/run/policies.json"]
            replayed = guest.run([*words, "--out", "/run/results"]).stdout.strip()
            shard = json.loads(guest.read(replayed))["shard"]
            assert shard["rows"] >= len(samples(guest, "half")) and shard["jobs"] >= 1, shard
            assert shard["windows"] - shard["unknown"] >= 3, shard

            guest.write(MGLRU_SWITCH, "n")
            before = len(samples(guest, "half"))
            guest.wait_for(lambda: len(samples(guest, "half")) >= before + 2, 60, "samples")
            last = samples(guest, "half")[-1]
            # The age is unknown, and the old figures are not repeated.
            assert last["idle"] == [] and last["memory"] is None and last["agings"] == 0
            assert last["anon"] >= COLD + HOT
            # `omr wss` does not use that sample either.
            assert guest.run(["omr", "wss", "half", "--tracker", "lru-gen"], check=False).code == UNSUPPORTED


@pytest.mark.parametrize(("mode", "ages"), [("record", True), ("observe", False)])
def test_ages_are_recorded_and_nothing_is_reclaimed(mode: str, ages: bool) -> None:
    with boot() as guest:
        guest.write(MGLRU_SWITCH, "y")
        fill(guest, "half", "--hot", "40")
        # With goal = "free" each sweep would take all that it may.
        with Daemon(guest, idle="1s", top=f'mode = "{mode}"\ngoal = "free"', config=history("10s", "10%")) as daemon:
            assert daemon.status()["mode"] == mode
            if ages:
                wait_for_known(guest, "half", COLD, 120)
            guest.wait_for(lambda: len(samples(guest, "half")) >= 4, 120, "samples")
            assert bool(seen(guest, "half")) == ages
            if ages:
                assert "mode record: nothing is reclaimed" in guest.run(["omr", "explain"]).stdout
                assert not daemon.sweeps("half")
            else:
                guest.wait_for(lambda: any(sweep["observed"] for sweep in daemon.sweeps("half")), 120, "a sweep")
            assert int(guest.read("/sys/fs/cgroup/half/memory.swap.current")) == 0
            assert f"mode {mode}" in guest.run(["omr", "status"]).stdout


@pytest.mark.long
def test_the_history_has_each_node_where_there_are_several() -> None:
    with Guest(KERNEL, 640, Zram(512), nodes=(Node(320, "0"), Node(320, "1"))) as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.write(f"{guest.group('two')}/cgroup.subtree_control", "+memory +cpuset")
        # 64 MiB on the first node, all unused; 96 MiB on the second node, half of it unused.
        for number, options in ((0, ("64M",)), (1, ("96M", "--hot", "50"))):
            guest.write(f"{guest.group(f'two/on-{number}')}/cpuset.mems", str(number))
            guest.spawn(["omr-guest", "fill", *options], group=f"two/on-{number}").line_with("ready", timeout=120)
        planted = {0: (64 * MIB, 64 * MIB), 1: (96 * MIB, 48 * MIB)}

        def is_planted(sample: dict, number: int) -> bool:
            """True when the figures of a node are those of its memory."""
            node = next(node for node in sample["nodes"] if node["node"] == number)
            (memory, cold), known = planted[number], idle(node, 30)
            return (
                abs(node["memory"] - memory) <= 0.05 * memory
                and 0.95 * cold <= known["least"] <= known["most"] <= 1.07 * cold
            )

        with Daemon(guest, idle="1h", config=history("20s", "10%")):
            both = wait_for_known(guest, "two", 112 * MIB, 240)
            assert is_planted(both, 0) and is_planted(both, 1), both
            # The sum of the nodes is the memory of the group.
            assert abs(sum(node["anon"] for node in both["nodes"]) - both["anon"]) <= MIB, both
            # The control: each group is on one node, and has no memory on the other.
            for number in (0, 1):
                one = seen(guest, f"two/on-{number}")[-1]
                assert is_planted(one, number), one
                assert sum(node["anon"] for node in one["nodes"] if node["node"] != number) <= MIB, one
            for options in ([], ["--at", both["time"]]):
                shown = guest.run(["omr", "wss", "two", "--per-node", *options, "--json"]).json()
                assert [node["node"] for node in shown["nodes"]] == [0, 1] and "agings" not in shown, shown
                assert idle(shown["nodes"][1], 30)["least"] >= 0.95 * 48 * MIB, shown
            table = guest.run(["omr", "history", "--groups", "two", "--per-node", "-n", "1"]).stdout.splitlines()
            assert [line.split()[:2] for line in table[2:]] == [["node", "0"], ["node", "1"]], table


def test_memory_without_an_age_counts_as_possibly_used() -> None:
    with boot() as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.group("locked")
        load = guest.spawn(["omr-guest", "map", f"{COLD // MIB}M", "--locked", f"{HOT // MIB}M"], group="locked")
        load.line_with("ready", timeout=120)
        with Daemon(guest, idle="1h", config=history("10s", "10%")):
            sample = wait_for_known(guest, "locked", COLD, 120)
            # Locked memory is in no generation.
            assert sample["memory"] >= COLD + HOT, sample
            # The control: the memory that is not locked is known to be unused.
            assert idle(sample, 30)["least"] <= 1.03 * COLD and idle(sample, 30)["most"] >= COLD + HOT, sample


def test_agings_cost_no_more_than_their_budget() -> None:
    with boot() as guest:
        guest.write(MGLRU_SWITCH, "y")
        fill(guest, "hot", "--hot", "100")

        def look(budget: str) -> tuple[dict, float]:
            """The daemon's costs with this budget, and the time that it ran, in ms."""
            with Daemon(guest, idle="1h", config=history("10s", budget)) as daemon:
                began = guest.monotonic_ns()
                guest.wait_for(lambda: daemon.status()["history"]["agings"] > 0, 30, "aging")
                guest.shell("sleep 12")
                spent = daemon.status()["history"]
                return spent, (guest.monotonic_ns() - began) / 1e6

        free, elapsed = look("10%")
        each = free["cpu_ms"] / free["agings"]
        assert free["agings"] >= 6, free
        small, elapsed = look("0.01%")
        # The daemon ages all groups once, and then waits.
        assert small["agings"] < free["agings"] / 3, (free, small)
        assert small["wait_ms"] > 10_000, small
        # The cost is within the budget, the earnings of one round, and one aging of all groups.
        assert small["cpu_ms"] <= 0.0001 * (elapsed + 10_000) + 20 * each, (free, small)
