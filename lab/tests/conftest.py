"""Fixtures and helpers of the VM tests. A test on a kernel that lacks a feature is a SKIP with its
reason.
"""

import contextlib
import os
import resource
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
from omrlab.kernels import KERNEL, KernelMissing, kernel
from omrlab.machine import Machine
from omrlab.patched import DEBUG, NEW, RELEASE
from omrlab.paths import REPOSITORY, alone

# Tests of the kernel's most important interfaces always run on an older and on the newest kernel,
# too. With --every, all tests run on one kernel: that of OMR_LAB_KERNEL.
KERNELS = {
    "test_hint": ["6.12", "6.1"],
    "test_probe": ["6.1"],
    "test_reclaim": ["6.12", "6.1", "7"],
    "test_roomy": ["6.12", "6.1"],
    "test_wss": ["6.12", "6.1", "7"],
}

DAMON_61 = "Debian's kernel has no DAMON in sysfs"
TIERS_61 = "a node's speed is read from the firmware since Linux 6.7"
COUNTED_61 = "with a clock that counts instructions, QEMU does not start a second CPU of this kernel"

IMPOSSIBLE = {
    (
        "6.12-arm64",
        "test_a_debian_guest_hibernates_to_a_file_on_its_root_through_logind",
    ): "Debian's image is for amd64",
    (
        "6.12-arm64",
        "test_with_older_than_a_group_whose_use_the_kernel_does_not_see_loses_nothing",
    ): "its control needs setpriv, and the host's is for amd64",
    ("6.1", "test_a_user_who_makes_all_that_can_be_made_is_in_nobodys_way"): COUNTED_61,
    ("6.1", "test_the_seed_profile_waits_for_every_cpu_and_reclaims_from_one_group"): COUNTED_61,
    ("6.1", "test_swap_that_is_removed_ends_a_sweep_and_its_writes_count"): COUNTED_61,
    ("6.1", "test_nothing_is_reclaimed_when_another_program_takes_the_monitor_down"): DAMON_61,
    ("6.1", "test_without_mglru_damon_finds_cold_memory_and_only_that_is_reclaimed"): DAMON_61,
    ("6.1", "test_monitors_of_other_programs_stay_and_that_of_a_killed_omr_is_removed"): DAMON_61,
    ("6.1", "test_reclaim_by_damons_ages_spares_protected_memory"): DAMON_61,
    ("6.1", "test_memory_moved_to_the_slow_node_does_not_count_as_freed"): TIERS_61,
    ("6.1", "test_advice_names_the_node_of_used_memory_and_a_better_one"): TIERS_61,
}
"""What cannot be on a kernel: its release and a test or module, and the reason."""


IS_WORKER = "PYTEST_XDIST_WORKER"
SNAPSHOTS = "OMR_LAB_SNAPSHOTS"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="run all tests, on the kernel OMR_LAB_KERNEL (6.12) only")
    parser.addoption("--patched", action="store_true", help="also run tests on the patched kernels that were built")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the directory of snapshots. All test processes share it; the first one removes it."""
    config.addinivalue_line("markers", "long: takes more than a minute, so it begins first")
    config.addinivalue_line("markers", "seldom: takes minutes beside a test that is close to it, so it needs --every")
    if IS_WORKER not in os.environ:
        os.environ[SNAPSHOTS] = tempfile.mkdtemp(prefix="omr-lab-snapshots-")
    Machine.snapshots = Path(os.environ[SNAPSHOTS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if IS_WORKER not in os.environ:
        shutil.rmtree(os.environ.pop(SNAPSHOTS), ignore_errors=True)


def kernels(config: pytest.Config, module: str) -> list[str]:
    return [KERNEL] if config.getoption("--every") else KERNELS.get(module, [KERNEL])


def patched(config: pytest.Config, *releases: str) -> tuple[str, ...]:
    """The patched kernels among `releases`, with --patched only.

    The result of a test run must not depend on the contents of a cache, and the kernel with KASAN
    takes long.
    """
    return tuple(filter(have, releases)) if config.getoption("--patched") else ()


def have(release: str) -> bool:
    try:
        return bool(kernel(release))
    except KernelMissing:
        return False


NEEDED = {"test_kernel.py": (RELEASE,), "test_memory_reclaim_keys.py": (NEW.release,)}
"""Tests that no kernel of Debian can run."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    needed = NEEDED.get(collection_path.name, ())
    return True if needed and not patched(config, *needed) else None


NEWER = "99.0.0-1"
"""Version of the second package."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        metafunc.parametrize("release", kernels(metafunc.config, metafunc.module.__name__), indirect=True)
    if "offering" in metafunc.fixturenames:
        mine = patched(metafunc.config, RELEASE, NEW.release)
        offering = [*kernels(metafunc.config, metafunc.module.__name__), *mine]
        metafunc.parametrize("offering", offering, indirect=True)
    if "patched" in metafunc.fixturenames:
        metafunc.parametrize("patched", patched(metafunc.config, RELEASE))
    if "keyed" in metafunc.fixturenames:
        metafunc.parametrize("keyed", patched(metafunc.config, NEW.release))
    if "checked" in metafunc.fixturenames:
        metafunc.parametrize("checked", patched(metafunc.config, RELEASE, DEBUG))
    if "keyed_checked" in metafunc.fixturenames:
        metafunc.parametrize("keyed_checked", patched(metafunc.config, NEW.release, NEW.debug))


@pytest.fixture
def release(request: pytest.FixtureRequest) -> str:
    """Each kernel in turn."""
    try:
        kernel(request.param)
    except KernelMissing as missing:
        pytest.skip(str(missing))
    return request.param


@pytest.fixture
def newest() -> str:
    """The series of the newest kernel."""
    try:
        kernel("7")
    except KernelMissing as missing:
        pytest.skip(str(missing))
    return "7"


# Each kernel that can have memory.swap.reclaim: its own file, or that of omr mount.
offering = release


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of a test run share."""
    here = tmp_path_factory.getbasetemp()
    return here.parent if IS_WORKER in os.environ else here


