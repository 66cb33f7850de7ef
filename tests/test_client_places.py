"""Names with many addresses: each address is a place to try, and dead ones cost a moment."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest

from discovery.client import Client, NoAnswer
from discovery.client import places as places_module
from discovery.client.answers import all_of
from discovery.client.places import Place, Places
from discovery.client.race import Progress, Race, Stage
from discovery.client.service import Request, Service
from discovery.client.transport import Connections
from discovery.errors import Rejected, Unavailable
from discovery.model import PoolKey, Registration
from tests.fake_service import Canned, FakeService, listing, until
from tests.live.signs import free_port
from tests.virtual_time import VirtualTimeLoop

LIST = Request("GET", "/pools")


class Names:
    """A resolver: ``addresses`` are those of every name; what is an exception fails so, a future hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.addresses: list[str] | OSError | asyncio.Future[None] = list(addresses)
        self.asked = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._found, raising=False)

    async def _found(self, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.asked += 1
        match self.addresses:
            case OSError():
                raise self.addresses
            case asyncio.Future():
                await self.addresses
                return []
            case addresses:
                families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
                return [(family, 1, 6, "", (address, 0)) for family, address in zip(families, addresses, strict=True)]


@asynccontextmanager
async def at(port: int, *hosts: str) -> AsyncIterator[list[FakeService]]:
    """A replica at each of these addresses."""
    async with AsyncExitStack() as ended:
        replicas = []
        for host in hosts:
            replica = FakeService()
            replica.host, replica.port = host, port
            replica.set(listing(f"at-{host}"))
            replicas.append(await ended.enter_async_context(replica))
        yield replicas


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """An address that takes no connection and refuses none: the queue of one that listens is full."""
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield


def ordered(connections: Connections, *addresses: str) -> None:
    """Begin with these, in this order: the order is random otherwise."""
    for url, known in connections._places._known.items():
        connections._places._known[url] = sorted(known, key=lambda place: addresses.index(str(place.address)))
    connections._places._preferred = None


async def resolved(connections: Connections, *addresses: str) -> None:
    await connections._places.in_turn()
    ordered(connections, *addresses)


async def test_every_address_of_a_name_is_tried_under_the_url_s_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    Names(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    async with at(port, "127.0.0.3") as (third,), Client(f"http://discovery.test:{port}") as client:
        assert [pool.dgd_name for pool in (await client.list()).pools] == ["at-127.0.0.3"]
        assert len((await client.routers()).routers) == 2
        await client.deregister(PoolKey("c", "n", "p"))
        async with client.follow() as pools:
            assert pools.snapshot.complete
        async with client.register(Registration("c1", "n1", "p1", "m")) as heartbeat:
            assert heartbeat.accepted
        assert {seen.headers["host"] for seen in third.seen} == {f"discovery.test:{port}"}


async def test_clients_begin_at_different_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    begun = set()
    for _ in range(60):
        found, _ = await Places(["http://discovery.test"]).in_turn()
        assert len(found) == 3
        begun.add(found[0].address)
    assert begun == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}


async def test_new_addresses_are_found_and_gone_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "AFTER_FAILURE_SECS", 0.0)
    port = free_port()
    names = Names(monkeypatch, "127.0.0.1")
    async with Client(f"http://discovery.test:{port}") as client:
        async with at(port, "127.0.0.1"):
            assert (await client.list()).pools[0].dgd_name == "at-127.0.0.1"
        names.addresses = ["127.0.0.2"]
        async with at(port, "127.0.0.1", "127.0.0.2") as (first, _):
            client._connections.move_on()
            assert (await client.list()).pools[0].dgd_name == "at-127.0.0.2"
            assert first.seen == []


async def test_a_resolver_that_fails_or_hangs_takes_no_place_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "AFTER_FAILURE_SECS", 0.0)
    monkeypatch.setattr(places_module, "KNOWN_SECS", 0.02)
    port = free_port()
    names = Names(monkeypatch, "127.0.0.1")
    async with at(port, "127.0.0.1"), Client(f"http://discovery.test:{port}") as client:
        assert (await client.list()).complete
        never = asyncio.get_running_loop().create_future()
        for broken in (socket.gaierror(socket.EAI_AGAIN, "later"), [], never):
            names.addresses = broken
            client._connections.move_on()
            assert (await client.list()).complete
        asked = names.asked
        for _ in range(3):  # it is still being asked
            client._connections.move_on()
            assert (await client.list()).complete
        assert names.asked == asked


