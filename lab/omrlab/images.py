"""Disk images, made on the host without a mount: blank ones, file systems, swap files."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

NAME = "swapfile"

BLOCK = 4096
"""The size of a block, and also of a page. The kernel counts resume_offset in pages."""


def blank(image: Path, mib: int) -> None:
    """Makes an image of zeros. It takes no room on the host."""
    with open(image, "wb") as file:
        file.truncate(mib << 20)
    os.chmod(image, 0o600)


def make_swap(image: Path, mib: int) -> None:
    """Makes an image whose whole content is swap space."""
    blank(image, mib)
    subprocess.run(["mkswap", image], check=True, capture_output=True)


def make_file_system(image: Path, mib: int, *options: str) -> None:
    """Makes an ext4 file system with these further options of mke2fs."""
    blank(image, mib)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", *options, image], check=True)


def copy(source: Path, destination: Path) -> None:
    """Copies an image. Blocks of zeros take no room."""
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", source, destination], check=True)


def make_swap_file(image: Path, mib: int) -> int:
    """Puts a swap file of this size into the root directory.

    Returns the block of its header, which is the resume_offset.
    """
    with tempfile.TemporaryDirectory(prefix="omr-swapfile-") as temporary:
        made = Path(temporary) / NAME
        made.touch(0o600)
        os.truncate(made, mib << 20)
        subprocess.run(["mkswap", made], check=True, capture_output=True)
        # Only the header is copied. The other blocks belong to the file and were never written.
        debugfs(image, f"write {made} {NAME}", f"fallocate {NAME} 0 {(mib << 20) // BLOCK - 1}")
    shown = debugfs(image, f"bmap {NAME} 0")
    found = re.search(r"^(\d+)$", shown, re.MULTILINE)
    if not found or found[1] == "0":
        raise RuntimeError(f"no swap file in {image}: {shown}")
    return int(found[1])


def debugfs(image: Path, *requests: str) -> str:
    command = ["debugfs", "-w", "-f", "-", str(image)]
    text = "\n".join(requests)
    ran = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return ran.stdout


def grow(image: Path, mib: int) -> None:
    """Makes an image and the file system in it larger by this size."""
    os.truncate(image, image.stat().st_size + (mib << 20))
    subprocess.run(["resize2fs", image], check=True, capture_output=True)
