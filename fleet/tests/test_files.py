"""A file is written as a whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = """
import resource, sys
from pathlib import Path
from omr_fleet import files
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
path, text = Path(sys.argv[2]), "new" * 10_000
{"whole": files.write, "control": Path.write_text}[sys.argv[1]](path, text)
"""
"""Writes 30 KB where a file may have 4."""


@pytest.mark.parametrize(("way", "left"), [("whole", "old"), ("control", "new" * 1365 + "n")])
def test_a_disk_without_room_leaves_the_old_file(way: str, left: str, tmp_path: Path) -> None:
    target = tmp_path / "tuned.toml"
    target.write_text("old")
    wrote = subprocess.run([sys.executable, "-c", FULL, way, str(target)], capture_output=True, text=True)
    assert wrote.returncode != 0 and "File too large" in wrote.stderr, wrote
    assert target.read_text() == left
    assert os.listdir(tmp_path) == ["tuned.toml"]
