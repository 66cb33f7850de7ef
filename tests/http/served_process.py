"""A process with nothing but the HTTP server in it, to look at from outside: memory, descriptors, signals.

``python -m tests.http.served_process '{"max_connections": 100}' 0`` writes its port and serves until it is ended.
"""

import asyncio
import contextlib
import json
import logging
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from discovery.http.server import HttpServer, Limits, run_async
from tests.http.sockets import App, Peer


class Process:
    def __init__(self, limits: dict[str, Any], descriptors: int) -> None:
        command = [sys.executable, "-m", "tests.http.served_process", json.dumps(limits), str(descriptors)]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        self.port = int(self.popen.stdout.readline())

    def peer(self, **options: Any) -> Peer:
        return Peer(self.port, **options)

    def answers(self) -> bool:
        """Whether a new connection is served."""
        with contextlib.suppress(AssertionError, ConnectionError), self.peer() as peer:
            peer.get("/ok")
            return peer.answer().body == b"ok"
        return False

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.popen.pid}/fd").iterdir()))

    def end(self) -> str:
        """End it and give what it logged."""
        self.popen.kill()
        return self.popen.communicate()[1]


@contextlib.contextmanager
def served_process(descriptors: int = 0, **limits: Any) -> Iterator[Process]:
    process = Process(limits, descriptors)
    try:
        yield process
    finally:
        process.end()


async def serve(limits: Limits) -> None:
    server = HttpServer(App(), host="127.0.0.1", port=0, limits=limits)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig()
    if descriptors := int(sys.argv[2]):
        # The soft limit is half of what is allowed: the server has to raise it by itself.
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))
    run_async(serve(Limits(**json.loads(sys.argv[1]))))
