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
    console: str
    """The first serial port. The second one, for the agent, is a device of its own on arm64."""
    agent: str
    ports: tuple[str, ...]
    """The options for the agent's serial port."""


AMD64 = Architecture(
    name="amd64",
    target="x86_64-unknown-linux-gnu",
    qemu=("qemu-system-x86_64",),
    # TCG's cmpxchg16b with several threads has caused oopses in 6.12's slab allocator. Without that
    # instruction the kernel takes another path. The other three cost a tenth to a fifth of the CPU
    # time where a guest clears, copies or reads much memory, and no test needs them.
    cpu="max,-cx16,-erms,-smap,-smep",
    console="ttyS0",
    agent="ttyS1",
    ports=("-serial", "chardev:agent"),
)
ARM64 = Architecture(
    name="arm64",
    target="aarch64-unknown-linux-gnu",
    qemu=("qemu-system-aarch64", "-machine", "virt"),
    # It sets accessed bits by itself, as MGLRU's page-table walks need it.
    cpu="max,pauth-impdef=on",
    console="ttyAMA0",
    agent="ttyS0",
    ports=("-device", "pci-serial,chardev=agent"),
)


def architecture(release: str) -> Architecture:
    return ARM64 if release.endswith(f"-{ARM64.name}") else AMD64
