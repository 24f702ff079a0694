"""A guest: a mini Linux in QEMU with throttled swap, controlled through its agent."""

import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Self

from .agent import Agent, AgentSilent
from .initramfs import initramfs
from .kernels import Kernel, kernel
from .paths import CACHE, alone
from .qmp import Qmp, QmpError
from .swapfile import BLOCK, make_swap_file

MIB = 1 << 20

PANIC = re.compile(r"Kernel panic|Oops|kernel BUG at|BUG: unable to handle|general protection fault")

BOOT_TIMEOUT = 90.0


class GuestError(Exception):
    """The guest did something that no scenario asked for."""


class GuestPanicked(GuestError):
    """The console shows a panic or an oops: emulation is not perfect, such a run says nothing."""


@dataclass(frozen=True)
class Disk:
    """Swap on a raw disk of limited speed."""

    mib: int
    mb_s: float | None = None


@dataclass(frozen=True)
class SwapFile:
    """Swap in a file on an ext4 file system of its own, mounted on /swap; the disk is of limited speed."""

    mib: int
    mb_s: float | None = None
    room_mib: int = 64
    """Left beside it for other files, and for the file system itself."""
    iops: int | None = None
    """Requests a second, however large: what a seek costs on a real disk."""


@dataclass(frozen=True)
class Zram:
    """Swap on compressed memory."""

    mib: int


@dataclass(frozen=True)
class Node:
    """A NUMA node; those with CPUs come first. Their memory is that of the guest."""

    mib: int
    """0: a node without memory, which the kernel only knows of when it has a CPU."""
    cpus: str = ""
    """Which: `0-1`; none: memory that belongs to no CPU."""
    slow: bool = False
    """Ten times slower than the others, by the firmware's word (HMAT): a lower tier since Linux 6.10."""


@dataclass(frozen=True)
class Completed:
    code: int | None
    signal: int | None
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The output as one value, or its last line as one."""
        try:
            return json.loads(self.stdout)
        except json.JSONDecodeError:
            return json.loads(self.stdout.strip().splitlines()[-1])


@dataclass(frozen=True)
class Hibernation:
    """One round; times on the host's clock."""

    hibernate_s: float
    """From asking for it until the machine was off."""
    resume_s: float
    """From switching on until the process that asked had its answer out."""
    image: dict[str, float]


@dataclass(frozen=True)
class Migration:
    """One live migration, as the sending QEMU counts it (query-migrate)."""

    total_s: float
    downtime_s: float
    """How long the guest stood still."""
    sent: int
    """Bytes over the link, all pages and devices."""
    normal_pages: int
    """Pages sent whole."""
    zero_pages: int
    """Pages of which only that they are zero was sent."""
    progress: list[tuple[float, int]]
    """Seconds since the beginning, bytes sent until then."""


@dataclass(frozen=True)
class Accelerator:
    name: str
    options: tuple[str, ...]


# TCG's cmpxchg16b with several threads has made 6.12's slab allocator oops; without it the kernel takes another path.
TCG = Accelerator("tcg", ("-accel", "tcg,thread=multi", "-cpu", "max,-cx16"))
KVM = Accelerator("kvm", ("-accel", "kvm", "-cpu", "host"))


@functools.cache
def accelerator() -> Accelerator:
    """KVM where a guest really boots on it: the device alone proves nothing."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return TCG
    # Asked once per boot of the host.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    answer = CACHE / "accelerator" / boot
    with alone("accelerator"):
        if not answer.exists():
            try:
                with Guest(accelerator=KVM, programs=("omr-testkit",), boot_timeout=20):
                    name = KVM.name
            except GuestError:
                name = TCG.name
            shutil.rmtree(answer.parent, ignore_errors=True)
            answer.parent.mkdir(parents=True)
            answer.write_text(name)
    return KVM if answer.read_text() == KVM.name else TCG


class Process:
    """A command running in the guest."""

    def __init__(self, guest: "Guest", pid: int, stdout: str, stderr: str) -> None:
        self.guest = guest
        self.pid = pid
        self.stdout_path = stdout
        self.stderr_path = stderr

    def stdout(self) -> str:
        return self.guest.read(self.stdout_path)

    def stderr(self) -> str:
        return self.guest.read(self.stderr_path)

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines printed so far."""
        text = self.stdout()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def line_with(self, key: str, number: int = 1, timeout: float = 60) -> dict[str, Any]:
        """Waits until `number` lines with that key are printed and returns the last of them."""
        return self.guest.wait_for(
            lambda: (found[number - 1] if len(found := [line for line in self.lines() if key in line]) >= number else None),
            timeout,
            f"{key} from process {self.pid}",
        )

    def kill(self, number: int = signal.SIGTERM) -> None:
        self.guest.agent.call("kill", pid=self.pid, signal=int(number))

    def wait(self, timeout: float = 60) -> Completed:
        ended = self.guest.agent.call("wait", pid=self.pid, timeout=timeout)
        return Completed(ended["code"], ended["signal"], self.stdout(), self.stderr())


