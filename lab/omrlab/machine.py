"""The life of a machine: QEMU's process with its console and control socket, boots, snapshots,
hibernation, migration.
"""

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from . import images
from .agent import Agent, AgentSilent
from .architecture import AMD64
from .binaries import PROGRAMS
from .initramfs import initramfs
from .kernels import KERNEL, Kernel, kernel
from .paths import CACHE, alone
from .qemu import KVM, TCG, Accelerator, Disk, Hardware, SwapFile
from .qmp import Qmp, QmpError
from .snapshots import Snapshot, make_room

PANIC = re.compile(r"Kernel panic|Oops|kernel BUG at|BUG: unable to handle|general protection fault")

BOOT_TIMEOUT = 90.0

UNLIMITED = 1 << 40
"""Bytes per second. No link is as fast."""


class GuestError(Exception):
    """The guest failed in a way that no scenario wanted."""


class GuestPanicked(GuestError):
    """The console shows a panic or an oops. Emulation is not perfect: such a run is no result."""


@dataclass(frozen=True)
class Hibernation:
    """One hibernation and resume. Times are of the host's clock."""

    hibernate_s: float
    """From the request until the machine was off."""
    resume_s: float
    """From switching on until the process that asked had its answer out."""
    image: dict[str, float]


@dataclass(frozen=True)
class Migration:
    """One live migration, as the sending QEMU counts it (query-migrate)."""

    total_s: float
    downtime_s: float
    """The time for which the guest stood still."""
    sent: int
    """Bytes over the link, for all pages and devices."""
    normal_pages: int
    """Pages sent whole."""
    zero_pages: int
    """Pages of zeros. QEMU sends no contents for them."""
    progress: list[tuple[float, int]]
    """Pairs: seconds since the beginning, and the bytes sent until then."""


