"""The contract of memory.swap.reclaim, for both of its providers: the patched kernel, and `omr
mount` on kernels that lack the file.

Tests on the patched kernel run where that kernel was built (make kernel).
"""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from omrlab.agent import AgentError
from omrlab.daemon import CONFIG
from omrlab.guest import MGLRU_SWITCH, MIB, Disk, Guest, Zram
from omrlab.mount import DIR, FILE, mount, prepare
from omrlab.patched import RELEASE

CGROUP = "/sys/fs/cgroup"


@dataclass(frozen=True)
class Place:
    """The place of the file: a guest, and the provider of the file."""

    guest: Guest
    patched: bool

    def file(self, group: str) -> str:
        directory = CGROUP if self.patched else DIR
        return f"{directory}/{group}/{FILE}" if group else f"{directory}/{FILE}"

    def freed(self, group: str) -> int:
        text = self.guest.read(self.file(group))
        assert text.endswith("\n")
        return int(text)

    def refused(self, group: str, text: str) -> int:
        """The error number of a write."""
        with pytest.raises(AgentError) as caught:
            self.guest.write(self.file(group), text)
        return caught.value.errno

    def bound(self, amount: int) -> int:
        """The most that may go to the disk when this amount is to be reclaimed."""
        return amount + 2 * MIB if self.patched else amount * 5 // 4 + 4 * MIB


@contextmanager
def offered(release: str, mb_s: float = 60) -> Iterator[Place]:
    with Guest(release, 512, Disk(768, mb_s=mb_s)) as guest:
        patched = release.startswith(RELEASE)
        if not patched:
            prepare(guest)
            mount(guest)
        yield Place(guest, patched)


def test_a_write_reclaims_and_the_count_is_read_back(offering, load) -> None:
    with offered(offering) as place:
        guest = place.guest
        background = load(guest, "bg", "192M")
        assert place.freed("bg") == 0
        before = guest.vmstat()["pswpout"]
        guest.shell(f"echo 32M > {place.file('bg')}", timeout=120)
        assert 32 * MIB <= place.freed("bg") < place.bound(32 * MIB)
        assert 28 * MIB < background.swapped() < place.bound(32 * MIB)
        assert (guest.vmstat()["pswpout"] - before) * 4096 < place.bound(32 * MIB)
        # The kernel rounds down to pages, so this is nothing.
        guest.write(place.file("bg"), "4095")
        assert place.freed("bg") == 0
        guest.shell(f"echo max > {place.file('bg')}", timeout=120)
        assert background.resident() < 16 * MIB
        assert place.freed("bg") > 128 * MIB
        assert background.errors() == 0


def test_memory_reclaim_sends_more_than_was_asked_for(offering, load) -> None:
    """The control of the test above: the same amount written to memory.reclaim sends more to a slow
    disk.
    """
    with Guest(offering, 512, Disk(768, mb_s=10)) as guest:
        load(guest, "bg", "192M")
        if not offering.startswith(RELEASE):
            with pytest.raises(AgentError):
                guest.read(f"{CGROUP}/bg/{FILE}")
        before = guest.vmstat()["pswpout"]
        guest.shell(f"echo 32M > {CGROUP}/bg/memory.reclaim || true", timeout=120)
        assert (guest.vmstat()["pswpout"] - before) * 4096 > 48 * MIB


@pytest.mark.parametrize("protection", ["min", "low"])
def test_a_write_to_the_root_spares_protected_groups(offering, protection, load) -> None:
    with offered(offering) as place:
        guest = place.guest
        kept, background = load(guest, "kept", "64M"), load(guest, "bg", "96M")
        guest.write(f"{CGROUP}/kept/memory.{protection}", "max")
        guest.shell(f"echo max > {place.file('')}", timeout=120)
        assert place.freed("") > 80 * MIB
        assert background.swapped() > 80 * MIB
        assert kept.swapped() == 0
        # The control: a write to the group's own file reclaims its memory. The protection of a
        # group holds against reclaim of other groups only.
        guest.shell(f"echo 16M > {place.file('kept')}", timeout=120)
        assert kept.swapped() >= 16 * MIB


