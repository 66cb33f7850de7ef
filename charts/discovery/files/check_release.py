"""What ``helm test`` runs: a pool is registered, read back and deregistered, each through the Service.

Its words are the base URL, the mode, and ``open`` or ``tokens``. Every request has a connection of its own, so that the
Service may send it to another replica: that they know of each other is part of what is checked. Where tokens are on it
has none, and checks that it is refused. Only the standard library is used, and of certificates only that there is one:
whose authority signed it is not known in here.
"""

import http.client
import json
import ssl
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable

READY_WITHIN_SECS = 60.0
DONE_WITHIN_SECS = 20.0
PAUSE_SECS = 0.5


def say(text: str) -> None:
    """One line for whoever reads the log of the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Service:
    """The service behind one URL. What was answered last is kept, for the line that says what went wrong."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._place = (parts.hostname or "", parts.port)
        self._secure = parts.scheme == "https"
        self.last = "nothing yet"

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and body of the answer; status 0 where there is none."""
        connection = self._connection()
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            status, text = 0, str(error) or type(error).__name__
        finally:
            connection.close()
        self.last = f"{method} {path}: {status or 'no answer'} {text[:300]}"
        return status, text

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(*self._place, timeout=10)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(*self._place, timeout=10, context=context)

    def until(self, what: str, sign: Callable[[], bool], within: float = DONE_WITHIN_SECS) -> None:
        """Ask until it is so; the end of the program, with the last answer, when that takes too long."""
        deadline = time.monotonic() + within
        while not sign():
            if time.monotonic() >= deadline:
                sys.exit(f"failed: {what}, not within {within:g} s; last: {self.last}")
            time.sleep(PAUSE_SECS)
        say(f"ok: {what}")


def main(url: str, mode: str, tokens: str) -> None:
    """The steps, in order."""
    service = Service(url)
    pool = {"cluster_id": "helm-test", "namespace": "helm-test", "dgd_name": uuid.uuid4().hex, "model": "helm-test"}
    path = f"/pools/{pool['cluster_id']}/{pool['namespace']}/{pool['dgd_name']}"

    def registered() -> bool:
        return service.ask("POST", "/pools", pool)[0] == 200

    def known() -> bool:
        if mode == "registrations":
            return service.ask("GET", path)[0] == 200
        return (
            pool["dgd_name"] in service.ask("GET", "/registrations")[1]
        )  # listed only with a relay in the cluster set

    service.until("the service is ready", lambda: service.ask("GET", "/readyz")[0] == 200, READY_WITHIN_SECS)
    if tokens == "tokens":
        service.until("who has no token is refused", lambda: service.ask("POST", "/pools", pool)[0] == 401)
        return
    try:
        # Registering again with each look keeps the lease alive, however short it is.
        service.until("a pool is registered and read back", lambda: registered() and known())
    finally:
        service.until("it is deregistered", lambda: service.ask("DELETE", path)[0] == 204)
    service.until("it is gone", lambda: not known() and not service.last.partition(": ")[2].startswith("no answer"))


if __name__ == "__main__":
    main(*sys.argv[1:])
