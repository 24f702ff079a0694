"""What the package does when the machine sleeps: the preparation before hibernation, the hook
around every kind of sleep, power cuts on the way, an image that nobody resumes from; and omr
hibernate.
"""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import booted, install, with_packages

from omrlab.binaries import build
from omrlab.debian import DebianGuest
from omrlab.guest import MIB, Guest, Process, SwapFile
from omrlab.kernels import kernel
from omrlab.paths import REPOSITORY

PREPARE = "omr-prepare-hibernate.service"
WARM = "omr-warm.service"

# The daemon takes nothing here: what is seen is the preparation's doing. And it is not quiet
# because of the boot.
OBSERVE = 'mode = "observe"\n[sweep]\nafter_boot = "0s"\n'

# And here it is the daemon that takes, by the way that changes a limit for moments.
ACT = """
backend = "memory.high"
[idle]
for = "2s"
[sweep]
after_boot = "0s"
[[group]]
match = "load"
class = "background"
"""


def guest_with(installed: Path, mem_mib: int = 768) -> DebianGuest:
    return DebianGuest(mem_mib, SwapFile(1024, 40), root=installed)


# What hibernation runs in its place.
SHRINK = "ExecStart=\nExecStart=/usr/bin/omr prepare hibernate --target min --deadline 60s\nTimeoutStartSec=70s"


def configure(guest: DebianGuest, unit: str = "", config: str = OBSERVE) -> None:
    """Restarts the daemon with this configuration; `unit` is what a drop-in changes of the
    preparation.
    """
    guest.shell("mkdir -p /etc/omr/conf.d")
    guest.write("/etc/omr/conf.d/test.toml", config, create=True)
    guest.run(["systemctl", "restart", "omr"])
    # Nothing but hibernation starts them. (What systemd itself knows of a unit it forgets when that
    # has ended.)
    for started in (PREPARE, WARM):
        assert not guest.journal(started)
    if unit:
        drop_in(guest, unit)


def drop_in(guest: DebianGuest, text: str, unit: str = PREPARE) -> None:
    directory = f"/etc/systemd/system/{unit}.d"
    guest.shell(f"mkdir -p {directory}")
    guest.write(f"{directory}/test.conf", f"[Service]\n{text}\n", create=True)
    guest.shell("systemctl daemon-reload")


def fill(guest: Guest, amount: str, group: str = "load") -> Process:
    guest.group(group)
    load = guest.spawn(["omr-guest", "fill", amount], group=group)
    load.line_with("ready", timeout=120)
    return load


def verify(guest: Guest, load: Process) -> None:
    load.kill(signal.SIGUSR1)
    assert load.line_with("verified", timeout=300)["errors"] == 0


def boot_id(guest: Guest) -> str:
    return guest.read("/proc/sys/kernel/random/boot_id")


def assert_clean(guest: DebianGuest, before: str) -> None:
    """A boot of its own, in which nothing of the one before is in the way."""
    assert boot_id(guest) != before
    guest.settle()
    assert guest.active("omr") == "active"
    assert guest.run(["omr", "status"]).code == 0
    assert "/swapfile" in guest.read("/proc/swaps")
    assert guest.shell("ls -A /var/lib/omr/limits 2> /dev/null || true") == ""
    assert guest.shell("cat /sys/fs/cgroup/*/memory.high /sys/fs/cgroup/*/*/memory.high | sort -u").split() == ["max"]
    # And it can hibernate again.
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
    # Since it was installed this one was not switched off.
    with booted(**with_packages(packages), prepare=install) as guest:
        load = fill(guest, "45%")
        configure(guest, SHRINK)
        prepared = guest.systemctl_hibernate()
        journal = guest.journal(PREPARE)
        assert "ready to hibernate" in journal
        assert guest.property(PREPARE, "Result") == "success"
        assert prepared.image["image_pages"] < 0.6 * without.image["image_pages"], journal
        # What was recorded before comes back afterwards, unless somebody works.
        assert "Written to /var/lib/omr/" in journal
        guest.wait_for(lambda: "asked for" in guest.journal(WARM), 120, "memory brought back", every=2)
        assert guest.property(WARM, "Result") == "success" and "could not be read" not in guest.journal(WARM)
        # The hook has told the daemon, which knows that the machine was asleep; while the warming
        # lasts it says that instead.
        guest.wait_for(lambda: quiet_after_waking(guest), 30, "quiet", every=1)
        verify(guest, load)


