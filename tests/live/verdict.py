"""The verdict after the fact, on what relays and routers wrote down: pools that were missing, pools that were dead.

A relay's pool counts as alive from its first accepted heartbeat (plus the time a registration may take to travel) until
the relay stopped, however many heartbeats failed meanwhile; it counts as dead one lease and one second after the last
accepted heartbeat was answered.
"""

from collections.abc import Iterable, Sequence

from tests.live.relay import Relay
from tests.live.replica import Answer
from tests.live.router import Poll

# How long a registration may take to reach another replica before its absence counts, in seconds.
TRAVEL = 1.0


def missing(polls: Iterable[Poll], relays: Sequence[Relay], *, only_complete: bool = False) -> list[str]:
    """Each list that lacked a living pool: who said it, when, and which pool.

    With ``only_complete`` only lists that call themselves complete are judged.
    """
    lives = [(relay.name, relay.accepted[0].answered + TRAVEL, _end(relay)) for relay in relays if relay.accepted]
    found = []
    for poll in polls:
        if poll.status != 200 or (only_complete and not poll.complete):
            continue
        for name, begin, end in lives:
            if begin <= poll.sent and poll.answered <= end and name not in poll.names:
                found.append(f"{name} missing from {poll.replica} at {poll.sent:.3f} (complete={poll.complete})")
    return found


def _end(relay: Relay) -> float:
    if relay.stopped is None:
        return float("inf")
    return relay.stopped


def dead(polls: Iterable[Poll], relays: Sequence[Relay], lease: float) -> list[str]:
    """Each list that still held a pool more than one second after its lease had ended."""
    ends = [
        (relay.name, relay.last_accepted.answered + lease + 1.0) for relay in relays if relay.stopped and relay.accepted
    ]
    return [
        f"{name} still listed by {poll.replica} {poll.sent - end:.3f} s too late"
        for poll in polls
        for name, end in ends
        if poll.sent > end and name in poll.names
    ]


def first_absent(polls: Iterable[Poll], name: str, replica: str, since: float) -> float:
    """When the first list of ``replica`` without that pool was asked for, from ``since`` on."""
    for poll in polls:
        if poll.replica == replica and poll.sent >= since and poll.status == 200 and name not in poll.names:
            return poll.sent
    raise AssertionError(f"{replica} listed {name} to the end")


def first_complete(polls: Iterable[Poll], replica: str, since: float) -> float:
    """When the first complete list of ``replica`` came, from ``since`` on."""
    for poll in polls:
        if poll.replica == replica and poll.sent >= since and poll.complete:
            return poll.answered
    raise AssertionError(f"{replica} was not complete again")


def slowest_read(polls: Iterable[Poll], since: float, until: float) -> float:
    """How long the slowest list took that was asked for in that time; lists wait for no store, only for the machine."""
    return max(poll.answered - poll.sent for poll in polls if since < poll.sent < until)


def same_bytes(*answers: Answer) -> bool:
    """Whether these lists are equal byte for byte, with equal tags."""
    return len({answer.body for answer in answers}) == 1 and len({answer.headers["etag"] for answer in answers}) == 1
