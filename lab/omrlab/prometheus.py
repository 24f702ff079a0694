"""Prometheus, promtool and node_exporter of Debian, on loopback. They are unpacked, not installed:
their packages start services.
"""

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .packages import unpacked

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
READY = 60
"""Seconds within which a program answers on a busy host."""


def promtool(*words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    program = unpacked("prometheus") / "usr/bin/promtool"
    return subprocess.run([program, *words], input=stdin, capture_output=True, text=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


class Page:
    """A page on loopback that has the text of the moment, as a context manager."""

    def __init__(self, text: str) -> None:
        self.text = text
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", OPEN_METRICS)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "Page":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class Program:
    """A program that answers on a port of loopback, as a context manager that ends it."""

    def __init__(self, name: str, package: str, directory: Path, *options: str) -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.log = directory / f"{name}.log"
        program = unpacked(package) / "usr/bin" / name
        command = [str(program), f"--web.listen-address={self.address}", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_it_answers(self, path: str) -> None:
        began = time.monotonic()
        while True:
            try:
                get(f"http://{self.address}{path}")
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None or time.monotonic() - began > READY:
                    raise RuntimeError(f"{self.name} does not answer: {self.log.read_text()[-2000:]}") from None
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)


class NodeExporter(Program):
    """node_exporter with the files of a directory, and nothing else."""

    def __init__(self, directory: Path) -> None:
        options = ("--collector.disable-defaults", "--collector.textfile")
        super().__init__(
            "prometheus-node-exporter",
            "prometheus-node-exporter",
            directory,
            *options,
            f"--collector.textfile.directory={directory}",
        )

    def __enter__(self) -> "NodeExporter":
        self.wait_until_it_answers("/metrics")
        return self

    def metrics(self) -> str:
        return get(f"http://{self.address}/metrics")


class Prometheus(Program):
    """Prometheus that asks these targets, by job, once a second."""

    def __init__(self, directory: Path, targets: Mapping[str, str]) -> None:
        jobs = [{"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()]
        # JSON is YAML.
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (directory / "prometheus.yml").write_text(json.dumps(config))
        super().__init__(
            "prometheus",
            "prometheus",
            directory,
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
        )

    def __enter__(self) -> "Prometheus":
        self.wait_until_it_answers("/-/ready")
        return self

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The values of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        answer = json.loads(get(f"http://{self.address}/api/v1/query?{query}"))
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found
