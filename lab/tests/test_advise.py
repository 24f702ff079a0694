"""`omr advise --verify` on real kernels: the size found is the size in use, and a group always gets
its own limits back.
"""

import signal

from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Completed, Disk, Guest, Process, Zram

FAILED, PARTIAL = 1, 4
"""omr's exit codes for a refusal, and for less than asked."""

COLD, HOT = 96, 64
"""MiB."""


class Load:
    """Memory of which one part is used every second and the rest never."""

    def __init__(self, guest: Guest, group: str, mib: int = COLD + HOT, hot_percent: int = 40, **limits: str) -> None:
        self.guest, self.group = guest, group
        self.directory = guest.group(group, **limits)
        self.process = guest.spawn(["omr-guest", "fill", f"{mib}M", "--hot", str(hot_percent)], group=group)
        self.process.line_with("ready", timeout=120)

    def limit(self, name: str = "high") -> str:
        return self.guest.read(f"{self.directory}/memory.{name}").strip()

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def begin(self) -> Process:
        """Starts a trial, and waits until the trial has lowered memory.high."""
        own = self.limit()
        options = ("--for", "60s", "--step", "10%", "--json")
        omr = self.guest.spawn(["omr", "advise", "--verify", self.group, *options])
        self.guest.wait_for(lambda: self.limit() != own, 60, "lowered memory.high", every=0.1)
        return omr


def verify(guest: Guest, *options: str, code: int = 0) -> dict:
    command = ["omr", "advise", "--verify", "--for", "5s", "--step", "30%", "--json", *options]
    ended: Completed = guest.run(command, timeout=300, check=False)
    assert ended.code == code, f"{ended.code}: {ended.stdout} {ended.stderr}"
    return ended.json()


def test_the_size_found_is_the_size_in_use() -> None:
    with Guest(KERNEL, 512, Disk(512, mb_s=40)) as guest:
        # Without ages the kernel reclaims memory in use as well, and no size is good.
        guest.write(MGLRU_SWITCH, "y")
        limits = {"memory_high": f"{300 * MIB}", "memory_max": f"{400 * MIB}", "memory_low": f"{32 * MIB}"}
        half, busy = Load(guest, "half", **limits), Load(guest, "busy", HOT, 100)
        found = verify(guest, "half")
        assert (found["bottom"], found["ended"]) == ("guard", "over"), found
        # The used memory fits, and does not fit into one step less.
        assert HOT * MIB <= found["held"] <= 1.43 * HOT * MIB + 2 * MIB, found
        assert found["saved"] >= 0.65 * COLD * MIB
        assert half.swapped() >= 0.65 * COLD * MIB
        for name, value in limits.items():
            assert half.limit(name.removeprefix("memory_")) == value

        # The controls: a size below the used memory does not hold. No size holds where all memory
        # is used. Both trials end at once and restore the limit.
        for group, options, code in (("half", ("--size", "48M"), PARTIAL), ("busy", (), 0)):
            found = verify(guest, group, *options, code=code)
            last = found["tried"][-1]
            assert found["held"] is None and last["ended"] in ("stall", "refaults"), found
            assert last["seconds"] < 4
        assert (half.limit(), busy.limit()) == (limits["memory_high"], "max")


def test_the_limit_is_restored_after_every_end_of_a_trial() -> None:
    with Guest(KERNEL, 512, Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        own = str(300 * MIB)
        half = Load(guest, "half", memory_high=own)
        omr = half.begin()
        omr.kill(signal.SIGINT)
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["ended"] == "stopped", ended.stderr
        assert half.limit() == own

        omr = half.begin()
        omr.kill(signal.SIGKILL)
        guest.wait_for(lambda: half.limit() == own, 20, "restored memory.high")
        omr.wait()
        # The control: the helper process is killed, too, and only the next omr restores the limit.
        omr = half.begin()
        guest.run(["killall", "-9", "omr"])
        omr.wait()
        guest.shell("sleep 2")
        assert half.limit() != own
        guest.run(["omr", "reclaim", "half", "1M"], check=False)
        assert half.limit() == own

        # A limit that another program sets meanwhile stays.
        omr = half.begin()
        guest.write(f"{half.directory}/memory.high", "200M")
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["ended"] == "theirs", ended.stderr
        assert half.limit() == str(200 * MIB)

        omr = half.begin()
        half.process.kill(signal.SIGKILL)
        half.process.wait()
        guest.run(["rmdir", half.directory], check=False)
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["ended"] in ("gone", "empty"), ended.stderr
        assert guest.run(["ls", "/var/lib/omr/limits"]).stdout == ""

        # Without swap omr tries nothing, because the memory could not leave.
        guest.run(["swapoff", "/dev/zram0"])
        other = Load(guest, "other", 32)
        ended = guest.run(["omr", "advise", "--verify", "other"], check=False)
        assert ended.code == FAILED and "no free swap" in ended.stderr, ended.stderr
        assert other.limit() == "max"