@pytest.mark.parametrize("protection", ["min", "low"])
def test_a_write_to_a_group_spares_protected_groups_below_it(offering, protection, load) -> None:
    with offered(offering) as place:
        guest = place.guest
        guest.group("work")
        guest.write(f"{CGROUP}/work/cgroup.subtree_control", "+memory")
        kept = load(guest, "work/kept", "64M")
        # Linux 7.3: the counts of a group whose memory.stat is read while the groups below it grow
        # are behind by most of that growth, for up to 2 s.
        read = f"while read first < {CGROUP}/work/memory.stat; do :; done"
        reader = guest.spawn(["sh", "-c", read])
        background = load(guest, "work/bg", "96M")
        reader.kill(signal.SIGKILL)
        guest.write(f"{CGROUP}/work/kept/memory.{protection}", "max")
        guest.shell(f"echo max > {place.file('work')}", timeout=120)
        assert background.swapped() > 80 * MIB
        assert kept.swapped() <= MIB
        # The control: without protection the same write reclaims it.
        guest.write(f"{CGROUP}/work/kept/memory.{protection}", "0")
        guest.shell(f"echo 32M > {place.file('work')}", timeout=120)
        assert kept.swapped() >= 16 * MIB


def test_amounts_are_parsed_as_by_the_kernel(offering) -> None:
    with offered(offering) as place:
        guest = place.guest
        guest.group("bg")
        for text in ("0", "4096", "4k", "0x1000", "010000", "  64K  ", "1M", "1e", "max"):
            guest.write(place.file("bg"), f"{text}\n")
        for text in (
            "",
            "x",
            "-1",
            "1.5M",
            "5%",
            "1Mb",
            "1M 1M",
            "1M swappiness=60",
            "1M older_than=x",
            "older_than=1",
        ):
            assert place.refused("bg", f"{text}\n") == errno.EINVAL, text
        assert place.refused("nobody", "1M") == errno.ENOENT
        script = f"exec 3> {place.file('bg')}; rmdir {CGROUP}/bg; echo 1M >&3"
        ended = guest.run(["sh", "-c", script], check=False)
        assert ended.code != 0 and "No such device" in ended.stderr, ended
        # A new group of the same name is another group, with a count of its own.
        guest.group("bg")
        assert place.freed("bg") == 0


def test_a_user_with_memory_reclaim_may_write_this_file(offering, load) -> None:
    with offered(offering) as place:
        guest = place.guest
        guest.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", create=True)
        background = load(guest, "bg", "64M")
        attempt = ["su", "user", "-c", f"cat {place.file('bg')} && echo 8M > {place.file('bg')}"]
        ended = guest.run(attempt, check=False)
        assert ended.code != 0 and "Permission denied" in ended.stderr, ended
        assert ended.stdout == "0\n" and background.swapped() == 0, ended
        guest.shell(f"chown 1000 {place.file('bg') if place.patched else f'{CGROUP}/bg/memory.reclaim'}")
        guest.run(attempt, timeout=120)
        assert background.swapped() >= 8 * MIB
        # Only the write to the file is delegated.
        assert guest.shell(f"stat -c '%a %u' {place.file('bg')}").split() == ["644", "1000"]


def test_older_than_reclaims_only_memory_of_that_age(offering, load) -> None:
    with offered(offering) as place:
        guest = place.guest
        guest.group("bg")
        if place.patched:
            # Only omr mount has this key: see patches/README.md.
            assert place.refused("bg", "1M older_than=3") == errno.EINVAL
            return
        guest.write(f"{CGROUP}/bg/cgroup.subtree_control", "+memory")
        cold, hot = load(guest, "bg/cold", "64M"), load(guest, "bg/hot", "48M", "--hot", "100")
        guest.write(MGLRU_SWITCH, "n")
        assert place.refused("bg", "1M older_than=3") == errno.EOPNOTSUPP
        guest.write(MGLRU_SWITCH, "y")
        # Ages the group at the beginning, after 4 s and after 8 s.
        guest.run(["omr", "wss", "bg", "--window", "8s"], timeout=60)
        place.guest.write(place.file("bg"), "max older_than=3600")
        assert (place.freed("bg"), cold.swapped(), hot.swapped()) == (0, 0, 0)
        guest.shell(f"echo 16M older_than=4 > {place.file('bg')}", timeout=120)
        assert 15 * MIB <= place.freed("bg") <= 18 * MIB
        guest.shell(f"echo max older_than=4 > {place.file('bg')}", timeout=120)
        assert cold.swapped() >= 0.95 * cold.bytes
        assert hot.swapped() <= 2 * MIB
        # The control: without an age, hot memory leaves, too.
        guest.shell(f"echo 32M > {place.file('bg')}", timeout=120)
        assert hot.swapped() >= 16 * MIB
        assert cold.errors() == 0


