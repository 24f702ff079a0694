"""memory.reclaim of Linux 7.3: with the key writeback=wait of patches/7.3, without the key, and on
the same kernel without the patches. Debian's kernel, which uses huge pages, is a further arm.

How much goes to swap for the amount that was asked for, on a slow disk and on zram, with one group
and with hundreds, on one node and on two? And how soon does a write end when its writer gets a
signal?
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import patched
from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, Node, Zram
from ..plots import COLOURS
from ..scenario import arms_option, option
from .swap_reclaim import GROUP, Arm, SwapReclaim

CGROUP = "/sys/fs/cgroup"
FILE = f"{CGROUP}/{GROUP}/memory.reclaim"

WAYS = {
    "wait": Arm(COLOURS["prepare"], patched.NEW.release, FILE, keys=" writeback=wait"),
    "plain": Arm(COLOURS["on"], patched.NEW.release, FILE),
    "base": Arm(COLOURS["seed"], patched.NEW.base, FILE),
    "debian": Arm(COLOURS["machine"], "7", FILE),
}

LABELS = {
    "wait": "patched kernel: writeback=wait",
    "plain": "patched kernel, no key",
    "base": "the same kernel without the patches",
    "debian": "Debian's kernel",
}

GOALS = {"sent_ratio_wait": "<= 1.05", "stop_p99_ms_wait": "<= 100"}


@dataclass(kw_only=True)
class ReclaimKeys(SwapReclaim):
    name = "reclaim-keys"
    help = "memory.reclaim of Linux 7.3, with and without the keys of patches/7.3 (10 minutes, and the kernel)"
    title = "The keys of memory.reclaim"
    labels = LABELS
    ways = WAYS
    goals = GOALS

    kernel: str = field(default="7", init=False)
    arms: str = arms_option(LABELS, "wait,plain,base")
    swap: str = option("disk", "what is swapped to", choices=["disk", "zram"])
    groups: int = option(1, "the groups that the load is in, all below one")
    nodes: int = option(1, "the nodes that memory and groups are spread over")
    classic: bool = option(False, "with the classic LRU instead of MGLRU")

    @contextmanager
    def loaded(self, arm: Arm) -> Iterator[Guest]:
        swap = Zram(self.mem) if self.swap == "zram" else Disk(2 * self.mem, self.mb_s)
        nodes = tuple(Node(self.mem // self.nodes, str(node)) for node in range(self.nodes))
        many: dict[str, Any] = {"nodes": nodes, "smp": max(2, self.nodes)} if self.nodes > 1 else {}
        with Guest(arm.kernel, self.mem, swap, **many) as guest:
            if self.classic:
                guest.write(MGLRU_SWITCH, "n")
            self.load(guest)
            yield guest

    def load(self, guest: Guest) -> None:
        """Each group has a process, and its memory is on one node."""
        guest.group(GROUP)
        guest.write(f"{CGROUP}/{GROUP}/cgroup.subtree_control", "+memory +cpuset")
        groups = max(self.groups, self.nodes)
        amount = self.mem * self.fill // 100 * MIB // groups // 1024
        # zram keeps what it takes in the same memory.
        fill = f"omr-guest fill {amount}K --compressible {60 * (self.swap == 'zram')}"
        script = f"""for group in $(seq {groups}); do
            mkdir {CGROUP}/{GROUP}/$group
            echo $((group % {self.nodes})) > {CGROUP}/{GROUP}/$group/cpuset.mems
            omr-guest in {GROUP}/$group -- {fill} > /run/filled.$group &
        done"""
        guest.shell(f"({script}) < /dev/null > /dev/null 2>&1 & true")
        ready = "cat /run/filled.* 2> /dev/null | grep -c ready || true"
        guest.wait_for(lambda: int(guest.shell(ready)) == groups, 300, f"{groups} loads")
        # The kernel brings its statistics up to date every two seconds.
        guest.shell("sleep 3")

    def medium(self) -> str:
        return super().medium() if self.swap == "disk" else "zram"

    def guest(self) -> dict[str, Any]:
        return super().guest() | {"swap": self.swap, "groups": self.groups, "nodes": self.nodes}
