"""QEMU's command line: what a machine consists of, and the options that say so."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from .kernels import Kernel

MIB = 1 << 20


@dataclass(frozen=True)
class Disk:
    """Swap on a raw disk of limited speed."""

    mib: int
    mb_s: float | None = None


@dataclass(frozen=True)
class SwapFile:
    """Swap in a file on an ext4 file system of its own, mounted on /swap; the disk is of limited
    speed.
    """

    mib: int
    mb_s: float | None = None
    room_mib: int = 64
    """Space left beside the swap file for other files and for the file system itself."""
    iops: int | None = None
    """Requests a second, however large: the cost of a seek on a real disk."""


@dataclass(frozen=True)
class Zram:
    """Swap on compressed memory."""

    mib: int


Swap = Disk | SwapFile | Zram


@dataclass(frozen=True)
class Node:
    """A NUMA node; those with CPUs come first. Their memory is that of the guest."""

    mib: int
    """0: a node without memory, which the kernel only knows of when it has a CPU."""
    cpus: str = ""
    """The CPUs of the node, e.g. `0-1`; none: memory that belongs to no CPU."""
    slow: bool = False
    """Ten times slower than the others, as the firmware says (HMAT): a lower tier since Linux 6.10.
    """


@dataclass(frozen=True)
class Accelerator:
    name: str
    options: tuple[str, ...]


# TCG's cmpxchg16b with several threads has made 6.12's slab allocator oops; without it the kernel
# takes another path.
TCG = Accelerator("tcg", ("-accel", "tcg,thread=multi", "-cpu", "max,-cx16"))
KVM = Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"))


@dataclass
class Hardware:
    """A machine on paper. The files of its disks are in a directory under the disks' names: swap,
    data, root.
    """

    kernel: Kernel
    mem_mib: int = 512
    smp: int = 2
    swap: Swap | None = None
    data_mib: int = 0
    """Size of an ext4 file system on /data; 0: none."""
    own_root: bool = False
    """The root file system is on a disk of its own. It is thrown away with the guest: nothing has
    to reach the disk.
    """
    append: str = ""
    """More words for the kernel's command line."""
    nodes: tuple[Node, ...] = ()
    balloon: bool = False
    """The host takes back the memory that the guest reports free."""
    prealloc: bool = False
    """The host has touched all of the guest's memory before the guest does."""
    resume_offset: int = 0
    """The first block of the swap file."""

    def command(self, accelerator: Accelerator, directory: Path, number: int) -> list[str]:
        """QEMU's command line for the boot with this number; otherwise the same for each boot, as a
        resume wants the same machine.
        """
        command = [
            *("qemu-system-x86_64", *accelerator.options, "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-m", f"{self.mem_mib}M", "-smp", str(self.smp)),
            *("-kernel", str(self.kernel.image), "-initrd", str(directory / "initramfs")),
            *("-chardev", f"file,id=console,path={directory}/console-{number}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=agent,path={directory}/agent-{number},server=on,wait=off"),
            *("-serial", "chardev:agent"),
            *("-qmp", f"unix:{directory}/qmp-{number},server=on,wait=off"),
            *numa(self.nodes),
        ]
        if self.balloon:
            command += ["-device", "virtio-balloon-pci,free-page-reporting=on"]
        if self.prealloc:
            command += ["-mem-prealloc"]
        for name in self.disks():
            command += self.drive(directory / name)
        return [*command, "-append", " ".join(self.words())]

    def disks(self) -> list[str]:
        """Their names, in the order of vda, vdb and so on."""
        swap, data = isinstance(self.swap, Disk | SwapFile), bool(self.data_mib)
        return ["swap"] * swap + ["data"] * data + ["root"] * self.own_root

    def words(self) -> list[str]:
        """The kernel's command line; lab/guest/init reads what begins with `omr.`."""
        # Printing costs time on an emulated port: a boot is quiet, init turns the messages on that
        # hibernation is read from.
        words = ["console=ttyS0", "quiet", "panic=1", "oops=panic", self.append]
        device = {name: f"vd{letter}" for name, letter in zip(self.disks(), "abc")}
        if self.balloon:
            words.append("omr.balloon=yes")
        if isinstance(self.swap, SwapFile):
            disk = device["swap"]
            words.append(f"omr.swapfile={disk} resume=/dev/{disk} resume_offset={self.resume_offset}")
        if isinstance(self.swap, Disk):
            words.append(f"omr.swap={device['swap']}")
        if isinstance(self.swap, Zram):
            words.append(f"omr.zram={self.swap.mib}M")
        if self.data_mib:
            words.append(f"omr.data={device['data']}")
        if self.own_root:
            words.append(f"omr.root={device['root']}")
        return words

    def drive(self, path: Path) -> list[str]:
        """A disk whose name is that of the file."""
        options = "cache=unsafe" if path.name == "root" else cache(path)
        if isinstance(self.swap, Disk | SwapFile) and path.name == "swap":
            if self.swap.mb_s:
                options += f",throttling.bps-total={int(self.swap.mb_s * 1e6)}"
            if self.iops:
                options += f",throttling.iops-total={self.iops}"
        return [
            *("-drive", f"file={path},id={path.name},if=none,format=raw,{options}"),
            *("-device", f"virtio-blk-pci,drive={path.name}"),
        ]

    def at_any_speed(self) -> Self:
        """The same without the disk's speed, which is the host's to change at any time."""
        match self.swap:
            case Disk():
                return replace(self, swap=replace(self.swap, mb_s=None))
            case SwapFile():
                return replace(self, swap=replace(self.swap, mb_s=None, iops=None))
        return self

    @property
    def iops(self) -> int | None:
        return self.swap.iops if isinstance(self.swap, SwapFile) else None


def cache(path: Path) -> str:
    """The options for a file whose speed is to be the disk's, not the page cache's."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:  # tmpfs
        return "cache=writeback,aio=threads"
    return "cache=none,aio=native"


def numa(nodes: tuple[Node, ...]) -> list[str]:
    """The options for these nodes; none where there are none."""
    slow = any(node.slow for node in nodes)
    words = ["-machine", "hmat=on"] if slow else []
    for number, node in enumerate(nodes):
        options = [f"node,nodeid={number}", *(f"cpus={node.cpus}",) * bool(node.cpus)]
        if node.mib:
            words += ["-object", f"memory-backend-ram,id=node{number},size={node.mib}M"]
            options.append(f"memdev=node{number}")
        if node.slow:
            options.append("initiator=0")
        words += ["-numa", ",".join(options)]
    for number, node in enumerate(nodes if slow else ()):
        of = f"hmat-lb,initiator=0,target={number},hierarchy=memory"
        words += ["-numa", f"{of},data-type=access-latency,latency={100 if node.slow else 10}"]
        words += ["-numa", f"{of},data-type=access-bandwidth,bandwidth={1 if node.slow else 10}G"]
    return words
