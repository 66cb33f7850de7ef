"""Writers that count: each pool's POSTs carry growing numbers, one after the other, whatever they bring."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Sequence

from tests.live.faults.load import registration
from tests.live.faults.records import Beat, Life
from tests.live.faults.wire import Wire
from tests.live.replica import Replica
from tests.live.tcp_proxy import TcpProxy

PATIENCE_SECS = 3.0
WRITERS = 100
PAUSE_SECS = 0.01


class Writers:
    """``lives`` has what each pool's relay knows after ``run``, ``beats`` all answers."""

    def __init__(self, replicas: Sequence[Replica], *, pools: int, writes: int) -> None:
        self.lives = {name: Life(name) for name in (f"c{number % 10}/n1/p{number}" for number in range(pools))}
        self.beats: list[Beat] = []
        self._replicas = list(replicas)
        self._rounds = writes // pools

    async def run(self) -> None:
        """All writes, many at a time, never two of one pool."""
        shares = [list(self.lives.values())[first::WRITERS] for first in range(WRITERS)]
        await asyncio.gather(*(self._write(number, share) for number, share in enumerate(shares)))

    async def _write(self, number: int, share: list[Life]) -> None:
        with contextlib.ExitStack() as open_wires:
            wires = [open_wires.enter_context(contextlib.closing(Wire(each.port))) for each in self._replicas]
            for round_ in range(self._rounds):
                for life in share:
                    life.version += 1
                    place = (number + round_) % len(wires)
                    beat = await self._post(life, wires[place], self._replicas[place].name)
                    life.beat(beat)
                    self.beats.append(beat)
                    await asyncio.sleep(PAUSE_SECS)

    async def _post(self, life: Life, wire: Wire, replica: str) -> Beat:
        sent, status = time.monotonic(), 0
        with contextlib.suppress(OSError, TimeoutError):
            reply = await wire.ask(registration(life.name, life.version), PATIENCE_SECS)
            status = reply.status
        return Beat(life.name, life.version, sent, time.monotonic(), replica, status)


async def unsettle(proxy: TcpProxy, chance: random.Random) -> None:
    """Cut, freeze, delay and thin out the connections of a proxy until cancelled; then all is well again."""
    try:
        while True:
            secs = chance.uniform(0.02, 0.2)
            match chance.choice(["cut", "freeze", "swallow", "delay", "trickle"]):
                case "cut":
                    await asyncio.to_thread(proxy.cut)
                case "freeze":
                    await asyncio.to_thread(proxy.freeze)
                    secs *= 3
                case "swallow":
                    await asyncio.to_thread(proxy.swallow)
                    secs *= 3
                case "delay":
                    proxy.delay_answers(0.1)
                case "trickle":
                    proxy.trickle(20_000)
            await asyncio.sleep(secs)
            await asyncio.to_thread(_heal, proxy)
            await asyncio.sleep(chance.uniform(0, 0.1))
    finally:
        _heal(proxy)


def _heal(proxy: TcpProxy) -> None:
    proxy.thaw()
    proxy.delay_answers(0)
    proxy.trickle(0)


def listed(replica: Replica) -> dict[str, int]:
    """What a replica lists, each pool with its number."""
    entries = json.loads(replica.pools().body)["pools"]
    return {
        f"{entry['cluster_id']}/{entry['namespace']}/{entry['dgd_name']}": int(entry["metadata"]["version"])
        for entry in entries
    }
