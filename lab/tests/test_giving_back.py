"""Somebody leaves, memory younger than its threshold goes, and comes back when somebody comes."""

import json
import signal
from pathlib import Path

import pytest
from conftest import booted
from test_warm import Touched

from omrlab.daemon import CLASSES, LEDGER, QUICK, Daemon
from omrlab.debian import DebianGuest
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Disk, Guest

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

    def __init__(self, guest: Guest, group: str = "omr.service") -> None:
        self.times = 0
        self.process = guest.spawn(["omr-guest", "present"], group=group)

    def leave_or_come(self) -> bool:
        self.times += 1
        self.process.kill(signal.SIGUSR1)
        present: bool = self.process.line_with("present", self.times)["present"]
        return present


@pytest.mark.long
@pytest.mark.seldom
def test_memory_that_left_while_everybody_was_away_is_back_before_it_is_used(load) -> None:
    with Guest(KERNEL, 768, Disk(1024, mb_s=40)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        left = Touched(guest, "bg", "320M")
        filled = guest.monotonic_ns()
        ruled = load(guest, "ruled", "64M")
        with Daemon(guest, idle="2s", top='goal = "auto"', config=AWAY) as daemon:
            person = Person(guest)
            guest.wait_for(lambda: "threshold 4 min: the shortest" in explain(guest), 180, "an observed group", every=5)
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


COMPANION = "omr-give-back@*.service"

# An emulated machine with systemd always has some load.
LOADED = """
free = "5%"
foreground = "1000%"
pressure_cpu = "100%"

[stop]
cpu = "10000%"
"""


@pytest.mark.long
def test_the_packaged_service_gives_back_by_its_companion_and_without_it_nothing_younger_leaves(
    installed: Path,
) -> None:
    with booted(root=installed, mem_mib=768, swap=Disk(1024, mb_s=40)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.shell("systemctl stop omr-presence omr-give-back.socket; systemctl mask --runtime omr-give-back.socket")
        left = Touched(guest, "bg", "320M")
        text = QUICK.format(idle="2s", top='goal = "auto"').replace('window = "2s"', 'window = "2s"' + LOADED)
        guest.shell("mkdir -p /etc/omr/conf.d")
        guest.write("/etc/omr/conf.d/away.toml", text + AWAY, create=True)
        guest.shell("systemctl restart omr")
        guest.group("person")
        person = Person(guest, "person")
        guest.wait_for(lambda: "threshold 4 min: the shortest" in explain(guest), 200, "an observed group", every=5)
        assert not person.leave_or_come()

        # The control: without the companion nothing changes while everybody is away.
        guest.wait_for(lambda: is_away(guest), 90, "an absence", every=3)
        guest.shell("sleep 15")
        assert "giving memory back needs omr-give-back.socket" in guest.run(["omr", "explain"]).stdout
        assert "away:" not in explain(guest)
        assert left.swapped() == 0
        guest.shell("systemctl unmask --runtime omr-give-back.socket; systemctl start omr-give-back.socket")
        guest.wait_for(lambda: "away: memory unused for 2 min" in explain(guest), 60, "a shorter age", every=2)
        guest.wait_for(lambda: left.swapped() > 64 * MIB, 240, "memory that left", every=3)
        assert "give-back.socket" not in guest.run(["omr", "explain"]).stdout
        assert capabilities(guest, "omr") == {"dac_override", "sys_resource"}
        assert capabilities(guest, companion(guest)) == {"dac_read_search", "sys_ptrace", "sys_nice"}

        assert person.leave_or_come()
        line = guest.wait_for(lambda: ledger(guest, "give-back"), 90, "memory that is given back", every=3)[0]
        print(line)
        assert line["stop_reason"] == "done" and line["taken"] > 64 * MIB
        assert left.cached() > 0.9 * line["taken"]
        touched = left.touch()
        print(touched)
        assert touched["major_faults"] < line["taken"] / 4096 / 50
        guest.wait_for(lambda: not companion(guest), 30, "the end of the companion")


def is_away(guest: DebianGuest) -> bool:
    return guest.run(["omr", "status", "--json"]).json()["goal"]["presence"]["is"] == "away"


def companion(guest: DebianGuest) -> str:
    words = guest.shell(f"systemctl list-units --plain --no-legend '{COMPANION}'").split()
    return words[0] if words else ""


def capabilities(guest: DebianGuest, unit: str) -> set[str]:
    """The rights of the unit's process."""
    names = {1: "dac_override", 2: "dac_read_search", 19: "sys_ptrace", 23: "sys_nice", 24: "sys_resource"}
    status = guest.read(f"/proc/{guest.property(unit, 'MainPID')}/status")
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    return {names.get(bit, str(bit)) for bit in range(64) if effective >> bit & 1}


def ledger(guest: DebianGuest, kind: str) -> list[dict]:
    entries = [json.loads(line) for line in guest.read(LEDGER).splitlines()]
    return [entry for entry in entries if entry["kind"] == kind]


def explain(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg"]).stdout


def given_back(daemon: Daemon) -> list[dict]:
    return [entry for entry in daemon.ledger() if entry["kind"] == "give-back"]
