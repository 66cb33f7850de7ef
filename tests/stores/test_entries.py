"""What is known of each pool: what is told of values that are none."""

import logging

import pytest

from discovery.metrics import Counters
from discovery.model import PoolKey
from discovery.stores import Health, Listed, Stored
from discovery.stores.alarms import Alarms
from discovery.stores.entries import Entries
from discovery.stores.epochs import Epochs
from discovery.stores.mass_loss import MassLoss

KEY = PoolKey("c", "n", "p")


def test_a_value_that_is_no_registration_is_told_once_however_often_it_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    counters = Counters()
    mass_loss = MassLoss(lease_secs=15.0, heartbeat_secs=5.0, hold_secs=0.0, local_cluster_id=None)
    entries = Entries(Epochs(), Alarms(), mass_loss, counters, lambda: 100.0)
    for value in (b"{}", b"{}", b"[]", b"[]", b"{}"):
        listed = Listed(Health(99.0, "epoch", 1, None), {KEY: Stored(value, 10.0)})
        assert entries.listed(listed, {}) == []
    assert len(caplog.records) == 3
    assert dict(counters.registrations_ignored.values()) == {(): 3}
