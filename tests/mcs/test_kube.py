"""The feed of EndpointSlices against the fake API server: lists that are whole or nothing, watches that go on."""

import asyncio
import gc
import json
import random
import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from discovery import feed
from discovery.backoff import Backoff
from discovery.errors import Gone
from discovery.mcs.endpoint_slice import SliceName
from discovery.mcs.kube import Applied, ClusterConnection, Failing, Failure, Heard, Listed, Removed, SliceSource
from discovery.mcs.kube_access import find_clusters
from tests.mcs.api_process import ApiServerProcess, write_kubeconfig
from tests.mcs.api_server import ApiServer
from tests.mcs.kube_feed import DEADLINES, IMPATIENT, LABEL, PACE, a_slice, connect, eventually, watching


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server
        assert {request.method for request in server.requests} <= {"GET"}


@pytest.fixture
async def connection(server: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterConnection]:
    connection = connect(server, tmp_path)
    yield connection
    await connection.close()


@pytest.fixture
def source(connection: ClusterConnection) -> SliceSource:
    return SliceSource(connection, selector=LABEL, pace=PACE)


def names(listed: Listed) -> list[str]:
    return [found.metadata.name for found in listed.slices]


def verbs(server: ApiServer) -> list[str]:
    return [request.verb for request in server.requests]


def versions(server: ApiServer) -> list[str]:
    return [request.query["resourceVersion"] for request in server.requests if request.verb == "watch"]


# ---- lists


async def test_a_list_is_consistent_paged_and_selected(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice(f"s{number}") for number in range(7)])
    server.apply(a_slice("other", labels={"app": "x"}))
    listed = await source.list_all()
    assert names(listed) == [f"s{number}" for number in range(7)]
    assert (listed.position, listed.skipped) == ("9", 0)
    first, *rest = server.requests
    assert first.query == {"labelSelector": LABEL, "limit": "3"}
    assert [sorted(request.query) for request in rest] == [["continue", "labelSelector", "limit"]] * 2


async def test_an_empty_page_is_no_end(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice(f"s{number}") for number in range(4)])
    server.empty_pages = True
    assert names(await source.list_all()) == ["s0", "s1", "s2", "s3"]
    assert len(server.requests) == 4


async def test_a_list_that_was_compressed_on_the_way_is_read(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice(f"s{number}", note=str(random.Random(number).random()) * 5000) for number in range(3)])
    assert names(await source.list_all()) == ["s0", "s1", "s2"]


async def test_an_empty_list_is_a_list(source: SliceSource) -> None:
    listed = await source.list_all()
    assert (listed.slices, listed.position) == ((), "1")


async def test_one_namespace_alone_can_be_listed_and_watched(server: ApiServer, connection: ClusterConnection) -> None:
    source = SliceSource(connection, selector="", namespace="llm", pace=PACE)
    server.apply(a_slice("here"))
    other = a_slice("there")
    other["metadata"]["namespace"] = "other"
    server.apply(other)
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("here", "10.0.0.2"))
        await told.applied("here")
    assert {request.path for request in server.requests} == {"/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"}
    assert "labelSelector" not in server.requests[0].query


BROKEN = [
    pytest.param("status", {"code": 403}, "denied", id="F34-403"),
    pytest.param("status", {"code": 429}, "throttled", id="F34-429"),
    pytest.param("status", {"code": 500}, "error", id="F34-500"),
    pytest.param("status", {"code": 503}, "error", id="F34-503"),
    pytest.param("truncate", {}, "broken", id="F34-body-cut-in-half"),
    pytest.param("html", {}, "foreign", id="F34-html-page"),
    pytest.param("html", {"code": 502}, "error", id="html-page-of-a-gateway"),
    pytest.param("json", {"body": {"status": "ok"}}, "foreign", id="other-json"),
    pytest.param("json", {"body": []}, "foreign", id="json-of-another-shape"),
    pytest.param("json", {"body": {"kind": "Status", "metadata": {}}}, "foreign", id="status-under-200"),
    pytest.param(
        "json",
        {"body": {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []}},
        "foreign",
        id="list-of-something-else",
    ),
    pytest.param(
        "json",
        {"body": {"kind": "EndpointSliceList", "metadata": {"resourceVersion": "9"}}},
        "foreign",
        id="list-without-items",
    ),
    pytest.param(
        "json",
        {"body": {"kind": "EndpointSliceList", "metadata": {}, "items": []}},
        "foreign",
        id="list-without-a-version",
    ),
    pytest.param("hang", {}, "silent", id="no-answer"),
    pytest.param("reset", {}, "broken", id="connection-closed"),
]


