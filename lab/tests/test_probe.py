"""Probes of groups without ages, as on Debian's 6.1, which has MGLRU off."""

import signal

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import MGLRU_SWITCH, MIB, Guest, Zram

PROBING = """
[slo]
warm_up = "0s"

[history]
every = "10s"
"""
"""The aging thread finds out at half of the first round that there are no ages. Then the group is
watched for a minute.
"""


@pytest.mark.long
def test_without_ages_a_probe_takes_a_little_and_stops_when_it_comes_back(release, load) -> None:
    with Guest(release, 768, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        # More than half of the memory is in use.
        background = load(guest, "bg", "400M")
        step = background.resident() // 200
        with Daemon(guest, idle="2s", top='goal = "auto"', config=PROBING) as daemon:
            guest.wait_for(lambda: "not watched for a minute" in explain(guest), 30, "a probe that watches", every=2)
            assert background.swapped() == 0 and daemon.sweeps("bg") == []
            guest.wait_for(lambda: daemon.sweeps("bg"), 120, "a step of the probe", every=5)
            first = daemon.sweeps("bg")[0]
            assert first["asked"] <= step and first["freed"] <= 4 * step, first
            assert MIB < background.swapped() <= 4 * step
            assert "is out" in explain(guest) and "probed" in guest.run(["omr", "status"]).stdout
            # The program uses all of its memory, so all that was taken comes back.
            background.process.kill(signal.SIGUSR1)
            assert background.process.line_with("verified", timeout=120)["errors"] == 0
            guest.wait_for(lambda: "too much came back" in explain(guest), 60, "a probe that waits", every=2)
            assert len(daemon.sweeps("bg")) <= 3


def test_a_rule_with_a_time_is_not_probed(release, load) -> None:
    """The control of the test above."""
    rule = PROBING + '[[group]]\nmatch = "bg"\nolder_than = "10m"\n'
    with Guest(release, 768, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        background = load(guest, "bg", "400M")
        with Daemon(guest, idle="2s", top='goal = "auto"', config=rule) as daemon:
            guest.wait_for(lambda: "ages are not known here" in explain(guest), 30, "the reason", every=2)
            guest.run(["sleep", "80"], timeout=120)
            assert background.swapped() == 0 and daemon.sweeps("bg") == []


def explain(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg"]).stdout