class Guest:
    """A booted guest as a context manager; QEMU and every temporary file are gone when it ends."""

    def __init__(
        self,
        kernel_release: str = "6.12",
        mem_mib: int = 512,
        swap: Disk | SwapFile | Zram | None = None,
        data_mib: int = 0,
        smp: int = 2,
        programs: tuple[str, ...] = ("omr", "omr-testkit"),
        append: str = "",
        accelerator: Accelerator | None = None,
        boot_timeout: float = BOOT_TIMEOUT,
        balloon: bool = False,
        prealloc: bool = False,
        debian: tuple[str, ...] = (),
        nodes: tuple[Node, ...] = (),
    ) -> None:
        """`balloon`: the host takes back what the guest reports free. `prealloc`: no page is the host's first touch. `debian`:
        packages whose programs are there."""
        self.kernel: Kernel = kernel(kernel_release)
        self.mem_mib = mem_mib
        self.swap = swap
        self.resume_offset = 0
        self.data_mib = data_mib
        self.smp = smp
        self.programs = programs
        self.append = append
        self.accelerator = accelerator
        self.boot_timeout = boot_timeout
        self.balloon = balloon
        self.prealloc = prealloc
        self.debian = debian
        self.nodes = nodes
        self.boot_s = 0.0
        self.boots = 0
        self.agent = Agent(self.check_on)
        self.last_console = ""
        self.qemu: subprocess.Popen[bytes] | None = None
        self.qmp: Qmp | None = None
        self.directory = Path()

    def __enter__(self) -> Self:
        if self.accelerator is None:
            self.accelerator = accelerator()
        self.directory = Path(tempfile.mkdtemp(prefix="omr-lab-"))
        try:
            (self.directory / "initramfs").write_bytes(self.initramfs())
            if isinstance(self.swap, Disk):
                self.make_file("swap", self.swap.mib)
                subprocess.run(["mkswap", self.directory / "swap"], check=True, capture_output=True)
            if isinstance(self.swap, SwapFile):
                self.make_file_system(self.swap)
                self.resume_offset = make_swap_file(self.directory / "swap", self.swap.mib)
            if self.data_mib:
                self.make_file("data", self.data_mib)
                subprocess.run(["mke2fs", "-q", "-t", "ext4", self.directory / "data"], check=True)
            self.boot()
        except BaseException as error:
            panic = self.panic()
            self.close()
            if panic:
                raise GuestPanicked(panic) from error
            if isinstance(error, AgentSilent):
                raise GuestError(f"{error}; the console ends: {self.last_console}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        panic = self.panic()
        self.close()
        if panic and not isinstance(error, GuestPanicked):
            raise GuestPanicked(panic) from error

    def initramfs(self) -> bytes:
        """The first file system, as the kernel unpacks it."""
        return initramfs(self.kernel, self.programs, self.debian)

    def make_file(self, name: str, mib: int) -> None:
        with open(self.directory / name, "wb") as file:
            file.truncate(mib * MIB)
        os.chmod(self.directory / name, 0o600)

    def make_file_system(self, swap: SwapFile) -> None:
        """The one a swap file is to be put into."""
        self.make_file("swap", swap.mib + swap.room_mib)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-b", str(BLOCK), self.directory / "swap"], check=True)

    def command(self) -> list[str]:
        """QEMU's command line; the same for each boot, as a resume wants the same machine."""
        assert self.accelerator
        console = self.console_path(self.boots)
        # Printing costs time on an emulated port: a boot is quiet, init turns the messages on that hibernation is read from.
        words = ["console=ttyS0", "quiet", "panic=1", "oops=panic", self.append]
        command = [
            *("qemu-system-x86_64", *self.accelerator.options, "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-m", f"{self.mem_mib}M", "-smp", str(self.smp)),
            *("-kernel", str(self.kernel.image), "-initrd", str(self.directory / "initramfs")),
            *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=agent,path={self.socket('agent')},server=on,wait=off", "-serial", "chardev:agent"),
            *("-qmp", f"unix:{self.socket('qmp')},server=on,wait=off"),
        ]
        if self.nodes:
            command += numa(self.nodes)
        if self.balloon:
            command += ["-device", "virtio-balloon-pci,free-page-reporting=on"]
            words.append("omr.balloon=yes")
        if self.prealloc:
            command += ["-mem-prealloc"]
        disks = iter(("vda", "vdb"))
        if isinstance(self.swap, Disk | SwapFile):
            throttle = f",throttling.bps-total={int(self.swap.mb_s * 1e6)}" if self.swap.mb_s else ""
            if self.iops:
                throttle += f",throttling.iops-total={self.iops}"
            command += self.drive("swap", throttle)
            disk = next(disks)
            if isinstance(self.swap, SwapFile):
                words.append(f"omr.swapfile={disk} resume=/dev/{disk} resume_offset={self.resume_offset}")
            else:
                words.append(f"omr.swap={disk}")
        if self.data_mib:
            command += self.drive("data")
            words.append(f"omr.data={next(disks)}")
        if isinstance(self.swap, Zram):
            words.append(f"omr.zram={self.swap.mib}M")
        return [*command, "-append", " ".join(words)]

    def drive(self, name: str, options: str = "") -> list[str]:
        path = self.directory / name
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
            cache = "cache=none,aio=native"
        except OSError:  # tmpfs
            cache = "cache=writeback,aio=threads"
        return [
            *("-drive", f"file={path},id={name},if=none,format=raw,{cache}{options}"),
            *("-device", f"virtio-blk-pci,drive={name}"),
        ]

    @property
    def iops(self) -> int | None:
        return self.swap.iops if isinstance(self.swap, SwapFile) else None

    def throttle_swap(self, mb_s: float | None) -> None:
        """Changes the swap disk's speed; None takes all limits off, and is nothing where there is no such disk."""
        if mb_s is None and not isinstance(self.swap, Disk | SwapFile):
            return
        assert self.qmp
        limits = {"bps": int((mb_s or 0) * 1e6), "bps_rd": 0, "bps_wr": 0, "iops": mb_s and self.iops or 0, "iops_rd": 0, "iops_wr": 0}
        self.qmp.execute("block_set_io_throttle", device="swap", **limits)

    def boot(self) -> None:
        """Switches on and waits for the agent."""
        started = self.switch_on()
        if not self.agent.wait(self.agent.started, started + self.boot_timeout):
            raise AgentSilent(f"no agent in {self.boot_timeout:g} s")
        self.boot_s = time.monotonic() - started

    def cut_power(self) -> None:
        """Off at once; what was written to the disks is there, what the guest still had in memory is not."""
        assert self.qemu
        self.qemu.kill()
        self.qemu.wait()
        self.check()
        self.unplug()

    def socket(self, name: str) -> Path:
        """One of QEMU's sockets; while a guest migrates there are two of each."""
        return self.directory / f"{name}-{self.boots}"

    def switch_on(self, *more: str) -> float:
        """Starts QEMU and connects; returns when on the host's clock."""
        self.boots += 1
        started = time.monotonic()
        # QEMU's own complaints; the guest's console has a file of its own.
        with open(self.directory / "qemu.log", "ab") as log:
            self.qemu = subprocess.Popen(
                [*self.command(), *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        while not (qmp := try_qmp(self.socket("qmp"))):
            if self.qemu.poll() is not None or time.monotonic() > started + 10:
                raise GuestError(f"QEMU did not start: {(self.directory / 'qemu.log').read_text()}")
            time.sleep(0.005)
        self.qmp = qmp
        self.agent.connect(self.socket("agent"))
        return started

    def wait_off(self, timeout: float) -> float:
        """Waits until the guest has switched itself off; returns when."""
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
        if self.qmp:
            self.qmp.close()
        if self.qemu and self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    # The console

    def console_path(self, boot: int) -> Path:
        return self.directory / f"console-{boot}"

    def console(self, boot: int | None = None) -> str:
        """What the kernel printed in one boot, or in all of them."""
        boots = range(1, self.boots + 1) if boot is None else [boot]
        paths = [self.console_path(number) for number in boots]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def console_end(self) -> str:
        return "\n".join(self.console().splitlines()[-5:])

    def panic(self) -> str | None:
        """The line where the kernel gave up, if it did."""
        return next((line for line in self.console().splitlines() if PANIC.search(line)), None)

    def check(self) -> None:
        if panic := self.panic():
            raise GuestPanicked(panic)

    def check_on(self) -> None:
        """Raises where the guest is off."""
        if self.qemu and self.qemu.poll() is not None:
            self.check()
            raise GuestError(f"the guest is off; the console ends: {self.console_end()}")

    # What a guest can be asked for

    def run(self, argv: list[str], group: str | None = None, timeout: float = 60, check: bool = True) -> Completed:
        """Runs a command to its end."""
        ran = self.call("run", timeout, argv=argv, group=group)
        completed = Completed(ran["code"], ran["signal"], decode(ran["stdout"]), decode(ran["stderr"]))
        if check and completed.code != 0:
            raise GuestError(f"{argv} ended with {completed.code or completed.signal}: {completed.stderr}")
        return completed

    def shell(self, script: str, timeout: float = 60) -> str:
        return self.run(["sh", "-c", script], timeout=timeout).stdout

    def spawn(self, argv: list[str], group: str | None = None) -> Process:
        """Starts a command and leaves it running."""
        started = self.call("spawn", argv=argv, group=group)
        return Process(self, started["pid"], started["stdout"], started["stderr"])

    def spawn_as(self, pid: int, argv: list[str], group: str) -> None:
        """Starts a command as the process with this id, which nobody has now; its output goes nowhere."""
        start = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; {' '.join(argv)} > /dev/null & echo $!"
        for _ in range(20):
            started = int(self.run(["sh", "-c", start], group=group).stdout)
            if started == pid:
                return
            # Somebody else was faster.
            self.shell(f"kill {started}")
        raise GuestError(f"{pid} was always taken")

    def read(self, path: str) -> str:
        return decode(self.call("read", path=path)["data"])

    def read_bytes(self, path: str) -> bytes:
        return self.call("read", path=path)["data"].encode("latin-1")

    def write(self, path: str, text: str, create: bool = False) -> None:
        """One write(2); AgentError has the errno."""
        self.call("write", path=path, data=text.encode().decode("latin-1"), create=create)

    def call(self, operation: str, timeout: float = 60, **fields: Any) -> dict[str, Any]:
        try:
            return self.agent.call(operation, timeout, **fields)
        except AgentSilent as error:
            self.check()
            raise GuestError(f"{error}; the console ends: {self.console_end()}") from error

    def wait_for(self, condition: Callable[[], Any], timeout: float, what: str, every: float | None = None) -> Any:
        """The condition's first true value.

        Asked again `every` so many seconds; unless that is said, the more seldom the longer it lasts: to ask is work in the guest, and
        a daemon that waits for an idle one would never see it on a slow host.
        """
        began = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - began
            if waited > timeout:
                raise GuestError(f"no {what} in {timeout:g} s")
            time.sleep(min(max(0.25, waited / 8), 2.0) if every is None else every)
        return value

    def group(self, path: str, **files: str) -> str:
        """Makes a cgroup with all controllers and sets its files: `guest.group("bg", memory_low="64M")`."""
        directory = f"/sys/fs/cgroup/{path}"
        self.run(["mkdir", "-p", directory])
        for name, value in files.items():
            self.write(f"{directory}/{name.replace('_', '.', 1)}", value)
        return directory

    def group_value(self, path: str, file: str = "memory.current") -> int:
        return int(self.read(f"/sys/fs/cgroup/{path}/{file}"))

    def meminfo(self) -> dict[str, int]:
        """/proc/meminfo in bytes."""
        lines = (line.split() for line in self.read("/proc/meminfo").splitlines())
        return {name.rstrip(":"): int(value) * (1024 if unit else 1) for name, value, *unit in lines}

    def vmstat(self) -> dict[str, int]:
        return {name: int(value) for name, value in (line.split() for line in self.read("/proc/vmstat").splitlines())}

    def monotonic_ns(self) -> int:
        return self.call("ping")["monotonic_ns"]

    def hibernate_and_resume(self, timeout: float = 600, argv: tuple[str, ...] = ("omr-testkit", "hibernate")) -> Hibernation:
        """Hibernates, switches on again, and comes back when the same processes run on.

        The command asks for hibernation and ends after it.
        """
        hellos = self.agent.hellos
        asked = time.monotonic()
        request = self.agent.submit("run", argv=argv)
        off = self.wait_off(timeout)
        started = self.switch_on()
        try:
            # Never sent again: a guest that booted afresh would hibernate once more.
            request.result(timeout, resend=timeout)
        except AgentSilent as error:
            self.check()
            how = "the guest booted afresh" if self.agent.hellos > hellos else "the guest is silent"
            raise GuestError(f"no resume, {how}; the console ends: {self.console_end()}") from error
        return Hibernation(off - asked, request.answered_at - started, hibernation_figures(self.console()))

    def migrate(self, mb_s: float, timeout: float = 600) -> Migration:
        """Moves the running guest to a second QEMU over a link of that speed; both use the same disks."""
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

    def wait_migrated(self, link: Qmp, timeout: float) -> Migration:
        progress: list[tuple[float, int]] = []
        started = time.monotonic()
        while (info := link.execute("query-migrate"))["status"] != "completed":
            if info["status"] in ("failed", "cancelled") or time.monotonic() > started + timeout:
                raise GuestError(f"migration {info['status']}: {info.get('error-desc', f'not done in {timeout:g} s')}")
            progress.append((time.monotonic() - started, info.get("ram", {}).get("transferred", 0)))
            time.sleep(0.1)
        ram = info["ram"]
        progress.append((info["total-time"] / 1000, ram["transferred"]))
        return Migration(
            info["total-time"] / 1000, info["downtime"] / 1000, ram["transferred"], ram["normal"], ram["duplicate"], progress
        )

    def host_resident(self) -> int:
        """Bytes of the host's memory that QEMU has in use."""
        assert self.qemu
        lines = Path(f"/proc/{self.qemu.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def decode(text: str) -> str:
    """Text from the wire's latin-1."""
    return text.encode("latin-1").decode(errors="replace")


def try_qmp(path: Path) -> Qmp | None:
    """None until QEMU listens: its socket is there before that, and then refuses."""
    try:
        return Qmp(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, QmpError) as error:
        raise GuestError(f"QEMU does not answer: {error}") from error


def numa(nodes: tuple[Node, ...]) -> list[str]:
    """QEMU's words for these nodes."""
    words = ["-machine", "hmat=on"] if any(node.slow for node in nodes) else []
    for number, node in enumerate(nodes):
        options = [f"node,nodeid={number}", *(f"cpus={node.cpus}",) * bool(node.cpus)]
        if node.mib:
            words += ["-object", f"memory-backend-ram,id=node{number},size={node.mib}M"]
            options.append(f"memdev=node{number}")
        if node.slow:
            options.append("initiator=0")
        words += ["-numa", ",".join(options)]
    if any(node.slow for node in nodes):
        for number, node in enumerate(nodes):
            of = f"hmat-lb,initiator=0,target={number},hierarchy=memory"
            words += ["-numa", f"{of},data-type=access-latency,latency={100 if node.slow else 10}"]
            words += ["-numa", f"{of},data-type=access-bandwidth,bandwidth={1 if node.slow else 10}G"]
    return words


def die_with_parent() -> None:
    """Runs in the child: QEMU must not outlive a killed lab."""
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
    """What the kernel says about the last image; 6.1 does not say its compressed size."""
    found = {name: re.findall(pattern, console) for name, pattern in FIGURES.items()}
    return {name: float(values[-1]) for name, values in found.items() if values}
