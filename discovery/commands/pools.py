"""``discovery pools``: the pools as a running service lists them, once or for as long as somebody watches.

Takes snapshots from the client library and turns them into text. On a terminal a table fits its width; anywhere else
cells are whole, so that ``grep`` and ``awk`` see everything. What is wrong goes to standard error, not into the output.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.text import Text

from discovery.client import Client, Filters, NoAnswer, Pools, Snapshot
from discovery.errors import Rejected, Unavailable
from discovery.logs import one_line
from discovery.model import Capacity, Listing
from discovery.registrations import key_path
from discovery.settings import PoolsSettings, access
from discovery.yaml_text import yaml_lines

INCOMPLETE = "the list is not complete: pools may be missing"
REDRAW_SECS = 0.1
LOOK_AGAIN_SECS = 1.0
SHORTEST_COLUMN = 3


def run(settings: PoolsSettings) -> int:
    """Show the pools; 1 when the service has no list to give now, 2 when it refuses or nobody answers."""
    try:
        return asyncio.run(_watch(settings) if settings.watch else _show(settings))
    except NoAnswer as error:
        _say(str(error))
        return 2
    except Unavailable as error:
        _say(str(error))
        return 1
    except Rejected as error:
        _say("; ".join([str(error), *(f"{fault.path}: {fault.message}" for fault in error.faults)]))
        return 2


def _say(text: str) -> None:
    print(one_line(f"discovery: {text}"), file=sys.stderr)


def _filters(settings: PoolsSettings) -> Filters:
    filters = Filters()
    if settings.model:
        filters["model"] = settings.model
    if settings.cluster_id:
        filters["cluster_id"] = settings.cluster_id
    if settings.namespace:
        filters["namespace"] = settings.namespace
    if settings.capability:
        filters["capability"] = settings.capability
    if settings.region:
        filters["region"] = settings.region
    return filters


# ---- once


async def _show(settings: PoolsSettings) -> int:
    async with Client(**access(settings)) as client:
        snapshot = await client.list(**_filters(settings))
    console = Console(highlight=False)
    if not snapshot.pools and settings.output in ("table", "wide"):
        _say("no pools match" if _filters(settings) else "no pools")
    elif console.is_terminal and settings.output in ("table", "wide"):
        console.print(_drawn(snapshot.pools, console.width, wide=settings.output == "wide"), soft_wrap=True)
    else:
        _write(_TEXTS[settings.output](snapshot))
    if not snapshot.complete:
        _say(INCOMPLETE)
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# ---- for as long as somebody watches


async def _watch(settings: PoolsSettings) -> int:
    watching = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: watching and watching.cancel())
    console = Console(highlight=False)
    drawn = console.is_terminal and not console.is_dumb_terminal and settings.output in ("table", "wide")
    try:
        async with (
            Client(**access(settings)) as client,
            client.follow(**_filters(settings), patience_secs=0) as pools,
        ):
            if drawn:
                await _redraw(pools, console, wide=settings.output == "wide")
            else:
                await _print_each(pools, settings.output)
    except asyncio.CancelledError:  # asked to stop by a signal, which is how watching ends
        pass
    return 0


async def _redraw(pools: Pools, console: Console, *, wide: bool) -> None:
    """Draw the newest list again whenever it, the size of the terminal or the state of the connection changes."""
    before: object = None
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            version, size, state = pools.version, console.size, _state(pools)
            if before != (version, size, state):
                before = (version, size, state)
                live.update(_screen(pools.snapshot.pools, state, size, wide=wide), refresh=True)
                await asyncio.sleep(REDRAW_SECS)
            with suppress(TimeoutError):
                await asyncio.wait_for(pools.changed(version), LOOK_AGAIN_SECS)


def _state(pools: Pools) -> str:
    snapshot = pools.snapshot
    text = "1 pool" if len(snapshot.pools) == 1 else f"{len(snapshot.pools)} pools"
    if pools.trouble is not None:
        return f"{text}, as of {snapshot.age:.0f} s ago: {one_line(pools.trouble)}"
    return text if snapshot.complete else f"{text}; {INCOMPLETE}"


def _screen(listings: Sequence[Listing], state: str, size: ConsoleDimensions, *, wide: bool) -> Text:
    """As many pools as the screen has lines for, below the state of things."""
    room = max(1, size.height - 3)
    lines = [Text(state), _drawn(listings[:room], size.width, wide=wide)]
    if len(listings) > room:
        lines.append(Text(f"… and {len(listings) - room} more"))
    screen = Text("\n").join(lines)
    screen.no_wrap, screen.overflow = True, "ellipsis"
    return screen


async def _print_each(pools: Pools, output: str) -> None:
    """One block, or for JSON one line, per change."""
    complete, first = True, True
    render = _TEXTS["compact" if output == "json" else output]
    separator = {"json": "", "yaml": "---\n"}.get(output, "\n")
    version = pools.version
    while True:
        version, snapshot = pools.version, pools.snapshot
        _write(("" if first else separator) + render(snapshot))
        if complete and not snapshot.complete:
            _say(INCOMPLETE)
        complete, first = snapshot.complete, False
        await pools.changed(version)


# ---- tables

_COLUMNS: tuple[tuple[str, bool, Callable[[Listing], str]], ...] = (
    ("CLUSTER", False, lambda pool: pool.cluster_id),
    ("NAMESPACE", False, lambda pool: pool.namespace),
    ("POOL", False, lambda pool: pool.dgd_name),
    ("MODEL", False, lambda pool: pool.model),
    ("FRONTENDS", False, lambda pool: str(len(pool.frontends))),
    ("CAPACITY", False, lambda pool: ", ".join(map(_amount, pool.capacity))),
    ("REGION", False, lambda pool: pool.location.region or ""),
    ("RELAYS", True, lambda pool: ",".join(pool.relays)),
    ("CAPABILITIES", True, lambda pool: ",".join(pool.capabilities)),
    ("INSTANCE", True, lambda pool: pool.instance_id if isinstance(pool.instance_id, str) else ""),
    ("METADATA", True, lambda pool: ",".join(f"{name}={value}" for name, value in sorted(pool.metadata.items()))),
)


def _amount(capacity: Capacity) -> str:
    unit = f" {capacity.unit}" if capacity.unit else ""
    return f"{str(capacity.quantity).removesuffix('.0')}{unit} {capacity.resource}"


def _titles(wide: bool) -> list[str]:
    return [title for title, only_wide, _ in _COLUMNS if wide or not only_wide]


def _cells(pool: Listing, wide: bool) -> list[str]:
    return [one_line(cell(pool)) or "-" for _, only_wide, cell in _COLUMNS if wide or not only_wide]


def _rows(listings: Sequence[Listing], *, wide: bool, room: int | None = None) -> list[str]:
    """Title line and one line per pool, columns two spaces apart; cut to ``room`` cells, or whole without."""
    titles, rows = _titles(wide), [_cells(pool, wide) for pool in listings]
    contents = [max(map(cell_len, column)) for column in zip(*rows, strict=True)] or [0] * len(titles)
    widths = [max(content, cell_len(title)) for content, title in zip(contents, titles, strict=True)]
    if room is not None:
        widths = _fitted(widths, [max(content, SHORTEST_COLUMN) for content in contents], room - 2 * (len(widths) - 1))
    return [_line(row, widths) for row in [titles, *rows]]


def _fitted(widths: list[int], contents: list[int], room: int) -> list[int]:
    """Widths that fit: first titles give way to what they stand above, then the widest columns."""
    if sum(widths) <= room:
        return widths
    cap = max(contents)
    while cap > 1 and sum(min(content, cap) for content in contents) > room:
        cap -= 1
    return [min(content, cap) for content in contents]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_cut(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cut(cell: str, width: int) -> str:
    length = cell_len(cell)
    return cell + " " * (width - length) if length <= width else set_cell_size(cell, width - 1) + "…"


def _plain(snapshot: Snapshot, *, wide: bool) -> str:
    return "".join(f"{line}\n" for line in _rows(snapshot.pools, wide=wide))


def _drawn(listings: Sequence[Listing], width: int, *, wide: bool) -> Text:
    """The table for a terminal: fitted to its width, or whole in its wide form."""
    title, *lines = _rows(listings, wide=wide, room=None if wide else width)
    return Text("\n").join([Text(title, style="bold"), *map(Text, lines)])


# ---- text for other programs


class _Body(msgspec.Struct):
    """What ``GET /pools`` answers with, and what ``-o json`` and ``-o yaml`` promise."""

    complete: bool
    pools: tuple[Listing, ...]


def _compact(snapshot: Snapshot) -> str:
    return msgspec.json.encode(_Body(snapshot.complete, snapshot.pools)).decode() + "\n"


def _json(snapshot: Snapshot) -> str:
    return msgspec.json.format(_compact(snapshot), indent=2) + "\n"


def _yaml(snapshot: Snapshot) -> str:
    body = msgspec.to_builtins(_Body(snapshot.complete, snapshot.pools))
    return "".join(f"{line}\n" for line in yaml_lines(body))


def _names(snapshot: Snapshot) -> str:
    """Each pool as paths and ``discovery doctor`` name it, so that odd names come back as they are."""
    return "".join(f"{key_path(pool.key)}\n" for pool in snapshot.pools)


_TEXTS: dict[str, Callable[[Snapshot], str]] = {
    "table": lambda snapshot: _plain(snapshot, wide=False),
    "wide": lambda snapshot: _plain(snapshot, wide=True),
    "json": _json,
    "compact": _compact,
    "yaml": _yaml,
    "name": _names,
}
