"""omr's history and ledger, copied out of a guest, and omr's charts of them, drawn on the host."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from . import binaries
from .guest import Guest

OFTEN = """
[history]
every = "10s"
budget = "10%"
"""
"""The configuration for a guest that lives for minutes."""

CHARTS = {
    "unused": "omr's history of the guest: memory that was not used, by the time for which it was not used.",
    "taken": "What omr took before hibernation, and what came back after it, when the load read all of its memory.",
    "decisions": "What omr did, and when.",
}
"""The charts that a report begins with, and their captions."""

STATE = "var/lib/omr"


def copy(guest: Guest, directory: Path) -> None:
    """Copies omr's records into a directory for `omr --root`, once a last sample has come."""
    guest.shell("sleep 11", timeout=60)
    names = guest.shell(f"cd /{STATE} && ls ledger.jsonl history/*").split()
    for name in names:
        path = directory / STATE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(guest.read_long(f"/{STATE}/{name}"))
    uptime, now = (float(text) for text in guest.shell("cut -d' ' -f1 /proc/uptime; date +%s").split())
    times = {"from": now - uptime, "to": now}
    (directory / "times.json").write_text(json.dumps(times))


def omr(directory: Path, chart: str, *options: str) -> str:
    """Draws a chart of the copied records, from the guest's boot on; returns what omr prints."""
    times = json.loads((directory / "times.json").read_text())
    since, until = (datetime.fromtimestamp(times[end], UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for end in ("from", "to"))
    command = [str(binaries.build("omr")), "--root", str(directory), "history", "--chart", chart]
    command += ["--since", since, "--until", until, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
