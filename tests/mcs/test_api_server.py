"""The fake API server is held against recordings of a real one, so that the tests that use it test no fantasy."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.mcs.api_objects import selector
from tests.mcs.api_process import ApiServerProcess, ApiServerThread
from tests.mcs.api_server import ApiServer

RECORDINGS = Path(__file__).parent / "recordings"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SECOND = 0.02
"""The server's second in the replay: what was recorded over 75 s takes 1.5."""


class Recording:
    """One exchange with a real API server."""

    def __init__(self, number: int) -> None:
        [path] = RECORDINGS.glob(f"{number:02}-*.json")
        said = json.loads(path.read_text())
        self.request: dict[str, Any] = said["request"]
        self.status: int = said["status"]
        self.headers: dict[str, str] = said["headers"]
        self.body: Any = said.get("body")
        self.lines: list[dict[str, Any]] = [entry["line"] for entry in said.get("lines", ())]
        self.times: list[float] = [entry["at_s"] for entry in said.get("lines", ())]
        self.end: str | None = said.get("end")


class Replay:
    """Sends recorded requests to the fake server."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    def ask(self, recording: Recording, token: str = "good") -> Any:
        """The recorded request, as a context manager."""
        assert recording.request["method"] == "GET"
        return self._session.get(
            self.server.url + recording.request["path"],
            params=recording.request["query"],
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
        )

    async def same_answer(self, number: int, token: str = "good") -> None:
        """One exchange that is no watch: same status, headers and body."""
        recording = Recording(number)
        async with self.ask(recording, token) as response:
            assert response.status == recording.status
            assert {name: response.headers.get(name) for name in recording.headers} == recording.headers
            assert ("Transfer-Encoding" in response.headers) == ("Transfer-Encoding" in recording.headers)
            assert await response.json() == recording.body

    async def same_watch(self, number: int, *writes: dict[str, Any]) -> None:
        """One watch, during which objects are written: same lines, at about the same times, and the same end."""
        recording = Recording(number)
        loop = asyncio.get_running_loop()
        async with self.ask(recording) as response:
            began_at = loop.time()
            assert response.status == recording.status
            assert {name: response.headers.get(name) for name in recording.headers} == recording.headers
            for line in writes:
                self.write(line)
            lines, times = [], []
            async for line in response.content:
                lines.append(json.loads(line))
                times.append((loop.time() - began_at) / SECOND)
        assert lines == recording.lines
        assert recording.end == "server closed the stream"
        for recorded, now, line in zip(recording.times, times, lines, strict=True):
            if line["type"] == "BOOKMARK":
                assert abs(recorded - now) < 6, f"a bookmark came after {now} s, and in the recording after {recorded}"

    def write(self, line: dict[str, Any]) -> None:
        """Do what an event tells of."""
        metadata = line["object"]["metadata"]
        match line["type"]:
            case "ADDED" | "MODIFIED":
                self.server.apply(line["object"])
            case "DELETED":
                self.server.delete(metadata["name"], metadata["namespace"])


@pytest.fixture
async def replay() -> AsyncIterator[Replay]:
    async with ApiServer(tokens={"good"}, second=SECOND) as server, aiohttp.ClientSession() as session:
        yield Replay(server, session)


async def test_every_recorded_exchange_comes_out_the_same(replay: Replay) -> None:
    server = replay.server
    await replay.same_answer(1)
    for item in sorted(Recording(2).body["items"], key=lambda item: int(item["metadata"]["resourceVersion"])):
        server.apply(item)
    for lists in (2, 3, 4, 5, 6, 7):
        await replay.same_answer(lists)

    await replay.same_watch(8, *[line for line in Recording(8).lines if line["type"] != "BOOKMARK"])
    # What the selection of 9 sees as leaving and coming back, 10 sees as it was written.
    await replay.same_watch(9, *Recording(10).lines)
    for watch in (10, 11, 12):
        await replay.same_watch(watch)
    for refused in (13, 14, 15, 17):
        await replay.same_answer(refused)
    await replay.same_answer(16, token="wrong")

    server.objects.compact()
    server.old_lists_kept = True
    await replay.same_answer(18)
    server.old_lists_kept = False
    await replay.same_answer(19)
    server.objects.expire(21)
    await replay.same_watch(20)


async def test_a_server_that_shuts_down_is_silent_at_first(replay: Replay) -> None:
    recording = Recording(21)
    for number in range(int(recording.request["query"]["resourceVersion"]) - 1):
        replay.server.apply({"metadata": {"name": f"slice-{number}", "namespace": "llm"}})
    async with replay.ask(recording) as response:
        assert response.status == recording.status
        await replay.server.refuse()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 15 * SECOND)
    assert recording.lines == []
    assert recording.end == "client stopped reading"


async def test_a_page_of_an_expired_version_is_gone_and_offers_a_token_of_another(replay: Replay) -> None:
    for name in "abc":
        replay.server.apply({"metadata": {"name": name, "namespace": "llm"}})
    async with replay._session.get(replay.server.url + SLICES, params={"limit": "2"}, headers=_good()) as response:
        token = (await response.json())["metadata"]["continue"]
    replay.server.expire()
    async with replay._session.get(replay.server.url + SLICES, params={"continue": token}, headers=_good()) as response:
        said = await response.json()
    assert (response.status, said["reason"], said["code"]) == (410, "Expired", 410)
    assert said["metadata"]["continue"]


async def test_streaming_lists_can_be_switched_off(replay: Replay) -> None:
    replay.server.initial_events_allowed = False
    query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with replay._session.get(replay.server.url + SLICES, params=query, headers=_good()) as response:
        assert response.status == 422


def _good() -> dict[str, str]:
    return {"Authorization": "Bearer good"}


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("", {"none", "a1", "a2", "b1"}),
        ("a", {"a1", "a2"}),
        ("!a", {"none", "b1"}),
        ("a=1", {"a1"}),
        ("a==1", {"a1"}),
        ("a!=1", {"none", "a2", "b1"}),
        ("a in (1,2)", {"a1", "a2"}),
        ("a in (1, 3)", {"a1"}),
        ("a notin (1)", {"none", "a2", "b1"}),
        ("!a,b", {"b1"}),
        ("a,a notin (2,3)", {"a1"}),
        ("x.example/y-z", set()),
    ],
)
def test_selectors_match_as_kubernetes_documents_them(text: str, matching: set[str]) -> None:
    objects = {"none": {}, "a1": {"a": "1"}, "a2": {"a": "2"}, "b1": {"b": "1"}}
    assert {name for name, labels in objects.items() if selector(text)(labels)} == matching


@pytest.mark.parametrize("text", ["a in 1", "a,(b)", "a b", "a in (1", "a~b=c d"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse"):
        selector(text)


async def test_it_runs_beside_a_test_that_does_not_turn_its_loop() -> None:
    with ApiServerThread(tokens=["good"]) as server:
        server.call("apply", manifest={"metadata": {"name": "a", "namespace": "llm"}})
        async with aiohttp.ClientSession() as session, session.get(server.url + SLICES, headers=_good()) as response:
            assert [item["metadata"]["name"] for item in (await response.json())["items"]] == ["a"]
        assert [request["status"] for request in server.call("requests_since")] == [200]


@pytest.mark.live
async def test_it_runs_as_a_process_with_controls() -> None:
    with ApiServerProcess("--token", "good", "--resource", "clusterproperties") as server:
        property_ = {"kind": "ClusterProperty", "metadata": {"name": "a"}, "spec": {"value": "east-1"}}
        server.call("apply_all", manifests=[{"metadata": {"name": "a", "namespace": "llm"}}, property_])
        server.call("accept_tokens", tokens=["better"])
        async with aiohttp.ClientSession() as session:
            async with session.get(server.url + SLICES, headers=_good()) as response:
                assert response.status == 401
            path = "/apis/about.k8s.io/v1beta1/clusterproperties/a"
            async with session.get(server.url + path, headers={"Authorization": "Bearer better"}) as response:
                assert (await response.json())["spec"] == {"value": "east-1"}
        log = server.call("requests_since")
        assert [(request["status"], request["has_authorization"]) for request in log] == [(401, True), (200, True)]
        assert "good" not in json.dumps(log)
