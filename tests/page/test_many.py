"""Ten thousand pools: few rows are drawn, and all of them are reached."""

import json
import re
import socket
from collections.abc import Iterable

import pytest
from playwright.sync_api import expect

from tests.live.conftest import MakeReplica
from tests.live.replica import Replica, pool
from tests.page.conftest import MakeVisit, Visit

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

POOLS = 10_000
MOST_ROWS = 500
AT_ONCE = 8


def register_all(replica: Replica, bodies: Iterable[dict[str, object]]) -> None:
    """Many registrations over one connection, sent ahead of their answers."""
    requests = []
    for each in bodies:
        body = json.dumps(each).encode()
        head = "POST /pools HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    with replica.connect(timeout=30) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in range(0, len(requests), AT_ONCE):
            batch = requests[first : first + AT_ONCE]
            connection.sendall(b"".join(batch))
            for _ in batch:
                status = answers.readline()
                assert status == b"HTTP/1.1 200 OK\r\n", status + answers.read(500)
                length = 0
                while (line := answers.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                answers.read(length)


def drawn(seen: Visit) -> int:
    return seen.page.locator("tr").count()


def test_of_ten_thousand_pools_few_are_drawn_and_all_are_reached(make_replica: MakeReplica, visit: MakeVisit) -> None:
    replica = make_replica(lease=120, heartbeat=30).start()
    names = [f"c{number % 7}/n{number % 23}/p{number:05}" for number in range(1, POOLS + 1)]
    register_all(replica, [pool(name, relays=[f"http://10.0.0.1/{name}"]) for name in names])
    seen = visit(replica.url)
    page = seen.page
    expect(page.get_by_role("heading", name="Listed: 10,000 of 10,000 pools")).to_be_visible(timeout=30_000)
    expect(seen.row("p00001").get_by_role("cell").nth(7)).to_have_text(re.compile(r"\d+ s"))
    seen.picture("many")
    assert 0 < drawn(seen) < MOST_ROWS
    assert page.locator("#pools").get_attribute("aria-rowcount") == "10001"

    page.hover("#scroller")
    for _ in range(4):
        page.mouse.wheel(0, 20_000)
    expect(page.get_by_role("button", name="p00001", exact=True)).to_have_count(0)
    page.mouse.wheel(0, 10_000_000)
    expect(seen.row("p10000")).to_be_in_viewport()
    assert seen.row("p10000").get_attribute("aria-rowindex") == "10001"
    assert 0 < drawn(seen) < MOST_ROWS

    page.focus("#scroller")
    page.keyboard.press("Home")
    expect(page.get_by_role("button", name="p00001", exact=True)).to_be_focused()
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="p10000", exact=True)).to_be_focused()
    expect(seen.row("p10000")).to_be_in_viewport()
    replica.register("c1/n1/p00000", model="m1")
    expect(page.get_by_role("heading", name="10,001 pools")).to_be_visible()
    expect(page.get_by_role("button", name="p10000", exact=True)).to_be_focused()
    page.get_by_role("columnheader", name="Pool").get_by_role("button").click()
    expect(page.locator("#rows tr button").first).to_have_text("p10000")
    page.get_by_role("searchbox", name="Search").fill("p0777")
    expect(page.get_by_role("heading", name="Listed: 10 of 10,001 pools")).to_be_visible()
    expect(page.locator("#rows tr button")).to_have_count(10)

    page.get_by_role("button", name="Clear").click()
    page.set_viewport_size({"width": 1300, "height": 20_000})
    expect(page.get_by_role("heading", name="Listed: 10,001 of")).to_be_visible()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert 250 < drawn(seen) < MOST_ROWS, "whatever the window's height"
