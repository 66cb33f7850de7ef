"""What handlers keep between requests."""

from discovery.http.handlers import REMEMBERED_HEADS, ListHeads


def test_headers_of_a_list_are_made_once_for_each_state_and_form_of_it() -> None:
    heads = ListHeads()
    whole, packed, none = heads.of("t1", 700), heads.of("t1", 99, gzip=True), heads.of("t1")
    assert heads.of("t1", 700) is whole
    assert dict(whole) == {
        b"etag": b'W/"t1"',
        b"cache-control": b"no-cache",
        b"vary": b"accept-encoding",
        b"content-type": b"application/json",
        b"content-length": b"700",
    }
    assert dict(packed) == dict(whole) | {b"content-length": b"99", b"content-encoding": b"gzip"}
    assert dict(none) == {name: dict(whole)[name] for name in (b"etag", b"cache-control", b"vary")}
    assert dict(heads.of("t2", 700))[b"etag"] == b'W/"t2"'


def test_headers_of_past_states_are_forgotten() -> None:
    heads = ListHeads()
    for number in range(10 * REMEMBERED_HEADS):
        assert dict(heads.of(f"t{number}", number))[b"content-length"] == b"%d" % number
    assert len(heads._known) <= REMEMBERED_HEADS
