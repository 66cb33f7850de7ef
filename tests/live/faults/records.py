"""What relays, pollers and subscribers write down during a fault. All times are of one monotonic clock, in seconds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Beat:
    """One POST: status 0 is no answer at all."""

    name: str
    version: int
    sent: float
    answered: float
    replica: str
    status: int
    retry_after: str = ""
    closes: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What one list says: whether it is complete, and for each pool which version of its registration."""

    complete: bool
    versions: Mapping[str, int]
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One GET of the list: a 304 has the content that its ETag stands for; status 0 is no answer at all."""

    sent: float
    answered: float
    replica: str
    status: int
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a stream: a ``snapshot`` has all its pools, a ``delete`` the one that left."""

    at: float
    replica: str
    kind: str
    names: frozenset[str]


@dataclass(slots=True)
class Life:
    """One pool, as its relay knows it.

    ``versions`` has for each version the time when it was first accepted; ``doubtful`` the POSTs without a 200, which
    may have taken effect at any time after they were sent, each with the time when that was known.
    """

    name: str
    version: int = 0
    born: float | None = None
    born_on: str = ""
    accepted_sent: float = 0.0
    accepted: float = 0.0
    versions: list[tuple[float, int]] = field(default_factory=list)
    doubtful: list[tuple[float, float, int]] = field(default_factory=list)
    silent: float | None = None
    removing: float | None = None
    removed: float | None = None
    removed_on: str = ""

    @property
    def ended(self) -> float:
        """From when on nobody may count on it: its relay fell silent or began to deregister it."""
        return min(self.silent or float("inf"), self.removing or float("inf"))

    def beat(self, beat: Beat) -> None:
        """Take note of what a heartbeat brought."""
        if beat.status != 200:
            self.doubtful.append((beat.sent, beat.answered, beat.version))
            return
        if self.born is None:
            self.born, self.born_on = beat.answered, beat.replica
        if not self.versions or self.versions[-1][1] != beat.version:
            self.versions.append((beat.answered, beat.version))
        self.accepted_sent, self.accepted = beat.sent, beat.answered

    def least_version(self, moment: float) -> int | None:
        """The version that was accepted last by then; None where none was."""
        found = None
        for at, version in self.versions:
            if at > moment:
                break
            found = version
        return found

    def doubted(self, version: int) -> bool:
        """Whether a POST of that version was not confirmed, so that it may have taken effect late."""
        return any(version == each for _, _, each in self.doubtful)

    def forget(self, before: float) -> None:
        """Keep only what can still matter for answers from then on."""
        self.doubtful = [each for each in self.doubtful if each[1] >= before]
        while len(self.versions) > 1 and self.versions[1][0] < before:
            del self.versions[0]


@dataclass(slots=True)
class Records:
    """Everything about one fault."""

    beats: list[Beat] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    lags: list[tuple[float, float]] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)

    def lag(self, begin: float, end: float) -> float:
        """For how long the recorder itself was kept from running in that time."""
        return sum(max(0.0, min(end, at) - max(begin, at - late)) for at, late in self.lags)

    def said(self) -> Iterator[tuple[Answer, Content]]:
        """The lists that were answered."""
        for answer in self.answers:
            if answer.content is not None:
                yield answer, answer.content

    def forget(self, now: float) -> None:
        """Drop what has been judged; pools that ended go too."""
        for kept in (self.beats, self.answers, self.told, self.lags, self.notes):
            kept.clear()
        self.lives = {name: life for name, life in self.lives.items() if life.ended > now}
        for life in self.lives.values():
            life.forget(now - 5.0)
