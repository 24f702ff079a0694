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


def directory() -> Path:
    """The build directory of these programs."""
    return Path(os.environ.get("OMR_LAB_TARGET", REPOSITORY / "target" / "guest"))


def cargo(program: str, *options: str) -> str:
    """Builds a program of the workspace without shared libraries, and returns cargo's output."""
    script = REPOSITORY / "packaging" / "rustflags.sh"
    flags = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout
    environment = os.environ | {"CARGO_ENCODED_RUSTFLAGS": flags, "CARGO_TARGET_DIR": str(directory())}
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", TARGET, "--package", program]
    return subprocess.run(
        [*command, *options], cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@functools.cache
def build(program: str) -> Path:
    """The path of a program, which is built first if it is not."""
    cargo(program)
    return directory() / TARGET / "release" / program


def busybox() -> Path:
    found = shutil.which("busybox")
    if not found:
        raise FileNotFoundError("busybox: run lab/setup")
    return Path(found)
