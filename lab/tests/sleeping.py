"""A guest that sleeps: shared by the tests of the package and those of omr hibernate."""

import re
import signal
from pathlib import Path

from omrlab.debian import DebianGuest
from omrlab.guest import Guest, Process, SwapFile

PREPARE = "omr-prepare-hibernate.service"
WARM = "omr-warm.service"

# The daemon reclaims nothing here, so every effect is the preparation's. The daemon is not quiet
# because of the boot.
OBSERVE = 'mode = "observe"\n[sweep]\nafter_boot = "0s"\n'

# Here the daemon reclaims, through the backend that changes a limit for moments.
ACT = """
goal = "free"
backend = "memory.high"
[idle]
for = "2s"
[sweep]
after_boot = "0s"
[[group]]
match = "load"
class = "background"
"""


def guest_with(installed: Path, mem_mib: int = 768) -> DebianGuest:
    return DebianGuest(mem_mib, SwapFile(1024, 40), root=installed)


# Replaces the command of the preparation.
SHRINK = "ExecStart=\nExecStart=/usr/bin/omr prepare hibernate --target min --deadline 60s\nTimeoutStartSec=70s"


def configure(guest: DebianGuest, unit: str = "", config: str = OBSERVE) -> None:
    """Restarts the daemon with this configuration; `unit` is the text of a drop-in for the
    preparation.
    """
    guest.shell("mkdir -p /etc/omr/conf.d")
    guest.write("/etc/omr/conf.d/test.toml", config, create=True)
    guest.run(["systemctl", "restart", "omr"])
    # Only hibernation starts these units. (systemd forgets the state of a unit when the unit has
    # ended.)
    for started in (PREPARE, WARM):
        assert not guest.journal(started)
    if unit:
        drop_in(guest, unit)


def drop_in(guest: DebianGuest, text: str, unit: str = PREPARE) -> None:
    directory = f"/etc/systemd/system/{unit}.d"
    guest.shell(f"mkdir -p {directory}")
    guest.write(f"{directory}/test.conf", f"[Service]\n{text}\n", create=True)
    guest.shell("systemctl daemon-reload")


def fill(guest: Guest, amount: str, group: str = "load") -> Process:
    guest.group(group)
    load = guest.spawn(["omr-guest", "fill", amount], group=group)
    load.line_with("ready", timeout=120)
    return load


def verify(guest: Guest, load: Process) -> None:
    load.kill(signal.SIGUSR1)
    assert load.line_with("verified", timeout=300)["errors"] == 0


def boot_id(guest: Guest) -> str:
    return guest.read("/proc/sys/kernel/random/boot_id")


def quiet_after_waking(guest: DebianGuest) -> bool:
    return "no sweep after waking up" in guest.run(["omr", "explain"]).stdout


def ends(guest: DebianGuest, unit: str) -> list[str]:
    """The result of each run of a unit, from the journal: systemd forgets results with the unit."""
    return re.findall("Deactivated successfully|Failed with result", guest.journal(unit))
