"""Every rule of a registration at its limit and beyond, the canonical form, hostile bodies, and keys as paths."""

import json
import re
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from discovery import registrations
from discovery.errors import Rejected
from discovery.model import Capacity, Location, PoolKey, Registration
from discovery.registration_rules import is_plain_key, is_plainly_sound, rule_faults

MINIMAL = {"cluster_id": "c1", "namespace": "n1", "dgd_name": "p1", "model": "m"}
URL = "http://10.0.3.7:5561"


def body(**fields: Any) -> bytes:
    return json.dumps(MINIMAL | fields).encode()


def faults(raw: bytes) -> dict[str, str]:
    """Path and message of every fault of a body that is JSON but no registration."""
    with pytest.raises(Rejected) as caught:
        registrations.parse(raw)
    assert caught.value.status == 422
    found = caught.value.faults
    assert found, "refused, but nobody is told why"
    assert len({path for path, _ in found}) == len(found), f"a path comes twice: {found}"
    return {fault.path: fault.message for fault in found}


def refused_as_no_json(raw: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        registrations.parse(raw)
    assert (caught.value.status, caught.value.faults) == (400, ())
    return caught.value.detail


# ---- each rule: what is still taken, and what is refused with which path

NAMES = ("cluster_id", "namespace", "dgd_name")
SOUND_NAMES = ["x", "x" * 253, "ü" * 253, "a b", "a/b", "a%2Fb", "...", ".a", "a.", "%", "#:{}", "名前", "\U0001f600"]
UNSOUND_NAMES = {
    "": "1 to 253",
    "x" * 254: "1 to 253 characters, has 254",
    " a": "white space",
    "a ": "white space",
    "\u00a0a": "white space",
    "a\u2003": "white space",
    " ": "white space",
    "a\nb": "control",
    "a\x00": "control",
    "a\x1f": "control",
    "a\x7fb": "control",
    "a\x85b": "control",
    "a\x9f": "control",
    ".": "'.'",
    "..": "'..'",
}


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("name", SOUND_NAMES)
def test_a_sound_identifier_is_kept_as_it_is(field: str, name: str) -> None:
    assert getattr(registrations.parse(body(**{field: name})), field) == name


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize(("name", "why"), UNSOUND_NAMES.items())
def test_an_unsound_identifier_is_refused(field: str, name: str, why: str) -> None:
    found = faults(body(**{field: name}))
    assert list(found) == [f"$.{field}"]
    assert why in found[f"$.{field}"]


SOUND_URLS = [
    "http://a",
    "https://a.example:65535",
    "http://10.0.0.1:1",
    "http://[::1]:8000",
    "http://[fd00::1]",
    "HTTPS://A.example/",
    "http://a/x@y",
    "http://a?u@v",
    "http://a:80/p%20q?x=1#f",
    "http://my_host-1.svc.cluster.local:8000",
    "http://bücher.example",
]
UNSOUND_URLS = [
    "",
    "a",
    "//a",
    "a:80",
    "ftp://a",
    "unix:///run/x",
    "javascript:alert(1)",
    "http:/a",
    "http://",
    "http:///x",
    "http://:80",
    "http://?x",
    "http://user@a",
    "http://user:pass@a:80/x",
    "http://@a",
    "http://a b",
    "http://a/ b",
    " http://a",
    "http://a ",
    "http://a\n",
    "http://a/\x00",
    "http://a/\x7f",
    "http://a/\x85",
    "http://a/\u2028",
    "http://a:0",
    "http://a:65536",
    "http://a:99999999999",
    "http://a:x",
    "http://a:",
    "http://[::1",
    "http://[]:80",
    "http://[::g]",
    "http://[1:2]",
    "http://[:::]",
    "http://a\\b",
    'http://a"b',
    "http://<a>",
    "http\u017f://a",
    "\uff48ttp://a",
]


@pytest.mark.parametrize("field", ["relays", "frontends"])
@pytest.mark.parametrize("url", SOUND_URLS)
def test_an_http_url_is_kept_as_it_is(field: str, url: str) -> None:
    assert getattr(registrations.parse(body(**{field: [url]})), field) == (url,)


@pytest.mark.parametrize("field", ["relays", "frontends"])
@pytest.mark.parametrize("url", UNSOUND_URLS)
def test_what_is_no_plain_http_url_is_refused(field: str, url: str) -> None:
    assert list(faults(body(**{field: [URL, url]}))) == [f"$.{field}[1]"]
    assert list(faults(body(**{field: [url, URL]}))) == [f"$.{field}[0]"]
    assert list(faults(body(**{field: [url]}))) == [f"$.{field}[0]"]


@pytest.mark.parametrize("url", ["http://user@a", "http://user:pass@a:80/x", "https://:p@a?x", "http://a@b@c"])
def test_a_url_with_user_information_is_refused_with_that_reason_and_never_repeated(url: str) -> None:
    message = faults(body(relays=[url]))["$.relays[0]"]
    assert "user name" in message
    assert "pass" not in message.replace("password", "")


def test_an_address_that_is_not_ipv6_is_refused_with_that_reason() -> None:
    assert "IPv6" in faults(body(relays=["http://[1::2::3]:80"]))["$.relays[0]"]
    assert "port" in faults(body(relays=["http://a:65536"]))["$.relays[0]"]


CAPACITY = {"resource": "nvidia.com/gpu", "quantity": 16}
ACCEPTED = [
    ("model", "m" * 512),
    ("model", "a\nb "),
    ("relays", []),
    ("relays", [f"{URL}/{n}" for n in range(64)]),
    ("frontends", [f"{URL}/{n}" for n in range(1024)]),
    ("capabilities", []),
    ("capabilities", ["", "x" * 10_000]),
    ("capacity", []),
    ("capacity", [CAPACITY | {"quantity": 0}]),
    ("capacity", [CAPACITY | {"quantity": 1.7e308}]),
    ("capacity", [CAPACITY | {"quantity": 2**60}]),
    ("capacity", [CAPACITY | {"unit": "cards"}]),
    ("capacity", [CAPACITY | {"unit": None}]),
    ("capacity", [CAPACITY, {"resource": "cpu", "quantity": 0.5}]),
    ("location", {}),
    ("location", {"region": "r", "zone": "z", "latitude": 90, "longitude": -180}),
    ("location", {"region": None, "latitude": -90.0, "longitude": 180.0}),
    ("instance_id", None),
    ("instance_id", "relay-7d9f"),
    ("metadata", {}),
    ("metadata", {f"k{n}": "" for n in range(64)}),
]
REFUSED = [
    ("cluster_id", 1, ["$.cluster_id"]),
    ("namespace", None, ["$.namespace"]),
    ("dgd_name", ["p"], ["$.dgd_name"]),
    ("model", "", ["$.model"]),
    ("model", "m" * 513, ["$.model"]),
    ("model", None, ["$.model"]),
    ("relays", None, ["$.relays"]),
    ("relays", URL, ["$.relays"]),
    ("relays", {"0": URL}, ["$.relays"]),
    ("relays", [f"{URL}/{n}" for n in range(65)], ["$.relays"]),
    ("relays", [1, URL, None, "ftp://a"], ["$.relays[0]", "$.relays[2]", "$.relays[3]"]),
    ("relays", ["x"] * 65, ["$.relays", *(f"$.relays[{n}]" for n in range(65))]),
    ("frontends", [f"{URL}/{n}" for n in range(1025)], ["$.frontends"]),
    ("frontends", [[URL]], ["$.frontends[0]"]),
    ("capabilities", "chat", ["$.capabilities"]),
    ("capabilities", ["chat", 1, True, None], ["$.capabilities[1]", "$.capabilities[2]", "$.capabilities[3]"]),
    ("capacity", {}, ["$.capacity"]),
    ("capacity", [5, "x"], ["$.capacity[0]", "$.capacity[1]"]),
    ("capacity", [{}], ["$.capacity[0].resource", "$.capacity[0].quantity"]),
    ("capacity", [CAPACITY | {"quantity": -0.5}], ["$.capacity[0].quantity"]),
    ("capacity", [CAPACITY | {"quantity": 10**309}], ["$.capacity[0].quantity"]),
    ("capacity", [CAPACITY | {"quantity": "16"}], ["$.capacity[0].quantity"]),
    ("capacity", [CAPACITY | {"quantity": True}], ["$.capacity[0].quantity"]),
    ("capacity", [CAPACITY | {"unit": 1}], ["$.capacity[0].unit"]),
    ("capacity", [CAPACITY, CAPACITY], ["$.capacity[1].resource"]),
    ("capacity", [CAPACITY, CAPACITY | {"unit": "x"}], ["$.capacity[1].resource"]),
    (
        "capacity",
        [CAPACITY | {"quantity": -1}, {"resource": 1}, CAPACITY | {"quantity": None}],
        [
            "$.capacity[0].quantity",
            "$.capacity[1].resource",
            "$.capacity[1].quantity",
            "$.capacity[2].resource",
            "$.capacity[2].quantity",
        ],
    ),
    ("location", None, ["$.location"]),
    ("location", [1], ["$.location"]),
    ("location", {"latitude": 90.1, "longitude": -180.1}, ["$.location.latitude", "$.location.longitude"]),
    ("location", {"latitude": -91, "region": 5}, ["$.location.latitude", "$.location.region"]),
    ("location", {"latitude": "52", "longitude": 10**400}, ["$.location.latitude", "$.location.longitude"]),
    ("location", {"zone": ["z"]}, ["$.location.zone"]),
    ("instance_id", 5, ["$.instance_id"]),
    ("metadata", None, ["$.metadata"]),
    ("metadata", ["a"], ["$.metadata"]),
    ("metadata", {"a": 1, "b": "x", 'c "d"': None}, ['$.metadata["a"]', '$.metadata["c \\"d\\""]']),
    ("metadata", {f"k{n}": "" for n in range(65)}, ["$.metadata"]),
]


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_a_value_at_the_limit_is_taken(field: str, value: Any) -> None:
    stored = json.loads(registrations.encode(registrations.parse(body(**{field: value}))))
    if isinstance(value, list):
        value = [without_nulls(entry) for entry in sorted(value, key=str)]
    assert stored.get(field, type(value)() if value is not None else None) == without_nulls(value)


def without_nulls(value: Any) -> Any:
    return {name: entry for name, entry in value.items() if entry is not None} if isinstance(value, dict) else value


@pytest.mark.parametrize(("field", "value", "paths"), REFUSED)
def test_a_value_beyond_is_refused_with_the_path_of_each_fault(field: str, value: Any, paths: list[str]) -> None:
    assert sorted(faults(body(**{field: value}))) == sorted(paths)


def test_every_required_field_that_is_missing_is_named() -> None:
    assert faults(b"{}") == dict.fromkeys(("$.cluster_id", "$.namespace", "$.dgd_name", "$.model"), "is required")


@given(st.lists(st.sampled_from(REFUSED), unique_by=lambda row: row[0], min_size=2))
def test_all_faults_of_a_body_are_told_at_once(rows: list[tuple[str, Any, list[str]]]) -> None:
    fields = {field: value for field, value, _ in rows}
    assert sorted(faults(body(**fields))) == sorted(path for _, _, paths in rows for path in paths)


@pytest.mark.parametrize("raw", [b"[]", b"null", b"5", b'"x"', b"true", b'[{"cluster_id":"c"}]'])
def test_json_that_is_no_object_is_refused_as_such(raw: bytes) -> None:
    assert list(faults(raw)) == ["$"]


def test_unknown_fields_are_ignored_wherever_they_are() -> None:
    raw = body(
        future={"deep": [1, {"x": None}]},
        capacity=[CAPACITY | {"shape": "8x2"}],
        location={"region": "r", "rack": 7},
    )
    assert registrations.parse(raw) == registrations.parse(body(capacity=[CAPACITY], location={"region": "r"}))


def test_the_last_of_two_equal_keys_counts() -> None:
    assert registrations.parse(body()[:-1] + b',"model":"other"}').model == "other"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Registration.__struct_fields__, "other"]), json_values))
