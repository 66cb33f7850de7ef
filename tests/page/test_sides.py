"""What the page says of pools that are not listed, and of lists that are not complete: the words of ``doctor``."""

import re
import subprocess

import pytest
from playwright.sync_api import expect

from tests.commands.program import DISCOVERY, environment
from tests.live.clusters import Cluster, watching
from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.page.conftest import PATIENT, MakeVisit

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

MISNAMED, UNREGISTERED, LISTED = "us-east1/prod/llama", "eu-west-1/prod/<b>qwen</b>", "us-east-1/prod/mixtral"


def doctor(replica: Replica, *words: str) -> list[str]:
    command = [*DISCOVERY, "doctor", "--url", replica.url, *words]
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=20, check=False, text=True)
    return done.stdout.splitlines()


def test_pools_of_one_side_come_first_and_are_explained_as_doctor_does(
    make_replica: MakeReplica, debian_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory, visit: MakeVisit
) -> None:
    debian_redis.cli("SET", "{discovery}:epoch", "in-use-before")
    with Cluster() as cluster:
        flags = watching(tmp_path_factory.mktemp("kube"), hub=cluster)
        replica = make_replica(redis_url=debian_redis.url, lease=60, heartbeat=5, flags=(*flags, *PATIENT)).start()
        cluster.pool(LISTED)
        cluster.relays("us-east-1/prod/llama", "10.1.0.2")
        cluster.relays("eu-west-1/prod/qwen", "10.1.0.3")
        for name in (LISTED, MISNAMED):
            replica.register(name)
        await_sign(lambda: replica.lists(LISTED), 10, "the pool that both sides know")
        seen = visit(replica.url)
        page = seen.page
        expect(seen.row("mixtral")).to_be_visible()

        title = "Not listed: 3 pools of which one side is missing"
        apart = page.get_by_role("table", name=title)
        expect(page.get_by_role("heading", name=title)).to_be_visible()
        assert page.get_by_role("heading", level=2).all_inner_texts()[0] == title, "ahead of those that are listed"
        rows = page.locator("#one-sided-rows tr")  # by no name: the number of pools is in it
        names = ["eu-west-1/prod/qwen", "us-east-1/prod/llama", MISNAMED]
        expect(rows.locator("td:nth-child(1)")).to_have_text(names)
        sides = ["Ready, not registered", "Ready, not registered", "registered, not Ready"]
        expect(rows.locator("td:nth-child(2)")).to_have_text(sides)
        said = doctor(replica, *names)
        assert "registered as" in said[2]
        expect(rows.locator("td:nth-child(4)")).to_have_text(said)
        seen.picture("one-sided")
        page.set_viewport_size({"width": 390, "height": 800})
        seen.picture("one-sided-narrow")
        page.set_viewport_size({"width": 1300, "height": 850})

        apart.get_by_role("button", name=MISNAMED).press("Enter")
        dialog = page.get_by_role("dialog", name=MISNAMED)
        first, *facts = doctor(replica, MISNAMED, "-o", "wide")
        expect(dialog.get_by_role("status")).to_have_text(re.compile(re.escape(first[1:]) + r"\.$"))
        shown = dialog.get_by_role("listitem")
        expect(shown).to_have_text(
            [*(fact.strip() for fact in facts[:-1]), re.compile(r"^lease: \d+\.\d s left, as last")]
        )
        assert facts[-1].startswith("  lease: ")
        seen.picture("one-sided-details")
        page.keyboard.press("Escape")
        expect(apart.get_by_role("button", name=MISNAMED)).to_be_focused()

        page.get_by_role("searchbox", name="Search").fill("us-east")
        expect(page.get_by_role("heading", name="Not listed: 2 pools")).to_be_visible()
        page.get_by_role("combobox", name="Cluster").select_option("us-east-1")
        expect(page.get_by_role("heading", name="Not listed: 1 pool of")).to_be_visible()
        page.get_by_role("button", name="Clear").click()
        replica.register("us-east-1/prod/llama")
        expect(seen.row("llama")).to_be_visible()
        expect(rows).to_have_count(2)

        whole, parts = page.locator("#whole"), page.get_by_role("list", name="Store and watchers")
        expect(whole).to_have_text(re.compile("^The list is complete: "))
        expect(parts).to_contain_text("Watcher hub sees 4 Services")
        cluster.down()
        reason = await_sign(lambda: replica.get("/status").json["incomplete_because"], 20, "a reason")
        assert reason.startswith("hub: ")
        expect(whole).to_have_text(re.compile(r"^The list is not complete: pools may be missing, because hub: .*\.$"))
        troubles = replica.get("/status").json["problems"]
        assert any(trouble.startswith("a watcher fails, its last view stays: hub: ") for trouble in troubles)
        expect(parts).to_contain_text("a watcher fails, its last view stays: hub: the API server at ")
        expect(parts).not_to_contain_text("Watcher hub sees")
        expect(seen.row("llama")).to_be_visible()
        seen.picture("incomplete")
