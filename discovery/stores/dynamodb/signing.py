"""Signatures of requests to AWS, version 4. Pure: the time is an argument.

That is what they are made here for: AWS refuses a request whose time is five minutes off, and this replica's wall clock
may be an hour off. The table's own clock is right by definition.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

_SERVICE = "dynamodb"
_ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(NamedTuple):
    """Who asks; ``token`` comes with credentials that end."""

    key_id: str
    secret: str
    token: str | None

    def __repr__(self) -> str:
        """Nothing of it: whoever shows it shows it by mistake."""
        return "Credentials(...)"


def sign(
    credentials: Credentials, region: str, host: str, path: str, headers: dict[str, str], body: bytes, at: float
) -> dict[str, str]:
    """The headers for one POST, with these among them (their names in lower case), and its signature.

    ``host`` is as it is sent, with its port where that is none of the usual ones.
    """
    time = _time(int(at))
    signed = {**headers, "host": host, "x-amz-date": time}
    if credentials.token is not None:
        signed["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(signed))
    lines = "".join([f"{name}:{signed[name].strip()}\n" for name in sorted(signed)])
    request = f"POST\n{path}\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{time[:8]}/{region}/{_SERVICE}/aws4_request"
    text = f"{_ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(_key(credentials.secret, time[:8], region), text.encode(), "sha256").hex()
    signed["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return signed


@lru_cache(maxsize=4)
def _time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")


@lru_cache(maxsize=4)
def _key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
