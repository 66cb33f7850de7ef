"""Judges what the client shows by what it was told. Knows nothing of how it was told, nor of how the client works.

Messages are numbered as they were made, whenever they arrive: what was made later is newer, whichever replica made it.
*Arrived* is what the client may know. It *knows* what it has shown once, and what a stream that still runs has brought;
with what is told beside a stream it may take its time. So

- a pool is shown only with contents that arrived, and not with contents older than some that were known;
- nor after its removal was known, unless it was told of by something newer than that; where a ``delete`` told of its
  removal, by a replica that knew more: one that lags may still list what is gone;
- a pool that was known is missing only when something newer that takes it away arrived: a ``delete``, or a complete
  list without it;
- an ETag is that of exactly the list that is shown.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from discovery.client import Snapshot
from tests.client_faults.memory_network import Wire
from tests.client_faults.memory_service import Pools, Saying, State

NEVER = -1


class Oracle:
    """What one client was told. Pools are known by their names; contents by their JSON."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._told: dict[str, dict[str, list[int]]] = {}
        """The first and the newest message that told of these contents, and the newest revision that had them."""
        self._taken: dict[str, list[int]] = {}
        """The messages that took it away."""
        self._known: dict[str, tuple[int, str]] = {}
        self._known_gone: dict[str, int] = {}
        """The newest message that is known to have taken it away."""
        self._known_deleted: dict[str, int] = {}
        """The newest revision in which it is known to be deleted."""
        self._shown: set[str] = set()
        self.judged = 0

    # what it is told

    def said(self, saying: Saying, wire: Wire, stream: bool) -> tuple[Callable[[], object], Callable[[], object]]:
        """A message of a replica; gives what to call when it has arrived, and when the client had time to read it."""
        number = next(self._numbers)

        def read() -> None:
            if stream and not wire.broken and not wire.closed_by_client:
                self._knows(number, saying)

        return lambda: self._arrived(number, saying), read

    def _arrived(self, number: int, saying: Saying) -> None:
        for name, pool in saying.shown.items():
            told = self._told.setdefault(name, {}).setdefault(text_of(pool), [number, number, saying.revision])
            told[:] = [min(number, told[0]), max(number, told[1]), max(saying.revision, told[2])]
        for name in self._taken_away(saying):
            self._taken.setdefault(name, []).append(number)

    def _taken_away(self, saying: Saying) -> list[str]:
        if not saying.whole:
            return list(saying.gone)
        return [name for name in self._told if name not in saying.shown]

    def _knows(self, number: int, saying: Saying) -> None:
        for name, pool in saying.shown.items():
            self._knows_of(number, name, text_of(pool))
        for name in self._taken_away(saying):
            self._known_gone[name] = max(number, self._known_gone.get(name, NEVER))
        for name in saying.gone:
            self._known_deleted[name] = max(saying.revision, self._known_deleted.get(name, NEVER))

    def _knows_of(self, number: int, name: str, contents: str) -> None:
        if number > self._known.get(name, (NEVER, ""))[0]:
            self._known[name] = number, contents

    # what the client shows

    def judge(self, snapshot: Snapshot) -> None:
        """Raises ``AssertionError`` with what is wrong."""
        self.judged += 1
        shown = pools_of(snapshot)
        for name, pool in shown.items():
            self._judge_shown(name, text_of(pool))
        for name in self._known.keys() - shown.keys():
            self._judge_missing(name)
        self._shown = set(shown)
        if snapshot.etag is not None:
            assert snapshot.etag == State(shown, snapshot.complete).token, "the ETag is of another list"

    def _judge_shown(self, name: str, contents: str) -> None:
        first, newest, revision = self._told.get(name, {}).get(contents, (NEVER, NEVER, NEVER))
        assert first != NEVER, f"{name} is shown as it was never told"
        assert newest > self._known_gone.get(name, NEVER), f"{name} is shown after its removal was known"
        assert revision > self._known_deleted.get(name, NEVER), f"{name} is shown after its delete was known"
        known, known_contents = self._known.get(name, (NEVER, ""))
        assert newest >= known or contents == known_contents, f"{name} is shown with older contents"
        self._knows_of(first, name, contents)

    def _judge_missing(self, name: str) -> None:
        after = [number for number in self._taken.get(name, ()) if number > self._known[name][0]]
        assert after, f"{name} vanished, and nothing took it away"
        if name in self._shown:
            self._known_gone[name] = max(min(after), self._known_gone.get(name, NEVER))

    def judge_current(self, snapshot: Snapshot, truth: State) -> None:
        """Nothing is wrong any more: the list is that of the service, pool by pool, and says so."""
        self.judge(snapshot)
        shown = pools_of(snapshot)
        assert shown.keys() >= truth.pools.keys(), f"{sorted(truth.pools.keys() - shown.keys())} are lacking"
        for name, pool in truth.pools.items():
            assert shown[name] == pool, f"{name} is shown as it was before"
        assert snapshot.complete == truth.complete, f"complete is {snapshot.complete}, but is {truth.complete}"
        if truth.complete:
            assert shown == truth.pools, f"{sorted(shown.keys() - truth.pools.keys())} are gone"
            assert snapshot.etag == truth.token


def pools_of(snapshot: Snapshot) -> Pools:
    """What is shown, as the service would write it."""
    listed: list[dict[str, Any]] = json.loads(msgspec.json.encode(snapshot.pools))
    assert listed == sorted(listed, key=lambda pool: (pool["cluster_id"], pool["namespace"], pool["dgd_name"]))
    return {pool["dgd_name"]: pool for pool in listed}


def text_of(pool: dict[str, Any]) -> str:
    """Contents, to be compared."""
    return json.dumps(pool, sort_keys=True)
