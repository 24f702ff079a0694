"""Background processes on real kernels: the daemon hints unused processes, and no foreground
process.
"""

import signal

import pytest

from omrlab.daemon import Daemon
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Disk, Guest, GuestError, Process, Zram

QUICK = """
[hints]
cold_after = "2s"
pageout_after = "4s"
available = "100%"
"""

LONG_ENOUGH = 8
"""Seconds within which an unused background process is certainly paged out."""


class Application:
    """A process in a group of its own that holds memory and does nothing."""

    def __init__(
        self, guest: Guest, group: str, amount: str = "64M", program: str = "omr-guest", options: tuple[str, ...] = ()
    ) -> None:
        self.guest, self.group, self.verifications = guest, group, 0
        guest.group(group)
        self.process = guest.spawn([program, "fill", amount, *options], group=group)
        self.bytes: int = self.process.line_with("ready", timeout=120)["bytes"]
        self.pid = str(self.process.pid)

    def status(self, key: str) -> int:
        lines = self.guest.read(f"/proc/{self.pid}/status").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))

    def swapped(self) -> int:
        return self.status("VmSwap")

    def held(self) -> int:
        return self.guest.group_value(self.group)

    def cached(self) -> int:
        """Bytes that are both in swap and in memory."""
        stat = self.guest.read(f"/sys/fs/cgroup/{self.group}/memory.stat").splitlines()
        return next(int(line.split()[1]) for line in stat if line.startswith("swapcached "))

    def verify(self) -> None:
        """Reads all memory, which is unchanged, and in memory again afterwards."""
        self.verifications += 1
        self.process.kill(signal.SIGUSR1)
        assert self.process.line_with("verified", self.verifications, timeout=120)["errors"] == 0

    def say(self, *words: str, code: int = 0) -> str:
        ended = self.guest.run(["omr", *words, self.pid], check=False)
        assert ended.code == code, ended.stderr
        return ended.stderr

    def shown(self) -> dict:
        """The entry of the process in omr ps."""
        processes = self.guest.run(["omr", "ps", "--json"]).json()["processes"]
        return next(process for process in processes if process["pid"] == int(self.pid))


class Hinting(Daemon):
    """A daemon that hints and never sweeps."""

    def __init__(self, guest: Guest, config: str = "", quick: str = QUICK) -> None:
        super().__init__(guest, idle="1h", config=quick + config)

    def hints(self, application: Application, step: str = "pageout") -> list[dict]:
        """The ledger's entries about one process."""
        entries = [entry for entry in self.ledger() if entry["kind"] == "hint" and entry["step"] == step]
        return [entry for entry in entries if entry["id"]["pid"] == int(application.pid)]

    def wait_for_hint(self, application: Application, number: int = 1) -> dict:
        try:
            self.guest.wait_for(lambda: len(self.hints(application)) >= number, 90, "hint")
        except GuestError as error:
            explained = self.guest.run(["omr", "explain", application.pid], check=False)
            raise GuestError(f"{error}: {explained.stdout}{explained.stderr}{self.process.stderr()}") from error
        return self.hints(application)[number - 1]


def test_a_background_process_is_paged_out_and_a_foreground_process_is_not(release) -> None:
    with Guest(release, 512, Disk(512, mb_s=40)) as guest:
        away, stays = Application(guest, "away"), Application(guest, "stays")
        with Hinting(guest) as daemon:
            away.say("background")
            line = daemon.wait_for_hint(away)
            assert line["stop_reason"] == "done" and "oom_score_adj" in line["score"]
            assert away.swapped() > 0.95 * away.bytes
            assert line["freed"] > 0.9 * away.bytes and away.held() < 0.2 * away.bytes, (
                "nor is it left in the swap cache"
            )
            # The control: a process without a statement.
            assert stays.swapped() == 0 and stays.held() > stays.bytes
            assert not daemon.hints(stays) and not daemon.hints(stays, "cold")
            shown = away.shown()
            assert shown["class"] == "background" and shown["last"]["step"] == "pageout" and shown["score"] > 0
            assert shown["last"]["came_back"] == 0

            away.say("foreground")
            away.verify()
            assert away.swapped() < 0.1 * away.bytes
            assert away.shown()["class"] == "foreground" and "omr foreground" in away.shown()["why"]
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert away.swapped() < 0.1 * away.bytes
            assert len(daemon.hints(away)) == 1
            # The control: it was the statement that kept the memory.
            away.say("background")
            daemon.wait_for_hint(away, 2)
            assert away.swapped() > 0.95 * away.bytes
        away.verify()


