"""Which snapshots of machines stay on the disk."""

import os
from pathlib import Path

from omrlab.snapshots import Snapshot, make_room

KIB = 1 << 10


def made(directory: Path, name: str, used: float) -> Snapshot:
    """A snapshot of 64 KiB."""
    snapshot = Snapshot.of(directory, name, b"")
    with snapshot.alone():
        snapshot.memory.write_bytes(os.urandom(64 * KIB))
        snapshot.keep([], last_id=0, resume_offset=0)
    os.utime(snapshot.state, (used, used))
    return snapshot


def test_those_used_longest_ago_go_and_can_be_made_again(tmp_path: Path) -> None:
    snapshots = [made(tmp_path, str(number), used) for number, used in enumerate((300, 100, 200, 400))]
    make_room(tmp_path, most=1 << 20)
    assert all(snapshot.exists() for snapshot in snapshots), "there is room for all"
    # Each has a few blocks more than its memory.
    make_room(tmp_path, most=3 * 64 * KIB)
    assert [snapshot.exists() for snapshot in snapshots] == [True, False, False, True]
    assert not snapshots[1].memory.exists()
    assert made(tmp_path, "1", 500).directory == snapshots[1].directory
    assert snapshots[1].exists()


def test_one_that_is_used_stays(tmp_path: Path) -> None:
    used, other = made(tmp_path, "used", 100), made(tmp_path, "other", 50)
    with used.alone():
        make_room(tmp_path, most=0)
        assert used.exists() and used.memory.exists()
        assert not other.exists()
    make_room(tmp_path, most=0)
    assert not used.exists()


def test_starting_from_one_is_using_it(tmp_path: Path) -> None:
    snapshots, machine = tmp_path / "snapshots", tmp_path / "machine"
    snapshots.mkdir()
    machine.mkdir()
    first, second = made(snapshots, "first", 100), made(snapshots, "second", 200)
    first.bring(machine)
    make_room(snapshots, most=100 * KIB)
    assert (first.exists(), second.exists()) == (True, False)
