"""``discovery pools``: tables that fit, output for programs, a screen that follows the stream, honest exit codes."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from discovery.client import Snapshot
from discovery.client.snapshot import read_pools
from discovery.commands import pools as command
from discovery.yaml_text import yaml_lines
from tests.commands.program import on_terminal, ran, started
from tests.fake_service import Canned, FakeService, listing, until
from tests.live.signs import free_port

LLAMA = listing(
    "llama-70b",
    model="meta-llama/Llama-3.1-70B-Instruct",
    relays=["http://10.0.3.7:5561"],
    frontends=["http://10.0.3.8:8000", "http://10.0.3.9:8000"],
    capabilities=["chat", "tools"],
    capacity=[{"resource": "nvidia.com/gpu", "quantity": 16}, {"resource": "memory", "quantity": 1.5, "unit": "TiB"}],
    location={"region": "us-east-1", "zone": "use1-az2"},
    instance_id="relay-7d9f",
    metadata={"team": "search", "no": "1e3"},
)


def snapshot_of(*pools: dict[str, Any], complete: bool = True) -> Snapshot:
    return read_pools(json.dumps({"complete": complete, "pools": pools}), None)


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    async with FakeService() as fake:
        fake.set(LLAMA, listing("small"))
        yield fake


# ---- once


async def test_a_pipe_gets_a_table_with_whole_cells(service: FakeService) -> None:
    code, out, err = await ran("pools", "--url", service.url)
    assert (code, err) == (0, "")
    header, first, second = out.splitlines()
    assert header.split() == ["CLUSTER", "NAMESPACE", "POOL", "MODEL", "FRONTENDS", "CAPACITY", "REGION"]
    assert re.split("  +", first) == [
        "c1",
        "n1",
        "llama-70b",
        "meta-llama/Llama-3.1-70B-Instruct",
        "2",
        "16 nvidia.com/gpu, 1.5 TiB memory",
        "us-east-1",
    ]
    assert re.split("  +", second) == ["c1", "n1", "small", "m", "0", "-", "-"]
    assert header.index("MODEL") == first.index("meta-llama") == second.index("m  ")
    assert "\x1b" not in out


async def test_wide_adds_relays_capabilities_instance_and_metadata(service: FakeService) -> None:
    _, out, _ = await ran("pools", "--url", service.url, "-o", "wide")
    header, first, _ = out.splitlines()
    assert header.split()[-4:] == ["RELAYS", "CAPABILITIES", "INSTANCE", "METADATA"]
    assert first.split()[-4:] == ["http://10.0.3.7:5561", "chat,tools", "relay-7d9f", "no=1e3,team=search"]


async def test_names_are_one_key_a_line(service: FakeService) -> None:
    assert await ran("pools", "--url", service.url, "-o", "name") == (0, "c1/n1/llama-70b\nc1/n1/small\n", "")


async def test_json_is_what_the_service_serves(service: FakeService) -> None:
    code, out, err = await ran("pools", "--url", service.url, "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(service.body())
    assert "instance_id" not in json.loads(out)["pools"][1]
    assert out.startswith('{\n  "complete": true,\n  "pools": [')


async def test_yaml_says_the_same(service: FakeService) -> None:
    _, out, _ = await ran("pools", "--url", service.url, "-o", "yaml")
    assert yaml.safe_load(out) == json.loads(service.body())


async def test_filters_are_passed_on(service: FakeService) -> None:
    flags = [
        "--model",
        "a",
        "--model",
        "b",
        "--capability",
        "chat",
        "--region",
        "r",
        "--namespace",
        "n",
        "--cluster-id",
        "c",
    ]
    await ran("pools", "--url", service.url, *flags)
    assert service.seen[0].target == "/pools?model=a&model=b&cluster_id=c&namespace=n&capability=chat&region=r"


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "name"])
async def test_an_incomplete_list_is_said_to_be_so_apart_from_the_output(service: FakeService, output: str) -> None:
    service.complete = False
    code, out, err = await ran("pools", "--url", service.url, "-o", output)
    assert (code, err) == (0, "discovery: the list is not complete: pools may be missing\n")
    assert "llama-70b" in out


async def test_no_pools_is_said_and_prints_nothing(service: FakeService) -> None:
    service.pools.clear()
    assert await ran("pools", "--url", service.url) == (0, "", "discovery: no pools\n")
    assert await ran("pools", "--url", service.url, "--model", "x") == (0, "", "discovery: no pools match\n")
    code, out, _ = await ran("pools", "--url", service.url, "-o", "yaml")
    assert (code, yaml.safe_load(out)) == (0, {"complete": True, "pools": []})


@pytest.mark.parametrize("watch", [(), ("--watch",)])
async def test_nobody_to_ask_is_one_line_and_exit_2(watch: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = await ran("pools", "--url", url, *watch)
    assert (code, out, err) == (2, "", f"discovery: cannot connect to {url}: Connection refused\n")


@pytest.mark.parametrize("watch", [(), ("--watch",)])
@pytest.mark.parametrize(("status", "expected"), [(503, 1), (400, 2), (401, 2)])
async def test_an_answer_that_is_no_list_is_one_line(
    service: FakeService, watch: tuple[str, ...], status: int, expected: int
) -> None:
    for kind in ("GET", "STREAM"):
        service.can(kind, Canned(status, {"detail": "not like this"}))
    code, out, err = await ran("pools", "--url", service.url, *watch)
    assert (code, out) == (expected, "")
    assert err == f"discovery: {service.url} answered {status}: not like this\n"


async def test_on_a_terminal_the_table_fits_its_width(service: FakeService) -> None:
    async with on_terminal("pools", "--url", service.url, columns=60) as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), 8) == 0
        await until(lambda: "small" in terminal.drawn)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.drawn).splitlines()
    assert len(lines) == 3
    assert all(cell_len(line.rstrip()) <= 60 for line in lines)
    assert "…" in lines[1]
    assert "\x1b[1m" in terminal.drawn


async def test_no_color_is_respected_on_a_terminal(service: FakeService) -> None:
    async with on_terminal("pools", "--url", service.url, columns=200, NO_COLOR="1") as terminal:
        assert await asyncio.wait_for(terminal.process.wait(), 8) == 0
        await until(lambda: "small" in terminal.drawn)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.drawn)
    assert "meta-llama/Llama-3.1-70B-Instruct" in terminal.drawn


# ---- for as long as somebody watches


async def test_watching_on_a_pipe_prints_a_block_per_change_and_ends_well(service: FakeService) -> None:
    async with started("pools", "--url", service.url, "--watch", "-o", "name") as process:
        assert await process.stdout.readline() == b"c1/n1/llama-70b\n"
        assert await process.stdout.readline() == b"c1/n1/small\n"
        await until(lambda: service.streams)
        await service.drop("small")
        assert await process.stdout.readline() == b"\n"
        assert await process.stdout.readline() == b"c1/n1/llama-70b\n"
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 5)
        assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_watching_as_json_is_one_compact_line_per_change(service: FakeService, number: signal.Signals) -> None:
    async with started("pools", "--url", service.url, "--watch", "-o", "json") as process:
        assert json.loads(await process.stdout.readline()) == json.loads(service.body())
        await until(lambda: service.streams)
        await service.put(listing("third"))
        line = await process.stdout.readline()
        assert b" " not in line
        assert json.loads(line) == json.loads(service.body())
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 5) == 0


async def test_watching_into_a_pipe_that_closes_ends_quietly(service: FakeService) -> None:
    async with started("pools", "--url", service.url, "--watch", "-o", "json") as process:
        await process.stdout.readline()
        await until(lambda: service.streams)
        process.stop_reading()
        ended = asyncio.create_task(process.wait())
        for number in range(200):  # what was written before the pipe was really closed does not count
            await service.put(listing(f"late-{number}"))
            if (await asyncio.wait([ended], timeout=0.04))[0]:
                break
        assert await asyncio.wait_for(ended, 1) == 0
        assert await process.stderr.read() == b""


async def test_the_screen_follows_the_stream_and_tells_of_trouble_until_ctrl_c(service: FakeService) -> None:
    async with on_terminal("pools", "--url", service.url, "--watch", columns=120) as terminal:
        await until(lambda: "2 pools" in terminal.drawn and "llama-70b" in terminal.drawn)
        await until(lambda: service.streams)
        await service.put(listing("newcomer"))
        await until(lambda: "3 pools" in terminal.drawn and "newcomer" in terminal.drawn)
        terminal.drawn = ""
        await service.drop("llama-70b")
        await until(lambda: "2 pools" in terminal.drawn)
        assert "llama-70b" not in terminal.drawn
        service.complete = False
        await service.tell(service.snapshot_frame())
        await until(lambda: "not complete" in terminal.drawn)
        await service.stop()
        await until(lambda: "cannot connect" in terminal.drawn or "broke the connection" in terminal.drawn)
        terminal.type(b"\x03")
        assert await asyncio.wait_for(terminal.process.wait(), 5) == 0
        await until(lambda: "\x1b[?25h" in terminal.drawn and "\x1b[?1049l" in terminal.drawn)


async def test_the_screen_says_how_many_pools_it_cannot_hold(service: FakeService) -> None:
    service.set(*(listing(f"p{number:03}") for number in range(50)))
    async with on_terminal("pools", "--url", service.url, "--watch", rows=10) as terminal:
        await until(lambda: "52 pools" in terminal.drawn and "… and 45 more" in terminal.drawn)


# ---- text


def test_characters_that_steer_a_terminal_are_shown_and_not_sent() -> None:
    text = command._plain(snapshot_of(listing("p", model="a\x1b[2Jb\nc\u202e[bold]d")), wide=False)
    assert "\\x1b[2Jb\\nc\\u202e[bold]d" in text
    assert len(text.splitlines()) == 2


def test_wide_characters_keep_the_columns_straight() -> None:
    text = command._plain(snapshot_of(listing("模型", model="x"), listing("ab", model="y")), wide=False)
    second, first = text.splitlines()[1:]
    assert cell_len(first[: first.index("  x ")]) == cell_len(second[: second.index("  y ")])


texts = st.text(max_size=20)
values = st.recursive(
    st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=20,
)


@given(st.dictionaries(texts, values, max_size=5))
def test_whatever_is_written_as_yaml_reads_back_the_same(value: dict[str, Any]) -> None:
    text = "".join(f"{line}\n" for line in yaml_lines(value)) or "{}"
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(
    "key", ["no", "1e3", "a: b", "- a", "\u2028", "\ufeff", "😀", "x" * 5000, "\x85\x7f\x00\t\"'\\", "~", "", "# a"]
)
def test_a_key_of_metadata_stays_what_it_is_in_yaml(key: str) -> None:
    snapshot = snapshot_of(listing("p", metadata={key: key}))
    assert yaml.safe_load(command._yaml(snapshot))["pools"][0]["metadata"] == {key: key}


def test_an_amount_keeps_its_digits() -> None:
    capacity = [{"resource": "a", "quantity": 123456789, "unit": "1/s"}, {"resource": "b", "quantity": 16.0}]
    pool = snapshot_of(listing("p", capacity=[*capacity, {"resource": "c", "quantity": 0.25}])).pools[0]
    assert [command._amount(amount) for amount in pool.capacity] == ["123456789 1/s a", "16 b", "0.25 c"]
