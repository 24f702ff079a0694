"""The static programs of the guest: omr, omr-daemon, omr-guest and busybox."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from .paths import REPOSITORY

TARGET = "x86_64-unknown-linux-gnu"

PROGRAMS = ("omr", "omr-daemon", "omr-guest")
"""The programs of the workspace that a guest has."""


@functools.cache
def build(program: str) -> Path:
    """Builds a program of the workspace without shared libraries, in a directory of its own."""
    directory = Path(os.environ.get("OMR_LAB_TARGET", REPOSITORY / "target" / "guest"))
    environment = os.environ | {"RUSTFLAGS": "-C target-feature=+crt-static", "CARGO_TARGET_DIR": str(directory)}
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", TARGET, "--package", program]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    return directory / TARGET / "release" / program


def busybox() -> Path:
    found = shutil.which("busybox")
    if not found:
        raise FileNotFoundError("busybox: run lab/setup")
    return Path(found)
