"""The cost of omr itself, and its speed when it reclaims.

Part one runs the daemon, natively, on a fake tree of captured files with many groups. The machine
is idle and all groups have been swept: every second the daemon samples everything and finds
nothing to do, as it does all night. Memory, CPU time and wake-ups are the kernel's figures about
the process. The daemon logs the time of a sample (OMR_LOG=debug). The report also has the daemon's
figures from a guest, whose emulated CPU is some ten times slower, as information.

Part two compares `omr reclaim` in a guest with the best possible: on zram with a shell loop that
writes the same step, on disk with the disk's throttle. It also measures how much more goes to swap
than was asked for.

Part three compares an aging, by which omr finds out which pages are in use, with a program that
touches the same pages, in a guest.

Part four runs two daemons as in part one at the same time, each on a tree of its own. One of them
is watched by `omr top` in a terminal and by `omr web` with a browser, the other one by nobody.
"""

import itertools
import json
import os
import pty
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from ..binaries import build
from ..daemon import Daemon
from ..guest import MGLRU_SWITCH, MIB, Disk, Guest, GuestError, Zram
from ..plots import COLOURS, canvas, save
from ..results import Metric, MetricJson, progress
from ..scenario import Benchmark, option

SIZES = (100, 1000, 5000, 10_000)

GUEST_SIZES = (100, 1000)

WATCHED_SIZES = (100, 1000)

RELEASES = ("6.12", "6.1")

AMOUNTS = ("64M", "128M", "25%")

LARGEST = "128M"
"""One reclaim takes much longer than the start of omr, which takes half a second on an emulated
CPU.
"""

CONFIG = """\
mode = "observe"
goal = "free"

[idle]
for = "1s"
window = "1s"

[sweep]
after_boot = "0s"
"""

NEVER_SWEEPS = CONFIG + 'smallest = "1GiB"\n'
"""Each group is swept again after a minute, and 10,000 groups take longer than that."""

TICK = re.compile(r"tick: (\d+) groups, scan (\d+) us, snapshot (\d+) us, decision (\d+) us, CPU (\d+) us")

AT_REST = "no group has anything to gain"

QUIET = 5.0
"""Seconds. After this time without a sweep, the daemon does not sweep again."""

Measurements = dict[str, Callable[[], dict[str, Any]]]

Found = dict[str, list[dict[str, Any]]]
"""The runs of each measurement."""


@dataclass(kw_only=True)
class SelfCost(Benchmark):
    name = "self"
    help = "the daemon's cost by number of groups, and how fast omr reclaims"
    title = "What omr costs"

    kernel: str = option("6.12", "kernel release of the guests", setting=False)
    pairs: int = option(3, "how often everything is measured", setting=False)
    seconds: float = option(60, "how long each daemon is watched", "S")
    mb_s: float = option(20, "speed of the guest's disk in MB/s")
    parts: str = option("native,guest,zram,disk,aging,watched", "the parts that are measured", setting=False)
    sizes: str = option(",".join(map(str, SIZES)), "the numbers of groups of the native part", setting=False)
    watched_sizes: str = option(
        ",".join(map(str, WATCHED_SIZES)), "the numbers of groups of the watched part", setting=False
    )

    def run(self) -> dict[str, MetricJson]:
        runs = self.open_runs()
        found: Found = {}
        pairs = [(pair, self.measurements()) for pair in range(1, self.pairs + 1)]
        for pair, measurements in [*pairs, (1, self.once())]:
            for key, measure in measurements.items():
                run = runs.run(f"pair-{pair:02}-{key}", measure)
                found.setdefault(key, []).append(run)
                progress(f"{self.name}: {key}: {short(run)}")
        return self.publish(runs, metrics(found), lambda directory: draw(found, directory))

    def measurements(self) -> Measurements:
        """The measurements of one pair."""
        parts = self.parts.split(",")
        measurements: Measurements = {}
        if "native" in parts:
            for size in map(int, self.sizes.split(",")):
                measurements[f"native-{size}"] = partial(natively, self.seconds, size)
        if "watched" in parts:
            for size in map(int, self.watched_sizes.split(",")):
                measurements[f"watched-{size}"] = partial(watched, self.seconds, size)
        if "zram" in parts:
            measurements["zram"] = partial(on_zram, self.kernel)
        if "disk" in parts:
            for release in RELEASES:
                for amount in AMOUNTS:
                    measurements[f"disk-{release}-{amount}"] = partial(on_disk, self.mb_s, release, amount)
        if "aging" in parts:
            measurements["aging"] = partial(on_aging, self.kernel)
        return measurements

    def once(self) -> Measurements:
        """The measurements that are made once."""
        if "guest" not in self.parts.split(","):
            return {}
        return {f"guest-{size}": partial(in_guest, self.kernel, self.seconds, size) for size in GUEST_SIZES}

    def guest(self) -> dict[str, Any]:
        return {"mem_mib": 512, "disk_mb_s": self.mb_s, "swap": "zram, disk"}


