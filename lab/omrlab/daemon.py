"""omr's daemon in a guest: its ledger, and its configuration for short runs."""

import json
import signal
from typing import Any

from .agent import AgentError
from .guest import Guest, GuestError, Process

CONFIG = "/etc/omr/omr.toml"
LEDGER = "/var/lib/omr/ledger.jsonl"

CLASSES = """
[[group]]
match = "fg"
class = "foreground"

[[group]]
match = "bg"
class = "background"
"""

QUICK = """\
# Everything as by default, except that a guest lives for minutes and not for weeks, and that it is
# swept whether memory is short or not.
{top}

[idle]
for = "{idle}"
again = "1s"
window = "2s"

[sweep]
after_boot = "0s"
after_resume = "1h"
"""


class Daemon:
    """A running `omr daemon`, as a context manager that ends it with SIGTERM. `through`: a command
    that starts the daemon. `whole`: all of its configuration, instead of one for short runs.
    """

    def __init__(
        self,
        guest: Guest,
        idle: str = "5s",
        top: str = "",
        config: str = "",
        through: tuple[str, ...] = (),
        whole: str | None = None,
    ) -> None:
        self.guest = guest
        if "goal =" not in top:
            top += '\ngoal = "free"'
        quick = QUICK.format(idle=idle, top=top) + config
        guest.write(CONFIG, quick if whole is None else whole, create=True)
        self.process: Process = guest.spawn(
            [*through, "omr", "daemon", "--foreground", "--config", CONFIG], group="omr.service"
        )
        try:
            guest.wait_for(self.answers, 60, "answer from omr daemon")
        except GuestError as error:
            raise GuestError(f"{error}: {self.process.stderr()}") from error

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill(signal.SIGTERM)

    def answers(self) -> bool:
        return self.guest.run(["omr", "status", "--json"], check=False).code == 0

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.guest.run(["omr", "status", "--json"]).json()
        return status

    def sweeps(self, group: str) -> list[dict[str, Any]]:
        """The ledger's entries about sweeps of one group."""
        return [entry for entry in self.ledger() if entry["kind"] == "sweep" and entry["group"].strip("/") == group]

    def ledger(self) -> list[dict[str, Any]]:
        """All entries of the ledger, oldest first."""
        try:
            text = self.guest.read(LEDGER)
        except AgentError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
