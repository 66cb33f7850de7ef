"""The live page for people, as one document: its markup, style and script from the files beside this module.

``api`` serves it at ``/``. It holds no data, so it may be read without a token; what it shows, it asks of the API, as
the reader. Nothing in it comes from elsewhere, and its policy lets a browser run nothing but this very script.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from discovery.http.answers import NO_CACHE, App, Receive, Scope, Send, answer_as_is
from discovery.http.requests import header, tag_matches

__all__ = ["make_page"]

SCRIPTS = ("asking", "stream", "status", "rows", "drawing", "listed", "acting")
"""The files of the script, in the order of reading; the last one begins."""


def make_page() -> App:
    """What answers at ``/``, whatever the query: in it the page keeps what people searched for."""
    document, policy = _document()
    token = hashlib.sha256(document).hexdigest()[:32]
    # With 304 too: a browser takes the policy of the latest answer, and the one of every answer would stop the script.
    told = [
        (b"etag", b'W/"%b"' % token.encode()),
        NO_CACHE,
        (b"content-security-policy", policy.encode()),
        (b"referrer-policy", b"no-referrer"),
    ]
    whole = [*told, (b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"%d" % len(document))]

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = header(scope, b"if-none-match")
        if wanted is not None and tag_matches(wanted, token):
            await answer_as_is(send, 304, told)
        else:
            await answer_as_is(send, 200, whole, document)

    return page


@cache
def _document() -> tuple[bytes, str]:
    """The whole page as UTF-8 HTML, the same at every path prefix, and its policy."""
    here = files(__name__)
    html, style = (here.joinpath(f"page.{kind}").read_bytes() for kind in ("html", "css"))
    script = b"\n".join(here.joinpath(f"{name}.js").read_bytes() for name in SCRIPTS)
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return html.replace(b"/*STYLE*/", style).replace(b"/*SCRIPT*/", script), "; ".join(policy)


def _hash(content: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