def test_any_json_is_taken_or_refused_for_stated_reasons(fields: dict[str, Any]) -> None:
    outcome = parsed_or_refused(json.dumps(MINIMAL | fields).encode())
    if isinstance(outcome, Registration):
        stored = registrations.encode(outcome)
        assert registrations.encode(registrations.decode(stored)) == stored
    else:
        assert outcome.status == 422
        assert outcome.faults
        assert {re.split(r"[.[]", fault.path.removeprefix("$."))[0] for fault in outcome.faults} <= {*fields}


def parsed_or_refused(raw: bytes) -> Registration | Rejected:
    try:
        return registrations.parse(raw)
    except Rejected as error:
        return error


# ---- the canonical form

identifiers = (
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=253)
    .filter(lambda text: text == text.strip())
    .filter(lambda text: text not in (".", ".."))
)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
urls = st.sampled_from(SOUND_URLS)
# Whole numbers that both ways of writing express without loss.
quantities = st.integers(0, 2**53) | st.floats(0, 1e300)
degrees = st.none() | st.integers(-90, 90) | st.floats(-90, 90)
capacities = st.builds(Capacity, texts, quantities, st.none() | texts)
sound_registrations = st.builds(
    Registration,
    identifiers,
    identifiers,
    identifiers,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    st.lists(urls, max_size=5).map(tuple),
    st.lists(urls, max_size=5).map(tuple),
    st.lists(texts, max_size=5).map(tuple),
    st.lists(capacities, max_size=4, unique_by=lambda capacity: capacity.resource).map(tuple),
    st.builds(Location, st.none() | texts, st.none() | texts, degrees, degrees),
    st.none() | texts,
    st.dictionaries(texts, texts, max_size=4),
)