@pytest.mark.parametrize(("kind", "options", "counted"), BROKEN)
async def test_a_list_that_fails_on_any_page_is_no_list(
    server: ApiServer, source: SliceSource, kind: str, options: dict[str, Any], counted: str
) -> None:
    server.apply_all([a_slice(f"s{number}") for number in range(7)])
    for whole_pages in (0, 2):
        server.requests.clear()
        # An idempotent request on a kept connection that closes is sent once more by the client: hence two times.
        task = asyncio.ensure_future(_list_with_fault_after(server, source, whole_pages, kind, options))
        with pytest.raises(Failure) as caught:
            await task
        assert caught.value.kind == counted
        assert "\n" not in str(caught.value)
        server.heal()
        assert len((await source.list_all()).slices) == 7


async def _list_with_fault_after(
    server: ApiServer, source: SliceSource, whole_pages: int, kind: str, options: dict[str, Any]
) -> Listed:
    async def spoil() -> None:
        await eventually(lambda: len([r for r in server.requests if r.status == 200]) >= whole_pages)
        server.fault(kind, ("list",), **options)

    if whole_pages == 0:
        await spoil()
        return await source.list_all()
    real = server._list

    async def counted(*arguments: Any) -> Any:
        page = await real(*arguments)
        if len([r for r in server.requests if r.verb == "list"]) >= whole_pages:
            server.fault(kind, ("list",), **options)
        return page

    server._list = counted  # type: ignore[method-assign]
    try:
        return await source.list_all()
    finally:
        server._list = real  # type: ignore[method-assign]


async def test_nobody_there_is_a_failure(server: ApiServer, source: SliceSource) -> None:
    await server.refuse()
    with pytest.raises(
        Failure, match=r"east: the API server at 127.0.0.1:.* cannot be reached: Connection refused"
    ) as it:
        await source.list_all()
    assert it.value.kind == "unreachable"


async def test_an_object_that_cannot_be_read_costs_itself(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice("a"), a_slice("broken", addressType=17), a_slice("nulls", endpoints=None, ports=None)])
    listed = await source.list_all()
    assert names(listed) == ["a", "nulls"]
    assert (listed.skipped, source.skipped) == (1, 1)


async def test_a_list_that_expires_between_two_pages_starts_over(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice(f"s{number}") for number in range(4)])
    server.fault("status", ("list",), times=0, code=410)
    real, expired = server._continued, []

    def once(*arguments: Any) -> Any:
        if not expired:
            expired.append(True)
            server.delete("s0")
            server.expire()
        return real(*arguments)

    server._continued = once  # type: ignore[method-assign]
    listed = await source.list_all()
    assert names(listed) == ["s1", "s2", "s3"]
    assert [request.status for request in server.requests] == [200, 410, 200]


async def test_a_list_that_always_expires_is_given_up(server: ApiServer, source: SliceSource) -> None:
    server.fault("status", ("list",), code=410)
    with pytest.raises(Failure, match="expires before it is read"):
        await source.list_all()
    assert len(server.requests) == 3


