"""The fake API server in a process or a thread of its own, for tests that drive a service from outside.

``python -m tests.mcs.api_server --port 0`` prints one line of JSON with its ``url`` and its ``control`` URL. A POST to
``<control>/<method>`` with a JSON object of arguments calls that method of the server; what it returns is the answer.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

from tests.mcs.api_http import answer, read_request
from tests.mcs.api_objects import Object
from tests.mcs.api_server import ALL_RESOURCES, ApiServer


class Controls:
    """What can be done to a running server from outside, by name."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Do it; ``AttributeError`` where there is no such control."""
        if name.startswith("_"):
            raise AttributeError(name)
        result = getattr(self, name, None) or getattr(self._server, name)
        result = result(**arguments)
        return await result if asyncio.iscoroutine(result) else result

    def requests_since(self, number: int = 0) -> list[dict[str, Any]]:
        """The log from a place on."""
        return [request.plain() for request in self._server.requests[number:]]

    def state(self) -> dict[str, Any]:
        """How much came and how much is open."""
        return {
            "version": self._server.objects.version,
            "requests": len(self._server.requests),
            "watches": len(self._server.watches),
        }

    def accept_tokens(self, tokens: list[str] | None) -> None:
        """Which tokens are good from now on; None is no check."""
        self._server.tokens = None if tokens is None else set(tokens)

    def forbid(self, verb: str, resource: str = "endpointslices") -> None:
        """Answer 403 to a verb on a resource."""
        self._server.forbidden.add((verb, resource))

    def grant_roles(self, namespaces: list[str] | None) -> None:
        """Give rights in these namespaces alone, and none to ask for all at once; None gives a ClusterRole."""
        self._server.roles = None if namespaces is None else set(namespaces)

    def allow(self) -> None:
        """Forbid nothing."""
        self._server.forbidden.clear()

    async def accept(self) -> None:
        """Listen again, on the same port, after ``refuse``."""
        await self._server.start()


class ApiServerThread:
    """A server in a thread of this process."""

    def __init__(self, **options: Any) -> None:
        self.server = ApiServer(**options)
        self._controls = Controls(self.server)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake API server", daemon=True)

    def __enter__(self) -> "ApiServerThread":
        self._thread.start()
        self.call("start")
        return self

    def __exit__(self, *_: object) -> None:
        self.call("close")
        asyncio.run_coroutine_threadsafe(_end_all_others(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        """For a kubeconfig."""
        return self.server.url

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Do something in the server's thread, and wait for it."""
        work = self._controls.call(name, arguments)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


async def _end_all_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class ApiServerProcess:
    """A server in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.mcs.api_server", *options]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        self.url: str = said["url"]
        self.control: str = said["control"]
        self.pid = self._process.pid

    def __enter__(self) -> "ApiServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Do something to the server, and wait for it."""
        data = json.dumps(arguments).encode()
        request = urllib.request.Request(f"{self.control}/{name}", data=data, method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def freeze(self) -> None:
        """Stop the whole process without closing anything, as a host that went away."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)


def kubeconfig(**clusters: "str | tuple[str, dict[str, Any]]") -> Object:
    """A kubeconfig with one context per cluster, the first being current; a URL, or a URL and a user."""
    pairs = {name: (said, {}) if isinstance(said, str) else said for name, said in clusters.items()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(pairs)),
        "contexts": [
            {"name": name, "context": {"cluster": f"{name}-cluster", "user": f"{name}-user"}} for name in pairs
        ],
        "clusters": [{"name": f"{name}-cluster", "cluster": {"server": url}} for name, (url, _) in pairs.items()],
        "users": [{"name": f"{name}-user", "user": user} for name, (_, user) in pairs.items()],
    }


def write_kubeconfig(path: Path, **clusters: "str | tuple[str, dict[str, Any]]") -> Path:
    """The same as a file; JSON is YAML."""
    path.write_text(json.dumps(kubeconfig(**clusters)))
    return path


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--token", action="append")
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--second", type=float, default=1.0)
    parser.add_argument("--bookmark-secs", type=float, default=60.0)
    parser.add_argument("--resource", action="append", default=["endpointslices"])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    server = ApiServer(
        tls=_tls(options),
        tokens=options.token,
        second=options.second,
        bookmark_secs=options.bookmark_secs,
        resources=[resource for resource in ALL_RESOURCES if resource.plural in options.resource],
    )
    await server.start(options.port)
    controls = Controls(server)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request is not None:
            try:
                result = await controls.call(request.path.strip("/"), json.loads(request.body or b"{}"))
                writer.write(answer(200, result if isinstance(result, dict | list | str | int) else None))
            except Exception as error:
                writer.write(answer(500, {"error": repr(error)}))
            await writer.drain()
        writer.close()

    control = await asyncio.start_server(serve, "127.0.0.1", options.control_port, limit=2**26)
    port = control.sockets[0].getsockname()[1]
    print(json.dumps({"url": server.url, "control": f"http://127.0.0.1:{port}"}), flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    control.close()
    await server.close()


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_cert, options.tls_key)
    return context
