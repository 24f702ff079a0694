"""Tests of the kernel with patches/7.3: its selftest, the keys of memory.reclaim, and how soon a
signal ends a write. Without the keys that kernel is the control. tools/test kernel runs them.

Tests that need no exact times also run on the debug kernel, where that was built (lab/run kernel
--release 7.3 --debug).
"""

import signal
from typing import Any

import pytest
from kernel_checks import CGROUP, complaints, guest_of, storm

from omrlab.guest import MGLRU_SWITCH, MIB, Disk, Guest, Node, Zram
from omrlab.mount import DIR, FILE, mount, prepare

KEY = "writeback=wait"


def classic(guest: Guest) -> None:
    guest.write(MGLRU_SWITCH, "n")


def sent(guest: Guest) -> int:
    """Bytes that went to swap since boot."""
    return guest.vmstat()["pswpout"] * 4096


def reclaim(guest: Guest, group: str, text: str, *options: str) -> dict[str, Any]:
    """A write to memory.reclaim by a process outside the group, with the bytes that it sent."""
    before = sent(guest)
    command = ["omr-guest", "write", f"{CGROUP}/{group}/memory.reclaim", text, *options]
    written: dict[str, Any] = guest.run(command, timeout=300).json()
    return written | {"sent": sent(guest) - before}


@pytest.mark.parametrize("lru", ["mglru", "classic"])
@pytest.mark.parametrize("swap", [Disk(1536, mb_s=60), Zram(768)], ids=["disk", "zram"])
def test_the_selftest_of_the_keys_passes(keyed_checked, swap, lru) -> None:
    with guest_of(keyed_checked, 1024, swap) as guest:
        if lru == "classic":
            classic(guest)
        ended = guest.run(["test_memcg_reclaim"], timeout=900, check=False)
        assert ended.code == 0, ended.stdout
        assert ended.stdout.count("\nok ") == 4 and "# SKIP" not in ended.stdout, ended.stdout
        assert complaints(guest) == []


@pytest.mark.parametrize("lru", ["mglru", "classic"])
def test_a_slow_disk_is_sent_what_was_asked_for(keyed, lru, load) -> None:
    """Without the key it is sent several times as much."""
    with Guest(keyed, 768, Disk(1536, mb_s=20)) as guest:
        if lru == "classic":
            classic(guest)
        background = load(guest, "bg", "384M")
        current = background.resident()
        written = reclaim(guest, "bg", f"32M {KEY}")
        freed = current - background.resident()
        assert written["errno"] is None, written
        assert 31 * MIB <= freed <= 34 * MIB, freed
        assert 31 * MIB <= written["sent"] <= 33 * MIB, written
        control = reclaim(guest, "bg", "32M")
        assert control["sent"] > 64 * MIB, control
        assert background.errors() == 0
        assert complaints(guest) == []


def test_memory_in_use_is_not_sent_for_ever(keyed) -> None:
    """A page that is used again counts, so the write ends with EAGAIN."""
    with Guest(keyed, 512, Disk(768, mb_s=1)) as guest:
        guest.group("bg")
        # The load uses all of it again before the disk has written it.
        guest.spawn(["omr-guest", "stress", "32M", "--rate", "512M"], group="bg").line_with("ready")
        written = reclaim(guest, "bg", f"8M {KEY}")
        assert written["sent"] <= 9 * MIB, written


@pytest.mark.parametrize("lru", ["mglru", "classic"])
def test_two_nodes_together_give_what_was_asked_for(keyed, lru, load) -> None:
    """One node may give all of it, as on an unpatched kernel: reclaim begins at the writer's."""
    nodes = (Node(384, "0"), Node(384, "1"))
    with Guest(keyed, 768, Disk(1536, mb_s=60), nodes=nodes) as guest:
        if lru == "classic":
            classic(guest)
        guest.group("bg")
        guest.write(f"{CGROUP}/bg/cgroup.subtree_control", "+memory +cpuset")
        loads = []
        for node in range(2):
            guest.write(f"{guest.group(f'bg/{node}')}/cpuset.mems", str(node))
            loads.append(load(guest, f"bg/{node}", "192M"))
        before = [one.resident() for one in loads]
        written = reclaim(guest, "bg", f"64M {KEY}")
        given = [was - one.resident() for was, one in zip(before, loads)]
        assert 63 * MIB <= sum(given) <= 67 * MIB and written["sent"] <= 66 * MIB, (given, written)
        # The file of a node knows the key, too, and takes from its node only.
        before = [one.resident() for one in loads]
        guest.run(["omr-guest", "write", "/sys/devices/system/node/node1/reclaim", f"16M {KEY}"], timeout=180)
        given = [was - one.resident() for was, one in zip(before, loads)]
        assert given[0] < 2 * MIB, given


