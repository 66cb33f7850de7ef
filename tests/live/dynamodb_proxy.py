"""An HTTP proxy between a replica and its table, which knows what each request asks for and answers it badly on demand.

Faults are functions around the passing of a request, aimed at operations (``Query``, ``PutItem``, ``DeleteItem``) or
at single requests. As DynamoDB does and moto's server does not, it keeps connections open, and counts what a read
costs by the size of what was read.
"""

import asyncio
import datetime
import email.utils
import gzip
import itertools
import json
import math
import re
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import botocore.auth
import botocore.awsrequest
import botocore.credentials

from tests.live.signs import free_port

Result = TypeVar("Result")

_TARGET = "x-amz-target"
_UNIT_BYTES = 4096
_KEPT = frozenset({"content-encoding", "content-type", "x-amzn-requestid"})
_NO_MORE = "\N{REPLACEMENT CHARACTER}after-an-empty-page"


@dataclass
class Asked:
    """One request: what for, when it came, and how it was answered; None is no answer so far, 0 a cut connection."""

    at: float
    operation: str
    body: dict[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    sent: bytes = field(default=b"", repr=False)
    """The body as it came."""
    status: int | None = None
    answered: float | None = None

    @property
    def continues(self) -> bool:
        """Whether it reads a page after the first."""
        return "ExclusiveStartKey" in self.body


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut_at: int | None = None
    """How many bytes of the body are sent before the connection breaks; None is all of them, and it stays."""
    of_a_gateway: bool = False
    """Whether its own ``Date`` counts."""


Proceed = Callable[[dict[str, Any]], Awaitable[Answer]]
Fault = Callable[[Asked, Proceed], Awaitable[Answer | None]]


def late(secs: float) -> Fault:
    """Done at once, and the answer takes this long."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        answer = await proceed(asked.body)
        await asyncio.sleep(secs)
        return answer

    return meet


def silent() -> Fault:
    """Taken, not done, and never answered."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        await asyncio.Event().wait()
        return None

    return meet


def unheard() -> Fault:
    """Done, but the connection breaks before the answer comes."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        await proceed(asked.body)
        return None

    return meet


def fails(status: int = 500, code: str = "InternalServerError", message: str = "Internal server error") -> Fault:
    """Not done, and this in its place."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        return problem(status, code, message)

    return meet


def answers(status: int, content: object) -> Fault:
    """Not done, and this JSON in its place."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        return _json(status, content)

    return meet


def throttles(code: str = "ProvisionedThroughputExceededException") -> Fault:
    """Not done, since there was too much of it."""
    return fails(400, code, "The level of configured provisioned throughput for the table was exceeded.")


def denies(action: str, role: str = "arn:aws:sts::123456789012:assumed-role/discovery/pod") -> Fault:
    """Not done, since the caller may not."""
    message = f"User: {role} is not authorized to perform: dynamodb:{action} on resource: arn:aws:dynamodb:table/t"
    return fails(400, "AccessDeniedException", f"{message} because no identity-based policy allows the action")


def torn(*, seems_whole: bool = False) -> Fault:
    """The body ends in its middle; the connection breaks there, or says that this was all."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        answer = await proceed(asked.body)
        half = len(answer.body) // 2
        if not seems_whole:
            return Answer(answer.status, answer.headers, answer.body, cut_at=half)
        return Answer(answer.status, {**answer.headers, "x-amz-crc32": ""}, answer.body[:half])

    return meet


def gateway(status: int, clock_secs: float) -> Fault:
    """Not done: what stands before DynamoDB says so, in its own words and by its own clock."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        date = email.utils.formatdate(time.time() + clock_secs, usegmt=True)
        return Answer(
            status,
            {"content-type": "text/html", "date": date, "x-amz-crc32": ""},
            b"<html>not now</html>",
            of_a_gateway=True,
        )

    return meet


def compressed() -> Fault:
    """As AWS does it: with the checksum of what is sent, and not of what it means."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        answer = await proceed(asked.body)
        if answer.cut_at is not None:
            return answer
        return Answer(answer.status, {**answer.headers, "content-encoding": "gzip"}, gzip.compress(answer.body, 1))

    return meet


def wants_true_clocks(within_secs: float = 300) -> Fault:
    """Not done for a caller whose clock is off by more, as AWS refuses signatures of another time."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        signed = datetime.datetime.strptime(asked.headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
        if abs(signed.timestamp() - time.time()) <= within_secs:
            return await proceed(asked.body)
        return problem(400, "InvalidSignatureException", f"Signature of {signed} is not of the present time")

    return meet


def wants_signatures(credentials: Mapping[str, str], region: str) -> Fault:
    """Not done for a caller whose signature is none of these credentials; botocore is the judge."""
    known = botocore.credentials.Credentials(credentials["AWS_ACCESS_KEY_ID"], credentials["AWS_SECRET_ACCESS_KEY"])
    judge = botocore.auth.SigV4Auth(known, "dynamodb", region)

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        said = dict(re.findall(r"(\w+)=([^, ]+)", asked.headers["authorization"]))
        headers = {name: asked.headers[name] for name in said["SignedHeaders"].split(";")}
        request = botocore.awsrequest.AWSRequest("POST", f"http://{headers['host']}/", headers, asked.sent)
        request.context["timestamp"] = headers["x-amz-date"]
        expected = judge.signature(judge.string_to_sign(request, judge.canonical_request(request)), request)
        if said["Signature"] == expected and {"host", _TARGET, "x-amz-date"} <= headers.keys():
            return await proceed(asked.body)
        return problem(400, "InvalidSignatureException", "The request signature we calculated does not match")

    return meet


def pages(of: int, *, empty_between: bool = False) -> Fault:
    """Each answer to a Query holds at most so many items; with ``empty_between`` an empty page goes before each."""

    async def meet(asked: Asked, proceed: Proceed) -> Answer | None:
        body = dict(asked.body)
        start = body.pop("ExclusiveStartKey", None)
        if empty_between and (start is None or not start["sk"]["S"].endswith(_NO_MORE)):
            return _empty_page(start)
        if start is not None and (sk := start["sk"]["S"].removesuffix(_NO_MORE)):
            body["ExclusiveStartKey"] = {**start, "sk": {"S": sk}}
        return await proceed({**body, "Limit": of})

    return meet


def _empty_page(start: dict[str, Any] | None) -> Answer:
    """Where a filter, or what was deleted, left nothing: no items, and a place to go on from."""
    sk = "" if start is None else start["sk"]["S"]
    place = {"pk": {"S": "POOL"}, "sk": {"S": sk + _NO_MORE}}
    return _json(200, {"Items": [], "Count": 0, "ScannedCount": 0, "LastEvaluatedKey": place})


def problem(status: int, code: str, message: str) -> Answer:
    """An error as DynamoDB words it."""
    return _json(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})


def _json(status: int, content: Any) -> Answer:
    headers = {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": f"OF-THE-PROXY-{next(_numbers)}"}
    return Answer(status, headers, json.dumps(content).encode())


_numbers = itertools.count(1)


class DynamoDBProxy:
    """Listens on a port of its own and passes requests to the server on ``target_port``; runs in a thread."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.target_port = target_port
        self.clock_secs = 0.0
        """How far the ``Date`` of answers is ahead of the true time."""
        self.asked: list[Asked] = []
        self._faults: list[tuple[frozenset[str], Callable[[Asked], bool] | None, Fault]] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dynamodb-proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self.accept()

    # The faults

    def let(self, fault: Fault, *operations: str, when: Callable[[Asked], bool] | None = None) -> None:
        """From now on meet these operations (all without any) with this fault, inside of those that are there."""
        self._faults = [*self._faults, (frozenset(operations), when, fault)]

    def heal(self) -> None:
        """No fault from now on, and listening; what was left without an answer stays so."""
        self._faults = []
        self.clock_secs = 0.0
        self.accept()

    def refuse(self) -> None:
        """Break all connections and listen no more."""
        self._call(self._stop_listening())

    def accept(self) -> None:
        """Listen, if it does not."""
        self._call(self._listen())

    def cut(self) -> int:
        """Break all open connections; gives their number."""
        return self._call(self._cut())

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    def seen(self, operation: str, since: float = 0.0) -> list[Asked]:
        """The requests for one operation that came from ``since`` on."""
        return [asked for asked in self.asked if asked.operation == operation and asked.at >= since]

    def close(self) -> None:
        """End everything."""
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # The listener

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._converse, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> int:
        for writer in self._connections:
            writer.transport.abort()
        return len(self._connections)

    async def _shut(self) -> None:
        await self._stop_listening()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # One connection

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                if not await self._answer(*request, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _answer(self, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        operation = headers.get(_TARGET, "").rpartition(".")[2]
        asked = Asked(time.monotonic(), operation, json.loads(body), headers, body)
        self.asked.append(asked)
        answer = await self._meet(asked, list(self._faults), asked.body)
        asked.answered = time.monotonic()
        asked.status = 0 if answer is None else answer.status
        if answer is None:
            return False
        writer.write(self._head(answer) + answer.body[: answer.cut_at])
        await writer.drain()
        return answer.cut_at is None

    async def _meet(self, asked: Asked, faults: list[Any], body: dict[str, Any]) -> Answer | None:
        """What the outermost of these faults makes of it."""
        for place, (operations, when, fault) in enumerate(faults):
            if (not operations or asked.operation in operations) and (when is None or when(asked)):
                return await fault(asked, self._inside(asked, faults[place + 1 :]))
        return await self._pass_on(asked, body)

    def _inside(self, asked: Asked, faults: list[Any]) -> Proceed:
        async def proceed(body: dict[str, Any]) -> Answer:
            answer = await self._meet(asked, faults, body)
            if answer is None:
                raise ConnectionResetError
            return answer

        return proceed

    async def _pass_on(self, asked: Asked, body: dict[str, Any]) -> Answer:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            return problem(503, "ServiceUnavailable", "the server is not there")
        try:
            writer.write(_request(asked.headers, json.dumps(body).encode()))
            answer = _parsed(await reader.read())
        finally:
            writer.transport.abort()
        return _with_cost(answer) if "ReturnConsumedCapacity" in body and asked.operation == "Query" else answer

    def _head(self, answer: Answer) -> bytes:
        date = answer.headers.get("date") if answer.of_a_gateway else None
        date = date or email.utils.formatdate(time.time() + self.clock_secs, usegmt=True)
        kept = {name: value for name, value in answer.headers.items() if name in _KEPT}
        fields = {"date": date, **kept, "content-length": str(len(answer.body))}
        if answer.headers.get("x-amz-crc32") != "":
            fields["x-amz-crc32"] = str(zlib.crc32(answer.body))
        lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode()


async def _read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = _fields(head)
    return headers, await reader.readexactly(int(headers.get("content-length", "0")))


def _fields(head: bytes) -> dict[str, str]:
    pairs = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:] if ":" in line]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _request(headers: Mapping[str, str], body: bytes) -> bytes:
    kept = {name: value for name, value in headers.items() if name not in ("content-length", "connection")}
    fields = {**kept, "content-length": str(len(body)), "connection": "close"}
    return "\r\n".join(["POST / HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items()), "", ""]).encode() + body


def _parsed(answer: bytes) -> Answer:
    """An answer that ends with its connection; none at all is what a server says that was killed meanwhile."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return problem(503, "ServiceUnavailable", "the server broke the connection")
    return Answer(int(head.split(b" ", 2)[1]), _fields(head + b"\r\n"), body)


def _with_cost(answer: Answer) -> Answer:
    """The units that DynamoDB counts for a strongly consistent read: one for each 4 KB of all items together."""
    if answer.status != 200:
        return answer
    content = json.loads(answer.body)
    read = sum(_item_bytes(item) for item in content["Items"])
    content["ConsumedCapacity"] = {
        **content["ConsumedCapacity"],
        "CapacityUnits": max(1.0, math.ceil(read / _UNIT_BYTES)),
    }
    return Answer(answer.status, answer.headers, json.dumps(content).encode())


def _item_bytes(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Names and values; two digits of a number are a byte."""
    return sum(len(name.encode()) + _value_bytes(*next(iter(value.items()))) for name, value in item.items())


def _value_bytes(kind: str, value: Any) -> int:
    return 1 + math.ceil(len(str(value)) / 2) if kind == "N" else len(str(value).encode())
