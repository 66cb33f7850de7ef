"""The oracle: which promises were broken around one fault, judged afterwards from what was written down.

Pure: records in, sentences out. Every check stands for one promise and can fail; ``test_oracle`` shows it histories in
which it has to.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.live.faults.records import Answer, Beat, Life, Records

TRAVEL_SECS = 1.0  # how long a registration may take to be on the other replicas
AGREE_SECS = 2.0  # after the fault, every live pool on every replica
NOTICE_SECS = 2.0  # how late a sign of loss may be noticed
OVER_SECS = 1.0  # a pool leaves within a second of its lease's end
ANSWER_SECS = 1.5  # a POST has its answer
SLACK_SECS = 0.4  # what the machine may take beyond a promise, where other work runs beside
LATE_SECS = OVER_SECS + SLACK_SECS
REFUSED_SECS = 3.0  # the end of refusals is told when there was none for two seconds, by the next check
SHOWN = 8


@dataclass(frozen=True)
class Promises:
    """What the documentation says of one fault; the rest is the same for all of them."""

    silent: bool = False
    """The store cannot be read from the fault's begin to its end: replicas say so after two seconds."""
    of: frozenset[str] = frozenset("ab")
    """The replicas that the fault concerns."""
    stopped: bool = False
    """The process of the replica itself is stopped: it owes no answers until it goes on."""
    loss: bool = False
    """Data may have been lost: for one lease lists are not complete."""
    loses_writes: bool = False
    """Accepted writes of the last seconds may be undone: what was removed may come back until the hold is over."""
    refused: bool = False
    """The store can be read and refuses writes: that it is over is known when none was refused for two seconds."""
    leases_move: bool = False
    """The store's own clock is wrong: when a dead pool leaves is not promised."""
    log_lines: int = 9
    """What one replica may log, from the fault's begin until all is well."""


@dataclass(frozen=True)
class Window:
    """One fault in time: ``begun`` just before it, ``healed`` when the store answers as ever, ``rested`` at the end."""

    fault: str
    begun: float
    healed: float
    rested: float
    lease: float
    promises: Promises

    @property
    def held_until(self) -> float:
        """Until when a pool may be listed whose end met the fault."""
        return self.settled_from + LATE_SECS

    @property
    def agreed_from(self) -> float:
        """From when on every list has to show every live pool as its relay last told."""
        return self.healed + AGREE_SECS

    @property
    def settled_from(self) -> float:
        """From when on lists are complete and equal."""
        return self.healed + self.lease + NOTICE_SECS + (REFUSED_SECS if self.promises.refused else 0.0)

    def disturbs(self, moment: float) -> bool:
        """Whether replicas may not have heard what happened at that moment."""
        return self.begun - TRAVEL_SECS <= moment < self.agreed_from

    def excuses(self, owed: Beat | Answer) -> bool:
        """Whether the replica was stopped while it owed this answer."""
        stopped = self.promises.stopped and owed.replica in self.promises.of
        return stopped and owed.answered >= self.begun and owed.sent <= self.healed + SLACK_SECS


@dataclass(frozen=True)
class Broken:
    """One promise that was not kept, by whom and when (seconds since the fault's begin)."""

    promise: str
    replica: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text} ({self.replica}, {self.at:+.3f} s)"


Check = Callable[[Records, Window], Iterator[Broken]]


def judge(records: Records, window: Window) -> list[Broken]:
    """All promises that were broken, at most a few sentences for each."""
    found: list[Broken] = []
    for check in CHECKS:
        for number, broken in enumerate(check(records, window)):
            if number == SHOWN:
                found.append(Broken(broken.promise, broken.replica, broken.at, "... and more of the same"))
                break
            found.append(broken)
    return found


# ---- the lists


def _listed_from(life: Life, replica: str, window: Window) -> float:
    """From when on that replica has to list the pool."""
    if life.born is None:
        return float("inf")
    if replica == life.born_on:
        return life.born
    return max(life.born + TRAVEL_SECS, window.agreed_from) if window.disturbs(life.born) else life.born + TRAVEL_SECS


def no_live_pool_is_missing(records: Records, window: Window) -> Iterator[Broken]:
    """Whatever the list says of itself: an outage or a loss of data empties nothing."""
    replicas = {answer.replica for answer in records.answers} | {told.replica for told in records.told}
    due = {
        replica: {life.name: (_listed_from(life, replica, window), life.ended) for life in records.lives.values()}
        for replica in replicas
    }
    for answer, content in records.said():
        for name in due[answer.replica].keys() - content.versions.keys():
            begin, end = due[answer.replica][name]
            if begin <= answer.sent and answer.answered < end:
                text = f"{name} is missing from a list with complete={content.complete}"
                yield Broken("no live pool is missing", answer.replica, answer.sent - window.begun, text)


