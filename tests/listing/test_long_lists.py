"""Long lists with a filter: put together as they are read, and the same bytes as in one."""

from hypothesis import given
from hypothesis import strategies as st

from discovery.listing import snapshot
from discovery.listing.snapshot import pool_fragment
from tests.http.in_process import pool

sizes = st.lists(st.integers(0, 700), max_size=6)


@given(sizes, st.booleans())
def test_parts_and_batches_of_them_are_the_list(lengths: list[int], complete: bool) -> None:
    long = [{f"key{place}": "x" * size for place in range(60)} for size in lengths]
    fragments = [pool_fragment(pool(f"p{number}", metadata=metadata)) for number, metadata in enumerate(long)]
    whole = snapshot.body("pools", complete, [fragment.body for fragment in fragments])
    parts = snapshot.body_parts("pools", complete, fragments)
    batches = list(snapshot.in_batches(parts))
    assert b"".join(parts) == b"".join(batches) == whole
    assert all(any(part is fragment.body for part in parts) for fragment in fragments), "none of them is a copy"
    assert all(len(batch) < 2 * snapshot.PIECE_BYTES + 1000 for batch in batches)
    assert all(len(batch) >= snapshot.PIECE_BYTES for batch in batches[:-1])
