"""Where things are."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OUT = REPOSITORY / "lab" / "out"
CAPTURED = REPOSITORY / "crates" / "testkit" / "captured"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omr-lab"
