"""Programs of Debian packages for the mini guest, and damo, with the libraries that they need: those of this machine."""

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .kernels import Apt
from .paths import CACHE, alone

DAMO = "damo"
"""The user-space tool of DAMON: on the Python package index, in no Debian. It comes with this machine's Python."""

DAMO_VERSION = "3.4.3"


class PackageMissing(Exception):
    """It cannot be had, or cannot run with what this machine has."""


@functools.cache
def programs(package: str) -> dict[str, Path]:
    """What is to be in the guest, by its path there."""
    if package == DAMO:
        return python() | {f"lib/damo/{path.name}": path for path in sorted((damo() / "damo").glob("*.py"))}
    files = {f"bin/{path.name}": path for path in sorted((unpacked(package) / "usr/bin").iterdir())}
    return files | libraries(*files.values())


def libraries(*files: Path) -> dict[str, Path]:
    """The shared libraries of programs, and the loader."""
    found = {}
    for path in files:
        # "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f...)", and the loader without an arrow
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        if missing := re.findall(r"(\S+) => not found", listed):
            raise PackageMissing(
                f"{path.name} needs {', '.join(missing)}, which this machine has not: install the library's package"
            )
        found |= {library.removeprefix("/"): Path(library) for library in re.findall(r"(/\S+) \(0x", listed)}
    return found


def python() -> dict[str, Path]:
    """The Python that runs the lab, with its library as far as a small program needs it."""
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    large = (
        "__pycache__",
        "config-*",
        "dist-packages",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tkinter",
    )
    modules = [
        path
        for path in sorted(library.rglob("*"))
        if path.is_file()
        and not any(part.match(name) for name in large for part in map(Path, path.relative_to(library).parts))
    ]
    return (
        {"bin/python3": interpreter} | {str(path).removeprefix("/"): path for path in modules} | libraries(interpreter)
    )


def damo() -> Path:
    """Where damo is unpacked; fetched once, from where this machine's pip fetches."""
    with alone("packages"):
        store = CACHE / "packages"
        root = store / f"damo_{DAMO_VERSION}"
        if not root.exists():
            unpacking = root.with_suffix(".unpacking")
            shutil.rmtree(unpacking, ignore_errors=True)
            # Pure Python: any pip does, and nothing is installed.
            command = [
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-compile",
                "--target",
                str(unpacking),
                f"damo=={DAMO_VERSION}",
            ]
            try:
                ended = subprocess.run(command, capture_output=True, text=True)
            except FileNotFoundError as error:
                raise PackageMissing(
                    "damo comes through pip, which this machine has not: install python3-pip"
                ) from error
            if ended.returncode != 0:
                raise PackageMissing(f"pip cannot fetch damo {DAMO_VERSION}: {ended.stderr.strip()[-200:]}")
            unpacking.rename(root)
        return root


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