async def test_a_name_without_an_address_is_said_to_be_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    names.addresses = socket.gaierror(socket.EAI_NONAME, "no")
    async with Client("http://discovery.test") as client:
        with pytest.raises(NoAnswer, match=r"cannot connect to http://discovery.test: the name cannot be resolved"):
            await client.list()
    async with FakeService() as service, Client(["http://discovery.test", service.url]) as client:
        assert (await client.list()).complete


async def test_an_address_that_takes_no_connection_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    Names(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    connections = Connections(Service([f"http://discovery.test:{port}"]))
    loop = asyncio.get_running_loop()
    with black_hole("127.0.0.1", port), black_hole("127.0.0.2", port):
        async with at(port, "127.0.0.3") as (third,):
            await resolved(connections, "127.0.0.1", "127.0.0.2", "127.0.0.3")
            started = loop.time()
            await connections.request(LIST, deadline_secs=30)
            assert 0.5 < loop.time() - started < 2.5  # and not three seconds for each
            ordered(connections, "127.0.0.1", "127.0.0.2", "127.0.0.3")
            async with connections.stream(Request("GET", "/pools/events")) as stream:
                assert stream.base == f"http://discovery.test:{port} (127.0.0.3)"
            assert len(third.seen) == 2
        await connections.close()


async def test_a_replica_that_takes_the_connection_and_says_nothing_is_asked_beside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("discovery.client.race.ANSWERS_SECS", 0.2)
    port = free_port()
    Names(monkeypatch, "127.0.0.1", "127.0.0.2")
    connections = Connections(Service([f"http://discovery.test:{port}"]))
    async with at(port, "127.0.0.1", "127.0.0.2") as (mute, other):
        mute.can("GET", Canned(200, gate=asyncio.Event()))
        await resolved(connections, "127.0.0.1", "127.0.0.2")
        answer = await connections.request(LIST, deadline_secs=30)
        assert b"at-127.0.0.2" in answer.body
        # What writes is never told to two.
        mute.can("POST", Canned(503, gate=(gate := asyncio.Event())))
        ordered(connections, "127.0.0.1", "127.0.0.2")
        asking = asyncio.create_task(connections.request(Request("POST", "/pools", {}, b"{}"), deadline_secs=30))
        await until(lambda: mute.requests("POST"))
        await asyncio.sleep(0.5)
        assert other.requests("POST") == []
        asking.cancel()
        gate.set()
        await asyncio.gather(asking, return_exceptions=True)
    await connections.close()


# ---- refusals


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(Canned(404, "default backend"), id="an ingress that does not know it"),
        pytest.param(Canned(401, {"detail": "no such token"}), id="a token file that is broken there"),
        pytest.param(Canned(403, {"detail": "no scope"}), id="a scope that is not given there"),
        pytest.param(Canned(421), id="misdirected"),
    ],
)
async def test_what_one_place_refuses_another_may_take(refusal: Canned) -> None:
    async with FakeService() as refusing, FakeService() as other, Client([refusing.url, other.url]) as client:
        for kind in ("GET", "POST", "STREAM"):
            refusing.can(kind, *[refusal] * 100)
        assert (await client.list()).complete
        async with client.register(Registration("c1", "n1", "p1", "m")) as heartbeat:
            assert heartbeat.trouble is None
            assert other.pools
        assert other.pools == {}
        async with client.follow() as pools:
            assert pools.snapshot.complete


async def test_what_all_places_refuse_is_a_refusal_and_with_an_outage_it_may_pass() -> None:
    async with FakeService() as one, FakeService() as other, Client([one.url, other.url]) as client:
        for refusing in (one, other):
            refusing.can("GET", Canned(401, {"detail": "no such token"}))
        with pytest.raises(Rejected, match="no such token"):
            await client.list()
        one.can("GET", Canned(401, {"detail": "no such token"}))
        other.can("GET", Canned(503, {"detail": "starting"}))
        with pytest.raises(Unavailable, match=r"no such token.*starting"):
            await client.list()


async def test_the_fault_of_a_registration_is_told_by_the_first_place() -> None:
    async with FakeService() as one, FakeService() as other, Client([one.url, other.url]) as client:
        one.can("POST", Canned(422, {"detail": "no model"}))
        with pytest.raises(Rejected, match="no model"):
            await client.register(Registration("c1", "n1", "p1", "m")).__aenter__()
        assert other.seen == []


async def test_a_refusal_leaves_the_connection_behind_which_a_balancer_may_choose_again() -> None:
    async with FakeService() as service, Client(service.url) as client:
        await client.list()
        service.can("GET", Canned(401))
        with pytest.raises(Rejected):
            await client.list()
        await client.list()
    assert [seen.connection for seen in service.seen] == [1, 1, 2]


