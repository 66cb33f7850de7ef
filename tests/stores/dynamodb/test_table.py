"""The table over HTTP: deadlines, what is sent again, times and credentials; against a server that answers as told."""

import asyncio
import datetime
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from typing import Any

import aiohttp.web
import pytest

from discovery.errors import Misconfigured, Unavailable
from discovery.metrics import Counters
from discovery.stores.dynamodb import items
from discovery.stores.dynamodb.access import Access
from discovery.stores.dynamodb.reading import read_all
from discovery.stores.dynamodb.signing import Credentials
from discovery.stores.dynamodb.table import ConditionFailed, Table
from tests.live.signs import free_port

Answer = Callable[[aiohttp.web.Request, dict[str, Any]], Awaitable[aiohttp.web.StreamResponse]]
EMPTY = {"Items": [], "Count": 0, "ConsumedCapacity": {"CapacityUnits": 0.5}}
ITEM = {"pk": {"S": "POOL"}, "sk": {"S": "a#b#c"}}


class Server:
    """Answers with what ``answers`` has next, then well. Its clock is ``ahead`` of ours."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.answers: list[Answer] = []
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        asked = json.loads(await request.read())
        self.seen.append(
            (request.headers["x-amz-target"].partition(".")[2], {k.lower(): v for k, v in request.headers.items()})
        )
        answer = self.answers.pop(0) if self.answers else good
        response = await answer(request, asked)
        return response

    def response(self, status: int, content: object, **headers: str) -> aiohttp.web.Response:
        dated = {"Date": formatdate(time.time() + self.ahead, usegmt=True), **headers}
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return aiohttp.web.Response(
            status=status, body=body, headers={k.replace("_", "-"): v for k, v in dated.items()}
        )


SERVER: aiohttp.web.AppKey["Server"] = aiohttp.web.AppKey("server", Server)


async def good(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    return request.app[SERVER].response(200, EMPTY if "KeyConditionExpression" in asked else {})


def gives(status: int, content: object, **headers: str) -> Answer:
    async def answer(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
        return request.app[SERVER].response(status, content, **headers)

    return answer


def refuses(code: str, message: str = "", status: int = 400) -> Answer:
    return gives(status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message})


async def hangs(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("nobody waits that long")


async def breaks(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return aiohttp.web.Response()


async def wants_true_time(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    server = request.app[SERVER]
    signed = datetime.datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    off = signed.replace(tzinfo=datetime.UTC).timestamp() - time.time() - server.ahead
    if abs(off) > 300:
        return server.response(
            400, {"__type": "com.amazon.coral.service#InvalidSignatureException", "message": f"off by {off:.0f} s"}
        )
    return await good(request, asked)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = aiohttp.web.Application()
    app[SERVER] = made
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    made.port = free_port()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", made.port).start()
    yield made
    await runner.cleanup()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
async def table(server: Server, counters: Counters) -> AsyncIterator[Table]:
    made = Table("pools", "eu-west-1", server.url, 0.6, counters)
    yield made
    await made.close()


async def put(table: Table) -> items.Written:
    async with table.deadline():
        return await table.put(lambda: ITEM)


# ---- deadlines, and what is sent again


async def test_a_table_that_does_not_answer_is_unavailable_in_time(table: Table, server: Server) -> None:
    server.answers = [hangs, hangs]
    for ask in (put(table), table.query(None)):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"table pools in eu-west-1 .* did not answer within 0\.6 s"):
            await ask
        assert 0.5 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("fault", [breaks, refuses("InternalServerError", status=500), gives(503, b"<html>")])
async def test_what_may_pass_is_tried_again_within_the_deadline(table: Table, server: Server, fault: Answer) -> None:
    server.answers = [fault, fault]
    await put(table)
    server.answers = [fault, fault]
    await table.query(None)
    assert [operation for operation, _ in server.seen] == ["PutItem"] * 3 + ["Query"] * 3


async def test_what_does_not_pass_is_told(table: Table, server: Server) -> None:
    server.answers = [refuses("InternalServerError", "oh", 500)] * 3
    with pytest.raises(Unavailable, match="InternalServerError"):
        await put(table)
    assert len(server.seen) == 3


async def test_a_throttled_write_is_tried_again_where_it_is_the_only_one_and_throttled_reads_are_not(
    table: Table, server: Server, counters: Counters
) -> None:
    server.answers = [refuses("ThrottlingException")]
    await put(table)
    server.answers = [refuses("ThrottlingException")] * 2
    for _ in range(2):
        with pytest.raises(Unavailable, match="throttles dynamodb:PutItem"):
            await put(table)
    assert len(server.seen) == 4
    server.answers = [refuses("ProvisionedThroughputExceededException")]
    with pytest.raises(Unavailable, match="throttles dynamodb:Query"):
        await table.query(None)
    assert (counters.dynamodb_throttled.of("put").value, counters.dynamodb_throttled.of("query").value) == (3, 1)


async def test_a_table_that_is_not_there_costs_no_second_attempt(table: Table, server: Server) -> None:
    server.answers = [refuses("ResourceNotFoundException", "Requested resource not found")]
    with pytest.raises(Unavailable, match="there is no table pools in eu-west-1"):
        await table.query(None)
    assert len(server.seen) == 1


async def test_nobody_at_the_address_is_told_in_plain_words() -> None:
    table = Table("pools", "eu-west-1", f"http://127.0.0.1:{free_port()}", 1.0, Counters())
    with pytest.raises(Unavailable, match=r"cannot be reached: Connection refused$"):
        await table.query(None)
    await table.close()


async def test_a_condition_that_does_not_hold_is_no_trouble(table: Table, server: Server) -> None:
    server.answers = [refuses("ConditionalCheckFailedException", "The conditional request failed")]
    with pytest.raises(ConditionFailed):
        await put(table)


async def test_what_an_attempt_whose_answer_was_lost_has_done_is_told(table: Table, server: Server) -> None:
    server.answers = [breaks, refuses("ConditionalCheckFailedException")]
    with pytest.raises(ConditionFailed) as failed:
        await put(table)
    assert failed.value.repeated
    server.answers = [refuses("ConditionalCheckFailedException")]
    with pytest.raises(ConditionFailed) as failed:
        await put(table)
    assert not failed.value.repeated


async def test_what_aws_says_is_logged_once_and_told_nobody_else(
    table: Table, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    denied = "User: arn:aws:sts::1:assumed-role/r/s is not authorized to perform: dynamodb:Query on resource: arn:x"
    server.answers = [refuses("AccessDeniedException", denied)] * 2
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"dynamodb:Query .* is missing") as error:
            await table.query(None)
        assert "arn:" not in error.value.detail
    assert [denied in record.getMessage() for record in caplog.records] == [True]


async def test_trouble_is_told_of_the_call_that_had_it(table: Table, server: Server) -> None:
    server.answers = [refuses("InternalServerError", status=500), hangs]
    with pytest.raises(Unavailable, match="before that: DynamoDB refused"):
        await table.query(None)
    server.answers = [hangs]
    with pytest.raises(Unavailable, match=r"within 0\.6 s$"):
        await table.query(None)


# ---- answers


@pytest.mark.parametrize(
    "answer",
    [
        gives(200, json.dumps(EMPTY).encode()[:-5]),
        gives(200, {"message": "x"}),
        gives(200, b""),
        gives(200, EMPTY, x_amz_crc32="1"),
    ],
)
async def test_no_answer_that_is_broken_is_an_empty_page(table: Table, server: Server, answer: Answer) -> None:
    server.answers = [answer] * 3
    with pytest.raises(Unavailable):
        await table.query(None)


async def compresses(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    """As AWS does it: where it may, and the checksum is that of the compressed bytes."""
    body, more = json.dumps(EMPTY).encode(), {}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, more = gzip.compress(body), {"content-encoding": "gzip"}
    return request.app[SERVER].response(200, body, x_amz_crc32=str(zlib.crc32(body)), **more)


async def compresses_anyway(request: aiohttp.web.Request, asked: dict[str, Any]) -> aiohttp.web.StreamResponse:
    """As something in between may do it."""
    body = json.dumps(EMPTY).encode()
    more = {"content_encoding": "gzip", "x_amz_crc32": str(zlib.crc32(body) + 1)}
    return request.app[SERVER].response(200, gzip.compress(body), **more)


@pytest.mark.parametrize("answer", [compresses, compresses_anyway])
async def test_answers_come_uncompressed_or_are_taken_without_their_checksum(
    table: Table, server: Server, answer: Answer
) -> None:
    server.answers = [answer]
    page, _ = await table.query(None)
    assert page.read_units == 0.5
    assert len(server.seen) == 1
    assert server.seen[0][1]["accept-encoding"] == "identity"


async def test_a_read_that_does_not_go_on_ends(table: Table, server: Server) -> None:
    stuck = gives(200, {**EMPTY, "LastEvaluatedKey": ITEM})
    server.answers = [stuck] * 3
    with pytest.raises(Unavailable, match="does not go on"):
        await read_all(table, 1)
    assert len(server.seen) == 2
    server.answers = [gives(200, {**EMPTY, "LastEvaluatedKey": {}})]
    assert (await read_all(table, 2)).pages == 1


async def test_an_answer_without_a_date_is_of_no_use(table: Table, server: Server) -> None:
    server.answers = [gives(200, EMPTY, Date="")]
    with pytest.raises(Unavailable, match="no Date"):
        await table.query(None)


async def test_reads_and_writes_are_counted_in_units(table: Table, server: Server, counters: Counters) -> None:
    await table.query(None)
    server.answers = [gives(200, {"ConsumedCapacity": {"TableName": "pools", "CapacityUnits": 2.0}})]
    await put(table)
    assert [dict(tally.values()) for tally in (counters.dynamodb_read_units, counters.dynamodb_write_units)] == [
        {(): 0.5},
        {(): 2.0},
    ]


# ---- time


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_a_wall_clock_that_is_an_hour_off_costs_one_refusal(table: Table, server: Server, ahead: float) -> None:
    server.ahead = ahead
    server.answers = [wants_true_time] * 4
    await table.query(None)
    await put(table)
    assert [operation for operation, _ in server.seen] == ["Query", "Query", "PutItem"]
    assert abs(table.clock.at(time.monotonic()) - (time.time() + ahead)) < 1.1


async def test_an_item_is_made_anew_where_the_time_turns_out_to_be_another(table: Table, server: Server) -> None:
    await table.query(None)
    server.ahead = 3600.0
    server.answers = [wants_true_time] * 2
    made: list[float] = []

    def item() -> dict[str, Any]:
        made.append(table.clock.at(time.monotonic()) - time.time())
        return ITEM

    async with table.deadline():
        await table.put(item)
    assert made == [pytest.approx(0.0, abs=1.1), pytest.approx(3600.0, abs=1.1)]


@pytest.mark.parametrize(
    "answer", [gives(502, b"<html>Bad gateway"), gives(503, b"{}"), gives(407, b"no"), gives(200, b"<html>Log in")]
)
async def test_the_clock_of_what_stands_in_between_is_not_the_tables(
    table: Table, server: Server, answer: Answer
) -> None:
    await table.query(None)
    server.ahead, server.answers = -3600.0, [answer] * 3
    with pytest.raises(Unavailable):
        await table.query(None)
    assert abs(table.clock.at(time.monotonic()) - time.time()) < 1.1


async def test_a_table_whose_clock_is_set_is_asked_again_by_its_new_time(table: Table, server: Server) -> None:
    await table.query(None)
    server.ahead = 3600.0
    server.answers = [wants_true_time] * 2
    await table.query(None)
    assert len(server.seen) == 3


async def test_a_signature_that_is_wrong_for_another_reason_is_tried_with_new_credentials_once(
    table: Table, server: Server
) -> None:
    await table.query(None)
    server.answers = [refuses("InvalidSignatureException", "does not match")] * 4
    for seen in (3, 4):
        with pytest.raises(Unavailable, match="does not accept the credentials"):
            await table.query(None)
        assert len(server.seen) == seen


# ---- credentials


async def test_refused_credentials_are_looked_for_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file, now = tmp_path / "credentials", 100.0
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id = key-0\naws_secret_access_key = s\n")
    table = Table("pools", "eu-west-1", server.url, 2.0, Counters(), lambda: now)
    try:
        await table.query(None)
        file.write_text("[default]\naws_access_key_id = key-1\naws_secret_access_key = s\n")
        now += 5.0
        expired = refuses("ExpiredTokenException", "The security token included in the request is expired")
        server.answers = [expired]
        await table.query(None)
        server.answers = [expired] * 2
        with pytest.raises(Unavailable, match="have expired"):
            await table.query(None)
    finally:
        await table.close()
    used = [headers["authorization"].split("/")[0][-5:] for _, headers in server.seen]
    assert used == ["key-0", "key-0", "key-1", "key-1"], "refused again within a second: that is no news"


async def test_credentials_that_end_are_renewed_by_the_clock_of_the_table(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """An hour ahead, this wall clock would take all of them for ended, and none would ever be used."""
    server.ahead = -3600.0
    given: list[str] = []

    async def container(request: aiohttp.web.Request) -> aiohttp.web.Response:
        ends = datetime.datetime.fromtimestamp(time.time() - 3600 + 1800, datetime.UTC)
        given.append(f"key-{len(given)}")
        who = {
            "AccessKeyId": given[-1],
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        }
        return aiohttp.web.json_response(who)

    app = aiohttp.web.Application()
    app.router.add_get("/who", container)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", port).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/who")
    table = Table("pools", "eu-west-1", server.url, 2.0, Counters())
    server.answers = [wants_true_time] * 4
    try:
        for _ in range(3):
            await table.query(None)
    finally:
        await table.close()
        await runner.cleanup()
    assert given == ["key-0"]
    assert "Credential=key-0/" in server.seen[-1][1]["authorization"]
    assert server.seen[-1][1]["x-amz-security-token"] == "t"


STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


async def test_a_role_is_asked_anew_before_its_credentials_end_by_the_clock_of_the_table(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """An hour behind, this wall clock would give the credentials of before for an hour after their end."""
    server.ahead = 3600.0
    given: list[str] = []

    async def sts(request: aiohttp.web.Request) -> aiohttp.web.Response:
        assert (await request.post())["Action"] == "AssumeRoleWithWebIdentity"
        given.append(f"key-{len(given)}")
        ends = datetime.datetime.fromtimestamp(time.time() + 3600 + 300, datetime.UTC)
        return aiohttp.web.Response(text=STS.format(key=given[-1], ends=ends), content_type="text/xml")

    app = aiohttp.web.Application()
    app.router.add_post("/", sts)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", port).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("who-asks")
    for name, text in {
        "AWS_SHARED_CREDENTIALS_FILE": tmp_path / "none",
        "AWS_CONFIG_FILE": tmp_path / "none",
        "AWS_WEB_IDENTITY_TOKEN_FILE": tmp_path / "token",
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{port}",
    }.items():
        monkeypatch.setenv(name, str(text))
    later = 0.0
    table = Table("pools", "eu-west-1", server.url, 5.0, Counters(), lambda: time.monotonic() + later)
    try:
        await table.query(None)
        later = 5.0  # five minutes are left of them, which is little
        await table.query(None)
        async with asyncio.timeout(5):
            while len(given) < 2 or "key-1" not in server.seen[-1][1]["authorization"]:
                await table.query(None)
    finally:
        await table.close()
        await runner.cleanup()
    assert "Credential=key-0/" in server.seen[0][1]["authorization"]


def test_without_a_region_or_with_a_profile_that_is_not_there_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(Misconfigured, match="--dynamodb-region"):
        Table("pools", None, None, 1.0, Counters())
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Misconfigured, match="nobody"):
        Table("pools", None, None, 1.0, Counters())


@pytest.mark.parametrize(
    ("region", "environment", "url", "proxy"),
    [
        ("eu-west-1", {}, "https://dynamodb.eu-west-1.amazonaws.com", None),
        ("cn-north-1", {}, "https://dynamodb.cn-north-1.amazonaws.com.cn", None),
        ("us-east-1", {"AWS_USE_FIPS_ENDPOINT": "true"}, "https://dynamodb-fips.us-east-1.amazonaws.com", None),
        ("eu-west-1", {"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "https://dynamodb.eu-west-1.api.aws", None),
        ("eu-west-1", {"AWS_ENDPOINT_URL_DYNAMODB": "http://here:1"}, "http://here:1", None),
        ("eu-west-1", {"AWS_ENDPOINT_URL": "http://there:1"}, "http://there:1", None),
        ("eu-west-1", {"HTTPS_PROXY": "p:3128"}, "https://dynamodb.eu-west-1.amazonaws.com", "http://p:3128"),
        ("eu-west-1", {"HTTPS_PROXY": "http://p:3128"}, "https://dynamodb.eu-west-1.amazonaws.com", "http://p:3128"),
        (
            "eu-west-1",
            {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": ".amazonaws.com"},
            "https://dynamodb.eu-west-1.amazonaws.com",
            None,
        ),
    ],
)
async def test_the_address_is_found_as_all_programs_on_aws_find_it(
    monkeypatch: pytest.MonkeyPatch, region: str, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    found = await Access(region, None, lambda: None).endpoint()
    assert (found.url, found.proxy) == (url, proxy)


async def test_whoever_used_credentials_that_were_replaced_meanwhile_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = Access("eu-west-1", None, lambda: None)
    old = await access.credentials()
    assert access.doubt(old)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "newer")
    assert (await access.credentials()).key_id == "newer"
    assert access.doubt(old), "all who used the old ones, not only the first"
    assert not access.doubt(await access.credentials()), "these were found a moment ago"
    await access.close()


def test_roles_are_asked_for_in_the_region_of_the_table() -> None:
    access = Access("eu-west-1", None, lambda: None)
    assert access._session.get_config_variable("region") == "eu-west-1"
    assert access.doubt(Credentials("id", "secret", None))
    assert access._session.get_config_variable("region") == "eu-west-1"


async def test_the_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def proxy(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        asked.append(f"{request.method} {request.url}")
        return aiohttp.web.json_response(EMPTY, headers={"Date": formatdate(usegmt=True)})

    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(proxy))
    await runner.setup()
    port = free_port()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", port).start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    table = Table("pools", "eu-west-1", "http://table.example:8000", 1.0, Counters())
    try:
        await table.query(None)
    finally:
        await table.close()
        await runner.cleanup()
    assert [line.rstrip("/") for line in asked] == ["POST http://table.example:8000"]


async def test_certificates_that_cannot_be_read_are_told_with_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent.pem")
    table = Table("pools", "eu-west-1", "https://127.0.0.1:1", 1.0, Counters())
    with pytest.raises(Unavailable, match=r"certificates .* in /nonexistent\.pem cannot be read: No such file"):
        await table.query(None)
    await table.close()


async def test_no_password_of_an_address_is_shown() -> None:
    table = Table("pools", "eu-west-1", "http://user:hunter2@127.0.0.1:1", 0.5, Counters())
    with pytest.raises(Unavailable) as error:
        await table.query(None)
    assert "hunter2" not in f"{table} {error.value.detail} {table.endpoint}"
    await table.close()
