"""Memory tiers in a guest: a node without CPUs that the firmware describes as slower."""

from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Guest, Node, Zram

DEMOTION = "/sys/kernel/mm/numa/demotion_enabled"

NODES = (Node(448, "0-1"), Node(256, slow=True))


def boot() -> Guest:
    return Guest(KERNEL, 704, Zram(512), nodes=NODES)


def on_node(guest: Guest, group: str, node: int) -> int:
    lines = guest.read(f"/sys/fs/cgroup/{group}/memory.numa_stat").splitlines()
    anon = next(line for line in lines if line.startswith("anon "))
    return int(dict(word.split("=") for word in anon.split()[1:])[f"N{node}"])


def fill(guest: Guest, group: str, *options: str):
    guest.group(group)
    process = guest.spawn(["omr-guest", "fill", *options], group=group)
    process.line_with("ready", timeout=120)
    return process


def test_memory_moved_to_the_slow_node_does_not_count_as_freed(load) -> None:
    with boot() as guest:
        doctor = guest.run(["omr", "doctor"], check=False).stdout
        assert "fast: node 0, then node 1; demotion off" in doctor, doctor
        # The control: without demotion the same amount is freed, and no memory is moved.
        control = load(guest, "control", "128M")
        freed = guest.run(["omr", "reclaim", "control", "48M", "--json"], timeout=120).json()
        assert freed["demoted"] == 0 and freed["freed"] >= 48 * MIB, freed
        assert on_node(guest, "control", 1) <= MIB
        control.process.kill()

        guest.write(DEMOTION, "1")
        assert "fast: node 0, then node 1; demotion on" in guest.run(["omr", "doctor"], check=False).stdout
        group = load(guest, "bg", "128M")
        before, swapped = on_node(guest, "bg", 1), group.swapped()
        ended = guest.run(["omr", "reclaim", "bg", "48M", "--json"], timeout=120, check=False)
        summary = ended.json()
        moved = on_node(guest, "bg", 1) - before
        assert summary["demoted"] >= 48 * MIB, summary
        assert moved >= 40 * MIB, (moved, summary)
        # The freed memory is the decrease of the group, without memory that was moved.
        assert summary["freed"] <= group.swapped() - swapped + MIB, summary
        assert group.errors() == 0


def test_advice_names_the_node_of_used_memory_and_a_better_one() -> None:
    with boot() as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.write(f"{guest.group('slow')}/cpuset.mems", "1")
        fill(guest, "slow", "64M", "--hot", "100")
        guest.write(f"{guest.group('fast')}/cpuset.mems", "0")
        fill(guest, "fast", "96M", "--hot", "20")
        advice = guest.run(["omr", "advise", "--numa", "slow", "fast", "--look", "6s", "--json"], timeout=60).json()
        assert advice["tiers"] == [[0], [1]] and advice["demotion"] is False
        groups = {group["group"]: group for group in advice["groups"]}
        hints = {name: [hint["do"] for hint in group["hints"]] for name, group in groups.items()}
        assert hints == {"/slow": ["promote"], "/fast": ["demote"]}, advice
        slow = {row["node"]: row for row in groups["/slow"]["nodes"]}
        assert abs(slow[1]["memory"] - 64 * MIB) <= 3 * MIB and slow[1]["used"] >= 60 * MIB
        assert slow[0]["used"] <= 2 * MIB
        fast = {row["node"]: row for row in groups["/fast"]["nodes"]}
        assert fast[0]["unused"] >= 70 * MIB and fast[0]["used"] >= 18 * MIB
        text = guest.run(["omr", "advise", "--numa", "slow", "--look", "2s"], timeout=60).stdout
        assert "of slower memory are in use" in text and "numa_balancing" in text
