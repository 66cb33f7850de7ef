"""The table of limits in the documents has every limit, with the numbers that the code has."""

import re

import pytest

from discovery import registration_rules, settings
from discovery.commands.serve import LAST_GRACE_SECS
from discovery.ending import SAME_WISH_SECS
from discovery.http import limits, own_answers, requests, server
from discovery.mcs import service
from discovery.stores.dynamodb import items
from tests.documents import read, rows

PAGE = read("docs/limits.md")
TABLE = {
    what: (limit, beyond) for what, limit, beyond in rows(PAGE.partition("## The limits")[2].partition("\n## ")[0])
}
DEFAULTS = {flag.name: flag.default for flag in settings.flags("serve")}
LIMITS = re.compile(r"--(max-|rate-|.*-timeout-|keep-alive-)")


def test_every_flag_that_is_a_limit_stands_there_with_its_default() -> None:
    written = dict(re.findall(r"`(--[-a-z]+)` `(\d+)`", PAGE))
    assert written == {name: DEFAULTS[name] for name in written}
    assert set(written) == {name for name in DEFAULTS if LIMITS.match(name)}


@pytest.mark.parametrize(
    ("what", "numbers"),
    [
        (
            "relays, frontends, entries of `metadata` in a registration",
            [registration_rules.MAX_RELAYS, registration_rules.MAX_FRONTENDS, registration_rules.MAX_METADATA],
        ),
        ("endpoints of one Service in EndpointSlices", [service.MAX_ENDPOINTS]),
        (
            "key of a pool and size of its item, with DynamoDB",
            [items.MAX_SORT_KEY_BYTES, items.MAX_ITEM_BYTES // 1024],
        ),
        ("time for a TLS handshake", [limits.Limits().handshake_timeout_secs]),
        ("time of a long poll (`Prefer: wait`)", [requests.MAX_WAIT_SECS]),
        ("requests that wait on one connection", [limits.MAX_PIPELINED]),
        (
            "answers of `/registrations`, of `/status`, of `/sd/prometheus`, and long filtered lists as gzip, that wait"
            " for their readers",
            [own_answers.MOST_BYTES >> 20],
        ),
    ],
)
def test_what_is_no_flag_has_the_number_of_the_code(what: str, numbers: list[int]) -> None:
    assert re.findall(r"`(\d+)`", TABLE[what][0]) == [str(number) for number in numbers]


def test_what_the_text_says_of_connections_and_of_the_end_is_so() -> None:
    assert f"at most {server.SPARE_CONNECTIONS}" in TABLE["connections"][1]
    assert (LAST_GRACE_SECS, SAME_WISH_SECS) == (1, 0.25)
    assert "one more second" in PAGE
    assert "a quarter of a second" in PAGE
