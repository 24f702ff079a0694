"""The host's own CPU time, and the part of it that its hypervisor gives to other machines."""

import threading
import time
from pathlib import Path

from .guest import Guest

CALM = 3.0
"""Percent of its CPU time. A host that loses more in a second disturbs the times measured in that
second.
"""

EVERY = 0.25
"""Seconds between two readings."""


def cpu_time() -> list[int]:
    """The host's CPU time in ticks, by use (/proc/stat): user, nice, system, idle, iowait, irq,
    softirq, steal.
    """
    return [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def stolen(before: list[int], after: list[int]) -> float:
    """Percent of the time between two readings that the hypervisor gave to others while this host
    had work.
    """
    ticks = [now - then for then, now in zip(before, after)]
    return 100 * ticks[-1] / max(1, sum(ticks))


class Others:
    """How much of the host's CPU time programs other than one guest used."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.before = self.look()

    def look(self) -> tuple[int, int]:
        """All CPU time of the host, and the part that is neither idle time nor the guest's."""
        assert self.guest.qemu
        ticks = cpu_time()
        fields = Path(f"/proc/{self.guest.qemu.pid}/stat").read_text().rsplit(")", 1)[1].split()
        # user and system time of the process (proc(5))
        return sum(ticks), sum(ticks) - ticks[3] - ticks[4] - int(fields[11]) - int(fields[12])

    def percent(self) -> float:
        """Percent of all CPU time since this object was made."""
        whole, others = (now - then for now, then in zip(self.look(), self.before))
        return round(100 * others / max(1, whole), 1)


class Calm:
    """Reads the host's CPU time while it is open. Afterwards it knows the seconds in which the host
    lost none.
    """

    def __init__(self) -> None:
        self.looks: list[tuple[float, list[int]]] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def __enter__(self) -> "Calm":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def look(self) -> None:
        while not self.over.wait(EVERY):
            self.looks.append((time.monotonic(), cpu_time()))

    def seconds(self, guest: Guest, zero_ns: int) -> list[float]:
        """The starts of the calm seconds, as seconds of the guest's monotonic clock since
        `zero_ns`.
        """
        asked = time.monotonic()
        guest_ns = guest.monotonic_ns()
        # The guest read its clock between these two times.
        offset = (guest_ns - zero_ns) / 1e9 - (asked + time.monotonic()) / 2
        return [round(at + offset, 3) for at in calm_seconds(self.looks)]


def calm_seconds(looks: list[tuple[float, list[int]]]) -> list[float]:
    """The starts of the seconds, one after another, in which the host lost no more than `CALM`."""
    found = []
    begin = 0
    for number, (at, ticks) in enumerate(looks):
        if at - looks[begin][0] < 1:
            continue
        if stolen(looks[begin][1], ticks) <= CALM:
            found.append(looks[begin][0])
        begin = number
    return found