def said_otherwise(draw: st.DrawFn, value: Any, path: str = "") -> Any:
    """The same JSON value in another order, with repeats where lists are sets, and whole numbers as floats."""
    if isinstance(value, dict):
        items = draw(st.permutations([(name, said_otherwise(draw, item, name)) for name, item in value.items()]))
        return dict(items)
    if isinstance(value, list):
        repeats = draw(st.lists(st.sampled_from(value), max_size=3)) if value and path != "capacity" else []
        return draw(st.permutations([said_otherwise(draw, item) for item in [*value, *repeats]]))
    if isinstance(value, int) and not isinstance(value, bool) and draw(st.booleans()):
        return float(value)
    return value


@given(st.data(), sound_registrations)
def test_equal_registrations_are_equal_bytes_however_they_are_written(data: Any, registration: Registration) -> None:
    plain = json.loads(msgspec.json.encode(registration))
    full = {"relays": [], "capacity": [], "location": {}, "instance_id": None, "metadata": {}, "novel": 1} | plain
    again = data.draw(st.composite(said_otherwise)(full))
    first = registrations.encode(registrations.parse(json.dumps(plain).encode()))
    second = registrations.encode(registrations.parse(json.dumps(again, ensure_ascii=False).encode()))
    assert first == second
    assert registrations.encode(registrations.canonical(registration)) == first
    assert registrations.encode(registrations.decode(first)) == first


