"""What the VM tests share. Each test names what it needs; a kernel without it is a SKIP with the
reason.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omrlab.debian import LAB, DebianGuest
from omrlab.guest import Disk, Guest, GuestPanicked
from omrlab.kernels import KernelMissing, kernel
from omrlab.machine import Machine
from omrlab.patched import DEBUG, RELEASE
from omrlab.paths import REPOSITORY, alone

KERNEL = "6.12"

# What touches the kernel's interfaces most is always tried on an older and the newest kernel, too;
# the rest with --every-kernel: for all of it there is no time in each run.
OLDER = "6.1"
ON_OLDER = {"test_hint", "test_reclaim", "test_wss"}
NEWEST = "7"
ON_NEWEST = {"test_reclaim", "test_wss"}
# Of the rest, what passes there: test_prepare_migrate gave back half of what it should in half of
# the runs on a busy host.
PASSES_ON_NEWEST = {"test_daemon", "test_guest"}


IS_WORKER = "PYTEST_XDIST_WORKER"
SNAPSHOTS = "OMR_LAB_SNAPSHOTS"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-kernel", action="store_true", help="try everything on each of Debian's kernels")
    parser.addoption("--patched", action="store_true", help="try the patched kernels that were built, too")


def pytest_configure(config: pytest.Config) -> None:
    """Machines of all tests go on from snapshots, which the processes that run tests share and the
    first of them removes.
    """
    config.addinivalue_line("markers", "long: takes more than a minute, so it begins first")
    if IS_WORKER not in os.environ:
        os.environ[SNAPSHOTS] = tempfile.mkdtemp(prefix="omr-lab-snapshots-")
    Machine.snapshots = Path(os.environ[SNAPSHOTS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if IS_WORKER not in os.environ:
        shutil.rmtree(os.environ.pop(SNAPSHOTS), ignore_errors=True)


def kernels(config: pytest.Config, module: str) -> list[str]:
    every = config.getoption("--every-kernel")
    newest = module in ON_NEWEST or (every and module in PASSES_ON_NEWEST)
    return [KERNEL] + [OLDER] * (module in ON_OLDER or every) + [NEWEST] * newest


def patched(config: pytest.Config, *releases: str) -> tuple[str, ...]:
    """Only where asked for: what is tested is not to depend on what lies in a cache, and the one
    with KASAN takes long.
    """
    return tuple(filter(have, releases)) if config.getoption("--patched") else ()


def have(release: str) -> bool:
    try:
        return bool(kernel(release))
    except KernelMissing:
        return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name == "test_kernel.py" and not patched(config, RELEASE) else None


NEWER = "99.0.0-1"
"""Version of the second package."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        metafunc.parametrize("release", kernels(metafunc.config, metafunc.module.__name__), indirect=True)
    if "offering" in metafunc.fixturenames:
        offering = kernels(metafunc.config, metafunc.module.__name__) + list(patched(metafunc.config, RELEASE))
        metafunc.parametrize("offering", offering, indirect=True)
    if "patched" in metafunc.fixturenames:
        metafunc.parametrize("patched", patched(metafunc.config, RELEASE))
    if "checked" in metafunc.fixturenames:
        metafunc.parametrize("checked", patched(metafunc.config, RELEASE, DEBUG))


@pytest.fixture
def release(request: pytest.FixtureRequest) -> str:
    """Each kernel in turn."""
    try:
        kernel(request.param)
    except KernelMissing as missing:
        pytest.skip(str(missing))
    return request.param


