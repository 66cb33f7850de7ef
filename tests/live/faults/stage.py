"""A stage: replicas on a place, the load on both, and one fault after the other, each with its verdict.

Around each fault pools are born, die and are shut down: before it, in it and after it. When the promised time is over,
what is at rest is compared (lists, streams, store), and the oracle judges all that was written down.
"""

import dataclasses
import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.live.faults.fault import Fault, Scene
from tests.live.faults.load import Load, read_list
from tests.live.faults.oracle import SLACK_SECS, Broken, Window, judge, lost_writes
from tests.live.faults.places import NAMES, Place
from tests.live.replica import Replica
from tests.live.signs import await_sign
from tests.live.traffic import Traffic

PATIENCE_SECS = 20.0
STOOD_STILL_SECS = 0.35  # the deadline of a call to the store here: after that all may follow from the pause


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of one fault."""

    fault: str
    words: str
    lasted: float
    broken: list[Broken]
    log_lines: dict[str, int]
    beats: int
    answers: int
    complete_after: float | None
    stood_still: float
    recorded: Path | None = None

    @property
    def void(self) -> bool:
        """Whether something broke while the machine itself stood still, so that leases may really have ended."""
        return bool(self.broken) and self.stood_still > STOOD_STILL_SECS

    def __str__(self) -> str:
        lines = " ".join(f"{name}:{number}" for name, number in self.log_lines.items())
        complete = "never incomplete" if self.complete_after is None else f"complete after {self.complete_after:.1f} s"
        outcome = f"void, the machine stood still for {self.stood_still:.1f} s" if self.void else "kept"
        outcome = "BROKEN" if self.broken and not self.void else outcome
        return (
            f"{outcome:6} {self.fault}: {self.words} (lasted {self.lasted:.1f} s, {complete}, "
            f"{self.beats} heartbeats, {self.answers} lists, log lines {lines})"
        )


class Stage:
    """Replicas ``a`` and ``b`` under load on a place; use it as a context."""

    def __init__(
        self,
        place: Place,
        directory: Path,
        *,
        seed: int,
        lease: float = 3.0,
        interval: float = 0.5,
        pools: int = 200,
        subscribers: int = 20,
    ) -> None:
        self.place = place
        self.directory = directory
        self.lease = lease
        self.chance = random.Random(seed)
        self._interval = interval
        self._pools = pools
        self._subscribers = subscribers
        self._number = 0
        self.replicas: dict[str, Replica] = {}
        self._traffic: Traffic | None = None
        self._load: Load | None = None

    @property
    def load(self) -> Load:
        """The load, which runs from the stage's begin to its end."""
        assert self._load is not None
        return self._load

    def __enter__(self) -> "Stage":
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def _start(self) -> None:
        self.place.start()
        flags = ("--store-timeout-ms", f"{self.lease / 6 * 1000:.0f}")
        for name in NAMES:
            settings = {"lease": self.lease, "heartbeat": self.lease / 3, "flags": flags}
            self.replicas[name] = self.place.replica(self.directory, name, **settings).launch()
        for replica in self.replicas.values():
            await_sign(lambda replica=replica: replica.says("/readyz", 200), PATIENCE_SECS, f"{replica.name} is ready")
        self._traffic = Traffic()
        chance = random.Random(self.chance.random())
        replicas = list(self.replicas.values())
        counts = {"pools": self._pools, "subscribers": self._subscribers}
        self._load = Load(self._traffic, replicas, interval=self._interval, chance=chance, **counts)
        await_sign(self._all_are_listed, PATIENCE_SECS, "all pools are listed", every=0.1)
        self.load.hear()
        self.load.forget()

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._load is not None:
            self._load.close()
        if self._traffic is not None:
            self._traffic.close()
        for replica in self.replicas.values():
            replica.close()
        self.place.close()

    # ---- one fault

    def suffer(self, fault: Fault) -> Verdict:
        """Let it happen under load, and judge."""
        self._number += 1
        self.load.forget()
        opened = {name: _lines(replica) for name, replica in self.replicas.items()}
        self._prelude(fault)
        scene = Scene(self.place, self.replicas, self.lease)
        begun = time.monotonic()
        self.load.note(f"{fault.name} begins: {fault.words}")
        middle = threading.Timer(0.3, self._in_the_middle, [fault])
        middle.start()
        fault.run(scene)
        healed = time.monotonic()
        self.load.note(f"{fault.name} has ended")
        middle.join()
        self._aftermath(fault)
        broken = self._rest(fault, healed)
        verdict = self._judge(fault, begun, healed, broken, opened)
        fault.restore(scene)
        return verdict

    def _prelude(self, fault: Fault) -> None:
        """Pools whose ends meet the fault: some leases end in it, some just after, one pool is shut down before."""
        self.load.staying = not fault.halves
        dying = 0 if fault.promises.leases_move else 2  # where leases move, nobody can say when these are over
        self.load.silence(dying)
        self.load.bear(1 + max(0, self._pools - len(self.load.alive())))  # as many as ended in the fault before
        time.sleep(self.lease / 3)
        self.load.silence(dying)
        self.load.remove(1)
        self.load.change(not fault.quiet)
        time.sleep(1.0 if fault.quiet else 0.3)

    def _in_the_middle(self, fault: Fault) -> None:
        if fault.quiet:
            return
        self.load.bear(4)  # of each replica one whose relay stays with it, and one whose relay does not
        if not fault.promises.leases_move:
            self.load.silence(1)
        self.load.remove(1)

    def _aftermath(self, fault: Fault) -> None:
        self.load.bear(3)
        self.load.remove(1)
        if not fault.promises.leases_move:  # the last renewal may be from before the step
            self.load.silence(1)
        time.sleep(self.lease - 0.5)  # what ends here has left by the time at which all has to be equal
        self.load.change(False)

    def _rest(self, fault: Fault, healed: float) -> list[Broken]:
        """One lease and two seconds after the fault all lists, streams and the store say the same."""
        wanted_at = Window(fault.name, healed, healed, healed, self.lease, fault.promises).settled_from
        time.sleep(max(0.0, wanted_at - time.monotonic()))
        why = self._settles(lambda: self._at_rest(self.load.alive()), wanted_at + 2 * SLACK_SECS)
        found = [Broken("equal one lease and 2 s later", "ab", self.lease + 2, why)] if why else []
        why = self._settles(self._streams_differ, time.monotonic() + 1.0)
        found += [Broken("streams equal GET", "ab", self.lease + 2, why)] if why else []
        for stream in self.load.streams:
            found += [Broken("streams equal GET", "ab", self.lease + 2, fault) for fault in stream.faults]
            stream.faults.clear()
        lost = lost_writes(self.place.stored(), self.load.records.lives)
        found += [Broken("no accepted POST is lost", "ab", self.lease + 2, text) for text in lost[:8]]
        return found

    def _settles(self, why: Callable[[], str | None], deadline: float) -> str | None:
        """Ask until there is no reason left, at least once; gives the reason that stays."""
        while (reason := self._ask(why)) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        return reason

    def _ask(self, why: Callable[[], str | None]) -> str | None:
        try:
            return why()
        except (OSError, http.client.HTTPException) as error:
            return f"no answer: {error!r}"

    def _at_rest(self, alive: set[str]) -> str | None:
        """Why the two lists are not yet equal, complete, and exactly what lives; None when they are."""
        answers = [replica.get("/pools") for replica in self.replicas.values()]
        if any(answer.status != 200 for answer in answers):
            return f"lists are answered with {[answer.status for answer in answers]}"
        contents = [read_list(answer.body, answer.headers["etag"]) for answer in answers]
        for name, content in zip(self.replicas, contents, strict=True):
            if not content.complete:
                return f"{name} is not complete: {self._reason(name)}"
            if content.versions.keys() != alive:
                more, less = sorted(content.versions.keys() - alive), sorted(alive - content.versions.keys())
                return f"{name} lists {more[:5]} and lacks {less[:5]}"
        if len({answer.body for answer in answers}) != 1 or len({content.etag for content in contents}) != 1:
            return "lists of the same pools differ in bytes or tags"
        return None

    def _reason(self, name: str) -> str:
        return json.dumps(self.replicas[name].get("/status").json.get("store", {}))[:300]

    def _streams_differ(self) -> str | None:
        lists = {name: replica.get("/pools") for name, replica in self.replicas.items()}
        for number, stream in enumerate(self.load.streams):
            if not stream.connected:
                return f"stream {number} is not connected"
            answer = lists[stream.visits[-1].replica]
            if stream.last_id != answer.headers["etag"].removeprefix("W/").strip('"'):
                return f"stream {number} is at {stream.last_id}, the list at {answer.headers['etag']}"
            if not stream.agrees_with(answer.json):
                return f"stream {number} assembled another list than GET gives"
        return None

    def _all_are_listed(self) -> bool:
        alive = self.load.alive()
        return len(alive) == self._pools and self._ask(lambda: self._at_rest(alive)) is None

    # ---- the verdict

    def _judge(
        self, fault: Fault, begun: float, healed: float, broken: list[Broken], opened: dict[str, int]
    ) -> Verdict:
        self.load.hear()
        records = self.load.records
        rested = time.monotonic()
        window = Window(fault.name, begun, healed, rested, self.lease, fault.promises)
        lines = {name: _lines(replica) - opened[name] for name, replica in self.replicas.items()}
        for name, number in lines.items():
            if number > fault.promises.log_lines:
                broken.append(Broken("no storm of log lines", name, rested - begun, f"{number} lines in the log"))
        broken += judge(records, window)
        if self.load.failures:
            raise self.load.failures[0]
        late = [answer.answered for answer, content in records.said() if not content.complete]
        return Verdict(
            fault.name,
            fault.words,
            healed - begun,
            broken,
            lines,
            len(records.beats),
            len(records.answers),
            late[-1] - healed if late else None,
            max((late for _, late in records.lags), default=0.0),
            self._record(window, broken) if broken else None,
        )

    def _record(self, window: Window, broken: list[Broken]) -> Path:
        """Everything about this fault in a folder, for people."""
        folder = self.directory / f"{self._number:03d}-{window.fault}"
        folder.mkdir(parents=True, exist_ok=True)
        records = self.load.records
        with (folder / "record.txt").open("w") as file:
            file.writelines(f"{line}\n" for line in [window, "", *broken, ""])
            for at, text in sorted(_timeline(self.load, window.begun), key=lambda entry: entry[0]):
                file.write(f"{at - window.begun:+9.3f} {text}\n")
        (folder / "lives.json").write_text(
            json.dumps({name: dataclasses.asdict(life) for name, life in records.lives.items()}, indent=1)
        )
        for name, replica in self.replicas.items():
            (folder / f"replica-{name}.log").write_text(replica.log[-200_000:])
        return folder