@functools.cache
def accelerator() -> Accelerator:
    """KVM where a guest really boots with it, else TCG. The device alone proves nothing."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return TCG
    # The check runs once per boot of the host.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = CACHE / "accelerator" / boot
    with alone("accelerator"):
        if not answer.exists():
            try:
                hardware = Hardware(kernel(KERNEL))
                with Machine(hardware, ("omr-guest",), accelerator=KVM, boot_timeout=20, fresh=True):
                    name = KVM.name
            except GuestError:
                name = TCG.name
            shutil.rmtree(answer.parent, ignore_errors=True)
            answer.parent.mkdir(parents=True)
            answer.write_text(name)
    return KVM if answer.read_text() == KVM.name else TCG


class Machine:
    """A running machine, as a context manager. At its end QEMU and all temporary files are gone."""

    snapshots: Path | None = None
    """The directory of snapshots, from which all machines start that are not `fresh`. None: each
    machine boots.
    """

    def __init__(
        self,
        hardware: Hardware,
        programs: tuple[str, ...] = PROGRAMS,
        debian: tuple[str, ...] = (),
        accelerator: Accelerator | None = None,
        boot_timeout: float = BOOT_TIMEOUT,
        fresh: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        """`programs`: programs of the workspace in the first file system. `debian`: packages whose
        programs are there, too. `fresh`: the machine boots in any case. `prepare`: a named function
        that prepares the booted machine; its name is part of the snapshot's name.
        """
        self.hardware = hardware
        self.programs = programs
        self.debian = debian
        self.accelerator = accelerator
        self.boot_timeout = boot_timeout
        self.fresh = fresh
        self.prepare = prepare
        self.boot_s = 0.0
        self.boots = 0
        self.agent = Agent(self.check_on)
        self.last_console = ""
        self.qemu: subprocess.Popen[bytes] | None = None
        self.qmp: Qmp | None = None
        self.directory = Path()

    @property
    def kernel(self) -> Kernel:
        return self.hardware.kernel

    def __enter__(self) -> Self:
        if self.accelerator is None:
            self.accelerator = accelerator() if self.kernel.architecture is AMD64 else TCG
        self.directory = Path(tempfile.mkdtemp(prefix="omr-lab-"))
        try:
            if self.snapshots is None or self.fresh:
                self.assemble()
                self.boot()
                if self.prepare:
                    self.settle()
                    self.prepare(self)
            else:
                self.start_from_snapshot(self.snapshots, self.prepare)
        except BaseException as error:
            panic = self.panic()
            self.close()
            if panic:
                raise GuestPanicked(panic) from error
            if isinstance(error, AgentSilent):
                raise GuestError(f"{error}; the console ends: {self.last_console}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        panic = self.panic()
        self.close()
        if panic and not isinstance(error, GuestPanicked):
            raise GuestPanicked(panic) from error

    # The files of the machine

    def initramfs(self) -> bytes:
        """The first file system, as the kernel unpacks it."""
        return initramfs(self.kernel, self.programs, self.debian)

    def write_initramfs(self) -> None:
        """Writes the first file system for the next boot."""
        path = self.directory / "initramfs"
        # The file may be a link to the initramfs of a snapshot.
        path.unlink(missing_ok=True)
        path.write_bytes(self.initramfs())

    def assemble(self) -> None:
        """Makes all files that a boot needs."""
        self.write_initramfs()
        self.make_disks()

    def make_disks(self) -> None:
        swap, path = self.hardware.swap, self.directory / "swap"
        if isinstance(swap, Disk):
            images.make_swap(path, swap.mib)
        if isinstance(swap, SwapFile):
            self.make_file_system(swap, path)
            self.hardware.resume_offset = images.make_swap_file(path, swap.mib)
        if self.hardware.data_mib:
            images.make_file_system(self.directory / "data", self.hardware.data_mib)

    def make_file_system(self, swap: SwapFile, path: Path) -> None:
        """Makes the file system for the swap file."""
        images.make_file_system(path, swap.mib + swap.room_mib, "-b", str(images.BLOCK))

    def throttle_swap(self, mb_s: float | None) -> None:
        """Changes the swap disk's speed. None removes all limits, and does nothing where there is
        no such disk.
        """
        if mb_s is None and not isinstance(self.hardware.swap, Disk | SwapFile):
            return
        assert self.qmp
        iops = self.hardware.iops if mb_s else None
        limits = {
            "bps": int((mb_s or 0) * 1e6),
            "bps_rd": 0,
            "bps_wr": 0,
            "iops": iops or 0,
            "iops_rd": 0,
            "iops_wr": 0,
        }
        self.qmp.execute("block_set_io_throttle", device="swap", **limits)

    # On and off

    def boot(self) -> None:
        """Switches on and waits for the agent."""
        started = self.switch_on()
        if not self.agent.wait(self.agent.started, started + self.boot_timeout):
            raise AgentSilent(f"no agent in {self.boot_timeout:g} s")
        self.boot_s = time.monotonic() - started

    def settle(self) -> None:
        """Waits until the boot is complete. In the mini guest it is complete when the agent
        answers.
        """

    def cut_power(self) -> None:
        """Cuts the power. Synced data is on the disks, and all other data is lost."""
        assert self.qemu
        self.qemu.kill()
        self.qemu.wait()
        self.check()
        self.unplug()

    def socket(self, name: str) -> Path:
        """One of QEMU's sockets. During a migration there are two of each."""
        return self.directory / f"{name}-{self.boots}"

    def switch_on(self, *more: str) -> float:
        """Starts QEMU with these further options and connects. Returns the host's time of the
        start.
        """
        assert self.accelerator
        self.boots += 1
        started = time.monotonic()
        command = [*self.hardware.command(self.accelerator, self.directory, self.boots), *more]
        # QEMU's own messages. The guest's console has a file of its own.
        with open(self.directory / "qemu.log", "ab") as log:
            self.qemu = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        while not (qmp := try_qmp(self.socket("qmp"))):
            if self.qemu.poll() is not None or time.monotonic() > started + 60:
                raise GuestError(f"QEMU did not start: {(self.directory / 'qemu.log').read_text()}")
            time.sleep(0.005)
        self.qmp = qmp
        self.agent.connect(self.socket("agent"))
        return started

    def wait_off(self, timeout: float) -> float:
        """Waits until the guest has switched itself off. Returns the time of that."""
        assert self.qemu
        deadline = time.monotonic() + timeout
        while self.qemu.poll() is None:
            if time.monotonic() > deadline:
                raise GuestError(f"still on after {timeout:g} s; the console ends: {self.console_end()}")
            time.sleep(0.005)
        off = time.monotonic()
        self.check()
        self.unplug()
        return off

    def unplug(self) -> None:
        if self.qmp:
            self.qmp.close()

    def close(self) -> None:
        self.last_console = self.console_end()
        self.agent.disconnect()
        self.unplug()
        if self.qemu and self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def host_resident(self) -> int:
        """Bytes of the host's memory that QEMU uses."""
        assert self.qemu
        lines = Path(f"/proc/{self.qemu.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    # The console

    def console_path(self, boot: int) -> Path:
        return self.directory / f"console-{boot}"

    def console(self, boot: int | None = None) -> str:
        """The kernel's messages of one boot, or of all boots."""
        boots = range(1, self.boots + 1) if boot is None else [boot]
        paths = [self.console_path(number) for number in boots]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def console_end(self) -> str:
        return "\n".join(self.console().splitlines()[-5:])

    def panic(self) -> str | None:
        """The line with the panic. None where there was no panic."""
        return next((line for line in self.console().splitlines() if PANIC.search(line)), None)

    def check(self) -> None:
        if panic := self.panic():
            raise GuestPanicked(panic)

    def check_on(self) -> None:
        """Raises where the guest is off."""
        if self.qemu and self.qemu.poll() is not None:
            self.check()
            raise GuestError(f"the guest is off; the console ends: {self.console_end()}")

    # Snapshots

    def origin(self) -> str:
        """Identifies the file system that this machine begins with, for the name of its snapshot.
        Empty: none.
        """
        return ""

    def start_from_snapshot(self, directory: Path, prepare: Callable[[Any], None] | None) -> None:
        """Starts from the snapshot of a machine like this one. If there is none, makes it first."""
        assert self.accelerator
        like_this = (self.accelerator, self.hardware.at_any_speed(), self.origin(), prepare and prepare.__qualname__)
        kept = Snapshot.of(directory, repr(like_this), self.initramfs())
        with kept.alone():
            if not kept.exists():
                if prepare:
                    self.start_from_snapshot(directory, None)
                    prepare(self)
                else:
                    self.assemble()
                    self.boot()
                    self.settle()
                self.save(kept)
                make_room(directory)
            self.restore(kept)

    def save(self, kept: Snapshot) -> None:
        assert self.qemu and self.qmp
        self.qmp.execute("stop")
        self.qmp.execute("migrate-set-parameters", **{"max-bandwidth": UNLIMITED})
        self.qmp.execute("migrate", uri=f"exec:cat > {kept.memory}")
        self.wait_migrated(self.qmp, 60, every=0.01)
        # The disks are complete, because a stopped QEMU has written everything.
        self.cut_power()
        files = [self.directory / name for name in ("initramfs", *self.hardware.disks())]
        kept.keep(files, self.agent.last_id, self.hardware.resume_offset)

    def restore(self, kept: Snapshot) -> None:
        """Continues from a snapshot, with disks and sockets of its own. For the guest no time has
        passed.
        """
        state = kept.bring(self.directory)
        self.hardware.resume_offset = state.resume_offset
        self.agent.last_id = state.last_id
        started = self.switch_on("-incoming", f"exec:cat {kept.memory}")
        assert self.qmp
        while self.qmp.execute("query-status")["status"] == "inmigrate":
            time.sleep(0.005)
        self.qmp.execute("cont")
        self.agent.call("ping", self.boot_timeout)
        self.boot_s = time.monotonic() - started

    # Hibernation and migration

    def hibernate_and_resume(
        self, timeout: float = 600, argv: tuple[str, ...] = ("omr-guest", "hibernate")
    ) -> Hibernation:
        """Hibernates, switches on again, and returns when the same processes run on.

        `argv` is a command that asks for hibernation and ends after it.
        """
        hellos = self.agent.hellos
        asked = time.monotonic()
        request = self.agent.submit("run", argv=argv)
        off = self.wait_off(timeout)
        started = self.switch_on()
        try:
            # The request is not sent again: a guest that booted afresh would hibernate once more.
            request.result(timeout, resend=timeout)
        except AgentSilent as error:
            self.check()
            how = "the guest booted afresh" if self.agent.hellos > hellos else "the guest is silent"
            raise GuestError(f"no resume, {how}; the console ends: {self.console_end()}") from error
        return Hibernation(off - asked, request.answered_at - started, hibernation_figures(self.console()))

    def migrate(self, mb_s: float, timeout: float = 600) -> Migration:
        """Moves the running guest to a second QEMU, over a link of this speed. Both use the same
        disks.
        """
        source, link = self.qemu, self.qmp
        assert source and link
        uri = f"unix:{self.directory}/migration"
        try:
            self.switch_on("-incoming", uri)
            link.execute("migrate-set-parameters", **{"max-bandwidth": int(mb_s * 1e6)})
            link.execute("migrate", uri=uri)
            return self.wait_migrated(link, timeout)
        finally:
            link.close()
            source.kill()
            source.wait()

    def wait_migrated(self, link: Qmp, timeout: float, every: float = 0.1) -> Migration:
        progress: list[tuple[float, int]] = []
        started = time.monotonic()
        while (info := link.execute("query-migrate"))["status"] != "completed":
            if info["status"] in ("failed", "cancelled") or time.monotonic() > started + timeout:
                raise GuestError(f"migration {info['status']}: {info.get('error-desc', f'not done in {timeout:g} s')}")
            progress.append((time.monotonic() - started, info.get("ram", {}).get("transferred", 0)))
            time.sleep(every)
        ram = info["ram"]
        total_s, downtime_s = info["total-time"] / 1000, info["downtime"] / 1000
        progress.append((total_s, ram["transferred"]))
        return Migration(total_s, downtime_s, ram["transferred"], ram["normal"], ram["duplicate"], progress)


def try_qmp(path: Path) -> Qmp | None:
    """Connects to QEMU. None until QEMU listens: its socket exists before, and then refuses."""
    try:
        return Qmp(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, QmpError) as error:
        raise GuestError(f"QEMU does not answer: {error}") from error


def die_with_parent() -> None:
    """Runs in the child. QEMU must not outlive a killed lab."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


FIGURES = {
    "image_pages": r"Image created \((\d+) pages copied",
    "image_kib": r"Wrote (\d+) kbytes",
    "compressed_kib": r"Image size after compression: (\d+) kbytes",
    "allocate_s": r"Allocated \d+ kbytes in ([\d.]+) seconds",
    "write_s": r"Wrote \d+ kbytes in ([\d.]+) seconds",
    "read_s": r"Read \d+ kbytes in ([\d.]+) seconds",
}


def hibernation_figures(console: str) -> dict[str, float]:
    """The kernel's figures about the last image. 6.1 does not print the compressed size."""
    found = {name: re.findall(pattern, console) for name, pattern in FIGURES.items()}
    return {name: float(values[-1]) for name, values in found.items() if values}
