"""What a fault is: what it does to its place, how long it lasts, and what is promised meanwhile.

``run`` returns when the store answers as ever (or when replicas have to have helped themselves); ``restore`` puts back
what the fault left behind, after the verdict. Durations are the faults themselves, not waits for something.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.live.faults.oracle import Promises
from tests.live.faults.places import Standalone
from tests.live.replica import Replica

OUTAGE = Promises(silent=True)
BLIP = Promises()


@dataclass(frozen=True)
class Scene:
    """What a fault may touch."""

    place: Any
    replicas: Mapping[str, Replica]
    lease: float


@dataclass(frozen=True)
class Fault:
    """One fault with its parameters drawn; ``words`` tell people what it does."""

    name: str
    words: str
    run: Callable[[Scene], object]
    promises: Promises = BLIP
    restore: Callable[[Scene], object] = lambda scene: None
    halves: bool = False
    """The store is in two halves for a while: only what is told to both replicas can be on both."""
    quiet: bool = False
    """Nothing but renewals goes on meanwhile: no revision tells of what is lost."""


Draw = Callable[[random.Random], Fault]


def server_of(scene: Scene) -> Any:
    """The server of a ``Standalone`` place."""
    place: Standalone = scene.place
    return place.server


def forget_dump(server: Any) -> None:
    """What a server would read at its next start is gone."""
    (server.directory / "dump.rdb").unlink(missing_ok=True)
