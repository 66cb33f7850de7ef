"""What browsers may make of this service: which pages may call it, and what they do with its answers.

Beside the routes: ``api`` has writes admitted here and, with ``--cors-origin``, wraps the whole app; ``answers`` and
``server`` send the constant headers. Relays and routers are no browsers and say nothing of pages: they pass. Pure.

Host is not held against a list of names, since a service is reached under many. A name that is made to lead here
(DNS rebinding) is stopped by tokens, which such a page does not have.
"""

from collections.abc import Callable, Sequence

from discovery.errors import Rejected
from discovery.http.answers import App, Headers, Message, Receive, Scope, Send, problem

ON_EVERY_ANSWER: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""None of them is anything but what its content type says, and shown in a browser it loads and runs nothing. A page
brings a policy of its own, which then stands in place of this one."""

_OWN_PAGES = frozenset({b"same-origin", b"none"})
_SAID_BY_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
_EVERYBODY = "*"
_REFUSAL = "Pages of other origins may not call this service from a browser (--cors-origin)."
_ASKED_WITH = b"authorization, content-type, if-none-match, last-event-id, prefer, traceparent, x-request-id"
_PREFLIGHT_ANSWER: Headers = [
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    (b"access-control-allow-headers", _ASKED_WITH),
    (b"access-control-max-age", b"600"),
]
_READABLE = (b"access-control-expose-headers", b"ETag, Preference-Applied, Retry-After, X-Request-Id")


def admit_write(cors_origin: str | None) -> Callable[[Scope], None]:
    """What a write passes first: ``Rejected`` (403) where a page of another origin had a browser send it.

    A browser says itself whose page it was: with ``Sec-Fetch-Site``, which no page can forge, and older ones with
    ``Origin``, which for a page of this service names the same host as ``Host``.
    """

    def admit(scope: Scope) -> None:
        for name, _ in scope["headers"]:
            if name in _SAID_BY_BROWSERS:
                break
        else:
            return
        if not _is_from_own_page(scope) and not _is_allowed(_values(scope, b"origin"), cors_origin):
            raise Rejected(403, "Forbidden", _REFUSAL)

    return admit


def shared_with(origin: str, app: App) -> App:
    """The app for pages of ``origin`` too, or of every origin where that is ``*``: CORS, with its preflights."""

    async def shared(scope: Scope, receive: Receive, send: Send) -> None:
        origins = _values(scope, b"origin")
        marks = _marks(origins, origin)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_marks(message["headers"], marks)}
            await send(message)

        if scope["method"] == "OPTIONS" and origins and _values(scope, b"access-control-request-method"):
            await _answer_preflight(send_marked, allowed=_is_allowed(origins, origin))
        else:
            await app(scope, receive, send_marked)

    return shared


# ---- inner steps


async def _answer_preflight(send: Send, *, allowed: bool) -> None:
    if not allowed:
        await problem(send, 403, _REFUSAL)
        return
    await send({"type": "http.response.start", "status": 204, "headers": _PREFLIGHT_ANSWER})
    await send({"type": "http.response.body", "body": b""})


def _is_from_own_page(scope: Scope) -> bool:
    if sites := _values(scope, b"sec-fetch-site"):
        return all(site in _OWN_PAGES for site in sites)
    hosts = [_host(b"http://" + value) for value in _values(scope, b"host") if value]
    return all(_host(value) in hosts for value in _values(scope, b"origin"))


def _is_allowed(origins: Sequence[bytes], allowed: str | None) -> bool:
    if allowed is None or len(origins) != 1:
        return False
    return allowed == _EVERYBODY or origins[0].lower() == allowed.lower().encode()


def _host(origin: bytes) -> bytes:
    """Host and port of an origin, without the ports that browsers leave out. The scheme may change on the way here."""
    host = origin.lower().partition(b"://")[2]
    return host.removesuffix(b":443").removesuffix(b":80")


def _marks(origins: Sequence[bytes], allowed: str) -> Headers:
    everybody = allowed == _EVERYBODY
    marks: Headers = [] if everybody else [(b"vary", b"origin")]
    if _is_allowed(origins, allowed):
        marks += [(b"access-control-allow-origin", b"*" if everybody else origins[0]), _READABLE]
    return marks


def _with_marks(headers: Headers, marks: Headers) -> Headers:
    """One ``Vary`` with all of it: some readers know the last line of a header alone."""
    varies = [value for name, value in (*headers, *marks) if name == b"vary"]
    rest = [header for header in (*headers, *marks) if header[0] != b"vary"]
    return [*rest, (b"vary", b", ".join(varies))] if varies else rest


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in scope["headers"] if key == name]
