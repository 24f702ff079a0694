"""A user without rights who is in omr's way as much as the kernel allows. Sweeps of others' groups
go on and stop in time, other users' statements stand, and the machine is still prepared for
hibernation, and hibernates.

In the first guest the clock counts instructions, a thousand million in a second, so the host's load
changes no time in there.
"""

import json

import pytest

from omrlab.adversary import (
    FLOODS,
    OTHER,
    RULES,
    WATCHES,
    Adversary,
    add_users,
    cost,
    interrupt,
    spawn_as,
    subtree,
)
from omrlab.daemon import Daemon
from omrlab.guest import COUNTED, KERNEL, Disk, Guest, Process, Zram
from omrlab.scenarios.latency import trace_writes

GROUPS = 1500
"""Groups of the adversary: more than the daemon visits. 50,000 need minutes of emulation: see
`lab/run adversary`.
"""

LONGEST_PATH = 4096
ENOENT, EACCES, ENOSPC, ENAMETOOLONG = 2, 13, 28, 36

BOUND_MS = 200
"""A sweep ends within 100 ms. Here two CPUs share one clock, and both are at work."""


def fill_other(guest: Guest, group: str) -> Process:
    """Memory of the other user, which the daemon sweeps unless the user says something."""
    load = spawn_as(guest, OTHER, f"app.slice/{group}", "omr-guest", "fill", "16M")
    load.line_with("ready")
    return load


def swap_of_other(guest: Guest, group: str) -> int:
    return guest.group_value(f"{subtree(OTHER)}/app.slice/{group}", "memory.swap.current")


@pytest.mark.long
def test_a_user_who_makes_all_that_can_be_made_is_in_nobodys_way() -> None:
    with Guest(KERNEL, 768, Zram(768), data_mib=1024, accelerator=COUNTED, boot_timeout=400, fresh=True) as guest:
        add_users(guest)
        guest.write("/proc/sys/fs/inotify/max_user_watches", str(WATCHES))
        trace_writes(guest)
        with Daemon(guest, idle="2s", config=RULES) as daemon:
            # The other user says that one of two groups is in the foreground.
            claim = spawn_as(guest, OTHER, "init.scope", "omr-guest", "claim", f"{subtree(OTHER)}/app.slice/app.scope")
            claim.line_with("claimed")
            fill_other(guest, "app.scope")
            fill_other(guest, "free.scope")
            # The control: the same without the adversary.
            alone, alone_cost = interrupt(guest, daemon), cost(guest, daemon)
            assert alone.sweep["end"] == "stopped" and alone.writes > 0, alone

            adversary = Adversary(guest)
            proof = adversary.everything(GROUPS)
            assert proof["deep"]["length"] > LONGEST_PATH and proof["deep"]["open_errno"] == ENAMETOOLONG, proof
            assert proof["wide"]["groups"] == GROUPS and proof["reserve"]["tib"] == 64, proof
            assert proof["watches"]["watches"] == WATCHES and proof["watches"]["errno"] == ENOSPC, proof
            assert proof["names"]["name"] == "omr" and proof["names"]["locks"]["lock"] == EACCES, proof
            assert set(proof["names"]["locks"].values()) <= {EACCES, ENOENT}, proof

            beside, beside_cost = interrupt(guest, daemon), cost(guest, daemon)
            print(alone, alone_cost, beside, beside_cost, sep="\n")
            # A sweep of root's group goes on, and ends when work begins. Nothing is written after.
            for found in (alone, beside):
                assert found.sweep["end"] == "stopped" and "work began" in found.sweep["stop_reason"], found
                assert found.writes > 0 and found.stop_ms <= BOUND_MS, found
            # The bounds on attributes, requests, connections and scans add up to 1.6 %.
            assert beside_cost.cpu_pct < 3, beside_cost
            assert beside_cost.resident_mib < 8, beside_cost
            # Of a user's groups 256 are watched, and 5 belong to the other user and to the control.
            assert beside_cost.watches < 300 and beside_cost.descriptors < alone_cost.descriptors + 40, beside_cost

            # The statement of the other user stands. The control is the group that nobody spoke of.
            assert swap_of_other(guest, "app.scope") == 0
            assert swap_of_other(guest, "free.scope") > 0
            claims = len(claim.lines())
            guest.run(["sleep", "5"])
            assert len(claim.lines()) > claims, claim.stderr()
            assert "class: foreground" in guest.run(["omr", "explain", f"{subtree(OTHER)}/app.slice/app.scope"]).stdout

            # The machine can be prepared for hibernation, for which it needs swap on a disk.
            guest.shell("umount /data && mkswap /dev/vda && swapon /dev/vda")
            guest.shell("cat /sys/class/block/vda/dev > /sys/power/resume || true")
            prepared = guest.run(["omr", "prepare", "hibernate", "--json"], timeout=600).json()
            assert prepared["end"] == "reached", prepared
            done = adversary.end()
            print(done)
            storm = next(done[words] for words in done if words.startswith("storm"))
            assert storm["failed"] == 0 and storm["done"] >= 190 * storm["seconds"], done

            # Floods without a pause: root is answered, and they cost no more.
            for kind in FLOODS:
                adversary.attack("flood", kind, "--rate", "0")
            flooded = cost(guest, daemon, 5)
            assert guest.run(["omr", "status"], timeout=300).code == 0
            print(flooded, adversary.end())
            assert flooded.cpu_pct < 3, flooded
        assert daemon.process.wait().code == 0


@pytest.mark.long
@pytest.mark.seldom
def test_a_machine_with_such_a_user_hibernates() -> None:
    with Guest(KERNEL, 512, Disk(1024, mb_s=60)) as guest:
        add_users(guest)
        adversary = Adversary(guest)
        proof = [adversary.attack(*words) for words in (("deep", adversary.group), ("reserve",), ("names",))]
        assert proof[0]["open_errno"] == ENAMETOOLONG and proof[1]["tib"] == 64, proof
        adversary.attack("wide", adversary.group, "--groups", "1200")
        script = "omr hibernate --json > /tmp/report 2> /tmp/errors"
        guest.hibernate_and_resume(argv=("sh", "-c", script))
        text = guest.read("/tmp/report")
        print(text, guest.read("/tmp/errors"))
        assert json.loads(text[text.rindex("\n{") :])["hibernated"] == "kernel"
        # The same user is still there.
        adversary.end()
