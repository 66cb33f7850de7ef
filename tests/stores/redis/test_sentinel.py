"""Which server Sentinels lead to: real servers, and Sentinels that say what the test wants them to say."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import hiredis
import pytest

from discovery.errors import Unavailable
from discovery.stores.redis.address import Access, open_address
from discovery.stores.redis.link import Line, pack
from discovery.stores.redis.node import Login
from tests.live.redis_server import RedisServer
from tests.live.signs import await_sign, free_port

pytestmark = pytest.mark.live

SECRETS = ("sentinel-Zq9", "server-Zq9")


class SayingSentinel:
    """Answers with the address it was told, with an error, or not at all; keeps what it was asked."""

    def __init__(self, says: int | str | None) -> None:
        self.says = says
        self.port = free_port()
        self.asked: list[list[str]] = []
        self.silent = False
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while data := await reader.read(65536):
            commands.feed(data)
            while (words := commands.gets()) is not False:
                self.asked.append([word.decode() for word in words])
                if not self.silent:
                    writer.write(self._answer(words[0].upper()))
        writer.close()

    def _answer(self, command: bytes) -> bytes:
        if command != b"SENTINEL":
            return b"+OK\r\n"
        if isinstance(self.says, int):
            return pack("127.0.0.1", self.says)
        return b"*-1\r\n" if self.says is None else f"-{self.says}\r\n".encode()

    @property
    def questions(self) -> int:
        return sum(words[0] == "SENTINEL" for words in self.asked)


@pytest.fixture
async def make_sentinels() -> AsyncIterator[Callable[..., Awaitable[list[SayingSentinel]]]]:
    made: list[SayingSentinel] = []

    async def make(*says: int | str | None) -> list[SayingSentinel]:
        made.extend(map(SayingSentinel, says))
        for each in made:
            await each.listen()
        return made

    yield make
    for each in made:
        each.close()


@pytest.fixture
def replica(debian_redis: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    debian_redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    server = RedisServer("redis", tmp_path / "replica", "--replicaof", f"127.0.0.1 {debian_redis.port}").start()
    await_sign(lambda: server.client.info("replication")["master_link_status"] == "up", 10, "in sync")
    yield server
    server.close()


def line_to(sentinels: list[SayingSentinel], user_info: str = "", **access: str) -> Line:
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    url = f"redis+sentinel://{user_info}{hosts}/main/1"
    return Line(open_address(Access(url=url, **access), prefix="discovery", timeout_secs=1.4), 1.4)


async def failure_of(line: Line) -> str:
    with pytest.raises(Unavailable) as caught:
        await line.call(pack("PING"))
    await line.close()
    return str(caught.value)


async def test_a_demoted_server_that_a_stale_sentinel_names_is_not_taken(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]], debian_redis: RedisServer, replica: RedisServer
) -> None:
    stale, fresh = await make_sentinels(replica.port, debian_redis.port)
    line = line_to([stale, fresh])
    assert await line.call(pack("SET", "x", "1")) == [b"OK"]
    assert line.node == f"127.0.0.1:{debian_redis.port}"
    assert debian_redis.database(1).get("x") == "1"
    line.reset("a test")
    await line.call(pack("PING"))
    assert (stale.questions, fresh.questions) == (1, 2), "who helped is asked first"
    await line.close()


async def test_a_silent_sentinel_costs_half_a_second_once(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]], debian_redis: RedisServer
) -> None:
    silent, other = await make_sentinels(debian_redis.port, debian_redis.port)
    silent.silent = True
    line = line_to([silent, other])
    for longest in (1.2, 0.4):
        begun = time.monotonic()
        assert await line.call(pack("PING")) == [b"PONG"]
        assert time.monotonic() - begun < longest
        line.reset("a test")
    await line.close()


async def test_a_frozen_master_takes_no_more_than_the_deadline_and_another_sentinel_is_asked_next(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]], debian_redis: RedisServer, replica: RedisServer
) -> None:
    stale, fresh = await make_sentinels(debian_redis.port, replica.port)
    replica.cli("REPLICAOF", "NO", "ONE")
    debian_redis.freeze()
    line = line_to([stale, fresh])
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        await line.call(pack("PING"))
    assert time.monotonic() - begun < 2.0
    async with asyncio.timeout(3):
        while line.node != f"127.0.0.1:{replica.port}":
            await asyncio.gather(line.call(pack("PING")), return_exceptions=True)
            await asyncio.sleep(0.05)
    await line.close()


async def test_each_sentinel_says_why_there_is_no_master(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]], replica: RedisServer
) -> None:
    dead = free_port()
    sentinels = await make_sentinels(replica.port, None, dead, "NOPERM no right", replica.port)
    said = await failure_of(line_to(sentinels))
    for words in (
        f"127.0.0.1:{replica.port}: Sentinel 127.0.0.1:{sentinels[0].port} takes it for the master, but it is a slave",
        f"Sentinel 127.0.0.1:{sentinels[1].port} knows no service main",
        f"127.0.0.1:{dead}: Connection refused",
        f"Sentinel 127.0.0.1:{sentinels[3].port}: to SENTINEL GET-MASTER-ADDR-BY-NAME: no right",
    ):
        assert words in said
    assert said.count(f"127.0.0.1:{replica.port}:") == 1, "a server is tried once"
    assert "\n" not in said


async def test_sentinels_have_a_login_of_their_own_that_is_read_each_time(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]], debian_redis: RedisServer, tmp_path: Path
) -> None:
    (sentinel,) = await make_sentinels(debian_redis.port)
    debian_redis.cli("ACL", "SETUSER", "service", "on", ">server-Zq9", "+@all")
    password = tmp_path / "password"
    password.write_text("sentinel-Zq9\n")
    login = {"sentinel_user": "asker", "sentinel_password_path": str(password)}
    line = line_to([sentinel], "service:server-Zq9@", **login)
    assert await line.call(pack("ACL", "WHOAMI")) == [b"service"]
    password.write_text("rotated")
    line.reset("a test")
    await line.call(pack("PING"))
    logins = [words[1:] for words in sentinel.asked if words[0] == "AUTH"]
    assert logins == [["asker", "sentinel-Zq9"], ["asker", "rotated"]]
    assert {words[0] for words in sentinel.asked} == {"AUTH", "SENTINEL"}, "no right is needed but to ask"
    await line.close()


@pytest.mark.parametrize("says", ["WRONGPASS invalid", None, "ERR sentinel", "x"])
async def test_f23_no_error_behind_sentinels_holds_a_part_of_a_password(
    make_sentinels: Callable[..., Awaitable[list[SayingSentinel]]],
    debian_redis: RedisServer,
    tmp_path: Path,
    says: str | None,
) -> None:
    password = tmp_path / "password"
    password.write_text("sentinel-Zq9")
    login = {"sentinel_user": "asker", "sentinel_password_path": str(password)}
    sentinels = await make_sentinels(debian_redis.port if says == "x" else says)
    line = line_to(sentinels, "service:server-Zq9@", **login)
    said = await failure_of(line)
    access = Access(url="redis+sentinel://u:server-Zq9@h/main", **login)
    address = open_address(access, prefix="discovery", timeout_secs=1)
    shown = [said, repr(access), str(address), repr(address), repr(vars(address)), repr(Login("u", "server-Zq9"))]
    assert not [secret for secret in SECRETS for text in shown if secret in text]
    if says == "x":
        assert "WRONGPASS" in said or "invalid username-password" in said
