"""`omr watch` and the daemon in a guest: the effect of a cloud's notice on a busy machine.

The metadata server is busybox's httpd with files under the names of Azure's service. Of the three
services, only Azure's needs nothing of a request but its path. crates/omr/tests/it/watch tests each
protocol.
"""

import json
import signal
from email.utils import formatdate

from omrlab.binaries import busybox
from omrlab.daemon import CLASSES, CONFIG, Daemon
from omrlab.debian import DebianGuest
from omrlab.guest import KERNEL, MIB, Disk, Guest, Zram

LONG_ENOUGH = 15
"""Seconds within which a notice certainly has an effect: omr watch asks for events each second."""

CLOUD = """
[cloud]
provider = "azure"
endpoint = "http://127.0.0.1:1338"
"""

EVENTS = "/www/metadata/scheduledevents"


def announce(guest: Guest, *events: dict) -> None:
    """Replaces the list as a whole. A request meanwhile gets the old list."""
    guest.write(f"{EVENTS}.new", json.dumps({"DocumentIncarnation": 1, "Events": events}), create=True)
    guest.run(["mv", f"{EVENTS}.new", EVENTS])


def event(guest: Guest, kind: str, seconds: int) -> dict:
    at = formatdate(int(guest.shell("date +%s")) + seconds, usegmt=True)
    return {
        "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["vm_1"],
        "EventStatus": "Scheduled",
        "NotBefore": at,
    }


def test_after_a_notice_a_busy_guest_shrinks_the_background_group_only(release, load) -> None:
    with Guest(release, 512, Zram(512)) as guest:
        background, foreground, low = load(guest, "bg", "128M"), load(guest, "fg", "64M"), load(guest, "low", "48M")
        guest.write("/sys/fs/cgroup/low/memory.low", "max")
        guest.shell("ip link set lo up; mkdir -p /www/metadata/instance/compute")
        guest.write("/www/metadata/instance/compute/name", "vm_1", create=True)
        announce(guest)
        guest.spawn(["httpd", "-f", "-p", "127.0.0.1:1338", "-h", "/www"])
        spin = guest.spawn(["omr-guest", "spin", "--threads", "1", "--burst", "600s"], group="fg")
        spin.line_with("ready")
        spin.kill(signal.SIGUSR1)
        with Daemon(guest, idle="2s", config=CLASSES + CLOUD) as daemon:
            watch = guest.spawn(["omr", "watch", "--foreground", "--config", CONFIG])
            guest.wait_for(lambda: "watches azure" in watch.stderr(), 30, "start of omr watch")
            # The control: the same set-up without a notice reclaims nothing.
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert background.swapped() == 0
            assert daemon.ledger() == []

            announce(guest, event(guest, "Preempt", 90))
            guest.wait_for(lambda: background.resident() < 32 * MIB, 80, "smaller background group")
            prepared = guest.wait_for(
                lambda: [e for e in daemon.ledger() if e["kind"] == "prepare"], 90, "ledger entry"
            )
            assert len(prepared) == 1
            assert prepared[0]["for"] == "preempt"
            assert prepared[0]["why"] == "scheduled event: Preempt"
            assert prepared[0]["freed"] > 90 * MIB
            # One preparation only, although the event is still announced.
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert len([entry for entry in daemon.ledger() if entry["kind"] == "prepare"]) == 1
            watch.kill(signal.SIGTERM)
            assert watch.wait().code == 0, watch.stderr()
        assert foreground.swapped() == 0
        assert low.swapped() == 0
        assert background.swapped() > 90 * MIB


