"""``GET /sd/prometheus`` as Prometheus sees it: filters, an error while targets may be missing, one making for all."""

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from discovery.http import scrape
from discovery.http.own_answers import OwnAnswers
from discovery.listing import scrape_targets
from discovery.listing.snapshot import pool_fragment
from discovery.model import Listing
from tests.http.in_process import LEASE, Rig, fields, pool

SD = "/sd/prometheus"
HERE, THERE = "http://10.0.0.1:8000", "http://10.0.0.2:9000"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


@pytest.fixture
def listed(rig: Rig) -> Rig:
    """Pools without a store behind them."""
    rig.publish(
        pool("p1", model="a", frontends=[HERE], relays=[THERE], capabilities=["chat"], location={"region": "eu"}),
        pool("p2", model="a", frontends=[HERE], capabilities=["chat", "tools"], location={"region": "us"}),
        pool("p3", model="b & c", cluster_id="c2", namespace="n2", relays=[THERE]),
        pool("p4"),
    )
    return rig


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pools whose targets were made, in that order."""
    names: list[str] = []

    def noting(listing: Listing, roles: Any) -> bytes:
        names.append(listing.dgd_name)
        return scrape_targets.target_groups(listing, roles)

    monkeypatch.setattr(scrape, "target_groups", noting)
    return names


def targets(rig: Rig, query: str = "") -> list[str]:
    """Which targets there are, as ``pool/role``."""
    found = rig.get(SD + query).json()
    return [f"{group['labels']['dgd_name']}/{group['labels']['role']}" for group in found for _ in group["targets"]]


# ---- what is asked for


def test_every_frontend_and_relay_is_a_target(listed: Rig) -> None:
    answer = listed.get(SD)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json", "Prometheus takes no other"
    assert answer.json()[1] == {
        "targets": ["10.0.0.2:9000"],
        "labels": {
            "cluster_id": "c1",
            "namespace": "n1",
            "dgd_name": "p1",
            "model": "a",
            "region": "eu",
            "__meta_discovery_capabilities": ",chat,",
            "role": "relay",
            "__scheme__": "http",
        },
    }
    assert targets(listed) == ["p1/frontend", "p1/relay", "p2/frontend", "p3/relay"]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("?role=frontend", ["p1/frontend", "p2/frontend"]),
        ("?role=relay", ["p1/relay", "p3/relay"]),
        ("?role=relay&role=frontend&role=relay", ["p1/frontend", "p1/relay", "p2/frontend", "p3/relay"]),
        ("?model=a&role=relay", ["p1/relay"]),
        ("?model=b+%26+c&model=x", ["p3/relay"]),
        ("?capability=chat&capability=tools", ["p2/frontend"]),
        ("?region=us", ["p2/frontend"]),
        ("?cluster_id=c2&namespace=n2", ["p3/relay"]),
        ("?cluster_id=c2&region=eu", []),
        ("?incomplete=false&region=us", ["p2/frontend"]),
        ("?incomplete=true&region=us", ["p2/frontend"]),
    ],
)
def test_filters_are_those_of_the_list_and_the_role(listed: Rig, query: str, wanted: list[str]) -> None:
    assert targets(listed, query) == wanted


def test_nothing_that_matches_is_an_empty_list(listed: Rig) -> None:
    assert listed.get(f"{SD}?model=none").body == b"[]"


@pytest.mark.parametrize(
    "query",
    [
        "?modle=a", "?model=", "?role=", "?role=router", "?role=Frontend", "?role=frontend&role=x", "?incomplete=",
        "?incomplete=1", "?incomplete=True", "?incomplete=true&incomplete=true", "?dgd_name=p1", "?model=%ff",
    ],
)  # fmt: skip
def test_a_typo_is_refused_and_lists_neither_everything_nor_nothing(listed: Rig, query: str) -> None:
    answer = listed.get(SD + query)
    assert answer.status == 400
    assert answer.problem()["title"] == "Bad query"


# ---- while targets may be missing


def test_before_the_first_list_there_is_no_empty_one(rig: Rig) -> None:
    rig.stage = ("store", "the store has not been read yet")
    for query in ("", "?incomplete=true"):
        answer = rig.get(SD + query)
        assert answer.status == 503
        assert "the store has not been read yet" in answer.problem()["detail"]


def test_while_the_list_is_not_complete_prometheus_is_to_keep_what_it_has(listed: Rig) -> None:
    before = listed.get(SD)
    listed.publish(gone=["p1"], complete=False)
    listed.stage = ("ready", "the store does not answer")
    for tag in ({}, {"if-none-match": before.headers["etag"]}, {"if-none-match": "*"}):
        answer = listed.get(SD, tag)
        assert answer.status == 503
        assert answer.headers["retry-after"] in ("1", "2")
        assert answer.headers["connection"] == "close", "another replica may know more"
        assert "the store does not answer" in answer.problem()["detail"]
        assert "incomplete=true" in answer.problem()["detail"]
    listed.publish(complete=True)
    assert targets(listed) == ["p2/frontend", "p3/relay"]


def test_what_is_known_is_served_where_that_is_asked_for(listed: Rig) -> None:
    listed.publish(complete=False)
    known = listed.get(f"{SD}?incomplete=true")
    assert known.status == 200
    assert listed.get(f"{SD}?incomplete=false").status == 503
    listed.publish(complete=True)
    assert listed.get(SD).body == known.body
    assert listed.get(SD).headers["etag"] != known.headers["etag"]


def test_registered_pools_are_targets_once_the_list_is_complete(rig: Rig) -> None:
    rig.start()
    assert rig.post(fields("p1", frontends=[HERE])).status == 200
    assert rig.get(SD).status == 503
    assert targets(rig, "?incomplete=true") == ["p1/frontend"]
    for _ in range(4):
        rig.pass_time(LEASE / 3)
        assert rig.post(fields("p1", frontends=[HERE])).status == 200
    assert targets(rig) == ["p1/frontend"]
    assert rig.delete("/pools/c1/n1/p1").status == 204
    assert rig.get(SD).body == b"[]"


# ---- the same again


@pytest.mark.parametrize("query", ["", "?role=relay", "?model=a&role=frontend"])
def test_the_tag_is_that_of_the_list_with_the_same_filters(listed: Rig, query: str) -> None:
    answer = listed.get(SD + query)
    assert answer.headers["etag"] == listed.get("/pools?model=a" if "model" in query else "/pools").headers["etag"]
    again = listed.get(SD + query, {"if-none-match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    listed.publish(pool("p0", model="a", frontends=[HERE]))
    assert listed.get(SD + query, {"if-none-match": answer.headers["etag"]}).status == 200


def test_head_has_the_headers_of_get(listed: Rig) -> None:
    assert listed.ask("HEAD", SD).headers == listed.get(SD).headers


def test_gzip_where_it_is_wanted_and_worth_it(listed: Rig) -> None:
    plain, packed = listed.get(SD), listed.get(SD, {"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert packed.headers["content-length"] == str(len(packed.body))
    assert gzip.decompress(packed.body) == plain.body
    assert listed.get(SD, {"accept-encoding": "gzip;q=0"}).body == plain.body
    short = listed.get(f"{SD}?region=eu&role=relay", {"accept-encoding": "gzip"})
    assert "content-encoding" not in short.headers


def test_the_bytes_are_made_once_for_each_state_and_query(listed: Rig, made: list[str]) -> None:
    for _ in range(3):
        first = listed.get(SD, {"accept-encoding": "gzip"})
        listed.get(f"{SD}?incomplete=true")
        listed.get(f"{SD}?role=relay&role=frontend")
    assert sorted(made) == ["p1", "p2", "p3", "p4"]
    made.clear()
    listed.get(f"{SD}?role=relay&model=a")
    assert made == ["p1", "p2"]
    made.clear()
    listed.publish(pool("p1", model="a", frontends=[THERE], relays=[THERE]))
    second = listed.get(SD, {"accept-encoding": "gzip"})
    assert sorted(made) == ["p1", "p2", "p3", "p4"]
    assert json.loads(gzip.decompress(second.body))[0]["targets"] == ["10.0.0.2:9000"]
    assert first.headers["etag"] != second.headers["etag"]


def test_a_query_that_nobody_asked_for_in_a_while_is_forgotten(
    listed: Rig, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [f"{SD}?region=us&model=a&model={number}" for number in range(scrape.KEPT + 1)]
    for query in queries:
        assert len(listed.get(query).json()) == 1
    made.clear()
    for query in queries[1:]:
        listed.get(query)
    assert made == []
    listed.get(queries[0])
    assert made == ["p2"]
    monkeypatch.setattr(scrape, "KEPT_BYTES", 1)
    listed.get(queries[0])
    listed.get(queries[0])
    assert made == ["p2"], "the last one stays however long it is"
    listed.get(queries[-1])
    assert made == ["p2", "p2"]


# ---- long lists


@pytest.fixture
def long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A list that takes many turns of the loop, each of which is a step of its own."""
    monkeypatch.setattr(scrape, "STEP_SECS", 0.0)
    rig.publish(*(pool(f"p{number:03}", frontends=[HERE], metadata={"k": "x" * 2000}) for number in range(100)))
    return rig