@pytest.mark.long
def test_the_preparation_of_the_package_runs_in_its_sandbox(installed: Path) -> None:
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
    """Of each device, the bytes in use and the priority."""
    lines = [line.split() for line in guest.read("/proc/swaps").splitlines()[1:]]
    return {line[0]: (int(line[3]) << 10, int(line[4])) for line in lines}


@pytest.mark.parametrize("how", ["by hand", "by a unit"])
@pytest.mark.long
def test_zram_is_off_while_the_service_works_and_on_again_even_when_all_of_it_is_killed(how, installed: Path) -> None:
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
            assert guest.shell("ls /var/lib/omr/zram.json 2> /dev/null || true") == ""
            # Nothing has failed.
            guest.settle()

        load = fill_zram("load")
        assert swaps(guest)["/swapfile"][0] < 8 << 20
        guest.run(["systemctl", "start", PREPARE], timeout=180)
        assert "is off while this works" in guest.journal(PREPARE), guest.journal(PREPARE)
        assert_on_again()
        assert swaps(guest)["/dev/zram0"][0] < 8 << 20 and swaps(guest)["/swapfile"][0] > 96 << 20
        verify(guest, load)

        # All processes of the unit, those that would have switched it on among them.
        other = fill_zram("other")
        guest.throttle_swap(4)
        guest.run(["systemctl", "start", "--no-block", PREPARE])
        guest.wait_for(lambda: "/dev/zram0" not in swaps(guest), 60, "zram off", every=0.1)
        guest.shell(f"systemctl kill --signal=KILL {PREPARE}")
        guest.wait_for(lambda: "/dev/zram0" in swaps(guest), 60, "zram on")
        guest.throttle_swap(None)
        guest.wait_for(lambda: guest.active(PREPARE) == "failed", 30, "end of the unit")
        guest.run(["systemctl", "reset-failed", PREPARE])
        assert_on_again()
        verify(guest, other)


def quiet_after_waking(guest: DebianGuest) -> bool:
    return "quiet after waking up" in guest.run(["omr", "explain"]).stdout


