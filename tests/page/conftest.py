"""One browser for all tests of the page, and a page in it that keeps account of everything it does."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.live.conftest import make_replica as make_replica
from tests.live.redis_server import RedisServer
from tests.live.replica import PROJECT, Replica
from tests.live.signs import await_sign

expect.set_options(timeout=15_000)

PICTURES = PROJECT / "build" / "page"
"""Screenshots, to be looked at after a change of the page; git ignores this folder."""


PATIENT = ("--store-timeout-ms", "10000")
"""For replicas that have to be complete from the start, also where the machine is so busy that Redis is slow."""


class Visit:
    """A page that was opened, with all that it asked for and all that went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Request] = []
        self.faults: list[str] = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("console", self._console)

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: ConsoleMessage) -> None:
        # The browser writes down each answer that is an error, and each connection that fails: the tests bring these
        # about. What a policy forbids it writes down too, in other words.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"console: {message.text}")

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert self.faults == []
        own = urlsplit(self.url)
        strange = [
            one.url
            for one in self.requests
            if urlsplit(one.url)[:2] != own[:2] or not urlsplit(one.url).path.startswith(own.path.rstrip("/"))
        ]
        assert [url for url in strange if not url.startswith("data:,")] == []

    # ---- what people look at

    def row(self, name: str) -> Any:
        """The row of a listed pool."""
        return self.page.locator("#rows tr", has=self.page.get_by_role("button", name=name, exact=True))

    @property
    def names(self) -> list[str]:
        """The listed pools that are drawn, from top to bottom."""
        return self.page.locator("#rows tr button").all_inner_texts()

    def picture(self, name: str) -> Path:
        """Keep a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.page.screenshot(path=path)
        return path


MakeVisit = Callable[..., Visit]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. It ends with these tests: while it is there, its thread cannot run another event loop."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: scripts/setup --tests installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[MakeVisit]:
    """Open the page in a window of its own; at the end nothing may have gone wrong in any of them."""
    visits: list[Visit] = []
    with contextlib.ExitStack() as stack:

        def make(
            url: str, *, path: str = "/", prepare: Callable[[Page], object] = lambda page: None, **look: Any
        ) -> Visit:
            context = browser.new_context(**{"viewport": {"width": 1300, "height": 850}, "locale": "en-GB"} | look)
            stack.callback(context.close)
            page = context.new_page()
            prepare(page)
            visits.append(Visit(page, url + path.partition("?")[0]))
            page.goto(url + path)
            return visits[-1]

        yield make
        for one in visits:
            one.check()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """Shared by tests that use pools of their own: leases last for the whole suite, complete from the start."""
    directory = tmp_path_factory.mktemp("page")
    with contextlib.ExitStack() as stack:
        server = RedisServer("redis", directory / "redis")
        stack.callback(server.close)
        server.start().cli("SET", "{discovery}:epoch", "in-use-before")
        replica = Replica(directory, redis_url=server.url, lease=120, heartbeat=30, flags=PATIENT)
        stack.callback(replica.close)
        replica.start()
        await_sign(lambda: replica.pools().complete, 10, "complete")
        yield replica
