"""Who is there, by a real logind, terminals and inhibitors. The package's unit runs `omr follow
presence` in its sandbox.
"""

import time
from pathlib import Path

from omrlab.binaries import build
from omrlab.debian import LAB, DebianGuest
from omrlab.guest import Disk, Process
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


def files() -> dict[str, Path]:
    packaged = ("systemd/omr-presence.service", "sysusers.d/omr.conf")
    return {name: build(name) for name in ("omr", "omr-daemon")} | {
        Path(name).name: PACKAGING / name for name in packaged
    }


def start_omr(guest: DebianGuest) -> None:
    guest.shell(START)
    guest.write("/etc/omr/omr.toml", CONFIG, create=True)
    guest.spawn(["omr-daemon", "--foreground"])
    guest.wait_for(lambda: guest.run(["omr", "status"], check=False).code == 0, SOON, "daemon")


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
    with DebianGuest(files=files()) as guest:
        start_omr(guest)
        # Nothing tells the daemon yet.
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


def set_lid(guest: DebianGuest, action: str) -> None:
    """logind does this when the lid closes."""
    drop_in = f"[Login]\nHandleLidSwitch={action}\nHandleHibernateKey=hibernate\n"
    guest.write("/etc/systemd/logind.conf.d/lid.conf", drop_in, create=True)
    guest.shell("systemctl restart systemd-logind")


def goal(guest: DebianGuest) -> dict:
    return guest.run(["omr", "status", "--json"]).json()["goal"]


def test_the_machine_hibernates_if_that_is_the_action_of_its_lid() -> None:
    with DebianGuest(swap=Disk(1024), files=files()) as guest:
        guest.shell("mkdir -p /etc/systemd/logind.conf.d /var/lib/omr")
        set_lid(guest, "suspend")
        # A disk that writes 5 MiB of an image within 5 s.
        swap = guest.shell("awk 'NR == 2 { print $1 }' /proc/swaps").strip()
        guest.write("/var/lib/omr/disk-rate.json", f'{{"bytes_per_second":1048576,"device":"{swap}"}}', create=True)
        start_omr(guest)
        guest.run(["systemctl", "start", "omr-presence"], timeout=90)
        # The control: the machine could hibernate, and no setting has it do so.
        wait_for_presence(guest, "nobody")
        assert goal(guest)["need"] is None, goal(guest)
        assert "nothing to gain" in guest.run(["omr", "status"]).stdout

        set_lid(guest, "hibernate")
        need = guest.wait_for(lambda: goal(guest)["need"], SOON, "a need", every=1)
        assert (need["purpose"]["for"], need["purpose"]["by"]) == ("hibernate", "lid"), need
        for argv in (["omr", "status"], ["omr", "explain"]):
            assert "the lid's action is hibernation" in guest.run(argv).stdout, argv

        # Nobody tells any more.
        guest.shell("systemctl kill --signal=KILL omr-presence")
        guest.wait_for(lambda: goal(guest)["need"] is None, SOON, "no need", every=1)
