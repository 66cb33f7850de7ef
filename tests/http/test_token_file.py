"""The file of tokens: what it may hold, and the one line that says what is wrong where."""

import json
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.http.token_file import read_tokens
from discovery.http.tokens import Identity, Right, changes, identify, scope_for
from discovery.model import PoolKey
from discovery.registration_rules import identifier_fault
from tests.http.tokens_file import content, entry

HEX = sha256(b"t").hexdigest()
OTHER = sha256(b"u").hexdigest()
HASH_IT = 'the SHA-256 of the token in 64 hex digits (printf %s "$TOKEN" | sha256sum), and never the token itself'
NAME = "tokens[0].name must be 1 to 64 of A-Z a-z 0-9 . _ @ : / + - and spaces, beginning with a letter or digit"
KINDS = (
    "tokens[0].scopes[0] must be read, metrics, register:<cluster_id>, register:<cluster_id>/<namespace>, or * for all"
)


def only(file: bytes) -> Identity:
    """The one identity that a file names."""
    [identity] = read_tokens(file).values()
    return identity


def one(**fields: Any) -> bytes:
    """A file with one entry, of which these fields are set or, where None, left out."""
    made = {"name": "a", "sha256": HEX, "scopes": ["read"]} | fields
    return json.dumps({"tokens": [{name: value for name, value in made.items() if value is not None}]}).encode()


def scoped(*scopes: Any) -> bytes:
    return one(scopes=list(scopes))


def may(identity: Identity, *path: str) -> bool:
    return identity.may_register(PoolKey(*path))


# ---- what is taken


def test_yaml_and_json_say_the_same() -> None:
    text = f"""
# who may do what
tokens:
  - name: relays-east   # for logs
    sha256: {HEX.upper()}
    scopes: ["register:us-east-1", read]
  - {{name: prometheus, sha256: "{OTHER}", scopes: [metrics]}}
"""
    entries = [
        {"name": "relays-east", "sha256": HEX, "scopes": ["register:us-east-1", "read"]},
        {"name": "prometheus", "sha256": OTHER, "scopes": ["metrics"]},
    ]
    expected = read_tokens(content(*entries))
    assert read_tokens(text.encode()) == expected
    assert read_tokens(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()) == expected
    assert read_tokens(json.dumps({"tokens": entries}, indent="\t").encode()) == expected
    assert [identity.name for identity in expected.values()] == ["relays-east", "prometheus"]
    assert identify(expected, b"t") is expected[sha256(b"t").digest()]
    assert identify(expected, b"T") is None
    assert identify(expected, b"") is None


def test_what_yaml_takes_for_numbers_or_truth_is_text() -> None:
    identity = only(f"tokens:\n- name: 123\n  sha256: {'1' * 64}\n  scopes: [register:on/1e3, read]".encode())
    assert identity.name == "123"
    assert identity.digest == bytes.fromhex("1" * 64)
    assert may(identity, "on", "1e3", "p")


def test_no_token_at_all_is_a_file() -> None:
    assert read_tokens(b"tokens: []") == {}


def test_ten_thousand_tokens_are_a_file() -> None:
    assert len(read_tokens(content(*(entry(f"token {number}", "read") for number in range(10_000))))) == 10_000


@pytest.mark.parametrize(
    ("scopes", "reads", "metrics", "rights"),
    [
        (["read"], True, False, set()),
        (["metrics"], False, True, set()),
        (["metrics", "read", "read"], True, True, set()),
        (["*"], True, True, {Right(None, None)}),
        (["register:c"], False, False, {Right("c", None)}),
        (["register:c/n", "register:d"], False, False, {Right("c", "n"), Right("d", None)}),
        (["register:c/*"], False, False, {Right("c", None)}),
        (["register:*"], False, False, {Right(None, None)}),
        (["register:*/*"], False, False, {Right(None, None)}),
        (["register:*/n"], False, False, {Right(None, "n")}),
        (["register:a:b"], False, False, {Right("a:b", None)}),
        (["register:a%2Fb/c%2fd"], False, False, {Right("a/b", "c/d")}),
        (["register:%2A"], False, False, {Right("*", None)}),
        (["register:%2a/%2A"], False, False, {Right("*", "*")}),
        (["register:%252F"], False, False, {Right("%2F", None)}),
        (["register:ü/%C3%BC"], False, False, {Right("ü", "ü")}),
    ],
)
def test_scopes(scopes: list[str], reads: bool, metrics: bool, rights: set[Right]) -> None:
    identity = only(scoped(*scopes))
    assert (identity.may_read, identity.may_see_metrics, identity.rights) == (reads, metrics, rights)


# ---- what is refused

