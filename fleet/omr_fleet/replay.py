"""One task of an engine: replays a group of shards.

It runs wherever the engine puts it, and needs nothing but the group: the shards and the results are
files of fsspec, and `omr whatif` reads and writes local ones.
"""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from . import files
from .shards import Group, make_dir, named, open_dir

ATTEMPTS = 3
PAUSE = 1.0
"""Seconds before the second attempt; twice as long before the next one."""
BAD = 2
"""The exit code of `omr whatif` for a bad shard or a bad policy."""

Line = dict[str, str]
"""A line for `omr whatif --merge`."""


class ReplayError(Exception):
    """A shard could not be replayed, though nothing is wrong with it."""


def put(fs: fsspec.AbstractFileSystem, path: str, content: bytes) -> None:
    """Writes a file that appears as a whole, as on an object store."""
    if not isinstance(fs, LocalFileSystem):
        fs.pipe_file(path, content)
        return
    files.write(Path(path), content)


def marker(group: Group) -> str:
    """The path of the file that says what became of a group."""
    return f"{open_dir(group.out)[1]}/groups/{group.key}.json"


def read_marker(group: Group, results: set[str]) -> list[Line] | None:
    """What became of a group; `None`: it is not done, or a result is not among these any more."""
    fs, _ = open_dir(group.out)
    try:
        with named(group.out):
            lines: list[Line] = json.loads(fs.cat_file(marker(group)))
    except (FileNotFoundError, ValueError):
        return None
    is_of_group = [line.get("shard") for line in lines] == [shard.name for shard in group.shards]
    is_whole = is_of_group and all(line["result"] in results for line in lines if "result" in line)
    return lines if is_whole else None


def replay(group: Group) -> list[Line]:
    """Replays the shards of a group."""
    make_dir(group.out)
    with tempfile.TemporaryDirectory(prefix="omr-fleet-") as place:
        policies = Path(place) / "policies.json"
        policies.write_bytes(group.policies)
        lines = [_replay(group, shard.name, Path(place)) for shard in group.shards]
    make_dir(f"{group.out}/groups")
    with named(group.out):
        put(open_dir(group.out)[0], marker(group), json.dumps(lines).encode())
    return lines


def _replay(group: Group, name: str, place: Path) -> Line:
    fs, root = open_dir(group.fleet)
    out, results = open_dir(group.out)
    is_local = isinstance(fs, LocalFileSystem)
    path = Path(root, name) if is_local else place / "shard.parquet"
    pause = PAUSE
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause)
            pause *= 2
        try:
            if not is_local:
                with named(group.fleet):
                    fs.get_file(f"{root}/{name}", str(path))
            command: list[Any] = [group.omr, "whatif", "--shard", path, "--policies", place / "policies.json"]
            # Written where it belongs only once it is whole.
            ran = subprocess.run([*command, "--out", place / "results"], capture_output=True, stdin=subprocess.DEVNULL)
            if ran.returncode == 0:
                result = Path(ran.stdout.decode().strip())
                with named(group.out):
                    put(out, f"{results}/{result.name}", result.read_bytes())
                result.unlink()
                return {"shard": name, "result": result.name}
            said = (ran.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
            why = said.removeprefix("omr: ").removeprefix(f"{path}: ")
            if ran.returncode == BAD:
                return {"shard": name, "bad": why}
            if ran.returncode < 0:
                return {"shard": name, "bad": f"its replay was ended: signal {-ran.returncode}"}
        except OSError as err:
            why = str(err)
    raise ReplayError(f"{name}: {why}")
