"""When the store is asked about which lease: each alarm goes off once, in its time, also where many do together."""

import pytest

from discovery.model import PoolKey
from discovery.stores.alarms import ASK_AFTER_SECS, ONE_BY_ONE, Alarms


class Lease:
    def __init__(self) -> None:
        self.ends_at = 0.0
        self.alarm = 0


@pytest.mark.parametrize("together", [1, ONE_BY_ONE - 1, ONE_BY_ONE, ONE_BY_ONE + 1, 3 * ONE_BY_ONE])
def test_each_alarm_goes_off_once_and_none_early(together: int) -> None:
    alarms = Alarms()
    leases = {PoolKey("c", "n", f"p{number}"): Lease() for number in range(2 * together)}
    for number, (key, lease) in enumerate(leases.items()):
        alarms.set(lease, key, 10.0 if number % 2 else 20.0)
    first, second = list(leases)[1::2], list(leases)[::2]
    assert alarms.due(leases, 10.0) == []
    assert sorted(alarms.due(leases, 10.0 + 2 * ASK_AFTER_SECS)) == sorted(first)
    assert alarms.due(leases, 15.0) == []
    leases[second[0]].ends_at = 30.0  # renewed: asked about only then
    assert sorted(alarms.due(leases, 25.0)) == sorted(second[1:])
    assert alarms.due(leases, 31.0) == second[:1]
