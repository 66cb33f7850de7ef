"""Lists that some replica gives though others say something else, and for how long not to look into them again.

Behind a balancer each connection may lead to another replica. One that lags, or lacks its store, soon agrees again;
some never do: memory stores behind one Service, watchers that see other slices. A follower that took whatever it hears
last would show pools coming and going for ever. So a list that was overruled once is left aside for a moment, then for
longer each time it is heard again, and needs more opinions each time. Pure.
"""

from typing import NamedTuple

FIRST_SECS = 2.0
LONGEST_SECS = 300.0
FORGOTTEN_SECS = 600.0
LASTING_TIMES = 4
MOST_OPINIONS = 4
MOST_LISTS = 8


class _Overruled(NamedTuple):
    times: int
    until: float


class Dissent:
    """What was overruled, by the names of lists."""

    def __init__(self) -> None:
        self._overruled: dict[str, _Overruled] = {}
        self._said = False

    def aside(self, now: float) -> list[str]:
        """The lists that are left aside for now."""
        self._forget(now)
        return [name for name, each in self._overruled.items() if each.until > now]

    def __bool__(self) -> bool:
        """Whether there was any, not long ago."""
        return bool(self._overruled)

    def opinions(self, name: str | None) -> int:
        """How many others have to give this list too before it is believed against a stream."""
        known = self._overruled.get(name) if name is not None else None
        return min(MOST_OPINIONS, 1 + known.times) if known is not None else 1

    def overrule(self, name: str, now: float) -> bool:
        """Another opinion was ours. Whether it is to be said that replicas differ for long."""
        self._forget(now)
        known = self._overruled.pop(name, None)
        times = known.times + 1 if known is not None else 1
        secs = min(FIRST_SECS * 2 ** (times - 1), LONGEST_SECS)
        self._overruled[name] = _Overruled(times, now + secs)
        if len(self._overruled) > MOST_LISTS:
            del self._overruled[next(iter(self._overruled))]
        lasting = times >= LASTING_TIMES and not self._said
        self._said |= lasting
        return lasting

    def _forget(self, now: float) -> None:
        self._overruled = {name: each for name, each in self._overruled.items() if each.until + FORGOTTEN_SECS > now}
        self._said &= bool(self._overruled)