def test_a_rule_matches_programs_and_a_later_rule_excludes_some() -> None:
    with Guest(KERNEL, 512, Zram(512)) as guest:
        guest.shell("mkdir -p /opt/app; cp $(which omr-guest) /opt/app/player")
        rules = """
[[process]]
exe = "/opt/**"
class = "background"

[[process]]
group = "precious"
class = "protected"
"""
        meant = Application(guest, "meant", "48M", "/opt/app/player")
        other = Application(guest, "other", "48M")
        precious = Application(guest, "precious", "48M", "/opt/app/player")
        with Hinting(guest, rules) as daemon:
            daemon.wait_for_hint(meant)
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert meant.swapped() > 0.95 * meant.bytes
            assert other.swapped() == 0 and precious.swapped() == 0
            assert 'exe "/opt/**"' in meant.shown()["why"] and precious.shown()["class"] == "protected"
            refused = precious.say("background", code=1)
            assert "is protected, which omr background does not change" in refused
            # The name of a group stands for all its processes.
            guest.run(["omr", "background", "other"])
            daemon.wait_for_hint(other)
            assert other.swapped() > 0.95 * other.bytes
        for application in (meant, other, precious):
            application.verify()


def test_the_unused_memory_of_processes_is_known_between_bounds() -> None:
    config = """
[hints]
cold_after = "1h"
pageout_after = "1h"

[history]
every = "10s"
budget = "10%"

[[process]]
exe = "/**/omr-guest"
class = "background"
"""
    with Guest(KERNEL, 640, Zram(256)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        half, cold, hot = (
            Application(guest, group, amount, options=options)
            for group, amount, options in (
                ("half", "80M", ("--hot", "40")),
                ("pair", "64M", ()),
                ("pair", "32M", ("--hot", "100")),
            )
        )

        def known(application: Application) -> tuple[int, int]:
            """The least and the most memory that was not used for half a minute. Without ages:
            between nothing and all.
            """
            seen = application.shown()["cold"]
            idle = [idle for idle in seen["idle"] if idle["seconds"] == 30] if seen else []
            return (idle[0]["least"], idle[0]["most"]) if idle else (0, application.bytes)

        with Daemon(guest, idle="1h", config=config):
            unused = 0.6 * half.bytes
            least, most = guest.wait_for(
                lambda: (found := known(half))[0] > 0.95 * unused and found, 150, "what it has not used"
            )
            # The control: used memory is not counted.
            assert 0.95 * unused <= least <= most <= 1.05 * unused
            # Two processes share a group. The unused memory of the group may belong to either, as
            # far as it does not fit into the other.
            least, most = guest.wait_for(
                lambda: (found := known(cold))[0] >= 0.4 * cold.bytes and found, 60, "the ages of the other group"
            )
            assert 0.4 * cold.bytes <= least <= 0.55 * cold.bytes and most > 0.95 * cold.bytes
            least, most = known(hot)
            assert least < 0.05 * hot.bytes
            assert half.shown()["cold"]["memory"] >= half.bytes
            guest.write(MGLRU_SWITCH, "n")
            # The figures are unknown, and not the old ones.
            guest.wait_for(lambda: half.shown()["cold"] is None, 60, "look without ages")


@pytest.mark.parametrize("swap", [Zram(512), Disk(512, mb_s=40)], ids=["zram", "disk"])
def test_while_a_process_waits_for_memory_hints_go_to_zram_and_not_to_a_disk(swap) -> None:
    with Guest(KERNEL, 512, swap) as guest:
        away = Application(guest, "away", "128M")
        group = guest.group("waits")
        guest.write(f"{group}/memory.high", str(16 * MIB))
        guest.write(f"{group}/memory.swap.max", "0")

        def wait() -> Process:
            """Starts a process that waits for memory it never gets, however fast the disk is."""

            def waited() -> int:
                return int(guest.read(f"{group}/memory.pressure").split("total=")[1].split()[0])

            before = waited()
            process = guest.spawn(["omr-guest", "fill", "256M"], group="waits")
            guest.wait_for(lambda: waited() > before + 1_000_000, 120, "process that waits for memory")
            return process

        waits = wait()
        with Hinting(guest) as daemon:
            away.say("background")
            if isinstance(swap, Zram):
                guest.wait_for(lambda: away.swapped() > 0.95 * away.bytes, 90, "hint")
                assert all(line["stop_reason"] == "done" for line in daemon.hints(away))
            else:
                guest.shell(f"sleep {LONG_ENOUGH}")
                assert away.swapped() < 0.1 * away.bytes
                # A hint that has begun also ends when a process waits for memory.
                guest.throttle_swap(6)
                waits.kill(signal.SIGKILL)
                before, hints = away.swapped(), len(daemon.hints(away))
                guest.wait_for(lambda: away.swapped() > before + 8 * MIB, 90, "hint", every=0.1)
                waits = wait()
                line = daemon.wait_for_hint(away, hints + 1)
                assert "waited for memory" in line["stop_reason"], line
                guest.throttle_swap(None)
            waits.kill(signal.SIGKILL)
        away.verify()


def test_a_process_that_becomes_foreground_loses_no_more_memory() -> None:
    with Guest(KERNEL, 512, Disk(512, mb_s=6)) as guest:
        away = Application(guest, "away", "96M")
        with Hinting(guest) as daemon:
            away.say("background")
            guest.wait_for(lambda: away.swapped() > 8 * MIB, 60, "hint", every=0.1)
            away.say("foreground")
            line = daemon.wait_for_hint(away)
            assert line["stop_reason"] == "omr foreground"
            swapped = away.swapped()
            assert swapped < 0.75 * away.bytes
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert away.swapped() <= swapped
            # The control: without `omr foreground` the hint goes on to the end.
            away.say("background")
            daemon.wait_for_hint(away, 2)
            assert away.swapped() > 0.95 * away.bytes
        away.verify()


def test_with_prefetch_paged_out_memory_is_read_back_when_its_process_returns() -> None:
    with Guest(KERNEL, 512, Disk(512, mb_s=40)) as guest:
        away = Application(guest, "away")
        for number, prefetch in enumerate(("off", "on"), 1):
            with Hinting(guest, quick=f'{QUICK}prefetch = "{prefetch}"\n') as daemon:
                away.say("background")
                daemon.wait_for_hint(away, number)
                assert away.swapped() > 0.95 * away.bytes and away.cached() < 0.1 * away.bytes
                away.say("foreground")
                guest.shell(f"sleep {LONG_ENOUGH}")
                hints = daemon.hints(away, "willneed")
                if prefetch == "off":
                    # The control: without prefetch.
                    assert hints == [] and away.cached() < 0.1 * away.bytes
                    away.verify()
                else:
                    assert (
                        len(hints) == 1
                        and hints[0]["advised"] > 0.95 * away.bytes
                        and hints[0]["stop_reason"] == "done"
                    )
                    assert away.cached() > 0.9 * away.bytes, "in memory, and not used yet"
                    assert away.shown()["last"]["step"] == "pageout"
        away.verify()


def test_prefetch_ends_when_the_process_leaves_the_foreground() -> None:
    with Guest(KERNEL, 512, Disk(512)) as guest:
        away = Application(guest, "away", "128M")
        with Hinting(guest, quick=f'{QUICK}prefetch = "on"\n') as daemon:
            away.say("background")
            daemon.wait_for_hint(away)
            guest.throttle_swap(4)
            away.say("foreground")
            away.say("background")
            line = guest.wait_for(lambda: daemon.hints(away, "willneed"), 60, "end of reading back")[0]
            assert line["stop_reason"] == "it left the foreground", line
            assert line["advised"] < 0.75 * away.bytes
            guest.throttle_swap(None)
        away.verify()


def test_a_statement_outlives_the_daemon_and_not_the_process() -> None:
    with Guest(KERNEL, 512, Zram(512)) as guest:
        application = Application(guest, "a", "32M")
        slow = '[hints]\ncold_after = "2s"\npageout_after = "1h"\n'
        with Hinting(guest, quick=slow) as daemon:
            application.say("background")
            assert application.shown()["asked"]
            guest.wait_for(lambda: daemon.hints(application, "cold"), 60, "hint")
            assert application.swapped() == 0, "that alone takes nothing"
        guest.wait_for(lambda: guest.run(["omr", "status"], check=False).code != 0, 30, "end of the daemon")
        with Hinting(guest, quick=slow) as daemon:
            assert application.shown()["asked"], "the next daemon knows it"
            application.process.kill(signal.SIGKILL)
            application.process.wait()
            guest.spawn_as(application.process.pid, ["omr-guest", "fill", "32M"], "a")
            shown = application.shown()
            assert not shown["asked"] and shown["class"] == "background", shown["why"]
            # The control: a statement about the new process holds.
            application.say("background")
            assert application.shown()["asked"]
            statements = daemon.status()["statements"]
            assert [word["word"] for word in statements] == ["background"]
            application.say("background", "--clear")
            assert not application.shown()["asked"] and daemon.status()["statements"] == []
