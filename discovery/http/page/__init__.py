"""The live page for people, as one document: its markup, style and script from the files beside this module.

``api`` serves it at ``/``. It holds no data, so it may be read without a token; what it shows, it asks of the API, as
the reader. Nothing in it comes from elsewhere, and its policy lets a browser run nothing but this very script.
"""

import base64
import hashlib
from importlib.resources import files

__all__ = ["HEADERS", "document"]

_HERE = files(__name__)
_STYLE = _HERE.joinpath("page.css").read_bytes()
_SCRIPT = _HERE.joinpath("page.js").read_bytes()


def document() -> bytes:
    """The whole page as UTF-8 HTML, the same at every path prefix."""
    html = _HERE.joinpath("page.html").read_bytes()
    return html.replace(b"/*STYLE*/", _STYLE).replace(b"/*SCRIPT*/", _SCRIPT)


def _hash(content: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


_POLICY = "; ".join(
    [
        "default-src 'none'",
        f"script-src {_hash(_SCRIPT)}",
        f"style-src {_hash(_STYLE)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)

HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
"""What goes with the page; the policy allows its own style, script and requests, and nothing else."""
