"""The reference router against frontends on real ports, and against a discovery service that says what a test wants."""

import asyncio
import contextlib
import errno
import gzip
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from yarl import URL

from discovery.model import PoolKey
from tests.documents import PROJECT
from tests.fake_service import FakeService, frame, listing, until
from tests.live import reference_router
from tests.live.mock_frontends import WORDS, MockFrontend, count_by, words_of
from tests.live.reference_router import Router, Target, Turns
from tests.live.signs import free_port

pytestmark = pytest.mark.live

CHAT = "/v1/chat/completions"


class Rig:
    """A service, frontends, the router in this process, and a client of it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.service = FakeService()
        self.frontends: list[MockFrontend] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.router: Router
        self.session: aiohttp.ClientSession
        self._stack = stack

    async def frontend(self, name: str, pool: str = "", behaviour: Any = "answers") -> MockFrontend:
        made = MockFrontend(name, pool or name, behaviour)
        self.frontends.append(made)
        self._stack.push_async_callback(made.end)
        return await made.start()

    async def pool(self, name: str, frontends: int = 1, **fields: Any) -> list[MockFrontend]:
        """A pool that the service lists from now on, or from its start on, with frontends of its own."""
        made = [await self.frontend(f"{name}-{number}", name) for number in range(frontends)]
        self.service.set(listing(name, frontends=[each.url for each in made], **fields))
        return made

    async def start(self, *words: str, listed: bool = True) -> None:
        """The router, once all frontends are in its list."""
        options = reference_router.flags().parse_args(
            ["--listen", f"127.0.0.1:{self.port}", "--url", self.service.url, *words]
        )
        self.router = await self._stack.enter_async_context(reference_router.running(options))
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession(self.url))
        if listed:
            await until(lambda: self.router.pools is not None)

    async def ask(self, path: str = CHAT, model: str = "m", **more: Any) -> tuple[int, Any, Any]:
        """Status, headers and JSON of one answer."""
        async with self.session.post(path, json={"model": model, **more}) as answer:
            return answer.status, answer.headers, await answer.json()

    async def says(self, path: str = CHAT, model: str = "m", **more: Any) -> str:
        """Which frontend answered."""
        status, headers, body = await self.ask(path, model, **more)
        assert status == 200, body
        assert body["choices"][0]["message"]["content"] == headers["X-Frontend"]
        return str(headers["X-Frontend"])

    async def refusal(self, answer: Awaitable[tuple[int, Any, Any]]) -> tuple[int, str | None, str | None]:
        """Status, code and Retry-After of an error in OpenAI's form."""
        status, headers, body = await answer
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")
        assert body["error"]["message"]
        return status, body["error"]["code"], headers.get("Retry-After")

    def lists(self, *names: str) -> bool:
        assert self.router.pools is not None
        return [pool.dgd_name for pool in self.router.pools.snapshot.pools] == list(names)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        made = Rig(stack)
        await stack.enter_async_context(made.service)
        yield made


# ---- passing on


