"""The order of a list, and its bytes in blocks: against a plain sorted dictionary."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.listing import blocks as module
from discovery.listing import snapshot
from discovery.listing.blocks import Blocks
from discovery.listing.snapshot import Fragment, pool_fragment
from discovery.model import Listing
from tests.http.in_process import pool

names = st.sampled_from([f"p{number:02}" for number in range(30)])
sizes = st.sampled_from([0, 1, 100, 300, 2_000])


def fragment(name: str, size: int = 0, version: int = 0) -> Fragment[Listing]:
    return pool_fragment(pool(name, metadata={"v": str(version), "k": "x" * size}))


def document(parts: Any) -> Any:
    return json.loads(b"".join(snapshot.body_pieces("pools", True, parts)))["pools"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1_000)


@settings(max_examples=150)
@given(
    st.dictionaries(names, sizes),
    st.lists(st.tuples(names, st.one_of(st.none(), sizes), st.booleans(), st.booleans()), max_size=60),
)
def test_whatever_is_put_and_removed_the_bytes_are_those_of_a_sorted_list(
    first: dict[str, int], steps: list[tuple[str, int | None, bool, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", 1_000)
        plain = {name: fragment(name, size) for name, size in first.items()}
        blocks = Blocks(plain[name] for name in sorted(plain))
        held: list[tuple[Any, Any]] = []
        for number, (name, size, keep, hold) in enumerate(steps):
            if size is None:
                plain.pop(name, None)
                blocks.remove(("c1", "n1", name))
            else:
                plain[name] = fragment(name, size, number)
                blocks.put(plain[name])
            expected = [json.loads(plain[name].body) for name in sorted(plain)]
            assert [entry.key[2] for entry in blocks] == sorted(plain)
            parts = blocks.parts(keep=keep)
            if hold:
                held.append((parts, expected))
            else:
                assert document(parts) == expected
        for parts, expected in held:
            assert document(parts) == expected, "a slow reader was given what came later"


def test_a_change_makes_anew_only_the_block_that_it_is_in(small_blocks: None) -> None:
    blocks = Blocks(fragment(f"p{number:03}", 100) for number in range(100))
    before = list(blocks.parts(keep=True))
    assert len(before) > 10
    blocks.put(fragment("p050", 100, version=1))
    after = list(blocks.parts(keep=True))
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 1
    assert all(one is other for one, other in zip(after, blocks.parts(keep=False), strict=True))


def test_blocks_stay_of_a_size_that_can_be_written_at_once(small_blocks: None) -> None:
    blocks: Blocks[Listing] = Blocks()
    for number in range(300):
        blocks.put(fragment(f"p{number * 7 % 300:03}", 100))
    longest = 2 * module.PIECE_BYTES + 400
    assert max(map(len, blocks.parts(keep=True))) <= longest
    for number in range(300):
        if number % 10:
            blocks.remove(("c1", "n1", f"p{number:03}"))
    parts = list(blocks.parts(keep=True))
    assert len(document(parts)) == 30
    assert len(parts) <= 2 * sum(map(len, parts)) / module.PIECE_BYTES + 1, "many blocks with next to nothing"


def test_what_is_joined_in_passing_is_not_kept(small_blocks: None) -> None:
    blocks = Blocks(fragment(f"p{number:03}", 100) for number in range(20))
    first, second = list(blocks.parts(keep=False)), list(blocks.parts(keep=False))
    assert first == second
    assert all(one is not other for one, other in zip(first, second, strict=True))
