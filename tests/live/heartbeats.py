"""Many well-behaved pools in a process of their own, so that nothing that a test does delays their heartbeats.

``python -m tests.live.heartbeats 8080 1000 5`` says ``registered`` once all pools are, and when its input ends, as
JSON, how every heartbeat was answered and how long answers took. Each pool keeps one connection, as relays do.
"""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.live.replica import pool


class _Heartbeats:
    def __init__(self, port: int, pools: int, interval: float) -> None:
        self._port = port
        self._pools = pools
        self._interval = interval
        self._registered = 0
        self._statuses: Counter[int] = Counter()
        self._secs: list[float] = []
        self._connections = 0

    async def run(self) -> dict[str, object]:
        """Beat until the input ends."""
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, told.set)
        relays = [asyncio.create_task(self._relay(number)) for number in range(self._pools)]
        ended, _ = await asyncio.wait((loop.create_task(told.wait()), *relays), return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # a relay never ends by itself
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        secs = sorted(self._secs)
        shares = {name: round(secs[int(len(secs) * share)] * 1000, 1) for name, share in SHARES.items()}
        return {"statuses": self._statuses, "connections": self._connections, **shares}

    async def _relay(self, number: int) -> None:
        metadata = {f"key{place}": f"{number:08}" * 50 for place in range(8)}
        body = json.dumps(pool(f"c{number % 7}/n1/p{number}", metadata=metadata)).encode()
        head = (
            f"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        due = time.monotonic() + random.uniform(0, min(self._interval, 3))
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._connections += 1
                try:
                    while True:
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                        closes = await self._beat(reader, writer, head.encode() + body)
                        due = time.monotonic() + self._interval
                        if closes:
                            break
                finally:
                    writer.close()

    async def _beat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bool:
        begun = time.monotonic()
        status, answer = 0, b""
        try:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            status = int(answer.split()[1])
        finally:
            if not isinstance(sys.exception(), asyncio.CancelledError):
                self._statuses[status] += 1
                self._secs.append(time.monotonic() - begun)
        self._registered += 1
        if self._registered == self._pools:
            print("registered", flush=True)
        return b"connection: close" in answer.lower()


SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "slowest_ms": 0.999999}


class Heartbeats:
    """The process, as a test sees it."""

    def __init__(self, port: int, pools: int, interval: float) -> None:
        command = [sys.executable, "-m", "tests.live.heartbeats", str(port), str(pools), f"{interval:g}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def registered(self) -> None:
        """Wait until every pool is registered."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "registered\n", "the heartbeats ended"

    def report(self) -> dict[str, object]:
        """End, and give how every heartbeat was answered."""
        report, _ = self._process.communicate(timeout=20)
        return dict(json.loads(report))

    def kill(self) -> None:
        """End it, however far it is."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def heartbeats(port: int, pools: int, *, interval: float) -> Iterator[Heartbeats]:
    """Pools ``c0/n1/p0``, ``c1/n1/p1`` ... that beat until the end of the block."""
    beating = Heartbeats(port, pools, interval)
    try:
        yield beating
    finally:
        beating.kill()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_Heartbeats(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).run())))
