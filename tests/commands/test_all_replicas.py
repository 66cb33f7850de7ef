"""``discovery doctor --all-replicas``: whom it asks, what it waits for, and what it says of whom."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from discovery.client import Client, Comparison
from discovery.errors import Unavailable
from tests.commands.program import ran
from tests.fake_service import Canned, FakeService, listing, until
from tests.live.signs import free_port

Pair = tuple[FakeService, FakeService]


def status(replica_id: str, **more: Any) -> dict[str, Any]:
    store = {"kind": "redis", "address": "redis://r:6379", "epoch": "e1", "revision": 7}
    return {"replica_id": replica_id, "version": "0.1.0", "problems": [], "store": store} | more


def stored(**more: Any) -> dict[str, Any]:
    return {"store": status("x")["store"] | more}


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with FakeService() as a, FakeService() as b:
        a.status, b.status = status("aaaa"), status("bbbb")
        for service in (a, b):
            service.set(listing("p1"), listing("p2"))
        yield a, b


def urls(*services: FakeService) -> str:
    return ",".join(service.url for service in services)


async def compared(*services: FakeService, patience_secs: float = 0.5) -> Comparison:
    async with Client([service.url for service in services]) as client:
        return await client.compare(patience_secs=patience_secs)


async def test_replicas_that_agree_have_a_line_each_and_one_sentence(pair: Pair) -> None:
    a, b = pair
    code, out, err = await ran("doctor", "--all-replicas", "--url", urls(a, b))
    title, first, second, verdict = out.splitlines()
    assert (code, err) == (0, "")
    assert title.split() == ["URL", "REPLICA", "VERSION", "STORE", "EPOCH", "REVISION", "ETAG", "POOLS", "COMPLETE"]
    assert first.split() == [a.url, "aaaa", "0.1.0", "redis", "e1", "7", a.token, "2", "yes"]
    assert second.split()[:2] == [b.url, "bbbb"]
    assert verdict == f"the 2 replicas agree: revision 7, ETag {a.token}, 2 pools"
    assert [[seen.target for seen in each.seen] for each in pair] == [["/status"], ["/status"]], "no list is moved"


async def test_a_pool_that_only_some_list_is_named(pair: Pair) -> None:
    a, b = pair
    b.set(listing("p3"), listing("p1", model="other"))
    code, out, err = await ran("doctor", "--all-replicas", "--url", urls(a, b), "-o", "wide")
    assert (code, err) == (1, "")
    *_, verdict, one, other = out.splitlines()
    assert verdict == (
        f"the 2 replicas do not agree: their lists differ (ETag {a.token} at {a.url}, ETag {b.token} at {b.url}, "
        f"though all know revision 7): {one.strip()}; {other.strip()}"
    )
    assert one == f"  c1/n1/p1 is listed with different contents at {a.url} and {b.url}"
    assert other == f"  c1/n1/p3 is listed at {b.url}, and not at {a.url}"
    assert (await ran("doctor", "--all-replicas", "--url", urls(a, b), "-o", "name"))[:2] == (1, "c1/n1/p3\n")
    looks = [seen.headers.get("if-none-match") for seen in a.seen if seen.target == "/pools"][:3]
    assert looks == [None, *[f'W/"{a.token}"'] * 2], "what has not changed is not moved again"


async def test_watchers_that_see_different_things_are_said(pair: Pair) -> None:
    pair[1].set(listing("p3"))
    for each in pair:
        assert each.status is not None
        each.status["watchers"] = [{"name": "hub"}]
    found = await compared(*pair)
    assert "though all know revision 7: their watchers see different slices): c1/n1/p3 is listed at" in found.text


async def test_a_change_on_its_way_is_waited_for(pair: Pair) -> None:
    a, b = pair
    a.set(listing("p3"))
    a.status, b.status = status("aaaa", **stored(revision=8)), status("bbbb")
    asking = asyncio.create_task(compared(a, b, patience_secs=5))
    await until(lambda: b.seen)
    b.set(listing("p3"))
    await until(lambda: len(b.seen) >= 2)
    assert not asking.done(), "the revision is not there yet"
    b.status = status("bbbb", **stored(revision=8))
    found = await asking
    assert (found.agree, found.differences) == (True, ())


async def test_replicas_that_never_rest_but_pass_through_the_same_list_agree(pair: Pair) -> None:
    a, b = pair
    a.set(listing("p3"))
    asking = asyncio.create_task(compared(a, b, patience_secs=5))
    await until(lambda: b.seen and a.seen)
    b.set(listing("p3"))
    a.set(listing("p4"))
    found = await asking
    assert (found.agree, found.text) == (True, "the 2 replicas agree, in change: each reaches what the others have")


async def test_one_that_says_that_it_may_lack_pools_is_not_excused_by_what_it_had_before(pair: Pair) -> None:
    a, b = pair
    b.status = status("bbbb", complete=False, problems=["no word from the store"])
    asking = asyncio.create_task(compared(a, b))
    await until(lambda: a.seen and b.seen)
    a.set(listing("p3"))
    found = await asking
    assert [difference.dgd_name for difference in found.differences] == ["p3"]
    assert len(found.faults) == 2


async def test_what_differs_at_each_look_and_never_stands_still_is_no_disagreement(pair: Pair) -> None:
    async def change_all_the_time() -> None:
        for number in range(10_000):
            for each in pair:
                each.set(listing("p1", model=f"{each.port}-{number}"))
            await asyncio.sleep(0.05)

    changing = asyncio.create_task(change_all_the_time())
    found = await compared(*pair, patience_secs=0.1)
    changing.cancel()
    assert (found.agree, found.differences) == (True, ())
    assert found.notes == ("their lists change all the time: what differed at one look did not at the next",)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another epoch": (
        stored(epoch="e2", address="redis://other:6379"),
        "they stand on different stores, databases or prefixes, or not all have noticed a loss: epoch e1 "
        "(redis://r:6379) at {a}, epoch e2 (redis://other:6379) at {b}",
    ),
    "another kind of store": (
        stored(kind="memory"),
        "their stores are of different kinds: redis at {a}, memory at {b}",
    ),
    "behind": (stored(revision=5), "{b} is behind: it knows revision 5, {a} had 7 before that"),
    "not complete": (
        {"complete": False, "problems": ["the store fails, the last list stays: no answer", "more"]},
        "{b} is not complete: the store fails, the last list stays: no answer",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_equal_lists_do_not_hide_that_something_else_differs(pair: Pair, what: str) -> None:
    a, b = pair
    more, said = BAD[what]
    b.status = status("bbbb", **more)
    found = await compared(a, b)
    assert (found.agree, found.text) == (False, f"the 2 replicas do not agree: {said.format(a=a.url, b=b.url)}")


async def test_memory_stores_cannot_agree(pair: Pair) -> None:
    a, b = pair
    a.status, b.status = (status(name, **stored(kind="memory", epoch=name)) for name in ("aaaa", "bbbb"))
    found = await compared(a, b)
    advice = "give all of them one store (--registration-storage redis or dynamodb), or run one replica"
    assert found.faults == (f"each keeps registrations in its own memory, so that their lists cannot agree: {advice}",)


# ---- on a table of DynamoDB, which counts no changes: lists are all that can be compared

ARN = "arn:aws:dynamodb:us-east-1:111122223333:table/pools"


def on_table(replica_id: str, table: str = "pools", region: str = "eu-west-1") -> dict[str, Any]:
    store = {"kind": "dynamodb", "address": f"table {table} in {region}", "table": table, "region": region}
    return status(replica_id, store=store)


async def test_replicas_on_a_table_agree_by_their_lists_alone(pair: Pair) -> None:
    a, b = pair
    a.status, b.status = on_table("aaaa"), on_table("bbbb")
    code, out, err = await ran("doctor", "--all-replicas", "--url", urls(a, b))
    _, first, _, verdict = out.splitlines()
    assert (code, err) == (0, "")
    assert first.split() == [a.url, "aaaa", "0.1.0", "dynamodb", "-", "-", a.token, "2", "yes"]
    assert verdict == f"the 2 replicas agree: ETag {a.token}, 2 pools"


async def test_replicas_on_a_table_that_list_other_pools_do_not_agree(pair: Pair) -> None:
    a, b = pair
    a.status, b.status = on_table("aaaa"), on_table("bbbb")
    b.set(listing("p3"))
    found = await compared(a, b)
    tags = f"ETag {a.token} at {a.url}, ETag {b.token} at {b.url}"
    assert found.faults == (f"their lists differ ({tags}): c1/n1/p3 is listed at {b.url}, and not at {a.url}",)


async def test_replicas_on_two_tables_do_not_agree_though_their_lists_are_equal(pair: Pair) -> None:
    a, b = pair
    a.status, b.status = on_table("aaaa"), on_table("bbbb", "others")
    assert (await compared(a, b)).faults == (f"they stand on different tables: pools at {a.url}, others at {b.url}",)


@pytest.mark.parametrize("table", ["pools", ARN])
async def test_replicas_of_two_regions_on_one_global_table_agree(pair: Pair, table: str) -> None:
    a, b = pair
    a.status, b.status = on_table("aaaa"), on_table("bbbb", table, "us-east-1")
    found = await compared(a, b)
    assert (found.agree, found.notes) == (
        True,
        (
            "they read the table in different regions, from one of which changes reach the other late: eu-west-1 at "
            f"{a.url}, us-east-1 at {b.url}",
        ),
    )


async def test_one_that_gives_no_answer_is_said_and_bad_news(pair: Pair) -> None:
    a, b = pair
    await b.stop()
    code, out, _ = await ran("doctor", "--all-replicas", "--url", urls(a, b))
    assert code == 1
    assert f"{b.url} gives no answer: cannot connect to {b.url}: Connection refused" in out.splitlines()[-1]
    assert out.splitlines()[2].endswith(f"no: cannot connect to {b.url}: Connection refused")


async def test_nobody_who_answers_is_exit_2(pair: Pair) -> None:
    for each in pair:
        await each.stop()
    code, out, err = await ran("doctor", "--all-replicas", "--url", urls(*pair))
    assert (code, out) == (2, "")
    assert err == f"discovery: cannot connect to {pair[0].url}: Connection refused\n"


@pytest.mark.parametrize("body", [{"complete": True}, [1]])
async def test_what_is_no_state_of_a_replica_is_no_answer(pair: Pair, body: Any) -> None:
    pair[1].can("GET", *[Canned(200, body)] * 50)
    found = await compared(*pair)
    assert (
        found.replicas[1].no_answer == "no state of a replica: is it a discovery service, and as new as this program?"
    )
    for each in pair:
        each.status = {}
    with pytest.raises(Unavailable, match="no state of a replica"):
        await compared(*pair)


async def test_the_same_replica_behind_two_urls_and_different_versions_are_said(pair: Pair) -> None:
    a, b = pair
    b.status = status("aaaa")
    found = await compared(a, b)
    assert found.notes == (f"{a.url} and {b.url} are the same replica, aaaa",)
    assert (found.agree, found.text) == (True, "only one replica was asked (aaaa), so there is nothing to compare")
    b.status = status("bbbb", version="0.2.0")
    code, _, err = await ran("doctor", "--all-replicas", "--url", urls(a, b))
    assert (code, err) == (0, f"discovery: they have different versions: 0.1.0 at {a.url}, 0.2.0 at {b.url}\n")


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_programs_get_everything_in_one_document(pair: Pair, output: str, load: Any) -> None:
    a, b = pair
    b.set(listing("p3"))
    code, out, err = await ran("doctor", "--all-replicas", "--url", urls(a, b), "-o", output)
    assert (code, err) == (1, "")
    found = load(out)
    assert (found["agree"], [one["replica_id"] for one in found["replicas"]]) == (False, ["aaaa", "bbbb"])
    assert found["differences"] == [
        {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p3", "listed": {a.url: False, b.url: True}}
    ]


async def test_pools_that_are_named_are_explained_by_each(pair: Pair) -> None:
    a, b = pair
    explained = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1", "listed": True, "text": "it is listed"}
    for each in pair:
        assert each.status is not None
        each.status["explained"] = [explained]
    words = ("doctor", "--all-replicas", "--url", urls(a, b), "c1/n1/p1")
    code, out, _ = await ran(*words)
    assert (code, out.splitlines()[-1]) == (0, "it is listed")
    assert a.seen[-1].target == b.seen[-1].target == "/status?pool=c1%2Fn1%2Fp1"
    assert b.status is not None
    b.status["explained"] = [explained | {"listed": False, "text": "check it: it is not"}]
    code, out, _ = await ran(*words)
    assert (code, out.splitlines()[-2:]) == (1, [f"{a.url}: it is listed", f"{b.url}: check it: it is not"])


# ---- names with several addresses


@contextlib.asynccontextmanager
async def several_addresses(*replica_ids: str) -> AsyncIterator[tuple[int, list[FakeService]]]:
    """Replicas at 127.0.0.1, 127.0.0.2 and so on, all at one port."""
    port = free_port()
    services = []
    async with contextlib.AsyncExitStack() as stack:
        for number, replica_id in enumerate(replica_ids, 1):
            service = FakeService()
            service.port, service.host, service.status = port, f"127.0.0.{number}", status(replica_id)
            services.append(await stack.enter_async_context(service))
        yield port, services


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Names have these addresses."""

    async def found(*_: Any, **__: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [(family, 1, 6, "", (address, 0)) for family, address in zip(families, addresses, strict=True)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found, raising=False)


async def test_every_address_of_a_name_is_asked_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with several_addresses("aaaa", "bbbb", "cccc") as (port, services):
        resolving(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.3")
        url = f"http://discovery.example:{port}"
        async with Client(url) as client:
            found = await client.compare()
    assert [each.name for each in found.replicas] == [f"{url} at 127.0.0.{number}" for number in (1, 2, 3)]
    assert [each.replica_id for each in found.replicas] == ["aaaa", "bbbb", "cccc"]
    assert {each.seen[0].headers["host"] for each in services} == {f"discovery.example:{port}"}
    assert found.agree


async def test_a_family_of_addresses_at_which_nobody_listens_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with several_addresses("aaaa", "bbbb") as (port, _):
        resolving(monkeypatch, "::1", "127.0.0.1", "127.0.0.2", "127.0.0.3")
        async with Client(f"http://discovery.example:{port}") as client:
            found = await client.compare(patience_secs=0)
    assert [each.address for each in found.replicas] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [each.no_answer is None for each in found.replicas] == [True, True, False]
