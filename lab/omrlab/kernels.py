"""Debian kernel packages: found through apt at run time, unpacked into the cache, never installed.

Debian removes old versions from its mirrors, so none is written down here; what was used goes into the results.
"""

import functools
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .paths import CACHE, alone


class KernelMissing(Exception):
    """No package of that release can be had."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    release: str
    """As asked for: `6.12`."""
    package: str
    version: str
    """The package's version: `6.12.117-1~deb12u1`."""
    root: Path

    @property
    def image(self) -> Path:
        """What QEMU boots: the kernel itself, as ELF. Unpacking it once here saves each boot 2 of 5 s under emulation."""
        compressed = next(
            path for place in ("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz*") for path in self.root.glob(place)
        )
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
        self.builtin = {module_name(Path(line).name) for line in (root / "modules.builtin").read_text().splitlines()}

    def load_order(self, *wanted: str) -> list[str]:
        """The wanted modules and what they depend on, each after its dependencies; built-in ones left out."""
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

    @functools.cache
    def read(self, name: str) -> bytes:
        """The module itself, decompressed."""
        path = self.files[name]
        return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


class UnknownImage(Exception):
    """Not a compressed kernel, or compressed in a way that is not known here; QEMU boots it as it is."""


def payload(image: bytes) -> bytes:
    """The kernel in a bzImage; where it lies is in the header (Documentation/arch/x86/boot.rst, protocol 2.08)."""
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


# Where a release is not in the suites of the machine's own apt: which suite has it.
SUITES = {"7": "trixie-backports"}

DAY = 86400


@functools.cache
def kernel(release: str) -> Kernel:
    """The newest generic amd64 kernel of a release such as `6.12`, or of a series such as `7`; `6.12-omr` is omr's own."""
    if "-omr" in release:
        from .patched import built

        return built(release)
    with alone("kernels"):
        return find_or_fetch(release)


def find_or_fetch(release: str) -> Kernel:
    store = CACHE / "kernels"
    found = None
    if release not in SUITES:
        apt = Apt()
        found = apt.newest(release)
    if not found:
        apt = Apt.private(SUITES.get(release))
        found = apt.newest(release)
    if not found:
        return newest_unpacked(store, release)
    package, version = found
    root = store / f"{package}_{version}"
    if not root.exists():
        store.mkdir(parents=True, exist_ok=True)
        unpacking = root.with_suffix(".unpacking")
        shutil.rmtree(unpacking, ignore_errors=True)
        for part in parts(package):
            archive = apt.download(part, version, store)
            subprocess.run(["dpkg", "-x", archive, unpacking], check=True)
            archive.unlink()
        unpacking.rename(root)
    return Kernel(release, package, version, root)


def parts(package: str) -> list[str]:
    """What has to be unpacked: since 6.19 the kernel, its modules and the list of them are packages of their own."""
    binary = re.match("linux-binary-(unsigned-)?", package)
    if not binary:
        return [package]
    return [package, *(package.replace(binary[0], part) for part in ("linux-modules-", "linux-base-"))]


def newest_unpacked(store: Path, release: str) -> Kernel:
    roots = sorted(store.glob(f"linux-*-{release}.*_*"), key=lambda root: root.stat().st_mtime)
    if not roots:
        raise KernelMissing(f"apt knows no kernel {release} and none is unpacked in {store}")
    package, version = roots[-1].name.split("_", 1)
    return Kernel(release, package, version, roots[-1])


class Apt:
    """apt with the machine's sources."""

    def __init__(self, *options: str) -> None:
        # The cache may be in a home directory that apt's own user cannot enter.
        self.options = ["-oAPT::Sandbox::User=root", *options]

    @classmethod
    def private(cls, suite: str | None) -> "Apt":
        """apt with lists of its own, not older than a day, so that the machine's are not touched: of the machine's sources,
        or of another suite on the machine's mirror."""
        directory = CACHE / ("apt" if suite is None else f"apt-{suite}")
        for name in ("lists/partial", "cache/archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        options = [f"-oDir::State::lists={directory}/lists", f"-oDir::Cache={directory}/cache"]
        if suite:
            source = directory / "sources.list"
            source.write_text(
                f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror()} {suite} main\n"
            )
            options += [f"-oDir::Etc::sourcelist={source}", "-oDir::Etc::sourceparts=/dev/null"]
        apt = cls(*options)
        updated = directory / "updated"
        if not updated.exists() or time.time() - updated.stat().st_mtime > DAY:
            subprocess.run(["apt-get", *apt.options, "-qq", "update"], check=True)
            updated.touch()
        return apt

    def newest(self, release: str) -> tuple[str, str] | None:
        """Package and version of the newest generic kernel. A suite whose kernels are in parts may have the newest one
        without a signature only, which a guest does not look at."""
        kind = "binary(-unsigned)?" if release in SUITES else "image"
        pattern = rf"linux-{kind}-{re.escape(release)}\.[0-9.]+(-\d+|\+deb\d+(\+\d+)?)-amd64"
        names = [name for name in self.output("apt-cache", "pkgnames", "linux-").split() if re.fullmatch(pattern, name)]
        return self.newest_of(*names) if names else None

    def newest_of(self, *packages: str) -> tuple[str, str] | None:
        """The package with the newest version among these, and that version."""
        best: tuple[str, str] | None = None
        # One line for each package and version: name | version | source
        for line in self.output("apt-cache", "madison", *packages).splitlines():
            name, version, source = (word.strip() for word in line.split("|"))
            if source.endswith("Packages") and (best is None or newer(version, best[1])):
                best = name, version
        return best

    def download(self, package: str, version: str, directory: Path) -> Path:
        subprocess.run(["apt-get", *self.options, "-qq", "download", f"{package}={version}"], cwd=directory, check=True)
        return next(directory.glob(f"{package}_*.deb"))

    def output(self, program: str, *arguments: str) -> str:
        return subprocess.run([program, *self.options, *arguments], capture_output=True, text=True).stdout


def mirror() -> str:
    """Where the machine's own apt gets Debian from."""
    for line in Apt().output("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(RELEASE)").splitlines():
        address, origin, suite = (line.split() + ["", ""])[:3]
        if origin == "Debian" and "-security" not in suite:
            return address
    raise KernelMissing("the machine's apt has no Debian mirror")


def newer(version: str, than: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", than]).returncode == 0