async def test_a_list_that_goes_in_circles_is_given_up(server: ApiServer, source: SliceSource) -> None:
    page = {"kind": "EndpointSliceList", "metadata": {"resourceVersion": "5", "continue": "x"}, "items": []}
    server.fault("json", ("list",), body=page)
    with pytest.raises(Failure, match="does not come to an end"):
        await source.list_all()


@pytest.mark.parametrize("code", [429, 503, 504])
async def test_the_next_list_waits_as_long_as_the_server_asked(
    server: ApiServer, source: SliceSource, code: int
) -> None:
    server.fault("status", ("list",), times=1, code=code, retry_after=1)
    with pytest.raises(Failure):
        await source.list_all()
    await source.list_all()
    first, second = server.requests
    assert 0.95 < second.at - first.at < 2


async def test_what_is_not_allowed_is_said_with_the_rule_that_is_missing(
    server: ApiServer, source: SliceSource
) -> None:
    server.forbidden.add(("list", "endpointslices"))
    with pytest.raises(Failure) as caught:
        await source.list_all()
    assert str(caught.value).startswith(
        "east: not allowed to list endpointslices.discovery.k8s.io (403): bind a ClusterRole with "
        "apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]"
    )
    assert 'User "system:serviceaccount:discovery:discovery"' in str(caught.value)


async def test_in_one_namespace_a_role_is_enough(server: ApiServer, connection: ClusterConnection) -> None:
    server.forbidden.add(("list", "endpointslices"))
    with pytest.raises(Failure, match=r"bind a Role in namespace llm with apiGroups: .discovery.k8s.io"):
        await SliceSource(connection, selector="", namespace="llm", pace=PACE).list_all()


async def test_a_server_without_endpointslices_is_named(server: ApiServer, source: SliceSource) -> None:
    server.resources.clear()
    with pytest.raises(
        Failure, match=r"cannot list endpointslices.*does not have them .404.: is it a Kubernetes"
    ) as it:
        await source.list_all()
    assert it.value.kind == "missing"


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_page_for_people_is_named_as_such(server: ApiServer, source: SliceSource, verb: str) -> None:
    listed = await source.list_all()
    server.fault("html", (verb,))
    said = "east: the API server at 127.0.0.1:[0-9]+: answered with text/html instead of JSON"
    if verb == "list":
        with pytest.raises(Failure, match=said):
            await source.list_all()
        return
    async with watching(source, listed) as told:
        await told.until(lambda told: told.failing)
    assert re.match(said, told.of(Failing)[0].reason)


# ---- watches


async def test_a_watch_tells_what_is_written_and_deleted(server: ApiServer, source: SliceSource) -> None:
    server.apply(a_slice("a"))
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("a", "10.0.0.2"))
        server.delete("a")
        server.apply(a_slice("a", "10.0.0.3"))
        await told.until(lambda told: len(told.events) >= 4)
    changed, gone, back = told.events[1:]
    assert isinstance(changed, Applied)
    assert isinstance(back, Applied)
    assert gone == Removed(SliceName("llm", "a"), changed.slice.metadata.uid)
    assert back.slice.metadata.uid != changed.slice.metadata.uid
    assert told.failing == []


async def test_a_slice_that_leaves_the_selection_is_removed(server: ApiServer, source: SliceSource) -> None:
    server.apply(a_slice("a"))
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("a", labels={"app": "x"}))
        await told.removed("a")
        server.apply(a_slice("a"))
        await told.applied("a")


async def test_f36_a_watch_starts_at_the_lists_version_and_goes_on_at_the_newest(
    server: ApiServer, source: SliceSource
) -> None:
    for name in ("z", "m", "a"):  # listed by name, so that the last item's version is not the newest
        server.apply(a_slice(name))
    server.apply(a_slice("unselected", labels={"app": "x"}))
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("m", "10.0.0.9"))
        await told.applied("m")
        server.end_watches()
        await eventually(lambda: len(versions(server)) == 2)
        server.apply(a_slice("other", labels={"app": "x"}))
        server.bookmark()
        await told.heard(2)
        server.end_watches()
        await eventually(lambda: len(versions(server)) == 3)
    assert versions(server) == ["5", "6", "7"]
    assert told.names() == ["m"]


