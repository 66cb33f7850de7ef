"""A password that was planted is looked for everywhere a stranger could look."""

from pathlib import Path

import pytest

from tests.live.conftest import MakeReplica
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

# As a URL has it; its beginning is what is looked for, since a part of a password is one too.
PLANTED = "pl4nted"
PASSWORD, ESCAPED = f"{PLANTED}/p@ss:w", f"{PLANTED}%2Fp%40ss%3Aw"
PATHS = (
    "/",
    "/pools",
    "/sd/prometheus?incomplete=true",
    "/registrations",
    "/status",
    "/status?pool=*",
    "/metrics",
    "/readyz",
    "/healthz",
    "/openapi.json",
)


@pytest.fixture
def server(tmp_path: Path) -> RedisServer:
    server = RedisServer("redis", tmp_path / "redis").start()
    allow(server, PASSWORD)
    return server


def allow(server: RedisServer, password: str) -> None:
    server.cli("ACL", "SETUSER", "discovery", "reset", "on", f">{password}", "~*", "&*", "+@all")


def shown(replica: Replica) -> dict[str, str]:
    """Everything that the replica shows to whoever asks, and to users of its machine."""
    seen = {path: replica.get(path).body.decode(errors="replace") for path in PATHS}
    seen["POST"] = replica.post(pool()).body.decode()
    seen["DELETE"] = replica.delete("c1/n1/p1").body.decode()
    seen["log"] = replica.log
    seen["process title"] = Path(f"/proc/{replica.pid}/cmdline").read_bytes().decode()
    seen["its name"] = Path(f"/proc/{replica.pid}/comm").read_text()
    return seen


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_password_of_redis_is_shown_nowhere_whatever_happens(
    server: RedisServer, make_replica: MakeReplica, log_format: str
) -> None:
    flags = ("--log-level", "debug", "--log-format", log_format)
    try:
        url = f"redis://discovery:{ESCAPED}@127.0.0.1:{server.port}"
        good = make_replica("good", redis_url=url, flags=flags).launch()
        wrong = make_replica("wrong", redis_url=url.replace("%2F", "%2Fwrong"), flags=flags).launch()
        await_sign(lambda: good.says("/readyz", 200), 20, "ready")
        await_sign(lambda: "WRONGPASS" in wrong.log or "invalid username-password" in wrong.log, 20, "a refusal")
        views = [shown(good), shown(wrong)]

        allow(server, "another")
        server.client_kill("normal")
        server.client_kill("pubsub")
        await_sign(lambda: good.post(pool()).status == 503, 10, "the refusal of what worked before")
        views.append(shown(good))
        server.close()
        await_sign(lambda: b"efused" in good.get("/status").body, 10, "a refused connection")
        views += [shown(good), shown(wrong)]
    finally:
        server.close()
    assert "discovery serve" in views[0]["process title"].replace("\0", " ")
    assert all("kept in redis" in view["log"] for view in views)
    assert [name for view in views for name, text in view.items() if PLANTED in text] == []
