"""Which headers are refused by themselves, how large a head is, and an offer of another protocol taken out of it."""

import pytest

from discovery.http.heads import CHECKED_HEADERS, ReadyHeaders, head_size, header_refusal, without_offer
from discovery.http.limits import Limits

LIMITS = Limits(max_body_bytes=1000)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b"content-length", b"1000", None),
        (b"content-length", b" 1000 ", None),
        (b"content-length", b"1001", 413),
        (b"content-length", b"0001001", 413),
        (b"content-length", b"9" * 4000, 413),
        (b"content-length", b"x", None),  # the parser's to refuse
        (b"transfer-encoding", b"chunked", None),
        (b"transfer-encoding", b" Chunked", None),
        (b"transfer-encoding", b"gzip", 501),
        (b"transfer-encoding", b"gzip, chunked", 501),
        (b"transfer-encoding", b"", 501),
        (b"content-encoding", b"Identity", None),
        (b"content-encoding", b"gzip", 415),
        (b"expect", b"100-continue", None),
        (b"expect", b"anything", None),
    ],
)
def test_a_header_that_decides_how_a_request_is_taken(name: bytes, value: bytes, status: int | None) -> None:
    assert name in CHECKED_HEADERS
    refusal = header_refusal(name, value, LIMITS)
    assert (refusal and refusal.status) == status


def test_a_head_is_as_large_as_what_makes_it_different() -> None:
    headers = [(b"host", b"a"), (b"x", b"yz")]
    assert head_size(b"/path", headers) == len(b"/pathhost: a\r\nx: yz\r\n")
    assert head_size(b"", []) == 0


def test_without_the_offer_the_rest_of_the_head_is_as_it_was() -> None:
    headers = [(b"host", b"a"), (b"upgrade", b"h2c"), (b"expect", b"100-continue"), (b"content-length", b"4")]
    head = without_offer(b"POST", b"/pools?x=%20", "1.1", headers)
    assert head == b"POST /pools?x=%20 HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n"


def test_ready_headers_are_headers_that_know_how_they_are_written() -> None:
    headers = [(b"Content-Length", b"7"), (b"etag", b'W/"x"'), (b"connection", b"x, Close")]
    ready = ReadyHeaders(headers)
    assert list(ready) == headers
    assert ready.lines == b'content-length: 7\r\netag: W/"x"\r\nconnection: x, Close\r\n'
    assert (ready.length, ready.closes) == (7, True)
    assert ready.names == {b"content-length", b"etag", b"connection"}
    assert (ReadyHeaders([]).lines, ReadyHeaders([]).length, ReadyHeaders([]).closes) == (b"", None, False)


@pytest.mark.parametrize("header", [(b"x", b"1\n2"), (b"x", b"1\r"), (b"x\r\n", b""), (b"", b"1"), (b"x", b"\x7f")])
def test_headers_that_would_end_their_line_are_none(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="a header that cannot be sent"):
        ReadyHeaders([(b"etag", b"x"), header])
