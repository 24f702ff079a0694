"""`omr wss` and `omr reclaim --older-than` on real kernels: what is cold is known, and taken, and nothing else."""

import signal

from omrlab.guest import MIB, Completed, Disk, Guest, Zram

PARTIAL, UNSUPPORTED = 4, 3
"""omr's exit codes for less than asked, and for what the kernel lacks."""

SWITCH = "/sys/kernel/mm/lru_gen/enabled"

COLD, HOT = 96 * MIB, 64 * MIB


class Half:
    """Memory of which the first part is used every second, and the rest never; and page cache, if wanted."""

    def __init__(self, guest: Guest, group: str, *options: str) -> None:
        self.guest, self.group = guest, group
        guest.group(group)
        self.process = guest.spawn(["omr-testkit", "fill", f"{(COLD + HOT) // MIB}M", "--hot", "40", *options], group=group)
        self.process.line_with("ready", timeout=120)

    def stat(self, name: str) -> int:
        lines = (line.split() for line in self.guest.read(f"/sys/fs/cgroup/{self.group}/memory.stat").splitlines())
        return int(dict(lines)[name])

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def cache(self) -> int:
        """Page cache. Not from "file", of which swap cache is part up to some kernel between 6.12 and 7.3."""
        return self.stat("active_file") + self.stat("inactive_file")

    def refaults(self) -> int:
        """Pages that came back."""
        return self.stat("workingset_refault_anon")


def boot(release: str, **options) -> Guest:
    return Guest(release, 512, data_mib=128, **options)


def idle(figures: dict, seconds: float) -> dict:
    return next(idle for idle in figures["idle"] if idle["seconds"] == seconds)


def reclaim(guest: Guest, *options: str, code: int = 0) -> dict:
    ended: Completed = guest.run(["omr", "reclaim", *options, "--json"], timeout=180, check=False)
    assert ended.code == code, f"{ended.code}: {ended.stdout} {ended.stderr}"
    return ended.json()


def test_what_is_cold_is_known_and_taken_and_the_rest_stays(release) -> None:
    with boot(release, swap=Disk(512, mb_s=40)) as guest:
        guest.write(SWITCH, "y")
        half = Half(guest, "half", "--file", "/data/file", "--file-amount", "48M")
        # Nobody has looked yet: unknown is not cold.
        summary = reclaim(guest, "half", "max", "--older-than", "30m", code=PARTIAL)
        assert summary["end"] == "not-aged" and summary["freed"] == 0
        assert "omr wss half --window 30m" in summary["groups"][0]["error"]
        assert half.swapped() == 0

        seen = guest.run(["omr", "wss", "half", "--window", "8s", "--per-node", "--json"], timeout=60).json()
        cold = idle(seen, 8)
        assert 0.97 * COLD <= cold["least"] <= cold["most"] <= 1.03 * COLD, seen
        # The control: what is used is not called cold.
        assert seen["memory"] - cold["most"] >= 0.97 * HOT
        assert seen["page_cache"] >= 48 * MIB
        assert [(node["node"], idle(node, 8)) for node in seen["nodes"]] == [(0, cold)]
        assert seen["agings"] == 3 and seen["not_aged"] == 0

        cache, refaults = half.cache(), half.refaults()
        summary = reclaim(guest, "half", "max", "--older-than", "8s")
        assert summary["backend"] == "lru_gen" and summary["end"] == "young", summary
        assert half.swapped() >= 0.97 * COLD
        assert half.swapped() <= 1.03 * COLD
        assert summary["freed"] >= 0.95 * COLD and summary["freed_file"] < MIB
        guest.shell("sleep 2")
        # Each hot page was used since: one that was taken would have come back.
        assert half.refaults() - refaults <= 64
        assert half.cache() >= cache - MIB

        # The control: without an age hot memory is taken as well as page cache, and comes back.
        guest.run(["omr", "reclaim", "half", "88M"], timeout=180, check=False)
        guest.shell("sleep 2")
        assert half.refaults() - refaults > 2000


def test_without_mglru_it_refuses_and_with_wait_it_looks_by_itself_and_keeps_what_is_protected(release) -> None:
    with boot(release, swap=Zram(512)) as guest:
        for mask in ("n", "1"):
            guest.write(SWITCH, mask)
            for command in (["wss", "/"], ["reclaim", "/", "max", "--older-than", "2m"]):
                ended = guest.run(["omr", *command], check=False)
                assert ended.code == UNSUPPORTED
                assert 'write "y" to /sys/kernel/mm/lru_gen/enabled' in ended.stderr
        # The control: it was that.
        guest.write(SWITCH, "y")
        guest.write(f"{guest.group('top')}/cgroup.subtree_control", "+memory")
        half, low = Half(guest, "top/half"), Half(guest, "low")
        guest.write("/sys/fs/cgroup/low/memory.low", "128M")
        reclaim(guest, "/", "max", "--older-than", "6s", "--wait")
        assert 0.97 * COLD <= half.swapped() <= 1.03 * COLD
        assert guest.group_value("low") >= 127 * MIB
        assert low.swapped() >= 24 * MIB
        # The control: it was memory.low.
        reclaim(guest, "low", "max", "--older-than", "6s", "--ignore-low")
        assert low.swapped() >= 0.97 * COLD


def test_a_signal_ends_it() -> None:
    with boot("6.12", swap=Disk(512, mb_s=8)) as guest:
        half = Half(guest, "half")
        guest.run(["omr", "wss", "half", "--window", "4s"], timeout=60)
        omr = guest.spawn(["omr", "reclaim", "half", "max", "--older-than", "4s", "--json"])
        guest.wait_for(lambda: half.swapped() > 4 * MIB, 60, "swapped memory")
        omr.kill(signal.SIGINT)
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["end"] == "stopped", ended.stderr
        written = guest.vmstat()["pswpout"]
        guest.shell("sleep 1")
        # What was on its way arrives; nothing else is sent.
        assert guest.vmstat()["pswpout"] == written
        assert half.swapped() < 0.8 * COLD
