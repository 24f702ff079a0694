"""`omr warm` on real kernels: swapped memory is back before it is used, in the right order."""

import random
import signal

from omrlab.daemon import CLASSES, CONFIG, Daemon
from omrlab.guest import KERNEL, MIB, Disk, Guest

PARTIAL = 4
"""omr's exit code for less than asked."""

DISK = Disk(768, mb_s=40)


class Touched:
    """A program with a working set that its user comes back to."""

    def __init__(self, guest: Guest, group: str, amount: str = "96M") -> None:
        self.guest, self.group, self.touches = guest, group, 0
        guest.group(group)
        self.process = guest.spawn(["omr-guest", "touch", amount], group=group)
        self.bytes: int = self.process.line_with("ready", timeout=120)["bytes"]

    def swap_out(self) -> None:
        """Swaps out everything, as fast as the kernel can."""
        self.guest.run(["omr-guest", "by-hand", self.group, "1G"], timeout=180)
        assert self.swapped() > 0.95 * self.bytes

    def touch(self) -> dict:
        """Uses all memory once."""
        self.touches += 1
        self.process.kill(signal.SIGUSR1)
        touched = self.process.line_with("touched", self.touches, timeout=180)
        assert touched["errors"] == 0
        return touched

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def cached(self) -> int:
        """Bytes that are both in swap and in memory."""
        stat = dict(line.split() for line in self.guest.read(f"/sys/fs/cgroup/{self.group}/memory.stat").splitlines())
        return int(stat["swapcached"])


def warm(guest: Guest, *options: str, code: int = 0) -> dict:
    ended = guest.run(["omr", "warm", "--json", *options], timeout=180, check=False)
    assert ended.code == code, f"{ended.code}: {ended.stdout} {ended.stderr}"
    return ended.json()


