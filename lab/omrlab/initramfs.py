"""The mini guest's file system: busybox, the programs, a few modules and an init script."""

import functools
from dataclasses import dataclass, field
from pathlib import PurePath

from . import packages
from .binaries import PROGRAMS, build, busybox
from .kernels import Kernel
from .paths import GUEST

MODULES = (
    "8250_pci",
    "virtio_pci",
    "virtio_blk",
    "virtio_balloon",
    "ext4",
    "crc32c_generic",
    "zram",
    "lz4",
    "lzo_rle",
    "zstd",
    "fuse",
)

INIT = (GUEST / "init").read_text()


@dataclass
class Archive:
    """A cpio archive in the format the kernel unpacks (`newc`)."""

    parts: list[bytes] = field(default_factory=list)
    inode: int = 0

    def directory(self, path: str) -> None:
        self.entry(path, 0o040755, b"")

    def file(self, path: str, contents: bytes, mode: int = 0o644) -> None:
        self.entry(path, 0o100000 | mode, contents)

    def symlink(self, path: str, target: str) -> None:
        self.entry(path, 0o120777, target.encode())

    def entry(self, path: str, mode: int, contents: bytes) -> None:
        self.inode += 1
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device and special device (major, minor), name
        # length, checksum
        fields = (self.inode, mode, 0, 0, 1, 0, len(contents), 0, 0, 0, 0, len(name), 0)
        self.parts.append(pad(b"070701" + b"".join(b"%08X" % value for value in fields) + name))
        self.parts.append(pad(contents))

    def bytes(self) -> bytes:
        self.entry("TRAILER!!!", 0, b"")
        return b"".join(self.parts)


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


@functools.cache
def initramfs(kernel: Kernel, programs: tuple[str, ...] = PROGRAMS, debian: tuple[str, ...] = ()) -> bytes:
    """The archive for one kernel. `debian`: packages whose programs it also contains."""
    archive = Archive()
    for path in (
        "bin",
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "data",
        "swap",
        "etc",
        "etc/omr",
        "var",
        "var/lib",
        "var/lib/omr",
    ):
        archive.directory(path)
    archive.file("init", INIT.encode(), 0o755)
    archive.file("bin/busybox", busybox(kernel.architecture).read_bytes(), 0o755)
    archive.symlink("bin/sh", "busybox")
    for program in programs:
        archive.file(f"bin/{program}", build(program, kernel.architecture).read_bytes(), 0o755)
    files = {path: file for package in debian for path, file in packages.programs(package).items()}
    for directory in sorted({str(parent) for path in files for parent in PurePath(path).parents} - {".", "bin"}):
        archive.directory(directory)
    for path, file in files.items():
        archive.file(path, file.read_bytes(), 0o755)
    for selftest in sorted((kernel.root / "bin").glob("*")):
        archive.file(f"bin/{selftest.name}", selftest.read_bytes(), 0o755)

    modules = kernel.modules
    present = modules.present(*MODULES)
    archive.directory("modules")
    for name in modules.load_order(*present):
        archive.file(f"modules/{name}.ko", modules.read(name))
    # One line per module: the modules to load for it, in order.
    archive.directory("modules/order")
    for name in present:
        archive.file(f"modules/order/{name}", "\n".join(modules.load_order(name)).encode() + b"\n")

    return archive.bytes()
