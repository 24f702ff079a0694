"""The static programs of the guest: omr, omr-testkit and busybox."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from .paths import REPOSITORY

TARGET = "x86_64-unknown-linux-gnu"


@functools.cache
def build(package: str) -> Path:
    """Builds one of the workspace's programs without shared libraries, in a target directory of its
    own.
    """
    directory = Path(os.environ.get("OMR_LAB_TARGET", REPOSITORY / "target" / "guest"))
    environment = os.environ | {"RUSTFLAGS": "-C target-feature=+crt-static", "CARGO_TARGET_DIR": str(directory)}
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", TARGET, "--package", {"omr-testkit": "omr-guest"}.get(package, package)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    return directory / TARGET / "release" / package


def busybox() -> Path:
    found = shutil.which("busybox")
    if not found:
        raise FileNotFoundError("busybox: run lab/setup")
    return Path(found)