async def test_a_watch_asks_for_bookmarks_and_a_duration_drawn_anew(
    server: ApiServer, connection: ClusterConnection
) -> None:
    source = SliceSource(connection, selector=LABEL)
    async with watching(source) as told:
        await eventually(lambda: len(server.watches) == 1)
        server.bookmark()
        await told.heard()
        server.end_watches()
        await eventually(lambda: len(versions(server)) == 2)
    queries = [request.query for request in server.requests if request.verb == "watch"]
    assert all(query["allowWatchBookmarks"] == "true" for query in queries)
    assert all(240 <= int(query["timeoutSeconds"]) <= 300 for query in queries)


async def test_a_clean_end_changes_nothing(server: ApiServer, source: SliceSource) -> None:
    server.apply(a_slice("a"))
    async with watching(source) as told:
        for ends in range(1, 4):
            await told.heard(ends)
            server.end_watches()
            await eventually(lambda ends=ends: versions(server) == ["2"] * (ends + 1))
        server.apply(a_slice("b"))
        await told.applied("b")
    assert told.failing == []
    assert verbs(server).count("list") == 1


async def test_what_happens_between_two_watches_is_told_once(server: ApiServer, source: SliceSource) -> None:
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("a"))
        server.end_watches()
        server.apply(a_slice("b"))
        await told.applied("b")
        server.bookmark()
        await told.heard(2)
    assert told.names() == ["a", "b"]


async def test_a_cut_connection_is_told_and_the_watch_goes_on_where_it_was(
    server: ApiServer, source: SliceSource
) -> None:
    server.apply(a_slice("a"))
    async with watching(source) as told:
        await told.heard()
        server.cut_watches()
        await told.until(lambda told: told.failing)
        server.apply(a_slice("b"))
        await told.applied("b")
    assert told.failing == ["broken"]
    assert verbs(server).count("list") == 1
    assert set(versions(server)) == {"2"}


async def test_half_a_line_is_not_told_and_comes_again(server: ApiServer, source: SliceSource) -> None:
    async with watching(source) as told:
        await told.heard()
        server.send('{"type":"ADDED","object":{"kind":"EndpointSlice","metadata":{"name":"half","namespace":"llm"')
        server.end_watches()
        await eventually(lambda: len(versions(server)) == 2)
        server.apply(a_slice("a"))
        await told.applied("a")
    assert told.names() == ["a"]
    assert told.failing == []


async def test_a_connection_that_froze_is_replaced_without_a_list(
    server: ApiServer, connection: ClusterConnection
) -> None:
    source = SliceSource(connection, selector=LABEL, pace=IMPATIENT)
    server.apply(a_slice("a"))
    async with watching(source) as told:
        await told.heard()
        server.freeze_watches()
        server.apply(a_slice("b"))
        await told.applied("b", within=2)
    assert told.failing == []
    assert verbs(server) == ["list", "watch", "watch"]


async def test_bookmarks_keep_a_quiet_watch_alive(server: ApiServer, connection: ClusterConnection) -> None:
    server.bookmark_secs = 0.1
    source = SliceSource(connection, selector=LABEL, pace=PACE._replace(silence_secs=1.2))
    async with watching(source) as told:
        await told.heard(16)
    assert verbs(server) == ["list", "watch"]
    assert told.failing == []


async def test_watches_that_stay_silent_from_the_start_end_in_a_list(
    server: ApiServer, connection: ClusterConnection
) -> None:
    source = SliceSource(connection, selector=LABEL, pace=IMPATIENT)
    # As after a restored etcd: a version from the future is accepted, and nothing comes until it is reached.
    async with watching(source) as told:
        await told.until(lambda told: told.error)
    assert isinstance(told.error, Gone)
    assert told.error.cause == "fruitless"
    assert told.failing == []
    assert verbs(server) == ["list", "watch", "watch"]