async def taking_turns(rig: Rig, *queries: str) -> list[Any]:
    """Ask at once, and change the list in each turn of the loop until all are answered."""
    asked = [rig.loop.create_task(_get(rig, query)) for query in queries]
    changes = 0
    while not all(task.done() for task in asked):
        changes += 1
        rig.pools.publish([_change(changes)], True, float("inf"))
        await asyncio.sleep(0)
    assert changes > 50, "the loop turned meanwhile"
    return [task.result() for task in asked]


def _change(number: int) -> Any:
    entry = pool("p050", frontends=[f"http://10.1.0.{number % 250}"], metadata={"k": "x" * 2000})
    return entry.key, pool_fragment(entry)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _get(rig: Rig, query: str) -> bytes:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": SD, "raw_path": SD.encode(), "query_string": query.encode(),
        "headers": [], "state": {},
    }  # fmt: skip
    await rig.app(scope, None, send)
    assert sent[0]["status"] == 200
    return b"".join(message["body"] for message in sent[1:])


def test_a_long_list_is_made_by_one_reader_for_all_while_the_loop_turns(long: Rig, made: list[str]) -> None:
    first, *others = long.loop.run(taking_turns(long, "", "", "", "", "incomplete=true"))
    assert [len(json.loads(answer)) for answer in (first, *others)] == [100] * 5
    assert all(other == others[0] for other in others)
    assert len(made) <= 200, "once for who came first, and at most once for all who came meanwhile"


