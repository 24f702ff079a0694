"""The architectures of the guests: amd64, and arm64 under a kernel release such as `6.12-arm64`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    name: str
    """Debian's name."""
    target: str
    """Rust's name."""
    qemu: tuple[str, ...]
    """The program, and the machine that it plays."""
    cpu: str
    """The CPU that is emulated."""
    linker: str
    """The program that links for it."""
    console: str
    """The guest's name of the serial port with the console."""
    agent: str
    """The guest's name of the serial port with the agent."""
    agent_port: tuple[str, ...]
    """QEMU's options for that port. The machine for arm64 has one port only, so there it is a PCI
    device.
    """


AMD64 = Architecture(
    name="amd64",
    target="x86_64-unknown-linux-gnu",
    qemu=("qemu-system-x86_64",),
    # TCG's cmpxchg16b with several threads has caused oopses in 6.12's slab allocator. Without that
    # instruction the kernel takes another path. The other three cost a tenth to a fifth of the CPU
    # time where a guest clears, copies or reads much memory, and no test needs them.
    cpu="max,-cx16,-erms,-smap,-smep",
    linker="gcc",
    console="ttyS0",
    agent="ttyS1",
    agent_port=("-serial", "chardev:agent"),
)
ARM64 = Architecture(
    name="arm64",
    target="aarch64-unknown-linux-gnu",
    qemu=("qemu-system-aarch64", "-machine", "virt"),
    # It sets accessed bits by itself, as MGLRU's page-table walks need it. So does QEMU's `max`,
    # but a guest with it ends without a message when it resumes from hibernation.
    cpu="neoverse-n1",
    linker="aarch64-linux-gnu-gcc",
    console="ttyAMA0",
    agent="ttyS0",
    agent_port=("-device", "pci-serial,chardev=agent"),
)


def architecture(release: str) -> Architecture:
    return ARM64 if release.endswith(f"-{ARM64.name}") else AMD64
