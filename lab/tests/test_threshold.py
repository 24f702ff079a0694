"""Learned thresholds (`older_than = "auto"`) on a real kernel."""

import json
import signal

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Guest, Zram

FILE = "/var/lib/omr/thresholds.json"

LEARNING = """
[slo]
warm_up = "15s"
longest = "4m"

[history]
every = "10s"
budget = "10%"

[[group]]
match = "bg"
class = "background"
older_than = "auto"
"""

COLD, HOT = 180 * MIB, 120 * MIB


@pytest.mark.long
def test_a_threshold_is_learned_from_use_and_rises_when_memory_comes_back(load) -> None:
    with Guest(KERNEL, 768, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        # A group of more than 256 MiB, which each aging judges. Each hot page is used every second.
        background = load(guest, "bg", f"{(COLD + HOT) // MIB}M", "--hot", "40")
        with Daemon(guest, idle="2s", config=LEARNING) as daemon:
            assert "only memory unused for a learned time is reclaimed" in explain(guest)
            # The control: nothing is reclaimed before the threshold is known to be right.
            guest.wait_for(lambda: "threshold 4 min: not observed yet" in explain(guest), 60, "a new group", every=5)
            assert background.swapped() == 0 and daemon.sweeps("bg") == []

            guest.wait_for(lambda: background.swapped() > 0.9 * COLD, 600, "memory that left", every=20)
            assert "threshold 2 min:" in explain(guest)
            assert status(guest)["by_age"]["learned"]
            assert background.swapped() <= 1.03 * COLD

            # Somebody uses what left, which no guess could foresee.
            background.process.kill(signal.SIGUSR1)
            guest.wait_for(lambda: "threshold 4 min" in explain(guest), 200, "a longer threshold", every=5)
            assert "too much came back" in explain(guest) or "was wrong a while ago" in explain(guest)
        # It survives a restart.
        daemon.process.wait()
        saved = json.loads(guest.read(FILE))["groups"]["bg"]["threshold"]
        assert saved["step"] == 1
        with Daemon(guest, idle="2s", config=LEARNING.replace('"4m"', '"8m"')):
            guest.wait_for(lambda: "threshold 4 min" in explain(guest), 60, "the threshold of before", every=2)


def explain(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg"]).stdout


def status(guest: Guest) -> dict:
    groups = guest.run(["omr", "status", "--json"]).json()["groups"]
    return next(group for group in groups if group["group"].strip("/") == "bg")