@pytest.mark.parametrize(
    "said",
    [
        {"location": {}},
        {"location": {"region": None, "zone": None, "latitude": None, "longitude": None}},
        {"relays": [], "frontends": [], "capabilities": [], "capacity": [], "metadata": {}, "instance_id": None},
    ],
)
def test_a_default_that_is_said_is_the_same_as_one_that_is_not(said: dict[str, Any]) -> None:
    least = {"cluster_id": "c", "namespace": "n", "dgd_name": "d", "model": "m"}
    bodies = [json.dumps({**least, **more}).encode() for more in ({}, said)]
    assert len({registrations.encode(registrations.parse(body)) for body in bodies}) == 1


def test_canonical_json_has_the_known_fields_in_order_and_no_defaults() -> None:
    registration = registrations.parse(
        json.dumps(
            {
                "metadata": {"b": "2", "a": "1"},
                "instance_id": "i",
                "location": {"zone": "z", "longitude": 8.50, "region": "r", "latitude": 47.0},
                "capacity": [{"unit": "GiB", "quantity": 1.5, "resource": "memory"}, CAPACITY | {"quantity": 1.6e1}],
                "capabilities": ["tools", "chat", "tools"],
                "frontends": ["http://b", "http://a", "http://b"],
                "relays": ["http://r"],
                "novel": True,
            }
            | MINIMAL
        ).encode()
    )
    assert registrations.encode(registration) == (
        b'{"cluster_id":"c1","namespace":"n1","dgd_name":"p1","model":"m","relays":["http://r"],'
        b'"frontends":["http://a","http://b"],"capabilities":["chat","tools"],'
        b'"capacity":[{"resource":"memory","quantity":1.5,"unit":"GiB"},{"resource":"nvidia.com/gpu","quantity":16}],'
        b'"location":{"region":"r","zone":"z","latitude":47,"longitude":8.5},"instance_id":"i",'
        b'"metadata":{"a":"1","b":"2"}}'
    )
    assert registrations.encode(registrations.parse(body())) == json.dumps(MINIMAL, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("instance_id", "a", "b"),
        ("instance_id", "", None),
        ("capacity", [CAPACITY], [CAPACITY | {"unit": ""}]),
        ("capacity", [CAPACITY], [CAPACITY | {"quantity": 16.5}]),
        ("capabilities", ["a"], ["A"]),
        ("location", {"latitude": 0}, {}),
        ("metadata", {"a": ""}, {}),
    ],
)
def test_what_means_something_else_is_other_bytes(field: str, one: Any, other: Any) -> None:
    first, second = (registrations.parse(body(**{field: value})) for value in (one, other))
    assert registrations.encode(first) != registrations.encode(second)