def no_stream_loses_a_live_pool(records: Records, window: Window) -> Iterator[Broken]:
    """A delete is final, so none is sent for a pool whose relay lives; nor does a snapshot lack one."""
    for told in records.told:
        if told.kind not in ("delete", "snapshot"):
            continue
        for life in records.lives.values():
            if not _listed_from(life, told.replica, window) <= told.at < life.ended:
                continue
            if (told.kind == "delete") == (life.name in told.names):
                text = f"a {told.kind} that takes {life.name} away"
                yield Broken("no live pool is missing", told.replica, told.at - window.begun, text)


def no_dead_pool_stays(records: Records, window: Window) -> Iterator[Broken]:
    """A pool that died or was removed leaves in time, and a removed one does not come back."""
    dead = {name: life for name, life in records.lives.items() if life.ended < float("inf")}
    ends: dict[tuple[str, str, bool], float] = {}
    for answer, content in records.said():
        for name in dead.keys() & content.versions.keys():
            key = (name, answer.replica, content.complete)
            if key not in ends:
                ends[key] = _gone_from(dead[name], answer.replica, content.complete, window)
            late = answer.sent - ends[key]
            if late > 0:
                text = f"{name} is listed {late:.3f} s too late"
                yield Broken("no dead pool stays", answer.replica, answer.sent - window.begun, text)


def _gone_from(life: Life, replica: str, complete: bool, window: Window) -> float:
    """From when on that replica must not list a pool that has ended; nobody knows for one that is being removed.

    Which hold applies also where the fault does not concern a replica directly it says itself: by not being complete.
    """
    if window.promises.leases_move or (life.removing is not None and life.removed is None):
        return float("inf")
    unconfirmed = [max(known, window.healed) for sent, known, _ in life.doubtful if sent > life.accepted_sent]
    if life.removed is None:
        held = replica in window.promises.of or not complete
        return _gone_after_silence(life.accepted, unconfirmed, held, window)
    if unconfirmed:  # nobody knows when such a POST took effect: at the latest when the store went on
        return max(window.held_until, max(unconfirmed) + window.lease + LATE_SECS)
    if window.promises.loses_writes and life.removed < window.agreed_from:
        return window.held_until
    if replica == life.removed_on:
        return life.removed
    heard = replica not in window.promises.of or not window.disturbs(life.removed)
    return life.removed + TRAVEL_SECS + SLACK_SECS if heard else window.held_until


def _gone_after_silence(accepted: float, unconfirmed: list[float], held: bool, window: Window) -> float:
    over = max([accepted, *unconfirmed]) + window.lease + LATE_SECS
    acted_on_before = over - SLACK_SECS < window.begun
    return max(over, window.held_until) if held and not acted_on_before else over


def every_pool_is_as_told(records: Records, window: Window) -> Iterator[Broken]:
    """From two seconds after the fault on each list shows each live pool as its relay told a second ago."""
    changing = [life for life in records.lives.values() if len(life.versions) > 1]
    for answer, content in records.said():
        if window.begun - SLACK_SECS < answer.answered and answer.sent < window.agreed_from + SLACK_SECS:
            continue
        for life in changing:
            least, shown = life.least_version(answer.sent - TRAVEL_SECS), content.versions.get(life.name)
            is_late = least is not None and shown is not None and shown < least and not life.doubted(shown)
            if not is_late or answer.sent >= life.ended:  # nobody tells again what a fault has undone
                continue
            text = f"{life.name} is shown as of version {shown}, and {least} was accepted a second before"
            yield Broken("replicas agree within 2 s", answer.replica, answer.sent - window.begun, text)


def lists_say_when_they_are_not_whole(records: Records, window: Window) -> Iterator[Broken]:
    """Two seconds into an outage complete is false; one lease and two seconds after it, true again."""
    for answer, content in records.said():
        concerned = answer.replica in window.promises.of
        silent_for = answer.sent - window.begun
        in_outage = window.promises.silent and concerned and answer.answered < window.healed
        if in_outage and content.complete and silent_for > NOTICE_SECS + SLACK_SECS:
            text = f"complete, {silent_for:.1f} s into an outage"
            yield Broken("an outage is told", answer.replica, silent_for, text)
        if not content.complete and answer.sent > window.settled_from + SLACK_SECS:
            text = f"not complete {answer.sent - window.healed:.1f} s after the fault"
            yield Broken("complete again one lease later", answer.replica, silent_for, text)


