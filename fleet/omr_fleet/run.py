"""A whole fleet: what was done before, the rest on an engine, and the sum."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from tqdm import tqdm

from . import replay, shards
from .engines import ENGINES
from .replay import Line
from .shards import Wrong

PARTIAL = 4
"""The exit code of `omr whatif` when bad shards were left out."""


def find_omr(omr: str) -> tuple[str, str]:
    """The program, and its version."""
    path = shutil.which(omr)
    if path is None:
        raise Wrong(f"{omr}: no such program; install omr, or name it with --omr")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return str(Path(path).absolute()), said.stdout.strip()


def fleet(
    url: str,
    policies: bytes,
    out: str,
    omr: str = "omr",
    engine: str = "local",
    address: str | None = None,
    per_group: int = shards.PER_GROUP,
    quiet: bool = False,
) -> dict[str, Any]:
    """Replays a fleet and returns the figures, as `omr whatif --json` prints them."""
    program, version = find_omr(omr)
    check(program, policies)
    try:
        shards.make_dir(out)
    except ValueError as err:
        raise Wrong(f"{out}: {err}") from err
    # Workers may have another working directory.
    url, out = (absolute(of) for of in (url, out))
    groups = list(shards.groups(url, out, policies, program, version, per_group))
    there = shards.names(out)
    found = [(group, replay.read_marker(group, there)) for group in groups]
    lines = [line for _, done in found if done is not None for line in done]
    todo = [group for group, done in found if done is None]
    with tqdm(total=sum(len(group.shards) for group in groups), unit="shard", disable=quiet or None) as bar:
        bar.update(len(lines))
        for done in ENGINES[engine](replay.replay, todo, address) if todo else ():
            lines += done
            bar.update(len(done))
    return merge(program, policies, out, lines)


def absolute(url: str) -> str:
    """The same directory, for a process with another working directory."""
    fs, path = shards.open_dir(url)
    return path if isinstance(fs, LocalFileSystem) else url


def check(program: str, policies: bytes) -> None:
    """Refuses policies that `omr whatif` would refuse for every shard."""
    with tempfile.TemporaryDirectory(prefix="omr-fleet-") as place:
        file, none = Path(place, "policies.json"), Path(place, "none.parquet")
        file.write_bytes(policies)
        said = run(program, file, Path(place), "--shard", none)
        # The policies are read before the shard, which is not there.
        if said.returncode == replay.BAD:
            raise Wrong(said.stderr.strip().removeprefix("omr: ").replace(f"{place}/", ""))


def merge(program: str, policies: bytes, out: str, lines: list[Line]) -> dict[str, Any]:
    """Adds up the results and writes total.json beside them."""
    fs, root = shards.open_dir(out)
    with tempfile.TemporaryDirectory(prefix="omr-fleet-") as place:
        file, listed = Path(place, "policies.json"), Path(place, "list.jsonl")
        file.write_bytes(policies)
        listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
        is_local = isinstance(fs, LocalFileSystem)
        results = Path(root) if is_local else Path(place, "results")
        if not is_local:
            results.mkdir()
            names = [line["result"] for line in lines if "result" in line]
            with shards.named(out):
                fs.get([f"{root}/{name}" for name in names], [str(results / name) for name in names])
        said = run(program, file, results, "--merge", listed, "--json")
        if said.returncode not in (0, PARTIAL):
            raise replay.ReplayError(said.stderr.strip())
        if not is_local:
            with shards.named(out):
                fs.pipe_file(f"{root}/total.json", (results / "total.json").read_bytes())
    told: dict[str, Any] = json.loads(said.stdout)
    return told


def run(program: str, policies: Path, out: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `omr whatif`."""
    command = [program, "whatif", "--policies", policies, "--out", out, *more]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
