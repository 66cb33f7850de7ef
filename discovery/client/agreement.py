"""Whether the replicas of one deployment agree, judged by what each of them said of itself, several times over.

Pure: states and lists go in, sentences come out. Replicas that take changes one after the other are not equal at one
moment, so what is judged is their way: a list that each of them had, a revision that each of them reached, and at
last the pools in which they differ for good. How they are asked is for ``replicas``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from discovery.client.diagnosis import Explanation
from discovery.client.snapshot import Snapshot
from discovery.errors import Unavailable
from discovery.model import Listing, PoolKey
from discovery.problems import joined

SHOWN_POOLS = 3


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica said of itself at one moment; where it said nothing, ``no_answer`` is why.

    ``url`` is as it was given, ``address`` one of several that its name has. ``store`` is the kind of store, ``etag``
    the bare token of its whole list, None before there is one; ``problems`` are one sentence each. Epoch and revision
    are those of a store that counts its changes, else None; ``table`` and ``region`` those of a table of DynamoDB.
    """

    url: str
    address: str | None = None
    no_answer: str | None = None
    replica_id: str = ""
    version: str = ""
    complete: bool = False
    problems: tuple[str, ...] = ()
    store: str = ""
    store_address: str | None = None
    epoch: str | None = None
    revision: int | None = None
    table: str | None = None
    region: str | None = None
    etag: str | None = None
    pools: int = 0
    watchers: int = 0

    @property
    def name(self) -> str:
        """How sentences call it."""
        return f"{self.url} at {self.address}" if self.address else self.url

    @property
    def trouble(self) -> str | None:
        """Why it has no whole list, or none at all."""
        if self.no_answer is not None:
            return self.no_answer
        return None if self.complete else next(iter(self.problems), "its list is not complete")


class Difference(msgspec.Struct, frozen=True):
    """One pool that is not the same on all replicas: whether it is listed at each, by their names."""

    cluster_id: str
    namespace: str
    dgd_name: str
    listed: dict[str, bool]

    @property
    def key(self) -> PoolKey:
        """The pool."""
        return PoolKey(self.cluster_id, self.namespace, self.dgd_name)

    @property
    def text(self) -> str:
        """The same in one line."""
        having = [name for name, listed in self.listed.items() if listed]
        lacking = [name for name, listed in self.listed.items() if not listed]
        if not lacking:
            return f"{self.key} is listed with different contents at {joined(having)}"
        return f"{self.key} is listed at {joined(having)}, and not at {joined(lacking)}"


class Comparison(msgspec.Struct, frozen=True):
    """Whether the replicas agree: ``text`` in one sentence, ``faults`` what speaks against it, ``notes`` what does not.

    ``differences`` are the pools in which their lists differ for good; ``explained`` are the pools that were asked
    about, as each replica that answers explains them, by its name.
    """

    agree: bool
    text: str
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    replicas: tuple[ReplicaState, ...]
    differences: tuple[Difference, ...] = ()
    explained: dict[str, tuple[Explanation, ...]] = {}


History = Sequence[ReplicaState]
"""What was heard of one replica, in order; never empty."""


# ---- answers


class _Store(msgspec.Struct, frozen=True):
    kind: str = ""
    address: str | None = None
    epoch: str | None = None
    revision: int | None = None
    table: str | None = None
    region: str | None = None


class _Status(msgspec.Struct, frozen=True):
    replica_id: str
    complete: bool
    etag: str | None
    store: _Store
    version: str = ""
    problems: tuple[str, ...] = ()
    pools: int = 0
    watchers: tuple[dict[str, Any], ...] = ()


_decode = msgspec.json.Decoder(_Status).decode


def state(url: str, address: str | None, body: bytes) -> ReplicaState:
    """The answer to ``GET /status``; raises ``Unavailable`` where it is none."""
    try:
        said = _decode(body)
    except ValueError as error:
        raise Unavailable("no state of a replica: is it a discovery service, and as new as this program?") from error
    return ReplicaState(
        url=url,
        address=address,
        replica_id=said.replica_id,
        version=said.version,
        complete=said.complete,
        problems=said.problems,
        store=said.store.kind,
        store_address=said.store.address,
        epoch=said.store.epoch,
        revision=said.store.revision,
        table=said.store.table,
        region=said.store.region,
        etag=said.etag,
        pools=said.pools,
        watchers=len(said.watchers),
    )


# ---- what speaks against agreement


