"""Snapshots of booted machines. Many tests begin with the same machine, so it boots once.

QEMU writes the memory and devices of a stopped machine to a file, as for a migration, and reads
them from there. The command line must be the same, except for paths and the speed of disks. The
guest's clocks continue where they stopped: for the guest no time has passed, and its wall clock is
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

MOST_BYTES = 2 << 30
"""What all snapshots may have on disk. With more, those are removed that were used longest ago: the
tests make some sixty, of which each has 100 to 400 MB, and few are used for long.
"""


@dataclass(frozen=True)
class State:
    """The host's own data about the machine, needed to continue."""

    last_id: int
    """The id of the last request to the agent."""
    resume_offset: int


@dataclass(frozen=True)
class Snapshot:
    """A directory with the memory, the disks, the first file system and the state. The snapshot is
    complete when the state exists.
    """

    directory: Path

    @classmethod
    def of(cls, directory: Path, like_this: str, initramfs: bytes) -> Self:
        """The snapshot of such a machine with this first file system. It need not exist yet."""
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
        """Holds a lock, so that only one test process at a time makes the snapshot, starts from it
        or removes it.
        """
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def remove(self) -> None:
        """Removes it, if nobody uses it. The lock stays, as somebody may wait for it."""
        with open(self.directory / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self.state.unlink(missing_ok=True)
            for path in self.directory.iterdir():
                if path.name != "lock":
                    path.unlink()

    def used(self) -> float:
        """When it was last used; 0: it does not exist."""
        try:
            return self.state.stat().st_mtime
        except FileNotFoundError:
            return 0

    def bytes(self) -> int:
        """What it has on disk: much of the images is holes."""
        return sum(path.stat().st_blocks * 512 for path in self.directory.iterdir())

    def keep(self, files: list[Path], last_id: int, resume_offset: int) -> None:
        for path in files:
            images.copy(path, self.directory / path.name)
        self.state.write_text(json.dumps(asdict(State(last_id, resume_offset))))

    def bring(self, directory: Path) -> State:
        """Copies the disks to the directory of a new machine. The first file system is only read,
        so a link is enough.
        """
        for path in self.directory.iterdir():
            destination = directory / path.name
            if path.name == "initramfs":
                destination.unlink(missing_ok=True)
                os.link(path, destination)
            elif path.name not in ("memory", "state.json", "lock"):
                images.copy(path, destination)
        self.state.touch()
        return State(**json.loads(self.state.read_text()))


def make_room(directory: Path, most: int = MOST_BYTES) -> None:
    """Removes the snapshots that were used longest ago, so that the others have at most this."""
    kept = 0
    for snapshot in sorted(map(Snapshot, directory.iterdir()), key=Snapshot.used, reverse=True):
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            kept += snapshot.bytes()
        if kept > most:
            snapshot.remove()
