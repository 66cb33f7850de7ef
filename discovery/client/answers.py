"""What an answer of the service means: it settles the question, refuses it for good, or says "not now".

Pure: status, headers and body go in. Text of a server is cut and made fit for one line before it goes anywhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from discovery.errors import Fault, Rejected, Unavailable

LONGEST_RETRY_AFTER_SECS = 60
MANY = 5
OWN_FAULTS = (400, 413, 415, 422)
"""What a service answers to a request that no replica would take. Any other refusal may be of that server alone."""


class Answer(NamedTuple):
    """An answer that settles the question: its status, the bare ETag if there was one, and the whole body."""

    status: int
    etag: str | None
    body: bytes


class NoAnswer(Unavailable):
    """Nobody answered. ``reached`` tells whether a server may have got the request all the same.

    ``dropped``: the connection ended before an answer came, as happens to one that was kept open for too long.
    """

    def __init__(self, detail: str, *, reached: bool, dropped: bool = False) -> None:
        super().__init__(detail, retry_after_secs=0)
        self.reached = reached
        self.dropped = dropped


class RejectedHere(Rejected):
    """One server refuses, or something in front of it; another may not."""


class NoStream(Unavailable):
    """What was answered is no stream of events."""


class _Fault(msgspec.Struct):
    path: str
    message: str


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""
    errors: list[_Fault] = []


def judged(base: str, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer of the server at ``base``; raises ``Rejected`` for a 4xx, ``Unavailable`` for what may pass."""
    if 400 <= status < 500 and status not in (408, 429):
        is_ours = headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/problem+json"
        kind = Rejected if is_ours and status in OWN_FAULTS else RejectedHere
        raise _rejected(kind, base, status, _problem(body))
    if status not in (200, 204, 304):
        raise _not_now(base, status, headers.get("Retry-After", ""), _problem(body))
    return Answer(status, bare(headers.get("ETag")), body)


def bare(etag: str | None) -> str | None:
    """The token within an ETag header: what event ids are made of.

    Some proxies that compress mark the tag with it, and do not know their own mark again when they are asked.
    """
    token = etag.strip().removeprefix("W/").strip('"') if etag else ""
    return token.removesuffix("-gzip").removesuffix(";gzip").removesuffix("-br") or None


def all_of(failures: Sequence[Unavailable | RejectedHere]) -> Unavailable | RejectedHere:
    """One error for a round in which no place gave an answer that settles it: a refusal where all of them refuse."""
    refusals = [failure for failure in failures if isinstance(failure, RejectedHere)]
    if len(refusals) == len(failures):
        return refusals[0]
    texts = list(dict.fromkeys(failure.detail for failure in failures))
    more = [f"and {len(texts) - MANY} more"] if len(texts) > MANY else []
    text = "; ".join(texts[:MANY] + more)
    not_now = [each for each in failures if isinstance(each, Unavailable) and not isinstance(each, NoAnswer)]
    if not_now:
        return Unavailable(text, retry_after_secs=min(failure.retry_after_secs for failure in not_now))
    return NoAnswer(text, reached=any(not isinstance(each, NoAnswer) or each.reached for each in failures))


def one_line(text: str) -> str:
    """Text of others, fit for one line of a log or a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:1000]


def _problem(body: bytes) -> _Problem:
    try:
        return msgspec.json.decode(body, type=_Problem)
    except (ValueError, RecursionError):
        return _Problem()


def _rejected(kind: type[Rejected], base: str, status: int, problem: _Problem) -> Rejected:
    said = one_line(problem.detail or problem.title) or "no reason was given; is it a discovery service?"
    faults = tuple(Fault(one_line(fault.path), one_line(fault.message)) for fault in problem.errors)
    title = one_line(problem.title) or f"status {status}"
    return kind(status, title, f"{base} answered {status}: {said}", faults=faults)


def _not_now(base: str, status: int, retry_after: str, problem: _Problem) -> Unavailable:
    said = one_line(problem.detail or problem.title)
    wanted = retry_after.strip()
    secs = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 9 else 1
    text = f"{base} answered {status}" + (f": {said}" if said else "")
    return Unavailable(text, retry_after_secs=min(secs, LONGEST_RETRY_AFTER_SECS))
