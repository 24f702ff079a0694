"""A user without rights who is in omr's way as much as the kernel allows, and another user who must
not notice. The attacks are parts of `omr-guest adversary`.
"""

from dataclasses import dataclass
from typing import Any

from .daemon import Daemon
from .guest import MIB, Guest, GuestError, Process
from .scenarios.latency import TRACING, write_ends

ADVERSARY, OTHER = 1000, 1001
"""User ids. Both users may ask omr's daemon."""

GROUP = 990
"""The id of the group omr."""


def subtree(uid: int) -> str:
    """The groups that systemd delegates to a user."""
    return f"user.slice/user-{uid}.slice/user@{uid}.service"


BACKGROUND = "bg"
"""The group of root whose memory leaves."""

RULES = f"""
[[group]]
match = "{BACKGROUND}"
class = "background"
"""

WATCHES = 3000
"""Inotify watches that each user may have."""

DELEGATE = """
for group in user.slice user.slice/user-{uid}.slice {subtree}; do
    mkdir -p /sys/fs/cgroup/$group
    echo '+memory +pids' > /sys/fs/cgroup/$group/cgroup.subtree_control
done
cd /sys/fs/cgroup/{subtree}
mkdir init.scope app.slice
echo '+memory +pids' > app.slice/cgroup.subtree_control
mkdir app.slice/app.scope
for group in . init.scope app.slice app.slice/app.scope; do
    chown {uid} $group $group/cgroup.procs $group/cgroup.subtree_control $group/cgroup.threads
done
"""


def add_users(guest: Guest) -> None:
    """Makes both users, with groups as systemd makes them. The daemon starts later, because it
    reads the id of the group omr once.
    """
    guest.shell("mkdir -p /etc")
    guest.write("/etc/group", f"root:x:0:\nomr:x:{GROUP}:\n", create=True)
    for uid in (ADVERSARY, OTHER):
        guest.shell(DELEGATE.format(uid=uid, subtree=subtree(uid)))


def spawn_as(guest: Guest, uid: int, group: str, *argv: str) -> Process:
    """Starts a command as this user, a member of the group omr, in one of the user's groups."""
    inside = ["omr-guest", "in", f"{subtree(uid)}/{group}", "--uid", str(uid), "--gid", str(GROUP)]
    return guest.spawn([*inside, "--", *argv])


class Adversary:
    """The attacks that run."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.group = f"/sys/fs/cgroup/{subtree(ADVERSARY)}/app.slice/app.scope"
        self.running: dict[str, Process] = {}

    def attack(self, *words: str, timeout: float = 300) -> dict[str, Any]:
        """Starts a part, and returns the proof that it is on."""
        process = spawn_as(self.guest, ADVERSARY, "init.scope", "omr-guest", "adversary", *words)
        self.running[" ".join(words)] = process
        return process.line_with("ready", timeout=timeout)

    def everything(self, groups: int) -> dict[str, dict[str, Any]]:
        """Starts all parts, at rates at which the machine still counts as idle: whoever keeps a CPU
        busy prevents sweeps, by design. Returns the proof of each.
        """
        return {
            "deep": self.attack("deep", self.group),
            "wide": self.attack("wide", self.group, "--groups", str(groups), timeout=3600),
            "watches": self.attack("watches", self.group),
            "reserve": self.attack("reserve"),
            "names": self.attack("names"),
            "storm": self.attack("storm", self.group),
        } | {kind: self.attack("flood", kind, "--rate", rate) for kind, rate in FLOODS.items()}

    def end(self) -> dict[str, dict[str, Any]]:
        """Ends all parts. Returns what each has done that does something again and again."""
        for process in self.running.values():
            process.kill()
        ended = {words: process.wait(timeout=300) for words, process in self.running.items()}
        failed = {words: completed for words, completed in ended.items() if completed.code != 0}
        if failed:
            raise GuestError(f"parts of the adversary failed: {failed}")
        self.running = {}
        last = {words: completed.json() for words, completed in ended.items()}
        return {words: line for words, line in last.items() if "done" in line}


FLOODS = {
    "connect": "100",
    "half": "20",
    "unread": "20",
    "nonsense": "50",
    "dribble": "100",
    "ask": "20",
    "watch": "20",
}
"""The floods of the socket, and how often in a second."""


@dataclass(frozen=True)
class Interrupted:
    """A sweep during which work began."""

    stop_ms: float
    """From the first work until the last write to memory.reclaim returned."""
    sweep: dict[str, Any]
    """The line of the ledger."""
    writes: int
    """Writes to memory.reclaim before the work began."""


def interrupt(guest: Guest, daemon: Daemon, amount: str = "96M") -> Interrupted:
    """Fills the background group, and works as soon as a sweep has begun there.

    Everything happens inside the guest, because its clock does not wait for the host.
    """
    guest.group(BACKGROUND)
    guest.group("fg")
    guest.write(f"{TRACING}/trace", "")
    swept = len(daemon.sweeps(BACKGROUND))
    words = ["--threads", "1", "--burst", "400ms", "--when-swapped", BACKGROUND]
    spin = guest.spawn(["omr-guest", "spin", *words], group="fg")
    load = guest.spawn(["omr-guest", "fill", amount], group=BACKGROUND)
    burst = spin.wait(timeout=300).json()
    guest.run(["sleep", "1"])
    returned = write_ends(guest.shell(f"grep ends_ {TRACING}/trace || true"))
    before = [end for end in returned if end <= burst["first_ran_ns"]]
    during = [end for end in returned if burst["first_ran_ns"] < end <= burst["ended_ns"]]
    sweeps = daemon.sweeps(BACKGROUND)[swept:]
    load.kill()
    load.wait()
    stop_ms = (max(during, default=burst["first_ran_ns"]) - burst["first_ran_ns"]) / 1e6
    return Interrupted(stop_ms, sweeps[0], len(before))


@dataclass(frozen=True)
class Cost:
    """What the daemon uses."""

    cpu_pct: float
    """Percent of one CPU, over some time."""
    resident_mib: float
    descriptors: int
    watches: int
    """Its inotify watches."""


def cost(guest: Guest, daemon: Daemon, seconds: int = 30) -> Cost:
    """Watches the daemon for this time. Each CPU second is a thousand million instructions."""
    process = f"/proc/{daemon.process.pid}"

    def spent() -> int:
        return int(guest.shell("head -n 1 /sys/fs/cgroup/omr.service/cpu.stat").split()[1])

    began_ns, began = guest.monotonic_ns(), spent()
    guest.run(["sleep", str(seconds)], timeout=1200)
    ended, ended_ns = spent(), guest.monotonic_ns()
    resident = guest.shell(f"grep VmRSS: {process}/status").split()[1]
    descriptors = guest.shell(f"ls {process}/fd | wc -l")
    watches = guest.shell(f"cat {process}/fdinfo/* | grep -c '^inotify wd'")
    share = 100_000 * (ended - began) / (ended_ns - began_ns)
    return Cost(share, int(resident) * 1024 / MIB, int(descriptors), int(watches))
