"""Consul as a peer: one server of its own on the loopback whose health endpoint lists all pools."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.load import CannotMeasure, Load, Peer, load_path
from tests.bench.processes import Server, started
from tests.live.signs import free_port

AT_ONCE = 32
LIST = "/v1/health/service/pool?passing=1"
LEADER = "/v1/status/leader"  # an empty text until there is one
_LIMITS = "limits { http_max_conns_per_client = 5000 } disable_update_check = true"
_LONGEST_VALUE = 500  # of service metadata, which may have 512 characters


def absent() -> str | None:
    """Why it cannot be measured here; None when it can."""
    return None if _binary() else "no consul here"


def _binary() -> str | None:
    return shutil.which(os.environ.get("BIN_CONSUL", "consul"))


@contextlib.contextmanager
def consul() -> Iterator[Server]:
    """One server that leads itself."""
    program, port = _binary(), free_port()
    if program is None:
        raise CannotMeasure("consul is missing: put it on the PATH, or name it in BIN_CONSUL")
    with tempfile.TemporaryDirectory(prefix="discovery-bench-") as directory:
        command = [program, "agent", "-server", "-bootstrap-expect", "1", "-bind", "127.0.0.1", "-log-level", "err"]
        command += ["-data-dir", f"{directory}/data", "-http-port", str(port), "-dns-port", "-1", "-grpc-port", "-1"]
        for name in ("server", "serf-lan", "serf-wan"):
            command += [f"-{name}-port", str(free_port())]
        with started("consul", [*command, "-hcl", _LIMITS], port, LEADER, Path(directory, "log")) as server:
            yield server


def service(number: int, body: bytes) -> bytes:
    """The catalog entry of one healthy pool that carries the text of its registration."""
    text = body.decode()
    cuts = range(0, len(text), _LONGEST_VALUE)
    entry = {
        "Node": f"node-{number}",
        "Address": f"10.0.{number // 250 % 250}.{number % 250}",
        "Service": {
            "ID": f"pool-{number}",
            "Service": "pool",
            "Port": 8080,
            "Meta": {f"part-{place}": text[start : start + _LONGEST_VALUE] for place, start in enumerate(cuts)},
        },
        "Check": {"CheckID": f"check-{number}", "Name": "ttl", "Status": "passing", "ServiceID": f"pool-{number}"},
    }
    return json.dumps(entry).encode()


def fill(port: int, bodies: Sequence[bytes]) -> None:
    """An entry for each body."""
    head = "PUT /v1/catalog/register HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n"
    peers = [Peer(port) for _ in range(AT_ONCE)]
    for start in range(0, len(bodies), AT_ONCE):
        some = range(start, min(start + AT_ONCE, len(bodies)))
        for peer, number in zip(peers, some, strict=False):
            body = service(number, bodies[number])
            peer.send(head.format(len(body)).encode() + body)
        for peer, _ in zip(peers, some, strict=False):
            status, answer = peer.answer()
            if status != 200:
                raise CannotMeasure(f"consul answered {status}: {answer[:200]!r}")
    for peer in peers:
        peer.close()


def load_list(port: int, connections: int, secs: float) -> Load:
    """Read all healthy pools again and again."""
    return load_path(port, connections, secs, LIST)
