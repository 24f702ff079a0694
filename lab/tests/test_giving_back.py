"""Somebody leaves, memory younger than its threshold goes, and comes back when somebody comes."""

import signal

import pytest
from test_warm import Touched

from omrlab.daemon import CLASSES, Daemon
from omrlab.guest import MIB, Disk, Guest

SWITCH = "/sys/kernel/mm/lru_gen/enabled"

THRESHOLD = 240
"""Seconds: the one threshold that is allowed below. Away, memory unused for two minutes may go."""

AWAY = (
    CLASSES
    + """
[[group]]
match = "ruled"
older_than = "4m"

[presence]
away_after = "1m"

[slo]
warm_up = "15s"
shortest = "4m"
longest = "4m"

[history]
every = "10s"
budget = "10%"

[cost]
device_share = "100%"
"""
)


class Person:
    """A person with a session."""

    def __init__(self, guest: Guest) -> None:
        self.times = 0
        self.process = guest.spawn(["omr-guest", "present"], group="omr.service")

    def leave_or_come(self) -> bool:
        self.times += 1
        self.process.kill(signal.SIGUSR1)
        present: bool = self.process.line_with("present", self.times)["present"]
        return present


@pytest.mark.long
def test_memory_that_left_while_everybody_was_away_is_back_before_it_is_used(load) -> None:
    with Guest("6.12", 768, Disk(1024, mb_s=40)) as guest:
        guest.write(SWITCH, "y")
        left = Touched(guest, "bg", "320M")
        filled = guest.monotonic_ns()
        ruled = load(guest, "ruled", "64M")
        with Daemon(guest, idle="2s", top='goal = "auto"', config=AWAY) as daemon:
            person = Person(guest)
            guest.wait_for(lambda: "threshold 4 min: the shortest" in explain(guest), 60, "an observed group", every=5)
            assert not person.leave_or_come()
            guest.wait_for(lambda: left.swapped() > 64 * MIB, 240, "memory that left", every=5)
            # The control: all was younger than the threshold, and a rule's age does not change.
            assert (guest.monotonic_ns() - filled) / 1e9 < THRESHOLD
            assert "away: memory unused for 2 min, its threshold is 4 min" in explain(guest)
            assert ruled.swapped() == 0
            guest.wait_for(lambda: daemon.sweeps("bg"), 60, "the end of the sweep", every=3)

            # The control: while omr is paused, nothing comes back by itself.
            guest.run(["omr", "pause"])
            swapped = left.swapped()
            assert person.leave_or_come()
            guest.shell("sleep 8")
            assert left.swapped() == swapped and left.cached() < swapped / 20
            guest.run(["omr", "resume"])
            guest.wait_for(lambda: given_back(daemon), 60, "memory that is given back", every=3)
            line = given_back(daemon)[0]
            print(line)
            assert line["stop_reason"] == "done" and line["taken"] >= 0.9 * swapped
            assert left.cached() > 0.9 * swapped
            assert "4 min" in explain(guest) and "away:" not in explain(guest)
            touched = left.touch()
            print(touched)
            assert touched["major_faults"] < swapped / 4096 / 50
            assert "given back" in guest.run(["omr", "explain", "bg"]).stdout
            assert "gave back" in guest.run(["omr", "history"]).stdout
        assert ruled.swapped() == 0


def explain(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg"]).stdout


def given_back(daemon: Daemon) -> list[dict]:
    return [entry for entry in daemon.ledger() if entry["kind"] == "give-back"]
