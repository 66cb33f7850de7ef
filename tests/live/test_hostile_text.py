"""Text that was made to break things, in every field of a registration, followed to every place where it comes out.

From POST through Redis to the lists and the streams of two replicas, their metrics and logs, and what the commands
print: what comes out is what went in, nothing of it acts, and what is one line stays one line.
"""

import json
import re
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from discovery.listing.scrape_targets import ROLES
from tests.commands.program import DISCOVERY, environment
from tests.live.redis_server import RedisServer
from tests.live.replica import Answer, Replica
from tests.live.router import Subscriber
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

Body = dict[str, Any]
Key = tuple[str, str, str]

HOSTILE = [
    *("\x00", "\n", "\r\n", "\t", "\x1b[31m", "\x1b]0;title\x07", "\x7f", "\x85", "\x9b2J", "\u2028", "\u2029"),
    *(
        "\u202e",
        "\u2066",
        "\u200f",
        "\u200b",
        "\ufeff",
        "\u0301",
        "\U000e0041",
        "\uffff",
        "\U0010ffff",
    ),
    *("</script>", "<img src=x onerror=alert(1)>", "&lt;", "javascript:alert(1)", "{{7*7}}", "${x}", "%s%n", "%(x)s"),
    *(
        "{",
        "}",
        "{discovery}:pool:a/b/c",
        "/",
        "//",
        "..",
        ".",
        "%",
        "%2F",
        "%2e%2e",
        "%00",
        "%ff",
        "?",
        "#",
        "*",
        "[a-z]",
    ),
    *(
        '"',
        "'",
        "\\",
        "\\n",
        "\\u0000",
        '"} 1\n# HELP x',
        'a="b"',
        ",",
        "=",
        ";",
        "`id`",
        "$(id)",
        "|",
        "&&",
        "../../etc",
    ),
    *(
        "null",
        "no",
        "~",
        "0x1F",
        "1e3",
        "- x",
        ": y",
        "!!python/object",
        "&a",
        "*a",
        "? k",
        "---",
        "data: x\n\n",
        "id: 1",
    ),
    *("Ω", "é", "e\u0301", "日本", "😀", "ﬁ", "İ", " ", "\u3000", "\xa0", "A" * 100, "Basic Og==", "http://u:p@h"),
]


