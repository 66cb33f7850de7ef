"""The client for programs without an event loop: the same as the asynchronous one, from any thread, and it ends."""

import asyncio
import gc
import inspect
import logging
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from discovery import client as asynchronous
from discovery.client import NoAnswer, Snapshot
from discovery.client.sync import Client, Closed, Heartbeat, Pools
from discovery.errors import Misconfigured, Rejected, Unavailable
from discovery.model import PoolKey, Registration
from tests.fake_service import Canned, FakeService, listing
from tests.live.replica import PROJECT
from tests.live.signs import await_sign, free_port

REGISTRATION = Registration("c1", "n1", "p1", "m", instance_id="one")


class ServiceThread:
    """The fake service, on a loop of its own, since whoever calls here is held up."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.fake = FakeService()
        self.do(self.fake.start())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def put(self, *names: str) -> None:
        self.do(self.fake.put(*map(listing, names)))

    def gate(self) -> Callable[[], None]:
        """The next answer to each of these is held back until this is called."""
        gate = asyncio.Event()
        for method in ("GET", "POST"):
            self.fake.can(method, Canned(503, {}, ("Retry-After: 1",), gate))
        return lambda: self.loop.call_soon_threadsafe(gate.set) and None

    def asked(self, method: str) -> bool:
        return bool(self.fake.requests(method))

    @property
    def open_streams(self) -> int:
        return sum(not stream.gone for stream in self.fake.streams)

    def close(self) -> None:
        self.do(self.fake.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def service() -> Iterator[ServiceThread]:
    served = ServiceThread()
    try:
        yield served
    finally:
        served.close()
    await_sign(lambda: not client_threads(), 5, "no thread of a client is left")


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "discovery client"]


def names(snapshot: Snapshot) -> list[str]:
    return [pool.dgd_name for pool in snapshot.pools]


@contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[Any]:
    """``work`` in another thread; gives its future."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


# ---- the same as the asynchronous one


def test_lists_and_routers_are_those_of_the_asynchronous_client(service: ServiceThread) -> None:
    service.put("b", "a")

    async def asked() -> Any:
        async with asynchronous.Client(service.fake.url) as client:
            return await client.list(model="m"), await client.routers()

    with Client([service.fake.url]) as client:
        assert (client.list(model="m"), client.routers()) == asyncio.run(asked())
        assert names(client.list()) == ["a", "b"]
    assert service.fake.seen[0].target == "/pools?model=m"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Client, asynchronous.Client),
        (Pools, asynchronous.Pools),
        (Heartbeat, asynchronous.Heartbeat),
    ],
    ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
)
def test_nothing_is_lacking(ours: type, theirs: type) -> None:
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        assert hasattr(ours, name), f"{theirs.__name__} has {name}"
    blocks = {"follow", "register"}
    for name in ("__init__", *blocks, "list", "deregister", "routers", "explain", "compare"):
        if theirs is asynchronous.Client:
            mine, other = inspect.signature(getattr(ours, name)), inspect.signature(getattr(theirs, name))
            assert mine.parameters == other.parameters, name
            assert "async" not in (getattr(ours, name).__doc__ or "")


def test_errors_are_the_same(service: ServiceThread) -> None:
    fault = {"title": "Invalid", "detail": "not so", "errors": [{"path": "$.model", "message": "too long"}]}
    service.fake.can("POST", Canned(422, fault))
    service.fake.can("GET", Canned(503, {"detail": "starting"}), Canned(200, "no list"))
    with Client(service.fake.url) as client:
        with pytest.raises(Rejected, match="not so") as refused, client.register(REGISTRATION):
            raise AssertionError("the block must not run")
        assert refused.value.faults == (("$.model", "too long"),)
        with pytest.raises(Unavailable, match="starting"):
            client.list()
        with pytest.raises(Unavailable, match="is it a discovery service"):
            client.list()
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(NoAnswer):
            client.list()
        with pytest.raises(Unavailable), client.follow(patience_secs=0):
            raise AssertionError("the block must not run")
    with pytest.raises(Misconfigured):
        Client("no URL")


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.list(modell="m"),
        lambda client: client.list("m"),
        lambda client: client.follow(modell="m").__enter__(),
        lambda client: client.register("c1/n1/p1").__enter__(),
        lambda client: client.deregister(),
        lambda client: client.routers(1),
    ],
)
def test_a_call_that_cannot_be_made_raises_and_holds_nobody_up(call: Callable[[Any], Any]) -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(TypeError):
        call(client)


