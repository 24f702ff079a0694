"""The directories of the lab."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GUEST = REPOSITORY / "lab" / "guest"
"""Scripts that run in a guest."""
OUT = REPOSITORY / "lab" / "out"
CAPTURED = REPOSITORY / "crates" / "testkit" / "captured"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omr-lab"


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Holds a lock, so that only one lab or test process at a time fills this part of the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{what}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
