"""A guest: a mini Linux in QEMU with throttled swap, and the requests that a script can send to its
agent.
"""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .agent import AgentSilent
from .binaries import PROGRAMS
from .kernels import KERNEL, kernel
from .machine import (
    BOOT_TIMEOUT,
    GuestError,
    GuestPanicked,
    Hibernation,
    Machine,
    Migration,
    accelerator,
    hibernation_figures,
)
from .qemu import COUNTED, KVM, MIB, TCG, Accelerator, Disk, Hardware, Node, Swap, SwapFile, Zram

__all__ = [
    "BOOT_TIMEOUT",
    "COUNTED",
    "KERNEL",
    "KVM",
    "MGLRU_SWITCH",
    "MIB",
    "TCG",
    "Accelerator",
    "Completed",
    "Disk",
    "Guest",
    "GuestError",
    "GuestPanicked",
    "Hardware",
    "Hibernation",
    "Migration",
    "Node",
    "Process",
    "Swap",
    "SwapFile",
    "Zram",
    "accelerator",
    "hibernation_figures",
]

MGLRU_SWITCH = "/sys/kernel/mm/lru_gen/enabled"
"""Takes `y` and `n`. Debian's 6.1 begins with `n`, newer kernels with `y`."""


PATIENCE = 2
"""A condition may take this many times as long as a test allows before the wait is given up: the
host may be busy.
"""

PART = 60_000
"""Bytes of a file in one answer of the agent."""


@dataclass(frozen=True)
class Completed:
    code: int | None
    signal: int | None
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The whole output as one JSON value, or else its last line as one."""
        try:
            return json.loads(self.stdout)
        except json.JSONDecodeError:
            return json.loads(self.stdout.strip().splitlines()[-1])


class Process:
    """A command that runs in the guest."""

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
        """Waits until `number` lines with this key are printed; returns the last of them."""
        line: dict[str, Any] = self.guest.wait_for(
            lambda: (
                found[number - 1] if len(found := [line for line in self.lines() if key in line]) >= number else None
            ),
            timeout,
            f"{key} from process {self.pid}",
        )
        return line

    def kill(self, number: int = signal.SIGTERM) -> None:
        self.guest.agent.call("kill", pid=self.pid, signal=int(number))

    def wait(self, timeout: float = 60) -> Completed:
        ended = self.guest.agent.call("wait", pid=self.pid, timeout=timeout)
        return Completed(ended["code"], ended["signal"], self.stdout(), self.stderr())


class Guest(Machine):
    """A booted guest, as a context manager. At its end QEMU and all temporary files are gone."""

    def __init__(
        self,
        kernel_release: str = KERNEL,
        mem_mib: int = 512,
        swap: Swap | None = None,
        data_mib: int = 0,
        smp: int = 2,
        programs: tuple[str, ...] = PROGRAMS,
        append: str = "",
        accelerator: Accelerator | None = None,
        boot_timeout: float = BOOT_TIMEOUT,
        balloon: bool = False,
        prealloc: bool = False,
        debian: tuple[str, ...] = (),
        nodes: tuple[Node, ...] = (),
        fresh: bool = False,
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        hardware = Hardware(
            kernel(kernel_release),
            mem_mib,
            smp,
            swap,
            data_mib,
            append=append,
            nodes=nodes,
            balloon=balloon,
            prealloc=prealloc,
        )
        super().__init__(hardware, programs, debian, accelerator, boot_timeout, fresh, prepare)

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
        """Starts a command and does not wait for its end."""
        started = self.call("spawn", argv=argv, group=group)
        return Process(self, started["pid"], started["stdout"], started["stderr"])

    def spawn_as(self, pid: int, argv: list[str], group: str) -> None:
        """Starts a command under this process id, which no process has now. The output is
        discarded.
        """
        start = f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; {' '.join(argv)} > /dev/null & echo $!"
        for _ in range(20):
            started = int(self.run(["sh", "-c", start], group=group).stdout)
            if started == pid:
                return
            # Another process took the id first.
            self.shell(f"kill {started}")
        raise GuestError(f"{pid} was always taken")

    def read(self, path: str) -> str:
        return decode(self.call("read", path=path)["data"])

    def read_bytes(self, path: str) -> bytes:
        return str(self.call("read", path=path)["data"]).encode("latin-1")

    def read_long(self, path: str) -> bytes:
        """The contents of a file that is too long for one answer of the agent.

        480 kB over the emulated serial port took more than a minute on a busy host.
        """
        found = b""
        while True:
            self.shell(f"dd if={path} of={path}.part bs={PART} skip={len(found) // PART} count=1 2> /dev/null")
            part = self.read_bytes(f"{path}.part")
            found += part
            if len(part) < PART:
                return found

    def write(self, path: str, text: str, create: bool = False) -> None:
        """One write(2). An AgentError has its errno."""
        self.call("write", path=path, data=text.encode().decode("latin-1"), create=create)

    def call(self, operation: str, timeout: float = 60, **fields: Any) -> dict[str, Any]:
        try:
            return self.agent.call(operation, timeout, **fields)
        except AgentSilent as error:
            self.check()
            raise GuestError(f"{error}; the console ends: {self.console_end()}") from error

    def wait_for(self, condition: Callable[[], Any], timeout: float, what: str, every: float | None = None) -> Any:
        """Waits for a condition; returns its first true value.

        The condition is checked every `every` seconds. By default the checks become rarer with
        time. Each check is work in the guest, and frequent checks would keep a daemon on a slow
        host from ever seeing an idle machine.
        """
        timeout *= PATIENCE
        began = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - began
            if waited > timeout:
                raise GuestError(f"no {what} in {timeout:g} s")
            time.sleep(min(max(0.25, waited / 8), 2.0) if every is None else every)
        return value

    def group(self, path: str, **files: str) -> str:
        """Makes a cgroup with all controllers and sets its files: `guest.group("bg",
        memory_low="64M")`.
        """
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
        return int(self.call("ping")["monotonic_ns"])


def decode(text: str) -> str:
    """Decodes text from the wire, where each byte is a latin-1 character."""
    return text.encode("latin-1").decode(errors="replace")