def short(measured: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in measured.items() if isinstance(value, (int, float)))


# Part one: the daemon


class IdleMachine:
    """Moves the counters of a fake root as on an idle machine.

    With counters that stand still the daemon would not call the machine idle.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.began = time.monotonic()
        self.stat = (root / "proc/stat").read_text()
        self.pressure = (root / "proc/pressure/memory").read_text()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.move, daemon=True)

    def __enter__(self) -> "IdleMachine":
        self.replace("proc/stat", self.idle())
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def move(self) -> None:
        while not self.ended.wait(0.2):
            self.replace("proc/stat", self.idle())
            # The daemon writes into the file when it arms a trigger, so the old contents are put
            # back.
            self.replace("proc/pressure/memory", self.pressure)

    def idle(self) -> str:
        ticks = int((time.monotonic() - self.began) * 100)
        return re.sub(
            r"^(cpu\d+ \d+ \d+ \d+) (\d+)",
            lambda found: f"{found[1]} {int(found[2]) + ticks}",
            self.stat,
            flags=re.MULTILINE,
        )

    def replace(self, path: str, text: str) -> None:
        new = self.root / f"{path}.new"
        new.write_text(text)
        new.rename(self.root / path)


@contextmanager
def at_rest(size: int, config: str = CONFIG) -> Iterator[tuple[Path, subprocess.Popen[bytes], float]]:
    """A daemon on a fake tree of that many groups, once all of them are swept: its root, its
    process and the seconds until then.
    """
    # The tree is in memory, so that the disk does not count.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    environment = {"PATH": os.environ["PATH"], "TMPDIR": place, "OMR_LOG": "debug"}
    made = subprocess.run(
        [build("omr-guest"), "tree", str(size)], env=environment, check=True, capture_output=True, text=True
    )
    root = Path(made.stdout.strip())
    try:
        (root / "config.toml").write_text(config)
        with IdleMachine(root), open(root / "log", "w+") as log:
            options: list[str | Path] = ["--root", root, "--foreground", "--config", root / "config.toml"]
            command = [build("omr-daemon"), *options]
            daemon = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                yield root, daemon, settle(daemon, root / "log", size)
            finally:
                daemon.terminate()
                daemon.wait()
            if daemon.returncode != 0:
                raise GuestError(f"the daemon ended with {daemon.returncode}: {(root / 'log').read_text()[-500:]}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def natively(seconds: float, size: int) -> dict[str, Any]:
    """The cost of a daemon on a fake tree of that many groups, on this machine."""
    with at_rest(size) as (root, daemon, swept_s):
        measured = watch_here(daemon, seconds)
        return measured | ticks((root / "log").read_text()) | {"groups": size, "first_sweep_s": swept_s}


def watch_here(process: subprocess.Popen[bytes], seconds: float, without: str = "") -> dict[str, Any]:
    """The resources that a process on this machine uses within some seconds. `without`: the name of
    a thread whose CPU time and wake-ups do not count.
    """
    proc = Path("/proc") / str(process.pid)
    threads = [task for task in tasks(proc) if (proc / "task" / task / "comm").read_text().strip() != without]
    return watch(lambda path: (proc / path).read_text(), threads, time.monotonic, time.sleep, seconds)


def settle(daemon: subprocess.Popen[bytes], log: Path, size: int) -> float:
    """Waits until all groups are swept; returns how long that took."""
    began = time.monotonic()
    deadline = began + 60 + size / 20
    swept, since = 0, began
    # A sweep may be cut short on a busy host and go on later.
    while AT_REST not in (text := log.read_text()) or time.monotonic() - since < QUIET:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise GuestError(f"the daemon does not come to rest: {text[-500:]}")
        if (count := text.count(" freed, ")) != swept:
            swept, since = count, time.monotonic()
        time.sleep(0.5)
    return since - began


def tasks(proc: Path) -> list[str]:
    return [entry.name for entry in (proc / "task").iterdir()]


def watch(
    read: Callable[[str], str],
    threads: list[str],
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    seconds: float,
) -> dict[str, Any]:
    """The resources that a process uses within some seconds, from its files in /proc."""

    def used() -> tuple[float, int, int]:
        cpu_ns = wakeups = forced = 0
        for thread in threads:
            cpu_ns += int(read(f"task/{thread}/schedstat").split()[0])
            status = read(f"task/{thread}/status")
            wakeups += field(status, "voluntary_ctxt_switches")
            forced += field(status, "nonvoluntary_ctxt_switches")
        return cpu_ns / 1e9, wakeups, forced

    began, (cpu, wakeups, forced) = clock(), used()
    sleep(seconds)
    ended, (cpu_now, wakeups_now, forced_now) = clock(), used()
    wall = ended - began
    status = read("status")
    rollup = read("smaps_rollup")
    return {
        "cpu_pct": (cpu_now - cpu) / wall * 100,
        "wakeups_per_s": (wakeups_now - wakeups) / wall,
        "preempted_per_s": (forced_now - forced) / wall,
        "seconds": wall,
        "rss_mib": field(status, "VmRSS") / 1024,
        "peak_rss_mib": field(status, "VmHWM") / 1024,
        "locked_mib": field(rollup, "Locked") / 1024,
        "private_mib": (field(rollup, "Private_Clean") + field(rollup, "Private_Dirty")) / 1024,
        "threads": field(status, "Threads"),
        "fds": field(status, "FDSize"),
    }


def field(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def ticks(log: str) -> dict[str, Any]:
    """The times of the full samples: those for which the daemon reads the groups."""
    found = [[int(word) for word in match.groups()] for match in TICK.finditer(log)]
    # A group takes some microseconds. Without a scan the clock hardly moves between two readings.
    full = [tick for tick in found if tick[1] > tick[0]]
    if not full:
        raise GuestError("no full sample in the daemon's log")
    rest = [tick for tick in found if tick[1] <= tick[0]]
    return {
        # CPU time: a sample waits for the CPU only, and other users' load is not omr's cost.
        "tick_ms": statistics.median(tick[4] for tick in full) / 1000,
        "tick_wall_ms": statistics.median(sum(tick[1:4]) for tick in full) / 1000,
        "scan_ms": statistics.median(tick[1] for tick in full) / 1000,
        "snapshot_ms": statistics.median(tick[2] for tick in found) / 1000,
        "decision_ms": statistics.median(tick[3] for tick in found) / 1000,
        "small_tick_ms": statistics.median(tick[4] for tick in rest) / 1000,
        "full_ticks": len(full),
        "ticks_us": found[-120:],
    }


MAKE_GROUPS = """
i=0
while [ $i -lt {size} ]; do
    mkdir -p /sys/fs/cgroup/load-$((i / 50)).slice/job-$i
    i=$((i + 1))