@pytest.fixture(scope="session")
def packages(shared: Path) -> list[Path]:
    """The package, and the same package with a higher version. Built once for all processes."""
    kept = shared / "packages"
    with alone("packages"):
        if not kept.exists():
            unfinished = shared / "packages.unfinished"
            unfinished.mkdir(exist_ok=True)
            for name, version in (("omr.deb", []), ("newer.deb", [NEWER])):
                command = [REPOSITORY / "packaging" / "build-deb.sh", *version]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                # A copy, because cargo-deb removes a package of another version.
                shutil.copy(REPOSITORY / output.strip(), unfinished / name)
            unfinished.rename(kept)
    return [kept / "omr.deb", kept / "newer.deb"]


DPKG_TIMEOUT = 480
"""Seconds for one call of dpkg. A call takes 60 s on an idle host, and more beside other guests."""


@contextlib.contextmanager
def booted(**options: Any) -> Iterator[DebianGuest]:
    """A running guest. A guest that panics during its boot is thrown away, three times at most."""
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
    """The options of a Debian guest with both packages and a disk to hibernate to."""
    return {"mem_mib": 768, "swap": Disk(1024, 40), "files": {path.name: path for path in packages}}


def install(guest: DebianGuest) -> None:
    guest.run(["dpkg", "-i", f"{LAB}/omr.deb"], timeout=DPKG_TIMEOUT)
    assert guest.active("omr") == "active"


@pytest.fixture(scope="session")
def installed(packages: list[Path], shared: Path) -> Path:
    """The root file system of a Debian guest that has the package and was shut down.

    Made once for all processes of a test run.
    """
    root = shared / "installed.ext4"
    with alone("installed"):
        if not root.exists():
            with booted(**with_packages(packages), prepare=install) as guest:
                guest.shut_down(root.with_suffix(".unfinished"))
            root.with_suffix(".unfinished").rename(root)
    return root


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Makes tests that share a guest run in one process, one after the other. Tests that seldom run
    are left out, unless one is named.
    """
    if not config.getoption("--every") and not any("::" in name for name in config.args):
        left_out = [item for item in items if item.get_closest_marker("seldom")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        assert isinstance(item, pytest.Function)
        release = item.callspec.params.get("release", KERNEL) if hasattr(item, "callspec") else KERNEL
        for what in (item.originalname, item.path.stem):
            if reason := IMPOSSIBLE.get((release, what)):
                item.add_marker(pytest.mark.skip(reason=f"Linux {release}: {reason}"))
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        if any(found[-1].scope == "module" for found in fixtures):
            item.add_marker(pytest.mark.xdist_group(Path(item.fspath).stem))
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    """The place of a test in the order of all tests.

    The longest tests come first, so that none runs alone at the end. Tests that need the package
    come after the test that installs it and after the others, so that they need not wait.
    """
    long = item.get_closest_marker("long")
    if long and long.kwargs.get("first"):
        return 0
    if long or item.get_closest_marker("xdist_group"):
        return 2 if "packages" in item.fixturenames else 1  # type: ignore[attr-defined]
    return 3


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keeps the CPU time of a test's guests and of its builds for the report. A guest that several
    tests share counts for the one at whose end it is switched off.
    """
    item.stash[BEGAN] = cpu_seconds()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    item.user_properties.append(("cpu_seconds", f"{cpu_seconds() - item.stash[BEGAN]:.1f}"))


BEGAN = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """The CPU time of all processes that this one started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Runs a test again when its guest panicked.

    Emulation is not perfect, so one panic is no result about omr. Three panics in a row are one. No
    fixture of a test function here holds a guest.
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
    """Memory that a process holds in a group."""

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
        """The number of words that changed. Reads all memory, as fast as the disk can."""
        self.guest.throttle_swap(None)
        self.process.kill(signal.SIGUSR1)
        return self.process.line_with("verified", timeout=300)["errors"]


class Trace:
    """The kernel's trace of writes to memory.reclaim files. A write is traced when it begins."""

    DIRECTORY = "/sys/kernel/debug/tracing"

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.write(f"{self.DIRECTORY}/trace_clock", "mono")
        guest.write(f"{self.DIRECTORY}/kprobe_events", "p:reclaim_write memory_reclaim")
        guest.write(f"{self.DIRECTORY}/events/kprobes/reclaim_write/enable", "1")

    def writes(self) -> list[int]:
        """The times at which writes began, CLOCK_MONOTONIC in ns."""
        lines = self.guest.read(f"{self.DIRECTORY}/trace").splitlines()
        stamps = [line.split(": reclaim_write:")[0].split()[-1] for line in lines if ": reclaim_write:" in line]
        return [int(float(stamp) * 1e9) for stamp in stamps]


@pytest.fixture
def trace() -> type[Trace]:
    return Trace


@pytest.fixture
def load() -> type[Load]:
    return Load