def test_a_signal_ends_a_write_over_many_groups(keyed, load) -> None:
    with Guest(keyed, 1024, Disk(1536, mb_s=20)) as guest:
        guest.group("bg")
        guest.write(f"{CGROUP}/bg/cgroup.subtree_control", "+memory")
        for number in range(20):
            load(guest, f"bg/{number}", "24M")
        for text in (f"1G {KEY}", "1G"):
            written = reclaim(guest, "bg", text, "--stop-after", "300ms")
            assert written["errno"] == 4 and written["stopped_ns"], written  # EINTR


def test_removing_a_group_does_not_wait_for_its_reclaim(keyed) -> None:
    """The writer pins the file, and removal waits for the writer with a lock that every other
    removal needs. 200 MiB take this disk 20 s.
    """
    with Guest(keyed, 768, Disk(1280, mb_s=10)) as guest:
        # The process that filled the memory has ended, so the group can be removed.
        guest.shell("mkdir /run/big; mount -t tmpfs -o size=512M tmpfs /run/big")
        guest.group("gone")
        guest.run(["dd", "if=/dev/urandom", "of=/run/big/file", "bs=1M", "count=256"], group="gone", timeout=120)
        writer = guest.spawn(["omr-guest", "write", f"{CGROUP}/gone/memory.reclaim", f"200M {KEY}"])
        guest.wait_for(lambda: guest.vmstat()["pswpout"] > 256, 60, "swapping", every=0.1)
        guest.run(["rmdir", f"{CGROUP}/gone"], timeout=120)
        assert writer.wait().json()["errno"] == 11  # EAGAIN
        assert guest.vmstat()["pswpout"] * 4096 < 128 * MIB
        assert complaints(guest) == []


@pytest.mark.parametrize("lru", ["mglru", "classic"])
def test_writes_removals_kills_and_forks_at_once_do_no_harm(keyed_checked, lru, load) -> None:
    with guest_of(keyed_checked, 1024, Disk(2560, mb_s=60)) as guest:
        if lru == "classic":
            classic(guest)
        storm(guest, load, "memory.reclaim", "1G", f" {KEY}")


def test_freezing_and_stopping_do_no_harm(keyed_checked, load) -> None:
    """A stopped writer goes on: the system call starts again."""
    with guest_of(keyed_checked, 768, Disk(1280, mb_s=20)) as guest:
        background = load(guest, "bg", "384M")
        writer = guest.spawn(["omr-guest", "write", f"{CGROUP}/bg/memory.reclaim", f"64M {KEY}"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapping", every=0.1)
        writer.kill(signal.SIGSTOP)
        guest.shell("sleep 1")
        swapped = background.swapped()
        guest.shell("sleep 1")
        assert background.swapped() == swapped
        writer.kill(signal.SIGCONT)
        assert writer.wait().json()["errno"] is None
        assert background.errors() == 0
        assert complaints(guest) == []


def test_huge_pages_are_sent_as_asked_for_too(keyed, load) -> None:
    """Debian's kernel uses huge pages for all memory, and without the key sends all there is."""
    with Guest(keyed, 768, Disk(1536, mb_s=20)) as guest:
        guest.write("/sys/kernel/mm/transparent_hugepage/enabled", "always")
        background = load(guest, "bg", "384M")
        assert guest.vmstat()["thp_fault_alloc"] > 100
        written = reclaim(guest, "bg", f"32M {KEY}")
        assert written["errno"] is None and 31 * MIB <= written["sent"] <= 35 * MIB, written
        control = reclaim(guest, "bg", "32M")
        assert control["sent"] > 64 * MIB, control
        assert background.errors() == 0
        assert complaints(guest) == []


def test_omr_uses_the_key(keyed, load) -> None:
    """A sweep and a write to the file of `omr mount` send what they free."""
    with Guest(keyed, 768, Disk(1536, mb_s=10)) as guest:
        prepare(guest)
        mount(guest)
        loads = {name: load(guest, name, "160M") for name in ("swept", "written", "control")}
        checks = guest.run(["omr", "doctor", "--json"], check=False).json()["checks"]
        assert any(check["name"] == "memory.reclaim" and KEY in check["found"] for check in checks), checks
        for name, command in (
            ("swept", ["omr", "reclaim", "swept", "64M"]),
            ("written", ["omr-guest", "write", f"{DIR}/written/{FILE}", "64M"]),
        ):
            before = sent(guest)
            guest.run(command, group="writer", timeout=300)
            assert 62 * MIB <= loads[name].swapped() <= 68 * MIB
            assert sent(guest) - before <= 68 * MIB
        # The control: without the key the disk is slow enough that more is sent.
        assert reclaim(guest, "control", "64M")["sent"] > 96 * MIB
        assert complaints(guest) == []