def test_a_reader_never_gets_a_list_that_was_over_when_it_asked(long: Rig) -> None:
    async def changed_meanwhile() -> list[bytes]:
        early = long.loop.create_task(_get(long, ""))
        await _turns(10)
        long.pools.publish([_change(1)], True, float("inf"))
        return [await long.loop.create_task(_get(long, "")), await early]

    late, early = (json.loads(answer)[50]["targets"] for answer in long.loop.run(changed_meanwhile()))
    assert (early, late) == (["10.0.0.1:8000"], ["10.1.0.1:80"])


def test_a_reader_that_leaves_while_it_makes_the_list_leaves_nothing_behind(long: Rig) -> None:
    async def cancelled() -> None:
        first, second = (long.loop.create_task(_get(long, "")) for _ in range(2))
        await _turns(10)
        first.cancel()
        assert len(json.loads(await second)) == 100
        with pytest.raises(asyncio.CancelledError):
            await first

    long.loop.run(cancelled())


def test_a_reader_that_leaves_while_it_makes_the_list_leaves_no_old_one_to_others(long: Rig) -> None:
    async def cancelled() -> bytes:
        await _get(long, "")
        long.pools.publish([_change(1)], True, float("inf"))
        other = long.loop.create_task(_get(long, "role=relay"))
        await _turns(1)
        first, second = (long.loop.create_task(_get(long, "")) for _ in range(2))
        await other
        await _turns(10)
        first.cancel()
        return await second

    assert json.loads(long.loop.run(cancelled()))[50]["targets"] == ["10.1.0.1:80"]


def test_a_list_that_stops_being_complete_while_it_is_made_for_another_is_refused(long: Rig) -> None:
    async def all_three() -> list[int]:
        scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": SD, "raw_path": SD.encode(), "headers": [], "state": {},
        }  # fmt: skip
        answers: list[list[Any]] = [[], [], []]

        async def ask(number: int, query: bytes) -> None:
            async def send(message: Any) -> None:
                answers[number].append(message)

            await long.app({**scope, "query_string": query}, None, send)

        tasks = [long.loop.create_task(ask(0, b"")), long.loop.create_task(ask(1, b""))]
        await _turns(10)
        long.pools.publish([_change(1)], False, float("inf"))
        tasks.append(long.loop.create_task(ask(2, b"incomplete=true")))
        await asyncio.gather(*tasks)
        return [answer[0]["status"] for answer in answers]

    assert long.loop.run(all_three()) == [200, 503, 200]


def test_many_slow_readers_of_long_answers_are_told_to_come_back(long: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnAnswers.__init__, "__defaults__", (500_000,))
    with Rig() as rig:
        rig.publish(*(pool(f"p{number:03}", frontends=[HERE], metadata={"k": "x" * 2000}) for number in range(100)))
        slow = [rig.open(SD, room=1000) for _ in range(3)]
        assert [reader.status for reader in slow] == [200, 200, 503]
        assert int(slow[2].headers["retry-after"]) >= 2
        slow[0].read()
        rig.settle()
        assert len(slow[0].answer().json()) == 100
        assert rig.get(SD).status == 200
        slow[1].leave()
        rig.settle()


def test_ten_thousand_pools_hold_up_nobody_for_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a measurement: what is made in one turn is bounded by time, so turns are many."""
    steps = iter(range(10**9))
    monkeypatch.setattr(rig.loop, "time", lambda: next(steps) * 0.001)
    rig.publish(*(pool(f"p{number:05}", frontends=[HERE]) for number in range(1000)))
    begun = time.monotonic()
    exchange = rig.open(SD)
    assert not exchange.answered, "the loop turned before all of them were made"
    while not exchange.ended:
        rig.settle()
        assert time.monotonic() < begun + 20
    assert len(exchange.answer().json()) == 1000