def test_before_a_migration_free_memory_is_reported_to_the_host(load) -> None:
    with Guest(KERNEL, 512, Disk(1024, mb_s=60), balloon=True) as guest:
        background = load(guest, "bg", "70%")
        guest.shell("ip link set lo up; mkdir -p /www/metadata/instance/compute")
        guest.write("/www/metadata/instance/compute/name", "vm_1", create=True)
        announce(guest)
        guest.spawn(["httpd", "-f", "-p", "127.0.0.1:1338", "-h", "/www"])
        with Daemon(guest, idle="1d", config=CLASSES + CLOUD) as daemon:
            watch = guest.spawn(["omr", "watch", "--foreground", "--config", CONFIG])
            guest.wait_for(lambda: "watches azure" in watch.stderr(), 30, "start of omr watch")
            resident = guest.host_resident()
            announce(guest, event(guest, "Freeze", 120))
            guest.wait_for(lambda: "the host was told of" in daemon.process.stderr(), 140, "handing back")
            assert resident - guest.host_resident() >= 0.8 * background.bytes
            watch.kill(signal.SIGTERM)
            assert watch.wait().code == 0, watch.stderr()


def test_a_preparation_ends_when_the_machine_has_slept(load) -> None:
    """The guest hibernates directly through the kernel, so no hook has told the daemon. Otherwise
    the preparation would go on until its deadline, minutes later.
    """
    with Guest(KERNEL, 512, Disk(1024, mb_s=8)) as guest:
        background = load(guest, "bg", "60%")
        guest.shell("ip link set lo up; mkdir -p /www/metadata/instance/compute")
        guest.write("/www/metadata/instance/compute/name", "vm_1", create=True)
        with Daemon(guest, idle="1d", config=CLASSES + CLOUD) as daemon:
            httpd = guest.spawn(["httpd", "-f", "-p", "127.0.0.1:1338", "-h", "/www"])
            announce(guest, event(guest, "Preempt", 110))
            watch = guest.spawn(["omr", "watch", "--foreground", "--config", CONFIG])
            guest.wait_for(lambda: background.swapped() > 8 * MIB, 60, "preparation")
            # Otherwise omr watch would announce the event again.
            watch.kill(signal.SIGKILL)
            httpd.kill(signal.SIGKILL)
            assert daemon.ledger() == []
            guest.hibernate_and_resume()
            prepared = guest.wait_for(
                lambda: [e for e in daemon.ledger() if e["kind"] == "prepare"], 60, "ledger entry"
            )
            assert [entry["stop_reason"] for entry in prepared] == ["the machine was asleep"]
            assert daemon.status()["preparing"] is None
            swapped = background.swapped()
            guest.shell("sleep 5")
            assert background.swapped() <= swapped
            assert background.resident() > 16 * MIB


METADATA = "169.254.169.254"

# No sweep begins because the machine is idle.
SERVICE = (
    CLASSES
    + """
[idle]
for = "1d"
[sweep]
after_boot = "0s"
[cloud]
provider = "azure"
"""
)


def test_the_service_of_the_package_acts_on_a_notice_in_its_sandbox(installed) -> None:
    with DebianGuest(768, files={"busybox": busybox()}, root=installed) as guest:
        guest.settle()
        guest.shell("mkdir -p /etc/omr/conf.d /www/metadata/instance/compute")
        guest.write("/etc/omr/conf.d/test.toml", SERVICE, create=True)
        guest.run(["systemctl", "restart", "omr"])
        guest.write("/www/metadata/instance/compute/name", "vm_1", create=True)
        announce(guest)
        guest.shell(f"busybox ip link set lo up && busybox ip addr add {METADATA}/32 dev lo")
        guest.spawn(["busybox", "httpd", "-f", "-p", f"{METADATA}:80", "-h", "/www"])
        guest.group("bg")
        guest.spawn(["omr-guest", "fill", "128M"], group="bg").line_with("ready", timeout=120)
        guest.run(["systemctl", "start", "omr-watch"], timeout=90)
        guest.wait_for(lambda: "watches azure" in guest.journal("omr-watch"), 60, "start of omr watch")
        guest.shell(f"sleep {LONG_ENOUGH}")
        assert guest.group_value("bg", "memory.swap.current") == 0
        announce(guest, event(guest, "Preempt", 90))
        guest.wait_for(
            lambda: guest.group_value("bg", "memory.swap.current") > 64 * MIB, 80, "smaller background group", every=1
        )
        assert guest.active("omr-watch") == "active"
        assert guest.property("omr-watch", "NRestarts") == "0"
