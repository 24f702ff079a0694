"""What the daemon remembers of groups: what they use and what not, at a cost that has a limit."""

import json

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import MIB, Guest, Node, Zram

UNSUPPORTED = 3
"""omr's exit code for what the kernel lacks."""

SWITCH = "/sys/kernel/mm/lru_gen/enabled"

COLD, HOT = 96 * MIB, 64 * MIB


def boot() -> Guest:
    return Guest("6.12", 512, swap=Zram(256))


def fill(guest: Guest, group: str, *options: str):
    """Memory, used every second as far as the options say."""
    guest.group(group)
    process = guest.spawn(["omr-guest", "fill", f"{(COLD + HOT) // MIB}M", *options], group=group)
    process.line_with("ready", timeout=120)
    return process


def samples(guest: Guest, group: str) -> list[dict]:
    """All samples of a group, oldest first."""
    ended = guest.run(["omr", "history", "--groups", group, "--json", "-n", "1000"], timeout=60)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def seen(guest: Guest, group: str) -> list[dict]:
    """Those that say how long memory was not used."""
    return [sample for sample in samples(guest, group) if sample["idle"]]


def idle(sample: dict, seconds: float) -> dict:
    return next(idle for idle in sample["idle"] if idle["seconds"] == seconds)


def wait_for_known(guest: Guest, group: str, cold: int, timeout: float) -> dict:
    """Waits until this much is known not to have been used for half a minute; the sample of it."""

    def known() -> list[dict]:
        return [sample for sample in seen(guest, group) if idle(sample, 30)["least"] >= 0.97 * cold]

    return guest.wait_for(known, timeout, "known ages")[-1]


def history(every: str, budget: str) -> str:
    return f'\n[history]\nevery = "{every}"\nbudget = "{budget}"\n'


def test_the_daemon_remembers_what_was_used_and_what_was_not() -> None:
    with boot() as guest:
        guest.write(SWITCH, "y")
        fill(guest, "half", "--hot", "40")
        with Daemon(guest, idle="1h", config=history("10s", "10%")) as daemon:
            # A group is known for half a minute when the daemon has looked for so long.
            sample = wait_for_known(guest, "half", COLD, 120)
            assert idle(sample, 30)["most"] <= 1.03 * COLD, sample
            assert all(idle(sample, 30)["least"] <= 1.03 * COLD for sample in seen(guest, "half"))
            # The control: what is used is not called cold, for however short a time.
            assert sample["memory"] - idle(sample, 30)["most"] >= 0.97 * HOT
            # Nobody has looked for so long.
            assert idle(sample, 3600)["least"] == 0
            assert sample["peak"] >= sample["current"] >= COLD + HOT
            assert sample["refaults_anon"] == 0 and sample["over_ms"] >= 9_000
            # There is one node, of which nothing is to be said beside that.
            assert "nodes" not in sample
            # Of the machine as well, with all groups in it.
            machine = samples(guest, "/")[-1]
            assert machine["group"] == "/" and idle(machine, 30)["least"] >= 0.97 * COLD
            # What it has cost is in one sample or another, and nothing twice.
            spent = daemon.status()["history"]
            costs = [(sample["agings"], sample["cpu_ms"]) for sample in samples(guest, "/")]
            assert all(cpu > 0 for _, cpu in costs), costs
            agings, cpu_ms = sum(agings for agings, _ in costs), sum(cpu for _, cpu in costs)
            assert agings <= daemon.status()["history"]["agings"], (costs, spent)
            assert cpu_ms <= 1.1 * daemon.status()["history"]["cpu_ms"] + 10, (costs, spent)
            assert agings >= 0.5 * spent["agings"] and cpu_ms >= 0.5 * spent["cpu_ms"], (costs, spent)

            # And `omr wss` shows that, without looking anew.
            for options in ([], ["--at", "5s"], ["--at", sample["time"]]):
                shown = guest.run(["omr", "wss", "half", *options, "--json"]).json()
                assert idle(shown, 30)["least"] >= 0.97 * COLD and "agings" not in shown, shown
                assert shown["cost"]["agings"] > 0 and shown["cost"]["cpu_ms"] > 0, shown
            assert "looking at all groups cost in " in guest.run(["omr", "wss", "half"]).stdout
            nothing = guest.run(["omr", "wss", "half", "--at", "3h"], check=False)
            assert nothing.code == 1 and "its history is from" in nothing.stderr

            guest.write(SWITCH, "n")
            before = len(samples(guest, "half"))
            guest.wait_for(lambda: len(samples(guest, "half")) >= before + 2, 60, "samples")
            last = samples(guest, "half")[-1]
            # Unknown, and not what it was.
            assert last["idle"] == [] and last["memory"] is None and last["agings"] == 0
            assert last["anon"] >= COLD + HOT
            # Nor does `omr wss` make anything of it.
            assert guest.run(["omr", "wss", "half", "--tracker", "lru-gen"], check=False).code == UNSUPPORTED


