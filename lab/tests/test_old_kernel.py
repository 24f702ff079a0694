"""Linux 5.10, of Debian 11: no memory.reclaim, so omr lowers memory.high for moments."""

import pytest

from omrlab.guest import MIB, Disk, Guest
from omrlab.kernels import KernelMissing, kernel

OLD = "5.10"

CANNOT = 3
"""omr's exit code for a kernel that cannot do it."""


@pytest.fixture(scope="module")
def old() -> str:
    try:
        kernel(OLD)
    except KernelMissing as missing:
        pytest.skip(str(missing))
    return OLD


def test_a_kernel_without_memory_reclaim_gives_memory_by_its_limit_on_request_only(old, load) -> None:
    with Guest(old, 384, Disk(512, mb_s=40)) as guest:
        background = load(guest, "bg", "160M")
        guest.write("/sys/fs/cgroup/bg/memory.high", "300M")
        before = background.resident()
        # The control: without the request nothing is taken, and the message names the way.
        plain = guest.run(["omr", "reclaim", "bg", "64M"], check=False)
        assert plain.code == CANNOT, plain
        assert "memory.high" in plain.stderr
        assert background.resident() >= before
        by_limit = guest.run(["omr", "reclaim", "bg", "64M", "--backend", "memory.high", "--json"], timeout=120).json()
        assert 0.8 * 64 * MIB <= by_limit["freed"] <= 1.25 * 64 * MIB
        assert before - background.resident() >= 0.8 * 64 * MIB
        assert guest.read("/sys/fs/cgroup/bg/memory.high").strip() == str(300 * MIB)
        assert "memory.reclaim" in guest.run(["omr", "doctor"], check=False).stdout
