"""What a relay is told when the store does not confirm its write."""

import pytest

from discovery import registrations
from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey, Registration
from discovery.registrations import Heartbeat
from discovery.stores import Deleted, Outcome
from discovery.stores.memory import MemoryStore
from discovery.stores.replica import SHORT_LEASE_SECS, Replica

KEY = PoolKey("c1", "n1", "p1")
BEAT = Heartbeat(KEY, registrations.encode(registrations.canonical(Registration(*KEY, model="m"))))


class Away(MemoryStore):
    """A store that confirms no write."""

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        raise Unavailable("away")

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        raise Unavailable("away")


@pytest.mark.parametrize(("lease", "spread"), [(3.0, 0), (SHORT_LEASE_SECS - 0.1, 0), (SHORT_LEASE_SECS, 1), (15.0, 1)])
async def test_a_relay_under_a_short_lease_comes_back_in_a_second_and_others_are_spread(
    lease: float, spread: int
) -> None:
    replica = Replica(
        Away(lease),
        lease_secs=lease,
        heartbeat_secs=lease / 3,
        max_pools=10,
        counters=Counters(),
        on_change=lambda *_: None,
    )
    for write in (replica.put(BEAT), replica.delete(KEY, None)):
        with pytest.raises(Unavailable) as not_confirmed:
            await write
        assert not_confirmed.value.retry_after_secs == spread
