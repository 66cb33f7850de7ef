"""A fake API server on a real port, for tests: it lists and watches as a real one does, and fails as asked.

In the loop of a test it is used as ``async with ApiServer() as server``; for processes that are driven from outside
see ``tests.mcs.api_process``. What it holds is in ``api_objects``; ``test_api_server`` compares it with recordings of a
real one.
"""

import asyncio
import json
import ssl
from collections.abc import Iterable
from typing import Any, Self

from tests.listening import some_turns, stop_listening
from tests.live.signs import free_port
from tests.mcs.api_http import (
    END_OF_CHUNKS,
    WATCH_HEAD,
    Request,
    answer,
    chunk,
    head,
    read_request,
)
from tests.mcs.api_objects import (
    CLUSTER_PROPERTIES,
    CLUSTERS,
    MULTI_CLUSTER_SERVICES,
    SLICES,
    Change,
    Expired,
    Object,
    Objects,
    Resource,
    Selector,
    decode_continue,
    encode_continue,
    event_of,
    selector,
)

ALL_RESOURCES = (SLICES, CLUSTER_PROPERTIES, CLUSTERS, MULTI_CLUSTER_SERVICES)
HTML = b"<!doctype html><html><title>Sign in</title><p>Please sign in.</html>"
LAST_BOOKMARK_BEFORE_END_SECS = 2.0


