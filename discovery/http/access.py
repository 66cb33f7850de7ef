"""Who may ask how much: registrations per second and identity.

Plain ASGI beside the routes. Without tokens the identity is the peer's address.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from discovery.errors import Rejected
from discovery.http.answers import Scope

BURST_SECS = 10
REMEMBERED = 20_000


class RateLimit:
    """A bucket of registrations per identity, refilled at ``per_second``; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, scope: Scope) -> None:
        """Count one registration; raises ``Rejected`` (429) where the bucket is empty."""
        if not self._per_second:
            return
        client = scope.get("client")
        identity, now = client[0] if client else "", self._clock()
        full = max(1.0, self._per_second * BURST_SECS)
        level, filled_at = self._buckets.pop(identity, (full, now))
        level = min(full, level + (now - filled_at) * self._per_second)
        allowed = level >= 1
        self._buckets[identity] = (level - 1 if allowed else level, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = math.ceil((1 - level) / self._per_second)
            detail = f"More than {self._per_second:g} registrations a second came from {identity} (--rate-limit)."
            raise Rejected(429, "Too Many Requests", detail, headers=(("retry-after", str(wait)),))
