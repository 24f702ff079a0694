"""A swap file inside an ext4 image, made on the host without mounting it."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

NAME = "swapfile"

BLOCK = 4096
"""Also the page size, in which the kernel counts resume_offset."""


def make_swap_file(image: Path, mib: int) -> int:
    """Puts a swap file of that size into the root directory; returns the block of its header: the resume_offset."""
    with tempfile.TemporaryDirectory(prefix="omr-swapfile-") as temporary:
        made = Path(temporary) / NAME
        made.touch(0o600)
        os.truncate(made, mib << 20)
        subprocess.run(["mkswap", made], check=True, capture_output=True)
        # Only the header is copied; the rest are blocks that belong to the file and were never written.
        debugfs(image, f"write {made} {NAME}", f"fallocate {NAME} 0 {(mib << 20) // BLOCK - 1}")
    shown = debugfs(image, f"bmap {NAME} 0")
    found = re.search(r"^(\d+)$", shown, re.MULTILINE)
    if not found or found[1] == "0":
        raise RuntimeError(f"no swap file in {image}: {shown}")
    return int(found[1])


def debugfs(image: Path, *requests: str) -> str:
    ran = subprocess.run(
        ["debugfs", "-w", "-f", "-", image], input="\n".join(requests), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return ran.stdout


def grow(image: Path, mib: int) -> None:
    """Makes an image and the file system in it larger by so much."""
    os.truncate(image, image.stat().st_size + (mib << 20))
    subprocess.run(["resize2fs", image], check=True, capture_output=True)
