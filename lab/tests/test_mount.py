"""`omr mount`: the original patch's file on kernels that lack it, by its contract."""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omrlab.agent import AgentError
from omrlab.daemon import CLASSES, CONFIG
from omrlab.debian import LAB, DebianGuest
from omrlab.guest import MIB, Disk, Guest, Process, SwapFile

DIR = "/run/cg"

FILE = "memory.swap.reclaim"


def file(group: str) -> str:
    return f"{DIR}/{group}/{FILE}" if group else f"{DIR}/{FILE}"


def mount(guest: Guest, directory: str = DIR) -> Process:
    omr = guest.spawn(["omr", "mount", "--foreground", directory])
    guest.wait_for(lambda: "offers" in omr.stderr(), 30, "mount")
    return omr


@contextmanager
def mounted(release: str, mb_s: float = 60) -> Iterator[tuple[Guest, Process]]:
    with Guest(release, 512, Disk(768, mb_s=mb_s)) as guest:
        guest.shell(f"insmod /modules/fuse.ko; mkdir -p {DIR} /etc/omr")
        guest.write(CONFIG, CLASSES, create=True)
        yield guest, mount(guest)


def freed(guest: Guest, group: str) -> int:
    text = guest.read(file(group))
    assert text.endswith("\n")
    return int(text)


def refused(guest: Guest, path: str, text: str) -> int:
    """The error number of a write."""
    with pytest.raises(AgentError) as caught:
        guest.write(path, text)
    return caught.value.errno


def test_a_write_reclaims_and_the_count_is_read_back(release, load) -> None:
    with mounted(release) as (guest, omr):
        background = load(guest, "bg", "192M")
        # The control: the kernel has no such file.
        with pytest.raises(AgentError):
            guest.read(f"/sys/fs/cgroup/bg/{FILE}")
        assert freed(guest, "bg") == 0
        before = guest.vmstat()["pswpout"]
        guest.shell(f"echo 32M > {file('bg')}", timeout=120)
        assert 32 * MIB <= freed(guest, "bg") < 44 * MIB
        assert 28 * MIB < background.swapped() < 44 * MIB
        assert (guest.vmstat()["pswpout"] - before) * 4096 < 1.25 * 32 * MIB + 4 * MIB
        # Rounded down to pages: nothing.
        guest.write(file("bg"), "4095")
        assert freed(guest, "bg") == 0
        guest.shell(f"echo max > {file('bg')}", timeout=120)
        assert background.resident() < 16 * MIB
        assert freed(guest, "bg") > 128 * MIB
        assert background.errors() == 0


def test_what_is_protected_stays_at_the_root_too(release, load) -> None:
    with mounted(release) as (guest, omr):
        foreground, low, background = load(guest, "fg", "64M"), load(guest, "low", "64M"), load(guest, "bg", "96M")
        guest.write("/sys/fs/cgroup/low/memory.low", "max")
        guest.shell(f"echo max > {file('')}", timeout=120)
        assert freed(guest, "") > 80 * MIB
        assert background.swapped() > 80 * MIB
        assert (foreground.swapped(), low.swapped()) == (0, 0)
        # The control: by its own file it goes, as a group's own protection holds against others only.
        guest.shell(f"echo 16M > {file('fg')}", timeout=120)
        assert foreground.swapped() >= 16 * MIB


