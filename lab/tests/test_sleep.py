"""The package when the machine sleeps: the preparation before hibernation, the hook around every
kind of sleep, power cuts, and an image that is never resumed.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import booted, install, with_packages
from sleeping import (
    ACT,
    PREPARE,
    SHRINK,
    WARM,
    boot_id,
    configure,
    drop_in,
    ends,
    fill,
    guest_with,
    quiet_after_waking,
    verify,
)

from omrlab.debian import DebianGuest
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Guest, Process, SwapFile
from omrlab.kernels import kernel
from omrlab.paths import REPOSITORY

IMAGE_WRITTEN = re.compile(r"thread\(s\) for (lzo )?compression")
"""The kernel begins to write the image. The name of the algorithm is there since Linux 6.9."""


def assert_clean(guest: DebianGuest, before: str) -> None:
    """Checks that the guest has booted afresh, and that nothing of the boot before disturbs it."""
    assert boot_id(guest) != before
    guest.settle()
    assert guest.active("omr") == "active"
    assert guest.run(["omr", "status"]).code == 0
    assert "/swapfile" in guest.read("/proc/swaps")
    assert guest.shell("ls -A /var/lib/omr/limits 2> /dev/null || true") == ""
    assert guest.shell("cat /sys/fs/cgroup/*/memory.high /sys/fs/cgroup/*/*/memory.high | sort -u").split() == ["max"]
    # The guest can hibernate again.
    load = fill(guest, "64M")
    guest.systemctl_hibernate()
    verify(guest, load)


@pytest.mark.long
def test_hibernation_is_prepared_where_the_package_is_installed(packages: list[Path]) -> None:
    # The control: the same machine without omr.
    with booted(**with_packages(packages)) as guest:
        load = fill(guest, "45%")
        without = guest.systemctl_hibernate()
        verify(guest, load)
    # This machine was not switched off since the package was installed.
    with booted(**with_packages(packages), prepare=install) as guest:
        load = fill(guest, "45%")
        configure(guest, SHRINK)
        prepared = guest.systemctl_hibernate()
        journal = guest.journal(PREPARE)
        assert "ready to hibernate" in journal
        assert guest.property(PREPARE, "Result") == "success"
        # Without MGLRU, which is off in Debian's 6.1, the kernel itself makes the image smaller.
        smaller = 0.8 if KERNEL == "6.1" else 0.6
        assert prepared.image["image_pages"] < smaller * without.image["image_pages"], journal
        # The recorded memory comes back after resume, unless a user works.
        assert "Written to /var/lib/omr-root/" in journal
        guest.wait_for(lambda: "asked for" in guest.journal(WARM), 120, "memory brought back", every=2)
        assert guest.property(WARM, "Result") == "success" and "could not be read" not in guest.journal(WARM)
        # The hook has told the daemon that the machine was asleep. `omr explain` shows the warming
        # first, and then that.
        guest.wait_for(lambda: quiet_after_waking(guest), 30, "quiet", every=1)
        verify(guest, load)


@pytest.mark.long
def test_the_package_prepares_hibernation_in_a_sandbox(installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest)
        assert guest.run(["systemctl", "is-enabled", PREPARE]).stdout.strip() == "enabled"
        load = fill(guest, "70%")
        swapped = guest.vmstat()["pswpout"]
        guest.run(["systemctl", "start", PREPARE], timeout=120)
        journal = guest.journal(PREPARE)
        assert "ready to hibernate" in journal, journal
        assert guest.vmstat()["pswpout"] > swapped
        overall = guest.shell(f"systemd-analyze security --no-pager {PREPARE}").splitlines()[-1]
        assert "OK" in overall, overall
        verify(guest, load)


# As zram-generator does it: when the swap is off, the device is reset.
BOUND = {
    "dev-zram0.swap": """
[Unit]
Requires=set-up-zram.service
After=set-up-zram.service
[Swap]
What=/dev/zram0
Priority=100
Options=discard
""",
    "set-up-zram.service": """
