"""The client library: how streams are read, how lists are kept through trouble, how a pool stays registered."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from discovery.client import Client, NoAnswer, Pools
from discovery.client.service import Service
from discovery.client.snapshot import UNSEEN_SECS, Assembly, Snapshot
from discovery.client.sse import Event, Parser, TooLong
from discovery.client.transport import Connections
from discovery.errors import Misconfigured, Rejected, Unavailable
from discovery.model import Listing, PoolKey, Registration
from tests.fake_service import Canned, FakeService, frame, listing, until
from tests.live.signs import free_port

REGISTRATION = Registration("c1", "n1", "p1", "m", instance_id="one")


# ---- the bytes of a stream


def parsed(chunks: Iterable[bytes]) -> tuple[list[Event], str, float | None]:
    parser = Parser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events, parser.last_event_id, parser.retry_secs


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\n", [Event("message", "a", None)], id="no name"),
        pytest.param(b"event: put\ndata: a\nid: 1\n\n", [Event("put", "a", "1")], id="all fields"),
        pytest.param(
            b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", [Event("message", x, None) for x in "abc"], id="line ends"
        ),
        pytest.param(
            b"data: a\ndata:b\ndata\ndata:  c\n\n", [Event("message", "a\nb\n\n c", None)], id="many data lines"
        ),
        pytest.param(b"data: a\r\ndata: b\r\n\r\n", [Event("message", "a\nb", None)], id="CRLF is one line end"),
        pytest.param(b": hello\n:\n\ndata: a\n: in between\n\n", [Event("message", "a", None)], id="comments"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Event("message", "a", None)], id="byte order mark"),
        pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", [Event("message", "b", None)], id="two marks"),
        pytest.param(b"id: 1\0\ndata: a\n\n", [Event("message", "a", None)], id="id with NUL"),
        pytest.param(b"id\ndata: a\n\n", [Event("message", "a", "")], id="empty id"),
        pytest.param(b"event: put\n\ndata: a\n\n", [Event("message", "a", None)], id="name without data"),
        pytest.param(
            b"nonsense: x\nDATA: x\ndata : x\ndata: a\n\n", [Event("message", "a", None)], id="unknown fields"
        ),
        pytest.param(b"data: \xff\xfe\xc3\xa9\n\n", [Event("message", "\ufffd\ufffd\u00e9", None)], id="bad UTF-8"),
        pytest.param(b"data: a\n", [], id="no empty line, no event"),
        pytest.param(b"data\n\n", [Event("message", "", None)], id="empty data"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, events: list[Event]) -> None:
    assert parsed([stream])[0] == events
    assert parsed(bytes([byte]) for byte in stream)[0] == events


@pytest.mark.parametrize(
    ("stream", "last_id", "retry_secs"),
    [
        (b"id: 7\n\n", "7", None),
        (b"id: 7\ndata: a\n\nid: 8\ndata: cut", "7", None),
        (b"id: 7\n\nid:\n\n", "", None),
        (b"retry: 1500\n", "", 1.5),
        (b"retry: 1.5\nretry: -1\nretry:\nretry: \xc2\xb2\nretry: 9999999999999999999\n", "", None),
    ],
)
def test_what_a_reader_resumes_with_and_waits_for(stream: bytes, last_id: str, retry_secs: float | None) -> None:
    assert parsed([stream])[1:] == (last_id, retry_secs)


pieces = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"data: ", b"data", b"id: 1", b"id: \0", b"event: put", b"retry: 10", b":", b" "]
        + ["\ufeff".encode(), "é".encode(), "😀".encode(), b"\xff", b"x" * 50, b"\n\n", b"\r\r", b"data: a\r\n\r\n"]
    ),
    max_size=30,
)


@given(pieces, st.data())
@example([b"data: a\r", b"\n\r\n"], None)
def test_however_a_stream_is_split_it_reads_the_same(parts: list[bytes], data: Any) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12))) if data else [len(parts[0])]
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parsed(chunks) == parsed([stream]) == parsed(stream[i : i + 1] for i in range(len(stream)))


def test_an_event_that_never_ends_is_given_up_and_comments_are_free() -> None:
    parser = Parser(limit_bytes=100)
    for _ in range(50):
        assert parser.feed(b": keep alive\n") == []
    with pytest.raises(TooLong):
        for _ in range(50):
            parser.feed(b"data: 0123456789\n")


# ---- how events become a list


def pool(name: str, **fields: Any) -> Listing:
    assembly = Assembly()
    assembly.apply("put", json.dumps(listing(name, **fields)), 0.0)
    return assembly.pools[0]


def names(assembly: Assembly) -> list[str]:
    return [listed.dgd_name for listed in assembly.pools]


def test_a_complete_snapshot_replaces_and_an_incomplete_one_only_adds() -> None:
    assembly = Assembly()
    assert assembly.snapshot(True, [pool("b"), pool("a")], 0.0)
    assert names(assembly) == ["a", "b"]
    assert assembly.snapshot(False, [pool("c")], 1.0)
    assert (names(assembly), assembly.complete, assembly.merged) == (["a", "b", "c"], False, True)
    assert assembly.snapshot(True, [pool("c")], 2.0)
    assert (names(assembly), assembly.complete, assembly.merged) == (["c"], True, False)
    assert not assembly.snapshot(True, [pool("c")], 3.0)


def test_an_incomplete_snapshot_renews_what_it_shows() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("a"), pool("b")], 0.0)
    assembly.snapshot(False, [pool("a", model="newer")], 1.0)
    assert [listed.model for listed in assembly.pools] == ["newer", "m"]


def test_a_delete_is_final_also_while_the_list_is_incomplete() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("a"), pool("b")], 0.0)
    assembly.snapshot(False, [], 1.0)
    assert assembly.delete(PoolKey("c1", "n1", "a"))
    assert not assembly.delete(PoolKey("c1", "n1", "a"))
    assert names(assembly) == ["b"]


def test_a_list_that_becomes_complete_drops_what_it_never_showed() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("gone"), pool("back"), pool("shown")], 0.0)
    assembly.snapshot(False, [pool("shown")], 1.0)
    assembly.put(pool("back"))
    assert assembly.set_complete(True)
    assert names(assembly) == ["back", "shown"]
    assert not assembly.set_complete(True)
    assert assembly.set_complete(False)
    assert names(assembly) == ["back", "shown"]


def test_a_pool_that_incomplete_lists_do_not_show_is_given_up_after_five_minutes() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("a"), pool("b")], 0.0)
    assembly.snapshot(False, [pool("b")], 100.0)
    assembly.snapshot(False, [], 200.0)
    assert assembly.next_drop == 100.0 + UNSEEN_SECS == 400.0
    assert not assembly.drop_unseen(399.9)
    assert assembly.drop_unseen(400.0)
    assert names(assembly) == ["b"]
    assembly.snapshot(False, [], 499.9)
    assert names(assembly) == ["b"]
    assert assembly.snapshot(False, [], 500.0)
    assert names(assembly) == []


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["m", "n", None])), max_size=40))
def test_pools_are_found_by_model_through_every_change(history: list[tuple[str, str | None]]) -> None:
    assembly, held = Assembly(), []
    for name, model in history:
        if model is None:
            assembly.delete(PoolKey("c1", "n1", name))
        else:
            assembly.put(pool(name, model=model))
        shown = Snapshot(True, assembly.pools, None, 0.0)
        held.append((shown, tuple(shown.pools)))
        for served in ("m", "n", "none"):
            assert shown.pools_for(served) == tuple(listed for listed in shown.pools if listed.model == served)
    assert all(tuple(shown.pools) == before for shown, before in held)
    assert Snapshot(True, tuple(assembly.pools), None, 0.0).pools_for("m") == assembly.pools.by_model.get("m", ())


def test_a_change_of_one_model_is_none_of_the_others() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("a"), pool("b", model="n"), pool("c", model="n")], 0.0)
    before = Snapshot(True, assembly.pools, None, 0.0)
    assembly.put(pool("d"))
    after = Snapshot(True, assembly.pools, None, 0.0)
    assert after.pools_for("n") is before.pools_for("n")
    assert len(after.pools_for("m")) == 2
    assert len(before.pools_for("m")) == 1


def test_time_without_any_list_does_not_count_as_not_being_shown() -> None:
    assembly = Assembly()
    assembly.snapshot(True, [pool("a")], 0.0)
    assembly.snapshot(False, [], 10.0)
    assembly.not_counting(1000.0)
    assert assembly.next_drop == 10.0 + 1000.0 + UNSEEN_SECS


def test_an_unknown_event_changes_nothing_and_an_unreadable_one_is_an_error() -> None:
    assembly = Assembly()
    assert not assembly.apply("weather", "{", 0.0)
    for name in ("snapshot", "put", "delete", "complete"):
        for data in ("{", "{}", "[]", '{"complete": 3, "pools": [1]}'):
            with pytest.raises(ValueError, match=r"JSON|Object|Expected|truncated"):
                assembly.apply(name, data, 0.0)
    assert not assembly.started


keys = st.sampled_from("abcde")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.sampled_from(["m", "m2"])),
        st.tuples(st.just("delete"), keys, st.none()),
        st.tuples(st.just("complete"), st.booleans(), st.none()),
        st.tuples(st.just("snapshot"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.sets(keys), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_while_complete_the_assembled_list_is_the_served_one_and_otherwise_never_lacks_a_pool_of_it(
    history: list[tuple[Any, Any, Any]],
) -> None:
    served: dict[str, Listing] = {}
    complete, assembly = True, Assembly()
    assembly.snapshot(True, [], 0.0)
    for what, which, model in history:
        match what:
            case "put":
                served[which] = pool(which, model=model)
                assembly.put(served[which])
            case "delete":
                served.pop(which, None)
                assembly.delete(PoolKey("c1", "n1", which))
            case "complete":
                complete = which
                assembly.set_complete(which)
            case "restart":  # a replica that still misses pools
                complete = False
                served = {key: value for key, value in served.items() if key in which}
                assembly.snapshot(False, served.values(), 0.0)
            case _:
                assembly.snapshot(complete, served.values(), 0.0)
        expected = tuple(served[key] for key in sorted(served))
        assert assembly.complete == complete
        assert [found for found in assembly.pools if complete or found in expected] == list(expected)


# ---- lists


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService() as fake:
        yield fake


async def test_list_gives_the_pools_sorted_with_their_token(service: FakeService) -> None:
    service.set(listing("b", instance_id="x", capacity=[{"resource": "gpu", "quantity": 1.5}]), listing("a"))
    service.complete = False
    async with Client([service.url]) as client:
        snapshot = await client.list()
    assert (snapshot.complete, snapshot.etag, snapshot.age) == (False, service.token, 0.0)
    assert [found.dgd_name for found in snapshot.pools] == ["a", "b"]
    assert snapshot.pools[1].instance_id == "x"
    assert snapshot.pools[1].capacity[0].quantity == 1.5
    assert isinstance(snapshot.pools[0], Listing)


async def test_filters_are_sent_escaped_and_repeated(service: FakeService) -> None:
    async with Client(service.url) as client:
        await client.list(model="a/b&c=ü +", capability=["chat", "tools"])
        async with client.follow(cluster_id="c 1", namespace="n"):
            pass
    assert service.seen[0].target == "/pools?model=a%2Fb%26c%3D%C3%BC%20%2B&capability=chat&capability=tools"
    assert service.seen[1].target == "/pools/events?cluster_id=c%201&namespace=n"


async def test_a_base_url_may_have_a_path_and_a_slash_at_its_end(service: FakeService) -> None:
    service.can("GET", Canned(200, {"complete": True, "pools": []}))
    async with Client(service.url + "/discovery/") as client:
        await client.list()
    assert service.seen[0].target == "/discovery/pools"


async def test_routers_are_read(service: FakeService) -> None:
    async with Client(service.url) as client:
        found = await client.routers()
    assert [router.id for router in found.routers] == ["r1", "r2"]
    assert (found.complete, found.etag) == (True, "routers")


async def test_the_next_base_url_is_asked_when_one_cannot_answer_and_is_kept(service: FakeService) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with FakeService() as unable, Client([nobody, unable.url, service.url]) as client:
        unable.can("GET", Canned(503, {"detail": "starting"}))
        assert (await client.list()).complete
        assert (await client.list()).complete
        assert (len(unable.seen), len(service.seen)) == (1, 2)


async def test_nobody_there_is_told_from_not_now(service: FakeService) -> None:
    port = free_port()
    async with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(NoAnswer, match=f"cannot connect to http://127.0.0.1:{port}: Connection refused") as nobody:
            await client.list()
    assert not nobody.value.reached
    service.can("GET", Canned(503, {"detail": "no\nlist \x1b[1myet"}, ("Retry-After: 7",)))
    async with Client([f"http://127.0.0.1:{port}", service.url]) as client:
        with pytest.raises(Unavailable, match=r"answered 503: no list \[1myet") as not_now:
            await client.list()
    assert not isinstance(not_now.value, NoAnswer)
    assert not_now.value.retry_after_secs == 7


async def test_a_refusal_is_raised_at_once_with_every_fault(service: FakeService) -> None:
    faults = [{"path": "$.model", "message": "must not be empty"}, {"path": "$.relays[0]", "message": "is no URL"}]
    service.can("GET", Canned(400, {"title": "Invalid", "detail": "two faults", "errors": faults}))
    async with FakeService() as other, Client([service.url, other.url]) as client:
        with pytest.raises(Rejected, match="two faults") as rejected:
            await client.list()
        assert other.seen == []
    assert rejected.value.status == 400
    assert [tuple(fault) for fault in rejected.value.faults] == [tuple(fault.values()) for fault in faults]


@pytest.mark.parametrize(
    "canned",
    [
        pytest.param(Canned(302, headers=("Location: /pools",)), id="a redirect is not followed"),
        pytest.param(Canned(200, ["no list"]), id="another service"),
        pytest.param(Canned(500), id="a broken service"),
        pytest.param(Canned(429), id="too many requests"),
        pytest.param(Canned(408), id="too slow"),
    ],
)
async def test_what_is_no_list_is_unavailable(service: FakeService, canned: Canned) -> None:
    service.can("GET", canned)
    async with Client(service.url) as client:
        with pytest.raises(Unavailable):
            await client.list()


async def test_cookies_and_proxies_are_ignored(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    service.can("GET", Canned(200, {"complete": True, "pools": []}, ("Set-Cookie: a=b",)))
    async with Client(service.url) as client:
        await client.list()
        await client.list()
    assert "cookie" not in service.seen[1].headers


async def test_a_token_is_read_again_for_each_request_and_never_shown(service: FakeService, tmp_path: Path) -> None:
    path = tmp_path / "token"
    async with Client(service.url, token_path=path) as client:
        path.write_text("first\n")
        await client.list()
        path.write_text("second")
        await client.list()
        path.write_text("two secrets")
        with pytest.raises(Misconfigured) as wrong:
            await client.list()
        path.unlink()
        with pytest.raises(Misconfigured, match="No such file"):
            await client.list()
    assert [request.headers["authorization"] for request in service.seen] == ["Bearer first", "Bearer second"]
    assert "secrets" not in str(wrong.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "discovery:8080",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://[::1",
        "http://a/?x=1",
        "http://a b",
        "http://a:0",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured):
        Client([url])


def test_a_password_in_a_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(Misconfigured) as error:
        Client("http://user:secret@a:8080")
    assert "secret" not in str(error.value)
    with pytest.raises(Misconfigured, match="no URL"):
        Client([])


async def test_deregister_escapes_the_key_and_names_the_instance(service: FakeService) -> None:
    async with Client(service.url) as client:
        await client.deregister(PoolKey("c/1", "n ü", "p?#%"))
        await client.deregister(PoolKey("c", "n", "p"), "i&1")
    assert [request.target for request in service.requests("DELETE")] == [
        "/pools/c%2F1/n%20%C3%BC/p%3F%23%25",
        "/pools/c/n/p?instance_id=i%261",
    ]


# ---- following


@asynccontextmanager
async def following(*urls: str, silence_secs: float = 40.0, patience_secs: float = 5.0) -> AsyncIterator[Pools]:
    connections = Connections(Service(urls))
    async with Pools(connections, (), patience_secs=patience_secs, silence_secs=silence_secs) as pools:
        yield pools


def shown(pools: Pools) -> list[str]:
    return [found.dgd_name for found in pools.snapshot.pools]


async def test_the_list_is_there_when_the_block_starts(service: FakeService) -> None:
    service.set(listing("a"))
    async with Client(service.url) as client, client.follow() as pools:
        assert shown(pools) == ["a"]
        assert (pools.snapshot.complete, pools.snapshot.etag) == (True, service.token)
        assert 0 <= pools.snapshot.age < 5


async def test_each_change_is_given_and_none_between_start_and_iteration_is_missed(service: FakeService) -> None:
    async with following(service.url) as pools:
        await until(lambda: service.streams)
        await service.put(listing("a"))
        await until(lambda: shown(pools))
        given_lists = []
        async for snapshot in pools:
            given_lists.append([found.dgd_name for found in snapshot.pools])
            if len(given_lists) == 1:
                await service.put(listing("b"), listing("c"))
            elif len(given_lists) == 2:
                await service.drop("a")
            else:
                break
    assert given_lists == [["a"], ["a", "b", "c"], ["b", "c"]]


async def test_changed_loses_nothing_that_came_between_two_calls(service: FakeService) -> None:
    async with following(service.url) as pools:
        await until(lambda: service.streams)
        assert shown(pools) == []
        await service.put(listing("a"))
        await until(lambda: pools.version == 2)
        assert await asyncio.wait_for(pools.changed(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pools.changed(), 0.05)
        await service.put(listing("b"))
        await until(lambda: pools.version == 3)
        assert shown(pools) == ["a", "b"]
        with pytest.raises(TimeoutError):  # which it has looked at
            await asyncio.wait_for(pools.changed(), 0.05)
        waiting = asyncio.create_task(pools.changed())
        await service.put(listing("c"))
        assert await asyncio.wait_for(waiting, 5)


async def test_each_task_is_told_of_each_change_once(service: FakeService) -> None:
    counts = [0, 0]

    async def count(pools: Pools, number: int) -> None:
        while await pools.changed():
            counts[number] += 1

    async with following(service.url) as pools:
        await until(lambda: service.streams)
        await service.put(listing("a"))
        await until(lambda: shown(pools))
        counting = [asyncio.create_task(count(pools, number)) for number in (0, 1)]
        await until(lambda: counts == [1, 1])
        await service.put(listing("b"))
        await until(lambda: counts == [2, 2])
        assert shown(pools) == ["a", "b"]
    await asyncio.wait_for(asyncio.gather(*counting), 5)
    assert counts == [2, 2]
    assert not await pools.changed()


async def test_outside_its_block_following_says_so(service: FakeService) -> None:
    async with Client(service.url) as client:
        pools = client.follow()
        for use in (lambda: pools.snapshot, pools.changed):
            with pytest.raises(RuntimeError, match="begins with its block"):
                use()
        async with pools:
            with pytest.raises(RuntimeError, match="entered before"):
                await pools.__aenter__()


async def test_the_pools_of_a_model_are_found(service: FakeService) -> None:
    service.set(listing("a"), listing("b", model="other"), listing("c"))
    async with following(service.url) as pools:
        assert [found.dgd_name for found in pools.snapshot.pools_for("m")] == ["a", "c"]
        assert pools.snapshot.pools_for("none") == ()
        assert pools.snapshot.pools_for("m") is pools.snapshot.pools_for("m")
        await service.drop("a")
        await until(lambda: shown(pools) == ["b", "c"])
        assert [found.dgd_name for found in pools.snapshot.pools_for("m")] == ["c"]


async def test_iteration_ends_with_the_block(service: FakeService) -> None:
    async def count(pools: Pools) -> int:
        return len([snapshot async for snapshot in pools])

    async with following(service.url) as pools:
        counting = asyncio.create_task(count(pools))
        await asyncio.sleep(0)
    assert await counting == 0


async def test_comments_and_equal_snapshots_are_no_change_but_confirm_the_list(service: FakeService) -> None:
    service.set(listing("a"))
    async with following(service.url) as pools:
        version = pools.version
        await until(lambda: pools.snapshot.age > 0.3)
        await service.tell(b": still here\n\n")
        await until(lambda: pools.snapshot.age < 0.3)
        await service.tell(service.snapshot_frame())
        await service.put(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])
        assert pools.version == version + 1


@pytest.mark.parametrize("ending", ["clean end", "cut", "killed"])
async def test_a_stream_that_ends_is_resumed_elsewhere_from_the_last_id(service: FakeService, ending: str) -> None:
    async with FakeService() as other:
        for replica in (service, other):
            replica.set(listing("a"))
        async with following(service.url, other.url) as pools:
            stream = (await until(lambda: service.streams))[0]
            if ending == "clean end":
                await stream.end()
            elif ending == "cut":
                stream.cut()
            else:
                await service.stop()
            await until(lambda: other.streams)
            assert other.seen[0].headers["last-event-id"] == service.token
            await other.put(listing("b"))
            await until(lambda: shown(pools) == ["a", "b"])
            assert pools.trouble is None


async def test_a_stream_is_never_resumed_on_the_connection_that_ended_it(service: FakeService) -> None:
    async with following(service.url):
        await (await until(lambda: service.streams))[0].end()
        await until(lambda: len(service.streams) == 2)
    assert service.seen[0].connection != service.seen[1].connection


async def test_a_cut_in_the_middle_of_a_change_is_answered_by_asking_for_everything(service: FakeService) -> None:
    """The list could return to the remembered state, and the service would then see nothing to send."""
    service.set(listing("a"), listing("b"))
    async with following(service.url) as pools:
        stream = (await until(lambda: service.streams))[0]
        await stream.send(frame("delete", {"cluster_id": "c1", "namespace": "n1", "dgd_name": "a"}))
        await until(lambda: shown(pools) == ["b"])
        assert pools.snapshot.etag is None
        stream.cut()
        await until(lambda: shown(pools) == ["a", "b"])
    assert "last-event-id" not in service.seen[1].headers


async def test_an_outage_keeps_the_last_list_and_its_age_grows(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "discovery")
    service.set(listing("a"))
    async with following(service.url) as pools:
        await service.stop()
        await until(lambda: pools.trouble)
        await until(lambda: pools.snapshot.age > 0.7)
        assert shown(pools) == ["a"]
        await service.start()
        await until(lambda: pools.trouble is None)
        assert pools.snapshot.age < 0.5
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_replica_that_misses_pools_takes_none_away_until_it_knows_all(service: FakeService) -> None:
    service.set(listing("a"), listing("b"))
    async with following(service.url) as pools:
        await service.stop()
        service.pools.clear()
        service.complete = False
        service.set(listing("c"))
        await service.start()
        await until(lambda: shown(pools) == ["a", "b", "c"])
        assert (pools.snapshot.complete, pools.snapshot.etag) == (False, None)
        await service.put(listing("b"))
        service.complete = True
        await service.tell(frame("complete", {"complete": True}, service.token))
        await until(lambda: pools.snapshot.complete)
        assert shown(pools) == ["b", "c"]
        assert pools.snapshot.etag == service.token


async def test_pools_are_given_up_while_the_stream_runs(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discovery.client.snapshot.UNSEEN_SECS", 0.2)
    service.set(listing("a"), listing("b"))
    async with following(service.url) as pools:
        del service.pools["c1", "n1", "a"]
        service.complete = False
        await service.tell(service.snapshot_frame())
        await until(lambda: not pools.snapshot.complete)
        assert shown(pools) == ["a", "b"]
        version = pools.version
        assert await asyncio.wait_for(pools.changed(version), 5)
        assert shown(pools) == ["b"]


async def test_a_silent_stream_is_left_for_another(service: FakeService) -> None:
    service.set(listing("a"))
    async with FakeService() as other, following(service.url, other.url, silence_secs=0.3) as pools:
        other.set(listing("b"))
        first = (await until(lambda: service.streams))[0]
        await until(lambda: first.gone)
        await until(lambda: shown(pools) == ["b"])


@pytest.mark.parametrize("garbage", [b"event: put\ndata: {\n\n", b'event: snapshot\ndata: {"complete": 1}\n\n'])
async def test_an_event_that_cannot_be_read_costs_the_stream_and_not_the_list(
    service: FakeService, garbage: bytes
) -> None:
    service.set(listing("a"))
    async with following(service.url) as pools:
        await (await until(lambda: service.streams))[0].send(garbage)
        await until(lambda: len(service.streams) == 2)
        assert "last-event-id" not in service.seen[1].headers
        await service.put(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])


async def test_retry_is_honoured_with_a_spread(service: FakeService) -> None:
    service.retry_ms = 400
    async with following(service.url):
        stream = (await until(lambda: service.streams))[0]
        started = asyncio.get_running_loop().time()
        await stream.end()
        await until(lambda: len(service.streams) == 2)
        assert 0.38 < asyncio.get_running_loop().time() - started < 1.5


async def test_retry_after_is_honoured_and_refusals_after_the_start_are_outlived(service: FakeService) -> None:
    async with following(service.url) as pools:
        stream = (await until(lambda: service.streams))[0]
        service.can("STREAM", Canned(503, headers=("Retry-After: 1",)))
        started = asyncio.get_running_loop().time()
        await stream.end()
        await until(lambda: len(service.streams) == 2)
        assert asyncio.get_running_loop().time() - started >= 1.0
        assert pools.trouble is None  # plain requests were answered meanwhile


async def test_a_refusal_after_the_start_is_tried_again(service: FakeService) -> None:
    service.set(listing("a"))
    async with following(service.url) as pools:
        first = (await until(lambda: service.streams))[0]
        service.can("STREAM", Canned(401), Canned(401))
        service.can("GET", Canned(401, {"detail": "no such token"}))
        await first.end()
        await until(lambda: pools.trouble and "no such token" in pools.trouble)
        assert shown(pools) == ["a"]
        await until(lambda: pools.trouble is None)
        service.set(listing("b"))
        await until(lambda: shown(pools) == ["a", "b"])


async def test_entering_waits_for_a_service_that_is_not_ready_yet(service: FakeService) -> None:
    service.can("STREAM", Canned(503), Canned(0))
    service.set(listing("a"))
    async with following(service.url) as pools:
        assert shown(pools) == ["a"]


async def test_entering_gives_up_when_the_patience_is_over_and_at_once_when_refused(service: FakeService) -> None:
    with pytest.raises(NoAnswer):
        async with following(f"http://127.0.0.1:{free_port()}", patience_secs=0):
            pass
    for way in ("STREAM", "GET"):
        service.can(way, Canned(400, {"detail": "unknown parameter"}))
    with pytest.raises(Rejected, match="unknown parameter"):
        async with following(service.url):
            pass


async def test_entering_gives_up_on_streams_that_end_before_the_list() -> None:
    async def end_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nretry: 10\n\n")
        writer.close()

    server = await asyncio.start_server(end_at_once, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(10):
        with pytest.raises(Unavailable, match="ended the stream of pools before it sent a list"):
            async with following(url, patience_secs=0.3):
                pass


async def test_a_page_that_is_no_stream_is_no_service(service: FakeService) -> None:
    for way in ("STREAM", "GET"):
        service.can(way, Canned(200, {"hello": 1}))
    with pytest.raises(Unavailable, match=r"no stream of events.*; the list of pools cannot be read"):
        async with following(service.url, patience_secs=0):
            pass


# ---- registering


async def test_a_pool_is_registered_while_the_block_runs(service: FakeService) -> None:
    service.interval_secs = 0.1
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        assert ("c1", "n1", "p1") in service.pools
        assert heartbeat.accepted is not None
        assert heartbeat.accepted.created
        await until(lambda: len(service.requests("POST")) >= 4)
    assert service.pools == {}
    posts = service.requests("POST")
    assert json.loads(posts[0].body) == {
        "cluster_id": "c1",
        "namespace": "n1",
        "dgd_name": "p1",
        "model": "m",
        "instance_id": "one",
    }
    assert posts[0].headers["content-type"] == "application/json"
    assert {post.connection for post in posts} == {1}
    assert [request.target for request in service.requests("DELETE")] == ["/pools/c1/n1/p1?instance_id=one"]


async def test_heartbeats_come_a_little_early_and_spread(service: FakeService) -> None:
    service.interval_secs = 0.3
    loop, times = asyncio.get_running_loop(), []
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        for count in range(1, 8):
            await until(lambda count=count: len(service.requests("POST")) >= count)
            times.append(loop.time())
        # What is meant is asked for by itself: what comes of it is late by whatever else the machine has to do.
        meant = [heartbeat._interval() for _ in range(500)]
    assert 0.24 <= min(meant) < 0.25
    assert 0.29 < max(meant) <= 0.3
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[-1] - times[0] > 0.2 * len(gaps), gaps
    assert median(gaps) < 0.4, gaps
    assert max(gaps) - min(gaps) > 0.005


async def test_kept_on_exit_nothing_is_deregistered(service: FakeService) -> None:
    async with Client(service.url) as client, client.register(REGISTRATION, keep_on_exit=True):
        pass
    assert service.requests("DELETE") == []


async def test_the_post_in_flight_ends_before_the_delete_is_sent(service: FakeService) -> None:
    service.interval_secs = 0.05
    gate = asyncio.Event()
    order: list[str] = []
    async with Client(service.url) as client:
        heartbeat = client.register(REGISTRATION)
        await heartbeat.__aenter__()
        service.can(
            "POST", Canned(200, {"lease_duration_secs": 15, "heartbeat_interval_secs": 5, "created": False}, gate=gate)
        )
        await until(lambda: len(service.requests("POST")) == 2)
        leaving = asyncio.create_task(heartbeat.__aexit__())
        leaving.add_done_callback(lambda _: order.append("left"))
        await asyncio.sleep(0.1)
        assert service.requests("DELETE") == []
        gate.set()
        await leaving
    assert len(service.requests("DELETE")) == 1
    assert [request.method for request in service.seen] == ["POST", "POST", "DELETE"]


async def test_a_post_that_never_ends_does_not_keep_the_pool_listed(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discovery.client.heartbeat.LAST_POST_SECS", 0.2)
    service.interval_secs = 0.05
    async with Client(service.url) as client, client.register(REGISTRATION):
        service.can("POST", Canned(200, gate=asyncio.Event()))
        await until(lambda: len(service.requests("POST")) == 2)
    assert service.pools == {}


async def test_503_is_tried_again_after_its_wait_on_a_new_connection(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "discovery")
    service.interval_secs = 1.2
    loop = asyncio.get_running_loop()
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        service.can("POST", Canned(503, {"detail": "the store is away"}, ("Retry-After: 1",)))
        await until(lambda: heartbeat.trouble)
        started = loop.time()
        await until(lambda: heartbeat.trouble is None)
        assert 0.95 < loop.time() - started < 1.6
    posts = service.requests("POST")
    assert [post.connection for post in posts[:3]] == [1, 1, 2]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["registered", "lost", "regained", "deregistered"]
    assert "the store is away" in lines[1]


async def test_whoever_asks_for_minutes_is_asked_again_within_the_lease(service: FakeService) -> None:
    service.interval_secs = 0.2
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        service.can("POST", Canned(503, headers=("Retry-After: 600",)))
        await until(lambda: heartbeat.trouble)
        await until(lambda: heartbeat.trouble is None, within_secs=3)


async def test_503_of_one_replica_is_tried_at_the_next_at_once(service: FakeService) -> None:
    async with FakeService() as other, Client([service.url, other.url]) as client:
        service.can("POST", Canned(503, headers=("Retry-After: 2",)))
        async with client.register(REGISTRATION) as heartbeat:
            assert heartbeat.accepted is not None
            assert ("c1", "n1", "p1") in other.pools


async def test_a_kept_connection_that_died_costs_no_heartbeat(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.interval_secs = 0.1
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        service.can("POST", Canned(0))
        await until(lambda: len(service.requests("POST")) >= 3)
        assert heartbeat.trouble is None
    assert caplog.records == []
    assert [post.connection for post in service.requests("POST")[:3]] == [1, 1, 2]


async def test_a_refused_registration_raises_with_every_fault_and_removes_nothing(service: FakeService) -> None:
    errors = [{"path": "$.model", "message": "is too long"}, {"path": "$.relays[1]", "message": "is no URL"}]
    service.can("POST", Canned(422, {"title": "Invalid", "detail": "2 faults", "errors": errors}))
    async with Client(service.url) as client:
        with pytest.raises(Rejected) as rejected:
            async with client.register(REGISTRATION):
                raise AssertionError("the block must not run")
    assert [fault.path for fault in rejected.value.faults] == ["$.model", "$.relays[1]"]
    assert service.requests("DELETE") == []


async def test_the_block_runs_through_an_outage_and_the_first_answer_can_be_awaited() -> None:
    late = FakeService()
    async with AsyncExitStack() as later, Client(late.url) as client, client.register(REGISTRATION) as heartbeat:
        assert isinstance(heartbeat.trouble, NoAnswer)
        await later.enter_async_context(late)
        assert (await asyncio.wait_for(heartbeat.settled(), 8)).created
        assert heartbeat.trouble is None
    assert late.pools == {}


async def test_a_refusal_as_first_answer_after_an_outage_is_told(service: FakeService) -> None:
    service.can("POST", Canned(503, headers=("Retry-After: 0",)), Canned(422, {"detail": "no"}))
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        with pytest.raises(Rejected, match="no"):
            await asyncio.wait_for(heartbeat.settled(), 5)


async def test_a_later_refusal_is_logged_once_and_tried_again(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.interval_secs = 0.05
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        service.can("POST", *[Canned(401, {"detail": "no token"})] * 3)
        await until(lambda: len(service.requests("POST")) >= 6)
        assert heartbeat.trouble is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_nothing_is_deregistered_that_never_reached_a_server(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    async with Client(service.url) as client, client.register(REGISTRATION):
        pass
    async with FakeService() as other:
        other.set(listing("p1"))
        gone = Client([service.url, other.url])
        other.can("POST", Canned(422))
        async with gone:
            with pytest.raises(Rejected):
                async with gone.register(REGISTRATION):
                    pass
        assert other.requests("DELETE") == []


async def test_a_delete_that_is_not_taken_is_tried_again_within_the_deadline(service: FakeService) -> None:
    async with Client(service.url) as client, client.register(REGISTRATION):
        service.can("DELETE", Canned(503, headers=("Retry-After: 1",)), Canned(0))
    assert service.pools == {}
    assert len(service.requests("DELETE")) >= 2


async def test_leaving_ends_within_its_deadline_when_nobody_answers(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("discovery.client.heartbeat.DEREGISTER_SECS", 0.5)
    async with Client(service.url) as client, client.register(REGISTRATION):
        await service.stop()
    assert "was not deregistered, it stays until its lease ends: " in caplog.text


async def test_a_cancelled_block_deregisters(service: FakeService) -> None:
    async def run() -> None:
        async with Client(service.url) as client, client.register(REGISTRATION):
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await until(lambda: service.pools)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.pools == {}


async def test_cancelled_while_entering_the_pool_is_deregistered(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discovery.client.heartbeat.LAST_POST_SECS", 0.2)
    gate = asyncio.Event()
    service.can("POST", Canned(200, gate=gate))

    async def run() -> None:
        async with Client(service.url) as client, client.register(REGISTRATION):
            raise AssertionError("the block must not run")

    task = asyncio.create_task(run())
    await until(lambda: service.seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [request.method for request in service.seen] == ["POST", "DELETE"]


async def test_what_a_pool_says_can_be_changed_at_once(service: FakeService) -> None:
    async with Client(service.url) as client, client.register(REGISTRATION) as heartbeat:
        heartbeat.update(Registration("c1", "n1", "p1", "another", instance_id="one"))
        await until(lambda: service.pools["c1", "n1", "p1"]["model"] == "another", within_secs=2)
        with pytest.raises(ValueError, match="another pool"):
            heartbeat.update(Registration("c1", "n1", "p2", "m"))


async def test_left_in_the_middle_of_an_update_the_pool_is_deregistered(service: FakeService) -> None:
    first, second = (Registration("c1", "n1", "p1", "m", instance_id=name) for name in ("one", "two"))
    async with Client(service.url) as client, client.register(first) as heartbeat:
        heartbeat.update(second)
    assert service.pools == {}
    assert [request.target for request in service.requests("DELETE")] == ["/pools/c1/n1/p1?instance_id=one"]


async def test_an_update_of_which_nobody_knows_whether_it_was_stored_is_deregistered_too(service: FakeService) -> None:
    first, second = (Registration("c1", "n1", "p1", "m", instance_id=name) for name in ("one", "two"))
    async with Client(service.url) as client, client.register(first) as heartbeat:
        service.can("POST", *[Canned(503, {}, ("Retry-After: 9",))])
        heartbeat.update(second)
        await until(lambda: heartbeat.trouble)
    assert service.pools == {}
    gone = {request.target for request in service.requests("DELETE")}
    assert gone == {"/pools/c1/n1/p1?instance_id=one", "/pools/c1/n1/p1?instance_id=two"}


async def test_a_pool_that_the_service_lost_is_said_to_be_registered_again(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.interval_secs = 0.05
    async with Client(service.url) as client, client.register(REGISTRATION):
        service.pools.clear()
        await until(lambda: service.pools)
    assert ["again" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(("interval", "lease"), [(0, 0.3), (-1, 0.3), (1e9, 0.3)])
async def test_a_senseless_interval_never_lets_the_lease_end(
    service: FakeService, interval: float, lease: float
) -> None:
    service.interval_secs, service.lease_secs = interval, lease
    async with Client(service.url) as client, client.register(REGISTRATION):
        await until(lambda: len(service.requests("POST")) >= 4, within_secs=1)
        assert len(service.requests("POST")) < 10


async def test_a_server_that_accepts_connections_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discovery.client.heartbeat.POST_SECS", 1.0)
    async with FakeService() as alive:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            urls = [f"http://127.0.0.1:{mute.getsockname()[1]}", alive.url]
            async with Client(urls) as client, client.register(REGISTRATION) as heartbeat:
                assert heartbeat.accepted is not None


def test_importing_the_library_does_not_wait_for_the_http_client() -> None:
    program = (
        "import sys, discovery.client; print(sorted({'aiohttp', 'starlette', 'uvicorn', 'redis'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
