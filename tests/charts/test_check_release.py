"""The program of ``helm test``: what it asks for, and that it fails, with the reason, where a service does wrong."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest

from tests.charts.engine import CHART
from tests.charts.rendered import Chart


@pytest.fixture
def program() -> Any:
    """The program as a module, with less patience."""
    spec = spec_from_file_location("check_release", CHART / "files" / "check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.READY_WITHIN_SECS = module.PAUSE_SECS = 0.05
    module.Service.until.__defaults__ = (0.2,)
    return module


class FakeService:
    """A service with faults: ``faults`` are names of what it does wrong. ``asked`` has every request."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        self.asked: list[tuple[str, str]] = []
        self.pools: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str]:
        self.asked.append((method, path))
        if path == "/readyz":
            return (503 if "not ready" in self.faults else 200), '{"stage":"store"}'
        if method == "POST":
            return self._register(json.loads(body)["dgd_name"])
        if path == "/registrations":
            return 200, json.dumps(sorted(self.pools))
        name = path.rsplit("/", 1)[1]
        if method == "DELETE":
            self.pools -= set() if "keeps pools" in self.faults else {name}
            return 204, ""
        listed = name in self.pools and "lists nothing" not in self.faults
        return (200 if listed else 404), ""

    def _register(self, name: str) -> tuple[int, str]:
        if "wants a token" in self.faults:
            return 401, ""
        if "stores nothing" in self.faults:
            return 503, '{"detail":"the store is away"}'
        self.pools.add(name)
        return 200, "{}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, text = service.answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = _do

            def log_message(self, *_: object) -> None:
                """Nothing: what was asked is kept."""

        return Handler


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[FakeService]:
    found = FakeService(*request.param)
    yield found
    found.close()


def with_faults(*faults: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("service", faults, indirect=True, ids=str)


@with_faults((), ("lists nothing",))
def test_a_pool_is_registered_read_back_and_deregistered(
    program: Any, service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the modes with clusters no relay of it is Ready, so it is never listed: its registration is read back."""
    program.main(service.url, "mcs" if service.faults else "registrations", "open")
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["ok"] * 4
    methods = [method for method, _ in service.asked]
    assert methods == ["GET", "POST", "GET", "DELETE", "GET"]
    assert service.pools == set()


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (("not ready",), r"the service is ready, not within .*/readyz: 503 .*store"),
        (("stores nothing",), "registered and read back, not within .*503 .*the store is away"),
        (("lists nothing",), "registered and read back, not within .*404"),
        (("keeps pools",), "it is gone, not within .*200"),
        (("wants a token",), "registered and read back, not within .*401"),
    ],
    indirect=["service"],
    ids=str,
)
def test_it_fails_with_the_last_answer(program: Any, service: FakeService, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        program.main(service.url, "registrations", "open")
    if "not ready" not in service.faults:
        assert "DELETE" in [method for method, _ in service.asked], "what it registered, it takes off again"


def test_nobody_there_is_a_failure(program: Any) -> None:
    with pytest.raises(SystemExit, match=r"the service is ready, not within .*no answer"):
        program.main("http://127.0.0.1:1", "registrations", "open")


@with_faults(("wants a token",), ())
def test_with_tokens_on_it_checks_that_nobody_comes_in_without(program: Any, service: FakeService) -> None:
    if service.faults:
        program.main(service.url, "registrations", "tokens")
    else:
        with pytest.raises(SystemExit, match="who has no token is refused, not within"):
            program.main(service.url, "registrations", "tokens")


def test_it_is_left_out_where_it_could_not_connect(chart: Chart) -> None:
    tls = {"enabled": True, "existingSecret": "tls"}
    assert len(chart.render({"tls": tls}).hooks) == 1
    assert chart.render({"tls": tls | {"clientCaSecret": "ca"}}).hooks == ()


def test_its_words_say_where_and_how(chart: Chart) -> None:
    values = {"tls": {"enabled": True, "existingSecret": "tls"}, "auth": {"tokensSecret": "tokens"}}
    (pod,) = chart.render(values | {"poolDiscovery": "mcs"}).hooks
    words = pod["spec"]["containers"][0]["command"]
    assert words[:2] == ["python", "-c"]
    assert words[2].strip() == (CHART / "files" / "check_release.py").read_text().strip()
    assert words[3:] == ["https://discovery.prod.svc:8080", "mcs", "tokens"]