[Unit]
BindsTo=dev-zram0.swap
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh -c 'echo 192M > /sys/block/zram0/disksize && mkswap /dev/zram0'
ExecStop=sh -c 'echo 1 > /sys/block/zram0/reset'
""",
}


def swaps(guest: Guest) -> dict[str, tuple[int, int]]:
    """The bytes in use and the priority of each swap device."""
    lines = [line.split() for line in guest.read("/proc/swaps").splitlines()[1:]]
    return {line[0]: (int(line[3]) << 10, int(line[4])) for line in lines}


@pytest.mark.parametrize("how", [pytest.param("by hand", marks=pytest.mark.seldom), "by a unit"])
@pytest.mark.long
def test_zram_is_off_during_the_preparation_and_on_again_even_after_a_kill_of_the_unit(how, installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest, SHRINK)
        if how == "by a unit":
            for name, text in BOUND.items():
                guest.write(f"/etc/systemd/system/{name}", text, create=True)
            guest.shell("systemctl daemon-reload && systemctl start dev-zram0.swap")
        else:
            guest.shell("echo 192M > /sys/block/zram0/disksize && mkswap /dev/zram0 && swapon -p 100 /dev/zram0")

        def fill_zram(group: str) -> Process:
            load = fill(guest, "160M", group)
            guest.shell(f"echo 128M > /sys/fs/cgroup/{group}/memory.reclaim || true")
            assert swaps(guest)["/dev/zram0"][0] > 96 << 20
            return load

        def assert_on_again() -> None:
            assert swaps(guest)["/dev/zram0"][1] == 100
            assert guest.active("dev-zram0.swap") == "active"
            assert guest.shell("ls /var/lib/omr-root/zram.json 2> /dev/null || true") == ""
            # No unit has failed.
            guest.settle()

        load = fill_zram("load")
        assert swaps(guest)["/swapfile"][0] < 8 << 20
        guest.run(["systemctl", "start", PREPARE], timeout=180)
        assert "is off during the preparation" in guest.journal(PREPARE), guest.journal(PREPARE)
        assert_on_again()
        assert swaps(guest)["/dev/zram0"][0] < 8 << 20 and swaps(guest)["/swapfile"][0] > 96 << 20
        verify(guest, load)

        # Kills all processes of the unit, also the one that would switch zram on.
        other = fill_zram("other")
        guest.throttle_swap(4)
        guest.run(["systemctl", "start", "--no-block", PREPARE])
        guest.wait_for(lambda: "/dev/zram0" not in swaps(guest), 60, "zram off", every=0.1)
        guest.shell(f"systemctl kill --signal=KILL {PREPARE}")
        # The swap file is on the disk of the programs, and writes of half a minute may wait there.
        guest.throttle_swap(None)
        guest.wait_for(lambda: "/dev/zram0" in swaps(guest), 60, "zram on")
        guest.wait_for(lambda: guest.active(PREPARE) == "failed", 30, "end of the unit")
        guest.run(["systemctl", "reset-failed", PREPARE])
        assert_on_again()
        verify(guest, other)


@pytest.mark.long
def test_suspend_stops_sweeps_and_prepares_nothing(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        load, boot = fill(guest, "64M"), boot_id(guest)
        # The control: before the suspend the daemon knows nothing about sleep.
        assert "about to sleep" not in guest.run(["omr", "explain"]).stdout
        guest.systemctl_suspend()
        assert boot_id(guest) == boot and "PM: suspend exit" in guest.console()
        assert "about to sleep" in guest.run(["omr", "explain"]).stdout
        for hibernation_only in (PREPARE, WARM):
            assert not guest.journal(hibernation_only)
        assert guest.group_value("load", "memory.swap.current") == 0
        verify(guest, load)


def wait_for_warming(guest: DebianGuest, times: int) -> None:
    """Waits until the service has brought memory back this many times."""
    guest.wait_for(lambda: guest.journal(WARM).count("asked for") == times, 120, "memory brought back", every=2)


@pytest.mark.long
@pytest.mark.seldom
def test_memory_is_brought_back_after_every_kind_of_sleep_with_an_image(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        # The simulated sleep of 5 s is longer than this delay.
        guest.shell("mkdir -p /etc/systemd/sleep.conf.d")
        guest.write("/etc/systemd/sleep.conf.d/test.conf", "[Sleep]\nHibernateDelaySec=2s\n", create=True)
        load = fill(guest, "64M")
        # The control: the hook starts omr-warm.service only where the service is enabled.
        guest.shell(f"systemctl disable {WARM}")
        guest.systemctl_suspend("hybrid-sleep")
        assert "about to sleep" in guest.run(["omr", "explain"]).stdout
        assert not guest.journal(WARM)
        guest.shell(f"systemctl enable {WARM}")
        for number, kind in enumerate(["hybrid-sleep", "suspend-then-hibernate"], 1):
            guest.shell("echo 32M > /sys/fs/cgroup/load/memory.reclaim || true")
            assert guest.group_value("load", "memory.swap.current") > 16 * MIB
            guest.systemctl_suspend(kind)
            wait_for_warming(guest, number)
        verify(guest, load)


STAMP = """#!/bin/sh
[ "$1" = post ] || cut -d ' ' -f 1 /proc/uptime > /run/stamp
"""


@pytest.mark.long
def test_neither_a_slow_preparation_nor_a_daemon_that_hangs_keeps_the_machine_awake(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest, "ExecStart=\nExecStart=/bin/sleep infinity\nTimeoutStartSec=3s")
        guest.shell("systemctl kill --kill-who=main --signal=STOP omr")
        # A second hook beside omr's; systemd starts both at the same moment.
        guest.write("/usr/lib/systemd/system-sleep/test", STAMP, create=True)
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/test")
        load = fill(guest, "64M")
        boot = boot_id(guest)
        guest.systemctl_hibernate()
        assert boot_id(guest) == boot
        # Both times are CLOCK_MONOTONIC, because the machine has not slept before. omr's hook gives
        # the daemon 3 s, systemd gives all hooks 90 s.
        asleep = re.findall(r"\[ *([0-9.]+)\] PM: hibernation: hibernation entry", guest.shell("dmesg"))
        blocked = float(asleep[0]) - float(guest.read("/run/stamp"))
        # The lower bound shows that the hook waits for a daemon that hangs, so a longer wait would
        # be seen, too.
        assert 2.5 <= blocked < 45, (asleep, blocked)
        assert guest.property(PREPARE, "Result") == "timeout"
        # The daemon is stopped, so it cannot have answered the hook.
        assert "(stopped)" in guest.read(f"/proc/{guest.property('omr', 'MainPID')}/status")
        guest.shell("systemctl kill --kill-who=main --signal=CONT omr")
        assert guest.run(["omr", "status"]).code == 0
        verify(guest, load)


# An omr whose `omr warm` never ends.
STUCK = """#!/bin/sh
case "$*" in warm*) exec sleep infinity ;; esac
exec /usr/bin/omr.real "$@"
"""

UNLIMITED = "ExecStartPre=\nExecStartPre=-/usr/bin/omr warm --record\nTimeoutStartSec=15s"


@pytest.mark.long
def test_a_record_that_hangs_does_not_use_up_the_time_of_the_preparation(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        guest.shell("mv /usr/bin/omr /usr/bin/omr.real")
        guest.write("/usr/bin/omr", STUCK, create=True)
        guest.shell("chmod +x /usr/bin/omr")
        guest.run(["systemctl", "start", PREPARE], timeout=180)
        assert guest.property(PREPARE, "Result") == "success"
        assert "ready to hibernate" in guest.journal(PREPARE)
        # The control: without a limit of its own, the record has the unit's limit. The timeout then
        # ends the whole unit.
        drop_in(guest, UNLIMITED)
        assert guest.run(["systemctl", "start", PREPARE], timeout=180, check=False).code != 0
        assert guest.property(PREPARE, "Result") == "timeout"
        assert guest.journal(PREPARE).count("ready to hibernate") == 1


def begin(guest: DebianGuest, reached: Callable[[], bool], what: str) -> str:
    """Fills memory, asks for hibernation, and waits for the condition; returns the boot's id."""
    guest.settle()
    configure(guest, SHRINK)
    fill(guest, "45%")
    guest.shell("sync")
    boot = boot_id(guest)
    guest.agent.submit("run", argv=["systemctl", "hibernate"])
    guest.wait_for(reached, 180, what, every=0.1)
    return boot