def test_a_listing_has_every_list_and_object_and_optional_fields_only_when_given() -> None:
    bare = json.loads(msgspec.json.encode(registrations.listing(registrations.parse(body()))))
    assert bare == MINIMAL | {
        "relays": [],
        "frontends": [],
        "capabilities": [],
        "capacity": [],
        "location": {},
        "metadata": {},
    }
    given_one = registrations.listing(registrations.parse(body(instance_id="i", capacity=[CAPACITY | {"unit": "u"}])))
    assert json.loads(msgspec.json.encode(given_one))["instance_id"] == "i"
    assert given_one.key == PoolKey("c1", "n1", "p1")


@pytest.mark.parametrize("stored", [b"", b"5", b"{", b"{}", body(model=""), b"\xff"])
def test_a_foreign_value_in_the_store_is_no_registration(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        registrations.decode(stored)


# ---- hostile bodies

SURROGATES = ["\\ud800", "\\udfff", "\\udc00\\ud800", "\\ud800x", "\\ud800\\u0041"]
PLACES = [
    '"dgd_name":"p%s"',
    '"model":"%s"',
    '"relays":["http://10.0.0.1:9000/%s"]',
    '"capabilities":["%s"]',
    '"capacity":[{"resource":"%s","quantity":1}]',
    '"location":{"region":"%s"}',
    '"location":{"rack":"%s"}',
    '"metadata":{"%s":"v"}',
    '"metadata":{"k":"%s"}',
    '"unknown":"%s"',
    '"%s":1',
    '"unknown":{"%s":["%s"]}',
]


def inside(field: str) -> bytes:
    """An otherwise valid registration that ends with the given field."""
    return body()[:-1] + b"," + field.encode() + b"}"


@pytest.mark.parametrize("escape", SURROGATES)
@pytest.mark.parametrize("place", PLACES)
def test_f01_a_lone_surrogate_is_refused_wherever_it_stands(place: str, escape: str) -> None:
    refused_as_no_json(inside(place.replace("%s", escape)))


def test_f01_a_pair_of_surrogates_is_a_character() -> None:
    assert registrations.parse(inside('"model":"\\ud83d\\ude00"')).model == "\U0001f600"


DEEP = {
    "lists": "[" * 20_000 + "]" * 20_000,
    "objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "unclosed": "[" * 60_000,
    "just-too-deep": "[" * 101 + "]" * 101,
}
LONG = {
    "integer": "9" * 5_000,
    "negative": "-" + "9" * 5_000,
    "just-too-long": "9" * 4_301,
}


@pytest.mark.parametrize("text", [*DEEP.values(), *LONG.values()], ids=[*DEEP, *LONG])
@pytest.mark.parametrize(
    "place", ["%s", '{"x":%s}', *(f"{body()[:-1].decode()},{field}}}" for field in ('"x":%s', '"capacity":[%s]'))]
)
def test_f02_deep_nesting_and_endless_numbers_are_no_json_to_us(place: str, text: str) -> None:
    refused_as_no_json(place.replace("%s", text).encode())


@pytest.mark.parametrize("field", ['"capacity":[{"resource":"gpu","quantity":%s}]', '"location":{"latitude":%s}'])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "+1", "1.", ".5", "0x10"])
def test_a_number_that_json_does_not_know_is_refused(field: str, number: str) -> None:
    refused_as_no_json(inside(field.replace("%s", number)))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 99 + "]" * 99,
        '"' + "[{" * 5_000 + '"',
        '"\\"' + "[" * 5_000 + '\\\\"',
        '"' + "9" * 10_000 + '"',
        "9" * 4_300,
    ],
    ids=[
        "nested-at-the-limit",
        "brackets-in-a-string",
        "brackets-after-an-escaped-quote",
        "digits-in-a-string",
        "digits",
    ],
)
def test_what_only_looks_deep_or_endless_is_taken(text: str) -> None:
    assert registrations.parse(inside(f'"unknown":{text}')) == registrations.parse(body())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        body() + b"x",
        body() + body(),
        body().replace(b'"', b"'"),
        b"\xef\xbb\xbf" + body(),
        body().decode().encode("utf-16"),
        body()[:-1] + b',"x":"\xff"}',
        body()[:-1] + b',"\xc3":1}',
        body()[:-1] + b',"x":"\xed\xa0\x80"}',
        body()[:-1] + b',"x":"\xc0\xaf"}',
        body()[:-1] + b',"x":"a\nb"}',
        body()[:-1] + b',"x":"\\q"}',
        body()[:-1] + b',"x":[1,]}',
        body()[:-1] + b",}",
        body()[:-1] + b',"x":tru}',
        body()[:-1] + b',"x":1 /* */}',
    ],
)
def test_what_is_not_json_in_utf8_is_refused_also_in_unknown_fields(raw: bytes) -> None:
    assert "\n" not in refused_as_no_json(raw)


