"""The store in a table of DynamoDB: the whole partition is read each second, and leases are observed renewals."""

import time
from collections.abc import AsyncIterator, Callable, Sequence

from discovery.errors import Unavailable
from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Deleted, Event, Listed, Outcome, Remaining
from discovery.stores.dynamodb import table as door  # noqa: F401


class DynamoStore:
    """Registrations in one table, shared by every replica that names the same table and region, or its copies."""

    def __init__(
        self,
        *,
        table: str,
        region: str | None,
        endpoint_url: str | None,
        lease_secs: float,
        timeout_secs: float,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._region = region
        self._endpoint_url = endpoint_url
        self._lease_secs = lease_secs
        self._timeout_secs = timeout_secs
        self._counters = counters
        self._clock = clock

    async def put(self, key: PoolKey, value: bytes, lease_secs: float) -> Outcome:
        """See ``Store.put``."""
        raise Unavailable("the table is not opened yet")

    async def delete(self, key: PoolKey, instance_id: str | None) -> Deleted | None:
        """See ``Store.delete``."""
        raise Unavailable("the table is not opened yet")

    async def list_all(self) -> Listed:
        """See ``Store.list_all``."""
        raise Unavailable("the table is not opened yet")

    async def watch(self, listed: Listed) -> AsyncIterator[Event]:
        """See ``Store.watch``."""
        raise Unavailable("the table is not opened yet")
        yield listed  # type: ignore[unreachable]

    async def remaining(self, keys: Sequence[PoolKey]) -> Remaining:
        """See ``Store.remaining``."""
        raise Unavailable("the table is not opened yet")

    async def settle(self, reason: str, secs: float) -> None:
        """See ``Store.settle``."""

    async def end_settling(self, reason: str) -> None:
        """See ``Store.end_settling``."""

    def share(self, value_of: Callable[[PoolKey], bytes | None]) -> None:
        """See ``Store.share``."""

    async def close(self) -> None:
        """See ``Store.close``."""

    def describe(self) -> dict[str, object]:
        """See ``Store.describe``."""
        return {"kind": "dynamodb", "table": self._table, "region": self._region}