def test_errors_are_those_of_a_real_file(release, load) -> None:
    with mounted(release) as (guest, omr):
        guest.group("bg")
        for text in ("", "x", "-1", "1.5M", "5%", "1M swappiness=60"):
            assert refused(guest, file("bg"), f"{text}\n") == errno.EINVAL, text
        assert refused(guest, file("nobody"), "1M") == errno.ENOENT
        script = f"exec 3> {file('bg')}; rmdir /sys/fs/cgroup/bg; echo 1M >&3"
        ended = guest.run(["sh", "-c", script], check=False)
        assert ended.code != 0 and "No such device" in ended.stderr, ended
        # A new group of the old name is another.
        guest.group("bg")
        assert freed(guest, "bg") == 0
        for change in (f"mkdir {DIR}/new", f"rmdir {DIR}/bg", f"rm {file('bg')}", f"chmod 666 {file('bg')}", f"touch {DIR}/x"):
            ended = guest.run(["sh", "-c", change], check=False)
            assert ended.code != 0 and "not permitted" in ended.stderr, (change, ended)
        guest.group("bg/a b/c")
        listed = guest.shell(f"cd {DIR} && find . | sort")
        real = guest.shell("cd /sys/fs/cgroup && find . -name memory.reclaim | sed s/reclaim/swap.reclaim/ | sort")
        assert [line for line in listed.splitlines() if line.endswith(FILE)] == real.splitlines()
        assert "./bg/a b/c\n" in listed


def test_who_may_write_the_kernels_file_may_write_this_one(release, load) -> None:
    with mounted(release) as (guest, omr):
        guest.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", create=True)
        background = load(guest, "bg", "64M")
        attempt = ["su", "user", "-c", f"cat {file('bg')} && echo 8M > {file('bg')}"]
        ended = guest.run(attempt, check=False)
        assert ended.code != 0 and "Permission denied" in ended.stderr, ended
        assert ended.stdout == "0\n" and background.swapped() == 0, ended
        guest.shell("chown 1000 /sys/fs/cgroup/bg/memory.reclaim")
        guest.run(attempt, timeout=120)
        assert background.swapped() >= 8 * MIB
        # It is the write that is delegated, and nothing else.
        assert guest.shell(f"stat -c '%a %u' {file('bg')} {DIR}/bg").split() == ["644", "1000", "555", "0"]


def test_a_signal_ends_it_with_a_partial_count(release, load) -> None:
    with mounted(release, mb_s=20) as (guest, omr):
        background = load(guest, "bg", "256M")
        writer = guest.spawn(["sh", "-c", f"trap : INT; echo max > {file('bg')}; echo ended $?"])
        guest.wait_for(lambda: freed(guest, "bg") > 8 * MIB, 60, "count of the running attempt", every=0.1)
        writer.kill(signal.SIGINT)
        guest.wait_for(lambda: writer.stdout(), 30, "end of the write", every=0.1)
        assert writer.stdout() == "ended 0\n", writer.stderr()
        count = freed(guest, "bg")
        assert 8 * MIB < count < 128 * MIB
        # It has really ended.
        swapped = background.swapped()
        guest.shell("sleep 2")
        assert background.swapped() == swapped
        assert freed(guest, "bg") == count
        # One that is killed leaves nothing behind, and who waits for a turn can be interrupted.
        first = guest.spawn(["sh", "-c", f"echo max > {file('bg')}"])
        guest.wait_for(lambda: background.swapped() > swapped + 8 * MIB, 60, "next attempt", every=0.1)
        second = guest.spawn(["sh", "-c", f"echo 1M > {file('bg')}"])
        guest.shell("sleep 0.5")
        for writer in (second, first):
            writer.kill(signal.SIGKILL)
        assert {writer.wait().signal for writer in (first, second)} == {signal.SIGKILL}
        assert background.resident() > 64 * MIB
        guest.shell(f"echo 1M > {file('bg')}")
        assert 1 * MIB <= freed(guest, "bg") < 8 * MIB


def test_writers_of_one_file_take_turns(load) -> None:
    with mounted("6.12") as (guest, omr):
        background = load(guest, "bg", "192M")
        write = f"echo 24M > {file('bg')}"
        guest.shell(f"{write} & {write} & {write} & wait", timeout=120)
        # Each may send a quarter more, and 4 MiB, to swap than it reclaims.
        assert 72 * MIB <= background.swapped() < 3 * (30 + 4) * MIB
        assert 24 * MIB <= freed(guest, "bg") < 30 * MIB


