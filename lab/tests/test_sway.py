"""`omr follow sway` with a real sway, without a screen, and windows of foot. On this machine, where both are installed."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omrlab.binaries import build

NOBODY = 65534

SOON = 30
"""Seconds; a focus is followed in milliseconds."""

missing = [program for program in ("sway", "swaymsg", "foot") if not shutil.which(program)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def wait_for(condition: Callable[[], object], what: str) -> object:
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain: {what}")


class Sway:
    """A compositor of the test's own, and what is started in its session."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.processes = directory, []
        (directory / "config").write_text("focus_follows_mouse no\n")
        # sway refuses to be root.
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            os.chown(directory, NOBODY, NOBODY)
        self.environment = os.environ | {
            "XDG_RUNTIME_DIR": str(directory),
            "HOME": str(directory),
            "WLR_BACKENDS": "headless",
            "WLR_RENDERER": "pixman",
            "WLR_LIBINPUT_NO_DEVICES": "1",
            "SWAYSOCK": str(directory / "sway.sock"),
        }
        self.sway = self.spawn("sway", "--config", str(directory / "config"), **self.user)
        wait_for(lambda: self.display() and (directory / "sway.sock").exists(), "sway")
        self.environment["WAYLAND_DISPLAY"] = self.display()

    def display(self) -> str:
        return next((path.name for path in self.directory.glob("wayland-?")), "")

    def spawn(self, *argv: str, **options: object) -> subprocess.Popen:
        log = (self.directory / f"{Path(argv[0]).name}.log").open("ab")
        options = {"stdout": log, "stderr": log} | options
        self.processes.append(subprocess.Popen(argv, cwd=self.directory, env=self.environment, **options))
        return self.processes[-1]

    def window(self) -> subprocess.Popen:
        return self.spawn("foot", "sleep", "600", **self.user)

    def tell(self, command: str) -> None:
        subprocess.run(["swaymsg", command], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def sway() -> Iterator[Sway]:
    # pytest's own directories are for nobody but who runs it.
    with tempfile.TemporaryDirectory() as directory:
        sway = Sway(Path(directory))
        try:
            yield sway
        finally:
            sway.end()


def test_the_window_with_the_focus_is_followed(sway: Sway, tmp_path: Path) -> None:
    told = tmp_path / "told"
    sway.spawn(str(build("omr")), "follow", "sway", "--dry-run", stdout=told.open("wb"))

    def last() -> list[int] | None:
        lines = told.read_text().splitlines()
        return [statement["of"]["process"]["pid"] for statement in json.loads(lines[-1])] if lines else None

    wait_for(lambda: last() == [], "an empty workspace")
    first = sway.window()
    wait_for(lambda: last() == [first.pid], "the first window")
    second = sway.window()
    wait_for(lambda: last() == [second.pid], "the second window")
    sway.tell(f"[pid={first.pid}] focus")
    wait_for(lambda: last() == [first.pid], "the first one again")
    sway.tell("workspace 2")
    wait_for(lambda: last() == [], "another workspace")
    sway.tell("workspace 1")
    wait_for(lambda: last() == [first.pid], "the workspace before")
    first.kill()
    wait_for(lambda: last() == [second.pid], "what is left")
    # Nobody has the focus where there is no compositor.
    sway.sway.kill()
    wait_for(lambda: last() == [], "its end")
