"""Replicas whose registrations are in a table, each by a way of its own and with a wall clock of its own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.live import verdict
from tests.live.dynamodb_proxy import DynamoDBProxy
from tests.live.dynamodb_server import Table
from tests.live.faults.surroundings import Surroundings
from tests.live.replica import Answer, Replica
from tests.live.signs import await_sign

# No file of whoever runs the tests, and no instance around them, has a say.
HERMETIC = {
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class TableReplica(Replica):
    """One replica on a table, by way of a proxy or not."""

    def __init__(
        self,
        directory: Path,
        name: str = "a",
        *,
        table: Table,
        through: DynamoDBProxy | None = None,
        clock: str | None = None,
        credentials: dict[str, str] | None = None,
        flags: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """``clock`` is how far its wall clock is off, ``+1h`` or ``-1h``; its monotonic clock stays true.

        ``credentials`` are variables that say where it finds some, in place of those of the table.
        """
        where = table.flags if through is None else table.flags_through(through.url)
        super().__init__(directory, name, flags=(*where, *flags), **settings)
        self.through = through
        found = table.credentials if credentials is None else credentials
        environment = {**HERMETIC, **found} if table.credentials else found
        self._command = ["env", *(f"{name}={value}" for name, value in environment.items()), *self._command]
        if clock is not None:
            surroundings = Surroundings(directory, f"{name}-around")
            surroundings.set_clock(clock)
            self._command = surroundings.command(self._command, names=False)


def await_listed(replicas: Iterable[Replica], names: Iterable[str], within: float = 5) -> None:
    """Wait until each of the replicas lists all these pools."""
    wanted = set(names)
    for replica in replicas:
        await_sign(lambda replica=replica: replica.lists(*wanted), within, f"{len(wanted)} pools on {replica.name}")


def await_agreed(replicas: Iterable[Replica], within: float = 3) -> None:
    """Wait until all replicas give the same bytes and the same tag, and call them complete."""
    asked = list(replicas)

    def agreed() -> bool:
        answers = [replica.pools() for replica in asked]
        return verdict.same_bytes(*answers) and answers[0].complete

    await_sign(agreed, within, "equal bytes and ETag, complete")


def first_list(replica: Replica, within: float = 20) -> Answer:
    """The first list that a replica which was just launched gives."""
    return await_sign(
        lambda: replica.says("/pools", 200) and replica.pools(), within, f"a first list of {replica.name}"
    )
