"""The page for people who run a fleet, word by word."""

import os
import re
import subprocess
import sys
from pathlib import Path

from .conftest import ROOT

PAGE = ROOT / "docs/use/fleet.md"


def test_the_commands_of_the_page_work(omr: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "omr").symlink_to(omr)
    (programs / "omr-fleet").write_text(f'#!/bin/sh\nexec {sys.executable} -m omr_fleet.cli "$@"\n')
    (programs / "omr-fleet").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.S)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) == 7, commands
    place = tmp_path / "place"
    place.mkdir()
    said = {}
    for command in commands:
        ran = subprocess.run(["sh", "-ec", command], cwd=place, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, (command, ran)
        said[command.split()[1]] = ran.stdout
    assert "careful: " in said["run"] and "default: " in said["run"]
    assert "exit code 3" in said["check"]
    assert (place / "tuned/tuned.toml").exists() and (place / "tuned/report.html").exists()
