"""A Prometheus as a process of its own, and programs with metrics for it to scrape.

Debian's ``prometheus`` hands changed targets on every five seconds, counted from its start, whatever its configuration
says: a test that sees targets come and then go lasts for two of these.
"""

import http.server
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from tests.live.signs import await_sign, free_port


class Target(NamedTuple):
    """One target as Prometheus has it: what it scrapes, as which series, and out of which labels it made that."""

    job: str
    url: str
    health: str
    labels: dict[str, str]
    discovered: dict[str, str]


class Prometheus:
    """One server with a database of its own, which it forgets."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()
        (directory / "prometheus.yml").write_text(json.dumps(config))

    def start(self) -> "Prometheus":
        words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=debug"]
        words += [f"--web.listen-address=127.0.0.1:{self.port}", "--storage.tsdb.retention.time=1h"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(words, cwd=self.directory, stdout=log, stderr=log)
        await_sign(self._is_ready, 30, "Prometheus is ready")
        return self

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def targets(self, job: str) -> list[Target]:
        """The targets of a job that it scrapes at this moment."""
        found = self._ask("/api/v1/targets?state=active")["activeTargets"]
        return [
            Target(one["scrapePool"], one["scrapeUrl"], one["health"], one["labels"], one["discoveredLabels"])
            for one in found
            if one["scrapePool"] == job
        ]

    def series(self, query: str) -> list[dict[str, str]]:
        """The labels of the series that a query finds now."""
        found = self._ask(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        return [one["metric"] for one in found["result"]]

    def counter(self, name: str) -> float:
        """One of its own metrics, without labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Prometheus ended:\n{self.log[-3000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Scraped:
    """A program with metrics at one path; notes who asked for what."""

    def __init__(self, path: str = "/metrics") -> None:
        self.asked: list[str] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler(path))
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self, path: str) -> type[http.server.BaseHTTPRequestHandler]:
        scraped = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                scraped.asked.append(self.path)
                body = b'frontend_requests_total{model="its own word"} 7\n'
                self.send_response(200 if self.path == path else 404)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler
