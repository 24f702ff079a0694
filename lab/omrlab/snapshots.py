"""Snapshots of machines that have booted: what many tests begin with is booted once.

QEMU writes a stopped machine's memory and devices to a file, as if to migrate it, and reads them
from there. The command line has to be the same, except for the speed of disks and for paths. The
guest's clocks go on from where they were: for the guest no time has passed, and its wall clock is
late by the age of the snapshot.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from . import images


@dataclass(frozen=True)
class State:
    """What the host has to know to go on."""

    last_id: int
    """Of the requests that the agent has had."""
    resume_offset: int


@dataclass(frozen=True)
class Snapshot:
    """A directory: the memory, the disks, the first file system, the state. It is there as soon as
    the state is.
    """

    directory: Path

    @classmethod
    def of(cls, directory: Path, like_this: str, initramfs: bytes) -> Self:
        """The place of the snapshot of such a machine with this first file system."""
        name = hashlib.sha256(like_this.encode() + b"\0" + initramfs).hexdigest()[:16]
        (directory / name).mkdir(exist_ok=True)
        return cls(directory / name)

    @property
    def memory(self) -> Path:
        return self.directory / "memory"

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    def exists(self) -> bool:
        return self.state.exists()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Two test processes make it one after the other."""
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def keep(self, files: list[Path], last_id: int, resume_offset: int) -> None:
        for path in files:
            images.copy(path, self.directory / path.name)
        self.state.write_text(json.dumps(asdict(State(last_id, resume_offset))))

    def bring(self, directory: Path) -> State:
        """Copies the disks to where a machine is to go on. Its first file system is only read, so
        that a link does.
        """
        for path in self.directory.iterdir():
            destination = directory / path.name
            if path.name == "initramfs":
                destination.unlink(missing_ok=True)
                os.link(path, destination)
            elif path.name not in ("memory", "state.json", "lock"):
                images.copy(path, destination)
        return State(**json.loads(self.state.read_text()))
