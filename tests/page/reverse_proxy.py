"""A reverse proxy that serves the service below a path, as an ingress does: the path is taken off, the rest goes on."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.live.signs import free_port

DROPPED = {"connection", "transfer-encoding", "date", "server"}


class ReverseProxy:
    """Answers below ``prefix`` with what the service answers, each with a connection of its own; 404 elsewhere."""

    def __init__(self, target_port: int, prefix: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _pass_on(self, target_port, prefix)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "ReverseProxy":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _pass_on(handler: BaseHTTPRequestHandler, target_port: int, prefix: str) -> None:
    handler.close_connection = True
    if not handler.path.startswith(prefix):
        handler.send_error(404)
        return
    target = "/" + handler.path.removeprefix(prefix).lstrip("/")
    headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", target_port, timeout=30)) as service:
        service.request("GET", target, headers=headers)
        with service.getresponse() as answer, contextlib.suppress(OSError):
            handler.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in DROPPED:
                    handler.send_header(name, value)
            handler.send_header("Connection", "close")
            handler.end_headers()
            while piece := answer.read1(65536):
                handler.wfile.write(piece)
                handler.wfile.flush()
