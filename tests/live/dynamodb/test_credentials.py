"""Credentials as they are found in a pod or on an instance: all requests are signed with them, also after a renewal."""

import datetime
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.live.dynamodb.conftest import MakeProxy, MakeReplica
from tests.live.dynamodb_proxy import DynamoDBProxy, wants_signatures
from tests.live.dynamodb_server import CREDENTIALS, REGION
from tests.live.replica import pool
from tests.live.signs import await_sign, free_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

ROLE = "arn:aws:iam::123456789012:role/discovery"


class Giver(ThreadingHTTPServer):
    """Gives credentials that are about to end, as an instance, the agent beside a pod, and STS do."""

    daemon_threads = True
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        def do_PUT(self) -> None:
            """A token for asking the instance."""
            self._say("session-of-the-instance")

        def do_POST(self) -> None:
            """What STS gives for a token of a pod's account."""
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            given = "Action=AssumeRoleWithWebIdentity" in asked and "WebIdentityToken=token-of-the-pod" in asked
            keys = "".join(f"<{name}>{value}</{name}>" for name, value in _keys("identity").items())
            named = keys.replace("<Token>", "<SessionToken>").replace("</Token>", "</SessionToken>")
            inner = f"<AssumeRoleWithWebIdentityResult><Credentials>{named}</Credentials>"
            inner += f"<AssumedRoleUser><Arn>{ROLE}</Arn><AssumedRoleId>r</AssumedRoleId></AssumedRoleUser>"
            inner += "</AssumeRoleWithWebIdentityResult>"
            space = "https://sts.amazonaws.com/doc/2011-06-15/"
            whole = f'<AssumeRoleWithWebIdentityResponse xmlns="{space}">{inner}</AssumeRoleWithWebIdentityResponse>'
            self._say(whole if given else "<Error/>", 200 if given else 403)

        def do_GET(self) -> None:
            """The instance's role and its keys, or the pod's keys."""
            if self.path == "/pod":
                allowed = self.headers.get("Authorization") == "token-of-the-pod"
                self._say(json.dumps(_keys("pod")), 200 if allowed else 403)
            elif self.path.endswith("/security-credentials/"):
                self._say("the-role")
            elif self.path.endswith("/the-role"):
                self._say(json.dumps({"Code": "Success", **_keys("instance")}))
            else:
                self._say("", 404)

        def _say(self, text: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""


def _keys(of: str) -> dict[str, str]:
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)
    number = next(Giver.numbers)
    keys = {"AccessKeyId": f"KEY-OF-{of.upper()}", "SecretAccessKey": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
    return {**keys, "Token": f"{of}-{number}", "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}


@pytest.fixture
def giver() -> Iterator[str]:
    """Where credentials are given."""
    with Giver(("127.0.0.1", free_port()), Giver.Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _ways(directory: Path, giver: str) -> dict[str, dict[str, str]]:
    """Variables by the way in which credentials are found."""
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    files = {"config": "[profile east]\n", "credentials": "[east]\naws_access_key_id = KEY-OF-PROFILE\n"}
    files["credentials"] += f"aws_secret_access_key = {secret}\naws_session_token = profile-1\n"
    files["token"] = "token-of-the-pod"
    for name, text in files.items():
        (directory / name).write_text(text)
    token = str(directory / "token")
    return {
        "environment": {
            "AWS_ACCESS_KEY_ID": "KEY-OF-ENVIRONMENT",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_SESSION_TOKEN": "environment-1",
        },
        "profile": {
            "AWS_PROFILE": "east",
            "AWS_CONFIG_FILE": str(directory / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"),
        },
        "identity": {
            "AWS_ROLE_ARN": ROLE,
            "AWS_WEB_IDENTITY_TOKEN_FILE": token,
            "AWS_ENDPOINT_URL_STS": giver,
        },
        "pod": {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{giver}/pod",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token,
        },
        "instance": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": giver, "AWS_EC2_METADATA_DISABLED": "false"},
    }


_CLOCKS = {"identity": "-1h", "pod": "+1h"}
"""Whose wall clock is off: whether credentials have ended is for the true clock to say."""


def test_credentials_are_found_where_aws_puts_them_and_renewed_before_they_end(
    make_replica: MakeReplica, make_proxy: MakeProxy, giver: str, tmp_path: Path
) -> None:
    ways = _ways(tmp_path, giver)
    proxies = {way: make_proxy() for way in ways}
    replicas = {}
    for way, variables in ways.items():
        key = {**CREDENTIALS, "AWS_ACCESS_KEY_ID": f"KEY-OF-{way.upper()}"}
        proxies[way].let(wants_signatures(key, REGION))
        settings = {"through": proxies[way], "clock": _CLOCKS.get(way), "lease": 20, "heartbeat": 5}
        replicas[way] = make_replica(way, credentials=variables, **settings).launch()
    without = make_replica("without", credentials={}, lease=3).start(sign="/healthz")
    for way, replica in replicas.items():
        await_sign(lambda r=replica: r.says("/readyz", 200), 20, f"ready with credentials of the {way}")
        assert replica.post(pool(f"c1/n1/{way}")).status == 200
        asked = proxies[way].asked
        assert {each.operation for each in asked} == {"Query", "PutItem"}
        assert all(f"Credential=KEY-OF-{way.upper()}/" in each.headers["authorization"] for each in asked)
        assert all(each.headers["x-amz-security-token"].startswith(f"{way}-") for each in asked)
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in replica.log
    # Those of an instance the library itself takes for longer-lived than they say, by a random time.
    for way in ("identity", "pod"):
        await_sign(lambda way=way: len(_tokens(proxies[way])) > 1, 15, f"newer credentials of the {way}")

    await_sign(lambda: b"credentials" in without.get("/readyz").body.lower(), 10, "/readyz says what is missing")
    assert without.get("/readyz").status == 503
    refused = without.post(pool())
    assert (refused.status, "retry-after" in refused.headers) == (503, True)
    assert b"credentials" in refused.body.lower()
    assert "Traceback" not in without.log


def _tokens(proxy: DynamoDBProxy) -> set[str]:
    return {asked.headers["x-amz-security-token"] for asked in proxy.asked}
