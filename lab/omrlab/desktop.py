"""A Debian guest with a person at a desk: Chromium, vim and gcc in a session of logind, and Redis
in the background.

They come from Debian's packages. `omr follow presence` runs as the package's unit runs it.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

from .binaries import build
from .debian import LAB, DebianGuest, Variant
from .guest import MGLRU_SWITCH, MIB, Process
from .paths import GUEST as SCRIPTS
from .paths import REPOSITORY
from .services import VALUE, OmrService, compressed

PACKAGES = (
    *("chromium", "vim", "gcc", "libc6-dev", "redis-server"),
    *("dbus-user-session", "python3", "python3-websocket"),
)

VARIANT = Variant(
    "debian-desk",
    PACKAGES,
    mib=3072,
    hooks=('chroot "$1" systemctl --quiet disable redis-server', 'chroot "$1" useradd --create-home person'),
)

HERE = "/run/desk"
"""The files of the person and of the watch."""

USER = "user.slice/user-1000.slice"
"""The group of everything that the person runs."""

REDIS = "system.slice/redis-server.service"

OMR = "system.slice/omr.service"

UNIT = REPOSITORY / "packaging" / "systemd" / "omr-presence.service"


class Action(TypedDict):
    kind: str
    phase: int
    """Its phase of the day, from 0."""
    at: float
    """When it began, on the guest's monotonic clock in seconds."""
    ms: float


class Phase(TypedDict):
    kind: str
    at: float


class Day(TypedDict):
    """What the person did."""

    phases: list[Phase]
    actions: list[Action]


class DeskGuest(DebianGuest):
    """A guest with the programs of a desk and omr's."""

    def __init__(self, **options: Any) -> None:
        sysusers = REPOSITORY / "packaging" / "sysusers.d" / "omr.conf"
        files: dict[str, Path] = {name: build(name) for name in ("omr", "omr-daemon")}
        files |= {name: SCRIPTS / name for name in ("person.py", "clients.py")}
        files |= {UNIT.name: UNIT, sysusers.name: sysusers}
        super().__init__(variant=VARIANT, files=files, **options)

    def settle(self) -> None:
        super().settle()
        self.write(MGLRU_SWITCH, "y")
        self.shell(f"mkdir -p {HERE} && chmod 777 {HERE} && sed -i 's:/usr/bin/omr:{LAB}/omr:' {LAB}/{UNIT.name}")
        self.shell(f"cp {LAB}/{UNIT.name} /etc/systemd/system/ && systemd-sysusers {LAB}/omr.conf")
        self.shell("echo enable-debug-command yes >> /etc/redis/redis.conf && systemctl daemon-reload")

    def fill_redis(self, mib: int) -> None:
        """A service in the background with values that nobody reads."""
        self.run(["systemctl", "start", "redis-server"], timeout=120)
        self.wait_for(lambda: self.run(["redis-cli", "ping"], check=False).stdout.strip() == "PONG", 60, "Redis")
        self.run(["redis-cli", "debug", "populate", str(mib * MIB // 2048), "key", str(VALUE)], timeout=300)

    def start_omr(self, config: str) -> OmrService:
        """Starts the daemon and the word about who is there."""
        daemon = OmrService(self, config)
        self.run(["systemctl", "start", "omr-presence"], timeout=90)
        return daemon

    def watch(self, every_s: float) -> Process:
        """Records memory and counters until it is killed."""
        return self.spawn(
            ["python3", f"{LAB}/clients.py", "watch", f"{HERE}/watched", f"{every_s:g}", USER, REDIS, OMR]
        )

    def watched(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in compressed(self, f"{HERE}/watched").splitlines()]

    def sit_down(self, plan: dict[str, Any]) -> None:
        """The person logs in and starts the programs."""
        self.write(f"{HERE}/plan", json.dumps(plan), create=True)
        words = ["systemd-run", "--quiet", "--unit=desk", "--property=User=person", "--property=PAMName=login"]
        # The session has a terminal, and so a time of its last input.
        words += ["--setenv=XDG_RUNTIME_DIR=/run/user/1000", "--setenv=HOME=/home/person", "--pty"]
        self.spawn([*words, "python3", f"{LAB}/person.py", f"{HERE}/plan", HERE])
        self.wait_for(lambda: self.has_file("started"), 900, "programs of the desk", every=2)

    def has_file(self, name: str) -> bool:
        if self.run(["systemctl", "is-failed", "desk"], check=False).code == 0:
            raise SystemExit(f"the person has left: {self.journal('desk')}")
        return self.run(["test", "-e", f"{HERE}/{name}"], check=False).code == 0

    def wait_for_day(self, seconds: float) -> Day:
        """Lets the day pass, in which the lab asks the guest for nothing."""
        self.run(["sleep", f"{seconds:.0f}"], timeout=seconds + 120)
        self.wait_for(lambda: self.has_file("actions"), 300, "end of the day", every=2)
        day: Day = json.loads(compressed(self, f"{HERE}/actions"))
        return day
