"""A guest with a whole Debian 12: systemd, D-Bus, logind, udev, journald, dpkg. Tests use it for
features that the mini guest lacks.

Any user can make its image. The image is made once and kept in the cache, under a name made of its
recipe. Each guest works on a copy. Kernel, swap and agent are those of the mini guest. A variant of
the image has more packages: see `services.py`.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .binaries import build, busybox
from .guest import Guest, GuestError, Hibernation, Swap, SwapFile, Zram
from .images import copy, grow
from .initramfs import Archive
from .paths import CACHE, GUEST, alone

SUITE = "bookworm"

PACKAGES = ("systemd-sysv", "libpam-systemd", "dbus", "udev", "man-db", "bash-completion", "init-system-helpers")

IMAGE_MIB = 1024

LAB = "/run/lab"
"""The directory into which the initramfs puts the programs and files of a test."""

AGENT_UNIT = f"""\
[Unit]
Description=Agent of the lab
# As soon as /dev/ttyS1 is there: what a test waits for, it waits for itself.
After=dev-ttyS1.device
BindsTo=dev-ttyS1.device

[Service]
ExecStart={LAB}/omr-guest agent /dev/ttyS1
Environment=HOME=/root LC_ALL=C.UTF-8 PATH={LAB}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Restart=always

[Install]
WantedBy=multi-user.target
"""

# These timers would start work that lasts for minutes, and a test could not tell that load from its
# own.
QUIET = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "man-db.timer",
)
# At each boot and each reload, generators search for units that this image does not need. That
# takes half of the time of a reload.
NO_GENERATORS = 'cd "$1" && mkdir -p etc/systemd/system-generators && for path in lib/systemd/system-generators/*; ' + (
    'do ln -s /dev/null "etc/systemd/system-generators/${{path##*/}}"; done'
)
# No user logs in there, and the serial port belongs to the kernel.
NO_LOGIN = ("serial-getty@ttyS0.service", "getty@tty1.service")

DPKG = """\
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/info/*
"""

INIT = (GUEST / "debian-init").read_text()

MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "lz4", "zram", "fuse")


def sources() -> list[str]:
    """The apt sources of this suite on this machine. Without any, mmdebstrap uses its default."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    ).stdout
    lines = {tuple(line.split()) for line in targets.splitlines()}
    return [
        f"deb {site} {suite} {component}"
        for site, suite, component in sorted(lines)
        if suite in (SUITE, f"{SUITE}-security")
    ]


@dataclass(frozen=True)
class Variant:
    """What one image has more than another."""

    name: str = "debian"
    """Its directory in the cache, which has the newest image of this variant only."""
    packages: tuple[str, ...] = ()
    """Packages in addition to `PACKAGES`."""
    mib: int = IMAGE_MIB
    """Size of the file system."""
    hooks: tuple[str, ...] = ()
    """Hooks for mmdebstrap after `CUSTOMIZE`. In each, $1 is the new root."""


PLAIN = Variant()


def image(variant: Variant = PLAIN) -> Path:
    """The image of the root file system. Made when the cache has none."""
    with alone(variant.name):
        return find_or_make(variant)


def find_or_make(variant: Variant) -> Path:
    packages = PACKAGES + variant.packages
    recipe = repr((SUITE, packages, variant.mib, AGENT_UNIT, QUIET, NO_LOGIN, DPKG, CUSTOMIZE, *variant.hooks))
    path = CACHE / variant.name / f"{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.ext4"
    if path.exists():
        return path
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="omr-debian-") as temporary:
        directory = Path(temporary)
        # mmdebstrap's helpers run as other users.
        directory.chmod(0o755)
        (directory / "agent.service").write_text(AGENT_UNIT)
        (directory / "dpkg.cfg").write_text(DPKG)
        archive = directory / "root.tar"
        hooks = [hook.format(directory=directory) for hook in CUSTOMIZE]
        # mmdebstrap warns about a hook that ends with a line break.
        hooks += [hook.strip() for hook in variant.hooks]
        subprocess.run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(packages)),
                *(f"--dpkgopt={line}" for line in DPKG.splitlines()),
                *(f"--customize-hook={hook}" for hook in hooks),
                *(SUITE, str(archive), *sources()),
            ],
            check=True,
        )
        # Owners and device nodes need root, or fakeroot.
        pretend = [] if os.getuid() == 0 else ["fakeroot"]
        made = directory / "root.ext4"
        script = (
            f"mkdir root && tar -x -f root.tar -C root && mke2fs -q -t ext4 -d root -L root {made.name} {variant.mib}M"
        )
        subprocess.run([*pretend, "sh", "-c", script], cwd=directory, check=True)
        # The image gets its final name when it is complete.
        unfinished = path.with_suffix(".unfinished")
        copy(made, unfinished)
        unfinished.rename(path)
    return path


# Hooks for mmdebstrap. In each, $1 is the new root.
CUSTOMIZE = (
    'copy-in "{directory}/agent.service" /etc/systemd/system',
    'mv "$1/etc/systemd/system/agent.service" "$1/etc/systemd/system/omr-lab-agent.service"',
    'chroot "$1" systemctl --quiet enable omr-lab-agent.service',
    'chroot "$1" systemctl --quiet mask ' + " ".join(QUIET + NO_LOGIN),
    'echo guest > "$1/etc/hostname"',
    # An empty machine-id is made anew at each boot. Presets are not applied, as they would be at a
    # first boot.
    ': > "$1/etc/machine-id"',
    ': > "$1/etc/fstab"',
    NO_GENERATORS,
    # Apt's lists are a third of the image, and no test asks for packages.
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*',
)


# The command returns at once, and logind knows when the sleep is over. The checks are rare, because
# the machine is to be idle meanwhile.
SYSTEMCTL_SLEEP = """
{ask} || exit
logind=org.freedesktop.login1
while busctl get-property $logind /org/freedesktop/login1 $logind.Manager PreparingForSleep | grep -q true
do sleep 0.5; done
"""


ZRAM = Zram(512)


class DebianGuest(Guest):
    """A guest with systemd as its process 1.

    `files` are in `LAB` under their names. `root` is a root file system that `shut_down` has kept.
    Without one, the guest begins with the image of this `variant`.
    """

    def __init__(
        self,
        mem_mib: int = 768,
        swap: Swap | None = ZRAM,
        files: dict[str, Path] | None = None,
        root: Path | None = None,
        variant: Variant = PLAIN,
        **options: Any,
    ) -> None:
        super().__init__(mem_mib=mem_mib, swap=swap, boot_timeout=180.0, **options)
        # As on a machine with one disk, a swap file is on the root file system.
        self.hardware.own_root = not isinstance(swap, SwapFile)
        self.hardware.append += f"{' omr.root=vda' * isinstance(swap, SwapFile)} systemd.show_status=no"
        self.files = files or {}
        self.root = root
        self.variant = variant

    def initramfs(self) -> bytes:
        archive = Archive()
        for path in ("bin", "dev", "proc", "sys", "run", "root", "lab", "modules"):
            archive.directory(path)
        archive.file("init", INIT.encode(), 0o755)
        archive.file("bin/busybox", busybox().read_bytes(), 0o755)
        archive.symlink("bin/sh", "busybox")
        archive.file("lab/omr-guest", build("omr-guest").read_bytes(), 0o755)
        for name, file in self.files.items():
            archive.file(f"lab/{name}", file.read_bytes(), 0o755)
        modules = self.kernel.modules
        order = modules.load_order(*modules.present(*MODULES), *("virtio_balloon",) * self.hardware.balloon)
        for name in order:
            archive.file(f"modules/{name}.ko", modules.read(name))
        archive.file("modules/order", "\n".join(order).encode() + b"\n")
        return archive.bytes()

    def make_disks(self) -> None:
        if self.hardware.own_root:
            copy(self.first_root(), self.directory / "root")
        super().make_disks()

    def make_file_system(self, swap: SwapFile, path: Path) -> None:
        copy(self.first_root(), path)
        grow(path, swap.mib + swap.room_mib)

    def first_root(self) -> Path:
        return self.root or image(self.variant)

    def origin(self) -> str:
        root = self.first_root()
        return f"{root} {root.stat().st_mtime_ns}"

    def settle(self) -> None:
        """Waits until the boot is complete."""
        state = self.run(["systemctl", "is-system-running", "--wait"], timeout=180, check=False).stdout.strip()
        if state != "running":
            failed = self.run(["systemctl", "list-units", "--failed", "--plain", "--no-legend"], check=False).stdout
            raise AssertionError(f"the guest is {state}: {failed}")

    def shut_down(self, left: Path) -> None:
        """Switches the guest off and keeps its root file system. The file system is checked,
        because only a checked one can grow.
        """
        self.agent.submit("run", argv=["systemctl", "poweroff"])
        self.wait_off(120)
        copy(self.directory / "root", left)
        # Code 1: e2fsck has repaired something.
        if subprocess.run(["e2fsck", "-f", "-p", left], stdout=subprocess.DEVNULL).returncode > 1:
            raise GuestError(f"the kept root file system is broken: e2fsck {left}")

    def systemctl_hibernate(self, timeout: float = 600, ask: str = "systemctl hibernate") -> Hibernation:
        """Hibernates as a user or a script does: through logind and systemd, with all hooks."""
        return self.hibernate_and_resume(timeout, ("sh", "-c", SYSTEMCTL_SLEEP.format(ask=ask)))

    def systemctl_suspend(self, kind: str = "suspend") -> None:
        """Does everything but the sleep itself: the kernel freezes all processes and thaws them 5 s
        later (pm_test). QEMU's emulated sleep does not end.
        """
        self.write("/sys/power/pm_test", "freezer")
        self.shell(SYSTEMCTL_SLEEP.format(ask=f"systemctl {kind}"), timeout=120)

    def journal(self, unit: str) -> str:
        """The messages that a unit has logged in this boot."""
        return self.run(["journalctl", "--boot", "--quiet", "--unit", unit, "--output", "cat", "--no-pager"]).stdout

    def active(self, unit: str) -> str:
        return self.run(["systemctl", "is-active", unit], check=False).stdout.strip()

    def property(self, unit: str, name: str) -> str:
        return self.run(["systemctl", "show", "--value", "--property", name, unit]).stdout.strip()
