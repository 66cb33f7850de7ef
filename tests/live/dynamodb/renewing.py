"""Many registrations kept alive in the table itself, as a crowd of relays and other replicas would."""

import threading
from collections.abc import Sequence

from tests.live.dynamodb import items
from tests.live.dynamodb_server import Table


class Renewing:
    """Writes items for these pools, all of them there on return, and again three times in each lease until closed."""

    def __init__(self, table: Table, names: Sequence[str], *, lease: float, value_bytes: int) -> None:
        self._table = table
        self._names = names
        self._lease = lease
        self._padding = {"padding": "x" * value_bytes}
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._write()
        self._thread = threading.Thread(target=self._run, name="renewing", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        lease = self._lease
        self._table.put_items(items.item(name, lease=lease, metadata=self._padding) for name in self._names)

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._lease / 3):
                self._write()
        except Exception as error:
            self._failure = error

    def close(self) -> None:
        """No renewal from now on."""
        self._ending.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure
