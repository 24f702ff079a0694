"""`omr prepare migrate` on real kernels: freed memory is not sent, and all other memory arrives
unchanged.
"""

import signal

from omrlab.daemon import CLASSES, CONFIG
from omrlab.guest import KERNEL, MIB, Disk, Guest

PARTIAL, UNSUPPORTED = 4, 3

LINK = 80.0
"""MB/s. No test here depends on the duration of a migration."""


def test_a_prepared_machine_sends_little_and_loses_nothing(release, load) -> None:
    with Guest(release, 512, Disk(1024, mb_s=60), balloon=True) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        foreground, background = load(guest, "fg", "32M"), load(guest, "bg", "70%")
        resident = guest.host_resident()
        done = guest.run(["omr", "prepare", "migrate", "--json"], timeout=240).json()
        assert done["end"] == "reached", done
        assert done["freed"] >= 0.9 * background.bytes
        assert foreground.swapped() == 0
        # The host has freed the memory that was reported to it.
        after = done["after"]
        assert after["reported"] >= 0.9 * after["blocks"] > 0
        assert resident - guest.host_resident() >= 0.8 * background.bytes
        sent = guest.migrate(LINK).sent
        assert sent <= done["memory"] - 0.95 * after["in_blocks"]
        assert sent < 0.5 * done["memory"]
        assert background.errors() == 0


def test_without_a_preparation_all_memory_is_sent(release, load) -> None:
    """The control: the same guest without a preparation."""
    with Guest(release, 512, Disk(1024, mb_s=60), balloon=True) as guest:
        background = load(guest, "bg", "70%")
        guest.run(["omr", "prepare", "migrate", "--dry-run"])
        assert guest.migrate(LINK).sent >= background.bytes
        assert background.errors() == 0


def test_without_reports_to_the_host_reclaimed_memory_is_sent(load) -> None:
    """The control of the reports, and the reason why omr refuses a machine without them."""
    with Guest(KERNEL, 384, Disk(512, mb_s=60)) as guest:
        background = load(guest, "bg", "192M")
        ended = guest.run(["omr", "prepare", "migrate"], check=False)
        assert (ended.code, background.swapped()) == (UNSUPPORTED, 0)
        assert "free page reporting" in ended.stderr
        guest.run(["omr", "reclaim", "bg", "max"], timeout=120)
        guest.shell("sleep 5")
        assert guest.migrate(LINK).sent >= background.bytes


def test_a_deadline_ends_a_preparation_partly_and_freed_memory_is_reported(load) -> None:
    with Guest(KERNEL, 512, Disk(1024, mb_s=15), balloon=True) as guest:
        load(guest, "bg", "70%")
        ended = guest.run(["omr", "prepare", "migrate", "--deadline", "12s", "--json"], check=False)
        done = ended.json()
        assert (ended.code, done["end"], done["why"]) == (PARTIAL, "partly", "timeout"), done
        assert done["freed"] > 32 * MIB
        assert done["after"]["reported"] > done["before"]["reported"]


def test_a_signal_ends_a_preparation(load) -> None:
    with Guest(KERNEL, 512, Disk(1024, mb_s=15), balloon=True) as guest:
        background = load(guest, "bg", "70%")
        omr = guest.spawn(["omr", "prepare", "migrate", "--json"])
        guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "swapped memory")
        omr.kill(signal.SIGTERM)
        ended = omr.wait()
        assert (ended.code, ended.json()["why"]) == (PARTIAL, "stopped"), ended
