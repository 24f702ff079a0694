"""Programs for the mini guest with their libraries: those of Debian packages, and damo."""

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .apt import PackageMissing, apts
from .architecture import AMD64, Architecture
from .paths import CACHE, alone

DAMO = "damo"
"""The user-space tool of DAMON. It is on the Python package index and in no Debian release.

In the guest it runs with the Python of this machine.
"""

DAMO_VERSION = "3.4.3"


@functools.cache
def programs(package: str) -> dict[str, Path]:
    """The files that the guest needs, by their path in the guest."""
    if package == DAMO:
        return python() | {f"lib/damo/{path.name}": path for path in sorted((damo() / "damo").glob("*.py"))}
    files = {f"bin/{path.name}": path for path in sorted((unpacked(package) / "usr/bin").iterdir())}
    return files | libraries(*files.values())


def libraries(*files: Path) -> dict[str, Path]:
    """The shared libraries of programs, and the loader."""
    found: dict[str, Path] = {}
    for path in files:
        # "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f...)", and the loader without an arrow
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        if missing := re.findall(r"(\S+) => not found", listed):
            raise PackageMissing(
                f"{path.name} needs {', '.join(missing)}: install the package of that library on this machine"
            )
        found |= {library.removeprefix("/"): Path(library) for library in re.findall(r"(/\S+) \(0x", listed)}
    return found


def python() -> dict[str, Path]:
    """The Python that runs the lab, with the part of its library that a small program needs."""
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    large = (
        *("__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3"),
        *("pydoc_data", "site-packages", "test", "tkinter"),
    )

    def needed(path: Path) -> bool:
        parts = path.relative_to(library).parts
        return path.is_file() and not any(Path(part).match(name) for name in large for part in parts)

    modules = {str(path).removeprefix("/"): path for path in sorted(library.rglob("*")) if needed(path)}
    return {"bin/python3": interpreter} | modules | libraries(interpreter)


def damo() -> Path:
    """The directory of damo, which this machine's pip fetches once."""
    with alone("packages"):
        store = CACHE / "packages"
        root = store / f"damo_{DAMO_VERSION}"
        if not root.exists():
            unpacking = root.with_suffix(".unpacking")
            shutil.rmtree(unpacking, ignore_errors=True)
            # damo is pure Python, so any pip can unpack it; nothing is installed.
            options = ("--quiet", "--no-deps", "--no-compile", "--target", str(unpacking))
            command = ["pip", "install", *options, f"damo=={DAMO_VERSION}"]
            try:
                ended = subprocess.run(command, capture_output=True, text=True)
            except FileNotFoundError as error:
                raise PackageMissing("damo comes through pip: install python3-pip") from error
            if ended.returncode != 0:
                raise PackageMissing(f"pip cannot fetch damo {DAMO_VERSION}: {ended.stderr.strip()[-200:]}")
            unpacking.rename(root)
        return root


def unpacked(package: str, architecture: Architecture = AMD64) -> Path:
    """The directory of the newest version that apt knows, fetched once."""
    with alone("packages"):
        for apt in apts(architecture=architecture):
            if found := apt.newest(package):
                root = CACHE / "packages" / f"{package}_{found[1]}_{architecture.name}"
                if not root.exists():
                    apt.unpack([package], found[1], root)
                return root
    raise PackageMissing(f"apt knows no package {package}")