def a_loss_is_told(records: Records, window: Window) -> Iterator[Broken]:
    """Where data may have been lost lists are not complete for one lease; it may be noticed a second late."""
    if not window.promises.loss:
        return
    for replica in sorted(window.promises.of):
        said = [a.sent for a, c in records.said() if a.replica == replica and a.sent >= window.begun and not c.complete]
        told = [sent for sent in said if sent < window.settled_from]
        if not told or told[0] > window.healed + NOTICE_SECS + SLACK_SECS:
            yield Broken("a loss is told", replica, window.healed - window.begun, "complete all the time")
        elif told[-1] - told[0] < window.lease - TRAVEL_SECS - SLACK_SECS:
            text = f"complete again {told[-1] - told[0]:.1f} s after it was told"
            yield Broken("a loss is told", replica, told[-1] - window.begun, text)


def one_tag_has_one_content(records: Records, window: Window) -> Iterator[Broken]:
    """Equal tags mean equal lists, on whichever replica."""
    seen: dict[str, tuple[bool, dict[str, int]]] = {}
    for answer, content in records.said():
        is_now = (content.complete, dict(content.versions))
        if content.etag and seen.setdefault(content.etag, is_now) != is_now:
            text = f"{content.etag} stands for two lists"
            yield Broken("one tag, one content", answer.replica, answer.sent - window.begun, text)


def every_list_is_answered(records: Records, window: Window) -> Iterator[Broken]:
    """Whatever became of the store: the last list stays."""
    for answer in records.answers:
        if answer.content is None and not window.excuses(answer):
            text = f"GET /pools was answered with {answer.status or 'nothing'}"
            yield Broken("the last list stays", answer.replica, answer.sent - window.begun, text)


# ---- the heartbeats


def every_post_is_answered(records: Records, window: Window) -> Iterator[Broken]:
    """In 1.5 s, with 200, or with a 503 that says when to come again and closes the connection."""
    for beat in records.beats:
        if window.excuses(beat):
            continue
        at, took = beat.sent - window.begun, beat.answered - beat.sent - records.lag(beat.sent, beat.answered)
        if beat.status == 0:
            yield Broken("every POST is answered", beat.replica, at, f"no answer to {beat.name} in {took:.2f} s")
        elif took > ANSWER_SECS + SLACK_SECS:
            yield Broken("every POST is answered", beat.replica, at, f"{beat.status} after {took:.2f} s")
        elif beat.status == 503 and (beat.retry_after not in ("1", "2") or not beat.closes):
            text = f"a 503 with Retry-After {beat.retry_after!r} and close={beat.closes}"
            yield Broken("a 503 says when to come again", beat.replica, at, text)
        elif beat.status not in (200, 503):
            yield Broken("every POST is answered", beat.replica, at, f"status {beat.status} for {beat.name}")


def writes_are_taken_again(records: Records, window: Window) -> Iterator[Broken]:
    """From two seconds after the fault on, and before it, no heartbeat is refused."""
    for beat in records.beats:
        disturbed = window.begun - ANSWER_SECS <= beat.answered and beat.sent < window.agreed_from + SLACK_SECS
        if beat.status != 200 and not disturbed and not window.excuses(beat):
            text = f"{beat.name} was refused with {beat.status}, {beat.sent - window.healed:.1f} s after the fault"
            yield Broken("writes are taken again within 2 s", beat.replica, beat.sent - window.begun, text)


def the_load_was_there(records: Records, window: Window) -> Iterator[Broken]:
    """Not a promise of the service: without polls and heartbeats of each replica a verdict means nothing."""
    answers = Counter(answer.replica for answer in records.answers)
    beats = Counter(beat.replica for beat in records.beats if beat.status == 200)
    wanted = (window.rested - window.begun) * 5
    for replica in ("a", "b"):
        if answers[replica] < wanted or beats[replica] < 5:
            text = f"only {answers[replica]} polls and {beats[replica]} accepted heartbeats"
            yield Broken("the load was there", replica, 0.0, text)


CHECKS: tuple[Check, ...] = (
    no_live_pool_is_missing,
    no_stream_loses_a_live_pool,
    no_dead_pool_stays,
    every_pool_is_as_told,
    lists_say_when_they_are_not_whole,
    a_loss_is_told,
    one_tag_has_one_content,
    every_list_is_answered,
    every_post_is_answered,
    writes_are_taken_again,
    the_load_was_there,
)


# ---- what is left in the store


def lost_writes(stored: dict[str, int], lives: dict[str, Life]) -> list[str]:
    """Each accepted POST that is neither in the store nor superseded, for pools whose relays live."""
    found = []
    for life in lives.values():
        if not life.versions or life.ended < float("inf"):
            continue
        accepted, kept = life.versions[-1][1], stored.get(life.name)
        if kept is None or (kept < accepted and not life.doubted(kept)):
            found.append(f"{life.name}: version {accepted} was accepted, the store has {kept}")
    return found