# Each kernel that can have memory.swap.reclaim, by omr mount or by itself.
offering = release


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of a test run have in common."""
    here = tmp_path_factory.getbasetemp()
    return here.parent if IS_WORKER in os.environ else here


@pytest.fixture(scope="session")
def packages(shared: Path) -> list[Path]:
    """The package, and the same with a higher version. Built once for all processes."""
    kept = shared / "packages"
    with alone("packages"):
        if not kept.exists():
            unfinished = shared / "packages.unfinished"
            unfinished.mkdir(exist_ok=True)
            for name, version in (("omr.deb", []), ("newer.deb", [NEWER])):
                command = [REPOSITORY / "packaging" / "build-deb.sh", *version]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                # A copy: cargo-deb removes a package of another version.
                shutil.copy(REPOSITORY / output.strip(), unfinished / name)
            unfinished.rename(kept)
    return [kept / "omr.deb", kept / "newer.deb"]


DPKG_TIMEOUT = 480
"""Seconds for one call of it: 60 on a host with nothing else to do, and more with other guests."""


@contextlib.contextmanager
def booted(**options: Any) -> Iterator[DebianGuest]:
    """A guest that is on; one that panics while it boots is thrown away, three times at most."""
    with contextlib.ExitStack() as stack:
        for last in (False, False, True):
            try:
                guest = stack.enter_context(DebianGuest(**options))
                break
            except GuestPanicked:
                if last:
                    raise
        guest.settle()
        yield guest


def with_packages(packages: list[Path]) -> dict[str, Any]:
    """What a Debian guest is made of that has both packages at hand, and a disk to hibernate to."""
    return {"mem_mib": 768, "swap": Disk(1024, 40), "files": {path.name: path for path in packages}}


def install(guest: DebianGuest) -> None:
    guest.run(["dpkg", "-i", f"{LAB}/omr.deb"], timeout=DPKG_TIMEOUT)
    assert guest.active("omr") == "active"


@pytest.fixture(scope="session")
def installed(packages: list[Path], shared: Path) -> Path:
    """The root file system of a Debian that has the package, and was shut down. Made once for all
    that run tests at a time.
    """
    root = shared / "installed.ext4"
    with alone("installed"):
        if not root.exists():
            with booted(**with_packages(packages), prepare=install) as guest:
                guest.shut_down(root.with_suffix(".unfinished"))
            root.with_suffix(".unfinished").rename(root)
    return root


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a guest run in one process, one after the other."""
    for item in items:
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        if any(found[-1].scope == "module" for found in fixtures):
            item.add_marker(pytest.mark.xdist_group(Path(item.fspath).stem))
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """The longest begin first, so that none runs alone at the end; those that need the package
    begin after the one that installs it, and after the others, so that they need not wait for it.
    """
    long = item.get_closest_marker("long")
    if long and long.kwargs.get("first"):
        return 0
    if long or item.get_closest_marker("xdist_group"):
        return 2 if "packages" in item.fixturenames else 1  # type: ignore[attr-defined]
    return 3


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Runs a test again when its guest panicked: emulation is not perfect, and such a run says
    nothing about omr.

    Three in a row do say something. No fixture of a test function here holds a guest.
    """
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    for last in (False, False, True):
        try:
            pyfuncitem.obj(**arguments)
            return True
        except GuestPanicked as panic:
            if last:
                raise
            warnings.warn(f"thrown away and run again: {panic}", stacklevel=1)
    return True


class Load:
    """Memory held in a group."""

    def __init__(self, guest: Guest, group: str, amount: str, *options: str) -> None:
        self.guest = guest
        self.group = group
        guest.group(group)
        self.process = guest.spawn(["omr-guest", "fill", amount, *options], group=group)
        self.bytes: int = self.process.line_with("ready", timeout=120)["bytes"]

    def resident(self) -> int:
        return self.guest.group_value(self.group)

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def errors(self) -> int:
        """Words that are not what they were; all of it is read, as fast as the disk can."""
        self.guest.throttle_swap(None)
        self.process.kill(signal.SIGUSR1)
        return self.process.line_with("verified", timeout=300)["errors"]


class Trace:
    """Every write to a memory.reclaim file, as the kernel sees it begin."""

    DIRECTORY = "/sys/kernel/debug/tracing"

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.write(f"{self.DIRECTORY}/trace_clock", "mono")
        guest.write(f"{self.DIRECTORY}/kprobe_events", "p:reclaim_write memory_reclaim")
        guest.write(f"{self.DIRECTORY}/events/kprobes/reclaim_write/enable", "1")

    def writes(self) -> list[int]:
        """When they began, CLOCK_MONOTONIC in ns."""
        lines = self.guest.read(f"{self.DIRECTORY}/trace").splitlines()
        stamps = [line.split(": reclaim_write:")[0].split()[-1] for line in lines if ": reclaim_write:" in line]
        return [int(float(stamp) * 1e9) for stamp in stamps]


@pytest.fixture
def trace() -> type[Trace]:
    return Trace


@pytest.fixture
def load() -> type[Load]:
    return Load
