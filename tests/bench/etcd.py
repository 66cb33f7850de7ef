"""etcd as a peer: one member of its own on the loopback, asked through its JSON gateway and through gRPC.

Where there is no etcd, or no h2load for gRPC, ``absent`` says so and the rows beside it are not measured. The gateway
speaks JSON with keys and values in base64; keys here are chosen so that their base64 is readable. gRPC is a message of
a few fields over HTTP/2, for which a dozen lines do.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.load import CannotMeasure, Load, Peer, load_requests
from tests.bench.processes import Server, started
from tests.live.signs import free_port

LEASES = 500
LEASE_SECS = 600
AT_ONCE = 64
PUT = "/v3/kv/put"
KEY_MARKS = re.compile(rb'"key":"pool([0-9]{8})"')
GONE_MARKS = re.compile(rb'"type":"DELETE","kv":\{"key":"pool([0-9]{8})"')
_EVERYTHING = (b"\0", b"\0")  # etcd's words for the range of all keys


def absent(program: str = "etcd") -> str | None:
    """Why etcd, or ``h2load`` for its gRPC, cannot be measured here; None when it can."""
    missing = next((name for name in ("etcd", program) if _binary(name) is None), None)
    return missing and f"no {missing} here"


def _binary(name: str) -> str | None:
    return shutil.which(os.environ.get(f"BIN_{name.upper()}", name))


def version() -> str | None:
    """What the program says of itself."""
    program = _binary("etcd")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"etcd Version: (\S+)", said)
    return found and found[1]


@contextlib.contextmanager
def etcd() -> Iterator[Server]:
    """One member that is healthy."""
    program, port, peers = _binary("etcd"), free_port(), free_port()
    if program is None:
        raise CannotMeasure("etcd is missing; install it with: apt-get install -y etcd-server")
    urls = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"]
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory:
        command = [program, "--data-dir", f"{directory}/data", "--log-level", "error"]
        command += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        command += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        command += ["--initial-cluster", f"default={urls[1]}", "--quota-backend-bytes", str(8 << 30)]
        with started("etcd", command, port, "/health", Path(directory, "log")) as server:
            yield server


# ---- the gateway


def key(number: int) -> str:
    """The base64 of a key, in which the number can be read: ``pool00000042``."""
    return f"pool{number:08d}"


def put_body(number: int, value: bytes, lease: str | None = None) -> bytes:
    """The body of a put through the gateway."""
    fields = {"key": key(number), "value": base64.b64encode(value).decode()}
    return _json(fields if lease is None else {**fields, "lease": lease})


def gateway_request(path: str, body: bytes) -> bytes:
    """A whole request to the gateway."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def watch_greeting() -> bytes:
    """What a watcher of all keys sends to the gateway."""
    start, end = (base64.b64encode(text).decode() for text in _EVERYTHING)
    return gateway_request("/v3/watch", _json({"create_request": {"key": start, "range_end": end}}))


def grant(port: int, count: int, secs: int = LEASE_SECS) -> list[str]:
    """That many leases."""
    peer = Peer(port)
    try:
        request = gateway_request("/v3/lease/grant", _json({"TTL": secs}))
        return [json.loads(peer.ask(request))["ID"] for _ in range(count)]
    finally:
        peer.close()


def fill(port: int, bodies: Sequence[bytes]) -> None:
    """A key for each body."""
    with _peers(port) as peers:
        for some in _batches(len(bodies)):
            _ask(peers, [gateway_request(PUT, put_body(number, bodies[number])) for number in some])


def put_with_leases(port: int, count: int, secs: int) -> dict[int, int]:
    """Keys with a lease each, and by number when each lease ends: so long after the answer that granted it."""
    due_ns, lease = dict[int, int](), gateway_request("/v3/lease/grant", _json({"TTL": secs}))
    with _peers(port) as peers:
        for some in _batches(count):
            granted = [json.loads(answer)["ID"] for answer in _ask(peers, [lease] * len(some))]
            now = time.monotonic_ns()
            due_ns |= dict.fromkeys(some, now + secs * 1_000_000_000)
            puts = zip(some, granted, strict=True)
            _ask(peers, [gateway_request(PUT, put_body(number, b"x", lease_id)) for number, lease_id in puts])
    return due_ns


@contextlib.contextmanager
def _peers(port: int) -> Iterator[list[Peer]]:
    peers = [Peer(port) for _ in range(AT_ONCE)]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


def _batches(count: int) -> Iterator[range]:
    for start in range(0, count, AT_ONCE):
        yield range(start, min(start + AT_ONCE, count))


