"""Replicas whose registrations are in a table, each by a way of its own and with a wall clock of its own."""

from pathlib import Path
from typing import Any

from tests.live.dynamodb_proxy import DynamoDBProxy
from tests.live.dynamodb_server import Table
from tests.live.faults.surroundings import Surroundings
from tests.live.replica import Replica

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
        flags: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """``clock`` is how far its wall clock is off, ``+1h`` or ``-1h``; its monotonic clock stays true."""
        where = table.flags if through is None else table.flags_through(through.url)
        super().__init__(directory, name, flags=(*where, *flags), **settings)
        self.through = through
        environment = {**HERMETIC, **table.credentials} if table.credentials else {}
        self._command = ["env", *(f"{name}={value}" for name, value in environment.items()), *self._command]
        if clock is not None:
            surroundings = Surroundings(directory, f"{name}-around")
            surroundings.set_clock(clock)
            self._command = surroundings.command(self._command, names=False)
