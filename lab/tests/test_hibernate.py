"""omr hibernate, and image_size: the kernel copies the memory in use, and does not search for more
to reclaim.
"""

import json
import re
from pathlib import Path

import pytest
from sleeping import PREPARE, WARM, boot_id, configure, ends, fill, guest_with, quiet_after_waking, verify

from omrlab.binaries import build
from omrlab.debian import DebianGuest
from omrlab.guest import KERNEL, MIB, Guest, SwapFile

IMAGE_SIZE = "/sys/power/image_size"
NOTE = "/var/lib/omr-root/image_size.json"


def scanned(guest: Guest) -> int:
    """The number of pages that reclaim has scanned."""
    lines = (line.split() for line in guest.read("/proc/vmstat").splitlines())
    return sum(int(value) for name, value in lines if re.fullmatch("pgscan_(direct|kswapd|khugepaged|proactive)", name))


@pytest.mark.long
@pytest.mark.seldom
def test_with_image_size_0_the_kernel_does_not_search_for_more_to_reclaim(installed: Path) -> None:
    hook = "/usr/lib/systemd/system-sleep/omr"
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest)
        guest.write(IMAGE_SIZE, "0")
        load = fill(guest, "45%")
        # image_size is raised only if what could leave is little beside what must stay. Programs of
        # the next sleep read page cache back, and a 7.3 kernel is smaller than one of 6.12.
        guest.group("locked")
        guest.spawn(["omr-guest", "map", "4M", "--locked", "96M"], group="locked").line_with("ready", timeout=120)

        def hibernate() -> int:
            """Hibernates; returns the pages that the kernel scans from the end of the preparation
            on.
            """
            guest.run(["systemctl", "start", PREPARE], timeout=180)
            guest.run(["systemctl", "mask", "--runtime", PREPARE, WARM])
            # Page cache that came back since could leave.
            guest.shell("echo 1 > /proc/sys/vm/drop_caches")
            before = scanned(guest)
            guest.systemctl_hibernate()
            looked = scanned(guest) - before
            guest.run(["systemctl", "unmask", "--runtime", PREPARE, WARM])
            assert guest.read(IMAGE_SIZE) == "0\n"
            assert guest.run(["test", "-e", NOTE], check=False).code != 0
            return looked

        # The control: without omr's hook the kernel scans all remaining pages, again and again.
        guest.shell(f"chmod -x {hook}")
        without = hibernate()
        assert "image_size is" not in guest.journal("systemd-hibernate.service")
        guest.shell(f"chmod +x {hook}")
        raised = hibernate()
        assert "image_size is 0 B again" in guest.journal("systemd-hibernate.service")
        assert raised < without / 4, (raised, without)
        # Where much memory can leave, the kernel reclaims it, as image_size asks.
        verify(guest, load)
        said = guest.run(["omr", "prepare", "snapshot"]).stdout
        assert re.fullmatch(r"image_size stays 0 B: \S+ MiB are in use, of which \S+ MiB could leave\n", said), said
        verify(guest, load)


def test_image_size_is_restored_after_omr_was_killed() -> None:
    with Guest(KERNEL, 512, SwapFile(768, 40)) as guest:
        default = guest.read(IMAGE_SIZE)
        assert "stays" in guest.run(["omr", "prepare", "snapshot"]).stdout and guest.read(IMAGE_SIZE) == default

        def raise_it() -> None:
            guest.write(IMAGE_SIZE, "0")
            guest.run(["omr", "prepare", "snapshot"])
            assert int(guest.read(IMAGE_SIZE)) > 16 * MIB

        # The next snapshot, the next preparation and `restore` each put the old value back.
        for again in (["snapshot"], ["hibernate"], ["restore"]):
            raise_it()
            guest.run(["omr", "prepare", *again], timeout=120)
            assert (guest.read(IMAGE_SIZE) == "0\n") == (again != ["snapshot"]), again
            guest.run(["omr", "prepare", "restore"])
            assert guest.read(IMAGE_SIZE) == "0\n"
        # A value that another program has set meanwhile stays.
        raise_it()
        guest.write(IMAGE_SIZE, default.strip())
        assert guest.run(["omr", "prepare", "restore"]).stdout == ""
        assert guest.read(IMAGE_SIZE) == default and guest.run(["test", "-e", NOTE], check=False).code != 0
        # omr does not raise the value where the configuration forbids it, or where omr cannot write
        # a note.
        guest.write(IMAGE_SIZE, "0")
        guest.shell("mkdir -p /etc/omr")
        guest.write("/etc/omr/omr.toml", '[hibernate]\nraise_image_size = "off"\n', create=True)
        assert "stays" in guest.run(["omr", "prepare", "snapshot"]).stdout and guest.read(IMAGE_SIZE) == "0\n"
        guest.shell("rm /etc/omr/omr.toml")
        guest.shell(f"mkdir {NOTE}")
        refused = guest.run(["omr", "prepare", "snapshot"], check=False)
        assert refused.code == 1 and "image_size.json" in refused.stderr
        assert guest.read(IMAGE_SIZE) == "0\n"