def _ask(peers: Sequence[Peer], requests: Sequence[bytes]) -> list[bytes]:
    """The answers to as many requests at once as there are connections."""
    asked = peers[: len(requests)]
    for peer, request in zip(asked, requests, strict=True):
        peer.send(request)
    answers = [peer.answer() for peer in asked]
    for status, answer in answers:
        if status != 200:
            raise CannotMeasure(f"etcd answered {status}: {answer[:200]!r}")
    return [answer for _, answer in answers]


def load_range(port: int, connections: int, secs: float) -> Load:
    """Read all keys again and again through the gateway."""
    start, end = (base64.b64encode(text).decode() for text in _EVERYTHING)
    return load_requests(port, connections, secs, "/v3/kv/range", [_json({"key": start, "range_end": end})])


def load_put(port: int, connections: int, secs: float, bodies: Sequence[bytes], leases: Sequence[str]) -> Load:
    """Put the bodies one after the other through the gateway, under leases as registrations are."""
    requests = [put_body(number, body, leases[number % len(leases)]) for number, body in enumerate(bodies)]
    return load_requests(port, connections, secs, PUT, requests)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ---- gRPC


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message of numbered fields that are bytes or whole numbers."""
    text = b""
    for number, value in fields:
        if isinstance(value, bytes):
            text += _varint(number << 3 | 2) + _varint(len(value)) + value
        else:
            text += _varint(number << 3) + _varint(value)
    return text


def _varint(number: int) -> bytes:
    text = b""
    while number > 0x7F:
        text += bytes([number & 0x7F | 0x80])
        number >>= 7
    return text + bytes([number])


def grpc_frame(text: bytes) -> bytes:
    """A message as it travels: not compressed, with its length."""
    return b"\0" + len(text).to_bytes(4, "big") + text


def range_message() -> bytes:
    """Read all keys."""
    return message((1, _EVERYTHING[0]), (2, _EVERYTHING[1]))


def put_message(body: bytes, lease: str) -> bytes:
    """Put one key under a lease."""
    return message((1, base64.b64decode(key(0))), (2, body), (3, int(lease)))


def grpc_watch_greeting() -> bytes:
    """All that a watcher of all keys sends over HTTP/2, with room for whatever comes back."""
    create = message((1, message((1, _EVERYTHING[0]), (2, _EVERYTHING[1]))))
    head = b"\x83\x86" + b"\x04" + _text(b"/etcdserverpb.Watch/Watch") + b"\x01" + _text(b"bench")
    head += b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers")
    most = 2**31 - 1
    settings = _frame(4, 0, 0, b"\x00\x04" + most.to_bytes(4, "big")) + _frame(4, 1, 0, b"")
    window = _frame(8, 0, 0, (most - 65_535).to_bytes(4, "big"))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + settings + window + _frame(1, 4, 1, head) + _frame(0, 0, 1, grpc_frame(create))


def _text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def load_grpc(port: int, connections: int, secs: float, method: str, body: bytes, least_bytes: int = 0) -> Load:
    """One call again and again, one at a time on each connection; answers have to carry ``least_bytes``."""
    program = _binary("h2load")
    if program is None:
        raise CannotMeasure("h2load is missing; install it with: apt-get install -y nghttp2-client")
    with tempfile.TemporaryDirectory() as directory:
        sent, log = Path(directory, "message"), Path(directory, "log")
        sent.write_bytes(grpc_frame(body))
        words = ["-c", str(connections), "-m1", "-t1", "-D", str(max(1, round(secs))), "-w24", "-W24", "-d", str(sent)]
        words += ["-H", "content-type: application/grpc", "-H", "te: trailers", "--log-file", str(log)]
        command = [program, *words, f"http://127.0.0.1:{port}/etcdserverpb.{method}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = log.read_text() if log.exists() else ""
    return parse_h2load(done.stdout + done.stderr, lines, least_bytes)


def parse_h2load(report: str, log: str, least_bytes: int) -> Load:
    """The figures of h2load; ``CannotMeasure`` when calls failed or answers were too short to be what is asked for."""
    rate = re.search(r"finished in \S+, ([\d.]+) req/s", report)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", report)
    data = re.search(r"traffic: .*?\((\d+)\) data", report) or re.search(r"\((\d+)\) data", report)
    took = sorted(int(line.split("\t")[2]) for line in log.splitlines() if line.split("\t")[1] == "200")
    if rate is None or counts is None or data is None or not took:
        raise CannotMeasure(f"h2load gave no figures: {report[-300:]!r}")
    succeeded, failed, _ = map(int, counts.groups())  # those that the end of the time cut off count as errored
    if failed or int(data[1]) < least_bytes * succeeded:
        raise CannotMeasure(f"h2load saw {failed} failures and {int(data[1]):,} bytes in {succeeded} answers")
    p50, p99 = (took[min(len(took) - 1, int(len(took) * share))] / 1e3 for share in (0.5, 0.99))
    return Load(float(rate[1]), succeeded, p99, p50)
