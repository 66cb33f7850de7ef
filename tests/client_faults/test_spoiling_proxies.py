"""A proxy that breaks streams, or long answers too, for good: the client falls back, stays current and asks little."""

import pytest

from tests.client_faults.course import CURRENT_SECS, REQUESTS_PER_SEC, Course

SPOILED = [
    pytest.param("buffers", 0, id="answers are kept until they end"),
    pytest.param("buffers", 1, id="heads pass, and bodies are kept until they end"),
    pytest.param("no streams", 0, id="streams are not found"),
    pytest.param("no streams", 2, id="a page in place of streams"),
    pytest.param("no streams", 3, id="502 in place of streams"),
    pytest.param("cuts", 0, id="answers end after 0.3 s"),
    pytest.param("cuts", 1, id="answers are reset after 0.3 s"),
    pytest.param("strips", 0, id="no conditions and no waits pass"),
    pytest.param("passes", 0, id="nothing is spoiled"),
]


@pytest.mark.parametrize(("way", "count"), [("URLs", 2), ("balancer", 1)], ids=["two replicas", "one replica"])
@pytest.mark.parametrize(("how", "what"), SPOILED)
def test_changes_come_through_and_few_requests_are_made(how: str, what: int, way: str, count: int) -> None:
    latest_secs, requests_per_sec = Course(way, count).follow_changes(how, what, changes=12)
    assert latest_secs <= CURRENT_SECS
    assert requests_per_sec <= REQUESTS_PER_SEC
