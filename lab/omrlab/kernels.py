"""The kernels of the guests: Debian's, found through apt, and omr's own.

Where apt knows no kernel of a release, the one that was unpacked last is used.
"""

import functools
import os
import re
from pathlib import Path

from . import patched
from .apt import SUITES, Apt, PackageMissing, apts
from .architecture import architecture
from .kernel_files import Kernel, KernelMissing
from .paths import CACHE, alone

__all__ = ["KERNEL", "Kernel", "KernelMissing", "kernel", "series"]

KERNEL = os.environ.get("OMR_LAB_KERNEL", "6.12")
"""The kernel of guests for which nothing else is said."""


@functools.cache
def kernel(release: str) -> Kernel:
    """The newest generic kernel of a release.

    A release is `6.12`, or a series such as `7`, or one of these for arm64 such as `6.12-arm64`, or
    a patched kernel: `6.12-omr`, `7.3-omr`.
    """
    if "-omr" in release:
        return patched.built(release)
    with alone("kernels"):
        return find_or_fetch(release)


def series(release: str) -> str:
    """The release without its architecture."""
    return release.removesuffix(f"-{architecture(release).name}")


def find_or_fetch(release: str) -> Kernel:
    store = CACHE / "kernels"
    try:
        for apt in apts(SUITES.get(series(release)), architecture(release)):
            if found := newest(apt, release):
                package, version = found
                root = store / f"{package}_{version}"
                if not root.exists():
                    apt.unpack(parts(package), version, root)
                return Kernel(release, package, version, root)
    except PackageMissing as error:
        raise KernelMissing(str(error)) from error
    return newest_unpacked(store, release)


def newest(apt: Apt, release: str) -> tuple[str, str] | None:
    """Package and version of the newest generic kernel.

    Since 6.19 a kernel consists of several packages, and its newest version may exist without a
    signature only. A guest does not check signatures.
    """
    kind = "binary(-unsigned)?" if release.startswith("7") else "image"
    pattern = rf"linux-{kind}-{re.escape(series(release))}\.[0-9.]+(-\d+|\+deb\d+(\+\d+)?)-{architecture(release).name}"
    return apt.newest(*apt.names("linux-", pattern))


def parts(package: str) -> list[str]:
    """The packages that make up a kernel.

    Since 6.19 the kernel, its modules and their list are packages of their own.
    """
    binary = re.match("linux-binary-(unsigned-)?", package)
    if not binary:
        return [package]
    return [package, *(package.replace(binary[0], part) for part in ("linux-modules-", "linux-base-"))]


def newest_unpacked(store: Path, release: str) -> Kernel:
    pattern = f"linux-*-{series(release)}.*-{architecture(release).name}_*"
    roots = sorted(store.glob(pattern), key=lambda root: root.stat().st_mtime)
    if not roots:
        raise KernelMissing(f"apt knows no kernel {release} and none is unpacked in {store}")
    package, version = roots[-1].name.split("_", 1)
    return Kernel(release, package, version, roots[-1])