HALF = 32_000
SLOW = {
    "a string of quotes without end": b"[" * 101 + b'"' + b'\\"' * HALF,
    "the same in a registration": inside('"x":"' + "[" * 200 + '\\"' * (HALF - 200))[:-1],
    "numbers just short enough": inside('"x":"' + ("9" * 4_300 + "x") * 15 + '"'),
    "thousands of faults": body(frontends=[1] * 5_000),
    "thousands of broken objects": body(capacity=[{}] * 5_000),
    "one endless address": body(relays=["http://" + "a" * 65_000]),
    "one endless address of colons": body(relays=["http://[" + ":" * 65_000]),
    "one endless identifier": body(dgd_name="\u00a0" * 10_000),
}


@pytest.mark.parametrize("raw", SLOW.values(), ids=SLOW)
def test_no_body_holds_the_process_up(raw: bytes) -> None:
    """Each of these is small and could take a careless reader from half a second to most of a minute."""
    begun = time.process_time()
    outcome = parsed_or_refused(raw)
    assert isinstance(outcome, Registration) or outcome.status in (400, 422)
    assert time.process_time() - begun < 0.2


_doubtful = st.sampled_from(["", ".", "..", "a", "a/b", "p-1", "a\n", " a", "x" * 253, "x" * 254, "ü"])
_addresses = st.from_regex(r"(https?://[a-z0-9.-]{0,3}(:[0-9]{0,6})?[\n/?#@ ]?){0,2}", fullmatch=True)
_quantities = st.one_of(st.integers(-2, 2), st.floats(), st.integers(10**299, 10**310))


@given(
    st.builds(
        Registration,
        *([_doubtful] * 3),
        model=st.sampled_from(["", "m", "m" * 512, "m" * 513]),
        relays=st.lists(_addresses, max_size=3).map(tuple) | st.just((URL,) * 65),
        frontends=st.lists(_addresses, max_size=3).map(tuple) | st.just((URL,) * 1025),
        capacity=st.lists(st.builds(Capacity, st.sampled_from("ab"), _quantities), max_size=2).map(tuple),
        location=st.builds(Location, latitude=st.none() | st.floats(), longitude=st.none() | st.floats(-200, 200)),
        metadata=st.just({}) | st.just({str(number): "" for number in range(65)}),
    )
)
@settings(max_examples=500)
def test_what_is_taken_as_plainly_sound_breaks_no_rule(registration: Registration) -> None:
    assert not is_plainly_sound(registration) or not list(rule_faults(registration))


