"""Readers of a list of 12 MB that do not read, or hardly: the bytes of the list are there once, whoever holds it."""

import contextlib
import gzip
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.live.conftest import MakeReplica
from tests.live.crowd import crowd
from tests.live.replica import Replica
from tests.live.signs import await_sign, hold_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

MIB = 1024 * 1024
POOLS = 400
Ask = Callable[..., socket.socket]
FILLING = {f"key{number}": "x" * 750 for number in range(40)}


@pytest.fixture
def replica(make_replica: MakeReplica) -> Replica:
    """One whose list has 12 MB, made and given once already."""
    replica = make_replica("large", lease=300, heartbeat=60).start()
    for number in range(POOLS):
        replica.register(f"c1/n1/p{number}", metadata=FILLING)
    assert len(replica.pools().body) > 11 * MIB
    return replica


@pytest.fixture
def ask(replica: Replica) -> Iterator[Ask]:
    """Ask for a list and take nothing of it yet; the kernel takes a little for whoever asked."""
    with contextlib.ExitStack() as stack:

        def asking(query: str = "", path: str = "/pools", header: str = "X: y") -> socket.socket:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.settimeout(20)
            connection.connect(("127.0.0.1", replica.port))
            connection.sendall(
                f"GET {path}{query} HTTP/1.1\r\nHost: a\r\n{header}\r\nConnection: close\r\n\r\n".encode()
            )
            return connection

        yield asking


def test_readers_of_a_long_list_hold_no_copy_of_it_however_many_and_however_often_it_changes(
    replica: Replica, ask: Ask
) -> None:
    asked_for = replica.pools().body
    reader = ask()
    before = replica.rss
    with crowd(replica.port, not_reading=200) as deaf:
        deaf.stands()
        await_sign(lambda: replica.get("/status").json["connections"] >= 201, 10, "all have come")
        hold_for(1, lambda: replica.rss - before < 32 * MIB, "200 of them hold no copies", every=0.1)
        received = b""
        for change in range(20):
            replica.register("c1/n1/p7", metadata={**FILLING, "key0": str(change)})
            ask()
            assert replica.pools().pools["c1/n1/p7"]["metadata"]["key0"] == str(change)
            received += reader.recv(65536)
        assert replica.rss - before < 64 * MIB, "each state of the list that somebody holds was copied"
        while chunk := reader.recv(1 << 20):
            received += chunk
    assert received.partition(b"\r\n\r\n")[2] == asked_for, "a slow reader gets what it asked for, whole and as it was"
    assert "Traceback" not in replica.log


def test_readers_of_long_lists_hold_no_copy_though_each_has_a_filter_of_its_own(replica: Replica, ask: Ask) -> None:
    everything = replica.pools()
    before = replica.rss
    readers = [ask(f"?namespace=n1&namespace=of-reader-{number}") for number in range(60)]
    await_sign(lambda: replica.get("/status").json["connections"] >= 61, 10, "all have come")
    hold_for(1, lambda: replica.rss - before < 64 * MIB, "60 filters that see 12 MB each make no copies", every=0.1)
    received = readers[0].recv(65536)
    replica.register("c1/n1/p7", metadata={"changed": "meanwhile"})
    while chunk := readers[0].recv(1 << 20):
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert everything.headers["etag"].encode() in head
    assert body == everything.body, "a slow reader gets what it asked for, whole and as it was"
    packed = ask("?namespace=n1&namespace=packed", header="Accept-Encoding: gzip")
    received = b""
    while chunk := packed.recv(1 << 20):
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in head
    assert gzip.decompress(body) == replica.pools().body


def test_what_is_made_for_each_reader_alone_is_bounded_and_refused_beyond(replica: Replica, ask: Ask) -> None:
    before = replica.rss
    readers = [ask(path="/registrations") for _ in range(40)]
    refused = [reader for reader in readers if reader.recv(100, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")]
    assert len(readers) - len(refused) in range(4, 7), "64 MB in all"
    assert replica.rss - before < 160 * MIB
    assert replica.get("/status").status == 200
    assert replica.get("/pools").status == 200
    for reader in readers:
        reader.close()
    await_sign(lambda: replica.get("/registrations").status == 200, 10, "there is room again")
