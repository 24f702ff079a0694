"""The files of a kernel that is unpacked on disk: the image that QEMU boots, and the modules."""

import functools
import lzma
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .architecture import Architecture, architecture


class KernelMissing(Exception):
    """The lab cannot get a kernel of that release."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    release: str
    """The release that was asked for: `6.12`, `6.12-arm64`."""
    package: str
    version: str
    """The package's version: `6.12.117-1~deb12u1`."""
    root: Path

    @property
    def architecture(self) -> Architecture:
        return architecture(self.release)

    @property
    def image(self) -> Path:
        """The kernel as an ELF file, which QEMU boots.

        Unpacking it once here saves each boot 2 of 5 s under emulation.
        """
        places = ("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz*")
        compressed = next(path for place in places for path in self.root.glob(place))
        kernel = compressed.with_name(compressed.name.replace("vmlinuz", "vmlinux"))
        if not kernel.exists():
            try:
                unpacked = payload(compressed.read_bytes())
            except UnknownImage:
                return compressed
            with tempfile.NamedTemporaryFile(dir=kernel.parent, delete=False) as file:
                file.write(unpacked)
            os.rename(file.name, kernel)
        return kernel

    @property
    def modules(self) -> "Modules":
        return Modules(next(path for path in self.root.glob("**/lib/modules/*")))


class Modules:
    """The loadable modules of a kernel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {module_name(path.name): path for path in root.rglob("*.ko*")}
        builtin = (root / "modules.builtin").read_text().splitlines()
        self.builtin = {module_name(Path(line).name) for line in builtin}

    def present(self, *names: str) -> list[str]:
        """Those of these modules that the kernel has, built in or not. 7.x lacks crc32c_generic."""
        return [name for name in names if name in self.files or name in self.builtin]

    def load_order(self, *wanted: str) -> list[str]:
        """The wanted modules and their dependencies, each module after its dependencies.

        Modules that are built into the kernel are left out.
        """
        order: list[str] = []

        def visit(name: str) -> None:
            if name in order or name in self.builtin:
                return
            if name not in self.files:
                raise KernelMissing(f"{self.root.name} has no module {name}")
            for dependency in self.depends(name):
                visit(dependency)
            order.append(name)

        for name in wanted:
            visit(module_name(name))
        return order

    def depends(self, name: str) -> list[str]:
        found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + self.read(name))
        return [module_name(dependency) for dependency in found[1].decode().split(",") if dependency] if found else []

    def read(self, name: str) -> bytes:
        """The contents of a module, decompressed."""
        return decompressed(self.files[name])


@functools.cache
def decompressed(module: Path) -> bytes:
    return lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()


class UnknownImage(Exception):
    """A file that this module cannot decompress. QEMU boots such a file as it is."""


def payload(image: bytes) -> bytes:
    """The kernel in a bzImage.

    The header says where the kernel is (Documentation/arch/x86/boot.rst, protocol 2.08).
    """
    if image[0x202:0x206] != b"HdrS":
        raise UnknownImage("no boot header")
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    packed = image[begin : begin + length]
    if packed.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor().decompress(packed)
    elif packed.startswith(b"\x28\xb5\x2f\xfd"):
        # The last four bytes are the unpacked size.
        kernel = subprocess.run(["zstd", "-dcq"], input=packed[:-4], stdout=subprocess.PIPE, check=True).stdout
    else:
        raise UnknownImage("neither xz nor zstd")
    if not kernel.startswith(b"\x7fELF"):
        raise UnknownImage("no ELF file in it")
    return kernel


def module_name(file_name: str) -> str:
    return file_name.split(".ko")[0].replace("-", "_")
