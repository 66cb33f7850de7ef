"""Why pools are or are not listed, as a service explains it; and what is wrong with that service as a whole.

Pure: bodies of ``/status`` go in. Reads with tolerance, since service and reader are upgraded on their own schedules.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import quote

import msgspec

from discovery.errors import Unavailable
from discovery.model import PoolKey

LONGEST_QUERY = 6000
EVERY_POOL = "*"


class Explanation(msgspec.Struct, frozen=True):
    """One pool: ``text`` is one line that begins with the likely ``cause``, ``facts`` are what each side knows.

    ``ready`` is whether a relay is known that can be used; None where addresses come with the registrations.
    ``lease_left_secs`` is as the service last confirmed it; None where no registration lives.
    """

    cluster_id: str
    namespace: str
    dgd_name: str
    listed: bool
    text: str
    registered: bool = False
    ready: bool | None = None
    frontends: int = 0
    cause: str = ""
    facts: tuple[str, ...] = ()
    lease_left_secs: float | None = None

    @property
    def key(self) -> PoolKey:
        """The pool that this is about."""
        return PoolKey(self.cluster_id, self.namespace, self.dgd_name)


class Diagnosis(msgspec.Struct, frozen=True):
    """What one replica explained. ``problems`` are one sentence each: what is wrong with that replica as a whole."""

    complete: bool
    problems: tuple[str, ...]
    pools: tuple[Explanation, ...]


class _Status(msgspec.Struct, frozen=True):
    complete: bool
    explained: tuple[Explanation, ...]
    problems: tuple[str, ...] = ()
    detail: str = ""


_decode = msgspec.json.Decoder(_Status).decode


def queries(keys: Iterable[PoolKey]) -> Iterator[list[tuple[str, str]]]:
    """The parameters by which a service is asked for these pools, in as many requests as that takes; none means all."""
    query: list[tuple[str, str]] = []
    length = 0
    for key in keys:
        path = "/".join(quote(part, safe="") for part in key)
        cost = len(quote(path)) + len("&pool=")
        if query and length + cost > LONGEST_QUERY:
            yield query
            query, length = [], 0
        query.append(("pool", path))
        length += cost
    yield query or [("pool", EVERY_POOL)]


def read(bodies: Iterable[bytes]) -> Diagnosis:
    """The answers to ``queries`` as one; raises ``Unavailable`` where they are none."""
    try:
        answers = [_decode(body) for body in bodies]
    except ValueError as error:
        raise Unavailable("the answer explains no pools: is it a discovery service, and as new as this one?") from error
    last = answers[-1]
    pools = tuple(explanation for answer in answers for explanation in answer.explained)
    unsaid = not last.complete and not last.problems and last.detail  # by a service that says it elsewhere
    return Diagnosis(last.complete, (last.detail,) if unsaid else last.problems, pools)