async def test_f35_what_was_deleted_while_the_server_was_away_is_told_when_it_is_back(
    server: ApiServer, source: SliceSource
) -> None:
    server.apply_all([a_slice("s1"), a_slice("s2")])
    async with watching(source) as told:
        await told.heard()
        await server.refuse()
        server.cut_watches()
        await told.until(lambda told: len(told.failing) >= 3)
        server.delete("s1")
        server.delete("s2")
        server.apply(a_slice("s2", "10.9.9.9"))
        await server.start()
        await told.applied("s2", within=1)
    assert [event.name.name for event in told.of(Removed)] == ["s1", "s2"]
    assert told.failing[:3] == ["broken", "unreachable", "unreachable"]
    assert verbs(server).count("list") == 1


@pytest.mark.parametrize("within", ["stream", "status"])
async def test_an_expired_version_needs_a_list(server: ApiServer, source: SliceSource, within: str) -> None:
    listed = await source.list_all()
    server.apply(a_slice("a"))
    server.expire()
    if within == "status":
        server.fault("status", ("watch",), code=410)
    async with watching(source, listed) as told:
        await told.until(lambda told: told.error)
    assert isinstance(told.error, Gone)
    assert told.error.cause == "expired"
    assert told.events == []


@pytest.mark.parametrize(
    ("code", "message"),
    [(400, "bad"), (422, "invalid"), (500, 'resourceVersion: Invalid value: "abc": strconv.ParseUint')],
)
async def test_a_version_that_the_server_cannot_read_needs_a_list(
    server: ApiServer, source: SliceSource, code: int, message: str
) -> None:
    listed = await source.list_all()
    server.fault("status", ("watch",), code=code, message=message)
    async with watching(source, listed) as told:
        await told.until(lambda told: told.error)
    assert isinstance(told.error, Gone)
    assert told.error.cause == "expired"


async def test_a_version_from_the_future_needs_a_list(server: ApiServer, source: SliceSource) -> None:
    listed = await source.list_all()
    status = {"code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
    server.fault("lines", ("watch",), lines=[json.dumps({"type": "ERROR", "object": status})])
    async with watching(source, listed) as told:
        await told.until(lambda told: told.error)
    assert isinstance(told.error, Gone)
    assert told.error.cause == "expired"


INTERNAL = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "no such thing"}})


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (INTERNAL, "error"),
        ("<html>", "foreign"),
        ("[]", "foreign"),
        ('{"type":"ADDED"}', "foreign"),
        ('{"type":"ADDED","object":{"kind":"EndpointSlice"}}', "foreign"),
        ('{"type":"BOOKMARK","object":null}', "foreign"),
    ],
)
async def test_the_same_trouble_at_one_version_twice_needs_a_list(
    server: ApiServer, source: SliceSource, line: str, kind: str
) -> None:
    listed = await source.list_all()
    server.fault("lines", ("watch",), lines=[line])
    async with watching(source, listed) as told:
        await told.until(lambda told: told.error)
    assert isinstance(told.error, Gone)
    assert told.error.cause == "fruitless"
    assert told.failing == [kind]
    assert told.of(Heard) == []


async def test_trouble_that_passes_needs_no_list(server: ApiServer, source: SliceSource) -> None:
    async with watching(source) as told:
        await told.heard()
        for number in range(4):
            server.send(INTERNAL + "\n")
            await told.until(lambda told, number=number: len(told.failing) > number)
            await eventually(lambda: server.watches)
            server.apply(a_slice(f"s{number}"))
            await told.applied(f"s{number}")
            await eventually(lambda: server.watches)
    assert told.error is None
    assert verbs(server).count("list") == 1


