"""Faults of the machine under a running daemon: swap that is removed, MGLRU that is switched off,
a disk that is full. No more is taken than before.
"""

import json
import time

import pytest

from omrlab.daemon import CLASSES, Daemon
from omrlab.guest import COUNTED, KERNEL, MGLRU_SWITCH, MIB, Disk, Guest, Zram

STATE = "/var/lib/omr"
FILE = f"{STATE}/thresholds.json"
OLD = '{"version":2,"groups":{}}'

LEARNING = """
[slo]
warm_up = "10s"
longest = "4m"

[history]
every = "10s"
budget = "10%"

[[group]]
match = "bg"
class = "background"
older_than = "auto"
"""


def explain(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg"]).stdout


def test_swap_that_is_removed_ends_a_sweep_and_its_writes_count(load) -> None:
    with Guest(KERNEL, 512, Disk(512), accelerator=COUNTED, boot_timeout=400) as guest:
        background = load(guest, "bg", "160M")
        with Daemon(guest, idle="2s", config=CLASSES) as daemon:
            device = guest.read("/proc/swaps").splitlines()[1].split()[0]
            in_swap = "cat /sys/fs/cgroup/bg/memory.swap.current"
            guest.shell(f"until [ $({in_swap}) -gt {8 * MIB} ]; do sleep 0.1; done; swapoff {device}", timeout=300)
            guest.wait_for(lambda: daemon.sweeps("bg"), 120, "ledger entry")
            assert background.swapped() == 0
            guest.run(["sleep", "5"])
            sweeps = daemon.sweeps("bg")
            taken = len(sweeps)
            written = sum(amount for _, amount in json.loads(guest.read(f"{STATE}/swap-writes.json"))["writes"])
            assert written >= sum(entry["swapped_out"] for entry in sweeps) > 4 * MIB, sweeps
            # Nothing of an idle machine leaves to nowhere.
            guest.run(["sleep", "60"])
            assert len(daemon.sweeps("bg")) == taken and background.resident() >= 160 * MIB
            # Nobody used what came back, so the group need not be left alone. The control: with
            # swap again, memory leaves again.
            guest.run(["swapon", device])
            guest.run(["sleep", "60"])
            assert background.swapped() > 8 * MIB, explain(guest)
        assert background.errors() == 0


@pytest.mark.long
def test_mglru_that_is_switched_off_and_on_again_takes_thresholds_away_and_brings_them_back(load) -> None:
    with Guest(KERNEL, 768, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        background = load(guest, "bg", "400M")
        with Daemon(guest, idle="2s", top='goal = "auto"', config=LEARNING) as daemon:
            guest.wait_for(lambda: "threshold 4 min" in explain(guest), 60, "a threshold", every=2)
            assert background.swapped() == 0
            guest.write(MGLRU_SWITCH, "n")
            guest.wait_for(lambda: "ages are not known" in explain(guest), 60, "no ages", every=2)
            # A step of a probe is 0.5 %, and there is one in 30 s at most.
            began = time.monotonic()
            guest.wait_for(lambda: daemon.sweeps("bg"), 120, "a step of the probe", every=2)
            steps = daemon.sweeps("bg")
            assert all(step["asked"] <= background.resident() // 150 for step in steps), steps
            assert len(steps) <= 1 + (time.monotonic() - began) / 30, steps
            guest.write(MGLRU_SWITCH, "y")
            guest.wait_for(lambda: "ages are not known" not in explain(guest), 60, "ages", every=2)
            assert "threshold" in explain(guest)
            # No step after that: what is older than the threshold does not exist yet.
            steps = len(daemon.sweeps("bg"))
            guest.run(["sleep", "35"])
            assert len(daemon.sweeps("bg")) == steps, explain(guest)


@pytest.mark.long
def test_a_full_disk_keeps_the_old_thresholds_and_the_daemon_goes_on(load) -> None:
    with Guest(KERNEL, 768, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        load(guest, "bg", "300M")
        guest.shell(f"mkdir -p {STATE} && mount -t tmpfs -o size=256k none {STATE}")
        guest.write(FILE, OLD, create=True)

        def learn_and_end() -> str:
            with Daemon(guest, idle="2s", top='goal = "auto"', config=LEARNING) as daemon:
                # Two agings 2 min apart, and several rounds of the history.
                guest.wait_for(lambda: "threshold 2 min:" in explain(guest), 240, "a verdict", every=5)
                assert daemon.status()["goal"]["goal"] == "auto"
            ended = daemon.process.wait()
            assert ended.code == 0, ended
            return ended.stderr

        guest.shell(f"dd if=/dev/zero of={STATE}/filler bs=4k; sync")
        log = learn_and_end()
        full = [line for line in log.splitlines() if "No space left on device" in line]
        assert len([line for line in full if "thresholds.json" in line]) == 1, log
        assert len([line for line in full if "history" in line]) == 1, log
        assert guest.read(FILE) == OLD
        assert ".tmp" not in guest.shell(f"ls {STATE}")
        # The control: there is room.
        guest.shell(f"rm {STATE}/filler")
        assert "No space left" not in learn_and_end()
        assert "bg" in json.loads(guest.read(FILE))["groups"]
