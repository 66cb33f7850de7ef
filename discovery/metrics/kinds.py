"""The kinds of metrics: what is counted and timed where it happens, and what is read when somebody asks.

At the bottom of ``metrics``: knows no single metric. Only the event loop's thread counts, so nothing is locked here: a
step costs a tenth of what prometheus-client's own counters and histograms take, which is why the hot paths can afford
one. That library writes the exposition.

A label's values are fixed words; another one counts as ``other``. Where they are not fixed (``ANY``) whoever counts has
them from flags, never from what somebody sent.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

ANY: tuple[str, ...] = ()
OTHER = "other"

Values = tuple[str, ...]


class Metric:
    """A metric: its name without the prefix, what it means, and its labels with the words that each may have."""

    kind: ClassVar[str]

    def __init__(self, name: str, documentation: str, **labels: tuple[str, ...]) -> None:
        self.name = f"discovery_{name}"
        self.documentation = documentation
        self.labels = labels

    @property
    def title(self) -> str:
        """The name as it is exposed."""
        return self.name

    def family(self) -> Family | None:
        """All its samples now; None where there is nothing to show."""
        raise NotImplementedError

    def values(self) -> Iterator[tuple[Values, float]]:
        """What has been counted; nothing of what is no count."""
        return iter(())

    def _bounded(self, values: Sequence[str]) -> Values:
        words = zip(values, self.labels.values(), strict=True)
        return tuple(value if allowed == ANY or value in allowed else OTHER for value, allowed in words)

    def _all_words(self) -> Iterator[Values]:
        """Every combination of words that is fixed."""
        return itertools.product(*self.labels.values())


class Count:
    """One count of a ``Tally``; to be kept by whoever counts often."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Count."""
        self.value += amount


class Tally(Metric):
    """How often something happened. Fixed words have a zero from the start, so that the first time is an increase."""

    kind = "counter"

    def __init__(self, name: str, documentation: str, **labels: tuple[str, ...]) -> None:
        super().__init__(name, documentation, **labels)
        self._counts: dict[Values, Count] = {words: Count() for words in self._all_words()}

    @property
    def title(self) -> str:
        """The name as it is exposed."""
        return f"{self.name}_total"

    def of(self, *values: str) -> Count:
        """The count for these labels."""
        found = self._counts.get(values)
        if found is None:
            found = self._counts.setdefault(self._bounded(values), Count())
        return found

    def inc(self, amount: float = 1) -> None:
        """Count, where there are no labels."""
        self._counts[()].value += amount

    def family(self) -> Family | None:
        """See ``Metric``."""
        family = CounterMetricFamily(self.name, self.documentation, labels=list(self.labels))
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        return family

    def values(self) -> Iterator[tuple[Values, float]]:
        """See ``Metric``: with labels only what happened at all."""
        return ((values, count.value) for values, count in self._counts.items() if count.value or not self.labels)


class Times:
    """One histogram of a ``Timing``; to be kept by whoever measures often."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, secs: float) -> None:
        """Note one duration."""
        self.counts[bisect_left(self._bounds, secs)] += 1
        self.total += secs


class Timing(Metric):
    """How long something took, as a histogram."""

    kind = "histogram"

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], **labels: tuple[str, ...]) -> None:
        super().__init__(name, documentation, **labels)
        self.bounds = bounds
        self._times: dict[Values, Times] = {words: Times(bounds) for words in self._all_words()}

    def of(self, *values: str) -> Times:
        """The histogram for these labels."""
        found = self._times.get(values)
        if found is None:
            found = self._times.setdefault(self._bounded(values), Times(self.bounds))
        return found

    def observe(self, secs: float) -> None:
        """Note one duration, where there are no labels."""
        self._times[()].observe(secs)

    def numbers(self) -> dict[Values, float]:
        """How many durations there are by labels."""
        return {values: sum(times.counts) for values, times in self._times.items()}

    def family(self) -> Family | None:
        """See ``Metric``."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=list(self.labels))
        words = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        for values, times in self._times.items():
            buckets = list(zip(words, map(float, itertools.accumulate(times.counts)), strict=True))
            family.add_metric(values, buckets, times.total)
        return family


Read = Callable[[], float | Mapping[str, float] | Mapping[Values, float] | None]


class Reading(Metric):
    """A value that is there anyway, and read when somebody asks; ``read_by`` says how. Until then it is not shown.

    What is read is one number, or None where there is none now; or numbers by the value of the label, or by the values
    of several.
    """

    kind = "gauge"

    def __init__(self, name: str, documentation: str, **labels: tuple[str, ...]) -> None:
        super().__init__(name, documentation, **labels)
        self._read: Read | None = None

    def read_by(self, read: Read) -> None:
        """Show from now on what ``read`` gives."""
        self._read = read

    def family(self) -> Family | None:
        """See ``Metric``."""
        found = list(self.read())
        if not found:
            return None
        family = self._family()
        for values, value in found:
            family.add_metric(values, value)
        return family

    def read(self) -> Iterator[tuple[Values, float]]:
        """The values as they are now, by their labels."""
        found = self._read() if self._read is not None else None
        if isinstance(found, Mapping):
            for key, value in found.items():
                yield self._bounded((key,) if isinstance(key, str) else key), value
        elif found is not None:
            yield (), found

    def _family(self) -> GaugeMetricFamily | CounterMetricFamily:
        return GaugeMetricFamily(self.name, self.documentation, labels=list(self.labels))


class Counted(Reading):
    """A reading of what somebody counts anyway: it only grows."""

    kind = "counter"

    @property
    def title(self) -> str:
        """The name as it is exposed."""
        return f"{self.name}_total"

    def values(self) -> Iterator[tuple[Values, float]]:
        """See ``Metric``."""
        return self.read()

    def _family(self) -> GaugeMetricFamily | CounterMetricFamily:
        return CounterMetricFamily(self.name, self.documentation, labels=list(self.labels))
