"""`omr mount`: the mount itself. test_swap_reclaim.py tests the contract of its files."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omrlab.debian import DebianGuest
from omrlab.guest import KERNEL, MIB, Disk, Guest, Process, SwapFile
from omrlab.mount import DIR, FILE, mount, prepare


def file(group: str) -> str:
    return f"{DIR}/{group}/{FILE}" if group else f"{DIR}/{FILE}"


@contextmanager
def mounted(release: str, mb_s: float = 60) -> Iterator[tuple[Guest, Process]]:
    with Guest(release, 512, Disk(768, mb_s=mb_s)) as guest:
        prepare(guest)
        yield guest, mount(guest)


def freed(guest: Guest, group: str) -> int:
    text = guest.read(file(group))
    assert text.endswith("\n")
    return int(text)


def test_a_write_to_the_root_spares_foreground_groups(release, load) -> None:
    with mounted(release) as (guest, _):
        foreground, background = load(guest, "fg", "64M"), load(guest, "bg", "96M")
        guest.shell(f"echo max > {file('')}", timeout=120)
        assert background.swapped() > 80 * MIB
        assert foreground.swapped() == 0
        # The control: a write to the group's own file reclaims its memory.
        guest.shell(f"echo 16M > {file('fg')}", timeout=120)
        assert foreground.swapped() >= 16 * MIB


def test_the_mount_allows_no_change_but_writes_to_its_files(release) -> None:
    with mounted(release) as (guest, _):
        guest.group("bg")
        for change in (
            f"mkdir {DIR}/new",
            f"rmdir {DIR}/bg",
            f"rm {file('bg')}",
            f"chmod 666 {file('bg')}",
            f"touch {DIR}/x",
        ):
            ended = guest.run(["sh", "-c", change], check=False)
            assert ended.code != 0 and "not permitted" in ended.stderr, (change, ended)
        assert guest.shell(f"stat -c '%a %u' {DIR}/bg").split() == ["555", "0"]
        guest.group("bg/a b/c")
        listed = guest.shell(f"cd {DIR} && find . | sort")
        real = guest.shell("cd /sys/fs/cgroup && find . -name memory.reclaim | sed s/reclaim/swap.reclaim/ | sort")
        assert [line for line in listed.splitlines() if line.endswith(FILE)] == real.splitlines()
        assert "./bg/a b/c\n" in listed


def test_the_mount_ends_in_every_case_and_can_be_made_again(load) -> None:
    with mounted(KERNEL, mb_s=20) as (guest, omr):
        load(guest, "bg", "192M")
        # A second mount is refused.
        ended = guest.run(["omr", "mount", "--foreground", DIR], check=False)
        assert ended.code == 1 and "mounted already" in ended.stderr, ended
        # A process has its working directory in the mount, and another process waits for a write.
        # The mount ends nevertheless.
        guest.spawn(["sh", "-c", f"cd {DIR}/bg && sleep 600"])
        writer = guest.spawn(["sh", "-c", f"echo max > {file('bg')}; echo ended $?"])
        guest.wait_for(lambda: freed(guest, "bg") > 0, 60, "attempt", every=0.1)
        omr.kill(signal.SIGTERM)
        assert omr.wait().code == 0, omr.stderr()
        guest.wait_for(lambda: writer.stdout() == "ended 0\n", 30, "answer")
        assert DIR not in guest.read("/proc/mounts")
        assert guest.shell(f"ls {DIR}") == ""
        # A killed omr mount leaves a dead mount. The next omr mount replaces it.
        omr = mount(guest)
        omr.kill(signal.SIGKILL)
        omr.wait()
        assert "not connected" in guest.run(["ls", DIR], check=False).stderr
        omr = mount(guest)
        assert "unmounting the mount of an omr that was killed" in omr.stderr()
        assert guest.read("/proc/mounts").count(DIR) == 1
        guest.shell(f"echo 1M > {file('bg')}")
        # omr mount ends when another program unmounts it.
        guest.shell(f"umount -l {DIR}")
        assert omr.wait().code == 0, omr.stderr()
        # The same through another name of the directory.
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
        # omr mount refuses other targets with a message.
        for words, code in (([f"{DIR}/../nowhere"], 1), (["/proc/version"], 2), (["/"], 2), ([], 2)):
            ended = guest.run(["omr", "mount", "--foreground", *words], check=False)
            assert ended.code == code and ended.stderr.startswith(("omr: ", "error: ")), ended


@pytest.mark.long
@pytest.mark.seldom
def test_the_mount_service_is_off_while_the_machine_sleeps(installed) -> None:
    with DebianGuest(768, SwapFile(1024, 40), root=installed) as guest:
        guest.settle()
        assert guest.active("omr-mount") == "inactive"
        guest.run(["systemctl", "start", "omr-mount"])
        path = f"/run/omr-cgroup/system.slice/{FILE}"
        assert guest.read(path) == "0\n"
        guest.shell(f"echo 1M > {path}", timeout=120)
        # Counts the mounts just before the kernel freezes processes.
        guest.write(
            "/usr/lib/systemd/system-sleep/zz-test",
            "#!/bin/sh\nsleep 4\ngrep -c fuse.omr /proc/mounts >> /run/seen\n",
            create=True,
        )
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/zz-test")
        guest.systemctl_hibernate()
        assert guest.read("/run/seen").split()[0] == "0"
        guest.wait_for(lambda: guest.active("omr-mount") == "active", 60, "mount", every=1)
        guest.wait_for(lambda: "fuse.omr" in guest.read("/proc/mounts"), 30, "mount")
        guest.shell(f"echo 1M > {path}", timeout=120)
        # Sleep does not start a service that was not running.
        guest.run(["systemctl", "stop", "omr-mount"])
        assert "fuse.omr" not in guest.read("/proc/mounts")
        guest.systemctl_hibernate()
        assert guest.active("omr-mount") == "inactive"