def lists_agree(histories: Sequence[History]) -> bool:
    """Whether all have the same list, or have passed through one while none of them said that it may lack pools."""
    heard = [history for history in _distinct(histories) if history[-1].no_answer is None]
    if len({history[-1].etag for history in heard}) <= 1:
        return True
    if not all(state.complete for history in heard for state in history if state.no_answer is None):
        return False
    return bool(set.intersection(*({state.etag for state in history if state.etag} for history in heard)))


def faults(histories: Sequence[History]) -> list[str]:
    """Why the replicas do not agree or cannot be told to, without their lists; each in one sentence."""
    last = [history[-1] for history in _distinct(histories)]
    found = [f"{each.name} gives no answer: {each.no_answer}" for each in last if each.no_answer is not None]
    heard = [each for each in last if each.no_answer is None]
    found += _store_faults(heard)
    found += [f"{each.name} is not complete: {each.trouble}" for each in heard if not each.complete]
    return found + _behind(histories)


def _store_faults(heard: Sequence[ReplicaState]) -> list[str]:
    kinds = {each.store for each in heard}
    if len(heard) > 1 and kinds == {"memory"}:
        advice = "give all of them one store (--registration-storage redis or dynamodb), or run one replica"
        return [f"each keeps registrations in its own memory, so that their lists cannot agree: {advice}"]
    if len(kinds) > 1:
        return [f"their stores are of different kinds: {_at(heard, lambda each: each.store)}"]
    if len({_name_of_table(each.table) for each in heard}) > 1:
        return [f"they stand on different tables: {_at(heard, lambda each: str(each.table))}"]
    if len({each.epoch for each in heard}) <= 1:
        return []
    stores = _at(heard, lambda each: f"epoch {each.epoch} ({each.store_address or each.store})")
    return [f"they stand on different stores, databases or prefixes, or not all have noticed a loss: {stores}"]


def _name_of_table(table: str | None) -> str | None:
    """The same for a table's name and its ARN, of whichever region: a Global Table has one name in all of them."""
    return None if table is None else table.rpartition("/")[2]


def _behind(histories: Sequence[History]) -> list[str]:
    """Replicas that have not reached the revision that another had when they were first asked."""
    begun = [history[0] for history in histories if history[0].revision is not None]
    found = []
    for history in _distinct(histories):
        now = history[-1]
        had = [(each.revision or 0, each.name) for each in begun if each.epoch == now.epoch]
        if now.revision is not None and had and now.revision < max(had)[0] and now.store != "memory":
            revision, name = max(had)
            found.append(f"{now.name} is behind: it knows revision {now.revision}, {name} had {revision} before that")
    return found


def list_fault(histories: Sequence[History], differences: Sequence[Difference] | None) -> str:
    """That their lists differ for good: by which ETags, and in which pools; None where these cannot be told."""
    heard = [history[-1] for history in _distinct(histories) if history[-1].no_answer is None]
    tags = _at(heard, lambda each: f"ETag {each.etag or 'none yet'}")
    why = ""
    if len({(each.epoch, each.revision) for each in heard}) == 1 and heard[0].revision is not None:
        seeing = ": their watchers see different slices" if any(each.watchers for each in heard) else ""
        why = f", though all know revision {heard[0].revision}{seeing}"
    return f"their lists differ ({tags}{why}): {_pools_of(differences)}"


def _pools_of(differences: Sequence[Difference] | None) -> str:
    if differences is None:
        return "in which pools cannot be told, since not all of them give one"
    if not differences:
        return "they hold the same pools, written in different ways"
    more = f"; and {len(differences) - SHOWN_POOLS} more pools" if len(differences) > SHOWN_POOLS else ""
    return f"{'; '.join(difference.text for difference in differences[:SHOWN_POOLS])}{more}"


# ---- lists, looked at several times


class Sights:
    """The pools in which lists differed at every look, and in which at least one replica stood still meanwhile.

    A pool that changes all the time differs at each look and is no disagreement: then no replica stands still.
    """

    def __init__(self) -> None:
        self._first: dict[PoolKey, dict[str, Listing | None]] | None = None
        self._still: dict[PoolKey, set[str]] = {}
        self._tags: list[dict[str, str | None]] = []

    def add(self, lists: Mapping[str, Snapshot]) -> None:
        """One more look at the list of each replica, by its name."""
        differing = _differing(lists)
        self._tags.append({name: snapshot.etag for name, snapshot in lists.items()})
        if self._first is None:
            self._first = differing
            self._still = {key: set(values) for key, values in differing.items()}
            return
        for key in list(self._still):
            before, now = self._first[key], differing.get(key, {})
            self._still[key] = {name for name in self._still[key] if name in now and now[name] == before[name]}
            if not self._still[key]:
                del self._still[key]

    @property
    def tags_differ(self) -> bool:
        """Whether their ETags differed at each look and never changed."""
        first = self._tags[0]
        return len(set(first.values())) > 1 and all(tags == first for tags in self._tags)

    @property
    def may_differ(self) -> bool:
        """Whether one more look could still find that they differ."""
        return bool(self._still) or self.tags_differ

    def differences(self) -> tuple[Difference, ...]:
        """What is left of them, sorted by pool key."""
        first = self._first or {}
        return tuple(
            Difference(*key, {name: value is not None for name, value in first[key].items()})
            for key in sorted(self._still)
        )


