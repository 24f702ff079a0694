"""A small client for QEMU's control protocol (QMP): one command at a time, events kept."""

import json
import socket
from pathlib import Path
from typing import Any


class QmpError(Exception):
    """QEMU refused a command."""


class Qmp:
    def __init__(self, path: Path, timeout: float = 60) -> None:
        self.events: list[dict[str, Any]] = []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.receive()  # QEMU's greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        request = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            message = self.receive()
            if "return" in message:
                return message["return"]
            if "error" in message:
                raise QmpError(f"{command}: {message['error']['desc']}")
            self.events.append(message)

    def receive(self) -> dict[str, Any]:
        line = self.lines.readline()
        if not line:
            raise QmpError("QEMU is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self.lines.close()
        self.socket.close()
