"""The journal of changes: shared frames, steps in pieces, and what is joined for whom."""

from discovery.listing import journal as module
from discovery.listing.journal import Journal, Round, Step
from discovery.listing.snapshot import PIECE_BYTES, delete_frame, join_frames, pool_fragment, put_frame
from discovery.model import Listing
from tests.http.in_process import pool


def test_the_frames_of_a_round_are_made_once() -> None:
    frames_of: Round[Listing] = Round()
    fragment = pool_fragment(pool("p1"))
    assert frames_of.put(fragment) == put_frame(fragment)
    assert frames_of.put(fragment) is frames_of.put(fragment)
    assert frames_of.delete(fragment.key) == delete_frame(fragment.key)
    assert frames_of.delete(fragment.key) is frames_of.delete(fragment.key)


def test_a_long_step_comes_in_pieces_of_whole_events() -> None:
    frames = [put_frame(pool_fragment(pool(f"p{number}", metadata={"k": "x" * 900}))) for number in range(300)]
    step = Step("0" * 32, frames)
    assert step.joined() == join_frames(frames, "0" * 32)
    assert step.size == sum(map(len, frames))
    assert len(step.pieces()) > 3
    assert all(piece.endswith(b"\n\n") and piece.startswith(b"event: ") for piece in step.pieces())
    assert max(map(len, step.pieces())) < PIECE_BYTES + 2_000


def test_readers_at_the_same_step_share_its_bytes_and_old_ones_are_not_kept() -> None:
    journal = Journal("start")
    frames = [put_frame(pool_fragment(pool("p1")))]
    steps = [Step(str(number), frames) for number in range(module.JOINED_STEPS + 1)]
    journal.add(steps[0])
    old = steps[0].joined()
    assert steps[0].joined() is old
    for step in steps[1:]:
        journal.add(step)
        kept = step.joined()
        assert step.joined() is kept
    assert steps[0].joined() == old
    assert steps[0].joined() is not old
    assert journal.since("start") == steps
    assert journal.since("0") == steps[1:]