def test_pools_are_followed_and_each_change_is_given(service: ServiceThread) -> None:
    service.put("a")
    with Client(service.fake.url) as client, client.follow(model="m") as pools:
        assert names(pools.snapshot) == ["a"]
        service.put("b")
        changes = iter(pools)
        assert names(next(changes)) == ["a", "b"]
        with meanwhile(lambda: names(next(changes))) as told:
            service.put("c")
            assert told.result(5) == ["a", "b", "c"]
        service.do(service.fake.stop())
        await_sign(lambda: pools.trouble, 5, "it says that the stream is lost")
        assert names(pools.snapshot) == ["a", "b", "c"]
        service.do(service.fake.start())
        service.put("d")
        assert names(next(changes)) == ["a", "b", "c", "d"]
        await_sign(lambda: pools.trouble is None, 5, "no trouble is left")
    assert [*changes] == []


def test_waiting_for_a_change_has_a_limit_and_misses_none(service: ServiceThread) -> None:
    with Client(service.fake.url) as client, client.follow() as pools:
        with pytest.raises(TimeoutError):
            pools.changed(timeout_secs=0.05)
        before = pools.version
        service.put("a")
        assert pools.changed(timeout_secs=5)
        assert names(pools.snapshot) == ["a"]
        with pytest.raises(TimeoutError):
            pools.changed(timeout_secs=0.05)
        assert pools.changed(before)
        service.put("b")
        await_sign(lambda: names(pools.snapshot) == ["a", "b"], 5, "the change is there")
        with pytest.raises(TimeoutError):  # seen in the snapshot
            pools.changed(timeout_secs=0.05)
    assert not pools.changed()


def test_a_snapshot_is_read_without_waiting_for_the_loop(service: ServiceThread) -> None:
    service.put("a")
    stuck = threading.Event()
    with Client(service.fake.url) as client, client.follow() as pools:
        with pools_of_another_thread(pools) as other:
            assert other.result(5) == ["a"]
        turning = client._background._begun().loop
        turning.call_soon_threadsafe(stuck.wait)
        try:
            first, second = pools.snapshot, pools.snapshot
            assert names(first) == ["a"]
            assert (first.complete, first.etag) == (True, service.fake.token)
            assert 0 <= first.age <= second.age < 5
        finally:
            stuck.set()
        service.put("b")
        await_sign(lambda: names(pools.snapshot) == ["a", "b"], 5, "the change is there")
        service.do(service.fake.stop())
        await_sign(lambda: pools.snapshot.age > 0.5, 5, "it ages while nobody confirms it")
    with pytest.raises(Closed):
        pools.snapshot  # noqa: B018


def pools_of_another_thread(pools: Pools) -> Any:
    return meanwhile(lambda: names(pools.snapshot))


def test_a_pool_is_registered_while_the_block_runs(service: ServiceThread) -> None:
    with Client(service.fake.url) as client:
        with client.register(REGISTRATION) as heartbeat:
            assert heartbeat.accepted is not None
            assert heartbeat.settled(5) == heartbeat.accepted
            assert heartbeat.registration == REGISTRATION
            assert heartbeat.trouble is None
            assert names(client.list()) == ["p1"]
            heartbeat.update(Registration("c1", "n1", "p1", "another", instance_id="one"))
            await_sign(lambda: names(client.list()) and client.list().pools[0].model == "another", 5, "it is updated")
            with pytest.raises(ValueError, match="another pool"):
                heartbeat.update(Registration("c1", "n1", "p2", "m"))
        assert names(client.list()) == []
        with client.register(REGISTRATION, keep_on_exit=True):
            pass
        assert names(client.list()) == ["p1"]
        client.deregister(PoolKey("c1", "n1", "p1"))
        assert names(client.list()) == []


# ---- threads, loops, ends


def test_many_threads_use_one_client(service: ServiceThread) -> None:
    threads = 8
    entered = threading.Barrier(threads + 1)
    with Client(service.fake.url) as client, client.follow() as shared, ThreadPoolExecutor(threads) as pool:

        def follow() -> list[list[str]]:
            with client.follow() as own:
                entered.wait(10)
                assert shared.changed(timeout_secs=10)
                assert own.changed(timeout_secs=10)
                return [names(found) for found in (shared.snapshot, own.snapshot, client.list())]

        told = [pool.submit(follow) for _ in range(threads)]
        entered.wait(10)
        service.put("a")
        assert [each.result(10) for each in told] == [[["a"]] * 3] * threads
        assert len(client_threads()) == 1


