"""Programs of Debian packages for the mini guest, with the libraries that they need: those of this machine."""

import functools
import re
import subprocess
from pathlib import Path

from .kernels import Apt
from .paths import CACHE, alone


class PackageMissing(Exception):
    """apt knows no such package."""


@functools.cache
def programs(package: str) -> dict[str, Path]:
    """What is to be in the guest, by its path there."""
    files = {f"bin/{path.name}": path for path in sorted((unpacked(package) / "usr/bin").iterdir())}
    for path in tuple(files.values()):
        # "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f...)", and the loader without an arrow
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            files[library.removeprefix("/")] = Path(library)
    return files


def unpacked(package: str) -> Path:
    """The newest version in the machine's sources, fetched once."""
    with alone("packages"):
        apt = Apt()
        found = apt.newest_of(package)
        if not found:
            apt = Apt.private(None)
            found = apt.newest_of(package)
        if not found:
            raise PackageMissing(f"apt knows no package {package}")
        store = CACHE / "packages"
        root = store / f"{package}_{found[1]}"
        if not root.exists():
            store.mkdir(parents=True, exist_ok=True)
            archive = apt.download(package, found[1], store)
            unpacking = root.with_suffix(".unpacking")
            subprocess.run(["dpkg", "-x", archive, unpacking], check=True)
            archive.unlink()
            unpacking.rename(root)
        return root