def _lines(replica: Replica) -> int:
    return replica.log.count("\n")


def _timeline(load: Load, begun: float) -> list[tuple[float, str]]:
    """What happened, in order: refused heartbeats, ends of pools, lists where they changed."""
    records = load.records
    found = [(at, text) for at, text in records.notes]
    found += [(at, f"the recorder itself was late by {late:.3f} s") for at, late in records.lags]
    found += [(beat.sent, str(beat)) for beat in records.beats if beat.status != 200 or beat.version]
    for life in records.lives.values():
        found += [(life.born, f"{life.name} was born on {life.born_on}")] if life.born and life.born > begun - 5 else []
        found += (
            [(life.silent, f"{life.name} fell silent, accepted {life.accepted - begun:+.3f}")] if life.silent else []
        )
        found += [(life.removing, f"{life.name} is being removed")] if life.removing else []
        found += [(life.removed, f"{life.name} was removed on {life.removed_on}")] if life.removed else []
    shown: dict[str, object] = {}
    for answer, content in records.said():
        before = shown.get(answer.replica)
        if content is before:
            continue
        text = f"{answer.replica} complete={content.complete} pools={len(content.versions)} {content.etag}"
        if before is not None:
            gone, new = (
                before.versions.keys() - content.versions.keys(),
                content.versions.keys() - before.versions.keys(),
            )  # type: ignore[attr-defined]
            text += f" gone={sorted(gone)[:9]} new={sorted(new)[:9]}"
        shown[answer.replica] = content
        found.append((answer.answered, text))
    found += [(answer.sent, str(answer)) for answer in records.answers if answer.content is None]
    found += [(told.at, f"stream of {told.replica}: {told.kind} {sorted(told.names)[:3]}") for told in records.told]
    return found
