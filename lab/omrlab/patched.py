"""The kernels with omr's patches, built from Debian's sources and a small configuration.

The cache keeps a kernel under a name made of its patches and its configuration.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .apt import SUITES, Apt, PackageMissing, apts
from .kernel_files import Kernel, KernelMissing
from .paths import CACHE, REPOSITORY, alone

STORE = CACHE / "kernels"
PATCHES = REPOSITORY / "patches"
SELFTESTS = "tools/testing/selftests/cgroup"


@dataclass(frozen=True)
class Series:
    """A series of patches for one release of Linux."""

    version: str
    directory: Path
    selftest: str
    """The selftest of the patches, in the guest's /bin."""
    suite: str | None = None
    """The suite of the source package, where the machine's own apt has no such suite."""
    fragments: tuple[Path, ...] = (PATCHES / "config",)
    """The configuration. A later line replaces an earlier one."""

    @property
    def source(self) -> str:
        """The source package."""
        return f"linux-source-{self.version}"

    @property
    def release(self) -> str:
        """The kernel's name in the lab."""
        return f"{self.version}-omr"

    @property
    def debug(self) -> str:
        """The same kernel with KASAN, lockdep and other checks, some ten times slower."""
        return f"{self.release}-debug"

    @property
    def base(self) -> str:
        """The same kernel without the patches: a control with the same configuration."""
        return f"{self.release}-base"

    def patches(self, release: str = "") -> list[Path]:
        """The patches of a kernel, or of the series."""
        patches = sorted(path for path in self.directory.glob("*.patch") if not path.name.startswith("0000-"))
        return [] if release == self.base else patches

    def configuration(self, release: str) -> list[Path]:
        return [*self.fragments, *[PATCHES / "config.debug"] * (release == self.debug)]

    def changed(self) -> list[str]:
        """The C files that the series changes."""
        lines = [line for patch in self.patches() for line in patch.read_text().splitlines()]
        files = {line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")}
        return sorted(file for file in files if file.endswith(".c"))


OLD = Series("6.12", PATCHES, "test_swap_reclaim")
NEW = Series(
    "7.3",
    PATCHES / "7.3",
    "test_memcg_reclaim",
    suite=SUITES["7"],
    fragments=(PATCHES / "config", PATCHES / "7.3" / "config"),
)
SERIES = {series.version: series for series in (OLD, NEW)}
FIXES = replace(NEW, directory=PATCHES / "7.3-fixes")
"""Fixes of Linux 7.3 that have nothing to do with the other patches. No kernel here has them."""

RELEASE = OLD.release
DEBUG = OLD.debug


def series_of(release: str) -> Series:
    """The series of a kernel such as `6.12-omr-debug`."""
    version = release.partition("-omr")[0]
    if version not in SERIES:
        raise KernelMissing(f"no patches for Linux {version}, but for {', '.join(SERIES)}")
    return SERIES[version]


@functools.cache
def newest(series: Series) -> tuple[str, Apt | None]:
    """The newest version of the source package, and the apt that has it.

    Where no apt knows the package: the version that was used last, and None.
    """
    source = series.source
    with contextlib.suppress(PackageMissing):
        for apt in apts(series.suite):
            if found := apt.newest(source):
                return found[1], apt
    used = sorted(STORE.glob(f"{source}_*.deb"), key=lambda path: path.stat().st_mtime)
    if not used:
        raise KernelMissing(f"apt knows no package {source}")
    return used[-1].name.removeprefix(f"{source}_").removesuffix("_all.deb"), None


def key(release: str) -> str:
    """A hash of the patches and the configuration."""
    series = series_of(release)
    parts = [path.read_bytes() for path in series.patches(release) + series.configuration(release)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def built(release: str) -> Kernel:
    """The kernel that was built last with these patches, from any version of the source."""
    series = series_of(release)
    roots = sorted(STORE.glob(f"{release}_*_{key(release)}"), key=lambda root: root.stat().st_mtime)
    if not roots:
        raise KernelMissing(f"no kernel {release} has been built: lab/run kernel --release {series.version}")
    version = f"{roots[-1].name.split('_')[1]} with {len(series.patches(release))} patches"
    return Kernel(release, series.source, version, roots[-1])


def build(release: str) -> Kernel:
    """Builds the kernel, unless it was built before."""
    with alone("patched"):
        series = series_of(release)
        root = STORE / f"{release}_{newest(series)[0]}_{key(release)}"
        if not root.exists():
            with building() as directory:
                made = directory / "made"
                make(release, unpacked(release, directory), made)
                made.rename(root)
            for older in STORE.glob(f"{release}_*"):
                if older != root:
                    shutil.rmtree(older)
    return built(release)


@contextmanager
def building() -> Iterator[Path]:
    STORE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=STORE, prefix="building-") as directory:
        yield Path(directory)


def unpacked(release: str, directory: Path) -> Path:
    """The patched source."""
    series = series_of(release)
    source = original(series, directory)
    for patch in series.patches(release):
        apply(patch, source)
    return source


def apply(patch: Path, source: Path) -> None:
    say(f"applying {patch.name}")
    run(["patch", "-p1", "--forward", "--fuzz=0", "--silent", "--input", patch], cwd=source)


def original(series: Series, directory: Path) -> Path:
    """Debian's source without the patches."""
    version, apt = newest(series)
    archive = STORE / f"{series.source}_{version}_all.deb"
    if not archive.exists() and apt:
        say(f"fetching {series.source} {version}")
        apt.download(series.source, version, STORE)
    say(f"unpacking {archive.name}")
    run(["dpkg", "-x", archive, directory / "deb"])
    run(["tar", "-xf", directory / "deb" / "usr" / "src" / f"{series.source}.tar.xz", "-C", directory])
    shutil.rmtree(directory / "deb")
    return directory / series.source


VARIANTS = (
    ("CONFIG_SWAP=n",),
    ("CONFIG_LRU_GEN=n",),
    ("CONFIG_MEMCG_V1=y",),
    ("CONFIG_MEMCG=n",),
    ("CONFIG_NUMA=n",),
    ("CONFIG_TRANSPARENT_HUGEPAGE=n",),
    ("CONFIG_SWAP=n", "CONFIG_LRU_GEN=n", "CONFIG_MEMCG_V1=y"),
    ("CONFIG_64BIT=n",),
)
"""Further configurations in which the patched files must compile."""


def check_variants(series: Series) -> None:
    """Compiles the patched files after each patch, and then in each variant. A warning is an
    error.
    """
    fragments = series.configuration(series.release)
    with building() as directory:
        source = original(series, directory)
        configure(source, fragments, ())
        for patch in series.patches():
            apply(patch, source)
            compile_patched(series, source)
        for variant in VARIANTS:
            say(f"compiling the patched files with {' '.join(variant)}")
            configure(source, fragments, variant)
            compile_patched(series, source)


def configure(source: Path, fragments: list[Path], further: tuple[str, ...]) -> None:
    """Writes the configuration.

    Raises where a dependency switches an option off: the result would be another kernel.
    """
    text = "".join(fragment.read_text() for fragment in fragments)
    by_name = {line.partition("=")[0]: line for line in text.splitlines() if line.startswith("CONFIG_")}
    lines = list(by_name.values())
    run(["make", "-s", "tinyconfig"], cwd=source)
    with open(source / ".config", "a") as config:
        config.writelines(f"{line}\n" for line in (*lines, *further))
    run(["make", "-s", "olddefconfig"], cwd=source)
    have = (source / ".config").read_text().splitlines()
    on = {line.split("=")[0] for line in have}
    # A variant may switch further options off. An option that is off need not be in the file.
    wanted = further or lines
    missing = [line for line in wanted if (line[:-2] in on if line.endswith("=n") else line not in have)]
    if missing:
        raise KernelMissing(f"this source does not accept {', '.join(missing)}")


NEEDS = {"mm/memcontrol.c": "CONFIG_MEMCG=y", "mm/memcontrol-v1.c": "CONFIG_MEMCG_V1=y"}
"""Files that are not compiled without an option."""


def compile_patched(series: Series, source: Path) -> None:
    """Compiles the patched files with the kernel's further warnings."""
    have = (source / ".config").read_text().splitlines()
    files = [file for file in series.changed() if file.startswith(("kernel/", "mm/"))]
    objects = [f"{file.removesuffix('.c')}.o" for file in files if file not in NEEDS or NEEDS[file] in have]
    run(["make", "-s", "W=1", "KCFLAGS=-Werror", *objects], cwd=source)


def make(release: str, source: Path, made: Path) -> None:
    """Builds the kernel and its selftest, and installs them below `made`."""
    series = series_of(release)
    configure(source, series.configuration(release), ())
    run(["scripts/config", "--set-str", "LOCALVERSION", release.removeprefix(series.version)], cwd=source)
    compile_patched(series, source)
    say("compiling, some minutes")
    run(["make", "-s", f"-j{(os.cpu_count() or 1) + 1}", "bzImage"], cwd=source)
    name = subprocess.run(
        ["make", "-s", "kernelrelease"], cwd=source, check=True, capture_output=True, text=True
    ).stdout.strip()

    for part in ("boot", "bin", f"lib/modules/{name}"):
        (made / part).mkdir(parents=True)
    shutil.copy(source / "arch/x86/boot/bzImage", made / "boot" / f"vmlinuz-{name}")
    # The lab boots the unpacked kernel. A kernel with KASAN boots only packed.
    if release == series.debug:
        shutil.copy(source / "arch/x86/boot/bzImage", made / "boot" / f"vmlinux-{name}")
    else:
        run(["strip", "-o", made / "boot" / f"vmlinux-{name}", source / "vmlinux"])
    shutil.copy(source / "modules.builtin", made / "lib" / "modules" / name)
    shutil.copy(source / ".config", made / "boot" / f"config-{name}")
    if release == series.base:
        return
    # The helpers and their headers have moved since 6.12.
    (helpers,) = (source / SELFTESTS).glob("**/cgroup_util.c")
    options = ["-O2", "-Wall", "-D_GNU_SOURCE=", "-static", "-Ilib/include", "-I.."]
    program = made / "bin" / series.selftest
    run(["gcc", *options, "-o", program, f"{series.selftest}.c", helpers], cwd=source / SELFTESTS)


def run(command: list[str | Path], cwd: Path | None = None) -> None:
    """Runs a command, and prints its output when it fails."""
    ended = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if ended.returncode:
        print(ended.stdout, file=sys.stderr)
        raise KernelMissing(f"{' '.join(map(str, command))} ended with {ended.returncode}")


def say(text: str) -> None:
    print(f"kernel: {text}", file=sys.stderr, flush=True)
