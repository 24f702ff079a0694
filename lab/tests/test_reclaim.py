"""`omr reclaim` on real kernels."""

import signal

import pytest

from omrlab.daemon import CLASSES, CONFIG
from omrlab.guest import MIB, Disk, Guest, Zram

PARTIAL = 4
"""omr's exit code for less than asked."""

SWAPS = {"disk": Disk(512, mb_s=40), "zram": Zram(256)}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS.keys())
def test_a_group_shrinks_by_the_amount_asked_for_and_swaps_little_more(release, swap, load) -> None:
    asked = 64 * MIB

    def took_little_more() -> bool:
        with Guest(release, 384, swap) as guest:
            background, other = load(guest, "bg", "160M"), load(guest, "other", "32M")
            before, swapped_before = background.resident(), guest.vmstat()["pswpout"]
            summary = guest.run(["omr", "reclaim", "bg", "64M", "--json"], timeout=120).json()
            assert before - background.resident() >= 0.95 * asked
            assert summary["freed"] >= 0.8 * asked
            assert other.swapped() == 0
            swapped = (guest.vmstat()["pswpout"] - swapped_before) * 4096
            return max(swapped, summary["freed"]) <= 1.25 * asked

    # Where a busy host makes QEMU's disk late, one write can send all that the group has: the
    # kernel does not count pages on their way as reclaimed. Of 36 guests, six at a time, two sent
    # more than 1.25 x; of 16 guests one at a time, one (6.12). zram is never late.
    attempts = 3 if isinstance(swap, Disk) else 1
    assert any(took_little_more() for _ in range(attempts))


def test_without_omr_the_group_keeps_its_memory(release, load) -> None:
    """The control: nothing else in these guests reclaims memory."""
    with Guest(release, 384, SWAPS["disk"]) as guest:
        background = load(guest, "bg", "160M")
        before = background.resident()
        guest.run(["omr", "reclaim", "bg", "64M", "--dry-run", "--json"])
        guest.shell("sleep 5")
        assert background.resident() >= before
        assert background.swapped() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_reclaim_and_omr_reports_the_amount(release, number, load, trace) -> None:
    with Guest(release, 384, Disk(512, mb_s=8)) as guest:
        background = load(guest, "bg", "160M")
        writes = trace(guest)
        omr = guest.spawn(["omr", "reclaim", "bg", "max", "--json"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapped memory")
        omr.kill(number)
        signalled = guest.monotonic_ns()
        ended = omr.wait()
        assert ended.code == PARTIAL, ended.stderr
        assert 0 < ended.json()["freed"] < 128 * MIB
        guest.shell("sleep 2")
        assert writes.writes(), "the trace must have seen the writes before the signal"
        assert [began for began in writes.writes() if began > signalled] == []


def test_a_group_that_is_removed_is_an_outcome(release, load) -> None:
    with Guest(release, 384, Disk(512, mb_s=8)) as guest:
        background = load(guest, "bg", "160M")
        omr = guest.spawn(["omr", "reclaim", "bg", "max", "--json"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapped memory")
        background.process.kill(signal.SIGKILL)
        background.process.wait()
        guest.shell("rmdir /sys/fs/cgroup/bg")
        ended = omr.wait()
        assert ended.code in (0, PARTIAL), ended.stderr
        assert "panicked" not in ended.stderr


def test_a_walk_of_the_machine_spares_foreground_and_protected_memory(release, load) -> None:
    with Guest(release, 512, Zram(512)) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background, foreground, low = load(guest, "bg", "128M"), load(guest, "fg", "64M"), load(guest, "low", "64M")
        guest.write("/sys/fs/cgroup/low/memory.low", "max")
        ended = guest.run(["omr", "reclaim", "/", "max", "--json"], timeout=120, check=False)
        assert ended.code in (0, PARTIAL), ended.stderr
        assert background.swapped() > 100 * MIB
        assert foreground.swapped() == 0
        assert low.swapped() == 0


def test_one_write_to_the_root_takes_foreground_memory_too(release, load) -> None:
    """The control: in the same guest, the seed's way of reclaiming takes memory from the
    foreground.
    """
    with Guest(release, 512, Zram(512)) as guest:
        load(guest, "bg", "128M")
        foreground = load(guest, "fg", "64M")
        guest.run(["omr-guest", "seed-reclaim", "/", "100%"], timeout=120)
        assert foreground.swapped() > 16 * MIB
