"""Which pages may call the service from a browser."""

import asyncio
from typing import Any

import pytest

from discovery.errors import Rejected
from discovery.http.answers import answer
from discovery.http.web_safety import admit_write, shared_with
from tests.http.sockets import served

UI = "https://ui.example.com"
Lines = list[tuple[str, str]]


def scope(*lines: tuple[str, str], method: str = "POST") -> dict[str, Any]:
    headers = [("host", "discovery.example.com"), ("accept", "*/*"), *lines]
    return {"method": method, "path": "/pools", "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers]}


def admitted(cors_origin: str | None, *lines: tuple[str, str]) -> bool:
    refused = None
    try:
        admit_write(cors_origin)(scope(*lines))
    except Rejected as error:
        refused = error
    assert refused is None or (refused.status == 403 and "--cors-origin" in refused.detail)
    return refused is None


@pytest.mark.parametrize(
    ("lines", "is_admitted"),
    [
        pytest.param([], True, id="a relay, which says nothing of pages"),
        pytest.param([("origin", "https://discovery.example.com")], True, id="the service's own page"),
        pytest.param([("origin", "http://DISCOVERY.example.com:80")], True, id="the same in other letters"),
        pytest.param([("origin", "https://evil.example.com")], False, id="another host"),
        pytest.param([("origin", "https://discovery.example.com.evil.org")], False, id="a host that begins alike"),
        pytest.param([("origin", "https://xdiscovery.example.com")], False, id="a host that ends alike"),
        pytest.param([("origin", "https://discovery.example.com:8443")], False, id="another port"),
        pytest.param([("origin", "null")], False, id="a page without an origin"),
        pytest.param([("origin", "")], False, id="an empty origin"),
        pytest.param([("origin", "discovery.example.com")], False, id="no origin at all"),
        pytest.param([("origin", "https://discovery.example.com"), ("origin", "http://evil")], False, id="two"),
        pytest.param([("sec-fetch-site", "cross-site")], False, id="cross-site without an origin"),
        pytest.param([("sec-fetch-site", "same-site")], False, id="a neighbour's page"),
        pytest.param([("sec-fetch-site", "same-origin")], True, id="own page, as the browser says"),
        pytest.param([("sec-fetch-site", "none")], True, id="no page: typed by a person"),
        pytest.param(
            [("sec-fetch-site", "same-origin"), ("origin", "https://behind-a-proxy")], True, id="Host was changed"
        ),
        pytest.param(
            [("sec-fetch-site", "cross-site"), ("origin", "https://discovery.example.com")], False, id="rebuilt origin"
        ),
        pytest.param([("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], False, id="both"),
    ],
)
def test_a_write_that_a_page_of_another_origin_sends_is_refused(lines: Lines, is_admitted: bool) -> None:
    assert admitted(None, *lines) is is_admitted
    assert admitted(UI, *lines) is is_admitted
    if [name for name, _ in lines].count("origin") == 1:
        assert admitted("*", *lines)


def test_a_write_of_the_configured_origin_is_admitted_and_no_other_one() -> None:
    for site in ([], [("sec-fetch-site", "cross-site")]):
        assert admitted(UI, ("origin", UI), *site)
        assert not admitted(UI, ("origin", f"{UI}.evil.org"), *site)
        assert not admitted(UI, ("origin", UI.replace("https", "http")), *site)
        assert not admitted(UI, ("origin", UI), ("origin", "http://evil"), *site)


def test_no_host_is_nobodys_origin() -> None:
    nobody = {"method": "POST", "path": "/pools", "headers": [(b"host", b""), (b"origin", b"null")]}
    with pytest.raises(Rejected):
        admit_write(None)(nobody)


# ---- pages of the configured origin


def ask(cors_origin: str, *lines: tuple[str, str], method: str = "GET") -> tuple[int, list[tuple[bytes, bytes]], bool]:
    """Status and headers of the answer, and whether the app was asked."""
    asked: list[str] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["method"])
        await answer(send, 200, [(b"vary", b"accept-encoding")], b"{}")

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        await shared_with(cors_origin, app)(scope(*lines, method=method), None, send)  # type: ignore[arg-type]

    asyncio.run(run())
    return sent[0]["status"], list(sent[0]["headers"]), bool(asked)


def values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def test_answers_may_be_read_by_pages_of_the_configured_origin_alone() -> None:
    for lines, allowed in (([("origin", UI)], [UI.encode()]), ([("origin", "http://evil")], []), ([], [])):
        status, headers, asked = ask(UI, *lines)
        assert (status, asked) == (200, True)
        assert values(headers, b"access-control-allow-origin") == allowed
        assert values(headers, b"vary") == [b"accept-encoding, origin"], "a cache must not give it to other pages"
        assert bool(values(headers, b"access-control-expose-headers")) is bool(allowed)
        assert not values(headers, b"access-control-allow-credentials")


def test_everybody_is_told_the_same_where_every_origin_may_read() -> None:
    _, headers, _ = ask("*", ("origin", "http://anything"))
    assert values(headers, b"access-control-allow-origin") == [b"*"]
    assert values(headers, b"vary") == [b"accept-encoding"]


PREFLIGHT = ("access-control-request-method", "DELETE")


def test_a_preflight_of_the_configured_origin_is_granted_ahead_of_the_app() -> None:
    status, headers, asked = ask(UI, ("origin", UI), PREFLIGHT, method="OPTIONS")
    assert (status, asked) == (204, False)
    assert values(headers, b"access-control-allow-origin") == [UI.encode()]
    assert values(headers, b"vary") == [b"origin"]
    granted = values(headers, b"access-control-allow-headers")[0].split(b", ")
    assert {b"authorization", b"content-type", b"if-none-match", b"prefer"} <= set(granted)
    for method in (b"GET", b"POST", b"DELETE"):
        assert method in values(headers, b"access-control-allow-methods")[0].split(b", ")


@pytest.mark.parametrize("origin", ["http://evil", "null", ""])
def test_a_preflight_of_another_origin_is_a_problem_without_grants(origin: str) -> None:
    status, headers, asked = ask(UI, ("origin", origin), PREFLIGHT, method="OPTIONS")
    assert (status, asked) == (403, False)
    assert values(headers, b"content-type") == [b"application/problem+json"]
    assert values(headers, b"vary") == [b"origin"]
    assert not [name for name, _ in headers if name.startswith(b"access-control")]


@pytest.mark.parametrize("lines", [[], [("origin", UI)], [PREFLIGHT]])
def test_other_options_are_the_apps(lines: Lines) -> None:
    assert ask(UI, *lines, method="OPTIONS")[2]


# ---- what every answer says


def head_of(*headers: tuple[bytes, bytes]) -> bytes:
    """The head on the wire of an answer with these headers."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0"), *headers]})
        await send({"type": "http.response.body", "body": b""})

    with served(app) as server, server.peer() as peer:
        peer.get("/", "Connection: close")
        return peer.ended().partition(b"\r\n\r\n")[0]


def test_a_page_has_its_own_policy_in_place_of_the_one_that_forbids_everything() -> None:
    own = (b"Content-Security-Policy", b"default-src 'self'")
    assert head_of().count(b"content-security-policy: default-src 'none'; frame-ancestors 'none'") == 1
    assert head_of(own).lower().count(b"content-security-policy") == 1
    assert b"default-src 'self'" in head_of(own)
    for head in (head_of(), head_of(own)):
        assert b"x-content-type-options: nosniff" in head


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nset-cookie: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x: y", b"a"),
    ],
)
def test_a_header_that_would_end_its_line_is_never_sent(
    header: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    head = head_of(header)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in head
    assert b"\r\nx" not in head.replace(b"\r\nx-content-type-options", b"").replace(b"\r\nx-request-id", b"")
    assert "failed" in caplog.text