# omr hibernate


def whole_round(guest: Guest, *options: str, session: str = "load") -> dict:
    """Runs `omr hibernate` in a group, and compares its report with the host's view. Returns the
    report.
    """
    load = fill(guest, "40%", session)
    boot = boot_id(guest)
    command = f"omr hibernate --json {' '.join(options)}"
    script = f"echo $$ > /sys/fs/cgroup/{session}/cgroup.procs; {command} > /tmp/report 2> /tmp/errors"
    seen = guest.hibernate_and_resume(argv=("sh", "-c", script))
    assert boot_id(guest) == boot
    text = guest.read("/tmp/report")
    print(text, guest.read("/tmp/errors"))
    report = json.loads(text[text.rindex("\n{") :])
    # The console has the messages of the image, which the resumed kernel has lost.
    copied = int(re.findall(r"Need to copy (\d+) pages", guest.console())[-1])
    assert report["image"] == copied * 4096
    assert 0 < report["asleep_ms"] / 1000 < seen.hibernate_s + seen.resume_s + 2
    assert "Wrote" in guest.console() and "Wrote" not in guest.shell("dmesg")
    verify(guest, load)
    return report


def test_omr_hibernates_through_the_kernel(release: str) -> None:
    with Guest(release, 512, SwapFile(768, 40)) as guest:
        report = whole_round(guest, "--target min")
        assert (report["hibernated"], report["allocate_ms"] is not None) == ("kernel", True)
        assert report["warm_ms"] is not None
        # The kernel copies only, at any image_size.
        assert report["image_size"] is None
        guest.write(IMAGE_SIZE, "0")
        report = whole_round(guest)
        assert report["image_size"] > report["image"]
        assert guest.read(IMAGE_SIZE) == "0\n"


def test_omr_hibernates_through_logind_where_logind_runs() -> None:
    with DebianGuest(512, SwapFile(768, 40), files={"omr": build("omr")}) as guest:
        guest.settle()
        report = whole_round(guest, "--no-warm")
        assert (report["hibernated"], report["warm_ms"]) == ("logind", None)
        assert "System returned from sleep state" in guest.journal("systemd-hibernate.service")


# systemd-sleep of 256 and newer does the same around the hooks and the sleep.
FREEZE = """
[Service]
ExecStartPre=systemctl freeze user.slice
ExecStopPost=systemctl thaw user.slice
"""

FROZEN = "grep frozen /sys/fs/cgroup/user.slice/cgroup.events"


@pytest.mark.long
@pytest.mark.seldom
def test_a_session_that_is_frozen_during_sleep_can_ask_for_hibernation(installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest)
        guest.shell("mkdir -p /etc/systemd/system/systemd-hibernate.service.d && systemctl start user.slice")
        guest.write("/etc/systemd/system/systemd-hibernate.service.d/freeze.conf", FREEZE, create=True)
        guest.write("/usr/lib/systemd/system-sleep/test", f"#!/bin/sh\n{FROZEN} >> /run/frozen\n", create=True)
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/test && systemctl daemon-reload")
        report = whole_round(guest, "--target min", session="user.slice/session")
        # The control: the session was frozen before and after the sleep.
        assert guest.read("/run/frozen") == "frozen 1\nfrozen 1\n"
        assert guest.shell(FROZEN) == "frozen 0\n"
        assert (report["hibernated"], report["warm_ms"] is not None) == ("logind", True)
        # The record used is the one that omr hibernate made before it reclaimed.
        assert "is kept" in guest.journal(PREPARE) and "ready to hibernate" in guest.journal(PREPARE)
        guest.wait_for(lambda: quiet_after_waking(guest), 60, "quiet", every=1)
        # omr hibernate and the service begin to warm at the same moment. The second one does not
        # fail.
        guest.wait_for(lambda: ends(guest, WARM), 180, "end of the service", every=2)
        assert ends(guest, WARM) == ["Deactivated successfully"], guest.journal(WARM)