def test_it_goes_whatever_happens_and_comes_again(load) -> None:
    with mounted("6.12", mb_s=20) as (guest, omr):
        load(guest, "bg", "192M")
        # Twice is once too often.
        ended = guest.run(["omr", "mount", "--foreground", DIR], check=False)
        assert ended.code == 1 and "mounted already" in ended.stderr, ended
        # Somebody works in it, somebody waits for a write: it ends all the same.
        guest.spawn(["sh", "-c", f"cd {DIR}/bg && sleep 600"])
        writer = guest.spawn(["sh", "-c", f"echo max > {file('bg')}; echo ended $?"])
        guest.wait_for(lambda: freed(guest, "bg") > 0, 60, "attempt", every=0.1)
        omr.kill(signal.SIGTERM)
        assert omr.wait().code == 0, omr.stderr()
        guest.wait_for(lambda: writer.stdout() == "ended 0\n", 30, "answer")
        assert DIR not in guest.read("/proc/mounts")
        assert guest.shell(f"ls {DIR}") == ""
        # Killed, it leaves a dead mount, which the next one replaces.
        omr = mount(guest)
        omr.kill(signal.SIGKILL)
        omr.wait()
        assert "not connected" in guest.run(["ls", DIR], check=False).stderr
        omr = mount(guest)
        assert "unmounting what an omr that was killed has left" in omr.stderr()
        assert guest.read("/proc/mounts").count(DIR) == 1
        guest.shell(f"echo 1M > {file('bg')}")
        # Unmounted by somebody else, it ends.
        guest.shell(f"umount -l {DIR}")
        assert omr.wait().code == 0, omr.stderr()
        # The same behind another name of the directory.
        guest.shell(f"ln -s {DIR} /tmp/other")
        for _ in range(2):
            omr = mount(guest, "/tmp/other")
            assert guest.read("/proc/mounts").count(DIR) == 1
            omr.kill(signal.SIGKILL)
            omr.wait()
        omr = mount(guest, "/tmp/other")
        omr.kill(signal.SIGTERM)
        assert omr.wait().code == 0, omr.stderr()
        assert DIR not in guest.read("/proc/mounts")
        # And what cannot be mounted on is said.
        for words, code in (([f"{DIR}/../nowhere"], 1), (["/proc/version"], 2), (["/"], 2), ([], 2)):
            ended = guest.run(["omr", "mount", "--foreground", *words], check=False)
            assert ended.code == code and ended.stderr.startswith(("omr: ", "error: ")), ended


def test_the_service_is_away_while_the_machine_sleeps(packages) -> None:
    with DebianGuest(768, SwapFile(1024, 40), files={"omr.deb": packages[0]}) as guest:
        guest.settle()
        guest.run(["dpkg", "-i", f"{LAB}/omr.deb"], timeout=180)
        assert guest.active("omr-mount") == "inactive"
        guest.run(["systemctl", "start", "omr-mount"])
        path = f"/run/omr-cgroup/system.slice/{FILE}"
        assert guest.read(path) == "0\n"
        guest.shell(f"echo 1M > {path}", timeout=120)
        # What the mounts are when the kernel is about to freeze.
        guest.write("/usr/lib/systemd/system-sleep/zz-test", "#!/bin/sh\nsleep 4\ngrep -c fuse.omr /proc/mounts >> /run/seen\n", create=True)
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/zz-test")
        guest.systemctl_hibernate()
        assert guest.read("/run/seen").split()[0] == "0"
        guest.wait_for(lambda: guest.active("omr-mount") == "active", 60, "mount", every=1)
        guest.wait_for(lambda: "fuse.omr" in guest.read("/proc/mounts"), 30, "mount")
        guest.shell(f"echo 1M > {path}", timeout=120)
        # One that nobody had started is not started by sleeping.
        guest.run(["systemctl", "stop", "omr-mount"])
        assert "fuse.omr" not in guest.read("/proc/mounts")
        guest.systemctl_hibernate()
        assert guest.active("omr-mount") == "inactive"