async def test_within_a_running_loop_calls_work(service: ServiceThread) -> None:
    service.put("a")
    with Client(service.fake.url) as client:
        assert names(client.list()) == ["a"]
        with client.follow() as pools, client.register(REGISTRATION):
            assert names(pools.snapshot) == ["a"]
            assert names(client.list()) == ["a", "p1"]
    assert list(service.fake.pools) == [("c1", "n1", "a")]


def test_a_client_that_is_not_called_needs_no_thread_and_no_end() -> None:
    before = client_threads()
    client = Client("http://127.0.0.1:9")
    assert client_threads() == before
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.list()


def test_after_the_end_every_call_says_so_and_blocks_have_ended(service: ServiceThread) -> None:
    client = Client(service.fake.url)
    pools, heartbeat = client.follow(), client.register(REGISTRATION)
    with pools, heartbeat:
        assert service.fake.pools
        client.close()
        assert not service.fake.pools
        await_sign(lambda: service.open_streams == 0, 5, "the stream has ended")
        assert list(pools) == []
        assert not pools.changed(pools.version)
        calls = [client.list, client.routers, lambda: pools.snapshot, heartbeat.settled, client.follow().__enter__]
        for call in calls:
            with pytest.raises(Closed, match="within its block"):
                call()
    client.close()


def test_closing_ends_what_other_threads_wait_for(service: ServiceThread) -> None:
    release = service.gate()
    client = Client(service.fake.url)
    with client.follow() as pools, meanwhile(lambda: list(pools)) as changes, meanwhile(client.list) as listed:
        await_sign(lambda: service.asked("GET"), 5, "the list is asked for")
        client.close()
        assert changes.result(5) == []
        with pytest.raises(Closed):
            listed.result(5)
    release()


def test_a_block_that_is_being_left_is_left_once_when_the_client_is_closed(service: ServiceThread) -> None:
    held = asyncio.Event()
    client = Client(service.fake.url)
    heartbeat = client.register(REGISTRATION).__enter__()
    service.fake.can("DELETE", Canned(204, gate=held))
    with meanwhile(lambda: heartbeat.__exit__(None, None, None)) as left, meanwhile(client.close) as closed:
        await_sign(lambda: service.asked("DELETE"), 5, "it is being deregistered")
        service.loop.call_soon_threadsafe(held.set)
        left.result(5)
        closed.result(5)
    assert len(service.fake.requests("DELETE")) == 1


def entered_and_forgotten(service: ServiceThread) -> list[Any]:
    client = Client(service.fake.url)
    return [client.follow().__enter__(), client.register(REGISTRATION).__enter__()]


def test_a_forgotten_client_ends_and_is_warned_about(service: ServiceThread) -> None:
    blocks = entered_and_forgotten(service)
    gc.collect()
    assert names(blocks[0].snapshot) == []  # the blocks keep it
    assert service.open_streams == 1
    with pytest.warns(ResourceWarning, match="never closed"):
        blocks.clear()
    await_sign(lambda: not service.open_streams and not service.fake.pools, 5, "all is left")


def test_its_own_thread_is_told_that_it_would_wait_for_itself(service: ServiceThread) -> None:
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                client.list()
            except RuntimeError as error:
                told.append(str(error))

    logger, handler = logging.getLogger("discovery.client.heartbeat"), Handler(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Client(service.fake.url) as client, client.register(REGISTRATION):
            pass
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(told) == 2
    assert all("would wait for itself" in text for text in told)


# ---- whole programs


BEGIN = """
import os, sys
import discovery.client.heartbeat
from discovery.client.sync import Client
from discovery.model import Registration
assert "aiohttp" not in sys.modules
discovery.client.heartbeat.LAST_POST_SECS = 0.2
registration = Registration("c1", "n1", "p1", "m")
say = print
"""


@contextmanager
def running(service: ServiceThread, text: str) -> Iterator["subprocess.Popen[str]"]:
    """A script that has a client called ``client``; its errors come with its output."""
    made = f"client = Client({service.fake.url!r})\n"
    with script(BEGIN + made + textwrap.dedent(text)) as process:
        yield process


@contextmanager
def script(text: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-W", "default", "-u", "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("sign", "asks", "text"),
    [
        (
            "STREAM",
            "an iteration",
            """
            with client, client.register(registration), client.follow() as pools:
                for snapshot in pools: pass
            """,
        ),
        (
            "POST",
            "the entering of a block, of which nobody knows whether it was taken",
            """
            with client, client.register(registration):
                say("the block must not run")
            """,
        ),
        (
            "GET",
            "a list, with a pool registered and nothing closed",
            """
            heartbeat = client.register(registration).__enter__()
            client.list()
            """,
        ),
    ],
    ids=lambda value: value if " " in value and "\n" not in value else "",
)
def test_ctrl_c_ends_what_is_waited_for_and_deregisters(
    service: ServiceThread, sign: str, asks: str, text: str
) -> None:
    del asks
    never = asyncio.Event()
    if sign != "STREAM":
        service.fake.can(sign, Canned(200, gate=never))
    with running(service, text) as process:
        waits = {"STREAM": lambda: service.open_streams, "POST": lambda: service.asked("POST")}
        await_sign(waits.get(sign, lambda: service.asked("GET")), 10, "it waits")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=15)
    assert output.rstrip().endswith("KeyboardInterrupt"), output
    assert "Warning" not in output.replace("ResourceWarning: a client of the discovery service was never closed", "")
    assert process.returncode == -signal.SIGINT
    assert len(service.fake.requests("DELETE")) == 1
    assert not service.fake.pools
    assert not service.open_streams


