"""`omr follow` with the real programs that it asks: sway without a screen and with windows of foot,
and GameMode on a bus of the test's own.

These tests run on this machine, as a user without rights. crates/omr/tests/it/follow.rs tests other
answers of these programs, and a logind.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omrlab.binaries import build

NOBODY = 65534

SOON = 30
"""Seconds. omr follow notices a change within milliseconds. GameMode checks every 5 s which of its
games have ended.
"""


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain: {what}")


class Session:
    """The processes of a user. sway refuses to run as root, and GameMode needs rights to change
    this machine.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.processes = directory, []
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            os.chown(directory, NOBODY, NOBODY)
        self.environment = os.environ | {"XDG_RUNTIME_DIR": str(directory), "HOME": str(directory)}

    def spawn(self, *argv: str, **options: Any) -> subprocess.Popen:
        log = (self.directory / f"{Path(argv[0]).name}.log").open("ab")
        options = {"stdout": log, "stderr": log} | self.user | options
        self.processes.append(subprocess.Popen(argv, cwd=self.directory, env=self.environment, **options))
        return self.processes[-1]

    def run(self, *argv: str) -> None:
        """Runs a command to its end."""
        assert self.spawn(*argv).wait(SOON) == 0, (self.directory / f"{argv[0]}.log").read_text()

    def end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


class Follow:
    """`omr follow`, and the statements that it would make."""

    def __init__(self, session: Session, source: str) -> None:
        self.told = session.directory / "told"
        # A copy, because that user may not look into the build directory.
        omr = shutil.copy(build("omr"), session.directory)
        session.spawn(str(omr), "follow", source, "--dry-run", stdout=self.told.open("wb"))

    def tells(self, processes: list[subprocess.Popen], when: str) -> None:
        """Waits until exactly these processes are in the foreground."""
        expected = sorted(process.pid for process in processes)

        def last() -> list[int] | None:
            lines = self.told.read_text().splitlines()
            return sorted(statement["of"]["process"]["pid"] for statement in json.loads(lines[-1])) if lines else None

        wait_for(lambda: last() == expected, f"{when}: {expected}, and it is {last()}")


@pytest.fixture
def session() -> Iterator[Session]:
    # Only the user who runs pytest may enter pytest's own directories.
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory))
        try:
            yield session
        finally:
            session.end()


def test_the_window_with_the_focus_is_followed(session: Session) -> None:
    (session.directory / "config").write_text("focus_follows_mouse no\n")
    socket = session.directory / "sway.sock"
    session.environment |= {
        "WLR_BACKENDS": "headless",
        "WLR_RENDERER": "pixman",
        "WLR_LIBINPUT_NO_DEVICES": "1",
        "SWAYSOCK": str(socket),
    }
    sway = session.spawn("sway", "--config", str(session.directory / "config"))

    def displays() -> list[str]:
        return [path.name for path in session.directory.glob("wayland-?")]

    wait_for(lambda: displays() and socket.exists(), "sway")
    session.environment["WAYLAND_DISPLAY"] = displays()[0]

    follow = Follow(session, "sway")
    follow.tells([], "an empty workspace")
    first = session.spawn("foot", "sleep", "600")
    follow.tells([first], "the first window")
    second = session.spawn("foot", "sleep", "600")
    follow.tells([second], "the second window")
    session.run("swaymsg", f"[pid={first.pid}] focus")
    follow.tells([first], "the first one again")
    session.run("swaymsg", "workspace 2")
    follow.tells([], "another workspace")
    session.run("swaymsg", "workspace 1")
    follow.tells([first], "the workspace before")
    first.kill()
    follow.tells([second], "what is left")
    # No window has the focus where there is no compositor.
    sway.kill()
    follow.tells([], "its end")


def test_games_that_gamemode_has_registered_are_followed(session: Session) -> None:
    bus = session.directory / "bus"
    session.environment["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}"
    # A question to this bus starts no program.
    (session.directory / "bus.conf").write_text(
        f"<busconfig><type>session</type><listen>unix:path={bus}</listen><policy context='default'>"
        "<allow send_destination='*'/><allow eavesdrop='true'/><allow own='*'/></policy></busconfig>"
    )
    session.spawn("dbus-daemon", "--nofork", "--config-file=bus.conf")
    wait_for(bus.exists, "the bus")

    follow = Follow(session, "gamemode")
    follow.tells([], "no GameMode")
    gamemode = session.spawn("gamemoded")
    wait_for(lambda: session.spawn("gamemoded", "--status").wait(SOON) == 0, "GameMode")
    first, second = (session.spawn("sleep", "600") for _ in range(2))
    # The option -r registers a process, or removes a process that is registered.
    session.run("gamemoded", f"-r{first.pid}")
    follow.tells([first], "one of two is registered")
    session.run("gamemoded", f"-r{second.pid}")
    follow.tells([first, second], "the other one, too")
    session.run("gamemoded", f"-r{first.pid}")
    follow.tells([second], "the first one is not any more")
    second.kill()
    second.wait()
    follow.tells([], "its end")
    session.run("gamemoded", f"-r{first.pid}")
    follow.tells([first], "the first one again")
    gamemode.kill()
    follow.tells([], "no GameMode any more")