def mostly(often: st.SearchStrategy[Any], sometimes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Hypothesis has no weights of its own."""
    return st.integers(0, 15).flatmap(lambda number: sometimes if number == 11 else often)


words = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=6).map("".join)
long_words = words.flatmap(lambda text: st.sampled_from([text, text * 60]))
# Most are sound names, or hardly any registration would be taken.
_no_control = st.characters(exclude_categories=["Cc", "Cs"])
_sound = st.lists(st.sampled_from([t for t in HOSTILE if not re.search("[\x00-\x1f\x7f-\x9f]", t)]) | _no_control)
sound_names = _sound.map(lambda texts: f"n{''.join(texts)}e"[:253]).filter(lambda name: not name[-1].isspace())
names = mostly(sound_names, words)
urls = mostly(st.just("http://10.0.0.1:9000/"), words.map(lambda text: f"http://h/{text}"))
sound_bodies = st.fixed_dictionaries(
    {"cluster_id": names, "namespace": names, "dgd_name": names, "model": st.one_of(names, words)},
    optional={
        "relays": st.lists(urls, max_size=2),
        "frontends": st.lists(urls, max_size=2),
        "capabilities": st.lists(words, max_size=3),
        "capacity": st.lists(
            st.fixed_dictionaries({"resource": words, "quantity": st.just(1.5)}, optional={"unit": words}),
            max_size=2,
            unique_by=lambda entry: entry["resource"],
        ),
        "location": st.fixed_dictionaries({}, optional={"region": words, "zone": words}),
        "instance_id": words,
        "metadata": st.dictionaries(words, long_words, max_size=3),
        "unknown": words,
    },
)
# Half of a character is no text at all: it spoils the whole body, wherever it stands.
spoiled_bodies = st.builds(
    lambda body, name, half: {**body, name: f"{half}x"},
    sound_bodies,
    st.sampled_from(["cluster_id", "model", "instance_id", "unknown"]),
    st.sampled_from(["\ud800", "\udfff", "\udc00\ud800"]),
)
bodies = mostly(sound_bodies, spoiled_bodies)


def key_of(body: Body) -> Key:
    return body["cluster_id"], body["namespace"], body["dgd_name"]


def path_of(key: Key) -> str:
    return "/".join(urllib.parse.quote(part, safe="") for part in key)


def is_identifier(text: str) -> bool:
    """The documented rule, in other words than the service has it."""
    ends_well = bool(text) and not (text[0].isspace() or text[-1].isspace())
    return ends_well and len(text) <= 253 and text not in (".", "..") and not any(map(is_control, text))


def is_control(character: str) -> bool:
    return ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0


def expected(body: Body) -> Body:
    """The listing that a taken registration becomes."""
    whole = {"relays": [], "frontends": [], "capabilities": [], "capacity": [], "location": {}, "metadata": {}, **body}
    for name in ("relays", "frontends", "capabilities"):
        whole[name] = sorted(set(whole[name]))
    whole["capacity"] = sorted(whole["capacity"], key=lambda entry: entry["resource"])
    return {name: value for name, value in whole.items() if name != "unknown"}


class Service:
    """Two replicas on one Redis, and what was registered there."""

    def __init__(self, a: Replica, b: Replica, redis: RedisServer) -> None:
        self.a, self.b, self.redis = a, b, redis
        self.taken: dict[Key, Body] = {}

    def send(self, body: Body) -> Answer:
        """POST a registration, which is answered as the rules say; what is taken is listed at once."""
        sent = json.dumps(body)  # what is no character is escaped
        answer = self.a.post(sent)
        heard = json.loads(sent)  # two halves of a character have become one
        if re.search("[\ud800-\udfff]", json.dumps(heard, ensure_ascii=False)):
            assert answer.status == 400, answer.body
            return answer
        sound = all(map(is_identifier, key_of(heard))) and 1 <= len(heard["model"]) <= 512
        if not sound or answer.status == 422:
            self._check_refused(answer, heard, sound)
            return answer
        assert answer.status == 200, (sent, answer.body)
        self.taken[key_of(heard)] = expected(heard)
        one = self.a.get(f"/pools/{path_of(key_of(heard))}")
        assert (one.status, one.json) == (200, expected(heard))
        return answer

    def _check_refused(self, answer: Answer, heard: Body, sound: bool) -> None:
        assert answer.status == 422, answer.body
        paths = {fault["path"].partition("[")[0].split(".")[1] for fault in answer.json["errors"]}
        assert paths <= ({"relays", "frontends"} if sound else {*heard})
        assert answer.body.isascii() or json.loads(answer.body)
        assert self.a.get(f"/pools/{path_of(key_of(heard))}").status in (200, 400, 404)

    @property
    def listed(self) -> list[Body]:
        return [self.taken[key] for key in sorted(self.taken, key=lambda key: [part.encode() for part in key])]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("hostile-text")
    redis = RedisServer("redis", directory / "redis").start()
    a, b = (Replica(directory, name, redis_url=redis.url, lease=600, heartbeat=5) for name in "ab")
    try:
        redis.cli("SET", "{discovery}:epoch", "in-use-before")
        for replica in (a, b):
            replica.start()
            await_sign(lambda replica=replica: replica.pools().complete, 10, "a complete list")
        yield Service(a, b, redis)
    finally:
        a.close()
        b.close()
        redis.close()


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([*DISCOVERY, *words], capture_output=True, env=environment(), timeout=30, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def lines_of(text: str) -> list[str]:
    """The lines as a terminal shows them; fails on anything that is more than a letter to it."""
    *lines, rest = text.split("\n")
    assert rest == ""
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]
    return lines


def test_hostile_text_comes_out_everywhere_as_it_went_in(service: Service, traffic: Traffic) -> None:
    stream = Subscriber(traffic, [service.b])
    await_sign(lambda: stream.connected, 10, "a stream")

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(bodies)
    def register(body: Body) -> None:
        service.send(body)

    register()
    assert len(service.taken) > 40, "hardly anything was taken"
    await_sign(lambda: set(service.b.pools().pools) == set(service.a.pools().pools), 10, "the other replica has them")

    for replica in (service.a, service.b):
        assert replica.pools().json == {"complete": True, "pools": service.listed}
        by_key = {key_of(entry["registration"]): entry for entry in replica.get("/registrations").json["registrations"]}
        assert set(by_key) == set(service.taken)
        explained = replica.get("/status?pool=*").json["explained"]
        assert {key_of(entry) for entry in explained} == set(service.taken)
    assert service.a.pools().body == service.b.pools().body
    await_sign(lambda: stream.agrees_with(service.b.pools().json), 10, "the stream's list")

    check_redis(service)
    check_metrics(service)
    check_targets(service)
    check_commands(service)
    check_names(service)
    check_logs(service)


def check_redis(service: Service) -> None:
    keys = [key for key in service.redis.cli("KEYS", "*") if key.startswith("{discovery}:pool:")]
    assert sorted(keys) == sorted(f"{{discovery}}:pool:{path_of(key)}" for key in service.taken)
    assert all(re.fullmatch("[!-~]+", key) for key in keys)
    for key, body in service.taken.items():
        stored = json.loads(service.redis.cli("GET", f"{{discovery}}:pool:{path_of(key)}"))
        assert {name: value for name, value in body.items() if value not in ([], {})} == stored


def check_metrics(service: Service) -> None:
    text = service.a.get("/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    assert {family.name.partition("_")[0] for family in families} <= {"discovery", "python", "process"}
    models = {body["model"] for body in service.taken.values()}
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert [value for value in values if not re.fullmatch("[A-Za-z0-9_./:+{}-]*", value)] == []
    assert not values & {*models, *(part for key in service.taken for part in key)}


def check_targets(service: Service) -> None:
    """Prometheus refuses the whole answer for one name of a label that is none, and takes any text as a value."""
    groups = service.a.get("/sd/prometheus").json
    names = {name for group in groups for name in group["labels"]}
    assert [name for name in names if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)] == []
    found: dict[tuple[Key, str], int] = {}
    for group in groups:
        target = (key_of(group["labels"]), group["labels"]["role"])
        found[target] = found.get(target, 0) + len(group["targets"])
        body = service.taken[target[0]]
        assert group["labels"]["model"] == body["model"]
        has_metadata = any(name.startswith("__meta_discovery_metadata_") for name in group["labels"])
        assert has_metadata == any(body.get("metadata", {}).values())
    wanted = {(key, role): body.get(f"{role}s") for key, body in service.taken.items() for role in ROLES}
    assert set(found) == {target for target, urls in wanted.items() if urls}
    assert all(count <= len(wanted[target]) for target, count in found.items())


def check_commands(service: Service) -> None:
    address = ("--url", service.b.url)
    whole = {"complete": True, "pools": service.listed}
    code, out, err = run("pools", *address, "-o", "json")
    assert (code, err, json.loads(out)) == (0, "", whole)
    code, out, err = run("pools", *address, "-o", "yaml")
    assert (code, err, yaml.safe_load(out)) == (0, "", whole)
    lines_of(out)
    for output in ("table", "wide"):
        code, out, err = run("pools", *address, "-o", output)
        assert (code, err, len(lines_of(out))) == (0, "", 1 + len(service.taken))
    code, out, err = run("doctor", *address)
    assert (code, err, len(lines_of(out))) == (0, "", len(service.taken))
    code, out, err = run("doctor", *address, "-o", "yaml")
    assert (code, len(yaml.safe_load(out)["pools"])) == (0, len(service.taken))


def check_names(service: Service) -> None:
    """The names that ``pools`` prints are those that ``doctor`` takes."""
    code, out, _ = run("pools", "--url", service.a.url, "-o", "name")
    printed = lines_of(out)
    assert (code, printed) == (0, [path_of(key_of(body)) for body in service.listed])
    words = [re.sub("^-", "%2D", name) for name in printed]  # else it would be a flag
    code, out, err = run("doctor", "--url", service.a.url, "-o", "json", *words)
    assert (code, err) == (0, "")
    explained = json.loads(out)["pools"]
    assert [key_of(entry) for entry in explained] == [key_of(body) for body in service.listed]
    assert all(entry["listed"] for entry in explained)


def check_logs(service: Service) -> None:
    """Relays that disagree, and a value that is none, put names into the log."""
    for body in service.listed[:20]:
        for model in ("one", "two", "one", "two"):
            service.send({**body, "model": model})
    service.redis.cli("SET", "{discovery}:pool:x%0A2026-01-01/\x1b[31m/y", "no\nregistration")
    for replica in (service.a, service.b):
        for line in lines_of(replica.log):
            assert re.match(r"20\d\d-\d\d-\d\dT[0-9:.]+Z [A-Z]+ discovery\.[a-z.]+: ", line), line
        assert "Traceback" not in replica.log
    assert "in turn" in service.a.log
    for key in service.taken:
        assert service.b.request("DELETE", f"/pools/{path_of(key)}").status == 204
    await_sign(lambda: service.a.pools().names == [], 10, "all have left")


REGISTERED = [
    {"cluster-id": "-c", "namespace": "n\u202e", "dgd-name": "a/b%2F", "model": "--model", "region": "\x1b[31m\n"},
    {
        "cluster-id": "{discovery}",
        "namespace": "..x",
        "dgd-name": "</script>",
        "model": "\u2028 $(id)",
        "zone": "é\udcff",
    },
    {
        "cluster-id": "=",
        "namespace": "null",
        "dgd-name": "*",
        "model": "%s\t",
        "instance-id": '"\\',
        "metadata": "k=v=w\n",
    },
]


@pytest.mark.parametrize("fields", REGISTERED, ids=range(len(REGISTERED)))
def test_hostile_flags_of_the_agent_are_registered_as_they_are_or_refused_in_one_line(
    service: Service, fields: dict[str, str]
) -> None:
    flags = [f"--{name}={value}".encode(errors="surrogateescape") for name, value in fields.items()]
    command = [*(word.encode() for word in (*DISCOVERY, "register", "--url", service.a.url)), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    path = "/pools/" + path_of((fields["cluster-id"], fields["namespace"], fields["dgd-name"]))
    try:
        if any("\udc80" <= character <= "\udcff" for value in fields.values() for character in value):
            _, err = process.communicate(timeout=20)
            assert process.returncode == 2
            assert len(lines_of(err.decode())) == 1
            assert service.a.get(path).status == 404
            return
        await_sign(lambda: service.a.get(path).status == 200, 20, "the pool is listed")
        listing = service.a.get(path).json
        assert listing["model"] == fields["model"]
        assert listing["location"].get("region") == fields.get("region")
        assert listing["metadata"] == ({"k": "v=w\n"} if "metadata" in fields else {})
        process.terminate()
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, b"")
        lines_of(err.decode())
        assert service.a.get(path).status == 404
    finally:
        process.kill()
        process.communicate()
