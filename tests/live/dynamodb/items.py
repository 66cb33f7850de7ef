"""Items as replicas write them, and everything else that may lie in a table."""

import json
import time
from typing import Any

from tests.live.dynamodb_server import Item
from tests.live.replica import pool

HOUR_SECS = 3600


def sort_key(name: str) -> str:
    """Where the pool ``cluster_id/namespace/dgd_name`` lies."""
    return "#".join(part.replace("%", "%25").replace("#", "%23") for part in name.split("/"))


def item(name: str, *, lease: float, lease_ends: float | None = None, **fields: Any) -> Item:
    """A registration as a replica with a true clock would have written it just now, or when ``lease_ends`` says."""
    ends = time.time() + lease if lease_ends is None else lease_ends
    return {
        "pk": {"S": "POOL"},
        "sk": {"S": sort_key(name)},
        "registration": {"S": json.dumps(pool(name, **fields), separators=(",", ":"))},
        "lease_ends_ms": {"N": str(int(ends * 1000))},
        "expires_at": {"N": str(int(ends) + HOUR_SECS)},
    }


def broken(lease: float) -> dict[str, Item]:
    """What no replica has written, by what is wrong with it; each has a sort key of its own."""
    made = {}
    for place, (what, change) in enumerate(_FAULTS.items()):
        whole = item(f"broken/n1/p{place:02}", lease=lease)
        made[what] = {name: value for name, value in {**whole, **change}.items() if value is not None}
    texts = {what: ("registration", {"S": text}) for what, text in _TEXTS.items()}
    for place, (what, (name, value)) in enumerate(texts.items()):
        made[what] = {**item(f"broken/n2/p{place:02}", lease=lease), name: value}
    keys = {what: {**item("broken/n3/p", lease=lease), "sk": {"S": key}} for what, key in _SORT_KEYS.items()}
    return {**made, **keys}


# An attribute that is None here is missing.
_FAULTS: dict[str, dict[str, Any]] = {
    "no registration": {"registration": None},
    "a registration that is a number": {"registration": {"N": "7"}},
    "a registration that is NULL": {"registration": {"NULL": True}},
    "a registration that is a map": {"registration": {"M": {"model": {"S": "m"}}}},
    "a registration in a list": {"registration": {"L": [{"S": "{}"}]}},
    "a registration that is binary": {"registration": {"B": b"{}"}},
    "no end of the lease": {"lease_ends_ms": None},
    "an end that is a word": {"lease_ends_ms": {"S": "soon"}},
    "an end that is a boolean": {"lease_ends_ms": {"BOOL": True}},
    "an end beyond all numbers": {"lease_ends_ms": {"N": "1E+125"}},
}
_TEXTS = {
    "no text": "",
    "no JSON": "{",
    "another kind of JSON": "[]",
    "a number": "12",
    "a lone surrogate": '{"cluster_id":"broken","namespace":"n2","dgd_name":"\\ud800","model":"m"}',
    "deep brackets": "[" * 20_000,
    "no model": '{"cluster_id":"broken","namespace":"n2","dgd_name":"p"}',
    "an empty model": '{"cluster_id":"broken","namespace":"n2","dgd_name":"p","model":""}',
    "another pool": '{"cluster_id":"other","namespace":"n","dgd_name":"p","model":"m"}',
    "digits without end": '{"model":' + "9" * 5000 + "}",
}
_SORT_KEYS = {
    "two parts": "broken#n3",
    "four parts": "broken#n3#p#q",
    "no part": "broken",
    "an empty part": "broken##p",
    "a key that is escaped otherwise": "brok%65n#n3#p",
    "a percent sign alone": "broken#n3#p%",
}
