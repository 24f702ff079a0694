"""Tests of the patched kernel: its selftests, removal of cgroups, freezing, and everything at once.
tools/test kernel runs them.

Tests that need no exact times also run on the debug kernel, where that was built (lab/run kernel
--debug).
"""

import pytest
from kernel_checks import CGROUP, complaints, guest_of, storm

from omrlab.guest import MGLRU_SWITCH, MIB, Disk, Guest, Node, SwapFile

FILE = "memory.swap.reclaim"


@pytest.mark.parametrize("lru", ["mglru", "classic"])
def test_the_selftests_of_the_patched_kernel_pass(checked, lru) -> None:
    with guest_of(checked, 1024, Disk(2560, mb_s=60)) as guest:
        if lru == "classic":
            guest.write(MGLRU_SWITCH, "n")
        ended = guest.run(["test_swap_reclaim"], timeout=900, check=False)
        assert ended.code == 0, ended.stdout
        assert ended.stdout.count("\nok ") == 5 and "# SKIP" not in ended.stdout, ended.stdout
        assert complaints(guest) == []


def removal(patched: str, file: str) -> float:
    """The seconds that rmdir of a group takes while another process reclaims the group. Every mkdir
    of a group has to wait as long.
    """
    with Guest(patched, 768, Disk(1280, mb_s=10)) as guest:
        # The process that filled the memory has ended, so the group can be removed.
        guest.shell("mkdir /run/big; mount -t tmpfs -o size=512M tmpfs /run/big")
        guest.group("gone")
        guest.run(["dd", "if=/dev/urandom", "of=/run/big/file", "bs=1M", "count=256"], group="gone", timeout=120)
        guest.spawn(["omr-guest", "write", f"{CGROUP}/gone/{file}", "200M"])
        guest.wait_for(lambda: guest.vmstat()["pswpout"] > 256, 60, "swapping", every=0.1)
        uptime = "read up _ < /proc/uptime; echo $up"
        began, ended = map(float, guest.shell(f"{uptime}; rmdir {CGROUP}/gone; {uptime}", timeout=120).split())
        assert complaints(guest) == []
        return ended - began


def test_removing_a_group_does_not_wait_for_its_reclaim(patched) -> None:
    ours, control = removal(patched, FILE), removal(patched, "memory.reclaim")
    assert 4 * ours < control, (ours, control)