@pytest.mark.long
def test_each_node_is_remembered_where_there_are_several() -> None:
    with Guest("6.12", 640, Zram(512), nodes=(Node(320, "0"), Node(320, "1"))) as guest:
        guest.write(SWITCH, "y")
        guest.write(f"{guest.group('two')}/cgroup.subtree_control", "+memory +cpuset")
        # 64 MiB on the first node, none of which is used; 96 MiB on the second, of which half is.
        for number, options in ((0, ("64M",)), (1, ("96M", "--hot", "50"))):
            guest.write(f"{guest.group(f'two/on-{number}')}/cpuset.mems", str(number))
            guest.spawn(["omr-guest", "fill", *options], group=f"two/on-{number}").line_with("ready", timeout=120)
        planted = {0: (64 * MIB, 64 * MIB), 1: (96 * MIB, 48 * MIB)}

        def is_planted(sample: dict, number: int) -> bool:
            """What is said of a node is what is there."""
            node = next(node for node in sample["nodes"] if node["node"] == number)
            (memory, cold), known = planted[number], idle(node, 30)
            return (
                abs(node["memory"] - memory) <= 0.05 * memory
                and 0.95 * cold <= known["least"] <= known["most"] <= 1.07 * cold
            )

        with Daemon(guest, idle="1h", config=history("20s", "10%")):
            both = wait_for_known(guest, "two", 112 * MIB, 240)
            assert is_planted(both, 0) and is_planted(both, 1), both
            # All of it together is what the nodes have.
            assert abs(sum(node["anon"] for node in both["nodes"]) - both["anon"]) <= MIB, both
            # The control: each group is on one node, and nothing is said of the other.
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


def test_what_has_no_age_may_be_used() -> None:
    with boot() as guest:
        guest.write(SWITCH, "y")
        guest.group("locked")
        load = guest.spawn(["omr-guest", "map", f"{COLD // MIB}M", "--locked", f"{HOT // MIB}M"], group="locked")
        load.line_with("ready", timeout=120)
        with Daemon(guest, idle="1h", config=history("10s", "10%")):
            sample = wait_for_known(guest, "locked", COLD, 120)
            # Locked memory is in no generation.
            assert sample["memory"] >= COLD + HOT, sample
            # The control: what is not locked is known to be unused.
            assert idle(sample, 30)["least"] <= 1.03 * COLD and idle(sample, 30)["most"] >= COLD + HOT, sample


def test_looking_costs_no_more_than_its_budget() -> None:
    with boot() as guest:
        guest.write(SWITCH, "y")
        fill(guest, "hot", "--hot", "100")

        def look(budget: str) -> tuple[dict, float]:
            """What the daemon spent in some time with this budget, and that time in ms."""
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
        # One aging of all groups, and then it waits.
        assert small["agings"] < free["agings"] / 3, (free, small)
        assert small["wait_ms"] > 10_000, small
        # What it is allowed, a round's earnings, and one aging of all groups beyond.
        assert small["cpu_ms"] <= 0.0001 * (elapsed + 10_000) + 20 * each, (free, small)
