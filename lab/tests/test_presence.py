"""Who is there, by a real logind, terminals and inhibitors. The package's unit runs `omr follow
presence` in its sandbox.
"""

import time
from pathlib import Path

from omrlab.binaries import build
from omrlab.debian import LAB, DebianGuest
from omrlab.guest import Process
from omrlab.paths import REPOSITORY

PACKAGING = REPOSITORY / "packaging"

CONFIG = """
goal = "auto"
[presence]
away_after = "1m"
"""

START = f"""
sed -i 's:/usr/bin/omr:{LAB}/omr:' {LAB}/omr-presence.service
cp {LAB}/omr-presence.service /etc/systemd/system/
systemd-sysusers {LAB}/omr.conf
mkdir -p /etc/omr /run/omr /var/lib/omr
useradd --create-home member
systemctl daemon-reload
"""

SOON = 40
"""Seconds. `omr follow` asks logind every 10 s and gives up a hung one after 10 s."""


def session(guest: DebianGuest, unit: str, *argv: str) -> Process:
    """A session of a user, as login(1) makes one."""
    run = ["systemd-run", "--quiet", f"--unit={unit}", "--property=User=member", "--property=PAMName=login"]
    return guest.spawn([*run, *argv])


def wait_for_presence(guest: DebianGuest, expected: str, timeout: float = SOON) -> dict:
    """Waits until the daemon tells this of who is there."""
    last: dict = {}

    def is_told() -> bool:
        nonlocal last
        last = guest.run(["omr", "status", "--json"]).json()["goal"]["presence"]
        return expected in (last["is"], last.get("why", {}).get("sign"))

    try:
        guest.wait_for(is_told, timeout, expected, every=1)
    except Exception as err:
        raise AssertionError(f"{expected} is not told, but {last}: {guest.journal('omr-presence')}") from err
    return last


def test_sessions_terminals_and_inhibitors_tell_who_is_there() -> None:
    files = {"omr": build("omr"), "omr-daemon": build("omr-daemon")}
    packaged = ("systemd/omr-presence.service", "sysusers.d/omr.conf")
    files |= {Path(name).name: PACKAGING / name for name in packaged}
    with DebianGuest(files=files) as guest:
        guest.shell(START)
        guest.write("/etc/omr/omr.toml", CONFIG, create=True)
        guest.spawn(["omr-daemon", "--foreground"])
        # Nothing tells the daemon yet.
        guest.wait_for(lambda: guest.run(["omr", "status"], check=False).code == 0, SOON, "daemon")
        assert guest.run(["omr", "status", "--json"]).json()["goal"]["presence"] == {"is": "unknown"}
        guest.run(["systemctl", "start", "omr-presence"], timeout=90)
        wait_for_presence(guest, "nobody")
        assert "presence: nobody has logged in since boot" in guest.run(["omr", "status"]).stdout

        # A video. A member of no group can hold the inhibitor as well.
        inhibitor = guest.spawn(["systemd-inhibit", "--what=idle", "--mode=block", "sleep", "600"])
        wait_for_presence(guest, "inhibited")
        inhibitor.kill()

        # A session with a terminal that logind knows.
        session(guest, "known", "--pty", "cat")
        told = wait_for_presence(guest, "used")
        assert told["why"]["place"] == "local", told
        guest.shell("systemctl kill --signal=KILL known")
        wait_for_presence(guest, "lately")

        # A session as sshd makes it: the terminal comes later, and logind does not know of it.
        kind = ("--setenv=XDG_SESSION_TYPE=tty", "--setenv=XDG_SESSION_CLASS=user")
        # The input of script(1) has no end.
        script = "sleep 600 | script --quiet --command 'sleep 600' /dev/null"
        session(guest, "unknown", *kind, "sh", "-c", script)
        listed = guest.wait_for(lambda: guest.shell("loginctl list-sessions --no-legend"), SOON, "session")
        name = listed.split()[0]
        shown = guest.shell(f"loginctl show-session {name} -p Type -p TTY -p Class -p IdleSinceHint")
        assert "Type=tty" in shown and "IdleSinceHint=0" in shown, shown
        wait_for_presence(guest, "used")
        began = time.monotonic()
        assert wait_for_presence(guest, "away", 120)["for"]["secs"] >= 60
        print(f"away after {time.monotonic() - began:.0f} s", shown)
        memory = guest.shell("systemctl show -p MemoryCurrent -p CPUUsageNSec omr-presence")
        print(memory)
        # Somebody types: the terminal is read.
        terminal = guest.shell("ls -t /dev/pts | grep -v ptmx | head -n 1").strip()
        guest.shell(f"touch -a /dev/pts/{terminal}")
        wait_for_presence(guest, "used")

        # A logind that hangs is no absence.
        guest.shell("systemctl kill --signal=STOP systemd-logind")
        wait_for_presence(guest, "unknown")
        guest.shell("systemctl kill --signal=CONT systemd-logind")
        wait_for_presence(guest, "used")
        # Neither is a program that hangs instead of asking it.
        guest.shell("systemctl kill --signal=STOP omr-presence")
        wait_for_presence(guest, "unknown")
        guest.shell("systemctl kill --signal=CONT omr-presence")
        wait_for_presence(guest, "used")
        guest.shell("systemctl kill --signal=KILL omr-presence")
        wait_for_presence(guest, "unknown")
