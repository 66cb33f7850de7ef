"""What CONTRIBUTING says of each error of Redis, tried on a real server."""

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.documents import read, rows
from tests.live.conftest import MakeReplica
from tests.live.faults.surroundings import PlacedServer, Surroundings
from tests.live.redis_cluster import RedisCluster
from tests.live.redis_server import RedisServer
from tests.live.replica import Replica, pool
from tests.live.signs import await_sign, hold_for
from tests.test_docs import section

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

LEASE = 6.0
KEPT = "c1/n1/kept"
KEY = "{discovery}:pool:" + KEPT
USER = "discovery"
RIGHTS = ("reset", "on", ">secret", "~*", "&*", "+@all")

Server = RedisServer
Act = Callable[[Server], object]


class Row(NamedTuple):
    """One row of the table."""

    heartbeat: int
    new: int
    delete: int
    complete: bool


class Trial(NamedTuple):
    """How to make a fault and how to end it."""

    begin: Act
    end: Act
    arguments: tuple[str, ...] = ()
    fields: Mapping[str, object] = {}
    make: Callable[..., Server] = functools.partial(RedisServer, "redis")


def table() -> dict[str, Row]:
    """The rows of the table by their first words."""
    found = {}
    for what, heartbeat, new, delete, complete, _ in rows(
        section(read("CONTRIBUTING.md"), "What each error of Redis does")
    ):
        assert complete in ("true", "false")
        found[what.replace("`", "")] = Row(int(heartbeat), int(new), int(delete), complete == "true")
    return found


def nothing(server: Server) -> None:
    """The fault ends by itself."""


def setting(name: str, value: str) -> Act:
    return lambda server: server.cli("CONFIG", "SET", name, value)


def rights(*words: str) -> Act:
    return lambda server: server.cli("ACL", "SETUSER", USER, *words)


def admit(server: Server) -> None:
    """Make the service's user, which a restarted server does not know."""
    await_sign(lambda: not is_loading(server), 15, "the server has read its data")
    server.cli("ACL", "SETUSER", USER, *RIGHTS)


def replace_by_list(server: Server) -> None:
    server.cli("DEL", KEY)
    server.cli("LPUSH", KEY, "foreign")


class JumpingServer(PlacedServer):
    """A Valkey server with a clock that can jump, and leases with it."""

    def __init__(self, directory: Path) -> None:
        self.clock = Surroundings(directory, "server")
        super().__init__("valkey", directory, self.clock)


def jump(server: Server) -> None:
    assert isinstance(server, JumpingServer)
    server.clock.set_clock("+1000")
    await_sign(lambda: not server.cli("EXISTS", KEY), 5, "leases have ended by the server's clock")


