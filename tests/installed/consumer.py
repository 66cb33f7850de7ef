"""What a user writes: a relay and a router, with and without an event loop. Strictly typed, without a cast.

Prints what it saw. It knows of the package only what an installation without extras has.
"""

import asyncio
import sys
from typing import assert_type

from discovery.client import Client, RouterSnapshot, Snapshot, sync
from discovery.model import Listing, Registration

POOL = Registration("c1", "n1", "from-python", "m", frontends=("http://10.0.0.1:8000",))


async def registered_and_followed(url: str) -> Snapshot:
    """The first list that has the pool."""
    async with Client([url]) as client, client.register(POOL), client.follow(model="m") as pools:
        assert_type(await client.routers(), RouterSnapshot)
        while not pools.snapshot.pools_for("m"):
            await pools.changed()
        assert_type(pools.snapshot, Snapshot)
        return pools.snapshot


def main(url: str) -> None:
    """Say what is listed while the pool is registered, and after it was deregistered."""
    snapshot = asyncio.run(registered_and_followed(url))
    (pool,) = snapshot.pools_for("m")
    assert_type(pool, Listing)
    print(pool.dgd_name, *pool.frontends)
    with sync.Client(url) as client:
        listed = client.list(model=["m", "other"])
        assert_type(listed, Snapshot)
        print([each.dgd_name for each in listed.pools])
        with client.register(POOL) as heartbeat, client.follow(model="m") as pools:
            heartbeat.settled(10)
            while not pools.snapshot.pools:
                pools.changed(timeout_secs=10)
            print([each.dgd_name for each in pools.snapshot.pools])


if __name__ == "__main__":
    main(sys.argv[1])