def test_freezing_ends_a_write_with_success_and_no_reclaim_follows(checked, load) -> None:
    with guest_of(checked, 1024, Disk(2560, mb_s=20)) as guest:
        background = load(guest, "bg", "512M")
        writer = guest.spawn(["omr-guest", "write", f"{CGROUP}/bg/{FILE}", "max"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapping", every=0.1)
        guest.write("/sys/power/pm_test", "freezer")
        guest.write("/sys/power/state", "freeze")
        ended = writer.wait().json()
        assert (ended["written"], ended["errno"]) == (3, None), ended
        count = int(guest.read(f"{CGROUP}/bg/{FILE}"))
        # Pages on their way to the disk count when they are freed, a moment later.
        assert 4 * MIB < count < 256 * MIB
        swapped = background.swapped()
        guest.shell("sleep 2")
        assert background.swapped() == swapped
        assert "Freezing user space processes completed" in guest.shell("dmesg")
        assert complaints(guest) == []


def test_a_guest_hibernates_during_a_write(patched, load) -> None:
    with Guest(patched, 1024, SwapFile(1280, mb_s=40)) as guest:
        background = load(guest, "bg", "384M")
        writer = guest.spawn(["omr-guest", "write", f"{CGROUP}/{FILE}", "max"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapping", every=0.1)
        guest.hibernate_and_resume()
        assert writer.wait().json()["written"] == 3
        assert background.resident() > 64 * MIB
        assert background.errors() == 0


def test_a_write_does_not_send_used_memory_for_ever(patched) -> None:
    """Without a limit on the pages sent, the write would go on until a signal: 64 MiB were sent in
    a minute, and none was freed.
    """
    with Guest(patched, 512, Disk(768, mb_s=1)) as guest:
        guest.group("bg")
        # The load uses all of it again before the disk has written it.
        guest.spawn(["omr-guest", "stress", "32M", "--rate", "512M"], group="bg").line_with("ready")
        before = guest.vmstat()["pswpout"]
        written = guest.run(["omr-guest", "write", f"{CGROUP}/bg/{FILE}", "16M"], timeout=180).json()
        assert written["errno"] is None, written
        assert (guest.vmstat()["pswpout"] - before) * 4096 <= 19 * MIB


def test_a_write_waits_for_a_disk_that_is_slower_than_its_batches(patched, load) -> None:
    """A wait with a deadline of a second gave up here: batches were sent faster than the disk
    could write, and the write ended with a quarter of the amount.
    """
    with Guest(patched, 512, Disk(768, mb_s=0.1)) as guest:
        load(guest, "bg", "64M")
        before = guest.vmstat()["pswpout"]
        written = guest.run(["omr-guest", "write", f"{CGROUP}/bg/{FILE}", "2M"], timeout=300).json()
        assert written["errno"] is None, written
        assert int(guest.read(f"{CGROUP}/bg/{FILE}")) >= 2 * MIB
        assert (guest.vmstat()["pswpout"] - before) * 4096 <= 4 * MIB


def test_a_write_that_was_stopped_before_it_did_anything_goes_on(patched, load) -> None:
    """The second write waits for the first in the kernel, because both use one open file. So its
    signal is pending before it begins. Without a restart it did nothing and succeeded.
    """
    with Guest(patched, 512, Disk(768, mb_s=20)) as guest:
        background = load(guest, "bg", "192M")
        script = f"""exec 3> {CGROUP}/bg/{FILE}
            (echo max >&3) & first=$!
            sleep 1
            (echo 8M >&3; echo $?) & second=$!
            sleep 1
            kill -STOP $first $second
            sleep 1
            kill -CONT $first $second
            wait; cat {CGROUP}/bg/{FILE}"""
        code, count = map(int, guest.shell(script, timeout=180).split())
        assert code == 0 and 8 * MIB <= count < 10 * MIB, (code, count)
        # The signal has ended the first write.
        assert background.resident() > 64 * MIB


def anon(guest: Guest, group: str) -> list[int]:
    """The anonymous memory of a group on each node."""
    lines = guest.read(f"{CGROUP}/{group}/memory.numa_stat").splitlines()
    words = next(line for line in lines if line.startswith("anon ")).split()[1:]
    return [int(word.split("=")[1]) for word in words]


@pytest.mark.parametrize("lru", ["mglru", "classic"])
def test_nodes_give_memory_in_proportion(patched, lru, load) -> None:
    """A batch that goes over the nodes itself took as much from the small node as from the large
    one.
    """
    nodes = (Node(384, "0"), Node(384, "1"))
    with Guest(patched, 768, Disk(768, mb_s=60), nodes=nodes) as guest:
        if lru == "classic":
            guest.write(MGLRU_SWITCH, "n")
        guest.group("bg")
        guest.write(f"{CGROUP}/bg/cgroup.subtree_control", "+memory +cpuset")
        for node, amount in enumerate(("192M", "48M")):
            guest.write(f"{guest.group(f'bg/{node}')}/cpuset.mems", str(node))
            load(guest, f"bg/{node}", amount)
        # The kernel brings its statistics up to date every two seconds.
        guest.shell("sleep 3")
        before = anon(guest, "bg")
        assert before[0] > 180 * MIB and 40 * MIB < before[1] < 60 * MIB, before
        guest.run(["omr-guest", "write", f"{CGROUP}/bg/{FILE}", "60M"], timeout=180)
        given = [was - now for was, now in zip(before, anon(guest, "bg"))]
        assert 56 * MIB < sum(given) < 64 * MIB, given
        # In proportion it is a fifth. A half is the same from both.
        assert 0.1 < given[1] / sum(given) < 0.3, given


def test_the_file_can_be_delegated_like_memory_reclaim(patched) -> None:
    with Guest(patched, 512, Disk(768)) as guest:
        assert {FILE, "memory.reclaim"} <= set(guest.read("/sys/kernel/cgroup/delegate").split())


def test_writes_removals_kills_and_forks_at_once_do_no_harm(checked, load) -> None:
    with guest_of(checked, 1024, Disk(2560, mb_s=60)) as guest:
        storm(guest, load, FILE, "max")


def test_omr_reclaims_through_the_kernels_file(patched, load) -> None:
    with Guest(patched, 512, Disk(768, mb_s=20), data_mib=64) as guest:
        background = load(guest, "bg", "192M")
        assert guest.run(["omr", "doctor", "--json"]).json()["backend"] == FILE
        done = guest.run(["omr", "reclaim", "bg", "64M", "--json"], timeout=120).json()
        assert (done["backend"], done["end"]) == (FILE, "complete"), done
        assert done["swapped_out"] < done["freed"] + 2 * MIB, done
        # With no swap left to use, omr asks memory.reclaim for page cache, because that file can be
        # told to take nothing else.
        guest.write("/etc/omr/omr.toml", '[guard]\nswap_floor = "99%"\n', create=True)
        guest.run(["dd", "if=/dev/urandom", "of=/data/file", "bs=1M", "count=32"], group="bg")
        guest.shell("sync")
        swapped = background.swapped()
        done = guest.run(["omr", "reclaim", "bg", "16M", "--json"], timeout=120).json()
        assert (done["backend"], done["end"]) == (FILE, "complete"), done
        assert done["freed_file"] > 12 * MIB and background.swapped() == swapped, done
        assert background.errors() == 0


def test_a_user_with_memory_reclaim_only_reclaims_through_that_file(patched, load) -> None:
    """systemd delegates memory.reclaim by name, and does not know memory.swap.reclaim."""
    with Guest(patched, 512, Disk(768, mb_s=60)) as guest:
        guest.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", create=True)
        background = load(guest, "bg", "64M")
        guest.shell(f"chown 1000 {CGROUP}/bg/memory.reclaim")
        done = guest.run(["su", "user", "-c", "omr reclaim bg 8M --json"], check=False).json()
        assert (done["backend"], done["end"]) == ("memory.reclaim", "complete"), done
        assert background.swapped() >= 6 * MIB
        # A user of a patched kernel needs no omr mount.
        guest.shell("mkdir /run/cg")
        ended = guest.run(["omr", "mount", "--foreground", "/run/cg"], check=False)
        assert ended.code == 3 and "this kernel has memory.swap.reclaim itself" in ended.stderr, ended
