"""A person at a desk, in a Debian guest: works in Chromium, vim and a compiler, reads, has a call,
goes away, comes back. Runs in the person's session, as the person.

    person.py PLAN DIRECTORY

PLAN is JSON: the seed, the seconds between two actions, and the phases with their seconds. Writes
`started` into the directory when all programs run, and `actions` at the end: each action with its
phase, the monotonic time at which it began, and its milliseconds.
"""

import json
import os
import pty
import random
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import websocket

Result = TypeVar("Result")

PORT = 9222

USED, UNUSED = 3, 3
"""The tabs that the person works with, and those that stay open."""

TAB_MIB = {True: 24, False: 40}
"""The data of a tab, by whether it is used."""

SOURCES = 12
"""The files of the program that is built."""

LINES = 300_000
"""The lines of the text that is edited."""

PAGE = """<!doctype html><title>tab {number}</title><body><script>
const data = new Uint8Array({mib} << 20);
for (let at = 0; at < data.length; at += 65536) crypto.getRandomValues(data.subarray(at, at + 65536));
for (let line = 0; line < 400; line++) document.body.append(Object.assign(document.createElement('p'), {{
  textContent: 'line ' + line + ' ' + Array.from(data.subarray(line * 64, line * 64 + 16)).join(' ')}}));
function act(part) {{
  let sum = 0;
  const length = data.length / 8, begin = (part % 8) * length;
  for (let at = begin; at < begin + length; at += 512) sum += data[at];
  window.scrollTo(0, part * 37 % 4000);
  return sum + document.body.getBoundingClientRect().height;
}}
</script>"""

SOURCE = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n" + "".join(
    f'int f{n}(int x) {{ char b[64]; snprintf(b, sizeof b, "%d", x * {n}); return atoi(b) + (int)strlen(b); }}\n'
    for n in range(60)
)


class Browser:
    """Chromium with its tabs, over the DevTools protocol."""

    def __init__(self, directory: Path) -> None:
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += [
            f"--remote-debugging-port={PORT}",
            "--remote-allow-origins=*",
            f"--user-data-dir={directory}/profile",
        ]
        log = (directory / "chromium.log").open("w")
        self.process = application("chromium", command, stdout=log, stderr=log)
        self.number = 0
        self.tabs = []
        for number in range(USED + UNUSED):
            page = directory / f"{number}.html"
            page.write_text(PAGE.format(number=number, mib=TAB_MIB[number < USED]))
            self.tabs.append(self.open(f"file://{page}"))

    def open(self, url: str) -> websocket.WebSocket:
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}/json/new?{url}", method="PUT")
        tab = json.load(wait_for(lambda: urllib.request.urlopen(request, timeout=120)))
        connection = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=120)
        wait_for(lambda: self.evaluate(connection, "act(0)") or None)
        return connection

    def evaluate(self, tab: websocket.WebSocket, text: str) -> float:
        self.number += 1
        tab.send(json.dumps({"id": self.number, "method": "Runtime.evaluate", "params": {"expression": text}}))
        while (answer := json.loads(tab.recv())).get("id") != self.number:
            pass
        return float(answer["result"]["result"].get("value", 0))

    def act(self, number: int) -> None:
        self.evaluate(self.tabs[number % USED], f"act({number})")


class Editor:
    """vim with a long text in a terminal."""

    def __init__(self, directory: Path) -> None:
        text = directory / "text"
        text.write_text("".join(f"line {number} of a text, {number * 7919 % LINES}\n" for number in range(LINES)))
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "dumb"
            os.execvp("systemd-run", [*scope("vim"), "vim", "-u", "NONE", "-n", "-N", str(text)])
        self.act(0)

    def act(self, number: int) -> None:
        """Finds a line far away and shows it."""
        line, mark = number * 104_729 % LINES, f"mark{number}x"
        os.write(self.terminal, f"\x1b:{line}\r:echo '{mark[:4]}' . '{mark[4:]}'\r".encode())
        seen, end = b"", time.monotonic() + 120
        while mark.encode() not in seen:
            if time.monotonic() > end or not select.select([self.terminal], [], [], 120)[0]:
                raise SystemExit(f"vim does not answer: {seen[-300:]!r}")
            seen += os.read(self.terminal, 65536)


class Compiler:
    """A program that is built file by file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for number in range(SOURCES):
            (directory / f"part{number}.c").write_text(SOURCE)
        self.act(0)

    def act(self, number: int) -> None:
        source = self.directory / f"part{number % SOURCES}.c"
        application("gcc", ["gcc", "-O1", "-c", "-o", f"{source}.o", str(source)]).wait()


def scope(name: str) -> list[str]:
    """A group for an application, as a desktop makes one."""
    return ["systemd-run", "--user", "--scope", "--quiet", "--slice=app.slice", f"--unit=app-{name}-{time.time_ns()}"]


def application(name: str, command: list[str], **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*scope(name), *command], stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def wait_for(ready: Callable[[], Result | None], seconds: float = 300) -> Result:
    """The first result, once there is one."""
    end = time.monotonic() + seconds
    while True:
        try:
            if (result := ready()) is not None:
                return result
        except (OSError, KeyError, ValueError) as error:
            if time.monotonic() > end:
                raise SystemExit(f"waited in vain: {error}") from error
        time.sleep(0.2)


def main(plan_path: str, place: str) -> None:
    plan = json.loads(Path(plan_path).read_text())
    directory = Path(place)
    programs = {"browse": Browser(directory), "edit": Editor(directory), "build": Compiler(directory)}
    kinds = ["browse", "browse", "browse", "edit", "build"]
    chance = random.Random(plan["seed"])
    actions: list[dict[str, object]] = []
    phases: list[dict[str, object]] = []
    (directory / "started").write_text("yes")
    for phase in plan["phases"]:
        phases.append({"kind": phase["kind"], "at": round(time.monotonic(), 3)})
        end = time.monotonic() + phase["seconds"]
        inhibitor = None
        if phase["kind"] == "call":
            inhibitor = subprocess.Popen(["systemd-inhibit", "--what=idle", "--why=a call", "sleep", "infinity"])
        due = time.monotonic()
        while phase["kind"] == "work" and (due := due + plan["every"] * chance.uniform(0.5, 1.5)) < end:
            time.sleep(max(0.0, due - time.monotonic()))
            # The terminal of the session is read, as when somebody types.
            os.utime(os.ttyname(0), (time.time(), os.stat(os.ttyname(0)).st_mtime))
            kind = chance.choice(kinds)
            began = time.monotonic()
            programs[kind].act(len(actions) + 1)
            took = round((time.monotonic() - began) * 1000, 3)
            actions.append({"kind": kind, "phase": len(phases) - 1, "at": round(began, 3), "ms": took})
        time.sleep(max(0.0, end - time.monotonic()))
        if inhibitor:
            inhibitor.terminate()
            inhibitor.wait()
    (directory / "actions").write_text(json.dumps({"phases": phases, "actions": actions}))


main(*sys.argv[1:])
