"""How long and how often: the one set of numbers that the full and the quick run differ in."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.bench.goals import Row
from tests.bench.load import Load
from tests.bench.servers import cpu_secs


@dataclass(frozen=True)
class Plan:
    """The sizes of one run. Seconds are those of one window of load."""

    secs: float = 3
    least_rounds: int = 3
    list_rounds: int = 5
    writes: int = 100
    counted_writes: int = 10_000
    sizes: frozenset[int] = frozenset()  # of pools or subscribers; empty: all that a goal names
    events: int = 15
    leases: int = 10_000
    slow_peers: bool = True
    idle_secs: float = 10
    watched_pools: int = 2000
    event_secs: float = 10
    event_rounds: int = 3

    def of_sizes(self, named: Iterable[int]) -> list[int]:
        """Those of the sizes that a goal names that this run is about."""
        return [size for size in named if not self.sizes or size in self.sizes]

    def rounds(self, count: int | None = None) -> Iterator[int]:
        """The numbers of the rounds."""
        yield from range(count or self.least_rounds)

    def tell(self, *rows: Row) -> None:
        """Show what the last round gave, for whoever waits."""
        for row in rows:
            if row.absent is not None:
                continue
            compared = "" if row.reference_name is None else f", {row.reference_name} {row.reference[-1]:,.2f}"
            print(
                f"{row.goal} {row.what}, round {len(row.product)}: {row.product[-1]:,.2f}{compared} {row.unit}",
                file=sys.stderr,
                flush=True,
            )


QUICK = Plan(
    secs=1,
    writes=50,
    counted_writes=2000,
    sizes=frozenset({1000}),
    slow_peers=False,
    events=6,
    event_secs=5,
    event_rounds=1,
)
FULL = Plan()


def cpu_each(pid: int, load: Callable[[], Load]) -> tuple[Load, float]:
    """A window of load, and the processor time in microseconds that the server spent on each request."""
    before = cpu_secs(pid)
    done = load()
    return done, (cpu_secs(pid) - before) * 1e6 / max(1, done.requests)
