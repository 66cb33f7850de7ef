"""``discovery register``: stays registered through trouble, leaves in order, explains a refusal."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.commands.program import Program, ran, started
from tests.fake_service import Canned, FakeService, until
from tests.live.signs import free_port

POOL = ("--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "p1", "--model", "m")


async def lines_of(process: Program) -> list[str]:
    _, err = await asyncio.wait_for(process.communicate(), 8)
    return err.decode().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_pool_is_registered_until_a_signal_and_then_deregistered(number: signal.Signals) -> None:
    async with FakeService() as service, started("register", "--url", service.url, *POOL) as process:
        service.interval_secs = 0.1
        await until(lambda: len(service.requests("POST")) > 5)
        process.send_signal(number)
        lines = await lines_of(process)
        assert process.returncode == 0
        assert service.pools == {}
    assert [line.split("discovery.", 1)[-1] for line in lines if "registered" in line] == [
        "client.heartbeat: registered c1/n1/p1: lease 15 s, heartbeat every 0.1 s",
        "client.heartbeat: deregistered c1/n1/p1",
    ]
    assert len(lines) == 3


async def test_everything_of_a_file_is_registered(tmp_path: Path) -> None:
    body = {
        "cluster_id": "c1",
        "namespace": "n1",
        "dgd_name": "p1",
        "model": "m",
        "frontends": ["http://10.0.0.1:8000"],
        "capabilities": ["chat"],
        "capacity": [{"resource": "gpu", "quantity": 8}],
        "location": {"region": "r"},
        "instance_id": "i1",
        "metadata": {"a": "b"},
    }
    (tmp_path / "pool.json").write_text(json.dumps(body))
    path = str(tmp_path / "pool.json")
    async with FakeService() as service, started("register", "--url", service.url, "--file", path) as process:
        post = (await until(lambda: service.requests("POST")))[0]
        process.terminate()
        await lines_of(process)
    assert json.loads(post.body) == body
    assert service.requests("DELETE")[0].target.endswith("?instance_id=i1")


async def test_kept_on_exit_the_pool_stays_for_its_other_relays() -> None:
    async with FakeService() as service, started("register", "--url", service.url, "--keep-on-exit", *POOL) as process:
        await until(lambda: service.pools)
        process.terminate()
        await lines_of(process)
        assert process.returncode == 0
        assert ("c1", "n1", "p1") in service.pools


async def test_a_refusal_is_explained_fault_by_fault_and_exits_2() -> None:
    errors = [{"path": "$.model", "message": "is too long"}, {"path": "$.relays[1]", "message": "is no URL\x1b[2J"}]
    async with FakeService() as service:
        service.can("POST", Canned(422, {"title": "Invalid", "detail": "2 faults", "errors": errors}))
        code, out, err = await ran("register", "--url", service.url, "--log-level", "error", *POOL)
        assert (code, out) == (2, "")
        assert err.splitlines() == [
            f"discovery: the registration is refused: {service.url} answered 422: 2 faults",
            "  $.model: is too long",
            "  $.relays[1]: is no URL [2J",
        ]
        assert service.requests("DELETE") == []


async def test_a_refusal_as_the_first_answer_after_an_outage_exits_2() -> None:
    service = FakeService()
    async with started("register", "--url", service.url, *POOL) as process:
        assert b"cannot register c1/n1/p1" in await process.stderr.readline()
        service.can("POST", Canned(422, {"detail": "never"}))
        async with service:
            lines = await lines_of(process)
    assert process.returncode == 2
    assert lines[-1].endswith("answered 422: never")


async def test_an_outage_is_one_line_and_its_end_another() -> None:
    async with FakeService() as service:
        service.interval_secs = 0.2
        async with started("register", "--url", service.url, *POOL) as process:
            assert b" registered c1/n1/p1" in await process.stderr.readline()
            await service.stop()
            assert b"lost c1/n1/p1" in await process.stderr.readline()
            service.pools.clear()
            await service.start()
            assert b"regained c1/n1/p1" in await process.stderr.readline()
            await until(lambda: service.pools)
            process.terminate()
            lines = await lines_of(process)
    assert process.returncode == 0
    assert ["stopping" in lines[0], "deregistered" in lines[1]] == [True, True]


async def test_stopped_while_nobody_answers_it_ends_at_once_and_well() -> None:
    async with started("register", "--url", f"http://127.0.0.1:{free_port()}", *POOL) as process:
        assert b"cannot register" in await process.stderr.readline()
        process.terminate()
        await asyncio.wait_for(process.wait(), 3)
        assert process.returncode == 0


async def test_a_second_signal_does_not_cut_the_deregistration_short() -> None:
    async with FakeService() as service, started("register", "--url", service.url, *POOL) as process:
        await until(lambda: service.pools)
        gate = asyncio.Event()
        service.can("DELETE", Canned(503, gate=gate, headers=("Retry-After: 0",)))
        process.terminate()
        await until(lambda: service.requests("DELETE"))
        process.terminate()
        process.send_signal(signal.SIGINT)
        gate.set()
        await lines_of(process)
        assert process.returncode == 0
        assert service.pools == {}
