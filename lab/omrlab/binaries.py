"""The static programs of the guest: omr, omr-daemon, omr-guest and busybox."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from .apt import PackageMissing
from .architecture import AMD64, Architecture
from .packages import unpacked
from .paths import CACHE, REPOSITORY, alone

PROGRAMS = ("omr", "omr-daemon", "omr-guest")
"""The programs of the workspace that a guest has."""


def directory() -> Path:
    """The build directory of these programs."""
    return Path(os.environ.get("OMR_LAB_TARGET", REPOSITORY / "target" / "guest"))


def cargo(program: str, *options: str, architecture: Architecture = AMD64) -> str:
    """Builds a program of the workspace without shared libraries, and returns cargo's output."""
    script = REPOSITORY / "packaging" / "rustflags.sh"
    flags = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout
    environment = os.environ | {"CARGO_ENCODED_RUSTFLAGS": flags, "CARGO_TARGET_DIR": str(directory())}
    if architecture is not AMD64:
        environment |= cross(architecture, flags)
    command = ["cargo", "build", "--quiet", "--locked", "--release", "--target", architecture.target]
    command += ["--package", program]
    return subprocess.run(
        [*command, *options], cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def cross(architecture: Architecture, flags: str) -> dict[str, str]:
    """The environment of a build for another architecture: Debian's compiler, because its package
    of the standard library for that architecture fits it.
    """
    compiler = Path("/usr/bin/rustc")
    linker = shutil.which(architecture.linker)
    if not compiler.exists() or not linker:
        raise PackageMissing(f"no compiler for {architecture.name}: run lab/setup {architecture.name}")
    standard = unpacked("libstd-rust-web-dev", architecture)
    sysroot = CACHE / "rust"
    target = sysroot / "lib" / "rustlib" / architecture.target
    with alone("rust"):
        for link, to in (
            (target, standard / "usr" / "lib" / "rustlib" / architecture.target),
            (target.with_name(AMD64.target), Path("/usr/lib/rustlib") / AMD64.target),
        ):
            if not link.is_symlink() or link.readlink() != to:
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(to)
    name = f"CARGO_TARGET_{architecture.target.upper().replace('-', '_')}_LINKER"
    return {
        "RUSTC": str(compiler),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join([flags, "--sysroot", str(sysroot)]),
        name: linker,
    }


@functools.cache
def build(program: str, architecture: Architecture = AMD64) -> Path:
    """The path of a program, which is built first if it is not."""
    cargo(program, architecture=architecture)
    return directory() / architecture.target / "release" / program


def busybox(architecture: Architecture = AMD64) -> Path:
    if architecture is not AMD64:
        return unpacked("busybox-static", architecture) / "bin" / "busybox"
    found = shutil.which("busybox")
    if not found:
        raise FileNotFoundError("busybox: run lab/setup")
    return Path(found)