def test_a_program_that_closes_nothing_ends_quietly_and_leaves_no_pool(service: ServiceThread) -> None:
    text = """
    heartbeat = client.register(registration).__enter__()
    pools = client.follow().__enter__()
    say([pool.dgd_name for pool in client.list().pools])
    """
    with running(service, text) as process:
        output, _ = process.communicate(timeout=15)
    assert (output, process.returncode) == ("['p1']\n", 0)
    assert len(service.fake.requests("DELETE")) == 1
    assert not service.open_streams


def test_a_program_ends_though_a_thread_still_waits_for_changes(service: ServiceThread) -> None:
    text = """
    import threading
    heartbeat = client.register(registration).__enter__()
    pools = client.follow().__enter__()
    waiting = threading.Thread(target=lambda: say(pools.changed(pools.version), list(pools)))
    waiting.start()
    say("the main thread ends")
    """
    with running(service, text) as process:
        output, _ = process.communicate(timeout=15)
    assert (output, process.returncode) == ("the main thread ends\nFalse []\n", 0)
    assert len(service.fake.requests("DELETE")) == 1


def test_a_fork_while_another_thread_makes_a_call_leaves_no_lock_behind(service: ServiceThread) -> None:
    text = f"""
    idle = Client({service.fake.url!r})
    idle._background._lock.acquire()  # as another thread would hold it for a moment
    import threading
    def forking():
        child = os.fork()
        if not child:
            say([pool.dgd_name for pool in idle.list().pools])
            idle.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread = threading.Thread(target=forking)
    thread.start()
    thread.join()
    """
    with running(service, text) as process:
        output, _ = process.communicate(timeout=15)
    assert (output, process.returncode) == ("[]\n", 0)


def test_after_a_fork_a_client_that_was_used_says_so_and_another_works(service: ServiceThread) -> None:
    text = f"""
    idle = Client({service.fake.url!r})
    with client, client.register(registration):
        child = os.fork()
        if not child:
            try: client.list()
            except RuntimeError as error: say(error)
            say([pool.dgd_name for pool in idle.list().pools])
            idle.close()
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        say([pool.dgd_name for pool in client.list().pools])
    """
    with running(service, text) as process:
        output, _ = process.communicate(timeout=15)
    said = "the client was in use before the process forked: make one in each process"
    assert (output, process.returncode) == (f"{said}\n['p1']\n['p1']\n", 0)
    assert len(service.fake.requests("DELETE")) == 1


def test_no_extra_is_needed(service: ServiceThread) -> None:
    text = """
    with client: client.list(); client.explain
    extras = "hiredis httptools kubernetes prometheus_client redis starlette uvicorn uvloop yaml".split()
    say(set(extras) & set(sys.modules))
    """
    with running(service, text) as process:
        output, _ = process.communicate(timeout=15)
    assert (output, process.returncode) == ("set()\n", 0)


def test_the_program_in_the_readme_runs_as_it_stands(service: ServiceThread) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in blocks if "discovery.client.sync" in block)
    assert "http://127.0.0.1:8080" in text
    service.put("a")
    with script(text.replace("http://127.0.0.1:8080", service.fake.url)) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        service.put("b")
        second = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(15)
    assert [[f"dgd_name='{name}'" in line for name in "ab"] for line in (first, second)] == [[True, False], [True] * 2]
