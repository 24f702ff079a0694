"""Clients of the services in a Debian guest, and a watch over the services' memory.

    clients.py ask FILE SECONDS CONNECTIONS REDIS_RATE KEYS NGINX_RATE FILES
    clients.py watch FILE SECONDS GROUP...

`ask` sends requests at these rates per second (Poisson arrivals), over so many connections to each
service at once, and writes the times of all requests. `watch` writes a line every so many seconds.
"""

import json
import os
import random
import socket
import sys
import threading
import time

REDIS = ("127.0.0.1", 6379)
NGINX = ("127.0.0.1", 80)

GROUPS = "/sys/fs/cgroup"

MEMINFO = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "AnonPages", "Shmem", "Cached")
VMSTAT = ("pgmajfault", "pswpin", "pswpout", "pgsteal_anon", "pgsteal_file", "allocstall_normal")
EVENTS = ("pgmajfault", "workingset_refault_anon", "workingset_refault_file", "anon", "file", "shmem")


class Asking(threading.Thread):
    """One connection with its own arrivals. A request that comes while another one is on its way
    waits, and the wait counts.
    """

    def __init__(self, seed: int, rate: float, seconds: float) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.rate = rate
        self.seconds = seconds
        self.answers: list[tuple[float, float]] = []
        """The monotonic time at which each request was due, and the milliseconds until its end."""
        self.errors = 0

    def run(self) -> None:
        now = time.monotonic()
        end = now + self.seconds
        due = now
        while (due := due + self.random.expovariate(self.rate)) < end:
            late = time.monotonic() > due
            time.sleep(max(0.0, due - time.monotonic()))
            # Only the wait for the request before counts, and not that this thread wakes up late.
            began = due if late else time.monotonic()
            try:
                self.ask()
            except (OSError, ValueError) as error:
                self.errors += 1
                print(error, file=sys.stderr)
            self.answers.append((round(due, 3), round((time.monotonic() - began) * 1000, 3)))

    def ask(self) -> None:
        raise NotImplementedError


class Redis(Asking):
    def __init__(self, keys: int, *arguments: float) -> None:
        super().__init__(*arguments)
        self.keys = keys
        self.connection = socket.create_connection(REDIS).makefile("rwb")

    def ask(self) -> None:
        key = b"key:%d" % self.random.randrange(self.keys)
        self.connection.write(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        self.connection.flush()
        header = self.connection.readline()
        if not header.startswith(b"$") or header == b"$-1\r\n":
            raise ValueError(f"{key.decode()}: {header.decode()}")
        self.connection.read(int(header[1:]) + 2)


class Nginx(Asking):
    def __init__(self, files: int, *arguments: float) -> None:
        super().__init__(*arguments)
        self.files = files

    def ask(self) -> None:
        with socket.create_connection(NGINX) as connection:
            path = f"/{self.random.randrange(self.files)}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb")
            status = answer.readline()
            if b" 200 " not in status:
                raise ValueError(f"{path}: {status.decode()}")
            while answer.read(65536):
                pass


def ask(file: str, seconds: str, connections: str, redis: str, keys: str, nginx: str, files: str) -> None:
    several = range(int(connections))
    asking = {
        "redis": [Redis(int(keys), number, float(redis) / len(several), float(seconds)) for number in several],
        "nginx": [Nginx(int(files), 100 + number, float(nginx) / len(several), float(seconds)) for number in several],
    }
    threads = [thread for group in asking.values() for thread in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = {name: sorted(answer for thread in group for answer in thread.answers) for name, group in asking.items()}
    write(file, json.dumps({"times": times, "failed": sum(thread.errors for thread in threads)}))


def write(path: str, text: str) -> None:
    """Writes a file that is complete once it has its name."""
    with open(path + ".unfinished", "w") as file:
        file.write(text)
    os.rename(path + ".unfinished", path)


def watch(path: str, seconds: str, *groups: str) -> None:
    with open(path, "w") as file:
        due = time.monotonic()
        while True:
            print(json.dumps(look(groups)), file=file, flush=True)
            due += float(seconds)
            time.sleep(max(0.0, due - time.monotonic()))


def look(groups: tuple[str, ...]) -> dict[str, object]:
    """The memory of the machine in bytes, its counters, and those of each group."""
    meminfo = pairs("/proc/meminfo")
    vmstat = pairs("/proc/vmstat")
    found = {}
    for group in groups:
        stat = pairs(f"{GROUPS}/{group}/memory.stat")
        found[group] = {
            "current": number(f"{GROUPS}/{group}/memory.current"),
            "swap": number(f"{GROUPS}/{group}/memory.swap.current"),
            "cpu_us": pairs(f"{GROUPS}/{group}/cpu.stat").get("usage_usec", 0),
            "stalled_us": stalled(f"{GROUPS}/{group}/memory.pressure"),
            **{name: stat.get(name, 0) for name in EVENTS},
        }
    return {
        "monotonic": round(time.monotonic(), 3),
        "meminfo": {name: meminfo[name + ":"] * 1024 for name in MEMINFO},
        "vmstat": {name: vmstat.get(name, 0) for name in VMSTAT},
        "groups": found,
    }


def pairs(path: str) -> dict[str, int]:
    """The lines of a file of names and numbers. A group that is gone has none."""
    try:
        with open(path) as file:
            return {words[0]: int(words[1]) for line in file if len(words := line.split()) >= 2}
    except OSError:
        return {}


def stalled(path: str) -> int:
    """Microseconds in which some task waited for memory."""
    try:
        with open(path) as file:
            return int(file.readline().split("total=")[1])
    except OSError:
        return 0


def number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except OSError:
        return 0


if __name__ == "__main__":
    {"ask": ask, "watch": watch}[sys.argv[1]](*sys.argv[2:])