def test_many_failures_make_one_line() -> None:
    told = all_of([NoAnswer(f"cannot connect to 10.0.0.{number}", reached=False) for number in range(30)])
    assert str(told).endswith("10.0.0.4; and 25 more")


# ---- the race, on virtual time


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    made = VirtualTimeLoop(0.0)
    yield made
    made.shut()


Course = list[tuple[float, Stage | str | Exception]]
CONNECTED, ANSWERED = Stage.ASKED, Stage.ANSWERED


def raced(loop: VirtualTimeLoop, courses: dict[str, Course], *, again: bool = True) -> tuple[str, float, list[str]]:
    """Who won, after how many seconds, and at which moments which attempts began."""
    begun: list[str] = []
    gone_through: dict[str, int] = {}

    async def attempt(progress: Progress) -> str:
        name = progress.place.name
        begun.append(f"{loop.time():.1f} {name}")
        for secs, what in courses[name]:
            await asyncio.sleep(secs)
            if isinstance(what, Stage):
                progress.reach(what)
            elif isinstance(what, Exception):
                raise what
            else:
                return what
        raise AssertionError

    async def run() -> str:
        places = [Place(f"http://{name}", None, name) for name in courses]
        place, result = await Race(places, attempt, again=again).run()
        assert gone_through == {}
        assert len(asyncio.all_tasks()) == 1
        assert place.name == result
        return result

    return loop.run(run()), round(loop.time(), 3), begun


def failing(after: float) -> Course:
    return [(after, NoAnswer("no", reached=False))]


def hanging(*stages: Stage) -> Course:
    return [*((0.0, stage) for stage in stages), (1000.0, AssertionError())]


def good(name: str, connects: float = 0.0, answers: float = 0.1) -> Course:
    return [(connects, CONNECTED), (answers, ANSWERED), (0.1, name)]


def test_the_first_place_wins_alone_where_it_answers(loop: VirtualTimeLoop) -> None:
    assert raced(loop, {"a": good("a"), "b": good("b")}) == ("a", 0.2, ["0.0 a"])


def test_a_refused_connection_costs_nothing(loop: VirtualTimeLoop) -> None:
    assert raced(loop, {"a": failing(0.0), "b": failing(0.0), "c": good("c")})[0:2] == ("c", 0.2)


def test_a_connection_that_is_not_taken_has_the_next_beside_it(loop: VirtualTimeLoop) -> None:
    courses = {"a": hanging(), "b": hanging(), "c": good("c")}
    assert raced(loop, courses) == ("c", 0.8, ["0.0 a", "0.3 b", "0.6 c"])


def test_a_slow_connection_may_still_win(loop: VirtualTimeLoop) -> None:
    courses = {"a": good("a", connects=0.5), "b": good("b", connects=5)}
    assert raced(loop, courses) == ("a", 0.7, ["0.0 a", "0.3 b"])


def test_whoever_was_overtaken_is_tried_again_where_the_faster_one_fails(loop: VirtualTimeLoop) -> None:
    courses: dict[str, Course] = {"a": good("a", connects=0.5), "b": [(0.0, CONNECTED), (0.1, Unavailable("not now"))]}
    assert raced(loop, courses) == ("a", 1.1, ["0.0 a", "0.3 b", "0.4 a"])


def test_a_place_that_is_mute_has_the_next_beside_it_only_for_what_may_be_asked_twice(loop: VirtualTimeLoop) -> None:
    courses = {"a": [(0.0, CONNECTED), (10.0, Unavailable("late"))], "b": good("b")}
    assert raced(loop, courses) == ("b", 2.2, ["0.0 a", "2.0 b"])


def test_what_may_not_be_asked_twice_waits(loop: VirtualTimeLoop) -> None:
    courses = {"a": [(0.0, CONNECTED), (10.0, Unavailable("late"))], "b": good("b")}
    assert raced(loop, courses, again=False) == ("b", 10.2, ["0.0 a", "10.0 b"])


def test_a_body_that_takes_long_is_waited_for(loop: VirtualTimeLoop) -> None:
    courses = {"a": [(0.0, CONNECTED), (0.1, ANSWERED), (20.0, "a")], "b": good("b")}
    assert raced(loop, courses) == ("a", 20.1, ["0.0 a"])


def test_a_refusal_ends_it_and_failures_are_told_together(loop: VirtualTimeLoop) -> None:
    with pytest.raises(Rejected):
        raced(loop, {"a": [(0.0, Rejected(400, "no", "no"))], "b": good("b")})
    with pytest.raises(Unavailable, match=r"^not now; no$"):
        raced(loop, {"a": [(0.0, Unavailable("not now"))], "b": failing(0.0)})
