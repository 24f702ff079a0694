"""The host's end of the agent's serial port (the guest's end: crates/guest/src/agent.rs).

A message is a line `@CRC32 JSON`, and all other lines are dropped. A request without an answer is
sent again under the same id. The agent executes it once and answers each time. Bytes travel as
latin-1 text.
"""

import json
import socket
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELLO = 0
"""The id of the message an agent sends when it starts."""


class AgentError(Exception):
    """The guest could not execute a request."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class AgentSilent(Exception):
    """No answer in time."""


def encode(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return b"\n@%08x %s\n" % (zlib.crc32(data), data)


def decode(line: bytes) -> dict[str, Any] | None:
    """The message in a line. None where the line is no intact frame."""
    mark, _, data = line.strip().partition(b" ")
    if len(mark) != 9 or not mark.startswith(b"@"):
        return None
    try:
        return json.loads(data) if int(mark[1:], 16) == zlib.crc32(data) else None
    except ValueError:
        return None


class Pending:
    """A request on its way."""

    def __init__(self, agent: "Agent", message: dict[str, Any]) -> None:
        self.agent = agent
        self.message = message
        self.reply: dict[str, Any] | None = None
        self.answered = threading.Event()
        self.answered_at = 0.0

    def result(self, timeout: float = 60, resend: float = 5) -> dict[str, Any]:
        """Waits for the answer, and sends the request again every `resend` seconds."""
        sent = time.monotonic()
        deadline = sent + timeout
        while not self.agent.wait(self.answered, min(deadline, sent + resend)):
            if time.monotonic() >= deadline:
                raise AgentSilent(f"no answer in {timeout:g} s to {self.message}")
            self.agent.send(self.message)
            sent = time.monotonic()
        assert self.reply is not None
        if "error" in self.reply:
            raise AgentError(self.reply["error"], self.reply.get("errno"))
        answer: dict[str, Any] = self.reply["ok"]
        return answer


class Agent:
    """Talks to one guest, over one connection per boot.

    `check_on` raises when no answer can come any more, so that no request waits in vain.
    """

    def __init__(self, check_on: Callable[[], None]) -> None:
        self.check_on = check_on
        # Ids grow over the guest's life. Otherwise an agent could take a new request for an old
        # one.
        self.last_id = HELLO
        self.pending: dict[int, Pending] = {}
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None
        self.hellos = 0
        self.started = threading.Event()

    def connect(self, path: Path) -> None:
        self.disconnect()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.started.clear()
        threading.Thread(target=self.listen, args=(self.socket,), daemon=True).start()

    def disconnect(self) -> None:
        if self.socket:
            self.socket.close()
            self.socket = None

    def wait(self, event: threading.Event, deadline: float) -> bool:
        """True when the event came before `deadline`."""
        while not event.wait(min(1.0, max(0.0, deadline - time.monotonic()))):
            self.check_on()
            if time.monotonic() >= deadline:
                return False
        return True

    def listen(self, connection: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                return
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = decode(line)
                if message:
                    self.receive(message)

    def receive(self, message: dict[str, Any]) -> None:
        if message["id"] == HELLO:
            self.hellos += 1
            self.started.set()
            return
        with self.lock:
            pending = self.pending.pop(message["id"], None)
        if pending:
            pending.reply = message
            pending.answered_at = time.monotonic()
            pending.answered.set()

    def submit(self, operation: str, **fields: Any) -> Pending:
        """Sends a request without waiting for its answer."""
        with self.lock:
            self.last_id += 1
            message = {"id": self.last_id, "op": operation, **fields}
            pending = Pending(self, message)
            self.pending[message["id"]] = pending
        self.send(message)
        return pending

    def call(self, operation: str, timeout: float = 60, **fields: Any) -> dict[str, Any]:
        return self.submit(operation, **fields).result(timeout)

    def send(self, message: dict[str, Any]) -> None:
        try:
            if self.socket:
                self.socket.sendall(encode(message))
        except OSError:
            pass  # Between two boots. The request is sent again later.
