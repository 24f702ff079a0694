"""What the tests of both patched kernels share: a guest, the kernel's complaints, much at once."""

import re
import signal
from typing import Any

from omrlab.guest import BOOT_TIMEOUT, MIB, Disk, Guest, Zram

CGROUP = "/sys/fs/cgroup"


def guest_of(release: str, mem: int, swap: Disk | Zram) -> Guest:
    """A guest with this kernel. KASAN needs more memory and more time."""
    if release.endswith("-debug"):
        return Guest(release, 1024 + mem, swap, boot_timeout=4 * BOOT_TIMEOUT)
    return Guest(release, mem, swap)


def complaints(guest: Guest) -> list[str]:
    """The messages of KASAN, lockdep, the watchdogs and assertions."""
    lines = guest.shell("dmesg").splitlines()
    return [line for line in lines if re.search(r"\b(WARNING|BUG|INFO: (possible|task|rcu)|DEADLOCK)\b|stall", line)]


def storm(guest: Guest, load: Any, file: str, everything: str, key: str = "") -> None:
    """Writes to a file of groups, `key` behind each amount, while memory is used, groups are
    removed, and processes fork and are killed. No word may change, nothing protected may leave, and
    the kernel may not complain.
    """

    def write(group: str, amount: str, *options: str) -> str:
        return f"omr-guest write {CGROUP}/{group}{file} '{amount}{key}' {' '.join(options)}"

    kept, background = load(guest, "kept", "64M"), load(guest, "bg", "256M")
    guest.write(f"{CGROUP}/kept/memory.min", "max")
    guest.group("oom")
    guest.write(f"{CGROUP}/oom/memory.max", "16M")
    guest.write(f"{CGROUP}/oom/memory.swap.max", "0")
    guest.shell("mkdir /run/big; mount -t tmpfs -o size=512M tmpfs /run/big")
    scripts = {
        "of one group, stopped": f"for i in $(seq 20); do {write('bg/', everything, '--stop-after', '300ms')}; done",
        "of one group, at once": f"for i in $(seq 20); do {write('bg/', '4M')}; done",
        "of the root": f"for i in $(seq 10); do {write('', '8M')}; done",
        "removal": f"""for i in $(seq 20); do
            mkdir {CGROUP}/storm
            sh -c 'echo $$ > {CGROUP}/storm/cgroup.procs
                dd if=/dev/urandom of=/run/big/storm bs=1M count=8 2> /dev/null'
            {write("storm/", everything)} & rmdir {CGROUP}/storm || exit 1; wait; rm /run/big/storm; done""",
        "fork": "for i in $(seq 1000); do true & done; wait",
        "out of memory": "for i in $(seq 5); do omr-guest in oom -- omr-guest fill 64M; done; true",
        "use": f"for i in $(seq 20); do kill -{int(signal.SIGUSR1)} {background.process.pid}; sleep 0.5; done",
    }
    running = {name: guest.spawn(["sh", "-c", script]) for name, script in scripts.items()}
    for name, process in running.items():
        ended = process.wait(timeout=900)
        assert ended.code == 0, (name, ended)
    assert "oom_kill 0" not in guest.read(f"{CGROUP}/oom/memory.events")
    assert guest.vmstat()["pswpout"] * 4096 > 16 * MIB, "the writes reclaim"
    assert kept.swapped() == 0
    assert complaints(guest) == []
    verified = [line for line in background.process.lines() if "verified" in line]
    assert verified and not any(line["errors"] for line in verified), verified
    assert kept.errors() == 0
