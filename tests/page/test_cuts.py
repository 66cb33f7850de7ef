"""What the page does when its stream is cut, in each way in which that happens; and who may read, after that."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.http.tokens_file import bearer, entry, swap
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.tcp_proxy import TcpProxy
from tests.page.conftest import PATIENT, MakeVisit, Visit
from tests.page.reverse_proxy import ReverseProxy

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

SILENCE_MS = 41_000
LONGEST_WAIT_MS = 15_000
READER, NEXT = "qBReader0000000001", "qBReader0000000002"


def is_live(seen: Visit) -> None:
    expect(seen.page.locator("#stream")).to_have_text("Live", timeout=20_000)
    expect(seen.page.locator("#cut")).to_be_hidden()


def test_a_cut_stream_is_said_and_comes_back_by_itself(
    make_replica: MakeReplica, debian_redis: RedisServer, visit: MakeVisit
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    replica = make_replica(redis_url=debian_redis.url, lease=120, heartbeat=30, flags=PATIENT).start()
    replica.register("c1/n1/p1")
    proxy = TcpProxy(replica.port)
    try:
        seen = visit(f"http://127.0.0.1:{proxy.port}", prepare=lambda page: page.clock.install())
        page, alert = seen.page, seen.page.get_by_role("alert")
        is_live(seen)
        expect(seen.row("p1")).to_be_visible()

        replica.kill()
        expect(page.locator("#stream")).to_have_text("Cut off")
        expect(alert).to_have_text(
            re.compile(r"^No news from the service: .*\. What is shown is from \d\d:\d\d:\d\d\.$")
        )
        expect(page.locator("#cut-next")).to_have_text(re.compile(r"^Trying again( in \d+ s\.| …)$"))
        expect(page.locator("#whole")).to_have_text("Whether the list is complete is not known: pools may be missing.")
        expect(page.get_by_role("list", name="Store and watchers")).to_have_text("The status cannot be read.")
        assert seen.names == ["p1"], "what was known stays in sight"
        seen.picture("cut")
        replica.start()
        replica.register("c1/n1/p2")
        page.clock.fast_forward(LONGEST_WAIT_MS)
        is_live(seen)
        expect(seen.row("p2")).to_be_visible()
        expect(page.locator("#whole")).to_have_text(re.compile("^The list is complete: "))

        assert proxy.swallow() >= 1
        page.clock.fast_forward(SILENCE_MS)
        expect(alert).to_have_text(re.compile(r"^No news from the service: the service fell silent\. "))
        replica.register("c1/n1/p3")
        proxy.thaw()
        page.get_by_role("button", name="Try now").click()
        is_live(seen)
        expect(seen.row("p3")).to_be_visible()

        proxy.cut()
        expect(seen.page.locator("#stream")).to_have_text("Cut off")
        page.clock.fast_forward(LONGEST_WAIT_MS)
        is_live(seen)
        assert seen.names == ["p1", "p2", "p3"]
    finally:
        proxy.close()


def streams(seen: Visit) -> list[dict[str, str]]:
    """The headers of each request for the stream."""
    return [one.all_headers() for one in seen.requests if one.url.endswith("/pools/events")]


def test_a_token_is_asked_for_and_sent_and_asked_for_again_when_it_was_revoked(
    make_replica: MakeReplica, tmp_path: Path, visit: MakeVisit
) -> None:
    tokens = tmp_path / "tokens"
    relay = entry("qBRelay00000000003", "register:*", name="relay")
    swap(tokens, entry(READER, "read"), relay)
    replica = make_replica(lease=120, heartbeat=30, flags=("--auth-tokens-path", str(tokens))).start()
    seen = visit(replica.url)
    page = seen.page
    dialog = page.get_by_role("dialog", name="This service wants a token")
    expect(dialog).to_contain_text("Without one it shows no data.")
    box = dialog.get_by_label("Token with the scope read")
    expect(box).to_be_focused()
    expect(page.locator("#stream")).to_have_text("Needs a token")
    seen.picture("token")

    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("alert")).to_have_text("No news from the service: it wants a token.")
    page.get_by_role("button", name="Enter a token").click()
    for wrong, why in (
        (NEXT, "The service does not know this token."),
        ("qBRelay00000000003", "The token relay lacks the scope read."),
    ):
        box.fill(wrong)
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text(why)
    box.fill(READER)
    dialog.get_by_role("button", name="Use it").click()
    is_live(seen)
    expect(dialog).to_be_hidden()
    body = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1", "model": "m"}
    post = replica.request(
        "POST", "/pools", json_of(body), bearer("qBRelay00000000003") | {"content-type": "application/json"}
    )
    assert post.status == 200
    expect(seen.row("p1")).to_be_visible()
    assert streams(seen)[-1]["authorization"] == f"Bearer {READER}"

    page.reload()
    is_live(seen)
    swap(tokens, entry(NEXT, "read"), relay)
    expect(dialog).to_contain_text("The service does not know this token.", timeout=20_000)
    expect(page.get_by_role("alert")).to_have_text(re.compile("does not know this token"))
    expect(seen.row("p1")).to_be_attached()
    box.fill(NEXT)
    page.keyboard.press("Enter")
    is_live(seen)
    assert [READER in one.url or NEXT in one.url for one in seen.requests].count(True) == 0
    assert READER not in page.content()
    page.get_by_role("button", name="Forget the token").click()
    expect(dialog).to_contain_text("Without one it shows no data.")


def json_of(body: dict[str, str]) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", ["/east/discovery/", "/east/discovery"])
def test_it_works_below_a_path_of_a_proxy(replica: Replica, visit: MakeVisit, path: str) -> None:
    replica.register("c1/n1/below")
    with ReverseProxy(replica.port, "/east/discovery") as proxy:
        seen = visit(proxy.url, path=f"{path}?q=below")
        is_live(seen)
        expect(seen.row("below")).to_be_visible()
        expect(seen.page.locator("#facts")).to_contain_text("redis")
        seen.row("below").get_by_role("button").click()
        expect(seen.page.get_by_role("dialog").get_by_role("status")).to_contain_text("the pool c1/n1/below is listed")
        seen.page.keyboard.press("Escape")
        seen.page.get_by_role("button", name="Clear").click()
        seen.page.wait_for_url(f"{proxy.url}/east/discovery/")
        seen.page.reload()
        expect(seen.row("below")).to_be_visible()