@pytest.mark.long
def test_suspend_stops_sweeps_and_prepares_nothing(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        load, boot = fill(guest, "64M"), boot_id(guest)
        # The control: until then nobody has told the daemon.
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
def test_after_every_kind_of_sleep_with_an_image_memory_is_brought_back(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        # By then the machine has slept for 5 s.
        guest.shell("mkdir -p /etc/systemd/sleep.conf.d")
        guest.write("/etc/systemd/sleep.conf.d/test.conf", "[Sleep]\nHibernateDelaySec=2s\n", create=True)
        load = fill(guest, "64M")
        # The control: omr-warm.service is what the hook starts, and only where it is enabled.
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
        # Beside omr's hook, at the same moment.
        guest.write("/usr/lib/systemd/system-sleep/test", STAMP, create=True)
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/test")
        load = fill(guest, "64M")
        boot = boot_id(guest)
        guest.systemctl_hibernate()
        assert boot_id(guest) == boot
        # Both by CLOCK_MONOTONIC: nothing has slept before. omr's hook gives the daemon 3 s,
        # systemd all hooks 90 s.
        asleep = re.findall(r"\[ *([0-9.]+)\] PM: hibernation: hibernation entry", guest.shell("dmesg"))
        blocked = float(asleep[0]) - float(guest.read("/run/stamp"))
        # Not less: that it waits for a daemon that hangs is seen, so a longer wait would be.
        assert 2.5 <= blocked < 45, (asleep, blocked)
        assert guest.property(PREPARE, "Result") == "timeout"
        # It has not answered the hook: it could not.
        assert "(stopped)" in guest.read(f"/proc/{guest.property('omr', 'MainPID')}/status")
        guest.shell("systemctl kill --kill-who=main --signal=CONT omr")
        assert guest.run(["omr", "status"]).code == 0
        verify(guest, load)


# Writing the record takes for ever.
STUCK = """#!/bin/sh
case "$*" in warm*) exec sleep infinity ;; esac
exec /usr/bin/omr.real "$@"
"""

UNLIMITED = "ExecStartPre=\nExecStartPre=-/usr/bin/omr warm --record\nTimeoutStartSec=15s"


@pytest.mark.long
def test_a_record_that_hangs_does_not_take_the_preparations_time(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        guest.shell("mv /usr/bin/omr /usr/bin/omr.real")
        guest.write("/usr/bin/omr", STUCK, create=True)
        guest.shell("chmod +x /usr/bin/omr")
        guest.run(["systemctl", "start", PREPARE], timeout=180)
        assert guest.property(PREPARE, "Result") == "success"
        assert "ready to hibernate" in guest.journal(PREPARE)
        # The control: without its own limit it is the unit's, which ends all of it.
        drop_in(guest, UNLIMITED)
        assert guest.run(["systemctl", "start", PREPARE], timeout=180, check=False).code != 0
        assert guest.property(PREPARE, "Result") == "timeout"
        assert guest.journal(PREPARE).count("ready to hibernate") == 1


def begin(guest: DebianGuest, reached: Callable[[], bool], what: str) -> str:
    """Fills the memory, asks for hibernation and comes back when something of it is reached;
    returns the boot's id.
    """
    guest.settle()
    configure(guest, SHRINK)
    fill(guest, "45%")
    guest.shell("sync")
    boot = boot_id(guest)
    guest.agent.submit("run", argv=["systemctl", "hibernate"])
    guest.wait_for(reached, 180, what, every=0.1)
    return boot


@pytest.mark.long
def test_after_a_power_cut_during_a_sweep_the_next_boot_is_clean(installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest, config=ACT)
        fill(guest, "45%")
        boot = boot_id(guest)
        # Asking is work, to the daemon: seldom.
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
def test_after_a_power_cut_while_the_image_is_written_the_next_boot_is_clean(installed: Path) -> None:
    with guest_with(installed) as guest:
        boot = begin(guest, lambda: "for lzo compression" in guest.console(), "image being written")
        time.sleep(0.5)
        guest.cut_power()
        # The control: it was in the middle of it.
        assert "Wrote" not in guest.console()
        guest.boot()
        assert_clean(guest, boot)


@pytest.mark.long
def test_an_image_that_is_not_resumed_from_is_forgotten(installed: Path) -> None:
    """Another kernel on a machine with other memory: the kernel discards the image, and omr starts
    as after any boot.
    """
    with guest_with(installed) as guest:
        boot = begin(guest, lambda: "PM: hibernation" in guest.console(), "hibernation")
        guest.wait_off(300)
        assert "Wrote" in guest.console()
        guest.hardware.kernel = kernel("6.1")
        guest.hardware.mem_mib += 128
        guest.write_initramfs()
        guest.boot()
        assert guest.read("/proc/sys/kernel/osrelease").startswith("6.1.")
        assert_clean(guest, boot)


def test_time_asleep_is_no_time_in_which_memory_was_not_used() -> None:
    with Guest("6.12", 512, SwapFile(768, 40)) as guest:
        guest.write("/sys/kernel/mm/lru_gen/enabled", "y")
        guest.group("load")
        guest.spawn(["omr-guest", "fill", "64M", "--hot", "100"], group="load").line_with("ready", timeout=120)
        # The control is in the same group: what is never used.
        guest.spawn(["omr-guest", "fill", "32M"], group="load").line_with("ready", timeout=120)
        omr = guest.spawn(["omr", "wss", "load", "--window", "20s", "--json"])
        guest.shell("sleep 2")
        guest.hibernate_and_resume()
        ended = omr.wait(timeout=180)
        seen = ended.json()
        cold = next(idle for idle in seen["idle"] if idle["seconds"] == 20)
        assert seen["asleep_seconds"] > 0 and seen["seconds"] >= 20, seen
        # The kernel may have sent some of it to swap to make room for the image.
        swapped = guest.group_value("load", "memory.swap.current")
        assert cold["most"] + swapped >= 28 << 20 and cold["most"] <= 36 << 20, (swapped, seen)


# EC2's agent 1.0.10-2, as far as swap goes: what is called when the machine is to hibernate, and
# its hook.
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
    """What docs/use/sleep.md says that can be done about it, for another swap file."""
    text = (REPOSITORY / "docs" / "use" / "sleep.md").read_text()
    commands = re.findall(r"^sed .*", text, re.MULTILINE)
    assert len(commands) == 2
    return re.sub(r"/swap\b", "/swapfile", " && ".join(commands))


@pytest.mark.long
def test_after_the_change_by_hand_the_agent_of_ec2_reads_nothing_back_and_hibernates_again(installed: Path) -> None:
    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest, SHRINK)
        # What it would bring back is not the agent's doing.
        guest.shell(f"systemctl disable {WARM} && mkdir -p /etc/acpi/actions && swapoff /swapfile")
        for name, text in AGENT.items():
            guest.write(name, text, create=True)
            guest.shell(f"chmod +x {name}")
        load = fill(guest, "96M")

        def hibernate() -> int:
            """What is in swap after it."""
            guest.systemctl_hibernate(ask=f"sh {ASK}")
            return guest.group_value("load", "memory.swap.current")

        # The control: the agent as it is.
        assert hibernate() == 0 and swaps(guest) == {}
        assert "ready to hibernate" in guest.journal(PREPARE)
        assert guest.vmstat()["pswpin"] << 12 > 64 * MIB
        assert "reads back all its swap" in guest.shell("omr doctor")
        guest.shell(f"cp {ASK} /run/as-it-was && {by_hand()}")
        assert "reads back all its swap" not in guest.shell("omr doctor")
        assert hibernate() > 64 * MIB and swaps(guest)["/swapfile"][1] == 32767
        # The control: with swap on, the script as it was asks for nothing.
        assert guest.run(["sh", "/run/as-it-was"], check=False).code == 1
        assert hibernate() > 64 * MIB
        verify(guest, load)


# The kernel is to copy what is in use, where it would look all over the machine for little more

IMAGE_SIZE = "/sys/power/image_size"
NOTE = "/var/lib/omr/image_size.json"


def scanned(guest: Guest) -> int:
    """Pages that reclaim has looked at."""
    lines = (line.split() for line in guest.read("/proc/vmstat").splitlines())
    return sum(int(value) for name, value in lines if re.fullmatch("pgscan_(direct|kswapd|khugepaged|proactive)", name))


@pytest.mark.long
def test_with_image_size_0_the_kernel_does_not_look_for_what_is_not_there(installed: Path) -> None:
    hook = "/usr/lib/systemd/system-sleep/omr"
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest)
        guest.write(IMAGE_SIZE, "0")
        load = fill(guest, "45%")

        def hibernate() -> int:
            """Pages that the kernel looks at from the end of the preparation until all is over."""
            guest.run(["systemctl", "start", PREPARE], timeout=180)
            guest.run(["systemctl", "mask", "--runtime", PREPARE, WARM])
            before = scanned(guest)
            guest.systemctl_hibernate()
            looked = scanned(guest) - before
            guest.run(["systemctl", "unmask", "--runtime", PREPARE, WARM])
            assert guest.read(IMAGE_SIZE) == "0\n"
            assert guest.run(["test", "-e", NOTE], check=False).code != 0
            return looked

        # The control: without omr's hook it goes over all that is left, again and again.
        guest.shell(f"chmod -x {hook}")
        without = hibernate()
        assert "image_size is" not in guest.journal("systemd-hibernate.service")
        guest.shell(f"chmod +x {hook}")
        raised = hibernate()
        assert "image_size is 0 B again" in guest.journal("systemd-hibernate.service")
        assert raised < without / 4, (raised, without)
        # And where much could leave, it is the kernel's to take: that is what image_size says.
        verify(guest, load)
        assert "image_size stays as it is" in guest.run(["omr", "prepare", "snapshot"]).stdout
        verify(guest, load)


def test_image_size_is_put_back_even_when_omr_was_killed_with_it_raised() -> None:
    with Guest("6.12", 512, SwapFile(768, 40)) as guest:
        default = guest.read(IMAGE_SIZE)
        assert "stays" in guest.run(["omr", "prepare", "snapshot"]).stdout and guest.read(IMAGE_SIZE) == default

        def raise_it() -> None:
            guest.write(IMAGE_SIZE, "0")
            guest.run(["omr", "prepare", "snapshot"])
            assert int(guest.read(IMAGE_SIZE)) > 16 * MIB

        # By itself once more, by the next preparation, and by whoever asks.
        for again in (["snapshot"], ["hibernate"], ["restore"]):
            raise_it()
            guest.run(["omr", "prepare", *again], timeout=120)
            assert (guest.read(IMAGE_SIZE) == "0\n") == (again != ["snapshot"]), again
            guest.run(["omr", "prepare", "restore"])
            assert guest.read(IMAGE_SIZE) == "0\n"
        # What somebody else has set meanwhile stays.
        raise_it()
        guest.write(IMAGE_SIZE, default.strip())
        assert guest.run(["omr", "prepare", "restore"]).stdout == ""
        assert guest.read(IMAGE_SIZE) == default and guest.run(["test", "-e", NOTE], check=False).code != 0
        # Nor is it raised where the configuration says so, or without a note.
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
    """Runs `omr hibernate` in a group; returns its report, compared with what the host has seen."""
    load = fill(guest, "40%", session)
    boot = boot_id(guest)
    command = f"omr hibernate --json {' '.join(options)}"
    script = f"echo $$ > /sys/fs/cgroup/{session}/cgroup.procs; {command} > /tmp/report 2> /tmp/errors"
    seen = guest.hibernate_and_resume(argv=("sh", "-c", script))
    assert boot_id(guest) == boot
    text = guest.read("/tmp/report")
    print(text, guest.read("/tmp/errors"))
    report = json.loads(text[text.rindex("\n{") :])
    # The log on the console is the one that the resumed kernel has lost.
    copied = int(re.findall(r"Need to copy (\d+) pages", guest.console())[-1])
    assert report["image"] == copied * 4096
    assert 0 < report["asleep_ms"] / 1000 < seen.hibernate_s + seen.resume_s + 2
    assert "Wrote" in guest.console() and "Wrote" not in guest.shell("dmesg")
    verify(guest, load)
    return report


def test_omr_hibernates_straight_through_the_kernel(release: str) -> None:
    with Guest(release, 512, SwapFile(768, 40)) as guest:
        report = whole_round(guest, "--target min")
        assert (report["hibernated"], report["allocate_ms"] is not None) == ("kernel", True)
        assert report["warm_ms"] is not None
        # The kernel only copies as it is.
        assert report["image_size"] is None
        guest.write(IMAGE_SIZE, "0")
        report = whole_round(guest)
        assert report["image_size"] > report["image"]
        assert guest.read(IMAGE_SIZE) == "0\n"


def test_omr_hibernates_through_logind_where_it_runs() -> None:
    with DebianGuest(512, SwapFile(768, 40), files={"omr": build("omr")}) as guest:
        guest.settle()
        report = whole_round(guest, "--no-warm")
        assert (report["hibernated"], report["warm_ms"]) == ("logind", None)
        assert "System returned from sleep state" in guest.journal("systemd-hibernate.service")


def ends(guest: DebianGuest, unit: str) -> list[str]:
    """How it has ended, each time; systemd itself forgets that with the unit."""
    return re.findall("Deactivated successfully|Failed with result", guest.journal(unit))


# As systemd-sleep of 256 and newer does around the hooks and the sleep.
FREEZE = """
[Service]
ExecStartPre=systemctl freeze user.slice
ExecStopPost=systemctl thaw user.slice
"""

FROZEN = "grep frozen /sys/fs/cgroup/user.slice/cgroup.events"


@pytest.mark.long
def test_a_session_that_is_frozen_meanwhile_can_ask_for_it(installed: Path) -> None:
    with guest_with(installed) as guest:
        guest.settle()
        configure(guest)
        guest.shell("mkdir -p /etc/systemd/system/systemd-hibernate.service.d && systemctl start user.slice")
        guest.write("/etc/systemd/system/systemd-hibernate.service.d/freeze.conf", FREEZE, create=True)
        guest.write("/usr/lib/systemd/system-sleep/test", f"#!/bin/sh\n{FROZEN} >> /run/frozen\n", create=True)
        guest.shell("chmod +x /usr/lib/systemd/system-sleep/test && systemctl daemon-reload")
        report = whole_round(guest, "--target min", session="user.slice/session")
        # The control: it was frozen before and after.
        assert guest.read("/run/frozen") == "frozen 1\nfrozen 1\n"
        assert guest.shell(FROZEN) == "frozen 0\n"
        assert (report["hibernated"], report["warm_ms"] is not None) == ("logind", True)
        # What omr hibernate had recorded before it emptied the groups is what comes back.
        assert "is kept" in guest.journal(PREPARE) and "ready to hibernate" in guest.journal(PREPARE)
        guest.wait_for(lambda: quiet_after_waking(guest), 60, "quiet", every=1)
        # Both bring memory back from the same moment on, and whoever is the second has not failed.
        guest.wait_for(lambda: ends(guest, WARM), 180, "end of the service", every=2)
        assert ends(guest, WARM) == ["Deactivated successfully"], guest.journal(WARM)


@pytest.mark.long
def test_the_service_that_finds_memory_being_brought_back_already_has_not_failed(installed: Path) -> None:
    def begin_second() -> None:
        guest.run(["flock", "/run/omr/warm.lock", "systemctl", "start", WARM], check=False)

    with guest_with(installed, 512) as guest:
        guest.settle()
        configure(guest)
        begin_second()
        guest.wait_for(lambda: ends(guest, WARM) and "running already" in guest.journal(WARM), 60, "end of the service")
        assert ends(guest, WARM) == ["Deactivated successfully"], guest.journal(WARM)
        guest.settle()
        # The control: a unit that does not allow its exit code.
        drop_in(guest, "SuccessExitStatus=", WARM)
        begin_second()
        assert guest.active(WARM) == "failed"
        assert guest.property(WARM, "ExecMainStatus") == "4"