def evict(server: Server) -> None:
    server.cli("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    with server.client.pipeline(transaction=False) as batch:
        for number in range(2000):
            batch.set(f"foreign:{number}", "x" * 100, px=5000)
        batch.execute()
    server.cli("CONFIG", "SET", "maxmemory", server.cli("INFO", "memory")["used_memory"] - 50_000)
    await_sign(lambda: server.cli("INFO", "stats")["evicted_keys"], 5, "keys are evicted")


def stop_evicting(server: Server) -> None:
    server.cli("CONFIG", "SET", "maxmemory", "0")
    server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")


def fail_to_save(server: Server) -> None:
    (server.directory / "blocked").mkdir()  # the snapshot is written to a file of that name
    server.cli("CONFIG", "SET", "save", "3600 1")
    server.cli("SET", "foreign", "1")
    server.cli("BGSAVE")
    await_sign(lambda: server.cli("INFO", "persistence")["rdb_last_bgsave_status"] != "ok", 10, "a failed snapshot")


def load_slowly(server: Server) -> None:
    server.cli("DEBUG", "POPULATE", "20000")
    server.save()
    server.kill()
    server.arguments += ("--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024")
    threading.Thread(target=server.start, daemon=True).start()
    await_sign(lambda: is_loading(server), 10, "a server that reads its data")


def is_loading(server: Server) -> bool:
    try:
        server.cli("PING")
    except redis.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    return False


def run_for_ever(server: Server) -> None:
    server.cli("CONFIG", "SET", "busy-reply-threshold", "100")
    threading.Thread(target=run_script, args=(server.database(0),), daemon=True).start()
    await_sign(lambda: is_busy(server), 5, "a busy server")


def run_script(client: "redis.Redis[str]") -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        client.execute_command("EVAL", "while true do end", "0")
    client.close()


def is_busy(server: Server) -> bool:
    try:
        server.cli("PING")
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


TRIALS = {
    "OOM: memory full, noeviction": Trial(setting("maxmemory", "1"), setting("maxmemory", "0")),
    "NOSCRIPT: script cache emptied": Trial(lambda server: server.cli("SCRIPT", "FLUSH"), nothing),
    "WRONGTYPE: a pool's key holds another type": Trial(replace_by_list, lambda server: server.cli("DEL", KEY)),
    "MISCONF: Redis cannot write its snapshot": Trial(
        fail_to_save, setting("stop-writes-on-bgsave-error", "no"), ("--dbfilename", "blocked")
    ),
    "NOPERM: the right to scripts was taken away": Trial(rights("-eval", "-evalsha"), rights("+eval", "+evalsha")),
    "NOPERM on the keys": Trial(rights("resetkeys", "~foreign"), rights("~*")),
    "NOPERM on the channel": Trial(rights("resetchannels"), rights("&*")),
    "WRONGPASS: user deleted, password changed": Trial(
        lambda server: server.cli("ACL", "DELUSER", USER), rights(*RIGHTS)
    ),
    "READONLY: it is or became a replica": Trial(
        lambda server: server.cli("REPLICAOF", "127.0.0.1", "1"), lambda server: server.cli("REPLICAOF", "NO", "ONE")
    ),
    "NOREPLICAS: too few replicas": Trial(setting("min-replicas-to-write", "1"), setting("min-replicas-to-write", "0")),
    "LOADING: it reads its data": Trial(load_slowly, admit),
    "BUSY: somebody's long script": Trial(run_for_ever, lambda server: server.cli("SCRIPT", "KILL")),
    "connection refused": Trial(Server.kill, lambda server: admit(server.start())),
    "frozen: connected, no answer": Trial(Server.freeze, Server.thaw),
    "the subscription's output buffer is full": Trial(
        setting("client-output-buffer-limit", "pubsub 1 0 0"),
        setting("client-output-buffer-limit", "pubsub 32mb 8mb 60"),
        fields={"relays": [f"http://10.0.0.{number}:9000/{'long' * 100}" for number in range(64)]},
    ),
    "FLUSHALL, or restarted empty": Trial(Server.flush, nothing),
    "leases are evicted": Trial(evict, stop_evicting),
    "another master_replid": Trial(lambda server: server.cli("DEBUG", "CHANGE-REPL-ID"), nothing),
    "Redis's clock jumps by more than a second": Trial(jump, nothing, make=JumpingServer),
}


def test_every_row_of_the_table_is_tried() -> None:
    assert set(table()) == {*TRIALS, *CLUSTER_TRIALS}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server for the trial that the test is about, with a user whose rights can be taken away."""
    trial = TRIALS[request.param]
    made = trial.make(tmp_path / "server", *trial.arguments)
    try:
        made.start()
        admit(made)
        made.cli("SET", "{discovery}:epoch", "in-use-before")
        yield made
    finally:
        made.close()


@pytest.fixture
def beats() -> Iterator[Callable[[Replica], None]]:
    """A relay that keeps its pool registered, and tries again at once after a refusal."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def beat(replica: Replica) -> None:
        while not stop.wait(0.4):
            replica.post(pool(KEPT))

    def start(replica: Replica) -> None:
        threads.append(threading.Thread(target=beat, args=(replica,)))
        threads[-1].start()
        await_sign(lambda: replica.lists(KEPT) and replica.pools().complete, 5, "the pool is listed")

    yield start
    stop.set()
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize(("what", "server"), [pytest.param(w, w, id=w) for w in TRIALS], indirect=["server"])
def test_the_table_says_what_happens(
    what: str, server: Server, start_replica: MakeReplica, beats: Callable[[Replica], None]
) -> None:
    trial = TRIALS[what]
    replica = start_replica(redis_url=f"redis://{USER}:secret@127.0.0.1:{server.port}", lease=LEASE, heartbeat=2)
    beats(replica)
    play(what, replica, lambda: trial.begin(server), lambda: trial.end(server), trial.fields)


class SlotMove:
    """The deployment's slot goes to another node, a key at a time."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self._owner = cluster.owner()
        self._target = next(node for node in cluster.nodes if node is not self._owner)

    def begin(self) -> None:
        """Some keys are here, some are there."""
        self._cluster.begin_move(self._target)
        assert self._cluster.move_keys(self._owner, self._target, count=1) == 1

    def end(self) -> None:
        """All are there."""
        self._cluster.finish_move(self._owner, self._target)


class Outage:
    """A node that has nothing of the deployment is down, and the Cluster does no half things."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._owner = cluster.owner()
        self._other = next(node for node in cluster.nodes if node is not self._owner)

    def begin(self) -> None:
        """The owner of the slot says that the cluster is down."""
        self._owner.cli("CONFIG", "SET", "cluster-require-full-coverage", "yes")
        self._other.kill()
        await_sign(lambda: self._owner.state() == "fail", 10, "the cluster is down")

    def end(self) -> None:
        """The node is back."""
        self._other.start()


CLUSTER_TRIALS: dict[str, type[SlotMove | Outage]] = {
    "CLUSTERDOWN: a part of a Cluster is down": Outage,
    "TRYAGAIN, ASK: a Cluster moves the slot key by key": SlotMove,
}


def test_the_table_says_what_happens_on_a_cluster(
    tmp_path: Path, start_replica: MakeReplica, beats: Callable[[Replica], None]
) -> None:
    cluster = RedisCluster("redis", tmp_path / "cluster")
    try:
        cluster.start()
        cluster.owner().cli("SET", "{discovery}:epoch", "in-use-before")
        replica = start_replica(redis_url=cluster.url, lease=LEASE, heartbeat=2)
        beats(replica)
        for what, make in CLUSTER_TRIALS.items():
            trial = make(cluster)
            play(what, replica, trial.begin, trial.end)
    finally:
        cluster.close()


def play(
    what: str,
    replica: Replica,
    begin: Callable[[], object],
    end: Callable[[], object],
    fields: Mapping[str, object] | None = None,
) -> None:
    """One row: what the replica answers from the fault's begin on, and that it heals after its end."""
    row = table()[what]
    logged = len(replica.log.splitlines())
    begin()
    begun = time.monotonic()
    assert replica.post(pool(KEPT)).status == row.heartbeat
    refusal = replica.post(pool(KEPT if "pool's key" in what else "c1/n1/new", **(fields or {})))
    assert refusal.status == row.new
    if row.new == 503:
        assert refusal.headers["retry-after"] in ("1", "2")
        assert refusal.headers["connection"] == "close"
    if row.complete:
        hold_for(begun + 3 - time.monotonic(), lambda: replica.pools().complete, "the list stays complete")
    else:
        await_sign(lambda: not replica.pools().complete, 4, "the list is not complete")
        hold_for(1, lambda: not replica.pools().complete, "and stays so")
    assert replica.lists(KEPT)
    assert replica.delete(KEPT if "pool's key" in what else "c1/n1/new").status == row.delete

    end()
    await_sign(lambda: replica.post(pool(KEPT)).status == 200, 12, "heartbeats are taken again")
    await_sign(lambda: replica.pools().complete, 2 * LEASE + 2, "the list is complete again")
    # Where only writes were refused, it is a check that ends the outage, when none was refused for two seconds.
    await_sign(lambda: replica.get("/status").json["store"]["failing_because"] is None, 4, "/status says so")
    assert replica.lists(KEPT)
    assert len(replica.log.splitlines()) - logged < 10, "one fault is a few lines"


def test_a_replica_by_mistake_is_no_store_to_start_on(debian_redis: RedisServer, make_replica: MakeReplica) -> None:
    debian_redis.cli("REPLICAOF", "127.0.0.1", "1")
    replica = make_replica(redis_url=debian_redis.url, lease=LEASE, heartbeat=2).start(sign="/healthz")
    await_sign(lambda: b"is a read-only replica" in replica.get("/readyz").body, 4, "/readyz says what it is")
    assert replica.get("/readyz").status == 503
    assert replica.post(pool(KEPT)).status == 503
    debian_redis.cli("REPLICAOF", "NO", "ONE")
    await_sign(lambda: replica.says("/readyz", 200), 4, "ready without a restart")
    await_sign(lambda: replica.post(pool(KEPT)).status == 200, 4, "heartbeats are taken")
