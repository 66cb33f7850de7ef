"""The table: three requests over HTTP, each with a deadline, signed by the table's own clock.

The door to DynamoDB: what it answers leaves as bytes, what goes wrong as ``Unavailable``. Reads and writes have
connections of their own, so that a crowd of heartbeats keeps no read waiting. What can be sent again is, within the
deadline: a put says all that the item is. One whose answer was lost may be repeated after somebody else's removal, and
then is the later of the two; whoever asked for it has no answer yet.
"""

import asyncio
import contextlib
import logging
import os
import random
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import aiohttp
import yarl

from discovery.errors import Unavailable
from discovery.logs import event
from discovery.metrics import Counters
from discovery.stores.dynamodb import items, refusals
from discovery.stores.dynamodb.access import Access, Endpoint
from discovery.stores.dynamodb.clock import TableClock, seconds_of
from discovery.stores.dynamodb.refusals import Operation, Refusal
from discovery.stores.dynamodb.signing import Credentials, sign

log = logging.getLogger(__name__)

WRITE_CONNECTIONS = 200
READ_CONNECTIONS = 2
IDLE_SECS = 20.0
ATTEMPTS = 3
PAUSE_SECS = 0.05
"""Before the second attempt, at most; twice that before the third."""
THROTTLED_SECS = 2.0
"""A throttled write is sent again only where none was throttled for so long: all together would triple the load."""
TIME_IN_DOUBT_SECS = 60.0

_trouble: ContextVar[str] = ContextVar("trouble", default="")
"""What went wrong with earlier attempts of the call that is made here."""
_CALLS = {"PutItem": "put", "DeleteItem": "delete", "Query": "query"}


class ConditionFailed(Exception):
    """The condition of a write did not hold; where it was ``repeated``, maybe since an attempt before had done it."""

    def __init__(self, *, repeated: bool = False) -> None:
        super().__init__("the condition did not hold")
        self.repeated = repeated


class TooLarge(Exception):
    """The table takes no item of this size; the text is what it said."""


class Answer(NamedTuple):
    """What came back, and when."""

    body: bytes
    received_at: float


class _Sent(NamedTuple):
    at: float
    signed_for: float
    credentials: Credentials


class _Http(NamedTuple):
    reads: aiohttp.ClientSession
    writes: aiohttp.ClientSession
    url: yarl.URL
    host: str
    path: str
    proxy: str | None


