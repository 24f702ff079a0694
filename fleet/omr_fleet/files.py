"""Files that are written as a whole or not at all."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replaces a file. Until all of the text is on the disk, the file is what it was."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