def test_what_nearly_every_relay_sends_is_plainly_sound() -> None:
    """Else each heartbeat would be judged the long way."""
    usual = body(
        relays=[URL, "https://relay.example.com"], frontends=[URL], capacity=[{"resource": "g", "quantity": 0.5}]
    )
    assert is_plainly_sound(registrations.parse(usual))
    assert is_plain_key(("c-1", "n_1", "p.1"), "c-1/n_1/p.1")


# ---- keys as paths


@given(identifiers, identifiers, identifiers)
def test_any_legal_key_survives_the_way_through_a_path(cluster_id: str, namespace: str, dgd_name: str) -> None:
    key = PoolKey(cluster_id, namespace, dgd_name)
    path = registrations.key_path(key)
    assert path.isascii()
    assert path.count("/") == 2
    assert not set(path) & set(' ?#{}\\"<>')
    assert registrations.key_from_path(path) == key


@given(st.lists(st.tuples(identifiers, identifiers, identifiers), max_size=5))
def test_the_paths_of_many_keys_are_those_of_each(keys: list[tuple[str, str, str]]) -> None:
    asked = [PoolKey(*key) for key in keys]
    assert registrations.key_paths(asked) == [registrations.key_path(key) for key in asked]


@given(st.lists(st.tuples(identifiers, identifiers, identifiers), min_size=2, max_size=2, unique=True))
def test_two_keys_never_share_a_path(keys: list[tuple[str, str, str]]) -> None:
    one, other = (PoolKey(*key) for key in keys)
    assert registrations.key_path(one) != registrations.key_path(other)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (("us-east-1", "prod", "llama-70b"), "us-east-1/prod/llama-70b"),
        (("a/b", "c", "d"), "a%2Fb/c/d"),
        (("a", "b/c", "d"), "a/b%2Fc/d"),
        (("a%2Fb", "c", "d"), "a%252Fb/c/d"),
        (("ü", "...", "{x}"), "%C3%BC/.../%7Bx%7D"),
        (("a+b", "a b", "~_.-"), "a%2Bb/a%20b/~_.-"),
    ],
)
def test_only_what_needs_it_is_escaped(key: tuple[str, str, str], path: str) -> None:
    assert registrations.key_path(PoolKey(*key)) == path
    assert registrations.key_from_path(path) == PoolKey(*key)


