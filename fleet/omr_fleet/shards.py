"""The shards of a fleet, and the groups in which an engine gets them."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

PER_GROUP = 64
"""A shard is a machine's week: some seconds of work. A group is some minutes at most."""


class Wrong(Exception):
    """A mistake of the caller: exit code 2."""


@dataclass(frozen=True)
class Shard:
    """A file of the fleet."""

    name: str
    """Its path below the fleet's directory."""
    version: str
    """What changes when the file does."""


@dataclass(frozen=True)
class Group:
    """Shards that one task replays, with all it needs to know."""

    fleet: str
    out: str
    shards: tuple[Shard, ...]
    policies: bytes
    omr: str
    program: str
    """The version of omr."""

    @property
    def key(self) -> str:
        """The name of its marker: it changes with whatever changes its results."""
        text = json.dumps([self.program, self.fleet, [[shard.name, shard.version] for shard in self.shards]])
        return hashlib.sha256(text.encode() + b"\0" + self.policies).hexdigest()[:32]


def open_dir(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL or path, and the path there."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as err:
        raise Wrong(f"{url}: {err}") from err
    return fs, path.rstrip("/") or "/"


@contextmanager
def named(url: str) -> Iterator[None]:
    """Errors in this block name the directory, which those of an object store do not."""
    try:
        yield
    except OSError as err:
        if err.filename is not None:
            raise
        kind = FileNotFoundError if isinstance(err, FileNotFoundError) else OSError
        raise kind(f"{url}: {err}") from err


def make_dir(url: str) -> None:
    """Makes a directory, if it is not there yet."""
    fs, path = open_dir(url)
    with named(url):
        try:
            fs.makedirs(path, exist_ok=True)
        except PermissionError:
            # On an object store only a bucket is made. One that is there may be written to
            # without the right to make one.
            if isinstance(fs, LocalFileSystem):
                raise


def names(url: str) -> set[str]:
    """The names of the files of a directory. An object store has no empty one."""
    fs, root = open_dir(url)
    fs.invalidate_cache()
    try:
        with named(url):
            return {path.rsplit("/", 1)[-1] for path in fs.ls(root, detail=False)}
    except FileNotFoundError:
        return set()


def find(url: str) -> list[Shard]:
    """All shards of a fleet, by name."""
    fs, root = open_dir(url)
    fs.invalidate_cache()
    try:
        with named(url):
            found: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        found = {}
    shards = []
    for path, info in found.items():
        if path.endswith(".parquet"):
            version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or ""
            shards.append(Shard(path[len(root) :].lstrip("/"), f"{info.get('size')} {version}"))
    if not shards:
        raise Wrong(f"{url}: no file *.parquet there")
    # As `omr whatif` sorts them.
    return sorted(shards, key=lambda shard: shard.name.encode())


def urls(url: str) -> set[str]:
    """The shards of a fleet, whatever the directory is called."""
    fs, root = open_dir(url)
    return {fs.unstrip_protocol(f"{root}/{shard.name}") for shard in find(url)}


def groups(fleet: str, out: str, policies: bytes, omr: str, program: str, per_group: int) -> Iterator[Group]:
    """The shards of a fleet in groups."""
    shards = find(fleet)
    for at in range(0, len(shards), per_group):
        yield Group(fleet, out, tuple(shards[at : at + per_group]), policies, omr, program)
