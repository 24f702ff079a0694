"""The hardware of a machine, and the QEMU command line for it."""

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
    """Swap in a file on an ext4 file system of its own, mounted on /swap. The disk has limited
    speed.
    """

    mib: int
    mb_s: float | None = None
    room_mib: int = 64
    """Space left beside the swap file for other files and for the file system itself."""
    iops: int | None = None
    """Requests of any size per second: the cost of a seek on a real disk."""


@dataclass(frozen=True)
class Zram:
    """Swap on compressed memory."""

    mib: int


Swap = Disk | SwapFile | Zram


@dataclass(frozen=True)
class Node:
    """A NUMA node. Nodes with CPUs come first. The guest's memory is the sum of the nodes."""

    mib: int
    """0 is a node without memory. The kernel knows such a node only if it has a CPU."""
    cpus: str = ""
    """The CPUs of the node, e.g. `0-1`. Empty: the memory belongs to no CPU."""
    slow: bool = False
    """The firmware describes the node as ten times slower (HMAT). Linux 6.10 and newer put it in a
    lower tier.
    """


@dataclass(frozen=True)
class Accelerator:
    name: str
    options: tuple[str, ...]


TCG = Accelerator("tcg", ("-accel", "tcg,thread=multi"))
# The guest's clock counts instructions, 1 ns each, and jumps over idle time. So no other process
# of the host makes the guest late, and six idle hours take a minute. All CPUs share one thread of
# the host. A disk of limited speed goes by the host's clock, so swap is zram.
COUNTED = Accelerator(
    "tcg-icount",
    ("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-rtc", "clock=vm"),
)
KVM = Accelerator("kvm", ("-accel", "kvm"))


@dataclass
class Hardware:
    """The description of a machine. The disks' files are in one directory and are named after the
    disks: swap, data, root.
    """

    kernel: Kernel
    mem_mib: int = 512
    smp: int = 2
    swap: Swap | None = None
    data_mib: int = 0
    """Size of an ext4 file system on /data. 0: none."""
    own_root: bool = False
    """The root file system is on a disk of its own. The disk is thrown away with the guest, so no
    write has to reach the host's disk.
    """
    append: str = ""
    """More words for the kernel's command line."""
    nodes: tuple[Node, ...] = ()
    balloon: bool = False
    """The host takes back the memory that the guest reports free."""
    prealloc: bool = False
    """The host touches all of the guest's memory before the guest starts."""
    resume_offset: int = 0
    """The first block of the swap file."""

    def command(self, accelerator: Accelerator, directory: Path, number: int) -> list[str]:
        """QEMU's command line for the boot with this number.

        The hardware is the same for each boot, because a resume needs the same machine.
        """
        architecture = self.kernel.architecture
        command = [
            *(*architecture.qemu, *accelerator.options, "-cpu", "host" if accelerator is KVM else architecture.cpu),
            *("-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-m", f"{self.mem_mib}M", "-smp", str(self.smp)),
            *("-kernel", str(self.kernel.image), "-initrd", str(directory / "initramfs")),
            *("-chardev", f"file,id=console,path={directory}/console-{number}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=agent,path={directory}/agent-{number},server=on,wait=off"),
            *architecture.agent_port,
            *("-qmp", f"unix:{directory}/qmp-{number},server=on,wait=off"),
            *numa(self.nodes),
        ]
        if self.balloon:
            command += ["-device", "virtio-balloon-pci,free-page-reporting=on"]
        if self.prealloc:
            command += ["-mem-prealloc"]
        for name in self.disks():
            command += self.drive(directory / name)
        words = self.words()
        if accelerator is not KVM:
            # Emulated code leaks nothing by speculation, and the kernel's measures against that
            # take a quarter of the CPU time.
            words.append("mitigations=off")
        return [*command, "-append", " ".join(words)]

    def disks(self) -> list[str]:
        """The names of the disks, in the order of vda, vdb and so on."""
        swap, data = isinstance(self.swap, Disk | SwapFile), bool(self.data_mib)
        return ["swap"] * swap + ["data"] * data + ["root"] * self.own_root

    def words(self) -> list[str]:
        """The kernel's command line. lab/guest/init reads the words that begin with `omr.`."""
        # Printing costs time on an emulated port, so a boot is quiet. init switches on the messages
        # from which the lab reads figures of hibernation.
        architecture = self.kernel.architecture
        words = [f"console={architecture.console}", f"omr.agent={architecture.agent}"]
        words += ["quiet", "panic=1", "oops=panic", self.append]
        # Debian's 7.x monitors all memory with DAMON. Some ages are wrong then, and omr cannot use
        # DAMON.
        words.append("damon_stat.enabled=N")
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
        """The options for a disk. The disk is named after its file."""
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
        """The same hardware without the disk's speed, which the host can change at any time."""
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
    """The options that keep the page cache from hiding the disk's speed."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:  # tmpfs
        return "cache=writeback,aio=threads"
    return "cache=none,aio=native"


def numa(nodes: tuple[Node, ...]) -> list[str]:
    """The options for these nodes. Empty without nodes."""
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