done
for dir in /sys/fs/cgroup/load-*.slice; do
    echo '+memory +cpu +io' > $dir/cgroup.subtree_control
done
"""


def in_guest(kernel: str, seconds: float, size: int) -> dict[str, Any]:
    """The cost of a daemon on a real kernel with real groups.

    The groups are empty, so the daemon does not sweep.
    """
    with Guest(kernel, 512, Zram(256)) as guest:
        guest.shell(MAKE_GROUPS.format(size=size), timeout=300)
        with Daemon(guest, idle="1s") as daemon:
            pid = daemon.process.pid
            guest.shell("sleep 10")
            threads = guest.shell(f"ls /proc/{pid}/task").split()
            measured = watch(
                lambda path: guest.read(f"/proc/{pid}/{path}"),
                threads,
                lambda: guest.monotonic_ns() / 1e9,
                lambda seconds: guest.shell(f"sleep {seconds}", timeout=seconds + 60),
                min(30, seconds),
            )
        return measured | {"groups": size}


# Part two: reclaiming

TIMED = "read a _ < /proc/uptime; {command}; code=$?; read b _ < /proc/uptime; echo; echo $a $b; exit $code"


def reclaim(guest: Guest, command: str, group: str) -> dict[str, Any]:
    """Runs a command that reclaims, and measures its effect on the group."""
    before, swapped = guest.group_value(group), guest.vmstat()["pswpout"]
    ended = guest.run(["sh", "-c", TIMED.format(command=command)], timeout=300, check=False)
    after, swapped_now = guest.group_value(group), guest.vmstat()["pswpout"]
    began_s, ended_s = (float(word) for word in ended.stdout.split()[-2:])
    return {
        "freed_mib": (before - after) / MIB,
        "swapped_mib": (swapped_now - swapped) * 4096 / MIB,
        "seconds": ended_s - began_s,
        "before_mib": before / MIB,
        "code": ended.code,
        "stdout": ended.stdout,
        "stderr": ended.stderr[-2000:],
    }


def fill(guest: Guest, amount: str, *words: str) -> None:
    guest.group("bg")
    load = guest.spawn(["omr-guest", "fill", amount, *words], group="bg")
    load.line_with("ready", timeout=300)
    guest.shell("sleep 1")


ZRAM_MIB = 32

ROUNDS = 6


class Wall(TypedDict):
    secs: int
    nanos: int


class Reclaimed(TypedDict):
    """A group in the output of `omr reclaim --json`, as far as it is used here."""

    freed: int
    writes: int
    wall: Wall


def on_zram(kernel: str) -> dict[str, Any]:
    """Reclaims the same amount by omr and by a loop that writes the same step.

    Both in turn, so that a busy host slows down both.
    """
    seconds: dict[str, list[float]] = {"omr": [], "shell": []}
    freed = {"omr": 0.0, "shell": 0.0}
    step = 0
    with Guest(kernel, 1024, Zram(768)) as guest:
        fill(guest, f"{(2 * ROUNDS + 2) * ZRAM_MIB}M", "--compressible", "60")
        for number in range(ROUNDS):
            for arm in ("omr", "shell") if number % 2 == 0 else ("shell", "omr"):
                if arm == "omr":
                    measured = reclaim(guest, f"omr reclaim bg {ZRAM_MIB}M --json", "bg")
                    report = json.loads(measured["stdout"][: measured["stdout"].rindex("}") + 1])
                    group: Reclaimed
                    (group,) = report["groups"]
                    step = group["freed"] // group["writes"]
                    # The time without the start of omr, because the loop starts no program.
                    measured["seconds"] = group["wall"]["secs"] + group["wall"]["nanos"] / 1e9
                else:
                    times = ZRAM_MIB * MIB // step
                    write = f"echo {step} > /sys/fs/cgroup/bg/memory.reclaim"
                    loop = f"i=0; while [ $i -lt {times} ]; do {write}; i=$((i + 1)); done"
                    measured = reclaim(guest, loop, "bg")
                if measured["freed_mib"] < ZRAM_MIB / 2:
                    raise GuestError(f"{arm} freed {measured['freed_mib']:.0f} MiB only: {measured['stderr']}")
                freed[arm] += measured["freed_mib"]
                seconds[arm].append(measured["seconds"])
    rates = {arm: freed[arm] / sum(seconds[arm]) for arm in freed}
    return {
        "rate_ratio": rates["omr"] / rates["shell"],
        "omr_mib_s": rates["omr"],
        "shell_mib_s": rates["shell"],
        "step_kib": step / 1024,
        "seconds": seconds,
    }


def on_disk(mb_s: float, release: str, amount: str) -> dict[str, Any]:
    """Reclaims to a slow disk: omr's rate compared with the disk's, and the amount that omr swaps
    out.
    """
    with Guest(release, 512, Disk(1024, mb_s)) as guest:
        fill(guest, "256M")
        measured = reclaim(guest, f"omr reclaim bg {amount} --json", "bg")
        asked = measured["before_mib"] * 0.25 if amount == "25%" else float(amount.rstrip("M"))
        # Freed memory was written first. Writing more than that is no advantage.
        useful = min(measured["freed_mib"], measured["swapped_mib"])
        return measured | {
            "asked_mib": asked,
            "rate_ratio": useful * MIB / measured["seconds"] / (mb_s * 1e6),
            "swapped_over_asked": measured["swapped_mib"] / asked,
            "freed_over_asked": measured["freed_mib"] / asked,
        }


# Part three: aging

AGED_MIB = 512


class Aged(TypedDict):
    """The output of `omr wss --json`, as far as it is used here."""

    not_aged: int
    """Groups that the kernel could not age."""
    memory: int
    cpu_seconds: float
    agings: int


def on_aging(kernel: str) -> dict[str, Any]:
    """The pages per second of CPU time that agings cover, and those that a loop of touches covers.
    Both run in turn.
    """
    pages = AGED_MIB * MIB // 4096
    touching = looking = 0.0
    agings = 0
    with Guest(kernel, 1024, Zram(256)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        # A huge page has one accessed bit.
        guest.write("/sys/kernel/mm/transparent_hugepage/enabled", "never")
        guest.group("bg")
        load = guest.spawn(["omr-guest", "touch", f"{AGED_MIB}M", "--order", "sequential"], group="bg")
        load.line_with("ready", timeout=300)
        for number in range(1, ROUNDS + 1):
            # The load uses all pages once. The first of three agings finds them, the others none.
            load.kill(signal.SIGUSR1)
            touched = load.line_with("touched", number)
            command = ["omr", "wss", "bg", "--window", "1s", "--tracker", "lru-gen", "--json"]
            seen: Aged = guest.run(command).json()
            if seen["not_aged"] or seen["memory"] < AGED_MIB * MIB:
                raise GuestError(f"not all was aged: {seen}")
            touching += touched["seconds"]
            looking += seen["cpu_seconds"]
            agings += seen["agings"]
    walked, read = agings * pages / looking, ROUNDS * pages / touching
    return {
        "aging_over_touch": walked / read,
        "aged_pages_per_s": walked,
        "touched_pages_per_s": read,
        "agings": agings,
    }


# Part four: the daemon while somebody watches

LOG_THREAD = "omr-log"
"""It writes a line for each tick, with OMR_LOG=debug only, and wakes up once or twice for it."""

STARTED = 10.0
"""Seconds. After this time `omr top` and `omr web` have read all that they show at first."""

GROUPS_EVERY = 5.0
"""Seconds between two questions of the page for its groups."""

CHARTS_EACH = 6
"""As many questions for groups are between two for charts."""


@dataclass
class Top:
    """`omr top` in a terminal of 120 x 40 cells."""

    root: Path
    drawn: int = 0
    """Bytes that it has written to its terminal."""

    def __enter__(self) -> "Top":
        self.terminal, inside = pty.openpty()
        termios.tcsetwinsize(inside, (40, 120))
        command: list[str | Path] = [build("omr"), "--root", self.root, "top"]
        environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self.process = subprocess.Popen(
            command, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
        )
        os.close(inside)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self) -> None:
        # When the program ends, there is an error instead of an end.
        while part := read_terminal(self.terminal):
            self.drawn += len(part)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        os.close(self.terminal)


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


@dataclass
class Web:
    """`omr web`, and what a browser asks it while its page is shown."""

    root: Path
    events: int = 0
    """The events that the browser has got."""
    answers: int = 0

    def __enter__(self) -> "Web":
        self.ended = threading.Event()
        token = secrets.token_hex(16)
        file = self.root / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        command: list[str | Path] = [build("omr"), "--root", self.root, "web", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--token-file", file], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        address = self.process.stdout.readline().decode().strip()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", address)
        if not found:
            raise GuestError(f"omr web printed no address but {address!r}")
        self.port = int(found[1])
        # Without chunks, which HTTP 1.0 does not have.
        self.head = f"HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.stream = self.ask("/api/events")
        self.threads = [threading.Thread(target=of, daemon=True) for of in (self.listen, self.look)]
        for thread in self.threads:
            thread.start()
        return self

    def ask(self, path: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(f"GET {path} {self.head}".encode())
        return connection

    def listen(self) -> None:
        try:
            with self.stream.makefile("rb") as lines:
                self.events = 0
                for line in lines:
                    self.events += line.startswith(b"data: ")
        except OSError:
            # What did not come is missing in `events`.
            pass

    def look(self) -> None:
        for number in itertools.count():
            for path in ("/api/groups", "/api/charts?columns=800")[: 1 if number % CHARTS_EACH else 2]:
                with self.ask(path) as connection, connection.makefile("rb") as answer:
                    self.answers += answer.read().startswith(b"HTTP/1.0 200")
            if self.ended.wait(GROUPS_EVERY):
                return

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.stream.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.stream.close()
        self.process.terminate()
        self.process.communicate()


def watched(seconds: float, size: int) -> dict[str, Any]:
    """The cost of two daemons at the same time, of which one is watched, and of those who watch."""
    with (
        at_rest(size, NEVER_SWEEPS) as (_, alone, _),
        at_rest(size, NEVER_SWEEPS) as (root, daemon, _),
        Top(root) as top,
        Web(root) as web,
    ):
        time.sleep(STARTED)
        drawn, events, began = top.drawn, web.events, time.monotonic()
        processes = {"alone": alone, "watched": daemon, "top": top.process, "web": web.process}
        with ThreadPoolExecutor(len(processes)) as pool:
            measuring = {
                name: pool.submit(watch_here, process, seconds, LOG_THREAD) for name, process in processes.items()
            }
            measured = {name: future.result() for name, future in measuring.items()}
        wall = time.monotonic() - began
        drawn, events = top.drawn - drawn, web.events - events
        if not drawn or not events or not web.answers:
            raise GuestError(f"nobody watched: {drawn} bytes drawn, {events} events, {web.answers} answers")
        names = ("cpu_pct", "wakeups_per_s", "rss_mib")
        ratios = {f"{name}_ratio": measured["watched"][name] / measured["alone"][name] for name in names}
        rates = {"drawn_bytes_per_s": drawn / wall, "events_per_s": events / wall}
        return ratios | measured | rates | {"groups": size}


# Figures


def metrics(found: Found) -> dict[str, Metric]:
    made: dict[str, Metric] = {}

    def add(name: str, key: str, field: str, unit: str, goal: str | None = None) -> None:
        # A figure that exists already has a goal.
        if key in found and name not in made:
            made[name] = Metric([one[field] for one in found[key]], unit, goal)

    add("daemon_rss_mib_100", "native-100", "rss_mib", "MiB", "<= 4")
    add("daemon_rss_mib_5000", "native-5000", "rss_mib", "MiB", "<= 8")
    add("daemon_cpu_pct_100", "native-100", "cpu_pct", "%", "<= 0.1")
    add("daemon_cpu_pct_1000", "native-1000", "cpu_pct", "%", "<= 1")
    add("tick_ms_1000", "native-1000", "tick_ms", "ms", "<= 10")
    add("tick_ms_10000", "native-10000", "tick_ms", "ms")
    add("wakeups_per_s", "native-1000", "wakeups_per_s", "1/s", "<= 2")
    if {"native-1000", "native-10000"} <= set(found):
        pairs = zip(found["native-10000"], found["native-1000"])
        # 10 where the cost grows linearly.
        made["tick_growth_1000_to_10000"] = Metric(
            [large["tick_ms"] / small["tick_ms"] for large, small in pairs], "ratio", "<= 12"
        )
    add("reclaim_rate_ratio_zram", "zram", "rate_ratio", "ratio", ">= 0.9")
    add("aging_over_touch", "aging", "aging_over_touch", "ratio")
    add("aged_pages_per_s", "aging", "aged_pages_per_s", "1/s")
    add("touched_pages_per_s", "aging", "touched_pages_per_s", "1/s")
    disk = {key: runs for key, runs in found.items() if key.startswith("disk-")}
    if disk:
        # The worst run of each pair. The goal for the rate holds for every kernel, that for swap
        # also for every amount.
        rates = zip(*(runs for key, runs in disk.items() if key.endswith(LARGEST)))
        made["reclaim_rate_ratio_disk"] = Metric(
            [min(one["rate_ratio"] for one in pair) for pair in rates], "ratio", ">= 0.9"
        )
        swapped = [max(one["swapped_over_asked"] for one in pair) for pair in zip(*disk.values())]
        made["swapped_out_over_asked"] = Metric(swapped, "ratio", "<= 1.25")
        for key in disk:
            add(f"rate_ratio_{key}", key, "rate_ratio", "ratio")
            add(f"swapped_over_asked_{key}", key, "swapped_over_asked", "ratio")
    for size in SIZES:
        add(f"cpu_pct_{size}", f"native-{size}", "cpu_pct", "%")
        add(f"rss_mib_{size}", f"native-{size}", "rss_mib", "MiB")
        add(f"locked_mib_{size}", f"native-{size}", "locked_mib", "MiB")
        add(f"tick_ms_{size}", f"native-{size}", "tick_ms", "ms")
        add(f"wakeups_per_s_{size}", f"native-{size}", "wakeups_per_s", "1/s")
    attended = {key: runs for key, runs in found.items() if key.startswith("watched-")}
    for key in attended:
        groups = key.removeprefix("watched-")
        add(f"watched_cpu_ratio_{groups}", key, "cpu_pct_ratio", "ratio", "<= 1.02")
        add(f"watched_rss_ratio_{groups}", key, "rss_mib_ratio", "ratio", "<= 1.02")
        add(f"watched_wakeups_ratio_{groups}", key, "wakeups_per_s_ratio", "ratio", "<= 1.02")
    if attended:
        # The worst number of groups of each pair.
        for program, name, unit, goal in (
            ("top", "rss_mib", "MiB", "<= 12"),
            ("top", "peak_rss_mib", "MiB", None),
            ("top", "cpu_pct", "%", "<= 0.5"),
            ("web", "rss_mib", "MiB", "<= 12"),
            ("web", "peak_rss_mib", "MiB", None),
            ("web", "cpu_pct", "%", None),
        ):
            worst = [max(one[program][name] for one in pair) for pair in zip(*attended.values())]
            made[f"{program}_{name}"] = Metric(worst, unit, goal)
    for size in GUEST_SIZES:
        add(f"guest_cpu_pct_{size}", f"guest-{size}", "cpu_pct", "%")
        add(f"guest_rss_mib_{size}", f"guest-{size}", "rss_mib", "MiB")
        add(f"guest_wakeups_per_s_{size}", f"guest-{size}", "wakeups_per_s", "1/s")
    return made


def draw(found: Found, directory: Path) -> dict[str, str]:
    return draw_daemon(found, directory) | draw_reclaim(found, directory)


def draw_daemon(found: Found, directory: Path) -> dict[str, str]:
    sizes = [size for size in SIZES if f"native-{size}" in found]
    if not sizes:
        return {}
    figure, axes = canvas(columns=3, width=11, height=3.4)
    goals: dict[str, dict[int, float]] = {
        "rss_mib": {100: 4, 5000: 8},
        "cpu_pct": {100: 0.1, 1000: 1},
        "tick_ms": {1000: 10},
    }
    titles = {
        "rss_mib": "Resident memory (MiB)",
        "cpu_pct": "CPU time (% of one core)",
        "tick_ms": "A full sample and decision (ms)",
    }
    for axis, (name, title) in zip(axes, titles.items()):
        for size in sizes:
            values = [one[name] for one in found[f"native-{size}"]]
            axis.plot([size] * len(values), values, ".", color=COLOURS["on"])
        medians = [statistics.median(one[name] for one in found[f"native-{size}"]) for size in sizes]
        axis.plot(sizes, medians, color=COLOURS["on"])
        style = {"color": COLOURS["seed"], "markersize": 16, "markeredgewidth": 2}
        axis.plot(goals[name].keys(), goals[name].values(), "_", **style)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.set_xlabel("groups")
    save(figure, directory / "daemon.png")
    return {"daemon.png": "The idle daemon by number of groups, natively. Red: the most it may be."}


def draw_reclaim(found: Found, directory: Path) -> dict[str, str]:
    disk = [key for key in found if key.startswith("disk-")]
    if not disk:
        return {}
    figure, (left, right) = canvas(columns=2, width=10, height=3.4)
    for axis, name, goal, title in (
        (left, "rate_ratio", 0.9, "Rate on disk, of the disk's speed"),
        (right, "swapped_over_asked", 1.25, "Swapped out, of what was asked"),
    ):
        for place, key in enumerate(disk):
            values = [one[name] for one in found[key]]
            axis.plot([place] * len(values), values, "o", color=COLOURS["on"])
        axis.axhline(goal, color=COLOURS["seed"], linestyle="--", linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_xticks(range(len(disk)), [key.removeprefix("disk-").replace("-", "\n") for key in disk])
        axis.set_title(title)
    save(figure, directory / "reclaim.png")
    return {"reclaim.png": "omr reclaim on a throttled disk, by kernel and amount. Red: the goal."}
