"""Debian packages through apt: found at run time and unpacked into the cache, never installed.

Debian removes old versions from its mirrors, so the lab writes no version down. The results name
the versions that were used.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from .architecture import AMD64, Architecture
from .paths import CACHE

SUITES = {"5.10": "bullseye", "7": "trixie-backports"}
"""The suite with a series of Linux that is not in the suites of the machine's own apt."""

DAY = 86400
"""Seconds after which apt's own lists of the lab are fetched again."""


class PackageMissing(Exception):
    """The lab cannot get a package, or the package cannot run on this machine."""


class Apt:
    """The apt of this machine, with its package sources and its lists."""

    def __init__(self, *options: str) -> None:
        # The cache may be in a home directory that apt's own user cannot enter.
        self.options = ["-oAPT::Sandbox::User=root", *options]

    @classmethod
    def private(cls, suite: str | None = None, architecture: Architecture = AMD64) -> Self:
        """An apt with lists of its own, so that the machine's lists stay as they are.

        Its source is `suite` on the machine's mirror, or the machine's sources.
        """
        directory = CACHE / f"apt-{suite or 'machine'}-{architecture.name}"
        for name in ("lists/partial", "cache/archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        options = [f"-oDir::State::lists={directory}/lists", f"-oDir::Cache={directory}/cache"]
        options += [f"-oAPT::Architecture={architecture.name}", f"-oAPT::Architectures={architecture.name}"]
        if suite:
            source = directory / "sources.list"
            keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
            source.write_text(f"deb [signed-by={keyring}] {mirror()} {suite} main\n")
            options += [f"-oDir::Etc::sourcelist={source}", "-oDir::Etc::sourceparts=/dev/null"]
        apt = cls(*options)
        updated = directory / "updated"
        if not updated.exists() or time.time() - updated.stat().st_mtime > DAY:
            ran = subprocess.run(["apt-get", *apt.options, "-qq", "update"], capture_output=True, text=True)
            if suite and "does not have a Release file" in ran.stderr:
                raise PackageMissing(f"the mirror has no {suite}")
            # Any other failure, such as a network that is down, must not skip tests.
            if ran.returncode:
                raise RuntimeError(f"apt-get update failed: {ran.stderr.strip()}")
            updated.touch()
        return apt

    def names(self, prefix: str, pattern: str) -> list[str]:
        """The packages whose name begins with `prefix` and matches the whole pattern."""
        names = self.output("apt-cache", "pkgnames", prefix).split()
        return [name for name in names if re.fullmatch(pattern, name)]

    def newest(self, *packages: str) -> tuple[str, str] | None:
        """The package with the highest version among these, and that version."""
        best: tuple[str, str] | None = None
        # Without a name, madison prints every package.
        output = self.output("apt-cache", "madison", *packages) if packages else ""
        # One line for each package and version: name | version | source
        for line in output.splitlines():
            name, version, source = (word.strip() for word in line.split("|"))
            if source.endswith("Packages") and (best is None or newer(version, best[1])):
                best = name, version
        return best

    def download(self, package: str, version: str, directory: Path) -> Path:
        command = ["apt-get", *self.options, "-qq", "download", f"{package}={version}"]
        subprocess.run(command, cwd=directory, check=True)
        return next(directory.glob(f"{package}_*.deb"))

    def unpack(self, packages: list[str], version: str, root: Path) -> None:
        """Downloads packages and unpacks them into `root`, which appears when it is complete."""
        store = root.parent
        store.mkdir(parents=True, exist_ok=True)
        unpacking = root.with_suffix(".unpacking")
        shutil.rmtree(unpacking, ignore_errors=True)
        for package in packages:
            archive = self.download(package, version, store)
            subprocess.run(["dpkg", "-x", archive, unpacking], check=True)
            archive.unlink()
        unpacking.rename(root)

    def output(self, program: str, *arguments: str) -> str:
        command = [program, *self.options, *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout


def apts(suite: str | None = None, architecture: Architecture = AMD64) -> Iterator[Apt]:
    """The machine's apt, then one with lists of its own. A `suite` and another architecture are
    only in the second.
    """
    if suite is None and architecture is AMD64:
        yield Apt()
    yield Apt.private(suite, architecture)


def mirror() -> str:
    """The address from which the machine's own apt gets Debian."""
    targets = Apt().output("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(RELEASE)")
    for line in targets.splitlines():
        address, origin, suite = [*line.split(), "", ""][:3]
        if origin == "Debian" and "-security" not in suite:
            return address
    raise PackageMissing("the machine's apt has no Debian mirror")


def newer(version: str, than: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", than]).returncode == 0