AGE_ONCE = r"""
    set -- $(awk '$1 == "memcg" { mine = $3 == "/bg"; if (mine) id = $2 }
        mine && $1 ~ /^[0-9]+$/ { youngest = $1 }
        END { print id, youngest }' /sys/kernel/debug/lru_gen)
    echo "+ $1 0 $2" > /sys/kernel/debug/lru_gen
"""
"""Ages the group bg once, so that pages used since the last aging get a younger generation."""


def test_omr_goes_on_while_the_kernel_passes_pages_that_were_used(patched, load) -> None:
    """Such pages lie before those that can be freed, and the alarm ends many writes meanwhile."""
    with Guest(patched, 1024, Zram(1024)) as guest:
        guest.write(CONFIG, "[sweep]\nwrite_time = '1ms'\n", create=True)
        background = load(guest, "bg", "700M", "--compressible", "80")
        guest.shell(AGE_ONCE)
        assert background.errors() == 0
        guest.shell(AGE_ONCE)
        done = guest.run(["omr", "reclaim", "bg", "600M", "--json"], timeout=120, check=False).json()
        assert done["end"] == "complete" and done["freed"] > 590 * MIB, done
        passed = int(guest.shell(f"sed -n 's/^pgrefill //p' {CGROUP}/bg/memory.stat")) * 4096
        assert passed > 512 * MIB, "the control: most of the group was passed first"
        assert background.errors() == 0


def test_a_signal_ends_a_write_with_a_partial_count(offering, load) -> None:
    with offered(offering, mb_s=20) as place:
        guest = place.guest
        background = load(guest, "bg", "256M")
        writer = guest.spawn(["sh", "-c", f"trap : INT; echo max > {place.file('bg')}; echo ended $?"])
        guest.wait_for(lambda: place.freed("bg") > 8 * MIB, 60, "count of the running attempt", every=0.1)
        writer.kill(signal.SIGINT)
        guest.wait_for(lambda: writer.stdout(), 30, "end of the write", every=0.1)
        assert writer.stdout() == "ended 0\n", writer.stderr()
        count = place.freed("bg")
        assert 8 * MIB < count < 128 * MIB
        # No reclaim goes on after the write.
        swapped = background.swapped()
        guest.shell("sleep 2")
        assert background.swapped() == swapped
        assert place.freed("bg") == count
        # A killed writer leaves nothing behind. A signal also ends the wait of a second writer.
        first = guest.spawn(["sh", "-c", f"echo max > {place.file('bg')}"])
        guest.wait_for(lambda: background.swapped() > swapped + 8 * MIB, 60, "next attempt", every=0.1)
        second = guest.spawn(["sh", "-c", f"echo 1M > {place.file('bg')}"])
        guest.shell("sleep 0.5")
        for writer in (second, first):
            writer.kill(signal.SIGKILL)
        assert first.wait().signal == signal.SIGKILL
        # The patched kernel lets both write at once, so the second one may have ended by itself.
        assert second.wait().signal == signal.SIGKILL or place.patched
        assert background.resident() > 64 * MIB
        guest.shell(f"echo 1M > {place.file('bg')}")
        assert 1 * MIB <= place.freed("bg") < 8 * MIB


def test_writers_of_one_file_do_not_mix_their_counts(offering, load) -> None:
    """With omr mount they take turns."""
    with offered(offering) as place:
        guest = place.guest
        background = load(guest, "bg", "192M")
        write = f"echo 24M > {place.file('bg')}"
        guest.shell(f"{write} & {write} & {write} & wait", timeout=120)
        # On the patched kernel they run at once. One may free what another has sent, and the other
        # may end early.
        least = 12 * MIB if place.patched else 24 * MIB
        assert 3 * least <= background.swapped() < 3 * place.bound(24 * MIB)
        assert least <= place.freed("bg") < place.bound(24 * MIB)
