"""Captures files of real kernels for the tests, in crates/testkit/captured/RELEASE."""

import shutil
import signal
from dataclasses import dataclass

from ..agent import AgentError
from ..guest import Disk, Guest
from ..paths import CAPTURED
from ..results import MetricJson, progress
from ..scenario import Scenario, option

MACHINE = """
proc/stat proc/meminfo proc/vmstat proc/swaps proc/loadavg proc/zoneinfo proc/buddyinfo
proc/filesystems proc/pressure/cpu proc/pressure/io proc/pressure/memory proc/pressure/irq
proc/self/stat proc/self/status proc/self/statm proc/self/cgroup proc/self/mounts
proc/self/mountinfo proc/self/maps proc/self/smaps_rollup proc/self/io proc/self/comm
proc/sys/vm/swappiness proc/sys/kernel/osrelease proc/sys/kernel/random/boot_id
sys/kernel/mm/lru_gen/enabled sys/kernel/mm/lru_gen/min_ttl_ms sys/kernel/debug/lru_gen
sys/kernel/mm/transparent_hugepage/enabled sys/kernel/security/lockdown
sys/module/zswap/parameters/enabled sys/module/zswap/parameters/compressor
sys/module/zswap/parameters/max_pool_percent
sys/module/page_reporting/parameters/page_reporting_order
sys/power/state sys/power/disk sys/power/image_size sys/power/resume sys/power/resume_offset
sys/power/reserved_size sys/block/vda/queue/rotational sys/block/zram0/mm_stat
sys/block/zram0/disksize sys/block/zram0/comp_algorithm sys/devices/system/node/node0/meminfo
""".split()
"""Files of the machine."""

GROUP = "captured.slice/busy.service"


RELEASES = ("6.1", "6.12", "7")


@dataclass(kw_only=True)
class Capture(Scenario):
    name = "capture"
    help = "captures /proc, /sys and cgroup files of real kernels for the tests"

    releases: list[str] | None = option(
        None, f"kernel releases (default: {' '.join(RELEASES)})", flag="releases", nargs="*"
    )

    def run(self) -> dict[str, MetricJson]:
        for release in self.releases or RELEASES:
            capture(release)
        return {}


def capture(release: str) -> None:
    directory = CAPTURED / release
    with Guest(release, 512, Disk(512), data_mib=256, programs=("omr-guest",)) as guest:
        # The group has some of each: anonymous memory in use and in swap, page cache, a limit.
        parent = guest.group("captured.slice")
        guest.write(f"{parent}/cgroup.subtree_control", "+memory +cpu +io +pids")
        group = guest.group(GROUP, memory_low="16M")
        load = guest.spawn(
            ["omr-guest", "fill", "192M", "--hot", "25", "--file", "/data/file", "--file-amount", "32M"], group=GROUP
        )
        load.line_with("ready")
        guest.run(["omr-guest", "by-hand", GROUP, "64M"])
        guest.shell("sleep 3")
        texts = {path: text for path in MACHINE if (text := read(guest, f"/{path}")) is not None}
        for name in guest.shell("cd /sys/fs/cgroup; find . -maxdepth 1 -type f").split():
            texts[f"sys/fs/cgroup/{name[2:]}"] = read(guest, f"/sys/fs/cgroup/{name}") or ""
        for name in guest.shell(f"cd {group}; find . -maxdepth 1 -type f").split():
            texts[f"group/{name[2:]}"] = read(guest, f"{group}/{name}") or ""
        load.kill(signal.SIGTERM)
    shutil.rmtree(directory, ignore_errors=True)
    for path, text in texts.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    (directory / "VERSION").write_text(f"{guest.kernel.package} {guest.kernel.version}\n")
    progress(f"captured {len(texts)} files of {guest.kernel.version}")


def read(guest: Guest, path: str) -> str | None:
    """A file's text; None where the file is missing or for writing only."""
    try:
        return guest.read(path)
    except AgentError:
        return None