def _differing(lists: Mapping[str, Snapshot]) -> dict[PoolKey, dict[str, Listing | None]]:
    by_name = {name: {pool.key: pool for pool in snapshot.pools} for name, snapshot in lists.items()}
    found = {}
    for key in set[PoolKey]().union(*by_name.values()):
        values = {name: pools.get(key) for name, pools in by_name.items()}
        one = next(iter(values.values()))
        if any(value != one for value in values.values()):
            found[key] = values
    return found


# ---- the verdict


def verdict(
    histories: Sequence[History],
    looks: Sights | None,
    explained: Mapping[str, tuple[Explanation, ...]] | None = None,
) -> Comparison:
    """All of it in one sentence. ``looks`` is what was seen of the lists where they did not agree by themselves."""
    found, notes = faults(histories), _notes(histories)
    differences = () if looks is None else looks.differences()
    if not lists_agree(histories):
        if looks is None or differences or looks.tags_differ:
            found.append(list_fault(histories, None if looks is None else differences))
        else:
            notes.append("their lists change all the time: what differed at one look did not at the next")
    last = tuple(history[-1] for history in histories)
    text = _text(histories, found)
    return Comparison(not found, text, tuple(found), tuple(notes), last, differences, dict(explained or {}))


def _text(histories: Sequence[History], found: Sequence[str]) -> str:
    distinct = _distinct(histories)
    if len(distinct) == 1:
        only = f"only one replica was asked ({distinct[0][-1].replica_id or distinct[0][-1].name})"
        return f"{only}, so there is nothing to compare{': ' if found else ''}{'; '.join(found)}"
    if found:
        return f"the {len(distinct)} replicas do not agree: {'; '.join(found)}"
    one = distinct[0][-1]
    states = {(each[-1].revision, each[-1].etag) for each in distinct}
    if len(states) == 1:
        pools = "1 pool" if one.pools == 1 else f"{one.pools} pools"
        revision = "" if one.revision is None else f"revision {one.revision}, "
        return f"the {len(distinct)} replicas agree: {revision}ETag {one.etag}, {pools}"
    return f"the {len(distinct)} replicas agree, in change: each reaches what the others have"


def _notes(histories: Sequence[History]) -> list[str]:
    found = []
    by_id: dict[str, list[str]] = {}
    for history in histories:
        if history[-1].replica_id:
            by_id.setdefault(history[-1].replica_id, []).append(history[-1].name)
        if len({each.replica_id for each in history if each.replica_id}) > 1:
            found.append(f"{history[-1].name} leads to several replicas, or its replica was started anew meanwhile")
    found += [f"{joined(names)} are the same replica, {one}" for one, names in by_id.items() if len(names) > 1]
    heard = [history[-1] for history in _distinct(histories) if history[-1].no_answer is None]
    if len({each.version for each in heard}) > 1:
        found.append(f"they have different versions: {_at(heard, lambda each: each.version)}")
    if len({each.region for each in heard}) > 1:
        regions = _at(heard, lambda each: str(each.region))
        found.append(
            f"they read the table in different regions, from one of which changes reach the other late: {regions}"
        )
    return found


def _distinct(histories: Sequence[History]) -> list[History]:
    """Each replica once, however many URLs lead to it; those that gave no answer are told apart by their URLs."""
    return list({history[-1].replica_id or history[-1].name: history for history in reversed(histories)}.values())[::-1]


def _at(states: Iterable[ReplicaState], value: Callable[[ReplicaState], str]) -> str:
    """Each value with the replicas that have it."""
    grouped: dict[str, list[str]] = {}
    for each in states:
        grouped.setdefault(value(each), []).append(each.name)
    return ", ".join(f"{shown} at {joined(names)}" for shown, names in grouped.items())