WRONG = [
    (b"", "it is empty"),
    (b" \n\t", "it is empty"),
    (b"\xff", "it is not UTF-8"),
    (b"tokens: [\x00]", "it holds characters that YAML does not allow"),
    (b"tokens:\n - name: x\n  sha256: s3cret", "line 3, column 3: this is neither YAML nor JSON"),
    (b'{"tokens": "s3cret', "line 1, column 19: this is neither YAML nor JSON"),
    (b"tokens: *s3cret", "line 1, column 9: this is neither YAML nor JSON"),
    (b"tokens: []\n---\ntokens: []", "line 2, column 1: this is neither YAML nor JSON"),
    (b"tokens: &a [*a]", "line 1, column 9: this is neither YAML nor JSON"),
    (b"[" * 100_000, "line 1, column 1001: this is neither YAML nor JSON"),
    (b'{"tokens":' * 100_000, "it is nested too deeply"),
    (b"? [a]\n: b", "line 1 has a key that is no plain text"),
    (b"tokens: []\ntokens: []", "a key stands twice in one of its mappings"),
    (b'{"tokens": [], "tokens": []}', "a key stands twice in one of its mappings"),
    (b"tokens:\n- name: a\n  name: b", "a key stands twice in one of its mappings"),
    (b"s3cret", 'it must hold a mapping with the key "tokens"'),
    (b"- name: a", 'it must hold a mapping with the key "tokens"'),
    (b"token: []", 'it must hold a mapping with the key "tokens"'),
    (b"tokens: []\ns3cret: 1", 'it takes the key "tokens" and no other'),
    (b"tokens:", "tokens must be a list"),
    (b"tokens: {relays: s3cret}", "tokens must be a list"),
    (b"tokens: [s3cret]", "tokens[0] must be a mapping: it takes name, sha256 and scopes"),
    (one(name=None), "tokens[0].name is missing: it takes name, sha256 and scopes"),
    (one(sha256=None), "tokens[0].sha256 is missing: it takes name, sha256 and scopes"),
    (one(scopes=None), "tokens[0].scopes is missing: it takes name, sha256 and scopes"),
    (one(scope=["read"]), "tokens[0] has an unknown key scope: it takes name, sha256 and scopes"),
    (one(**{"s3cret/0": 1}), "tokens[0] has an unknown key: it takes name, sha256 and scopes"),
    (one(token="s3cret", sha256=None), f"tokens[0].token is not taken: give sha256, {HASH_IT}"),
    (one(sha256="s3cret"), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=HEX[:-1]), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=HEX + "0"), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=HEX + "\n"), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=HEX[:-1] + "٣"), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256="sha256:" + HEX), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=[HEX]), f"tokens[0].sha256 must be {HASH_IT}"),
    (one(sha256=7), f"tokens[0].sha256 must be {HASH_IT}"),
    (
        one(sha256=sha256().hexdigest()),
        "tokens[0].sha256 is the SHA-256 of nothing at all: was the variable with the token empty?",
    ),
    (one(name="t"), "tokens[0].name is the token itself, and names are logged: choose another, and a new token"),
    (one(name=""), NAME),
    (one(name=" a"), NAME),
    (one(name="a "), NAME),
    (one(name="a\nb"), NAME),
    (one(name="ä"), NAME),
    (one(name="a" * 65), NAME),
    (one(name=["a"]), NAME),
    (one(scopes=[]), "tokens[0].scopes must be a list of at least one scope, such as read or register:us-east-1"),
    (one(scopes="read"), "tokens[0].scopes must be a list of at least one scope, such as read or register:us-east-1"),
    (scoped(7), "tokens[0].scopes[0] must be text"),
    (scoped(["read"]), "tokens[0].scopes[0] must be text"),
    (scoped("read", "s3cret"), KINDS.replace("[0] must", "[1] must")),
    *((scoped(text), KINDS) for text in ("Read", "read ", "register", "REGISTER:c", "write:c", "", "**", "metrics:c")),
    (scoped("register:"), "tokens[0].scopes[0] names no cluster_id: it must have 1 to 253 characters, has 0"),
    (scoped("register:c/"), "tokens[0].scopes[0] names no namespace: it must have 1 to 253 characters, has 0"),
    (scoped("register:/n"), "tokens[0].scopes[0] names no cluster_id: it must have 1 to 253 characters, has 0"),
    (scoped("register:.."), "tokens[0].scopes[0] names no cluster_id: it must not be '.' or '..'"),
    (scoped("register:%2E"), "tokens[0].scopes[0] names no cluster_id: it must not be '.' or '..'"),
    (scoped("register: c"), "tokens[0].scopes[0] names no cluster_id: it must not begin or end with white space"),
    (scoped("register:c%00"), "tokens[0].scopes[0] names no cluster_id: it must not contain control characters"),
    (
        scoped("register:a/b/c"),
        "tokens[0].scopes[0] has more than a cluster and a namespace: a / within one of them is written %2F",
    ),
    (
        scoped("register:us-*"),
        "tokens[0].scopes[0] has a * within its cluster_id: only the whole may be *, and a real * is written %2A",
    ),
    (
        scoped("register:c/%2A*"),
        "tokens[0].scopes[0] has a * within its namespace: only the whole may be *, and a real * is written %2A",
    ),
    (
        scoped("register:100%"),
        "tokens[0].scopes[0] has a % in its cluster_id that is no escape: a real % is written %25",
    ),
    (
        scoped("register:c/%u1"),
        "tokens[0].scopes[0] has a % in its namespace that is no escape: a real % is written %25",
    ),
    (scoped("register:%ff"), "tokens[0].scopes[0] has escapes in its cluster_id that are not UTF-8"),
    (
        content(entry("t", "read", name="a"), entry("u", "read", name="b"), entry("v", "read", name="a")),
        "tokens[2].name is that of tokens[0] too: each has its own",
    ),
    (
        content(entry("u", "read", name="a"), entry("t", "read", name="b"), entry("t", "*", name="c")),
        "tokens[2].sha256 is that of tokens[1] too: each has its own",
    ),
]


