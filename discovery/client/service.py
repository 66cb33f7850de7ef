"""Where the service is, who asks, and what is asked. Reads the token file; opens no connection."""

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from discovery.client.trust import Trust
from discovery.errors import Misconfigured

Pairs = Sequence[tuple[str, str]]

STREAM_OPENS_SECS = 10.0
"""How long a service may take to open a stream of events."""


class Request(NamedTuple):
    """What is asked of whichever base URL answers; ``target`` is path and query, escaped."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class Service:
    """Base URLs in the order in which they are tried, a file with a token, and for https whom to trust.

    The token is read for every request, since mounted tokens rotate. Raises ``Misconfigured`` for a URL that is none.
    """

    def __init__(
        self,
        urls: Iterable[str],
        token_path: str | os.PathLike[str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.urls = tuple(dict.fromkeys(_base_url(url) for url in urls))
        self._token_path = Path(token_path) if token_path is not None else None
        if not self.urls:
            raise Misconfigured("no URL of a discovery service was given")
        self.trust = trust or Trust()
        if self.trust.is_given and not any(url.lower().startswith("https:") for url in self.urls):
            raise Misconfigured("a CA or client certificate was given, but no URL of the service begins with https://")

    def only(self, url: str) -> "Service":
        """The same with one of its URLs alone."""
        one = copy.copy(self)
        one.urls = (url,)
        return one

    def authorization(self) -> dict[str, str]:
        """The header that names the caller, if a token is used."""
        if self._token_path is None:
            return {}
        # Without the path: people have given the token itself in its place.
        try:
            token = self._token_path.read_text("ascii").strip()
        except UnicodeDecodeError:
            raise Misconfigured("the token file holds more than ASCII") from None
        except OSError as error:
            raise Misconfigured(f"the token file cannot be read: {error.strerror}") from None
        if not token or not token.isprintable() or " " in token:
            raise Misconfigured("the token file must hold one token and nothing else")
        return {"Authorization": f"Bearer {token}"}


def _base_url(url: object) -> str:
    advice = "write it like http://127.0.0.1:8080"
    if not isinstance(url, str):
        raise TypeError(f"a URL of the service is a text, not {type(url).__name__}: {advice}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Misconfigured(f"a URL of the service cannot be read: {advice}") from error
    if "@" in parts.netloc:
        raise Misconfigured("a URL of the service carries a user or password: give a token by its file instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise Misconfigured(f"{url!r} is not the URL of a service: {advice}")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise Misconfigured(f"{url!r} is not the URL of a service: {advice}")
    return url.rstrip("/")


def path_of(*segments: str) -> str:
    """A path from its segments; whatever they hold stays within its segment."""
    return "".join("/" + quote(segment, safe="") for segment in segments)


def target(path: str, query: Pairs) -> str:
    """What is asked for at a base URL."""
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path