class Table:
    """One table in one region. ``timeout_secs`` is how long each call may take in all."""

    def __init__(
        self,
        name: str,
        region: str | None,
        endpoint_url: str | None,
        timeout_secs: float,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self._timeout_secs = timeout_secs
        self._counters = counters
        self.clock = TableClock()
        self._access = Access(region, endpoint_url, self._table_secs, clock)
        self.region = self._access.region
        self._endpoint_url = endpoint_url
        self._http: _Http | None = None
        self._opening = asyncio.Lock()
        self._telling_time = asyncio.Lock()
        self._said: dict[Operation, str] = {}
        self._throttled_at = float("-inf")

    def __str__(self) -> str:
        """``table pools in eu-west-1``; with the endpoint where it is not the region's own."""
        place = "" if self._endpoint_url is None else f" at {self.endpoint}"
        name = self.name.rpartition("/")[2] if self.name.startswith("arn:") else self.name
        return f"table {name} in {self.region}{place}"

    @property
    def endpoint(self) -> str | None:
        """The endpoint that was given, without user and password."""
        return None if self._endpoint_url is None else str(yarl.URL(self._endpoint_url).with_user(None))

    # ---- requests

    @contextlib.asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """What happens within it ends in time."""
        if asyncio.current_task() is None:
            await asyncio.sleep(0)  # a request's first step is taken outside of any task, where no time can be limited
        _trouble.set("")
        try:
            async with asyncio.timeout(self._timeout_secs):
                yield
        except TimeoutError:
            trouble = f"; before that: {_trouble.get()}" if _trouble.get() else ""
            raise Unavailable(f"{self} did not answer within {self._timeout_secs:g} s{trouble}") from None

    async def know_time(self) -> None:
        """Have seen an answer of the table; of many who wait for it one asks."""
        if not self.clock.known:
            async with self._telling_time:
                if not self.clock.known:
                    await self.query(None, limit=1)

    async def put(self, item: Callable[[], dict[str, Any]], condition: dict[str, Any] | None = None) -> items.Written:
        """Write an item, which is made for each attempt: a refusal may have told that the table's time is another.

        Raises ``ConditionFailed``, ``TooLarge``, ``Unavailable``.
        """
        return await self._write("PutItem", lambda: {"Item": item(), "ReturnValues": "ALL_OLD", **(condition or {})})

    async def delete(self, key: dict[str, Any], condition: dict[str, Any] | None = None) -> None:
        """Remove an item, which need not be there. Raises ``ConditionFailed``, ``Unavailable``."""
        await self._write("DeleteItem", lambda: {"Key": key, **(condition or {})})

    async def query(self, start: dict[str, Any] | None, limit: int | None = None) -> tuple[items.Page, float]:
        """One page of the partition, and when it was there."""
        asked: dict[str, Any] = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": {"S": items.PARTITION}},
            "ConsistentRead": True,
        }
        if start is not None:
            asked["ExclusiveStartKey"] = start
        if limit is not None:
            asked["Limit"] = limit
        async with self.deadline():
            answer = await self._call("Query", lambda: asked)
        try:
            page = items.page(answer.body)
        except ValueError as error:
            raise Unavailable(f"an answer for {self} cannot be read: {error}") from None
        self._counters.dynamodb_read_units.inc(page.read_units)
        return page, answer.received_at

    async def _write(self, operation: Operation, asked: Callable[[], dict[str, Any]]) -> items.Written:
        answer = await self._call(operation, asked)
        try:
            written = items.written(answer.body)
        except ValueError as error:
            raise Unavailable(f"an answer for {self} cannot be read: {error}") from None
        self._counters.dynamodb_write_units.inc(written.write_units)
        return written

    # ---- one request, until it has an answer that counts

    async def _call(self, operation: Operation, asked: Callable[[], dict[str, Any]]) -> Answer:
        http = self._http or await self._open()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._try(http, operation, asked)
            except ConditionFailed:
                raise ConditionFailed(repeated=attempt > 1) from None
            except _Momentary as error:
                _trouble.set(str(error.cause))
                if attempt == ATTEMPTS:
                    raise error.cause from None
            await asyncio.sleep(PAUSE_SECS * attempt * random.uniform(0.5, 1.0))  # noqa: S311
        raise AssertionError("the last attempt answers or raises")

    async def _try(self, http: _Http, operation: Operation, asked: Callable[[], dict[str, Any]]) -> Answer:
        answer, sent = await self._send(http, operation, asked())
        if not isinstance(answer, Refusal):
            return answer
        if answer.doubts_time and abs(self.clock.at(sent.at) - sent.signed_for) > TIME_IN_DOUBT_SECS:
            answer, sent = await self._send(http, operation, asked())  # by the clock that came with the refusal
            if not isinstance(answer, Refusal):
                return answer
        self._raise(answer, operation, sent)
        raise AssertionError("a refusal raises")

    def _raise(self, refusal: Refusal, operation: Operation, sent: _Sent) -> None:
        if refusal.is_condition:
            raise ConditionFailed
        if refusal.is_size and operation == "PutItem":
            raise TooLarge(refusal.message)
        if refusal.throttles:
            self._counters.dynamodb_throttled.of(_CALLS[operation]).inc()
        error = refusals.unavailable(refusal, operation, str(self))
        self._tell(refusal, operation)
        if refusal.doubts_credentials and self._access.doubt(sent.credentials):
            raise _Momentary(error)  # there may be newer ones
        if refusal.is_momentary and not (refusal.throttles and self._stays_throttled(operation)):
            raise _Momentary(error)
        raise error

    def _tell(self, refusal: Refusal, operation: Operation) -> None:
        """What AWS says is for the log alone, once until it says something else."""
        said = f"{refusal.code}: {refusal.message}"
        if refusal.code and not refusal.is_momentary and self._said.get(operation) != said:
            self._said[operation] = said
            text = "DynamoDB said to a %s of %s: %s"
            event(log, logging.WARNING, "store.odd", text, operation, self, said, cause=refusal.code)

    def _stays_throttled(self, operation: Operation) -> bool:
        """Whether one more attempt would only be more of what is too much: of a read, or of many writes."""
        since_secs = self._clock() - self._throttled_at
        self._throttled_at = self._clock()
        return operation == "Query" or since_secs < THROTTLED_SECS

    async def _send(self, http: _Http, operation: Operation, asked: dict[str, Any]) -> tuple[Answer | Refusal, _Sent]:
        body = items.encode({"TableName": self.name, "ReturnConsumedCapacity": "TOTAL", **asked})
        credentials = await self._access.credentials()
        # Before its first answer the table's clock is not known: a refusal for it brings it.
        signed_for = self._table_secs() or time.time()
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"DynamoDB_20120810.{operation}",
        }
        signed = sign(credentials, self.region, http.host, http.path, headers, body, signed_for)
        # The checksum of a compressed answer is that of the compressed bytes. Not signed: proxies may change it.
        signed["accept-encoding"] = "identity"
        session = http.reads if operation == "Query" else http.writes
        sent_at = self._clock()
        try:
            async with session.post(
                http.url, data=body, headers=signed, proxy=http.proxy, allow_redirects=False
            ) as response:
                answer = await response.read()
                status, date = response.status, seconds_of(response.headers.get("date"))
                checksum = None if "content-encoding" in response.headers else response.headers.get("x-amz-crc32")
        except (aiohttp.ClientError, OSError) as error:
            raise _Momentary(Unavailable(f"{self} cannot be reached: {_said(error)}")) from None
        received_at, sent = self._clock(), _Sent(sent_at, signed_for, credentials)
        refusal = None if status == 200 else refusals.read(status, answer)
        is_of_table = answer.startswith(b"{") if refusal is None else refusal.code != ""
        if date is not None and is_of_table:  # whatever stands in between has a clock of its own
            self.clock.observe(date, sent_at, received_at)
        if refusal is not None:
            return refusal, sent
        if date is None:
            raise Unavailable(f"what answers for {self} does not say the time (no Date): leases cannot be judged")
        if checksum is not None and checksum != str(zlib.crc32(answer)):
            raise _Momentary(Unavailable(f"an answer for {self} was damaged on its way"))
        return Answer(answer, received_at), sent

    def _table_secs(self) -> float | None:
        return self.clock.at(self._clock()) if self.clock.known else None

    # ---- connections

    async def _open(self) -> _Http:
        async with self._opening:
            if self._http is None:
                endpoint = await self._access.endpoint()
                url = yarl.URL(endpoint.url).with_user(None)
                trust = await self._trust(endpoint) if url.scheme == "https" else None
                self._http = _Http(
                    self._session(READ_CONNECTIONS, trust),
                    self._session(WRITE_CONNECTIONS, trust),
                    url,
                    url.host_port_subcomponent or "",
                    url.raw_path or "/",
                    endpoint.proxy,
                )
            return self._http

    async def _trust(self, endpoint: Endpoint) -> ssl.SSLContext:
        path = endpoint.ca_path
        try:
            return await asyncio.to_thread(ssl.create_default_context, cafile=path)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise Unavailable(f"the trusted certificates for {self} in {path} cannot be read: {why}") from None

    def _session(self, connections: int, trust: ssl.SSLContext | None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=connections, keepalive_timeout=IDLE_SECS, ssl=True if trust is None else trust
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_secs),
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._access.close()
        http, self._http = self._http, None
        if http is not None:
            await http.reads.close()
            await http.writes.close()


class _Momentary(Exception):
    """What may succeed a moment later; ``cause`` is the error for whoever asked when it does not."""

    def __init__(self, cause: Unavailable) -> None:
        super().__init__(cause.detail)
        self.cause = cause


def _said(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):  # of an HTTP proxy; its text may hold that one's password
        return f"the proxy on the way answered {error.status}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno is not None:
        return os.strerror(error.os_error.errno) if error.os_error.errno > 0 else str(error.os_error.strerror)
    return str(error) or type(error).__name__