@pytest.mark.parametrize(("file", "said"), WRONG)
def test_what_is_wrong_is_one_line_with_its_place(file: bytes, said: str) -> None:
    with pytest.raises(ValueError) as wrong:  # noqa: PT011
        read_tokens(file)
    assert str(wrong.value) == said


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_whatever_the_file_holds_it_is_taken_or_refused_in_one_printable_line(file: bytes) -> None:
    said = ""
    try:
        read_tokens(file)
    except ValueError as error:
        said = str(error)
    assert said == "" or said.isprintable()
    assert len(said) < 250


PLACES = ["name", "sha256", "scopes", "scopes[0]", "key", "tokens", "entry", "document", "register"]


@given(st.sampled_from(PLACES), st.text("abcXYZ019-_+/=.~", min_size=25, max_size=60))
def test_a_token_pasted_in_any_wrong_place_is_not_repeated(place: str, token: str) -> None:
    files = {
        "name": one(name=token, sha256=sha256(token.encode()).hexdigest()),
        "sha256": one(sha256=token),
        "scopes": one(scopes=token),
        "scopes[0]": scoped(token),
        "key": one(**{token: "x"}),
        "tokens": json.dumps({"tokens": token}).encode(),
        "entry": json.dumps({"tokens": [token]}).encode(),
        "document": f"{token}: [".encode(),
        "register": scoped(f"register:{token}/*x"),
    }
    with pytest.raises(ValueError) as wrong:  # noqa: PT011
        read_tokens(files[place])
    assert token not in str(wrong.value)
    assert wrong.value.__cause__ is None


# ---- whom a scope lets register

identifiers = st.text(min_size=1, max_size=12).filter(lambda text: identifier_fault(text) is None and _is_text(text))
tricky = st.sampled_from(
    ["*", "%2A", "a/b", "a", "a%2Fb", "A", "..a", "a/", "/a", "ａ", "é", "é", "%", "%%", ":", "a:b"]
)
parts = tricky | identifiers


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(parts, parts, parts, parts, parts)
def test_a_scope_lets_register_where_it_says_and_nowhere_else(
    cluster: str, namespace: str, name: str, other_cluster: str, other_namespace: str
) -> None:
    whole, part = quote(cluster, safe=""), f"{quote(cluster, safe='')}/{quote(namespace, safe='')}"
    for_cluster, for_namespace = only(scoped(f"register:{whole}")), only(scoped(f"register:{part}"))
    assert may(for_cluster, cluster, namespace, name)
    assert may(for_namespace, cluster, namespace, name)
    assert may(for_cluster, other_cluster, namespace, name) == (other_cluster == cluster)
    assert may(for_namespace, other_cluster, namespace, name) == (other_cluster == cluster)
    assert may(for_namespace, cluster, other_namespace, name) == (other_namespace == namespace)
    everywhere = only(scoped(f"register:*/{quote(namespace, safe='')}"))
    assert may(everywhere, other_cluster, other_namespace, name) == (other_namespace == namespace)


@given(parts, parts, parts)
def test_the_scope_that_is_said_to_be_missing_is_one_that_helps_and_fits_a_header(
    cluster: str, namespace: str, name: str
) -> None:
    key = PoolKey(cluster, namespace, name)
    missing = scope_for(key)
    assert only(scoped(missing)).rights == {Right(cluster, namespace)}
    assert missing.isascii()
    assert missing.isprintable()
    assert not set(missing) & set('"\\ ')


def test_read_and_metrics_let_nobody_register() -> None:
    assert not may(only(scoped("read", "metrics")), "read", "metrics", "*")


# ---- what a renewal says


def test_a_renewal_says_who_is_new_who_is_gone_and_whose_rights_changed() -> None:
    before = read_tokens(content(entry("1", "read", name="a"), entry("2", "read", name="b"), entry("3", "*", name="c")))
    after = read_tokens(content(entry("1", "read", name="a"), entry("2", "*", name="b"), entry("4", "*", name="d")))
    assert changes(before, after) == "3 valid; new: d; gone: c; changed: b"
    many = read_tokens(content(*(entry(str(number), "read", name=f"n{number:02}") for number in range(12))))
    said = "12 valid; new: n00, n01, n02, n03, n04, n05, n06, n07, n08, n09 and 2 more"
    assert changes({}, many) == said
    assert changes(many, many) == "12 valid"
