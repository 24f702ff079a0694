"""`omr prepare` in a guest, and other ways to make a guest's memory free beforehand."""

from collections.abc import Callable
from typing import TypedDict

from .daemon import Daemon
from .guest import Guest, GuestError

PARTIAL = 4
"""omr's exit code when it did less than asked. A scenario measures that, too."""


class Prepared(TypedDict, total=False):
    """Duration, exit code and output of a preparation. Empty in an arm that prepares nothing."""

    seconds: float
    code: int | None
    stdout: str
    stderr: str


def omr_prepare(guest: Guest, *words: str, timeout: float) -> Prepared:
    command = ["omr", "prepare", *words]
    omr = guest.run(command, group="omr.service", timeout=timeout, check=False)
    if omr.code not in (0, PARTIAL):
        raise GuestError(f"{' '.join(command)} ended with {omr.code}: {omr.stderr}")
    return {"code": omr.code, "stdout": omr.stdout, "stderr": omr.stderr}


def idle_daemon(guest: Guest, config: str, seconds: float) -> Prepared:
    """Leaves the guest idle for this time, with omr's daemon, which goes on afterwards."""
    Daemon(guest, config=config)
    guest.shell(f"sleep {seconds}", timeout=seconds + 60)
    return {}


def timed(guest: Guest, prepare: Callable[[], Prepared]) -> Prepared:
    """Adds the duration of a preparation, by the guest's clock."""
    began = guest.monotonic_ns()
    prepared = prepare()
    seconds = (guest.monotonic_ns() - began) / 1e9
    return {"seconds": seconds, **prepared}
