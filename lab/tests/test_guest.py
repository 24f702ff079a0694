"""The lab itself, on which all other tests rely."""

import math
import signal
import threading
import time
from collections.abc import Callable

import pytest

from omrlab.agent import AgentError
from omrlab.debian import DebianGuest
from omrlab.guest import Disk, Guest, GuestError, GuestPanicked, Hibernation, SwapFile, Zram
from omrlab.kernels import series

TESTKIT = ("omr-guest",)


def test_a_guest_boots_with_swap_and_all_controllers(release: str) -> None:
    with Guest(release, 256, Zram(64), programs=TESTKIT, fresh=True) as guest:
        assert guest.read("/proc/sys/kernel/osrelease").startswith(series(release))
        assert "memory" in guest.read("/sys/fs/cgroup/cgroup.subtree_control")
        assert guest.meminfo()["SwapTotal"] > 60 << 20
        assert guest.run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False).code == 3
        with pytest.raises(AgentError) as refused:
            guest.write("/sys/fs/cgroup/memory.reclaim", "nonsense")
        assert refused.value.errno == 22


def test_the_agent_works_in_spite_of_noise_on_its_port(release: str) -> None:
    """Kernel messages flood the console, and other processes write to the agent's own port."""
    with Guest(release, 256, programs=TESTKIT) as guest:
        guest.spawn(["sh", "-c", "while :; do echo '<3>@12345678 {\"id\":1}' > /dev/kmsg; done"])
        guest.spawn(["sh", "-c", "while :; do echo -n '@deadbeef {\"id\":5,' > /dev/ttyS1; usleep 3000; done"])
        text = "".join(f"{number} any \x00 byte \xff\n" for number in range(2000))
        guest.write("/tmp/text", text, create=True)
        for _ in range(5):
            assert guest.read_bytes("/tmp/text") == text.encode()


def test_a_request_that_is_sent_twice_is_done_once() -> None:
    with Guest(mem_mib=256, programs=TESTKIT) as guest:
        request = guest.agent.submit("run", argv=["sh", "-c", "echo once >> /tmp/log; sleep 1"])
        guest.agent.send(request.message)
        request.result()
        guest.agent.send(request.message)
        guest.monotonic_ns()
        assert guest.read("/tmp/log") == "once\n"


def test_a_panic_has_an_exception_of_its_own() -> None:
    with pytest.raises(GuestPanicked, match=r"sysrq|panic"), Guest(mem_mib=256, programs=TESTKIT) as guest:
        guest.agent.submit("write", path="/proc/sysrq-trigger", data="c")
        guest.wait_off(30)


def test_a_request_to_a_guest_that_is_off_fails_at_once() -> None:
    with Guest(mem_mib=256, programs=TESTKIT) as guest:
        assert guest.qemu
        guest.qemu.kill()
        with pytest.raises(GuestError, match="the guest is off"):
            guest.run(["sleep", "1"], timeout=3600)
        with pytest.raises(GuestError, match="the guest is off"):
            guest.agent.wait(threading.Event(), math.inf)


@pytest.mark.parametrize("swap", [Disk(768), SwapFile(768)], ids=["disk", "file"])
def test_hibernation_keeps_memory_and_processes(release: str, swap: Disk | SwapFile) -> None:
    with Guest(release, 384, swap, programs=TESTKIT) as guest:
        hibernates(guest, guest.hibernate_and_resume)


def test_a_debian_guest_hibernates_to_a_file_on_its_root_through_logind() -> None:
    with DebianGuest(512, SwapFile(768)) as guest:
        guest.settle()
        swaps = guest.read("/proc/swaps").splitlines()
        assert len(swaps) == 2 and swaps[1].split()[:2] == ["/swapfile", "file"]
        hibernates(guest, guest.systemctl_hibernate)
        assert "System returned from sleep state" in guest.journal("systemd-hibernate.service")


def hibernates(guest: Guest, round_trip: Callable[[], Hibernation]) -> None:
    guest.group("load")
    load = guest.spawn(["omr-guest", "fill", "40%"], group="load")
    load.line_with("ready")
    boot = guest.read("/proc/sys/kernel/random/boot_id")
    assert round_trip().image["image_kib"] > 0
    assert guest.read("/proc/sys/kernel/random/boot_id") == boot
    load.kill(signal.SIGUSR1)
    verified = load.line_with("verified")
    assert verified["errors"] == 0
    assert verified["verified"] > 100 << 20


def test_a_guest_restored_from_a_snapshot_has_its_own_disks_and_no_gap_in_its_clock() -> None:
    def later() -> Guest:
        return Guest(mem_mib=256, swap=SwapFile(64, mb_s=40), programs=TESTKIT)

    with later() as first, later() as second:
        began = min(first.monotonic_ns(), second.monotonic_ns())
        for guest, text in ((first, "first"), (second, "second")):
            guest.shell(f"echo {text} > /swap/kept; echo {text} > /tmp/kept; sync; echo 3 > /proc/sys/vm/drop_caches")
        for guest, text in ((first, "first"), (second, "second")):
            assert guest.read("/swap/kept") == guest.read("/tmp/kept") == f"{text}\n"
        first.shell("sleep 1")
    with later() as third:
        assert "kept" not in third.shell("ls /swap /tmp")
        # For the guest no time has passed since the snapshot.
        assert third.monotonic_ns() < began + 10**9
        time.sleep(1)
        assert third.monotonic_ns() > began + 10**9 // 2
        # A machine that is switched off and on boots like any other.
        third.shell("echo kept > /swap/kept; sync")
        third.cut_power()
        third.boot()
        assert third.read("/swap/kept") == "kept\n"


def test_a_power_cut_loses_memory_and_keeps_synced_files() -> None:
    with Guest(mem_mib=256, swap=SwapFile(64), programs=TESTKIT) as guest:
        boot = guest.read("/proc/sys/kernel/random/boot_id")
        guest.shell("echo kept > /swap/kept; sync; echo lost > /tmp/lost")
        guest.cut_power()
        guest.boot()
        assert guest.read("/proc/sys/kernel/random/boot_id") != boot
        assert guest.read("/swap/kept") == "kept\n"
        with pytest.raises(AgentError):
            guest.read("/tmp/lost")