def test_escapes_in_lower_case_and_needless_ones_name_the_same_pool() -> None:
    assert registrations.key_from_path("a%2fb/%61/c%c3%bc") == PoolKey("a/b", "a", "cü")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "cluster_id/namespace"),
        ("a/b", "cluster_id/namespace"),
        ("a/b/c/d", "cluster_id/namespace"),
        ("a/b/c/", "cluster_id/namespace"),
        ("a//c", "namespace must have 1 to 253"),
        ("a/b/" + "c" * 254, "dgd_name must have 1 to 253"),
        ("%ff/b/c", "UTF-8"),
        ("a/%c3/c", "UTF-8"),
        ("a/b/%ed%a0%80", "UTF-8"),
        ("a/b/%00", "control"),
        ("a/%2e%2e/c", "'..'"),
        ("a/./c", "'.'"),
        ("a/b/%20", "white space"),
    ],
)
def test_a_path_that_names_no_pool_is_refused_with_the_reason(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        registrations.key_from_path(path)


@settings(max_examples=200)
@given(st.text("ab%/.2fF", max_size=12))
def test_any_path_names_a_pool_or_is_refused(path: str) -> None:
    try:
        key = registrations.key_from_path(path)
    except ValueError:
        return
    assume(registrations.key_path(key) != path)
    assert registrations.key_from_path(registrations.key_path(key)) == key


def test_faults_in_one_line_name_every_path() -> None:
    with pytest.raises(Rejected) as caught:
        registrations.parse(b'{"cluster_id":5}')
    line = registrations.describe(caught.value.faults)
    assert "\n" not in line
    assert line.startswith("$.cluster_id must be a string, not a number; $.namespace is required")


def test_a_body_that_was_read_before_is_recognised_and_a_refused_one_is_judged_each_time() -> None:
    heartbeats = registrations.Heartbeats(2, lambda: 0.0)
    body = b'{"cluster_id":"c","namespace":"n","dgd_name":"p","model":"m"}'
    assert heartbeats.read(body) == (PoolKey("c", "n", "p"), body, registrations.parse(body))
    assert heartbeats.read(bytes(bytearray(body))) == (PoolKey("c", "n", "p"), body, None)
    for _ in range(2):
        with pytest.raises(Rejected):
            heartbeats.read(b"{}")


def test_bodies_that_come_no_more_are_forgotten() -> None:
    heartbeats = registrations.Heartbeats(2, lambda: 0.0)
    bodies = [b'{"cluster_id":"c","namespace":"n","dgd_name":"p%d","model":"m"}' % number for number in range(20)]
    for body in bodies:
        assert heartbeats.read(body).registration is not None
    assert heartbeats.read(bodies[-1]).registration is None
    assert heartbeats.read(bodies[0]) == (PoolKey("c", "n", "p0"), bodies[0], registrations.parse(bodies[0]))


def test_bodies_that_were_not_said_for_two_minutes_are_forgotten_and_those_that_are_said_all_the_time_are_not() -> None:
    now = 0.0
    heartbeats = registrations.Heartbeats(1000, lambda: now)
    bodies = [b'{"cluster_id":"c","namespace":"n","dgd_name":"p%d","model":"m"}' % number for number in range(50)]
    steady, once = bodies[0], bodies[1]
    assert heartbeats.read(steady).registration is not None
    assert heartbeats.read(once).registration is not None
    for body in bodies[2:]:  # every ten seconds, for eight minutes
        now += 10
        assert heartbeats.read(steady).registration is None
        assert heartbeats.read(body).registration is not None
    assert heartbeats.read(once).registration is not None
    assert heartbeats.read(bodies[-1]).registration is None


def test_bodies_that_are_long_and_new_each_time_fill_no_memory() -> None:
    def long_body(number: int) -> bytes:
        entries = b",".join(b'"k%d":"%d%s"' % (entry, number, b"x" * 1000) for entry in range(50))
        return b'{"cluster_id":"c","namespace":"n","dgd_name":"p","model":"m","metadata":{%b}}' % entries

    heartbeats = registrations.Heartbeats(1000, lambda: 0.0, remembered_bytes=500_000)
    tracemalloc.start()
    try:
        for number in range(200):
            assert heartbeats.read(long_body(number)).registration is not None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000  # two generations, each a body over its limit; all 200 would be ten megabytes
    assert heartbeats.read(long_body(199)).registration is None


@pytest.mark.parametrize(
    ("one", "other"), [("1e17", "100000000000000000"), ("16", "16.0"), ("0", "-0.0"), ("1e2", "100")]
)
def test_equal_quantities_are_equal_bytes_however_they_are_written(one: str, other: str) -> None:
    start = '{"cluster_id":"c","namespace":"n","dgd_name":"p","model":"m","capacity":[{"resource":"gpu","quantity":'
    stored = {registrations.encode(registrations.parse(f"{start}{text}}}]}}".encode())) for text in (one, other)}
    assert len(stored) == 1


# ---- what many registrations say


def test_what_two_pools_both_say_is_there_once() -> None:
    said: dict[str, Any] = {
        "model": "of-many-pools",
        "capabilities": ["chat", "tools"],
        "capacity": [{"resource": "gpu", "quantity": 1, "unit": "card"}],
        "location": {"region": "west", "latitude": 1.5},
    }
    one, other = (registrations.parse(body(dgd_name=name, **said)) for name in ("one", "other"))
    assert one.model is other.model
    assert one.cluster_id is other.cluster_id
    assert one.namespace is other.namespace
    assert one.capabilities is other.capabilities
    assert one.location is other.location
    assert one.capacity[0].resource is other.capacity[0].resource
    assert one.capacity[0].unit is other.capacity[0].unit


def test_values_that_are_said_once_fill_no_memory() -> None:
    limit = registrations.SHARED_VALUES
    long = "m" * (registrations.SHARED_SIZE + 1)
    first, second = (registrations.parse(body(capabilities=[long[:200], long[:201]])) for _ in range(2))
    assert first.capabilities == second.capabilities
    assert first.capabilities is not second.capabilities
    for number in range(limit + 10):
        registrations.parse(body(model=f"model-{number}"))
        assert len(registrations._shared_values) <= limit
