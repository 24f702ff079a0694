"""The goal decides whether anything is taken from a machine with much free memory."""

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import MIB, Disk, Guest
from omrlab.scenarios.roomy import taken

SETTLED = 20
"""Seconds. With the goal free, the sweep of the load begins after 5 s and takes 2 s."""


@pytest.mark.parametrize("goal, takes", [("auto", False), ("free", True)])
def test_with_much_free_memory_only_the_goal_free_takes_something(goal: str, takes: bool, release: str) -> None:
    with Guest(release, 512, Disk(512, mb_s=60)) as guest:
        guest.group("load")
        guest.spawn(["omr-guest", "fill", "25%"], group="load").line_with("ready", timeout=120)
        before = taken(guest.vmstat())
        with Daemon(guest, idle="2s", top=f'goal = "{goal}"') as daemon:
            if takes:
                guest.wait_for(lambda: taken(guest.vmstat()) - before > 64 * MIB, 60, "sweeps of the load", every=3)
            else:
                guest.run(["sleep", str(SETTLED)])
            reclaimed = taken(guest.vmstat()) - before
            status = guest.run(["omr", "status"]).stdout
            sweeps = daemon.ledger()
    if takes:
        assert reclaimed > 64 * MIB and sweeps, (status, sweeps)
    else:
        assert (reclaimed, sweeps) == (0, []), (status, sweeps)
        assert "nothing to gain" in status