async def test_a_server_that_opens_watches_and_fails_each_is_never_taken_for_well(
    server: ApiServer, source: SliceSource
) -> None:
    listed = await source.list_all()
    server.fault("end", ("watch",))
    async with watching(source, listed) as told:
        await told.until(lambda told: len(told.failing) >= 5)
        assert told.of(Heard) == []
        server.heal()
        await told.heard()
    assert set(told.failing) == {"brief"}


async def test_attempts_grow_apart_and_start_over_after_a_success(
    server: ApiServer, connection: ClusterConnection
) -> None:
    pace = PACE._replace(backoff_secs=(0.05, 0.8))
    source = SliceSource(connection, selector=LABEL, pace=pace, dice=lambda: 1.0)
    async with watching(source) as told:
        await told.heard()
        for failures in (4, 8):
            server.requests.clear()
            server.fault("status", ("watch",), code=500)
            server.cut_watches()
            await told.until(lambda told, failures=failures: len(told.failing) >= failures)
            server.heal()
            gaps = [b.at - a.at for a, b in zip(server.requests, server.requests[1:], strict=False)]
            assert [gap >= wait for gap, wait in zip(gaps, (0.1, 0.2), strict=True)] == [True, True]
            assert gaps[0] < 0.75, "it goes on at 0.8 s, where it stopped after four failures"
            before = len(told.of(Heard))
            await told.heard(before + 1)


async def test_a_watch_that_is_refused_waits_as_long_as_the_server_asked(
    server: ApiServer, source: SliceSource
) -> None:
    listed = await source.list_all()
    server.fault("status", ("watch",), times=1, code=429, retry_after=1)
    async with watching(source, listed) as told:
        await told.heard()
    _, first, second = server.requests
    assert 0.95 < second.at - first.at < 2
    assert told.failing == ["throttled"]


async def test_a_watch_that_is_not_allowed_says_which_verb_is_missing(server: ApiServer, source: SliceSource) -> None:
    server.forbidden.add(("watch", "endpointslices"))
    async with watching(source) as told:
        await told.until(lambda told: told.failing)
        assert "verbs: [watch]" in told.of(Failing)[0].reason
        server.forbidden.clear()
        await told.heard()
    assert verbs(server).count("list") == 1


async def test_an_update_that_cannot_be_read_removes_what_was_known(server: ApiServer, source: SliceSource) -> None:
    server.apply_all([a_slice("a"), a_slice("b")])
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("a", addressType=17))
        server.apply(a_slice("b", "10.0.0.7"))
        await told.applied("b")
    assert [event.name.name for event in told.of(Removed)] == ["a"]
    assert source.skipped == 1
    assert names(await source.list_all()) == ["b"]
    assert told.failing == []


async def test_a_deletion_is_told_even_of_what_cannot_be_read(server: ApiServer, source: SliceSource) -> None:
    server.apply(a_slice("a", addressType=17))
    async with watching(source) as told:
        await told.heard()
        server.delete("a")
        await told.removed("a")


async def test_a_slice_of_many_endpoints_comes_through_in_pieces(server: ApiServer, source: SliceSource) -> None:
    endpoints = [{"addresses": [f"10.1.{n // 250}.{n % 250}"], "hostname": "x" * 5000} for n in range(1000)]
    async with watching(source) as told:
        await told.heard()
        server.apply(a_slice("large", endpoints=endpoints))
        await told.applied("large")
    [event] = told.of(Applied)
    assert len(event.slice.endpoints) == 1000


async def test_who_stops_watching_leaves_no_connection(server: ApiServer, source: SliceSource) -> None:
    async with watching(source) as told:
        await told.heard()
        assert len(server.watches) == 1
    await eventually(lambda: not server.watches)


async def test_slices_of_a_list_keep_no_page_in_memory(server: ApiServer, connection: ClusterConnection) -> None:
    source = SliceSource(connection, selector=LABEL)
    server.apply_all([a_slice(f"s{number}", note="x" * 10_000) for number in range(400)])
    tracemalloc.start()
    try:
        listed = await source.list_all()
        kept = listed.slices[7]
        del listed
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.endpoints is not None
    assert held < 1_000_000, "one slice of a page of 4 MB is kept, and much more with it"


