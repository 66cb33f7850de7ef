"""``discovery doctor``: why pools are or are not listed, as a running service explains it.

Takes the explanation from the client library and turns it into text: one line for each pool, which begins with the
likely cause, pools that are not listed first. What is wrong with the service as a whole is said before, on standard
error where the output is for people.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from discovery.client import Client, Diagnosis, Explanation
from discovery.errors import Rejected, Unavailable
from discovery.logs import one_line
from discovery.registrations import key_path
from discovery.settings import DoctorSettings, access
from discovery.yaml_text import yaml_lines

FOR_PEOPLE = ("table", "wide")


def run(settings: DoctorSettings) -> int:
    """Explain; 0 when every pool is listed, 1 when one is not or none is known yet, 2 when there is nobody to ask."""
    try:
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