class Said(Exception):
    """An answer that is decided: a status other than 200."""

    def __init__(self, code: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.headers: dict[str, str] = more.pop("headers", {})
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": more.pop("metadata", {})}
        self.status |= {"status": "Failure", "message": message}
        self.status |= ({"reason": reason} if reason else {}) | more | {"code": code}


class Logged:
    """A request that came, and what became of it; ``status`` 0 while it has no answer."""

    def __init__(self, request: Request, verb: str, at: float) -> None:
        self.method = request.method
        self.verb = verb
        self.path = request.path
        self.query = request.query
        self.has_authorization = "authorization" in request.headers
        self.at = at
        self.status = 0

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return dict(vars(self))


class Fault:
    """How requests of some verbs go wrong, for ever or for some times."""

    def __init__(self, kind: str, verbs: Iterable[str], times: int | None, options: dict[str, Any]) -> None:
        self.kind = kind
        self.verbs = frozenset(verbs)
        self.times = times
        self.options = options


class Watch:
    """One open watch: what is still to be written, and whether anything is written any more."""

    def __init__(self, resource: Resource, namespace: str | None, selected: Selector, query: dict[str, str]) -> None:
        self.resource = resource
        self.namespace = namespace
        self.selected = selected
        self.query = query
        self.frozen = False
        self.outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Bytes as they are, and None for an end without an end: the connection is cut."""

    @property
    def takes_bookmarks(self) -> bool:
        """Whether the client asked for them."""
        return self.query.get("allowWatchBookmarks") in ("true", "1")

    def say(self, kind: str, found: Object) -> None:
        """Send an event."""
        self.outgoing.put_nowait(chunk(json.dumps({"type": kind, "object": found}).encode() + b"\n"))

    def tell(self, change: Change) -> None:
        """Send what this selection is told of a change."""
        if change.resource == self.resource and (event := event_of(change, self.namespace, self.selected)):
            self.say(event[0], typed(self.resource, event[1]))

    def end(self) -> None:
        """End as a server ends it."""
        self.outgoing.put_nowait(END_OF_CHUNKS)


class Client:
    """The other side of one connection; ``gone`` is done when it has closed, be it only its own half."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.write = writer.write
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell_end, tell_error = reader.feed_eof, reader.set_exception

        def feed_eof() -> None:
            tell_end()
            self._go()

        def set_exception(error: Exception) -> None:
            tell_error(error)
            self._go()

        reader.feed_eof, reader.set_exception = feed_eof, set_exception  # type: ignore[method-assign]

    def _go(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class ApiServer:
    """The server. ``second`` is how long one of its seconds lasts: everything that it times is scaled by it."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        tokens: Iterable[str] | None = None,
        resources: Iterable[Resource] = ALL_RESOURCES[:1],
        second: float = 1.0,
        bookmark_secs: float = 60.0,
    ) -> None:
        self.objects = Objects()
        self.resources = list(resources)
        self.tokens = None if tokens is None else set(tokens)
        self.forbidden: set[tuple[str, str]] = set()
        self.roles: set[str] | None = None
        """The namespaces whose Roles are all the rights that there are; None stands for a ClusterRole."""
        self.requests: list[Logged] = []
        self.watches: list[Watch] = []
        self.second = second
        self.bookmark_secs = bookmark_secs
        self.initial_events_allowed = True
        self.old_lists_kept = False
        """Whether lists go on after a compaction, as where the watch cache keeps snapshots."""
        self.empty_pages = False
        """Whether an empty page comes before each page, as after a filter in the server."""
        self._tls = tls
        self._faults: list[Fault] = []
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()

    # ---- life

    async def start(self, port: int = 0) -> Self:
        """Listen; on the port of before when started again, which no other server is given meanwhile."""
        self._port = port or self._port or free_port()
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port, ssl=self._tls, limit=2**20)
        return self

    async def refuse(self) -> None:
        """Listen no more; open connections stay as they are."""
        if self._server is None:
            return
        server, self._server = self._server, None
        await stop_listening(server)

    async def close(self) -> None:
        """Stop at once, and cut every connection."""
        await self.refuse()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await some_turns()  # sockets are closed a turn after their connections

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """Where it listens, or did last."""
        return self._port

    @property
    def url(self) -> str:
        """For a kubeconfig."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    # ---- writes

    def apply(self, manifest: Object) -> str:
        """Create or replace an object, an EndpointSlice unless it says otherwise; its new version, or the old one."""
        kind = manifest.get("kind", SLICES.kind)
        resource = next(one for one in ALL_RESOURCES if one.kind == kind)
        bare = {name: value for name, value in manifest.items() if name not in ("kind", "apiVersion")}
        self._tell(self.objects.apply(resource, bare))
        return str(self.objects.version)

    def apply_all(self, manifests: list[Object]) -> str:
        """Several at once."""
        for manifest in manifests:
            self.apply(manifest)
        return str(self.objects.version)

    def delete(self, name: str, namespace: str = "llm", kind: str = "EndpointSlice") -> str:
        """Delete an object; the version of the deletion."""
        resource = next(one for one in ALL_RESOURCES if one.kind == kind)
        self._tell(self.objects.delete(resource, namespace, name))
        return str(self.objects.version)

    def expire(self) -> None:
        """Forget events and old states, so that neither watches nor pages can go on from before."""
        self.objects.expire()
        self.objects.compact()

    def bookmark(self) -> None:
        """Send one on every watch that asked for them."""
        for watch in self.watches:
            self._bookmark(watch)

    # ---- faults

    def fault(
        self, kind: str, verbs: Iterable[str] = ("list", "watch", "get"), times: int | None = None, **options: Any
    ) -> None:
        """Answer wrongly.

        ``status`` (``code``, ``retry_after``, ``message``), ``html`` (``code``), ``json`` (``body``), ``truncate``,
        ``hang``, ``reset``; and watches alone: ``end`` at once, ``silent`` for ever, ``lines`` (``lines``) and an end.
        """
        self._faults.append(Fault(kind, verbs, times, options))

    def heal(self) -> None:
        """Answer rightly again."""
        self._faults.clear()

    def end_watches(self) -> None:
        """End every open watch cleanly, as after its timeout."""
        for watch in self.watches:
            watch.end()

    def cut_watches(self) -> None:
        """Cut the connection of every open watch."""
        for watch in self.watches:
            watch.outgoing.put_nowait(None)

    def freeze_watches(self) -> None:
        """Never write on the open watches again, nor end them; new ones work."""
        for watch in self.watches:
            watch.frozen = True

    def send(self, raw: str) -> None:
        """Write a raw piece of a line, or several, on every open watch."""
        for watch in self.watches:
            watch.outgoing.put_nowait(chunk(raw.encode()))

    # ---- one connection

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task that is cancelled before it begins runs nothing of its own: its connection has to end all the same."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(reader, writer)
        try:
            while (request := await read_request(reader)) is not None and await self._answer(request, client):
                await writer.drain()
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass

    async def _answer(self, request: Request, client: Client) -> bool:
        """Answer one request; False where the connection is over with it."""
        verb, *place = self._route(request)
        logged = Logged(request, verb, asyncio.get_running_loop().time())
        self.requests.append(logged)
        try:
            self._authorize(request, verb, *place)
            if (fault := self._next_fault(verb)) is not None:
                logged.status = -1
                return await _go_wrong(fault, self, request, verb, place, client, logged)
            if verb == "watch":
                return await self._watch(request, place[0], place[1], client, logged)
            value = await self._value(request, verb, *place)
            logged.status = 200
            client.write(answer(200, value, request.headers.get("accept-encoding", "")))
        except Said as said:
            logged.status = said.code
            client.write(answer(said.code, said.status, extra=said.headers))
        return True

    def _route(self, request: Request) -> tuple[str, Any, str | None, str]:
        """Verb, resource (a group's name, or None), namespace and name."""
        match request.path.strip("/").split("/"):
            case ["apis", group]:
                return "get", group, None, ""
            case ["apis", group, version, *rest]:
                namespace = None
                if rest[:1] == ["namespaces"] and len(rest) > 2:
                    namespace, rest = rest[1], rest[2:]
                for resource in self.resources:
                    if resource.group == group and version in resource.versions and rest[:1] == [resource.plural]:
                        if len(rest) > 1:
                            return "get", resource, namespace or "", rest[1]
                        watching = request.query.get("watch") in ("true", "1")
                        return "watch" if watching else "list", resource, namespace, ""
        return "get", None, None, ""

    def _authorize(self, request: Request, verb: str, resource: Any, namespace: str | None, name: str) -> None:
        token = request.headers.get("authorization", "").partition(" ")
        if self.tokens is not None and (token[0].lower() != "bearer" or token[2] not in self.tokens):
            raise Said(401, "Unauthorized", "Unauthorized")
        if request.method != "GET":
            raise Said(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if isinstance(resource, Resource) and not self._may(verb, resource, namespace):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise Said(
                403,
                "Forbidden",
                f'{resource.plural}.{resource.group} is forbidden: User "system:serviceaccount:discovery:discovery" '
                f'cannot {verb} resource "{resource.plural}" in API group "{resource.group}" {where}',
                details={"group": resource.group, "kind": resource.plural},
            )

    def _may(self, verb: str, resource: Resource, namespace: str | None) -> bool:
        return (verb, resource.plural) not in self.forbidden and (self.roles is None or namespace in self.roles)

    def _next_fault(self, verb: str) -> Fault | None:
        for fault in self._faults:
            if verb in fault.verbs and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    # ---- answers

    async def _value(self, request: Request, verb: str, resource: Any, namespace: str | None, name: str) -> Any:
        if isinstance(resource, str):
            versions = [v for one in self.resources if one.group == resource for v in one.versions]
            if versions:
                served = [{"groupVersion": f"{resource}/{version}", "version": version} for version in versions]
                return {"kind": "APIGroup", "apiVersion": "v1", "name": resource, "versions": served}
        if not isinstance(resource, Resource):
            message = "the server could not find the requested resource"
            raise Said(404, "NotFound", message, details={})
        if verb == "list":
            return await self._list(resource, namespace, request.query)
        found = self.objects.get(resource, namespace or "", name)
        if found is None:
            details = {"name": name, "group": resource.group, "kind": resource.plural}
            raise Said(404, "NotFound", f'{resource.plural}.{resource.group} "{name}" not found', details=details)
        return typed(resource, found)

    async def _list(self, resource: Resource, namespace: str | None, query: dict[str, str]) -> Object:
        selected = _selector(query)
        version, items = await self._state(resource, namespace, selected, query)
        metadata: Object = {"resourceVersion": str(version)}
        limit = int(query.get("limit") or 0)
        if query.get("resourceVersion") == "0":  # from the watch cache, which knows no pages
            limit = 0
        if self.empty_pages and limit and not query.get("continue", "").endswith("#"):
            metadata["continue"] = query.get("continue", "") + "#"
            items = []
        elif limit and len(items) > limit:
            metadata["continue"] = encode_continue(version, items[limit - 1])
            if not query.get("labelSelector"):
                metadata["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        kind = f"{resource.kind}List"
        return {"kind": kind, "apiVersion": f"{resource.group}/{resource.versions[0]}"} | {
            "metadata": metadata,
            "items": items,
        }

    async def _state(
        self, resource: Resource, namespace: str | None, selected: Selector, query: dict[str, str]
    ) -> tuple[int, list[Object]]:
        """The version, and the objects of this page and all after it."""
        token, asked = query.get("continue", "").removesuffix("#"), query.get("resourceVersion", "")
        if token:
            return self._continued(resource, namespace, selected, token)
        if query.get("resourceVersionMatch") == "Exact":
            try:
                return int(asked), self.objects.at(resource, int(asked), namespace, selected)
            except Expired:
                raise Said(410, "Expired", "The resourceVersion for the provided list is too old.") from None
        if asked and int(asked) > self.objects.version:
            await asyncio.sleep(3 * self.second)
            raise _too_large(asked, self.objects.version)
        return self.objects.version, self.objects.all(resource, namespace, selected)

    def _continued(
        self, resource: Resource, namespace: str | None, selected: Selector, token: str
    ) -> tuple[int, list[Object]]:
        try:
            version, after = decode_continue(token)
        except (ValueError, KeyError):
            raise Said(400, "BadRequest", "continue key is not valid: encoded continue token is invalid") from None
        compacted = self.objects.compacted_to
        try:
            if self.old_lists_kept:
                self.objects.compacted_to = 0
            items = self.objects.at(resource, version, namespace, selected)
        except Expired:
            message = "The provided continue parameter is too old to display a consistent list result."
            raise Said(410, "Expired", message, metadata={"continue": token}) from None
        finally:
            self.objects.compacted_to = compacted
        rest = [one for one in items if (one["metadata"].get("namespace", ""), one["metadata"]["name"]) > after]
        return version, rest

    # ---- watches

    async def _watch(
        self,
        request: Request,
        resource: Resource,
        namespace: str | None,
        client: Client,
        logged: Logged,
    ) -> bool:
        watch = Watch(resource, namespace, _selector(request.query), request.query)
        self._begin(watch)
        logged.status = 200
        client.write(WATCH_HEAD)
        self.watches.append(watch)
        timers = self._timers(watch)
        try:
            return await _write_all(watch, client)
        finally:
            self.watches.remove(watch)
            for timer in timers:
                timer.cancel()

    def _begin(self, watch: Watch) -> None:
        """Queue what happened since the version asked for, or what there is."""
        asked = watch.query.get("resourceVersion", "")
        initial = watch.query.get("sendInitialEvents") == "true"
        if initial:
            self._check_initial_events(watch.query)
        if asked in ("", "0"):
            for found in self.objects.all(watch.resource, watch.namespace, watch.selected):
                watch.say("ADDED", typed(watch.resource, found))
            if initial:
                self._bookmark(watch, {"k8s.io/initial-events-end": "true"})
            return
        try:
            for change in self.objects.since(watch.resource, int(asked)):
                watch.tell(change)
        except ValueError:
            reason = f'resourceVersion: Invalid value: "{asked}": strconv.ParseUint: parsing "{asked}": invalid syntax'
            raise Said(500, "", reason) from None
        except Expired:
            message = f"too old resource version: {asked} ({self.objects.expired_to})"
            watch.say("ERROR", Said(410, "Expired", message).status)
            watch.end()

    def _check_initial_events(self, query: dict[str, str]) -> None:
        if not self.initial_events_allowed:
            raise _invalid(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
            )
        if query.get("resourceVersionMatch") != "NotOlderThan":
            raise _invalid(
                "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            )

    def _timers(self, watch: Watch) -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        lasts = float(watch.query.get("timeoutSeconds") or 1800)
        timers = [loop.call_later(lasts * self.second, watch.end)]
        last = lasts - LAST_BOOKMARK_BEFORE_END_SECS
        if watch.takes_bookmarks and last > 0:
            times = [last, *(n * self.bookmark_secs for n in range(1, min(1000, int(last / self.bookmark_secs) + 1)))]
            timers += [loop.call_later(at * self.second, self._bookmark, watch) for at in times]
        return timers

    def _bookmark(self, watch: Watch, annotations: dict[str, str] | None = None) -> None:
        if not watch.takes_bookmarks:
            return
        metadata: Object = {"resourceVersion": str(self.objects.version)}
        if annotations:
            metadata["annotations"] = annotations
        empty = {"addressType": "", "endpoints": None, "ports": None} if watch.resource == SLICES else {}
        watch.say("BOOKMARK", typed(watch.resource, {"metadata": metadata} | empty))

    def _tell(self, change: Change | None) -> None:
        for watch in self.watches if change is not None else ():
            watch.tell(change)


def typed(resource: Resource, found: Object) -> Object:
    """As it stands alone; in a list its kind is left out."""
    return {"kind": resource.kind, "apiVersion": f"{resource.group}/{resource.versions[0]}"} | found


async def _write_all(watch: Watch, client: Client) -> bool:
    """Write until the watch ends; False where the connection ends with it."""
    while True:
        piece = asyncio.ensure_future(watch.outgoing.get())
        await asyncio.wait({piece, client.gone}, return_when=asyncio.FIRST_COMPLETED)
        if client.gone.done():
            piece.cancel()
            return False
        data = piece.result()
        if watch.frozen:
            continue
        if data is None:
            return False
        client.write(data)
        await client.writer.drain()
        if data == END_OF_CHUNKS:
            return True


async def _go_wrong(
    fault: Fault,
    server: ApiServer,
    request: Request,
    verb: str,
    place: list[Any],
    client: Client,
    logged: Logged,
) -> bool:
    match fault.kind:
        case "status":
            code = logged.status = fault.options["code"]
            after = fault.options.get("retry_after")
            extra = {} if after is None else {"Retry-After": str(after)}
            message = fault.options.get("message", "made to fail")
            client.write(answer(code, Said(code, "", message).status, extra=extra))
            return True
        case "html":
            kind = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(HTML))}
            client.write(head(fault.options.get("code", 200), kind) + HTML)
            return True
        case "json":
            client.write(answer(200, fault.options["body"]))
            return True
        case "truncate":
            body = json.dumps(await server._value(request, "list", *place)).encode()
            kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            client.write(head(200, kind) + body[: len(body) // 2])
            await client.writer.drain()
            return False
        case "hang":
            await client.gone
            return False
        case "end":
            client.write(WATCH_HEAD + END_OF_CHUNKS)
            return True
        case "silent":
            client.write(WATCH_HEAD)
            await client.gone
            return False
        case "lines":
            lines = "".join(f"{line}\n" for line in fault.options["lines"])
            client.write(WATCH_HEAD + chunk(lines.encode()) + END_OF_CHUNKS)
            return True
        case "reset":
            return False
        case _:
            raise ValueError(f"no such fault: {fault.kind}")


def _selector(query: dict[str, str]) -> Selector:
    try:
        return selector(query.get("labelSelector", ""))
    except ValueError as error:
        raise Said(400, "BadRequest", str(error)) from None


def _too_large(asked: str, current: int) -> Said:
    return Said(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
        headers={"Retry-After": "1"},
    )


def _invalid(field: str, message: str) -> Said:
    said = f"Forbidden: {message}"
    causes = [{"reason": "FieldValueForbidden", "message": said, "field": field}]
    return Said(
        422,
        "Invalid",
        f'ListOptions.meta.k8s.io "" is invalid: {field}: {said}',
        details={"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes},
    )


if __name__ == "__main__":
    from tests.mcs.api_process import main

    main()
