"""Connections to one server that break, hang or crawl; other servers in its place; a new password."""

import random
import time

from tests.live.faults.fault import OUTAGE, Fault, Scene, forget_dump, server_of
from tests.live.faults.oracle import Promises
from tests.live.faults.places import Standalone
from tests.live.signs import await_sign
from tests.live.tcp_proxy import TcpProxy

NOTICED_SECS = 3.0  # a connection over which nothing comes is noticed and replaced


# ---- connections


def clients_killed(chance: random.Random, kind: str | None = None) -> Fault:
    """CLIENT KILL of subscriptions, of the other connections, or of both, again and again."""
    kinds = (kind or chance.choice(["pubsub", "normal", "pubsub normal"])).split()

    def run(scene: Scene) -> None:
        for _ in range(4):
            for each in kinds:
                server_of(scene).client_kill(each)
            time.sleep(0.3)

    return Fault("clients_killed", f"CLIENT KILL TYPE {' and '.join(kinds)}, 4 times in 1.2 s", run)


def output_limited(chance: random.Random) -> Fault:
    """Subscriptions are cut at each message, as those of a slow reader are."""
    secs = chance.uniform(1, 4)

    def run(scene: Scene) -> None:
        server = server_of(scene)
        server.cli("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1 1 1")
        for _ in range(round(secs / 0.25)):
            server.cli("PUBLISH", "{discovery}:changes", "x" * 100_000)  # what fits into the first buffer never counts
            time.sleep(0.25)
        server.cli("CONFIG", "SET", "client-output-buffer-limit", "pubsub 33554432 8388608 60")

    return Fault("output_limited", f"no output buffer for subscriptions for {secs:.1f} s", run)


def half_open(chance: random.Random, of: str | None = None, subscribed: bool | None = None) -> Fault:
    """The connections that are open pass nothing more, without an error; new ones work."""
    of = chance.choice(["a", "b", "ab"]) if of is None else of
    which = chance.choice([None, True]) if subscribed is None else subscribed

    def run(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].freeze(subscribed=which)
        time.sleep(NOTICED_SECS)

    def restore(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].discard()

    kind = "subscription" if which else "connections"
    return Fault("half_open", f"{kind} of {' and '.join(of)} half-open", run, Promises(of=frozenset(of)), restore)


def cut_off(chance: random.Random, of: str | None = None, secs: float | None = None) -> Fault:
    """A replica's path to the server swallows everything, also what is new."""
    of = chance.choice(["a", "b", "ab"]) if of is None else of
    secs = chance.uniform(0.5, 10) if secs is None else secs

    def run(scene: Scene) -> None:
        for name in of:
            scene.place.proxies[name].swallow()
        time.sleep(secs)
        for name in of:
            scene.place.proxies[name].thaw()

    words = f"{' and '.join(of)} cut off for {secs:.1f} s"
    return Fault("cut_off", words, run, Promises(silent=True, of=frozenset(of)))


def deaf(chance: random.Random) -> Fault:
    """Subscriptions are reset, and again whenever they are asked for; all else goes on."""
    of = chance.choice(["a", "b", "ab"])
    secs = chance.uniform(3, 4.5)  # long enough for replicas to have to say that they hear nothing

    def run(scene: Scene) -> None:
        proxies = [scene.place.proxies[name] for name in of]
        for proxy in proxies:
            proxy.bars_subscriptions = True
            proxy.cut(subscribed=True)
        time.sleep(secs)
        for proxy in proxies:
            proxy.bars_subscriptions = False

    words = f"no subscription of {' and '.join(of)} for {secs:.1f} s"
    return Fault("deaf", words, run, Promises(silent=True, of=frozenset(of)))


def dropped(chance: random.Random) -> Fault:
    """Connections are reset again and again."""
    of = chance.choice(["a", "b", "ab"])

    def run(scene: Scene) -> None:
        for _ in range(12):
            for name in of:
                scene.place.proxies[name].cut()
            time.sleep(0.25)

    return Fault("dropped", f"connections of {' and '.join(of)} reset 4 times a second for 3 s", run)


def slow(chance: random.Random) -> Fault:
    """A path that delays, or that lets only a few bytes through."""
    of, kind = chance.choice(["a", "b", "ab"]), chance.choice(["delay", "long delay", "trickle"])
    secs = chance.uniform(2, 5)

    def run(scene: Scene) -> None:
        for name in of:
            proxy = scene.place.proxies[name]
            if kind == "trickle":
                proxy.trickle(1500)
            else:
                proxy.delay_answers(0.15 if kind == "delay" else 1.2)
        time.sleep(secs)
        for name in of:
            scene.place.proxies[name].trickle(0)
            scene.place.proxies[name].delay_answers(0)
            if kind != "delay":
                scene.place.proxies[name].cut()

    return Fault("slow", f"{kind} between {' and '.join(of)} and the server for {secs:.1f} s", run)


# ---- other servers


def split(chance: random.Random) -> Fault:
    """Two masters, one for each replica; then the second is made a replica of the first."""
    secs = chance.uniform(2, 7)

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        other = place.follow()
        await_sign(lambda: other.client.info("replication")["master_link_status"] == "up", 10, "in sync")
        other.cli("REPLICAOF", "NO", "ONE")
        place.proxies["b"].target_port = other.port
        place.proxies["b"].cut()
        time.sleep(secs)
        other.cli("REPLICAOF", "127.0.0.1", place.server.port)
        time.sleep(0.3)
        place.proxies["b"].target_port = place.server.port
        place.proxies["b"].cut()

    # Two faults in one: the data parts, and later one half of it is thrown away.
    promises = Promises(loss=True, loses_writes=True, log_lines=18)
    return Fault("split", f"two masters for {secs:.1f} s", run, promises, _spare_down, halves=True)


def _spare_down(scene: Scene) -> None:
    scene.place.spare.stop()
    forget_dump(scene.place.spare)


def moved(chance: random.Random) -> Fault:
    """The server's host name gets another address, where a promoted replica listens; the old one goes away."""
    keeps = chance.random() < 0.5

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        old = place.server
        other = place.follow() if keeps else place.spare.start()
        if keeps:
            await_sign(lambda: other.client.info("replication")["master_link_status"] == "up", 10, "in sync")
            other.cli("REPLICAOF", "NO", "ONE")
        address = "127.0.0.2" if place.proxies["a"].host != "127.0.0.2" else "127.0.0.3"
        before = dict(place.proxies)
        for name, proxy in before.items():
            place.proxies[name] = TcpProxy(other.port, host=address, port=proxy.port)
            place.surroundings[name].set_hosts(redis_test=address)
        for proxy in before.values():
            proxy.close()
        place.turn_to(other)
        old.kill()

    words = f"the host name moves to another server, {'promoted' if keeps else 'empty'}"
    return Fault("moved", words, run, Promises(loss=True, loses_writes=True), _spare_down)


def password_rotated(chance: random.Random) -> Fault:
    """The server gets a new password and cuts whoever used the old one; the file follows later."""
    secs = chance.uniform(0.2, 3)
    password = f"secret-{chance.randrange(10**9)}"

    def run(scene: Scene) -> None:
        place: Standalone = scene.place
        place.rotate(password)
        time.sleep(secs)
        place.password_path.write_text(password + "\n")

    return Fault("password_rotated", f"a new password, in the file {secs:.1f} s later", run, OUTAGE)
