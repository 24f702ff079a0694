"""A machine of files with a history, omr's daemon and `omr web` on it, and a browser.

The programs are those that cargo has built. `tools/test web` builds them; `OMR_PROFILE=release
tools/test web` builds and tests those of releases, to measure.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[4]
PROFILE = os.environ.get("OMR_PROFILE", "debug")
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / PROFILE
CHROMIUM = "/usr/bin/chromium"
PLENTY = 30
"""Seconds. Nothing takes this long, on the slowest machine."""
expect.set_options(timeout=PLENTY * 1000)
TOKEN = "0123456789abcdef0123456789abcdef"
SETTINGS = """goal = 'free'
[stop]
sample = '20ms'
[sweep]
step = '128KiB'
write_time = '50ms'
smallest = '128KiB'
after_boot = '0s'
"""


def wait_until(what: str, done: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < PLENTY, f"waited in vain: {what}"
        time.sleep(0.05)


class Machine:
    """Files that the daemon takes for a machine, with the programs that run on them."""

    def __init__(self, *words: str) -> None:
        # In memory: the daemon writes, and reads the answers at once.
        self.dir = Path(tempfile.mkdtemp(prefix="omr-web-", dir="/dev/shm"))
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.port = 0
        if words:
            subprocess.run([BUILT / "examples/week", self.dir, *words, "machine"], check=True)
        else:
            (self.dir / "var/lib/omr").mkdir(parents=True)
        (self.dir / "etc/omr").mkdir(parents=True)
        (self.dir / "etc/omr/omr.toml").write_text(SETTINGS)
        self.token = self.dir / "token"
        self.token.write_text(f"{TOKEN}\n")
        self.token.chmod(0o600)

    def omr(self, *words: str | Path) -> str:
        command = [BUILT / "omr", "--root", self.dir, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PLENTY)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_daemon(self) -> None:
        log = (self.dir / "daemon.log").open("w")
        command = [BUILT / "omr-daemon", "--root", self.dir, "--foreground"]
        self.running["daemon"] = subprocess.Popen(command, stderr=log, text=True)
        wait_until("the daemon has started", lambda: " started" in (self.dir / "daemon.log").read_text())

    def start_server(self) -> None:
        """Starts it with a token, on the port of the one before."""
        command = [BUILT / "omr", "--root", self.dir, "web", "--listen", f"127.0.0.1:{self.port}"]
        server = subprocess.Popen([*command, "--token-file", self.token], stdout=subprocess.PIPE, text=True)
        self.running["server"] = server
        assert server.stdout
        line = server.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found, f"no address in {line!r}"
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        process.wait(PLENTY)

    def remove(self) -> None:
        for name in list(self.running):
            self.stop(name)
        shutil.rmtree(self.dir)


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """A week of 60 groups and of hostile ones, for tests that only read."""
    machine = Machine("60", "hostile")
    machine.start_daemon()
    machine.start_server()
    yield machine
    machine.remove()


@pytest.fixture
def new_machine() -> Iterator[Callable[..., Machine]]:
    """Makes machines for one test. They end after the pages."""
    machines: list[Machine] = []

    def new_machine(*words: str, daemon: bool = True) -> Machine:
        machine = Machine(*words)
        machines.append(machine)
        if daemon:
            machine.start_daemon()
        machine.start_server()
        return machine

    yield new_machine
    for machine in machines:
        machine.remove()


@pytest.fixture
def own_machine(new_machine) -> Machine:
    """One for a test that stops its programs, or changes its files."""
    return new_machine("6")


FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>DIR</dir>
<cachedir>DIR/cache</cachedir>
<match target="pattern"><edit name="antialias" mode="assign"><bool>false</bool></edit></match>
</fontconfig>
"""


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    # The browser has this font alone, whatever else is installed, and its edges are not smoothed,
    # which each build does in its own way.
    fonts = tmp_path_factory.mktemp("fonts")
    (fonts / "fonts.conf").write_text(FONTS.replace("DIR", str(fonts)))
    for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"):
        shutil.copy(f"/usr/share/fonts/truetype/dejavu/{name}", fonts)
    # Root has no sandbox in a container.
    words = ["--no-sandbox", "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"]
    environment = {**os.environ, "FONTCONFIG_FILE": str(fonts / "fonts.conf")}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=words, env=environment)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages that carry the token, and fails for what their console has."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_page(url: str, **options: Any) -> Page:
        offline = url.startswith("file:")
        options.setdefault("viewport", {"width": 1280, "height": 800})
        headers = {} if offline else {"Authorization": f"Bearer {TOKEN}"}
        context = browser.new_context(extra_http_headers=headers, offline=offline, **options)
        context.set_default_timeout(PLENTY * 1000)
        contexts.append(context)
        page = context.new_page()
        page.errors = errors  # type: ignore[attr-defined]
        page.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors, errors
