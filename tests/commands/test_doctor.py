"""``discovery doctor``: what it asks for, what it prints for whom, honest exit codes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from discovery.client import Client, diagnosis
from discovery.errors import Unavailable
from discovery.model import PoolKey
from tests.commands.program import on_terminal, ran
from tests.fake_service import Canned, FakeService, until
from tests.live.signs import free_port

LISTED: dict[str, Any] = {
    "cluster_id": "c1",
    "namespace": "n1",
    "dgd_name": "fine",
    "listed": True,
    "registered": True,
    "ready": True,
    "frontends": 2,
    "cause": "listed",
    "text": "the pool c1/n1/fine is listed with 2 frontends",
    "facts": ["registration: lives", "relays: 1 slice"],
    "lease_left_secs": 12.34,
}
MISSING: dict[str, Any] = LISTED | {
    "dgd_name": "lost",
    "listed": False,
    "ready": False,
    "frontends": 0,
    "cause": "not_exported",
    "text": "check that lost-pool-relay is exported: the registered pool c1/n1/lost is not listed",
    "facts": ["registration: lives, for \x1b[2Jm", "relays: none"],
    "lease_left_secs": None,
}
WHOLE: dict[str, Any] = {
    "complete": True,
    "stage": "ready",
    "detail": "the list is complete",
    "incomplete_because": None,
    "problems": [],
    "explained": [LISTED, MISSING],
}


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService() as fake:
        yield fake


async def asked(service: FakeService, *words: str, status: dict[str, Any] = WHOLE, **more: Any) -> tuple[int, str, str]:
    service.can("GET", Canned(200, status | more))
    return await ran("doctor", "--url", service.url, *words)


async def test_each_pool_has_one_line_and_those_that_are_not_listed_come_first(service: FakeService) -> None:
    code, out, err = await asked(service)
    assert (code, out, err) == (1, f"{MISSING['text']}\n{LISTED['text']}\n", "")
    assert service.seen[0].target == "/status?pool=%2A"


async def test_it_is_good_news_when_all_are_listed(service: FakeService) -> None:
    assert await asked(service, explained=[LISTED]) == (0, f"{LISTED['text']}\n", "")


async def test_no_pool_at_all_is_said_and_no_bad_news(service: FakeService) -> None:
    code, out, err = await asked(service, explained=[])
    assert (code, out) == (0, "")
    assert err == "discovery: no pool is known: nobody registered one here, and no relay is imported\n"


async def test_no_pool_known_to_a_service_that_does_not_know_all_is_bad_news(service: FakeService) -> None:
    trouble = {"complete": False, "stage": "store", "detail": "not read yet", "problems": ["not read yet"]}
    code, out, err = await asked(service, explained=[], **trouble)
    assert (code, out) == (1, "")
    assert err == "discovery: not read yet\ndiscovery: no pool is known yet\n"


async def test_the_pools_that_are_named_are_asked_for(service: FakeService) -> None:
    await asked(service, "c1/n1/fine", "c1/n%2F1/lost")
    pairs = parse_qsl(urlsplit(service.seen[0].target).query)
    assert pairs == [("pool", "c1/n1/fine"), ("pool", "c1/n%2F1/lost")]


async def test_wide_adds_what_each_side_knows_and_sends_nothing_that_steers_a_terminal(service: FakeService) -> None:
    _, out, _ = await asked(service, "-o", "wide")
    assert out.splitlines() == [
        MISSING["text"],
        "  registration: lives, for \\x1b[2Jm",
        "  relays: none",
        LISTED["text"],
        "  registration: lives",
        "  relays: 1 slice",
        "  lease: 12.3 s left, as last confirmed",
    ]


async def test_names_are_those_that_are_not_listed(service: FakeService) -> None:
    assert await asked(service, "-o", "name") == (1, "c1/n1/lost\n", "")


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_programs_get_everything_in_one_document(service: FakeService, output: str, load: Any) -> None:
    code, out, err = await asked(service, "-o", output, complete=False, problems=["settling"])
    assert (code, err) == (1, "")
    assert load(out) == {
        "complete": False,
        "problems": ["settling"],
        "pools": [LISTED, MISSING],
    }


@pytest.mark.parametrize("output", ["table", "wide", "name"])
async def test_what_is_wrong_with_the_service_is_said_apart_in_its_words(service: FakeService, output: str) -> None:
    code, _, err = await asked(
        service, "-o", output, problems=["the store fails: \x1b[2J", "a watcher fails: east: 403"]
    )
    assert code == 1
    assert err == "discovery: the store fails: \\x1b[2J\ndiscovery: a watcher fails: east: 403\n"


async def test_on_a_terminal_problems_come_before_the_pools(service: FakeService) -> None:
    service.can("GET", Canned(200, WHOLE | {"problems": ["the list is not complete: settling"]}))
    async with on_terminal("doctor", "--url", service.url, columns=200) as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), 8) == 1
        await until(lambda: LISTED["text"] in terminal.drawn)
    places = [terminal.drawn.index(text) for text in ("settling", MISSING["text"], LISTED["text"])]
    assert places == sorted(places)
    assert "\x1b[1m" in terminal.drawn


# ---- whom it asks


async def test_nobody_to_ask_is_one_line_and_exit_2() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await ran("doctor", "--url", url) == (2, "", f"discovery: cannot connect to {url}: Connection refused\n")


@pytest.mark.parametrize("status", [400, 401, 500, 503])
async def test_a_refusal_is_one_line_and_exit_2(service: FakeService, status: int) -> None:
    service.can("GET", Canned(status, {"detail": "not like this"}))
    answer = await ran("doctor", "--url", service.url, "c1/n1/p")
    assert answer == (2, "", f"discovery: {service.url} answered {status}: not like this\n")


@pytest.mark.parametrize("body", [{"complete": True}, {"pools": []}, [1], None])
async def test_an_answer_that_explains_nothing_is_one_line_and_exit_2(service: FakeService, body: Any) -> None:
    service.can("GET", Canned(200, body))
    code, out, err = await ran("doctor", "--url", service.url)
    assert (code, out) == (2, "")
    assert err == "discovery: the answer explains no pools: is it a discovery service, and as new as this one?\n"


async def test_the_next_url_is_asked_when_the_first_does_not_answer(service: FakeService) -> None:
    service.can("GET", Canned(200, WHOLE))
    nobody = f"http://127.0.0.1:{free_port()}"
    code, out, _ = await ran("doctor", "--url", f"{nobody},{service.url}", "-o", "name")
    assert (code, out) == (1, "c1/n1/lost\n")


# ---- the library


async def test_many_long_keys_are_asked_for_in_several_requests_and_come_back_as_one(service: FakeService) -> None:
    keys = [PoolKey("c" * 253, "名" * 80, f"p{number}") for number in range(20)]
    parts = list(diagnosis.queries(keys))
    assert len(parts) > 1
    assert sum(map(len, parts)) == 20
    service.can(
        "GET", *(Canned(200, WHOLE | {"explained": [MISSING | {"dgd_name": str(n)}]}) for n in range(len(parts)))
    )
    async with Client(service.url) as client:
        found = await client.explain(keys)
    assert [pool.dgd_name for pool in found.pools] == [str(number) for number in range(len(parts))]
    assert [value for seen in service.seen for _, value in parse_qsl(urlsplit(seen.target).query)] == [
        value for part in parts for _, value in part
    ]
    assert all(len(seen.target) < 8192 for seen in service.seen)


def test_what_an_older_service_leaves_out_is_empty() -> None:
    least = {"cluster_id": "c", "namespace": "n", "dgd_name": "d", "listed": False, "text": "gone", "new": 1}
    found = diagnosis.read([json.dumps({"complete": True, "explained": [least], "new": {}}).encode()])
    assert (found.pools[0].key, found.pools[0].facts, found.problems) == (PoolKey("c", "n", "d"), (), ())
    assert found.pools[0].lease_left_secs is None
    elsewhere = {"complete": False, "explained": [], "detail": "the store has not been read yet"}
    assert diagnosis.read([json.dumps(elsewhere).encode()]).problems == ("the store has not been read yet",)
    with pytest.raises(Unavailable, match="explains no pools"):
        diagnosis.read([b"{}"])
