"""The kernel with omr's patches: Debian's source of 6.12, the series in patches/, a small configuration; kept by its content."""

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

from .kernels import Apt, Kernel, KernelMissing
from .paths import CACHE, REPOSITORY, alone

RELEASE = "6.12-omr"
DEBUG = f"{RELEASE}-debug"
"""The same with KASAN, lockdep and the like; some ten times slower."""

SOURCE = "linux-source-6.12"
SERIES = REPOSITORY / "patches"
STORE = CACHE / "kernels"

SELFTESTS = "tools/testing/selftests/cgroup"
SELFTEST = "test_swap_reclaim"
"""The series' own; it is in the guest's /bin."""


def patches() -> list[Path]:
    return sorted(path for path in SERIES.glob("*.patch") if not path.name.startswith("0000-"))


def configuration(release: str) -> list[Path]:
    return [SERIES / "config", SERIES / "config.debug"] if release == DEBUG else [SERIES / "config"]


@functools.cache
def newest() -> tuple[str, Apt | None]:
    """The source package's newest version and whom to ask for it; without apt, the version that was used last."""
    for private in (False, True):
        apt = Apt.private(None) if private else Apt()
        if found := apt.newest_of(SOURCE):
            return found[1], apt
    used = sorted(STORE.glob(f"{SOURCE}_*.deb"), key=lambda path: path.stat().st_mtime)
    if not used:
        raise KernelMissing(f"apt knows no package {SOURCE}")
    return used[-1].name.removeprefix(f"{SOURCE}_").removesuffix("_all.deb"), None


def key(release: str) -> str:
    """What omr puts into it."""
    parts = [path.read_bytes() for path in patches() + configuration(release)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def built(release: str) -> Kernel:
    """The one that was built last, of whatever version of the source."""
    roots = sorted(STORE.glob(f"{release}_*_{key(release)}"), key=lambda root: root.stat().st_mtime)
    if not roots:
        raise KernelMissing(f"no kernel {release} has been built of what is in patches/: make kernel")
    return Kernel(release, SOURCE, f"{roots[-1].name.split('_')[1]} with {len(patches())} patches", roots[-1])


def build(release: str) -> Kernel:
    """Builds it unless that was done before."""
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
    """The source, patched."""
    version, apt = newest()
    archive = STORE / f"{SOURCE}_{version}_all.deb"
    if not archive.exists() and apt:
        say(f"fetching {SOURCE} {version}")
        apt.download(SOURCE, version, STORE)
    say(f"unpacking {archive.name}")
    run(["dpkg", "-x", archive, directory / "deb"])
    run(["tar", "-xf", directory / "deb" / "usr" / "src" / f"{SOURCE}.tar.xz", "-C", directory])
    shutil.rmtree(directory / "deb")
    source = directory / SOURCE
    for patch in patches():
        say(f"applying {patch.name}")
        run(["patch", "-p1", "--forward", "--fuzz=0", "--silent", "--input", patch], cwd=source)
    return source


VARIANTS = (
    ("CONFIG_SWAP=n",),
    ("CONFIG_LRU_GEN=n",),
    ("CONFIG_MEMCG_V1=y",),
    ("CONFIG_MEMCG=n",),
    ("CONFIG_NUMA=y",),
    ("CONFIG_SWAP=n", "CONFIG_LRU_GEN=n", "CONFIG_MEMCG_V1=y"),
    ("CONFIG_64BIT=n",),
)
"""What the patched files have to compile with, too."""


def check_variants() -> None:
    """Compiles what is patched in each variant, warnings being errors."""
    with building() as directory:
        source = unpacked(directory)
        for variant in VARIANTS:
            say(f"compiling what is patched with {' '.join(variant)}")
            configure(source, [SERIES / "config"], variant)
            compile_patched(source)


def configure(source: Path, fragments: list[Path], further: tuple[str, ...]) -> None:
    """An option that a dependency has switched off is an error, not another kernel."""
    lines = [line for fragment in fragments for line in fragment.read_text().splitlines() if line.startswith("CONFIG_")]
    run(["make", "-s", "tinyconfig"], cwd=source)
    with open(source / ".config", "a") as config:
        config.writelines(f"{line}\n" for line in (*lines, *further))
    run(["make", "-s", "olddefconfig"], cwd=source)
    have = (source / ".config").read_text().splitlines()
    on = {line.split("=")[0] for line in have}
    # A variant may take other options with it. What is to be off need not be mentioned.
    wanted = further or lines
    missing = [line for line in wanted if (line[:-2] in on if line.endswith("=n") else line not in have)]
    if missing:
        raise KernelMissing(f"this source does not take {', '.join(missing)}")


def compile_patched(source: Path) -> None:
    """What is patched has to pass the kernel's further warnings, too."""
    touched = [f"{path.removesuffix('.c')}.o" for path in changed() if path.startswith("mm/")]
    # Without cgroups there is nothing to compile of their file.
    if "CONFIG_MEMCG=y" not in (source / ".config").read_text().splitlines():
        touched.remove("mm/memcontrol.o")
    run(["make", "-s", "W=1", "KCFLAGS=-Werror", *touched], cwd=source)


def make(release: str, source: Path, made: Path) -> None:
    """Builds kernel and selftests, and puts them where the lab looks for them."""
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
    # The lab boots the unpacked kernel; one with KASAN starts only as it is packed.
    if release == DEBUG:
        shutil.copy(source / "arch/x86/boot/bzImage", made / "boot" / f"vmlinux-{name}")
    else:
        run(["strip", "-o", made / "boot" / f"vmlinux-{name}", source / "vmlinux"])
    shutil.copy(source / "modules.builtin", made / "lib" / "modules" / name)
    shutil.copy(source / ".config", made / "boot" / f"config-{name}")
    files = [f"{SELFTEST}.c", "cgroup_util.c"]
    command = ["gcc", "-O2", "-Wall", "-D_GNU_SOURCE=", "-static", "-o", made / "bin" / SELFTEST, *files]
    run(command, cwd=source / SELFTESTS)


def changed() -> list[str]:
    """The C files that the series changes."""
    lines = [line for patch in patches() for line in patch.read_text().splitlines()]
    return sorted({line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/") and line.endswith(".c")})


def run(command: list[str | Path], cwd: Path | None = None) -> None:
    """Its output is shown when it fails."""
    ended = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if ended.returncode:
        print(ended.stdout, file=sys.stderr)
        raise KernelMissing(f"{' '.join(map(str, command))} ended with {ended.returncode}")


def say(text: str) -> None:
    print(f"kernel: {text}", file=sys.stderr, flush=True)