@pytest.mark.long
@pytest.mark.seldom
def test_after_a_power_cut_during_a_sweep_the_next_boot_is_clean(installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest, config=ACT)
        fill(guest, "45%")
        boot = boot_id(guest)
        # Each question is work for the daemon, so the test asks seldom.
        guest.wait_for(lambda: guest.group_value("load", "memory.swap.current") > 0, 180, "sweep", every=4)
        guest.cut_power()
        guest.boot()
        assert_clean(guest, boot)


@pytest.mark.long
def test_after_a_power_cut_during_the_preparation_the_next_boot_is_clean(installed: Path) -> None:
    with guest_with(installed) as guest:
        boot = begin(
            guest,
            lambda: guest.active(PREPARE) == "activating" and guest.group_value("load", "memory.swap.current") > 0,
            "sweep",
        )
        guest.cut_power()
        guest.boot()
        assert_clean(guest, boot)


@pytest.mark.long
@pytest.mark.seldom
def test_after_a_power_cut_while_the_image_is_written_the_next_boot_is_clean(installed: Path) -> None:
    with guest_with(installed) as guest:
        boot = begin(guest, lambda: IMAGE_WRITTEN.search(guest.console()), "image being written")
        time.sleep(0.5)
        guest.cut_power()
        # The control: the power was cut while the image was written.
        assert "Wrote" not in guest.console()
        guest.boot()
        assert_clean(guest, boot)


OTHER = "6.12" if KERNEL == "6.1" else "6.1"


@pytest.mark.long
@pytest.mark.seldom
def test_omr_starts_as_after_any_boot_when_the_image_was_discarded(installed: Path) -> None:
    """Boots another kernel on a machine with more memory. The kernel discards the image, and omr
    starts as after any boot.
    """
    with guest_with(installed) as guest:
        boot = begin(guest, lambda: "PM: hibernation" in guest.console(), "hibernation")
        guest.wait_off(300)
        assert "Wrote" in guest.console()
        guest.hardware.kernel = kernel(OTHER)
        guest.hardware.mem_mib += 128
        guest.write_initramfs()
        guest.boot()
        assert guest.read("/proc/sys/kernel/osrelease").startswith(f"{OTHER}.")
        assert_clean(guest, boot)


