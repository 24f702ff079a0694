"""`omr prepare burst` on real kernels: a program allocates much memory at once. It does not wait,
and other programs lose no memory.
"""

import signal
from typing import Any

from omrlab.daemon import CLASSES, CONFIG
from omrlab.guest import KERNEL, MIB, Disk, Guest

PARTIAL, USAGE = 4, 2


def burst(guest: Guest, program: Any) -> dict[str, Any]:
    """Starts the burst and waits for its result. The test asks the guest for nothing meanwhile."""
    program.kill(signal.SIGUSR1)
    return program.wait(timeout=300).json()


def test_a_prepared_burst_does_not_stall_and_the_foreground_loses_nothing(release, load) -> None:
    with Guest(release, 512, Disk(1024, mb_s=40)) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        guest.group("fg")
        program = guest.spawn(["omr-guest", "burst", "40%"], group="fg")
        size = program.line_with("ready")["bytes"]
        background = load(guest, "bg", "80%")
        before = guest.group_value("fg", "memory.swap.current")
        done = guest.run(["omr", "prepare", "burst", f"{size}B", "--json"], timeout=240).json()
        assert (done["end"], done["missing"]) == ("reached", 0), done
        assert done["free_after"] >= size > done["free_before"]
        assert guest.group_value("fg", "memory.swap.current") == before
        assert burst(guest, program)["events"]["allocstall"] == 0
        assert background.errors() == 0


def test_without_a_preparation_the_burst_stalls(release, load) -> None:
    """The control: the same guest without a preparation."""
    with Guest(release, 512, Disk(1024, mb_s=40)) as guest:
        guest.group("fg")
        program = guest.spawn(["omr-guest", "burst", "40%"], group="fg")
        size = program.line_with("ready")["bytes"]
        load(guest, "bg", "80%")
        done = guest.run(["omr", "prepare", "burst", f"{size}B", "--dry-run", "--json"]).json()
        assert done["missing"] > 0.5 * size
        assert burst(guest, program)["events"]["allocstall"] > 0


def test_a_deadline_ends_a_preparation_partly(load) -> None:
    with Guest(KERNEL, 512, Disk(1024, mb_s=10)) as guest:
        load(guest, "bg", "80%")
        ended = guest.run(["omr", "prepare", "burst", "300M", "--deadline", "3s", "--json"], check=False)
        done = ended.json()
        assert (ended.code, done["end"], done["why"]) == (PARTIAL, "partly", "timeout"), done
        assert done["free_after"] < 300 * MIB


def test_a_burst_larger_than_the_machine_is_refused(load) -> None:
    with Guest(KERNEL, 384, Disk(512, mb_s=40)) as guest:
        background = load(guest, "bg", "32M")
        ended = guest.run(["omr", "prepare", "burst", "4G"], check=False)
        assert (ended.code, background.swapped()) == (USAGE, 0), ended.stderr
        assert "is the most" in ended.stderr
