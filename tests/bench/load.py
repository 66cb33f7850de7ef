"""What is sent: registrations of one kilobyte, requests over bare sockets, and load through wrk.

The bodies are in the form in which the service lists them, so that the very same bytes serve the product and a
reference.
"""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

REGISTRATION_BYTES = 1024
MARK = re.compile(rb'"mark-([0-9]{8})-end"')
IN_FLIGHT = 16


class CannotMeasure(Exception):
    """The run cannot go on; the text is one line for people."""


def require_wrk() -> str:
    """The path of wrk."""
    found = shutil.which(os.environ.get("BIN_WRK", "wrk"))
    if found is None:
        raise CannotMeasure("wrk is missing; install it with: apt-get install -y wrk")
    return found


def mark(number: int) -> bytes:
    """The text by which one change is found again in a list, a stream or an announcement."""
    return b'"mark-%08d-end"' % number


def registration(index: int, number: int = 0) -> bytes:
    """The registration of pool ``index`` that carries mark ``number``; always 1,024 bytes."""
    body = {
        "cluster_id": f"cluster-{index % 40:02d}",
        "namespace": "production",
        "dgd_name": f"pool-{index:06d}",
        "model": f"meta-llama/Llama-3.1-{index % 16:02d}B-Instruct",
        "relays": [f"http://10.{index % 40}.3.{part}:5561" for part in (7, 8)],
        "frontends": [f"http://10.{index % 40}.4.{part}:8000" for part in range(10, 16)],
        "capabilities": ["chat", "tools"],
        "capacity": [
            {"resource": "kv-blocks", "quantity": 65536, "unit": "block"},
            {"resource": "nvidia.com/gpu", "quantity": 16},
        ],
        "location": {"region": "eu-west-1", "zone": "euw1-az2"},
        "instance_id": f"relay-{index:06d}",
        "metadata": {"filling": "", "mark": mark(number).decode().strip('"')},
    }
    missing = REGISTRATION_BYTES - len(_encode(body))
    body["metadata"]["filling"] = "x" * missing  # type: ignore[index]
    return _encode(body)


def _encode(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def post_request(body: bytes) -> bytes:
    """A whole ``POST /pools``."""
    head = b"POST /pools HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def get_request(path: str, *headers: str) -> bytes:
    """A whole GET."""
    lines = [f"GET {path} HTTP/1.1", "Host: bench", *headers, "", ""]
    return "\r\n".join(lines).encode()


class Peer:
    """One kept connection to an HTTP server on the loopback; one request at a time, and no work beyond that."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        """Send a whole request."""
        self.socket.sendall(request)

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer, which has to have a length."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        found = re.search(rb"\r\ncontent-length: *([0-9]+)", data[:end], re.IGNORECASE)
        length = int(found[1]) if found else 0
        pieces, missing = [data[end + 4 :]], length - (len(data) - end - 4)
        while missing > 0:
            pieces.append(self._more())
            missing -= len(pieces[-1])
        return int(data[9:12]), b"".join(pieces)

    def ask(self, request: bytes) -> bytes:
        """The body of an answer that has to be 200."""
        self.send(request)
        status, body = self.answer()
        if status != 200:
            raise CannotMeasure(f"an answer was {status}: {body[:200]!r}")
        return body

    def _more(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise CannotMeasure("the server closed the connection in the middle of an answer")
        return data

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def register_all(port: int, bodies: Sequence[bytes]) -> None:
    """Register each body once, some at a time."""
    peers = [Peer(port) for _ in range(IN_FLIGHT)]
    for start in range(0, len(bodies), IN_FLIGHT):
        some = bodies[start : start + IN_FLIGHT]
        for peer, body in zip(peers, some, strict=False):
            peer.send(post_request(body))
        for peer, _ in zip(peers, some, strict=False):
            status, answer = peer.answer()
            if status != 200:
                raise CannotMeasure(f"a registration was answered with {status}: {answer[:200]!r}")
    for peer in peers:
        peer.close()


@dataclass(frozen=True)
class Load:
    """What one run of wrk saw; the latency is in milliseconds."""

    per_sec: float
    requests: int
    p99: float
    p50: float = math.nan
    read_mb: float = math.nan


_WRK_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_wrk(text: str) -> Load:
    """The figures in wrk's report; ``CannotMeasure`` when a request failed or the report is none."""
    done = re.search(r"(\d+) requests in ", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    late, middle = (re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", text) for share in (99, 50))
    if done is None or rate is None or late is None or middle is None:
        raise CannotMeasure(f"wrk gave no figures: {text[-300:]!r}")
    if failed := re.search(r"Non-2xx or 3xx responses: \d+|Socket errors: .*", text):
        raise CannotMeasure(f"wrk saw failures: {failed[0]}")
    p99, p50 = (float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]] for found in (late, middle))
    read = re.search(r"([\d.]+)([KMGT]?)B read", text)
    read_mb = float(read[1]) * _WRK_UNITS[read[2]] / 1e6 if read else math.nan
    return Load(float(rate[1]), int(done[1]), p99, p50, read_mb)


def _wrk(port: int, connections: int, secs: float, *more: str, path: str = "/pools") -> Load:
    words = ["-t1", f"-c{connections}", f"-d{max(1, round(secs))}s", "--timeout", "30s", "--latency", *more]
    url = f"http://127.0.0.1:{port}{path}"
    done = subprocess.run([require_wrk(), *words, url], capture_output=True, text=True, check=False)
    return parse_wrk(done.stdout + done.stderr)


def load_get(port: int, connections: int, secs: float, headers: Iterable[tuple[str, str]] = ()) -> Load:
    """GET /pools again and again."""
    return _wrk(port, connections, secs, *(word for name, value in headers for word in ("-H", f"{name}: {value}")))


def load_path(port: int, connections: int, secs: float, path: str) -> Load:
    """GET any path again and again."""
    return _wrk(port, connections, secs, path=path)


# Whole requests are made once, before the first is sent: making them costs more than the fastest reference's answer.
_POST_SCRIPT = """
local requests, count, next = {}, 0, 0
function init(arguments)
  for body in io.lines("%s") do
    count = count + 1
    requests[count] = wrk.format("POST", "%s", {["Content-Type"] = "application/json"}, body)
  end
end
function request()
  next = next %% count + 1
  return requests[next]
end
"""


def load_post(port: int, connections: int, secs: float, bodies: Sequence[bytes]) -> Load:
    """Register with the bodies one after the other, from the first again after the last."""
    return load_requests(port, connections, secs, "/pools", bodies)


def load_requests(port: int, connections: int, secs: float, path: str, bodies: Sequence[bytes]) -> Load:
    """POST the bodies to any path in the same way."""
    with tempfile.TemporaryDirectory() as directory:
        lines, script = Path(directory, "bodies"), Path(directory, "post.lua")
        lines.write_bytes(b"\n".join(bodies) + b"\n")
        script.write_text(_POST_SCRIPT % (lines, path))
        return _wrk(port, connections, secs, "-s", str(script))
