"""The page at ``/`` as it comes over the wire; how it works in a browser is tested in tests/page."""

import base64
import hashlib
import re
from collections.abc import Iterator

import pytest

from tests.http.in_process import Rig
from tests.http.sockets import Served, served
from tests.http.test_tokens import Guarded


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Rig() as rig, served(rig.app) as server:
        yield server


def head_and_body(server: Served, target: str = "/", *lines: str) -> tuple[str, str]:
    with server.peer() as peer:
        peer.get(target, "Connection: close", *lines)
        head, _, body = peer.ended().partition(b"\r\n\r\n")
        return head.decode(), body.decode()


def policies(head: str) -> list[str]:
    return re.findall(r"(?im)^content-security-policy: (.*?)\r?$", head)


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_one_policy_of_the_page_lets_its_own_script_and_style_run_and_nothing_else(server: Served) -> None:
    head, body = head_and_body(server)
    assert head.startswith("HTTP/1.1 200 ")
    assert "\r\ncontent-type: text/html; charset=utf-8" in head
    assert "\r\nx-content-type-options: nosniff" in head
    [policy] = policies(head)
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    [script], [style] = (
        re.findall(r"(?s)<script[^>]*>(.*?)</script>", body),
        re.findall(r"(?s)<style>(.*?)</style>", body),
    )
    assert directives == {
        "default-src": "'none'",
        "script-src": hash_of(script),
        "style-src": hash_of(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert len(script) > 1000
    assert len(style) > 1000


def test_nothing_in_the_page_is_an_address_of_its_own(server: Served) -> None:
    _, body = head_and_body(server)
    assert re.findall(r"(?i)\b(?:https?|wss?|ftp):|[\"'`(=]//|@import|url\(", body) == []
    markup = re.sub(r"(?s)<(script|style).*?</\1>", "", body)
    assert re.findall(r"(?i)\b(?:href|src|srcset|action|data|poster)\s*=\s*(\S+?)>", markup) == ['"data:,"']
    assert "/*STYLE*/" not in body
    assert "/*SCRIPT*/" not in body


def test_the_page_is_the_same_whatever_the_query_and_not_sent_again_to_who_has_it(server: Served) -> None:
    head, body = head_and_body(server)
    tag = re.findall(r"(?m)^etag: (\S+)", head)[0]
    assert head_and_body(server, "/?q=x&sort=-model&q=%ff&<script>")[1] == body
    same, nothing = head_and_body(server, "/?q=y", f"If-None-Match: {tag}")
    assert same.startswith("HTTP/1.1 304 ")
    assert nothing == ""
    assert policies(same) == policies(head), "a browser takes the policy of the latest answer"
    other, again = head_and_body(server, "/", 'If-None-Match: W/"0"')
    assert other.startswith("HTTP/1.1 200 ")
    assert again == body


def test_the_page_is_given_to_those_without_a_token_who_get_no_data() -> None:
    with Guarded("read") as rig:
        assert rig.get("/").status == 200
        assert rig.get("/", {"authorization": "Bearer wrong"}).status == 200
        assert rig.get("/pools").status == rig.get("/status").status == rig.get("/pools/events").status == 401
