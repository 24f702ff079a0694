"""Files that are written as a whole or not at all."""

import os
import secrets
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file. Until all of the content is on the disk, the file is what it was."""
    # Workers on other machines may write the same file.
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with part.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