def test_time_asleep_does_not_count_towards_ages() -> None:
    with Guest(KERNEL, 512, SwapFile(768, 40)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.group("load")
        guest.spawn(["omr-guest", "fill", "64M", "--hot", "100"], group="load").line_with("ready", timeout=120)
        # The control is in the same group: memory that is never used.
        guest.spawn(["omr-guest", "fill", "32M"], group="load").line_with("ready", timeout=120)
        omr = guest.spawn(["omr", "wss", "load", "--window", "20s", "--json"])
        guest.shell("sleep 2")
        guest.hibernate_and_resume()
        ended = omr.wait(timeout=180)
        seen = ended.json()
        cold = next(idle for idle in seen["idle"] if idle["seconds"] == 20)
        assert seen["asleep_seconds"] > 0 and seen["seconds"] >= 20, seen
        # The kernel may have sent some of the cold memory to swap to make room for the image.
        swapped = guest.group_value("load", "memory.swap.current")
        assert cold["most"] + swapped >= 28 << 20 and cold["most"] <= 36 << 20, (swapped, seen)


# The parts of EC2's agent 1.0.10-2 that handle swap: the script that it runs to hibernate the
# machine, and its hook.
ASK = "/etc/acpi/actions/sleep.sh"
AGENT = {
    "/etc/hibinit-config.cfg": "[swap]\n",
    ASK: """#!/bin/sh
for attempt in 1 2 3; do
    if ! swapon --priority=32767 /swapfile; then
        sleep 1
        continue
    fi
    systemctl hibernate && exit
    swapoff /swapfile
    sleep 1
done
exit 1
""",
    "/usr/lib/systemd/system-sleep/sleep-handler.sh": """#!/bin/sh
[ "$1" = post ] || exit
if swapoff /swapfile; then logger "did swapoff"; fi
""",
}


def by_hand() -> str:
    """The commands of docs/use/sleep.md that change the agent, for this swap file."""
    text = (REPOSITORY / "docs" / "use" / "sleep.md").read_text()
    commands = re.findall(r"^sed .*", text, re.MULTILINE)
    assert len(commands) == 2
    return re.sub(r"/swap\b", "/swapfile", " && ".join(commands))


@pytest.mark.long
@pytest.mark.seldom
def test_the_documented_change_stops_ec2s_agent_from_reading_swap_back(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest, SHRINK)
        # omr-warm would bring memory back, too. So it is off, and only the agent's effect is seen.
        guest.shell(f"systemctl disable {WARM} && mkdir -p /etc/acpi/actions && swapoff /swapfile")
        for name, text in AGENT.items():
            guest.write(name, text, create=True)
            guest.shell(f"chmod +x {name}")
        load = fill(guest, "96M")

        def hibernate() -> int:
            """Hibernates; returns the bytes that are in swap afterwards."""
            guest.systemctl_hibernate(ask=f"sh {ASK}")
            return guest.group_value("load", "memory.swap.current")

        # The control: the unchanged agent.
        assert hibernate() == 0 and swaps(guest) == {}
        assert "ready to hibernate" in guest.journal(PREPARE)
        assert guest.vmstat()["pswpin"] << 12 > 64 * MIB
        assert "reads back all its swap" in guest.shell("omr doctor")
        guest.shell(f"cp {ASK} /run/as-it-was && {by_hand()}")
        assert "reads back all its swap" not in guest.shell("omr doctor")
        assert hibernate() > 64 * MIB and swaps(guest)["/swapfile"][1] == 32767
        # The control: with swap on, the unchanged script does not hibernate.
        assert guest.run(["sh", "/run/as-it-was"], check=False).code == 1
        assert hibernate() > 64 * MIB
        verify(guest, load)


@pytest.mark.long
@pytest.mark.seldom
def test_a_second_warming_service_ends_without_a_failure(installed: Path) -> None:
    def begin_second() -> None:
        # A lock file that others may open would be none.
        guest.run(["sh", "-c", f"umask 077; exec flock /run/omr-root/warm.lock systemctl start {WARM}"], check=False)

    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        begin_second()
        guest.wait_for(lambda: ends(guest, WARM) and "running already" in guest.journal(WARM), 60, "end of the service")
        assert ends(guest, WARM) == ["Deactivated successfully"], guest.journal(WARM)
        guest.settle()
        # The control: a unit that counts this exit code as a failure.
        drop_in(guest, "SuccessExitStatus=", WARM)
        begin_second()
        assert guest.active(WARM) == "failed"
        assert guest.property(WARM, "ExecMainStatus") == "4"
