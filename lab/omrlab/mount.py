"""`omr mount` in a guest."""

from .daemon import CLASSES, CONFIG
from .guest import Guest, Process

DIR = "/run/cg"

FILE = "memory.swap.reclaim"


def prepare(guest: Guest) -> None:
    """Prepares a guest for omr mount: FUSE, the directory, and classes for groups."""
    # FUSE is built into Debian's 6.12.
    guest.shell(f"mkdir -p {DIR} /etc/omr; [ ! -f /modules/fuse.ko ] || insmod /modules/fuse.ko")
    guest.write(CONFIG, CLASSES, create=True)


def mount(guest: Guest, directory: str = DIR, group: str | None = None) -> Process:
    omr = guest.spawn(["omr", "mount", "--foreground", directory], group=group)
    guest.wait_for(lambda: "offers" in omr.stderr(), 30, "mount")
    return omr
