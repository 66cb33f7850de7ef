"""``docs/prometheus.md`` with real programs: promtool reads what it has to paste, and Prometheus discovers by it."""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import Block, read, steps
from tests.live.conftest import MakeReplica
from tests.live.prometheus import Prometheus, Scraped, Target
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVICE = "http://discovery.discovery:8080"
PASTED = [
    yaml.safe_load(step.text)
    for step in steps(read("docs/prometheus.md"))
    if isinstance(step, Block) and step.words == ("yaml",)
]
CONFIGURATIONS = [document for document in PASTED if "scrape_configs" in document]
RULES = [document for document in PASTED if "groups" in document]
HOSTILE = {"a.b": "dot", "a-b": "dash", "": "empty", "__address__": "10.0.0.1:1", "größe\n": '"} \u2028\x00', "7": "7"}


def promtool(folder: Path, document: dict[str, Any], *words: str) -> str:
    (folder / "file.yml").write_text(json.dumps(document))
    done = subprocess.run(
        ["promtool", "check", *words, "file.yml"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- what is there to be pasted


def test_everything_that_is_there_to_be_pasted_is_looked_at() -> None:
    assert (len(CONFIGURATIONS), len(RULES)) == (4, 1)
    (custom,) = [document for document in PASTED if document not in CONFIGURATIONS + RULES]
    assert custom["kind"] == "ScrapeConfig"
    assert (
        custom["spec"]["httpSDConfigs"][0]["url"] == CONFIGURATIONS[0]["scrape_configs"][0]["http_sd_configs"][0]["url"]
    )


@pytest.mark.parametrize("number", range(len(CONFIGURATIONS)))
def test_prometheus_takes_each_configuration(number: int, tmp_path: Path) -> None:
    found = promtool(tmp_path, CONFIGURATIONS[number], "config")
    assert "SUCCESS" in found


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    assert "2 rules found" in promtool(tmp_path, RULES[0], "rules", "--lint=all", "--lint-fatal")


# ---- discovery


@pytest.fixture
def scraped() -> Iterator[Callable[..., Scraped]]:
    """Make a program with metrics; all of them end after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda path="/metrics": stack.enter_context(contextlib.closing(Scraped(path)))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One that was in use before, so that replicas are complete from the start."""
    server = RedisServer("redis", tmp_path / "redis").start()
    with contextlib.closing(server):
        server.cli("SET", "{discovery}:epoch", "in-use-before")
        yield server


@pytest.fixture
def replica(redis: RedisServer, make_replica: MakeReplica) -> Replica:
    """Leases outlast the test: what leaves was deregistered."""
    replica = make_replica(redis_url=redis.url, lease=600, heartbeat=5, flags=("--access-log",)).start()
    await_sign(lambda: replica.pools().complete, 10, "a complete list")
    return replica


@pytest.fixture
def prometheus(replica: Replica, tmp_path: Path) -> Iterator[Prometheus]:
    """With what there is to be pasted, and once more with targets that may be missing; it is not started yet."""
    (pasted,) = CONFIGURATIONS[0]["scrape_configs"]
    job = json.loads(json.dumps(pasted).replace(SERVICE, replica.url))
    (asked,) = job["http_sd_configs"]
    assert asked["url"].startswith(replica.url)
    asked["refresh_interval"] = "500ms"
    everything = {
        "job_name": "everything",
        "http_sd_configs": [asked | {"url": f"{replica.url}/sd/prometheus?incomplete=true"}],
    }
    server = Prometheus(
        tmp_path / "prometheus", {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job, everything]}
    )
    with contextlib.closing(server):
        yield server


def of_pools(targets: list[Target]) -> dict[str, Target]:
    """The targets by pool and role."""
    found = {f"{target.labels['dgd_name']}/{target.labels['role']}": target for target in targets}
    assert len(found) == len(targets)
    return found


def test_prometheus_discovers_pools_that_come_and_go(
    replica: Replica, redis: RedisServer, prometheus: Prometheus, scraped: Callable[..., Scraped]
) -> None:
    stays, leaves, odd, relay = scraped(), scraped(), scraped("/pool%20a/metrics"), scraped()
    location = {"region": "eu-1", "zone": "eu-1a"}
    replica.register(
        "c1/n1/stays", model="m/1", frontends=[stays.url], relays=[relay.url], location=location, instance_id="i1"
    )
    replica.register("c1/n1/leaves", frontends=[leaves.url], relays=[], capabilities=["chat", "tools"])
    replica.register(
        "c2/n 2/odd", model='m"} 1', frontends=[f"{odd.url}/pool%20a"], relays=[], metadata=HOSTILE, location={}
    )
    prometheus.start()

    def all_are_up() -> bool:
        jobs = [of_pools(prometheus.targets(job)) for job in ("pool-frontends", "everything")]
        assert set(jobs[0]) == {"stays/frontend", "leaves/frontend", "odd/frontend"}
        assert set(jobs[1]) == {*jobs[0], "stays/relay"}
        return all(target.health == "up" for job in jobs for target in job.values())

    await_sign(all_are_up, 40, "every frontend and relay is a target, and up", every=0.1)
    found = of_pools(prometheus.targets("pool-frontends"))
    assert found["stays/frontend"].labels == {
        "cluster_id": "c1",
        "namespace": "n1",
        "dgd_name": "stays",
        "model": "m/1",
        "role": "frontend",
        "region": "eu-1",
        "zone": "eu-1a",
        "instance": stays.address,
        "job": "pool-frontends",
    }
    assert found["stays/frontend"].discovered["__meta_discovery_instance_id"] == "i1"
    assert found["leaves/frontend"].discovered["__meta_discovery_capabilities"] == ",chat,tools,"
    hostile = found["odd/frontend"]
    assert (hostile.labels["namespace"], hostile.labels["model"]) == ("n 2", 'm"} 1')
    assert hostile.url == f"{odd.url}/pool%20a/metrics"
    metadata = {name: value for name, value in hostile.discovered.items() if "_metadata_" in name}
    prefix = "__meta_discovery_metadata_"
    assert metadata == {
        f"{prefix}a_b": "dash",
        prefix: "empty",
        f"{prefix}__address__": "10.0.0.1:1",
        f"{prefix}gr__e_": HOSTILE["größe\n"],
        f"{prefix}7": "7",
    }
    (series,) = prometheus.series('frontend_requests_total{job="pool-frontends",dgd_name="stays"}')
    assert (series["model"], series["exported_model"]) == ("m/1", "its own word")
    assert not any(name.startswith("__meta") for name in series)

    assert replica.delete("c1/n1/leaves").status == 204
    given = answers(replica, 200)
    # The first answer may be to a request from before.
    await_sign(lambda: answers(replica, 200) >= given + 2, 20, "Prometheus has been given what is left")
    redis.cli("FLUSHALL")
    await_sign(lambda: not replica.pools().complete, 10, "the list is not complete")
    assert replica.delete("c1/n1/stays").status == 204

    def seen_by_who_takes_what_is_known() -> bool:
        return set(of_pools(prometheus.targets("everything"))) == {"odd/frontend"}

    await_sign(seen_by_who_takes_what_is_known, 40, "what has left is no target", every=0.1)
    kept = of_pools(prometheus.targets("pool-frontends"))
    assert set(kept) == {"stays/frontend", "odd/frontend"}, "what left while the list was complete, and nothing else"
    assert answers(replica, 503) >= 1
    assert prometheus.counter("prometheus_sd_http_failures_total") >= 1
    scrapes = len(stays.asked)
    await_sign(lambda: len(stays.asked) > scrapes, 20, "it is scraped all the while")
    assert of_pools(prometheus.targets("pool-frontends"))["stays/frontend"].health == "up"


def answers(replica: Replica, status: int) -> int:
    """How many such answers what there is to be pasted has got."""
    return replica.log.count(f"GET /sd/prometheus?role=frontend {status}, ")