async def test_request_and_answer_pass_through_as_they_are(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    await rig.start()
    body = b'{ "model":"m", "messages": [], "unknown": {"a": [1]} }'
    headers = {
        "Authorization": "Bearer key-of-the-client",
        "Content-Type": "application/json; charset=utf-8",
        "Connection": "X-For-The-Router",
        "X-For-The-Router": "1",
        "X-Request-Id": "asked-1",
    }
    url = URL(f"{rig.url}{CHAT}?a=%2Fb", encoded=True)
    async with rig.session.post(url, data=body, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["X-Frontend"] == "p1-0"
        assert answer.headers["X-Request-Id"] == "asked-1"
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert int(answer.headers["Content-Length"]) == len(await answer.read())
    (served,) = frontend.served
    assert served.path == f"{CHAT}?a=%2Fb"
    assert served.body == body
    assert served.request_id == "asked-1"
    assert served.headers["Authorization"] == "Bearer key-of-the-client"
    assert served.headers["Content-Type"] == "application/json; charset=utf-8"
    assert "X-For-The-Router" not in served.headers
    assert served.headers["Host"] == f"127.0.0.1:{frontend.port}"


async def test_a_packed_body_is_sent_on_unpacked(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    await rig.start()
    body = json.dumps({"model": "m"}).encode()
    async with rig.session.post(CHAT, data=gzip.compress(body), headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 200
    assert frontend.served[0].body == body
    assert "Content-Encoding" not in frontend.served[0].headers


async def test_tokens_pass_as_they_come(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    frontend.gate = asyncio.Event()
    await rig.start()
    async with rig.session.post(CHAT, json={"model": "m", "stream": True}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        first = await answer.content.readuntil(b"\n\n")
        frontend.gate.set()  # not before the first token was here
        rest = await answer.read()
    assert words_of((first + rest).decode()) == list(WORDS)


async def test_what_a_frontend_answers_is_the_answer_also_where_it_refuses(rig: Rig) -> None:
    refusing, answering = await rig.pool("p1", 2)
    refusing.behaviour = answering.behaviour = "refuses"
    await rig.start()
    status, headers, body = await rig.ask()
    assert (status, headers["Retry-After"], body["error"]["code"]) == (429, "7", "rate_limit_exceeded")
    assert len(refusing.served) + len(answering.served) == 1


async def test_whoever_hangs_up_ends_the_work_of_the_frontend(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    frontend.gate = asyncio.Event()
    await rig.start()
    asking = asyncio.create_task(rig.ask(CHAT))
    await until(lambda: frontend.answering)
    asking.cancel()
    await until(lambda: frontend.abandoned == 1)
    assert frontend.answering == 0


async def test_a_body_without_a_model_is_refused(rig: Rig) -> None:
    await rig.pool("p1")
    await rig.start()

    async def post(body: bytes) -> tuple[int, Any, Any]:
        async with rig.session.post(CHAT, data=body) as answer:
            return answer.status, answer.headers, await answer.json()

    assert await rig.refusal(post(b'{"messages": []}')) == (400, "missing_required_parameter", None)
    assert await rig.refusal(post(b'{"model": ""}')) == (400, "missing_required_parameter", None)
    for broken in (b"", b"{", b"[1]", b'{"model": 7}', b"\xff"):
        assert await rig.refusal(post(broken)) == (400, None, None)
    assert (await post(b"{}"))[2]["error"]["param"] == "model"


async def test_what_there_is_not_is_refused_in_the_same_form(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_router, "LARGEST_BODY", 1000)
    await rig.start()

    async def request(method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
        async with rig.session.request(method, path, **more) as answer:
            return answer.status, answer.headers, await answer.json()

    assert (await rig.refusal(request("GET", "/v2/models")))[0] == 404
    assert (await rig.refusal(request("GET", CHAT)))[0] == 405
    assert (await request("GET", CHAT))[1]["Allow"] == "POST"
    assert (await rig.refusal(request("POST", CHAT, data=bytes(2000))))[0] == 413


async def test_models_are_those_of_the_pools(rig: Rig) -> None:
    await rig.pool("p1", model="org/b")
    await rig.pool("p2", model="a")
    await rig.pool("p3", model="a")
    await rig.start()
    async with rig.session.get("/v1/models") as answer:
        found = await answer.json()
    assert found["object"] == "list"
    assert [model["id"] for model in found["data"]] == ["a", "org/b"]
    assert all(set(model) == {"id", "object", "created", "owned_by"} for model in found["data"])
    async with rig.session.get("/v1/models/org/b") as answer:
        assert (await answer.json())["id"] == "org/b"
    async with rig.session.get("/v1/models/c") as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "model_not_found"


# ---- weights


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        ({"a": 5, "b": 1, "c": 1}, "aabacaa"),
        ({"a": 1, "b": 1}, "abab"),
        ({"a": 0.5, "b": 0.25}, "abaaba"),
        ({"a": 3, "b": 0}, "aaa"),
        ({"a": 0, "b": 0}, "abab"),
        ({"a": 7}, "aa"),
    ],
)
def test_turns_are_smooth(weights: dict[str, float], order: str) -> None:
    turns = Turns()
    named: dict[Any, float] = dict(weights)
    assert "".join(str(turns.next(named)) for _ in order) == order


def test_who_left_and_comes_again_begins_anew() -> None:
    turns, a, b, c = Turns(), *(Target(PoolKey("c1", "n1", name), "http://u") for name in "abc")
    for _ in range(2):
        assert [turns.next({a: 1, b: 1, c: 1}) for _ in range(2)] == [a, b]  # c is owed its turn
        turns.forget({a})
        assert turns.next({a: 1}) == a
        turns.forget({})


async def test_models_that_nobody_serves_leave_nothing_behind(rig: Rig) -> None:
    await rig.pool("p1")
    await rig.start()
    assert {(await rig.ask(model=f"other-{number}"))[0] for number in range(20)} == {404}
    await rig.says()
    assert set(rig.router._choice._models) == {"m"}
    await rig.service.drop("p1")
    await until(rig.lists)
    assert (await rig.ask())[0] == 404
    assert not rig.router._choice._models


async def test_pools_weigh_what_they_state_and_share_it_among_their_frontends(rig: Rig) -> None:
    gpus = {"resource": "nvidia.com/gpu", "unit": None}
    await rig.pool("p1", 2, capacity=[{**gpus, "quantity": 8}, {"resource": "memory", "quantity": 999, "unit": "GB"}])
    await rig.pool("p2", 4, capacity=[{**gpus, "quantity": 16}])
    await rig.pool("p3", 1)
    await rig.pool("p4", 1, capacity=[{**gpus, "quantity": 0}])
    await rig.start()
    for _ in range(50):
        await rig.says()
    assert count_by(rig.frontends, lambda frontend: frontend.pool) == {"p1": 16, "p2": 32, "p3": 2, "p4": 0}
    assert {len(each.served) for each in rig.frontends if each.pool in ("p1", "p2")} == {8}


async def test_another_resource_may_count(rig: Rig) -> None:
    await rig.pool("p1", capacity=[{"resource": "slots", "quantity": 3, "unit": None}])
    await rig.pool("p2", capacity=[{"resource": "nvidia.com/gpu", "quantity": 90, "unit": None}])
    await rig.start("--weigh-by", "slots")
    for _ in range(8):
        await rig.says()
    assert count_by(rig.frontends, lambda frontend: frontend.pool) == {"p1": 6, "p2": 2}


async def test_absurd_quantities_still_share(rig: Rig) -> None:
    for name in ("p1", "p2"):
        await rig.pool(name, capacity=[{"resource": "nvidia.com/gpu", "quantity": 1e308, "unit": None}])
    await rig.start()
    for _ in range(8):
        await rig.says()
    assert count_by(rig.frontends, lambda frontend: frontend.pool) == {"p1": 4, "p2": 4}


# ---- what the list says


async def test_no_request_goes_to_a_pool_after_its_delete(rig: Rig) -> None:
    (gone,), (staying,) = await rig.pool("p1"), await rig.pool("p2")
    await rig.start()
    assert {await rig.says() for _ in range(4)} == {"p1-0", "p2-0"}
    await rig.service.drop("p1")
    await until(lambda: rig.lists("p2"))
    before = len(gone.served)
    assert {await rig.says() for _ in range(4)} == {"p2-0"}
    assert (len(gone.served), staying.abandoned) == (before, 0)
    assert {target.pool.dgd_name for target in rig.router._choice._models["m"].turns._credit} == {"p2"}


@pytest.mark.parametrize("complete", [True, False])
async def test_a_delete_that_comes_while_the_connection_is_made_counts(rig: Rig, complete: bool) -> None:
    (gone,) = await rig.pool("p1")
    rig.service.complete = complete
    await rig.start()
    connected, deleted = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> None:
        connected.set()
        await deleted.wait()

    slow = aiohttp.TraceConfig()
    slow.on_connection_create_end.append(wait)
    slow.freeze()
    rig.router._sessions[True].trace_configs.append(slow)
    asking = asyncio.create_task(rig.refusal(rig.ask()))
    await connected.wait()
    await rig.service.drop("p1")
    await until(rig.lists)
    deleted.set()
    assert await asking == ((404, "model_not_found", None) if complete else (503, "pools_unknown", "2"))
    assert gone.served == []


async def test_a_request_on_its_way_is_answered_though_its_pool_goes(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    frontend.gate = asyncio.Event()
    await rig.start()
    asking = asyncio.create_task(rig.says())
    await until(lambda: frontend.answering)
    await rig.service.drop("p1")
    await until(rig.lists)
    frontend.gate.set()
    assert await asking == "p1-0"


async def test_absence_is_only_believed_of_a_complete_list(rig: Rig) -> None:
    await rig.pool("p1")
    rig.service.complete = False
    await rig.start()
    assert await rig.refusal(rig.ask(model="other")) == (503, "pools_unknown", "2")
    await rig.service.tell(frame("complete", {"complete": True}, rig.service.token))
    await until(lambda: rig.router.pools and rig.router.pools.snapshot.complete)
    assert await rig.refusal(rig.ask(model="other")) == (404, "model_not_found", None)


async def test_an_incomplete_list_takes_no_pool_away(rig: Rig) -> None:
    await rig.pool("p1")
    await rig.start()
    empty = frame("snapshot", {"complete": False, "pools": []}, "empty")
    await rig.service.tell(empty)
    await until(lambda: rig.router.pools and not rig.router.pools.snapshot.complete)
    assert await rig.says() == "p1-0"


async def test_without_any_list_everything_is_refused_until_there_is_one(rig: Rig) -> None:
    await rig.pool("p1")
    await rig.service.stop()
    await rig.start(listed=False)
    assert await rig.refusal(rig.ask()) == (503, "pools_unknown", "1")
    async with rig.session.get("/readyz") as answer:
        assert answer.status == 503
    async with rig.session.get("/v1/models") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    await rig.service.start()
    await until(lambda: rig.router.pools is not None, within_secs=10)
    assert await rig.says() == "p1-0"
    async with rig.session.get("/readyz") as answer:
        assert answer.status == 200


async def test_an_old_list_still_says_where_pools_are_but_not_that_there_are_none(rig: Rig) -> None:
    await rig.pool("p1")
    await rig.start()
    assert await rig.refusal(rig.ask(model="other")) == (404, "model_not_found", None)
    await rig.service.stop()
    await until(lambda: rig.router.pools and not rig.router.pools.snapshot.complete, within_secs=15)
    assert await rig.says() == "p1-0"
    assert await rig.refusal(rig.ask(model="other")) == (503, "pools_unknown", "2")
    async with rig.session.get("/status") as answer:
        status = await answer.json()
    assert status["complete"] is False
    assert status["age"] >= 4
    assert status["pools"] == ["c1/n1/p1"]
    assert "cannot connect" in status["trouble"]


async def test_a_pool_without_frontends_is_no_missing_model(rig: Rig) -> None:
    rig.service.set(listing("p1"))
    await rig.start()
    assert await rig.refusal(rig.ask()) == (503, "no_frontend", "2")


# ---- frontends that fail


async def test_a_frontend_that_takes_no_connection_is_passed_over_and_then_rests(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = await rig.pool("p1", 2)
    await dead.end()
    await rig.start()
    for path in (CHAT, "/v1/responses"):  # nothing was sent: everything may be sent elsewhere
        assert {await rig.says(path) for _ in range(5)} == {"p1-1"}
    assert len(alive.served) == 10
    failed = [record for record in caplog.records if "was sent nothing" in record.getMessage()]
    assert len(failed) == 1, "once is enough to know it"


async def test_when_no_frontend_takes_a_connection_the_client_is_told_to_come_again(rig: Rig) -> None:
    frontends = await rig.pool("p1", 3)
    for frontend in frontends:
        await frontend.end()
    await rig.start()
    for _ in range(2):  # also while all of them rest
        assert await rig.refusal(rig.ask()) == (503, "no_frontend", "2")


async def test_frontends_that_rest_are_asked_all_the_same_where_there_are_no_others(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    await frontend.end()
    await rig.start()
    assert await rig.refusal(rig.ask()) == (503, "no_frontend", "2")
    await frontend.start()
    assert await rig.says() == "p1-0"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
async def test_what_a_frontend_dropped_without_an_answer_is_asked_of_another(rig: Rig, path: str) -> None:
    dropping, answering = await rig.pool("p1", 2)
    dropping.behaviour = "drops"
    await rig.start()
    assert {await rig.says(path) for _ in range(4)} == {"p1-1"}
    assert (len(dropping.served), len(answering.served)) == (2, 4)
    assert {served.request_id for served in dropping.served} < {served.request_id for served in answering.served}


@pytest.mark.parametrize(("path", "more"), [(CHAT, {"store": True}), ("/v1/responses", {})])
async def test_what_may_have_had_an_effect_is_not_sent_twice(rig: Rig, path: str, more: dict[str, Any]) -> None:
    for frontend in await rig.pool("p1", 2):
        frontend.behaviour = "drops"
    await rig.start()
    assert await rig.refusal(rig.ask(path, **more)) == (502, "frontend_failed", None)
    assert sum(len(frontend.served) for frontend in rig.frontends) == 1


async def test_what_must_not_be_sent_twice_gets_a_connection_of_its_own(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    await rig.start()
    for _ in range(3):
        await rig.says()
    assert len({id(served.connection) for served in frontend.served}) == 1
    for _ in range(3):
        await rig.says(store=True)
    assert all(served.headers["Connection"] == "close" for served in frontend.served[3:])


async def test_a_request_that_breaks_frontends_does_not_break_all_of_them(rig: Rig) -> None:
    for frontend in await rig.pool("p1", 6):
        frontend.behaviour = "drops"
    await rig.start()
    assert await rig.refusal(rig.ask()) == (502, "frontend_failed", None)
    assert sum(len(frontend.served) for frontend in rig.frontends) == 3


async def test_a_frontend_that_answers_nonsense_did_answer(rig: Rig) -> None:
    for frontend in await rig.pool("p1", 2):
        frontend.behaviour = "babbles"
    await rig.start()
    assert await rig.refusal(rig.ask()) == (502, "frontend_failed", None)
    assert sum(len(frontend.served) for frontend in rig.frontends) == 1


async def test_an_answer_that_breaks_off_is_neither_mended_nor_asked_again(rig: Rig) -> None:
    for frontend in await rig.pool("p1", 2):
        frontend.behaviour = "breaks"
    await rig.start()
    async with rig.session.post(CHAT, json={"model": "m", "stream": True}) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    assert sum(len(frontend.served) for frontend in rig.frontends) == 1


async def test_a_frontend_that_falls_silent_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_router, "SILENCE_SECS", 0.3)
    for frontend in await rig.pool("p1", 2):
        frontend.gate = asyncio.Event()
    await rig.start()
    assert await rig.refusal(rig.ask()) == (504, "frontend_silent", None)
    assert sum(len(frontend.served) for frontend in rig.frontends) == 1, "it may just be slow: another would be as slow"


# ---- the program


@contextlib.asynccontextmanager
async def program(rig: Rig, *words: str) -> AsyncIterator["Program"]:
    """The router as a process, once it has the pool p1."""
    command = [str(PROJECT / "tests/live/reference_router.py"), "--listen", f"127.0.0.1:{rig.port}", *words]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--url", rig.service.url, "--verbose", stderr=asyncio.subprocess.PIPE
    )
    try:
        running = Program(process)
        await running.says("pool c1/n1/p1 is listed")
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Program:
    """A process whose log is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def says(self, words: str) -> None:
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            while not self.lines or words not in self.lines[-1]:
                self.lines.append((await self.process.stderr.readline()).decode())
                assert self.lines[-1], "".join(self.lines)


async def test_at_sigterm_what_has_begun_is_answered_and_nothing_else_begins(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    frontend.gate = asyncio.Event()
    asked = {"model": "m", "stream": True}
    async with program(rig) as running, aiohttp.ClientSession(rig.url) as session:
        async with session.post(CHAT, json=asked) as answer:
            first = await answer.content.readuntil(b"\n\n")
            running.process.send_signal(signal.SIGTERM)
            await until(lambda: refuses(rig.port))
            for _ in range(10):
                await asyncio.sleep(0.05)
                assert frontend.answering, "what has begun is not given up"
            frontend.gate.set()
            rest = await answer.read()
        await running.says(" ended")
        assert await running.process.wait() == 0
    assert words_of((first + rest).decode()) == list(WORDS)
    assert any(frontend.served[0].request_id in line and "goes to" in line for line in running.lines)


async def test_what_does_not_end_within_the_grace_is_cut(rig: Rig) -> None:
    (frontend,) = await rig.pool("p1")
    frontend.gate = asyncio.Event()
    async with program(rig, "--grace-secs", "0.3") as running, aiohttp.ClientSession(rig.url) as session:
        async with session.post(CHAT, json={"model": "m", "stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        await running.says(" ended")
        assert await running.process.wait() == 0
    await until(lambda: frontend.abandoned)


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
