"""What replicas make of what they read: many pages, failing and empty ones, half answers, items that say nothing."""

import contextlib
import itertools
import time
from collections.abc import Callable
from statistics import median

import pytest

from tests.live import verdict
from tests.live.dynamodb import items
from tests.live.dynamodb.conftest import MakeProxy, MakeReplica, StartReplicas
from tests.live.dynamodb.renewing import Renewing
from tests.live.dynamodb.replicas import await_agreed, await_listed
from tests.live.dynamodb_proxy import (
    Asked,
    DynamoDBProxy,
    Fault,
    answers,
    compressed,
    denies,
    fails,
    gateway,
    late,
    pages,
    silent,
    throttles,
    torn,
    unheard,
)
from tests.live.dynamodb_server import Table
from tests.live.relay import Relay, many
from tests.live.router import Poller, Subscriber
from tests.live.signs import await_sign, hold_for
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 3.0


def every_other() -> Callable[[Asked], bool]:
    """Whether a page after the first is to fail: every other time that one is asked for."""
    turns = itertools.cycle((True, False))
    return lambda asked: asked.continues and next(turns)


def test_f45_a_thousand_pools_of_more_than_a_megabyte_stay_though_the_second_page_fails_every_other_time(
    table: Table, start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    # Moto takes half a second for this read, and longer where the machine is busy.
    patient = ("--store-timeout-ms", "10000")
    _many_pools(table, 1000, 1100, 30.0, start_replicas, make_proxy, traffic, hold_secs=2, flags=patient)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_f45_five_thousand_pools(
    table: Table, start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    patient = ("--store-timeout-ms", "20000")
    _many_pools(table, 5000, 250, 120.0, start_replicas, make_proxy, traffic, hold_secs=40, flags=patient)


def _many_pools(
    table: Table,
    number: int,
    value_bytes: int,
    lease: float,
    start_replicas: StartReplicas,
    make_proxy: MakeProxy,
    traffic: Traffic,
    *,
    hold_secs: float,
    flags: tuple[str, ...] = (),
) -> None:
    names = [f"c1/n1/p{place:04}" for place in range(number)]
    proxies = [make_proxy(), make_proxy()]
    own = {name: {"through": proxy} for name, proxy in zip("ab", proxies, strict=True)}
    with contextlib.closing(Renewing(table, names, lease=lease, value_bytes=value_bytes)):
        a, b = start_replicas(lease=lease, heartbeat=lease / 3, own=own, flags=flags)
        for replica, proxy in zip((a, b), proxies, strict=True):
            assert replica.pools().names == names
            assert any(asked.continues for asked in proxy.seen("Query")), "the items fill more than one page"
        assert verdict.same_bytes(a.pools(), b.pools())
        pollers = [Poller(traffic, [replica], every=0.3) for replica in (a, b)]
        proxies[0].let(fails(), "Query", when=every_other())
        # What is before the end of the first page is not shown before there is an end of all.
        proxies[1].let(fails(), "Query", when=lambda asked: asked.continues)
        half = time.monotonic()
        # Within a read that had begun before, the first page may be behind the news.
        await_sign(lambda: any(asked.status == 500 for asked in proxies[1].asked), 30, "half a read on b")
        table.put_item(items.item("c0/n1/news", lease=lease))
        hold_for(hold_secs, lambda: b.pools().names == names, "b keeps what it has and takes no half read", every=0.3)
        await_sign(lambda: a.lists("c0/n1/news"), 30, "a read from end to end succeeds every other time")
        assert any(asked.status == 500 for asked in proxies[0].seen("Query", half))
        proxies[0].heal()
        proxies[1].heal()
        for replica in (a, b):
            await_sign(lambda r=replica: r.lists("c0/n1/news"), 30, f"all on {replica.name}")
        wanted = frozenset(names)
        for poller in pollers:
            assert all(poll.status == 200 and poll.names >= wanted for poll in poller.stop())
        assert any(poll.complete is False for poll in pollers[1].polls), "a list that cannot be read is not complete"


def test_small_and_empty_pages_are_read_to_the_end_one_reader_at_a_time(
    table: Table, start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    names = [f"c1/n1/p{number:02}" for number in range(24)]
    proxies = [make_proxy(), make_proxy()]
    proxies[1].let(compressed())
    for proxy in proxies:
        proxy.let(pages(8, empty_between=True), "Query")
    table.put_items(items.item(name, lease=20) for name in names)
    own = {name: {"through": proxy} for name, proxy in zip("ab", proxies, strict=True)}
    a, b = start_replicas(lease=20, heartbeat=5, own=own)
    assert a.pools().names == b.pools().names == names
    begun = time.monotonic()
    delays = []
    for number in range(6):
        # Then the next read that nobody asks for is half a second away.
        await_sign(
            lambda: time.monotonic() - proxies[0].seen("Query")[-1].at > 0.35, 5, "a while after a read", every=0.01
        )
        sent = a.register(f"c2/n1/p{number}")
        assert a.lists(f"c2/n1/p{number}")
        await_sign(lambda number=number: b.lists(f"c2/n1/p{number}"), 5, "on b")
        delays.append(time.monotonic() - sent)
    assert median(delays) < 1.5, delays
    await_sign(lambda: time.monotonic() > begun + 3, 4, "some reads", every=0.1)
    await_agreed((a, b))
    for proxy in proxies:
        asked = [each for each in proxy.asked if each.answered is not None]
        assert {each.operation for each in asked} <= {"Query", "PutItem"}
        reads = [each for each in asked if each.operation == "Query"]
        assert all(each.body["ConsistentRead"] is True for each in reads)
        assert all(before.answered <= after.at for before, after in itertools.pairwise(reads)), "two readers at once"
        since = [each.at for each in proxy.seen("Query", begun) if not each.continues]
        gaps = [after - before for before, after in itertools.pairwise(since)]
        assert max(gaps) < 2.0, gaps
        writes = sum(each.operation == "PutItem" for each in asked)
        # Each write starts a read; the others keep to the second.
        assert len(since) <= writes + (time.monotonic() - begun) / 0.7 + 1
    reads = [each.at for each in proxies[0].seen("Query") if not each.continues]
    written = [each.answered for each in proxies[0].seen("PutItem") if each.answered is not None]
    soon = sorted(min(read for read in reads if read > moment - 0.05) - moment for moment in written)
    # A busy machine delays one of them; what waits for its second does so nearly always.
    assert soon[-2] < 0.4, f"a write starts a read at once: {soon}"
    # The jitter keeps replicas that were started together from reading together.
    lonely = [each.at for each in proxies[1].seen("Query", begun) if not each.continues]
    gaps = [after - before for before, after in itertools.pairwise(lonely)]
    assert max(gaps) - min(gaps) > 0.01, gaps


FAILING: dict[str, Callable[[], Fault]] = {
    "500": lambda: fails(),
    "denied": lambda: denies("Query"),
    "cut in the middle": lambda: torn(),
    "half and seemingly whole": lambda: torn(seems_whole=True),
    "unheard": lambda: unheard(),
    "no JSON": lambda: fails(502, "Bad", "gateway"),
    "a gateway an hour behind": lambda: gateway(502, -3600),
    "silent": lambda: silent(),
    "late": lambda: late(4.0),
    "no table": lambda: fails(400, "ResourceNotFoundException", "Requested resource not found"),
    "another answer": lambda: answers(200, {"message": "hello"}),
}


def test_no_answer_to_a_query_ever_empties_a_list(
    table: Table, start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    """One fault after the other on the same two replicas, each for two attempts, and back."""
    proxies = [make_proxy(), make_proxy()]
    own = {name: {"through": proxy} for name, proxy in zip("ab", proxies, strict=True)}
    a, b = start_replicas(lease=LEASE, own=own)
    relays = many(traffic, [a, b], [f"c1/n1/p{number}" for number in range(4)])
    names = [relay.name for relay in relays]
    await_listed((a, b), names)
    pollers = [Poller(traffic, [replica]) for replica in (a, b)]
    streams = [Subscriber(traffic, [replica]) for replica in (a, b)]
    await_sign(lambda: all(stream.connected for stream in streams), 5, "both streams")
    for both in itertools.zip_longest(list(FAILING)[::2], list(FAILING)[1::2]):
        chosen = dict(zip((what for what in both if what), proxies, strict=False))
        since = time.monotonic()
        for what, proxy in chosen.items():
            proxy.let(FAILING[what](), "Query")
        for what, proxy in chosen.items():
            _await_reads(proxy, since, 2, None, f"two attempts under {what}")
        since = time.monotonic()
        for proxy in proxies:
            proxy.heal()
        for proxy in proxies:
            _await_reads(proxy, since, 1, 200, f"a read after {both}")
    await_agreed((a, b), LEASE + 4)
    for poller, stream in zip(pollers, streams, strict=True):
        polls = poller.stop()
        assert verdict.missing(polls, relays) == []
        assert {poll.status for poll in polls} == {200}
        assert [event.name for event in stream.events if event.name in ("put", "delete")] == []
        assert stream.faults == []
    for replica in (a, b):
        assert "Traceback" not in replica.log
    for row in table.scan():
        ends = int(row.get("lease_ends_ms", {"N": "0"})["N"]) / 1000
        assert "#settling" in row["sk"]["S"] or abs(ends - time.time() - LEASE) < 5, "a gateway's clock is nobody's"


def _await_reads(proxy: DynamoDBProxy, since: float, number: int, status: int | None, what: str) -> None:
    """Wait until so many queries were made from then on; those with that status only, if one is given."""

    def made() -> bool:
        return sum(status in (None, asked.status) for asked in proxy.seen("Query", since)) >= number

    await_sign(made, 10, what)


def test_a_throttled_reader_backs_off_and_says_so_once(
    start_replicas: StartReplicas, make_proxy: MakeProxy, traffic: Traffic
) -> None:
    proxy = make_proxy()
    (a,) = start_replicas("a", lease=LEASE, through=proxy)
    relay = Relay(traffic, [a], "c1/n1/p1")
    await_listed((a,), [relay.name])
    poller = Poller(traffic, [a])
    lines = len(a.log.splitlines())
    turns = itertools.cycle((True, False))
    proxy.let(throttles("ThrottlingException"), "Query", when=lambda _: next(turns))
    proxy.let(throttles(), "Query")
    throttled = time.monotonic()
    await_sign(lambda: not a.pools().complete, 4, "not sure")
    await_sign(lambda: len(proxy.seen("Query", throttled)) >= 3, 10, "it tries again, and again")
    gaps = [after.at - before.at for before, after in itertools.pairwise(proxy.seen("Query", throttled))]
    assert gaps[1] > gaps[0] > 1, f"each time it waits longer, and longer than it would have without: {gaps}"
    said = [line for line in a.log.splitlines()[lines:] if "the store fails" in line]
    assert (len(said), "throttles" in said[0]) == (1, True), said
    assert a.counter("dynamodb_throttled") >= len(gaps)
    proxy.heal()
    await_sign(lambda: a.pools().complete, 5, "sure again")
    assert verdict.missing(poller.stop(), [relay]) == []
    assert len(a.log.splitlines()) - lines < 8, a.log


def test_an_item_that_is_none_costs_itself_and_one_line(
    table: Table, start_replicas: StartReplicas, make_replica: MakeReplica
) -> None:
    names = ["c1/n1/first", "c9/n1/last"]
    table.put_items(items.item(name, lease=20) for name in names)
    faulty = items.broken(20)
    table.put_items(faulty.values())
    table.put_item({**items.item("c5/n1/elsewhere", lease=20), "pk": {"S": "OTHER"}})
    a, b = start_replicas(lease=20, heartbeat=5)
    assert a.pools().names == b.pools().names == names
    assert a.pools().complete
    first = len(a.log.splitlines())
    hold_for(1.2, lambda: a.pools().names == names, "another read changes nothing")
    assert len(a.log.splitlines()) == first, a.log
    # Each is named once, up to a bound that keeps a table full of them from flooding the log.
    assert 1 <= sum("broken" in line for line in a.log.splitlines()) <= len(faulty) + 1
    repaired = items.item("broken/n1/p00", lease=20)
    table.put_item(repaired)
    await_listed((a, b), ["broken/n1/p00"], 3)
    table.put_item({**repaired, "registration": {"S": "{"}})
    hold_for(1.2, lambda: a.pools().complete and a.lists(*names), "the others stay")
    await_agreed((a, b))
