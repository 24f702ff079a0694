#!/usr/bin/python3
"""Makes the first corpus of the fuzzers: files of real kernels from crates/testkit/captured."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURED = HERE.parent / "crates" / "testkit" / "captured"

KERNEL_FILES = {
    "proc/self/maps": 0,
    "memory.stat": 2,
    "proc/meminfo": 3,
    "proc/vmstat": 4,
    "proc/stat": 5,
    "proc/self/stat": 6,
    "proc/self/status": 7,
    "proc/self/cgroup": 9,
    "proc/pressure/memory": 10,
    "proc/zoneinfo": 11,
    "proc/buddyinfo": 12,
    "proc/self/mountinfo": 14,
    "proc/swaps": 15,
    "memory.numa_stat": 16,
    "sys/power/disk": 17,
    "debug/lru_gen": 19,
}
"""The end of a path, and the byte that chooses its parser in fuzz_targets/kernel_files.rs."""


def main() -> None:
    files = [path for path in CAPTURED.rglob("*") if path.is_file()]
    for directory in ("lru_gen", "kernel_files"):
        (HERE / "corpus" / directory).mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(files)):
        name = path.relative_to(CAPTURED).as_posix()
        if name.endswith("debug/lru_gen"):
            (HERE / "corpus" / "lru_gen" / f"captured-{number}").write_bytes(path.read_bytes())
        for end, which in KERNEL_FILES.items():
            if name.endswith(end):
                (HERE / "corpus" / "kernel_files" / f"captured-{number}").write_bytes(
                    bytes([which]) + path.read_bytes()
                )


if __name__ == "__main__":
    main()
