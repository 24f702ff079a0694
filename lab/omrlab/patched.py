"""The kernel with omr's patches, built from Debian's source of 6.12 and a small configuration.

The cache keeps a kernel under a name made of its patches and its configuration.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .apt import Apt, apts
from .kernel_files import Kernel, KernelMissing
from .paths import CACHE, REPOSITORY, alone

RELEASE = "6.12-omr"
DEBUG = f"{RELEASE}-debug"
"""The same kernel with KASAN, lockdep and other checks, some ten times slower."""

SOURCE = "linux-source-6.12"
SERIES = REPOSITORY / "patches"
STORE = CACHE / "kernels"

SELFTESTS = "tools/testing/selftests/cgroup"
SELFTEST = "test_swap_reclaim"
"""The selftest of the patches, in the guest's /bin."""


def patches() -> list[Path]:
    return sorted(path for path in SERIES.glob("*.patch") if not path.name.startswith("0000-"))


def configuration(release: str) -> list[Path]:
    return [SERIES / "config", SERIES / "config.debug"] if release == DEBUG else [SERIES / "config"]


@functools.cache
def newest() -> tuple[str, Apt | None]:
    """The newest version of the source package, and the apt that has it.

    Where no apt knows the package: the version that was used last, and None.
    """
    for apt in apts():
        if found := apt.newest(SOURCE):
            return found[1], apt
    used = sorted(STORE.glob(f"{SOURCE}_*.deb"), key=lambda path: path.stat().st_mtime)
    if not used:
        raise KernelMissing(f"apt knows no package {SOURCE}")
    return used[-1].name.removeprefix(f"{SOURCE}_").removesuffix("_all.deb"), None


def key(release: str) -> str:
    """A hash of the patches and the configuration."""
    parts = [path.read_bytes() for path in patches() + configuration(release)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def built(release: str) -> Kernel:
    """The kernel that was built last with these patches, from any version of the source."""
    roots = sorted(STORE.glob(f"{release}_*_{key(release)}"), key=lambda root: root.stat().st_mtime)
    if not roots:
        raise KernelMissing(f"no kernel {release} has been built from patches/: make kernel")
    return Kernel(release, SOURCE, f"{roots[-1].name.split('_')[1]} with {len(patches())} patches", roots[-1])


def build(release: str) -> Kernel:
    """Builds the kernel, unless it was built before."""
    with alone("patched"):
        root = STORE / f"{release}_{newest()[0]}_{key(release)}"
        if not root.exists():
            with building() as directory:
                made = directory / "made"
                make(release, unpacked(directory), made)
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


def unpacked(directory: Path) -> Path:
    """The patched source."""
    source = original(directory)
    for patch in patches():
        apply(patch, source)
    return source


def apply(patch: Path, source: Path) -> None:
    say(f"applying {patch.name}")
    run(["patch", "-p1", "--forward", "--fuzz=0", "--silent", "--input", patch], cwd=source)


def original(directory: Path) -> Path:
    """Debian's source without the patches."""
    version, apt = newest()
    archive = STORE / f"{SOURCE}_{version}_all.deb"
    if not archive.exists() and apt:
        say(f"fetching {SOURCE} {version}")
        apt.download(SOURCE, version, STORE)
    say(f"unpacking {archive.name}")
    run(["dpkg", "-x", archive, directory / "deb"])
    run(["tar", "-xf", directory / "deb" / "usr" / "src" / f"{SOURCE}.tar.xz", "-C", directory])
    shutil.rmtree(directory / "deb")
    return directory / SOURCE


VARIANTS = (
    ("CONFIG_SWAP=n",),
    ("CONFIG_LRU_GEN=n",),
    ("CONFIG_MEMCG_V1=y",),
    ("CONFIG_MEMCG=n",),
    ("CONFIG_NUMA=n",),
    ("CONFIG_LRU_GEN_WALKS_MMU=n",),
    ("CONFIG_TRANSPARENT_HUGEPAGE=n",),
    ("CONFIG_SWAP=n", "CONFIG_LRU_GEN=n", "CONFIG_MEMCG_V1=y"),
    ("CONFIG_64BIT=n",),
)
"""Further configurations in which the patched files must compile."""


def check_variants() -> None:
    """Compiles the patched files after each patch, and then in each variant. A warning is an
    error.
    """
    with building() as directory:
        source = original(directory)
        configure(source, [SERIES / "config"], ())
        for patch in patches():
            apply(patch, source)
            compile_patched(source)
        for variant in VARIANTS:
            say(f"compiling the patched files with {' '.join(variant)}")
            configure(source, [SERIES / "config"], variant)
            compile_patched(source)


def configure(source: Path, fragments: list[Path], further: tuple[str, ...]) -> None:
    """Writes the configuration.

    Raises where a dependency switches an option off: the result would be another kernel.
    """
    lines = [line for fragment in fragments for line in fragment.read_text().splitlines() if line.startswith("CONFIG_")]
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


def compile_patched(source: Path) -> None:
    """Compiles the patched files with the kernel's further warnings."""
    touched = [f"{path.removesuffix('.c')}.o" for path in changed() if path.startswith(("kernel/", "mm/"))]
    # Without cgroups their file is not compiled.
    if "CONFIG_MEMCG=y" not in (source / ".config").read_text().splitlines():
        touched.remove("mm/memcontrol.o")
    run(["make", "-s", "W=1", "KCFLAGS=-Werror", *touched], cwd=source)


def make(release: str, source: Path, made: Path) -> None:
    """Builds the kernel and its selftest, and installs them below `made`."""
    configure(source, configuration(release), ())
    run(["scripts/config", "--set-str", "LOCALVERSION", release.removeprefix("6.12")], cwd=source)
    compile_patched(source)
    say("compiling, some minutes")
    run(["make", "-s", f"-j{(os.cpu_count() or 1) + 1}", "bzImage"], cwd=source)
    name = subprocess.run(
        ["make", "-s", "kernelrelease"], cwd=source, check=True, capture_output=True, text=True
    ).stdout.strip()

    for part in ("boot", "bin", f"lib/modules/{name}"):
        (made / part).mkdir(parents=True)
    shutil.copy(source / "arch/x86/boot/bzImage", made / "boot" / f"vmlinuz-{name}")
    # The lab boots the unpacked kernel. A kernel with KASAN boots only packed.
    if release == DEBUG:
        shutil.copy(source / "arch/x86/boot/bzImage", made / "boot" / f"vmlinux-{name}")
    else:
        run(["strip", "-o", made / "boot" / f"vmlinux-{name}", source / "vmlinux"])
    shutil.copy(source / "modules.builtin", made / "lib" / "modules" / name)
    shutil.copy(source / ".config", made / "boot" / f"config-{name}")
    files = [f"{SELFTEST}.c", "cgroup_util.c"]
    options = ["-O2", "-Wall", "-D_GNU_SOURCE=", "-static"]
    run(["gcc", *options, "-o", made / "bin" / SELFTEST, *files], cwd=source / SELFTESTS)


def changed() -> list[str]:
    """The C files that the series changes."""
    lines = [line for patch in patches() for line in patch.read_text().splitlines()]
    return sorted({line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/") and line.endswith(".c")})


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
