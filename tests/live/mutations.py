"""Requests that went wrong, by chance and always the same: valid ones of every route, each damaged in a few steps."""

import json
import random
import re
from collections.abc import Callable, Iterator

from tests.live.replica import pool

NUMBERS = [b"0", b"-1", b"+1", b"1e9", b"0x10", b"00", b"65536", b"65537", b"4294967296", b"18446744073709551617"]
NUMBERS += [b"9" * 400, b"\xd9\xa3", b"1.5", b"3, 3", b" 7", b"", b"NaN"]
LINES = [
    b"Host: a",
    b"Host: a, b",
    b"Host:",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: 99999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Content-Encoding: gzip",
    b"Content-Type: text/plain",
    b"Content-Type: application/json",
    b"Connection: close",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Origin: http://evil",
    b"Sec-Fetch-Site: cross-site",
    b"If-None-Match: *",
    b'If-None-Match: W/"' + b"x" * 3000,
    b"Prefer: wait=0",
    b"Range: bytes=0-1",
    b"Last-Event-ID: \xff\xfe",
    b"Authorization: Bearer \xe4",
    b"Accept-Encoding: gzip;q=9, *;q=x,,",
    b"Cookie: " + b"c" * 20_000,
    b"X: \x00",
    b"X: \x1b[31m",
    b" folded",
    b": nameless",
    b"no colon",
    b"X-\xff: y",
    b"traceparent: 00-zz-zz-01",
]
TARGETS = [
    b"/",
    b"*",
    b"//",
    b"/pools/",
    b"/pools/%2e%2e/n/d",
    b"/pools/c/%00/d",
    b"/pools/%ff/n/d",
    b"/pools/c/n/%0d%0aX:%20y",
    b"/pools/" + b"%41" * 300 + b"/n/d",
    b"/pools/../../etc/passwd",
    b"/pools?model=%ff",
    b"/pools?model=",
    b"/pools?" + b"model=a&" * 1500,
    b"/pools?x=<script>",
    b"/status?pool=%252e/a/b",
    b"/status?pool=*&pool=*",
    b"/metrics/%7B%7D",
    b"/x" * 9000,
    b"http://evil/pools",
    b"evil:443",
    b"/\xc3\xb6",
    b"/pools\\x",
    b"/%5c..%5c",
    b"/pools#x",
    b"/docs",
    b"/.env",
    b"/pools/c/n/d?instance_id=%00",
]
BODIES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"cluster_id": "c"',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"a": "\xed\xa0\x80"}',
    b'"\\ud800"',
    b"[" * 30_000 + b"]" * 30_000,
    b'{"a":' * 9_000 + b"1" + b"}" * 9_000,
    b'{"x":' + b"9" * 5_000 + b"}",
    b'{"x": 1e99999}',
    b'{"x": NaN}',
    b'{"x": -Infinity}',
    b'{"a": 1, "a": 2}',
    b'{"cluster_id": 1, "namespace": [], "dgd_name": {}, "model": null}',
    b'{"cluster_id": "c\\u0000", "namespace": "n", "dgd_name": "d", "model": "m"}',
    json.dumps(pool(capacity=[{"resource": "gpu", "quantity": 1e308}])).encode().replace(b"1e+308", b"1e400"),
    json.dumps(pool(metadata={str(number): "x" for number in range(65)})).encode(),
    b"x" * 70_000,
]
PLACES = [
    b"\x00",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"\xff",
    b"%",
    b"/",
    b"?",
    b"\x1b[2J",
    b"\x7f",
]
PLACES += ["\u202e".encode(), b"</script>", b"0\r\n\r\n", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"]


def _post(body: bytes) -> bytes:
    head = b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def _chunked(body: bytes) -> bytes:
    head = b"POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    half = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    return head + chunks + b"0\r\n\r\n"


def _plain(method: bytes, target: bytes, *lines: bytes) -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (method, target, b"".join(line + b"\r\n" for line in lines))


_BODY = json.dumps(pool("mutated/n1/p1", capabilities=["chat"], metadata={"note": "x"})).encode()
VALID = [
    _post(_BODY),
    _chunked(_BODY),
    _post(_BODY),
    _plain(b"DELETE", b"/pools/mutated/n1/p1"),
    _plain(b"DELETE", b"/pools/mutated/n1/p1?instance_id=i"),
    _plain(b"GET", b"/pools", b"Accept-Encoding: gzip"),
    _plain(b"GET", b"/pools?model=m&capability=chat", b'If-None-Match: W/"0"'),
    _plain(b"HEAD", b"/pools"),
    _plain(b"GET", b"/pools/mutated/n1/p1"),
    _plain(b"GET", b"/pools/events", b"Last-Event-ID: 0"),
    _plain(b"GET", b"/routers"),
    _plain(b"GET", b"/registrations"),
    _plain(b"GET", b"/sd/prometheus?role=relay&incomplete=true&model=m", b"Accept-Encoding: gzip"),
    _plain(b"GET", b"/status?pool=mutated/n1/p1"),
    _plain(b"GET", b"/metrics"),
    _plain(b"GET", b"/readyz"),
    _plain(b"OPTIONS", b"/pools", b"Origin: http://evil", b"Access-Control-Request-Method: POST"),
]


def _replace_byte(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]


def _insert(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(PLACES) + data[place:]


def _cut_out(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + data[place + chance.randrange(1, 12) :]


def _repeat_part(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    end = place + chance.randrange(1, 40)
    return data[:end] + data[place:end] * chance.choice([1, 2, 50]) + data[end:]


def _end_early(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(1, len(data) + 1)] if data else data


def _add_line(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    lines.insert(chance.randrange(1, max(2, min(len(lines), 5))), chance.choice(LINES))
    return b"\r\n".join(lines)


def _swap_lines(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\r\n".join(lines)


def _other_line_ends(chance: random.Random, data: bytes) -> bytes:
    return data.replace(b"\r\n", chance.choice([b"\n", b"\r", b"\n\r", b"\r\r\n", b" \r\n"]), chance.choice([1, 2, -1]))


def _other_number(chance: random.Random, data: bytes) -> bytes:
    numbers = list(re.finditer(rb"[0-9]+", data))
    if not numbers:
        return data
    number = chance.choice(numbers)
    return data[: number.start()] + chance.choice(NUMBERS) + data[number.end() :]


def _other_target(chance: random.Random, data: bytes) -> bytes:
    method, space, rest = data.partition(b" ")
    return method + space + chance.choice(TARGETS) + b" " + rest.partition(b" ")[2]


def _other_method(chance: random.Random, data: bytes) -> bytes:
    methods = [
        b"get",
        b"PUT",
        b"PATCH",
        b"TRACE",
        b"CONNECT",
        b"OPTIONS",
        b"PROPFIND",
        b"FOO",
        b"",
        b"GET\x00",
        b"M" * 999,
    ]
    return chance.choice(methods) + b" " + data.partition(b" ")[2]


def _other_version(chance: random.Random, data: bytes) -> bytes:
    versions = [b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"RTSP/1.0", b"ICE/1.0", b""]
    return data.replace(b"HTTP/1.1", chance.choice(versions), 1)


def _other_body(chance: random.Random, data: bytes) -> bytes:
    return chance.choice([_post, _chunked])(chance.choice(BODIES))


def _another_behind(chance: random.Random, data: bytes) -> bytes:
    return data + chance.choice(VALID) * chance.choice([1, 1, 2, 12])


STEPS: list[Callable[[random.Random, bytes], bytes]] = [
    _replace_byte,
    _insert,
    _cut_out,
    _repeat_part,
    _end_early,
    _add_line,
    _swap_lines,
    _other_line_ends,
    _other_number,
    _other_target,
    _other_method,
    _other_version,
    _other_body,
    _another_behind,
]


def mutated(count: int, seed: int) -> Iterator[bytes]:
    """So many requests, each with one to four things done to it."""
    chance = random.Random(seed)
    for _ in range(count):
        data = chance.choice(VALID)
        for _ in range(chance.choice([1, 1, 2, 3, 4])):
            data = chance.choice(STEPS)(chance, data)
        yield data
