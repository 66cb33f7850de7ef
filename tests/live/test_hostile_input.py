"""What clients send that no client should: the answer is theirs alone, and nobody else waits for it."""

import http.client
import json
import select
import socket
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.live.replica import Replica, pool
from tests.live.router import Subscriber
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

RECEIVE_DEADLINE = 2.0
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One replica on the memory store; its lease outlives the module."""
    flags = ("--request-timeout-secs", f"{RECEIVE_DEADLINE:g}")
    replica = Replica(tmp_path_factory.mktemp("hostile"), lease=120, heartbeat=5, flags=flags)
    try:
        yield replica.start()
    finally:
        replica.close()


@pytest.fixture(autouse=True)
def unharmed(replica: Replica) -> Iterator[None]:
    """After each test the same process answers as before, and wrote no traceback."""
    pid = replica.pid
    before = len(replica.log)
    yield
    assert replica.running
    assert replica.pid == pid
    assert replica.get("/healthz").status == 200
    assert "Traceback" not in replica.log[before:], replica.log[before:][-3000:]


@pytest.mark.parametrize(
    "fields",
    [{"dgd_name": "p\\ud800"}, {"relays": ["http://10.0.0.1:9000/\\udfff"]}, {"metadata": {"\\udc00": "x"}}],
    ids=["name", "relay", "metadata"],
)
def test_f01_a_lone_surrogate_is_refused_and_stored_nowhere(replica: Replica, fields: dict[str, object]) -> None:
    before = replica.pools()
    body = json.dumps(pool("c1/n1/surrogate", **fields)).replace("\\\\u", "\\u")
    assert "\\ud" in body
    assert "\\\\u" not in body
    answer = replica.post(body)
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert replica.pools().body == before.body
    assert replica.get("/registrations").status == 200


@pytest.mark.parametrize(
    "body",
    [
        "[" * 20_000 + "]" * 20_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        '{"x":' + "9" * 5_000 + "}",
        json.dumps(pool("c1/n1/deep"))[:-1] + ',"x":' + "[" * 20_000 + "]" * 20_000 + "}",
        json.dumps(pool("c1/n1/long", capacity=[{"resource": "gpu", "quantity": 77}])).replace("77", "9" * 5_000),
        json.dumps(pool("c1/n1/huge", capacity=[{"resource": "gpu", "quantity": 77}])).replace("77", "1e999"),
    ],
    ids=["nested-lists", "nested-objects", "long-integer", "nested-in-unknown-field", "long-quantity", "infinite"],
)
def test_f02_deep_nesting_and_endless_numbers_are_the_clients_error(replica: Replica, body: str) -> None:
    answer = replica.post(body)
    assert answer.status == 400, answer.body
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.secs < 1
    meanwhile = [replica.get("/pools") for _ in range(3)]
    assert {each.status for each in meanwhile} == {200}
    assert min(each.secs for each in meanwhile) < 0.2


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /pools HTTP/1.1\r\nHost: a\r\nX: ", b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n"],
    ids=["line-ends-before-a-request", "header", "body"],
)
def test_f03_a_client_that_drips_is_closed_at_the_deadline_and_disturbs_nobody(
    replica: Replica, traffic: Traffic, begun: bytes
) -> None:
    stream = Subscriber(traffic, [replica])
    await_sign(lambda: stream.connected, 5, "a stream")
    drops = [replica.connect() for _ in range(300)]
    opened = time.monotonic()
    drip = b"a" if begun else b"\r\n"
    waits: list[float] = []
    for each in drops:
        each.sendall(begun)
    while drops and time.monotonic() < opened + RECEIVE_DEADLINE + 3:
        drops = [each for each in drops if _still_open(each, drip)]
        waits.append(replica.get("/pools").secs)
        assert replica.get("/readyz").status == 200
        # The pace of the drip: slow, and faster than any idle timeout.
        time.sleep(0.2)
    took = time.monotonic() - opened
    for each in drops:
        each.close()
    assert drops == [], f"{len(drops)} are still open after {took:.1f} s"
    assert took > RECEIVE_DEADLINE - 0.5, "closed before the deadline"
    # Not each: others may have the machine for a moment.
    assert statistics.median(waits) < 0.2
    assert stream.connected
    assert len(stream.visits) == 1


def _still_open(connection: socket.socket, drip: bytes) -> bool:
    try:
        connection.sendall(drip)
        readable, _, _ = select.select([connection], [], [], 0)
        if not readable or connection.recv(4096).startswith(b"HTTP/1.1 408"):
            return True
    except OSError:
        pass
    connection.close()
    return False


def test_f04_a_body_without_end_is_refused_at_the_limit_and_costs_no_memory(replica: Replica) -> None:
    replica.post(pool())
    before = replica.rss
    with replica.connect() as connection:
        connection.sendall(
            b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        sent, answer = _send_until_answered(connection, b"10000\r\n" + b"x" * 65536 + b"\r\n", 128 * MIB)
    assert answer.startswith(b"HTTP/1.1 413"), answer[:200]
    assert sent < 32 * MIB, "the connection was not closed"
    assert replica.rss - before < 16 * MIB


def _send_until_answered(connection: socket.socket, chunk: bytes, limit: int) -> tuple[int, bytes]:
    """Send until the other side closes or ``limit`` is reached; how much was sent, and all that came back."""
    sent, answer = 0, b""
    connection.settimeout(5)
    try:
        while sent < limit:
            readable, writable, _ = select.select([connection], [connection], [], 5)
            if readable:
                received = connection.recv(65536)
                if not received:
                    break
                answer += received
            elif writable:
                connection.sendall(chunk)
                sent += len(chunk)
    except OSError:
        pass
    return sent, answer


def test_f04_a_length_above_the_limit_is_refused_before_the_body(replica: Replica) -> None:
    with replica.connect(timeout=1.5) as connection:
        connection.sendall(
            b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
        )
        begun = time.monotonic()
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 413
        assert time.monotonic() - begun < 1
        response.read()
        assert connection.recv(1) == b"", "the connection stays open for a body nobody wants"


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_f04_a_header_above_the_limit_is_refused(replica: Replica, size: int) -> None:
    before = replica.rss
    with replica.connect() as connection:
        head = b"GET /pools HTTP/1.1\r\nHost: a\r\nX: "
        try:
            connection.sendall(head + b"a" * size + b"\r\n\r\n")
            answer = connection.recv(65536)
        except OSError:
            # Megabytes that are still on their way when the connection is closed reset it.
            answer = b"reset" if size > 1_000_000 else b""
    assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400", b"reset")), answer[:200]
    assert replica.rss - before < 16 * MIB


def test_f04_a_body_cut_short_stores_nothing(replica: Replica) -> None:
    body = json.dumps(pool("c1/n1/short")).encode()
    with replica.connect() as connection:
        head = b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (len(body) + 10) + body)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(3)
        answer = connection.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert not replica.lists("c1/n1/short")


def test_f05_conditions_are_compared_weakly_and_as_a_list(replica: Replica) -> None:
    replica.post(pool("c1/n1/tagged"))
    whole = replica.pools()
    etag = whole.headers["etag"]
    assert etag.startswith('W/"')
    opaque = etag.removeprefix("W/")
    hits = [etag, opaque, f'"zz", {etag} ,"y"', f'"zz",{opaque}', "*"]
    misses = ['"zz"', 'W/"zz"', "W/", '"unterminated', opaque.strip('"'), "", ",,", '"a,b"', "\x80\xff"]
    for value in hits:
        answer = replica.get("/pools", {"If-None-Match": value})
        assert (answer.status, answer.body) == (304, b""), value
        assert answer.headers["etag"] == etag
    for value in misses:
        answer = replica.get("/pools", {"If-None-Match": value})
        assert (answer.status, answer.body) == (200, whole.body), value
        assert answer.headers["etag"] == etag
    packed = replica.get("/pools", {"If-None-Match": '"zz"', "Accept-Encoding": "gzip"})
    assert packed.headers["etag"] == etag
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert replica.get("/pools", {"If-None-Match": etag, "Accept-Encoding": "gzip"}).status == 304


def series(replica: Replica) -> set[str]:
    """Every series of the metrics, without its value."""
    lines = replica.get("/metrics").body.decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def test_f46_scanners_add_neither_series_nor_lines(replica: Replica) -> None:
    methods = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "SEARCH", "PURGE"]
    connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)

    def scan(numbers: range) -> None:
        for number in numbers:
            target = f"/scanned{number}/%0a%1b[31m%00/.env?y={number}&%0d%0aX-Y:%20z"
            connection.request(methods[number % len(methods)], target if number % 3 else f"/pools/{target}")
            response = connection.getresponse()
            response.read()
            assert response.status in (400, 404, 405), (target, response.status)
            assert response.getheader("X-Y") is None

    try:
        scan(range(30))
        series(replica)  # the first look is a request too, and a series of its own from then on
        before, lines = series(replica), replica.log.count("\n")
        scan(range(30, 4_000))
    finally:
        connection.close()
    assert series(replica) == before
    assert b"scanned" not in replica.get("/metrics").body
    assert replica.log.count("\n") <= lines + 5
    assert all(line.isprintable() for line in replica.log.splitlines())


def test_every_answer_tells_browsers_to_load_nothing_and_to_guess_nothing(replica: Replica) -> None:
    body = json.dumps(pool("c1/n1/browsed")).encode()
    as_json, as_text = {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}
    asks: list[tuple[int, str, str, bytes | None, dict[str, str]]] = [
        (200, "POST", "/pools", body, as_json),
        (415, "POST", "/pools", body, as_text),
        (403, "POST", "/pools", body, as_text | {"Origin": "http://page.example.com"}),
        (403, "DELETE", "/pools/c1/n1/browsed", None, {"Sec-Fetch-Site": "cross-site"}),
        (422, "POST", "/pools", b"{}", as_json),
        (200, "GET", "/pools", None, {"Origin": "http://page.example.com"}),
        (304, "GET", "/pools", None, {"If-None-Match": "*"}),
        (404, "GET", "/<script>alert(1)</script>", None, {}),
        (
            405,
            "OPTIONS",
            "/pools",
            None,
            {"Origin": "http://page.example.com", "Access-Control-Request-Method": "POST"},
        ),
        (200, "GET", "/metrics", None, {}),
        (200, "GET", "/openapi.json", None, {}),
        (204, "DELETE", "/pools/c1/n1/browsed", None, {}),
    ]
    for status, method, path, content, headers in asks:
        answer = replica.request(method, path, content, headers)
        assert answer.status == status, (method, path, answer)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'", path
        assert "html" not in answer.headers.get("content-type", "")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    wrong_type = replica.request("POST", "/pools", body, as_text)
    assert "Content-Type: application/json" in wrong_type.json["detail"]