def test_a_working_set_is_back_before_it_is_used(release) -> None:
    with Guest(release, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        foreground = Touched(guest, "fg", "192M")
        recorded = guest.run(["omr", "warm", "--record", "--json"], timeout=60).json()
        assert recorded["used"] >= foreground.bytes
        assert guest.shell("stat -c %a /var/lib/omr-root/warm").strip() == "600"

        foreground.swap_out()
        without = foreground.touch()
        foreground.swap_out()
        summary = warm(guest, "--ignore-busy")
        assert summary["record"] == "used" and summary["end"] == "complete" and summary["gone"] == 0
        assert summary["swap"] >= 0.95 * foreground.bytes
        assert summary["swapped_in"] >= 0.95 * foreground.bytes
        assert foreground.cached() >= 0.9 * foreground.bytes
        after = foreground.touch()
        # The control is in the same guest: without omr warm, each read brings some pages only, and
        # the program waits for all of them.
        pages = foreground.bytes / 4096
        assert without["major_faults"] > pages / 16
        assert after["major_faults"] < pages / 200


def test_foreground_comes_back_first(release) -> None:
    with Guest(release, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background, foreground = Touched(guest, "bg", "64M"), Touched(guest, "fg", "64M")
        background.swap_out()
        foreground.swap_out()
        summary = warm(guest, "/", "--ignore-busy", "--rate", "8M/s", "--timeout", "4s", code=PARTIAL)
        assert summary["end"] == "timeout"
        assert 16 * MIB <= foreground.cached() <= 48 * MIB, "as much as the rate lets through"
        assert background.cached() < MIB
        summary = warm(guest, "/", "--ignore-busy")
        assert summary["groups"][0]["group"] == "fg"
        assert background.cached() > 0.9 * background.bytes


def test_a_limit_is_respected(release) -> None:
    with Guest(release, 512, DISK) as guest:
        foreground = Touched(guest, "fg", "96M")
        foreground.swap_out()
        most = guest.group_value("fg") + 32 * MIB
        guest.write("/sys/fs/cgroup/fg/memory.max", str(most))
        summary = warm(guest, "fg", "--ignore-busy", code=PARTIAL)
        assert summary["end"] == "headroom" and summary["groups"][0]["full"]
        assert 16 * MIB <= foreground.cached() <= 33 * MIB
        events = dict(line.split() for line in guest.read("/sys/fs/cgroup/fg/memory.events").splitlines())
        assert events["max"] == "0", "nothing had to leave for what came back"
        # The control: it was the limit that stopped omr warm.
        guest.write("/sys/fs/cgroup/fg/memory.max", "max")
        warm(guest, "fg", "--ignore-busy")
        assert foreground.cached() > 0.9 * foreground.bytes


def test_memory_that_must_stay_free_stays_free(release) -> None:
    with Guest(release, 512, DISK) as guest:
        foreground = Touched(guest, "fg", "96M")
        foreground.swap_out()
        floor = guest.meminfo()["MemAvailable"] - 32 * MIB
        summary = warm(guest, "fg", "--ignore-busy", "--free-floor", f"{floor}B", code=PARTIAL)
        assert summary["end"] == "headroom"
        assert guest.meminfo()["MemAvailable"] > floor - 8 * MIB
        assert foreground.cached() < 0.75 * foreground.bytes
        # The control: it was the floor that stopped omr warm.
        warm(guest, "fg", "--ignore-busy", "--free-floor", "0")
        assert foreground.cached() > 0.9 * foreground.bytes
        assert guest.meminfo()["MemAvailable"] < floor


def test_foreground_work_stops_warming(release) -> None:
    with Guest(release, 512, DISK) as guest:
        foreground = Touched(guest, "fg", "64M")
        foreground.swap_out()
        guest.group("work")
        spin = guest.spawn(["omr-guest", "spin", "--threads", "1", "--burst", "60s"], group="work")
        spin.line_with("ready")
        omr = guest.spawn(["omr", "warm", "fg", "--json", "--rate", "4M/s"])
        guest.wait_for(lambda: foreground.cached() > 4 * MIB, 60, "memory that comes back")
        spin.kill(signal.SIGUSR1)
        guest.shell("sleep 1")
        before = guest.vmstat()["pswpin"]
        ended = omr.wait(timeout=60)
        assert ended.code == PARTIAL, ended.stderr
        assert ended.json()["end"] == "busy"
        assert (guest.vmstat()["pswpin"] - before) * 4096 < 2 * MIB
        assert foreground.cached() < 0.75 * foreground.bytes
        # The control: it was the work that stopped omr warm.
        spin.kill(signal.SIGKILL)
        spin.wait()
        guest.wait_for(lambda: warm_if_quiet(guest), 90, "end in a quiet guest")
        assert foreground.cached() > 0.9 * foreground.bytes


def warm_if_quiet(guest: Guest) -> bool:
    return guest.run(["omr", "warm", "fg", "--json"], timeout=120, check=False).code == 0


def test_a_killed_warming_does_no_harm(release) -> None:
    chance = random.Random(3)
    with Guest(release, 512, DISK) as guest:
        foreground = Touched(guest, "fg", "64M")
        for _ in range(10):
            foreground.swap_out()
            recording = guest.spawn(["omr", "warm", "--record"])
            guest.shell(f"usleep {chance.randrange(50_000)}")
            recording.kill(signal.SIGKILL)
            omr = guest.spawn(["omr", "warm", "fg", "--ignore-busy"])
            guest.shell(f"usleep {chance.randrange(1_500_000)}")
            omr.kill(signal.SIGKILL)
            omr.wait()
            foreground.touch()
        foreground.swap_out()
        warm(guest, "fg", "--ignore-busy")
        assert foreground.touch()["major_faults"] < 100


def test_a_process_that_ends_meanwhile_is_an_outcome(release) -> None:
    with Guest(release, 512, DISK) as guest:
        foreground = Touched(guest, "fg", "64M")
        foreground.swap_out()
        omr = guest.spawn(["omr", "warm", "fg", "--ignore-busy", "--rate", "8M/s", "--json"])
        guest.wait_for(lambda: foreground.cached() > 4 * MIB, 60, "memory that comes back")
        foreground.process.kill(signal.SIGKILL)
        ended = omr.wait(timeout=60)
        assert ended.code == 0, ended.stderr
        assert ended.json()["swap"] < foreground.bytes


def test_after_hibernation_the_same_processes_have_their_memory_back() -> None:
    with Guest(KERNEL, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        foreground = Touched(guest, "fg", "96M")
        guest.run(["omr", "warm", "--record"], timeout=60)
        foreground.swap_out()
        guest.hibernate_and_resume()
        summary = warm(guest, "--ignore-busy")
        assert summary["record"] == "used" and summary["gone"] <= 2
        assert foreground.touch()["major_faults"] < foreground.bytes / 4096 / 200


def test_the_daemon_does_not_count_warmed_memory_as_refaults(release) -> None:
    with Guest(release, 512, DISK) as guest, Daemon(guest, idle="2s", config=CLASSES) as daemon:
        background = Touched(guest, "bg", "64M")
        swept_out(guest, background, daemon, 1)
        sweeps = len(daemon.sweeps("bg"))
        before = refaults(guest)
        warm(guest, "bg", "--ignore-busy")
        assert refaults(guest) - before > 48 * MIB, "the kernel counts what comes back"
        guest.shell("sleep 8")
        assert explained(guest) != "backing-off"
        # The control: the same amount of page faults makes the daemon back off.
        swept_out(guest, background, daemon, sweeps + 1)
        background.touch()
        guest.wait_for(lambda: explained(guest) == "backing-off", 60, "back-off")


def swept_out(guest: Guest, load: Touched, daemon: Daemon, sweeps: int) -> None:
    """Waits until the daemon has swept the memory.

    The checks are rare, because each check is work in the guest and cuts a sweep short.
    """
    guest.wait_for(
        lambda: load.swapped() > 0.8 * load.bytes and load.cached() < 8 * MIB, 150, "swapped memory", every=5
    )
    guest.wait_for(lambda: len(daemon.sweeps("bg")) >= sweeps, 60, "ledger entry", every=5)


def refaults(guest: Guest) -> int:
    stat = dict(line.split() for line in guest.read("/sys/fs/cgroup/bg/memory.stat").splitlines())
    return int(stat["workingset_refault_anon"]) * 4096


def explained(guest: Guest) -> str:
    return guest.run(["omr", "explain", "bg", "--json"]).json()["reason"]["kind"]