@pytest.mark.live
async def test_a_host_that_goes_away_without_a_word_is_told_and_found_again(tmp_path: Path) -> None:
    with ApiServerProcess("--bookmark-secs", "0.1") as server:
        server.call("apply", manifest=a_slice("a"))
        path = write_kubeconfig(tmp_path / "kubeconfig", east=server.url)
        connection = ClusterConnection(find_clusters(str(path), ())[0], DEADLINES)
        async with watching(SliceSource(connection, selector="", pace=IMPATIENT)) as told:
            await told.heard(3)
            assert told.failing == []
            server.freeze()
            await told.until(lambda told: told.failing)
            server.thaw()
            await asyncio.to_thread(server.call, "apply", manifest=a_slice("b"))
            await told.applied("b")
        await connection.close()
        assert set(told.failing) == {"silent"}
        assert [request["verb"] for request in server.call("requests_since")].count("list") == 1


# ---- all of it together


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_the_view_comes_to_equal_the_cluster(
    server: ApiServer, connection: ClusterConnection, seed: int
) -> None:
    source = SliceSource(connection, selector=LABEL, pace=IMPATIENT)
    chance = random.Random(seed)
    server.bookmark_secs = 0.1
    view: dict[str, str | None] = {}
    task = asyncio.create_task(_follow(source, view))

    def write() -> None:
        name = f"s{chance.randrange(6)}"
        if chance.random() < 0.3 and server.objects.get(server.resources[0], "llm", name):
            server.delete(name)
        else:
            labels = {LABEL: "x"} if chance.random() < 0.8 else {"app": "x"}
            kind = "IPv4" if chance.random() < 0.9 else 17
            server.apply(a_slice(name, f"10.0.0.{chance.randrange(250)}", labels, addressType=kind))

    def fail() -> None:
        kind = chance.choice(["status", "html", "truncate", "reset", "json", "hang"])
        server.fault(kind, chance.choice([("list",), ("watch",), ("list", "watch")]), 1, code=500, body={"kind": "x"})

    harm = [server.end_watches, server.cut_watches, server.freeze_watches, server.expire, fail]
    for _ in range(60):
        write()
        if chance.random() < 0.3:
            chance.choice(harm)()
        await asyncio.sleep(chance.random() * 0.03)
    server.heal()
    selected = server.objects.all(server.resources[0], None, lambda labels: LABEL in labels)
    wanted = {
        found["metadata"]["name"]: found["metadata"]["resourceVersion"]
        for found in selected
        if found["addressType"] == "IPv4"
    }
    await eventually(lambda: view == wanted)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _follow(source: SliceSource, view: dict[str, str | None]) -> None:
    async for event in feed.follow(source, Backoff(0.01, 0.05)):
        match event:
            case Listed():
                view.clear()
                view.update((found.metadata.name, found.metadata.resource_version) for found in event.slices)
            case Applied():
                view[event.slice.metadata.name] = event.slice.metadata.resource_version
            case Removed():
                view.pop(event.name.name, None)


async def test_f34_a_list_that_fails_leaves_what_was_known_and_an_empty_one_withdraws_it(
    server: ApiServer, connection: ClusterConnection
) -> None:
    source = SliceSource(connection, selector=LABEL, pace=IMPATIENT)
    server.apply(a_slice("a"))
    view: dict[str, str | None] = {}
    task = asyncio.create_task(_follow(source, view))
    await eventually(lambda: view and server.watches)
    server.fault("html", ("list",))
    server.delete("a")  # unseen, since its event is forgotten before the watch goes on
    server.watches[0].frozen = True
    server.expire()
    await eventually(lambda: verbs(server).count("list") >= 4)
    assert list(view) == ["a"]
    server.heal()
    await eventually(lambda: not view, within=1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
