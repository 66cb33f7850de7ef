"""``discovery doctor``: why pools are or are not listed, as a running service explains it; whether its replicas agree.

Takes the explanation from the client library and turns it into text: one line for each pool, which begins with the
likely cause, pools that are not listed first. What is wrong with the service as a whole is said before, on standard
error where the output is for people. With ``--all-replicas`` there is a line for each replica, and a sentence about
all of them.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from discovery.client import Client, Comparison, Diagnosis, Explanation, ReplicaState
from discovery.errors import Rejected, Unavailable
from discovery.logs import one_line
from discovery.registrations import key_path
from discovery.settings import DoctorSettings, access
from discovery.yaml_text import yaml_lines

FOR_PEOPLE = ("table", "wide")
SHORT = 8
"""As much of an epoch tells it from another."""


def run(settings: DoctorSettings) -> int:
    """Explain; 0 when every pool is listed, 1 when one is not or none is known yet, 2 when there is nobody to ask.

    Of all replicas: 1 also where they do not agree.
    """
    try:
        if settings.all_replicas:
            return _compare(settings)
        diagnosis = asyncio.run(_ask(settings))
    except (Rejected, Unavailable) as error:
        _say(str(error))
        return 2
    if settings.output in (*FOR_PEOPLE, "name"):
        _say_problems(diagnosis)
    _show(diagnosis, settings.output)
    if not diagnosis.pools and not diagnosis.complete:
        return 1  # a service that has not read its store knows of no pool, which is no good news
    return 0 if all(pool.listed for pool in diagnosis.pools) else 1


async def _ask(settings: DoctorSettings) -> Diagnosis:
    async with Client(**access(settings)) as client:
        return await client.explain(settings.keys)


def _compare(settings: DoctorSettings) -> int:
    comparison = asyncio.run(_asked_of_all(settings))
    if settings.output in (*FOR_PEOPLE, "name"):
        for note in comparison.notes:
            _say(note)
    sys.stdout.write("".join(f"{line}\n" for line in _COMPARISON_TEXTS[settings.output](comparison)))
    sys.stdout.flush()
    asked = len(settings.keys)
    listed = all(len(pools) == asked and all(pool.listed for pool in pools) for pools in comparison.explained.values())
    return 0 if comparison.agree and listed else 1


async def _asked_of_all(settings: DoctorSettings) -> Comparison:
    async with Client(**access(settings)) as client:
        return await client.compare(settings.keys)


def _say(text: str) -> None:
    print(one_line(f"discovery: {text}"), file=sys.stderr, flush=True)


def _say_problems(diagnosis: Diagnosis) -> None:
    for problem in diagnosis.problems:
        _say(problem)
    if not diagnosis.pools and diagnosis.complete:
        _say("no pool is known: nobody registered one here, and no relay is imported")
    elif not diagnosis.pools:
        _say("no pool is known yet")


def _show(diagnosis: Diagnosis, output: str) -> None:
    console = Console(highlight=False)
    if console.is_terminal and output in FOR_PEOPLE:
        lines = [line for pool in _worst_first(diagnosis) for line in _drawn(pool, wide=output == "wide")]
        for line in lines:
            console.print(line, soft_wrap=True)
        return
    sys.stdout.write("".join(f"{line}\n" for line in _TEXTS[output](diagnosis)))
    sys.stdout.flush()


def _worst_first(diagnosis: Diagnosis) -> list[Explanation]:
    """Pools that are not listed, then those that are; each in the order in which they were asked for."""
    return sorted(diagnosis.pools, key=lambda pool: pool.listed)


def _drawn(pool: Explanation, *, wide: bool) -> Iterator[Text]:
    first, *facts = _lines(pool, wide=wide)
    yield Text(first, style="" if pool.listed else "bold")
    yield from (Text(fact, style="dim") for fact in facts)


def _lines(pool: Explanation, *, wide: bool) -> Iterator[str]:
    yield one_line(pool.text)
    if wide:
        yield from (f"  {one_line(fact)}" for fact in pool.facts)
        if pool.lease_left_secs is not None:
            yield f"  lease: {pool.lease_left_secs:.1f} s left, as last confirmed"


def _plain(diagnosis: Diagnosis, *, wide: bool) -> Iterator[str]:
    for pool in _worst_first(diagnosis):
        yield from _lines(pool, wide=wide)


def _json(diagnosis: Diagnosis) -> Iterator[str]:
    yield msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()


def _yaml(diagnosis: Diagnosis) -> Iterator[str]:
    yield from yaml_lines(msgspec.to_builtins(diagnosis))


# ---- all replicas

_COLUMNS: tuple[tuple[str, Callable[[ReplicaState], str]], ...] = (
    ("URL", lambda replica: replica.name),
    ("REPLICA", lambda replica: replica.replica_id),
    ("VERSION", lambda replica: replica.version),
    ("STORE", lambda replica: replica.store),
    ("EPOCH", lambda replica: (replica.epoch or "")[:SHORT]),
    ("REVISION", lambda replica: "" if replica.revision is None else str(replica.revision)),
    ("ETAG", lambda replica: replica.etag or ""),
    ("POOLS", lambda replica: "" if replica.no_answer else str(replica.pools)),
    ("COMPLETE", lambda replica: "yes" if replica.trouble is None else f"no: {replica.trouble}"),
)


def _compared(comparison: Comparison, *, wide: bool) -> Iterator[str]:
    rows = [[one_line(cell(replica)) or "-" for _, cell in _COLUMNS] for replica in comparison.replicas]
    table = [[title for title, _ in _COLUMNS], *rows]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for row, replica in zip(table, (None, *comparison.replicas), strict=True):
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
        if wide and replica is not None:
            yield from (f"  {one_line(problem)}" for problem in replica.problems)
    yield one_line(comparison.text)
    if wide:
        yield from (f"  {one_line(difference.text)}" for difference in comparison.differences)
    yield from _explained(comparison)


def _explained(comparison: Comparison) -> Iterator[str]:
    """What the replicas say of each pool that was asked about: once where all say the same."""
    for said in zip(*comparison.explained.values(), strict=False):
        if len({pool.text for pool in said}) == 1:
            yield one_line(said[0].text)
        else:
            for name, pool in zip(comparison.explained, said, strict=True):
                yield one_line(f"{name}: {pool.text}")


def _comparison_json(comparison: Comparison) -> Iterator[str]:
    yield msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode()


def _comparison_yaml(comparison: Comparison) -> Iterator[str]:
    yield from yaml_lines(msgspec.to_builtins(comparison))


def _comparison_names(comparison: Comparison) -> Iterator[str]:
    """The pools that are not listed at all replicas, for scripts."""
    lacking = {difference.key for difference in comparison.differences if not all(difference.listed.values())}
    asked = {pool.key for pools in comparison.explained.values() for pool in pools if not pool.listed}
    return (key_path(key) for key in sorted(lacking | asked))


_COMPARISON_TEXTS: dict[str, Callable[[Comparison], Iterator[str]]] = {
    "table": lambda comparison: _compared(comparison, wide=False),
    "wide": lambda comparison: _compared(comparison, wide=True),
    "json": _comparison_json,
    "yaml": _comparison_yaml,
    "name": _comparison_names,
}

# ---- one service


def _names(diagnosis: Diagnosis) -> Iterator[str]:
    """The pools that are not listed, for scripts: as paths and this command's own words name them."""
    return (key_path(pool.key) for pool in diagnosis.pools if not pool.listed)


_TEXTS: dict[str, Callable[[Diagnosis], Iterator[str]]] = {
    "table": lambda diagnosis: _plain(diagnosis, wide=False),
    "wide": lambda diagnosis: _plain(diagnosis, wide=True),
    "json": _json,
    "yaml": _yaml,
    "name": _names,
}
