"""Every rule of the command line as a table: what is read, what is refused, and what the one line says."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import settings
from discovery.addresses import RedisUrl, parse_redis_url
from discovery.errors import Misconfigured
from discovery.model import Capacity, Location, PoolKey, Registration, Router
from discovery.registrations import key_path
from discovery.settings import Address, DoctorSettings, FlagInfo, PoolsSettings, RegisterSettings, ServeSettings

REDIS = ("--redis-url", "redis://127.0.0.1:6379/0")
MCS = ("--pool-discovery", "mcs")
DYNAMODB = ("--registration-storage", "dynamodb")
TABLE = ("--dynamodb-table", "pools")
ARN = "arn:aws:dynamodb:eu-west-1:111122223333:table/pools"
OF_STORES = {"redis": REDIS, "dynamodb": TABLE}
POOL = ("--cluster-id", "c1", "--namespace", "n1", "--dgd-name", "p1", "--model", "m")


def serve(*words: str, **variables: str) -> ServeSettings:
    return settings.read_serve(words, variables)


def pools(*words: str, **variables: str) -> PoolsSettings:
    return settings.read_pools(words, variables)


def register(*words: str, **variables: str) -> RegisterSettings:
    return settings.read_register(words, variables)


def doctor(*words: str, **variables: str) -> DoctorSettings:
    return settings.read_doctor(words, variables)


def refusal(read: Any, *words: str, **variables: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        read(*words, **variables)
    text = str(caught.value)
    assert text.isprintable(), "a refusal is one line"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback would repeat the value"
    return text


def refusal_if_any(*words: str) -> str | None:
    try:
        serve(*words)
    except Misconfigured as error:
        return str(error)
    return None


def flag_named(name: str, command: str = "serve") -> FlagInfo:
    return next(flag for flag in settings.flags(command) if flag.name == name)


# ---- what is read

DEFAULTS = {
    "listen": Address("0.0.0.0", 8080),
    "health_listen": None,
    "pool_discovery": "registrations",
    "registration_storage": "memory",
    "heartbeat_interval_secs": 5,
    "lease_duration_secs": 15,
    "mass_loss_hold_secs": 60,
    "tls_cert_path": None,
    "tls_key_path": None,
    "tls_client_ca_path": None,
    "log_format": "text",
    "log_level": "info",
    "access_log": False,
    "otlp_endpoint": None,
    "max_body_bytes": 65536,
    "max_streams": 10000,
    "drain_delay_secs": 5,
    "shutdown_grace_secs": 10,
    "store_timeout_ms": 1500,
    "max_pools": 100000,
    "max_pools_per_cluster": 50000,
    "max_connections": 20000,
    "max_header_bytes": 16384,
    "request_timeout_secs": 10,
    "write_stall_timeout_secs": 30,
    "transfer_timeout_secs": 300,
    "keep_alive_secs": 75,
    "rate_limit": 10000,
    "auth_tokens_path": None,
    "cors_origin": None,
    "router": (),
    "relay_service_suffix": "-pool-relay",
    "frontend_service_suffix": "-frontend",
    "relay_port_name": None,
    "frontend_port_name": "http",
    "local_cluster_id": None,
    "router_namespace": None,
    "router_service": None,
    "router_port_name": None,
    "kubeconfig": None,
    "kube_context": (),
    "kube_namespace": (),
    "redis_url": None,
    "redis_password_path": None,
    "redis_sentinel_user": None,
    "redis_sentinel_password_path": None,
    "redis_tls_ca_path": None,
    "redis_tls_cert_path": None,
    "redis_tls_key_path": None,
    "redis_prefix": "discovery",
    "dynamodb_table": None,
    "dynamodb_region": None,
    "dynamodb_endpoint_url": None,
    "warnings": (),
}

SERVE_VALUES = [
    ("--listen", "127.0.0.1:9000", Address("127.0.0.1", 9000)),
    ("--listen", "[::]:8080", Address("::", 8080)),
    ("--listen", "localhost:0", Address("localhost", 0)),
    ("--health-listen", "[::1]:8081", Address("::1", 8081)),
    ("--tls-cert-path", __file__, __file__),
    ("--tls-key-path", __file__, __file__),
    ("--tls-client-ca-path", __file__, __file__),
    ("--pool-discovery", "registrations", "registrations"),
    ("--pool-discovery", "mcs", "mcs"),
    ("--pool-discovery", "karmada", "karmada"),
    ("--registration-storage", "memory", "memory"),
    ("--registration-storage", "redis", "redis"),
    ("--registration-storage", "dynamodb", "dynamodb"),
    ("--heartbeat-interval-secs", "2.5", 2.5),
    ("--lease-duration-secs", "15.0", 15),
    ("--lease-duration-secs", "86400", 86400),
    ("--lease-duration-secs", "12.5", 12.5),
    ("--mass-loss-hold-secs", "0", 0),
    ("--log-format", "json", "json"),
    ("--log-level", "debug", "debug"),
    ("--access-log", "true", True),
    ("--otlp-endpoint", "http://collector:4318/", "http://collector:4318"),
    ("--max-body-bytes", "100", 100),
    ("--max-streams", "0", 0),
    ("--drain-delay-secs", "0.5", 0.5),
    ("--shutdown-grace-secs", "0", 0),
    ("--store-timeout-ms", "3000", 3000),
    ("--max-pools", "7", 7),
    ("--max-pools-per-cluster", "0", 0),
    ("--auth-tokens-path", __file__, __file__),
    ("--max-connections", "50", 50),
    ("--max-header-bytes", "8192", 8192),
    ("--request-timeout-secs", ".25", 0.25),
    ("--write-stall-timeout-secs", "1e1", 10),
    ("--transfer-timeout-secs", "60", 60),
    ("--keep-alive-secs", "61", 61),
    ("--rate-limit", "0.2", 0.2),
    ("--cors-origin", "*", "*"),
    ("--cors-origin", "https://ui.example.com:8443", "https://ui.example.com:8443"),
    ("--router", "router-0=http://10.0.1.5:9000", (Router("router-0", "http://10.0.1.5:9000"),)),
    ("--router", "r=https://[fd00::1]:9000/a=b", (Router("r", "https://[fd00::1]:9000/a=b"),)),
    ("--relay-service-suffix", "-relay", "-relay"),
    ("--relay-service-suffix", "0", "0"),
    ("--frontend-service-suffix", "--" + "x" * 60, "--" + "x" * 60),
    ("--relay-port-name", "rpc", "rpc"),
    ("--frontend-port-name", "x" * 63, "x" * 63),
    ("--local-cluster-id", "us-east-1", "us-east-1"),
    ("--local-cluster-id", "1.eu--west.example", "1.eu--west.example"),
    ("--local-cluster-id", "x" * 63 + ".y", "x" * 63 + ".y"),
    ("--local-cluster-id", "a." * 126 + "a", "a." * 126 + "a"),
    ("--router-namespace", "routing", "routing"),
    ("--router-service", "global-router", "global-router"),
    ("--router-port-name", "http2", "http2"),
    ("--kubeconfig", "/etc/clusters.yaml", "/etc/clusters.yaml"),
    ("--kube-context", "admin@eu:6443/x", ("admin@eu:6443/x",)),
    ("--kube-namespace", "1-" + "x" * 61, ("1-" + "x" * 61,)),
    ("--redis-url", "redis://user:p%40ss@redis.example:6380/2", "redis://user:p%40ss@redis.example:6380/2"),
    ("--redis-url", "redis://:pa:ss@[::1]:6379", "redis://:pa:ss@[::1]:6379"),
    ("--redis-url", "redis://host?db=3&password=plain", "redis://host?db=3&password=plain"),
    ("--redis-url", "unix:///run/redis.sock", "unix:///run/redis.sock"),
    ("--redis-url", "unix://u:p@/run/redis.sock?db=1", "unix://u:p@/run/redis.sock?db=1"),
    ("--redis-url", "redis+sentinel://:p@h1:26379,h2/main/0", "redis+sentinel://:p@h1:26379,h2/main/0"),
    ("--redis-url", "rediss+cluster://h1,[::1]:6380", "rediss+cluster://h1,[::1]:6380"),
    ("--redis-password-path", __file__, __file__),
    ("--redis-sentinel-user", "asker", "asker"),
    ("--redis-sentinel-password-path", __file__, __file__),
    ("--redis-tls-ca-path", __file__, __file__),
    ("--redis-tls-cert-path", __file__, __file__),
    ("--redis-tls-key-path", __file__, __file__),
    ("--redis-prefix", "Staging_1.eu-west", "Staging_1.eu-west"),
    ("--dynamodb-table", "a.b", "a.b"),
    ("--dynamodb-table", "Pools_1-" + "x" * 247, "Pools_1-" + "x" * 247),
    ("--dynamodb-table", ARN, ARN),
    ("--dynamodb-table", "arn:aws-us-gov:dynamodb:us-gov-west-1:111122223333:table/pools",
     "arn:aws-us-gov:dynamodb:us-gov-west-1:111122223333:table/pools"),
    ("--dynamodb-region", "eu-west-1", "eu-west-1"),
    ("--dynamodb-region", "us-iso-east-1", "us-iso-east-1"),
    ("--dynamodb-region", "local", "local"),
    ("--dynamodb-endpoint-url", "http://localhost:8000/", "http://localhost:8000"),
    ("--dynamodb-endpoint-url", "https://[fd00::1]", "https://[fd00::1]"),
]  # fmt: skip


def company(name: str) -> tuple[str, ...]:
    """The flags without which a flag is refused."""
    if name in ("--redis-password-path", "--redis-prefix"):
        return REDIS
    if name.startswith("--dynamodb-"):
        return *DYNAMODB, *(() if name == "--dynamodb-table" else TABLE)
    if name.startswith("--tls-"):
        tls = ("--tls-cert-path", "--tls-key-path")
        health = ("--health-listen=h:1",) if name == "--tls-client-ca-path" else ()
        return *(f"{other}={__file__}" for other in tls if other != name), *health
    if name.startswith("--redis-sentinel-"):
        others: tuple[str, ...] = (f"--redis-sentinel-password-path={__file__}",) if name.endswith("-user") else ()
        return "--redis-url=redis+sentinel://h/main", *others
    if name.startswith("--redis-tls-"):
        pair = ("--redis-tls-cert-path", "--redis-tls-key-path") if name != "--redis-tls-ca-path" else ()
        return "--redis-url=rediss://h", *(f"{other}={__file__}" for other in pair if other != name)
    if flag_named(name).group != "With --pool-discovery mcs or karmada":
        return ()
    if not name.startswith("--router-"):
        return MCS
    routers = ("--router-namespace=n", "--router-service=s")
    return *MCS, *(word for word in routers if not word.startswith(f"{name}="))


def words(name: str, text: str) -> tuple[str, ...]:
    """A flag and its value as two words where that is allowed: a switch takes none of those that follow."""
    return (f"{name}={text}",) if text.startswith("-") or text in ("true", "false") else (name, text)


def test_nothing_given_means_the_defaults():
    read = msgspec.structs.asdict(serve())
    del read["registration_storage_reason"]
    assert read == DEFAULTS
    assert msgspec.structs.asdict(ServeSettings()).keys() == read.keys() | {"registration_storage_reason"}


def test_the_table_has_a_value_for_every_flag_that_can_be_used():
    assert {name for name, _, _ in SERVE_VALUES} == {flag.name for flag in settings.flags()}


@pytest.mark.parametrize(("name", "text", "value"), SERVE_VALUES)
def test_flag_and_variable_give_the_same_value(name: str, text: str, value: Any):
    others = OF_STORES.get(text, company(name))
    field = flag_named(name).variable.removeprefix("DISCOVERY_").lower()
    apart, joined = serve(*others, *words(name, text)), serve(*others, f"{name}={text}")
    by_variable = serve(*others, **{flag_named(name).variable: text})
    for read in (apart, joined, by_variable):
        found = getattr(read, field)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(("name", "text", "value"), SERVE_VALUES)
def test_a_flag_wins_over_its_variable_whatever_that_says(name: str, text: str, value: Any):
    others = OF_STORES.get(text, company(name))
    read = serve(*others, *words(name, text), **{flag_named(name).variable: "\x00 wrong://@"})
    assert getattr(read, flag_named(name).variable.removeprefix("DISCOVERY_").lower()) == value


@pytest.mark.parametrize("flag", settings.flags(), ids=lambda flag: flag.name)
@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_an_empty_variable_is_unset(flag: FlagInfo, blank: str):
    assert serve(**{flag.variable: blank}) == serve()


def test_white_space_around_a_variable_is_dropped():
    assert serve(DISCOVERY_REDIS_URL="redis://h\n").redis_url == "redis://h"


def test_the_environment_is_read_where_no_variables_are_passed(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("DISCOVERY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DISCOVERY_MAX_POOLS", "3")
    monkeypatch.setenv("DISCOVERY_OUTPUT", "name")
    monkeypatch.setenv("DISCOVERY_DGD_NAME", "p2")
    assert settings.read_doctor([]).output == "name"
    assert settings.read_serve([]).max_pools == 3
    assert settings.read_pools([]).output == "name"
    assert settings.read_register(POOL[:4] + POOL[6:]).registration.dgd_name == "p2"


def test_a_list_is_a_repeated_flag_or_a_variable_with_white_space():
    both = (Router("a", "http://a"), Router("b", "http://b:1"))
    assert serve("--router", "a=http://a", "--router=b=http://b:1").router == both
    assert serve(DISCOVERY_ROUTER=" a=http://a\n\tb=http://b:1 ").router == both
    assert serve("--router", "a=http://a", DISCOVERY_ROUTER="b=http://b:1").router == both[:1]


@given(st.decimals(min_value="0.001", max_value="3600", places=3))
def test_seconds_are_the_same_from_flag_and_variable_and_print_as_written(secs: Any):
    text = str(secs)
    by_flag = serve("--request-timeout-secs", text)
    assert by_flag == serve(DISCOVERY_REQUEST_TIMEOUT_SECS=text)
    assert by_flag.request_timeout_secs == float(text)
    assert isinstance(by_flag.request_timeout_secs, int) == float(text).is_integer()


@given(
    st.dictionaries(st.text("ab.-_~\u00e9", min_size=1).filter(lambda t: t not in (".", "..")), st.integers(1, 65535))
)
def test_routers_are_the_same_from_flags_and_variable(ports: dict[str, int]):
    texts = [f"{name}=http://host:{port}/x" for name, port in ports.items()]
    words = [f"--router={text}" for text in texts]
    assert serve(*words).router == serve(DISCOVERY_ROUTER=" ".join(texts)).router
    assert len(serve(*words).router) == len(ports)


# ---- which store, and why

STORES = [
    ((), {}, "memory", "no --redis-url is given, so no other replica will know them"),
    (("--registration-storage=memory",), {}, "memory", "--registration-storage says so"),
    (REDIS, {}, "redis", "--redis-url is given"),
    ((), {"DISCOVERY_REDIS_URL": "redis://h"}, "redis", "DISCOVERY_REDIS_URL is given"),
    ((), {"DISCOVERY_REGISTRATION_STORAGE": "redis", "DISCOVERY_REDIS_URL": "redis://h"}, "redis",
     "DISCOVERY_REGISTRATION_STORAGE says so"),
    ((*DYNAMODB, *TABLE), {}, "dynamodb", "--registration-storage says so"),
    (TABLE, {"DISCOVERY_REGISTRATION_STORAGE": "dynamodb"}, "dynamodb", "DISCOVERY_REGISTRATION_STORAGE says so"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "variables", "storage", "reason"), STORES)
def test_the_store_is_chosen_and_says_why(words: tuple[str, ...], variables: dict[str, str], storage: str, reason: str):
    read = serve(*words, **variables)
    assert read.registration_storage == storage
    assert read.registration_storage_reason == reason


# ---- rules that hold for every flag

EVERY_FLAG = [
    (command, flag) for command in ("serve", "pools", "register", "doctor") for flag in settings.flags(command)
]
READERS = {"serve": serve, "pools": pools, "register": register, "doctor": doctor}
every_flag = pytest.mark.parametrize(("command", "flag"), EVERY_FLAG, ids=lambda x: x if isinstance(x, str) else x.name)


@every_flag
def test_an_empty_value_is_refused(command: str, flag: FlagInfo):
    said = f"{flag.name} has an empty value: give one, or leave the flag out"
    assert refusal(READERS[command], f"{flag.name}=") == said
    if not flag.switch:
        assert refusal(READERS[command], flag.name, "") == said


@every_flag
def test_a_flag_without_its_value_never_takes_the_next_flag(command: str, flag: FlagInfo):
    if flag.switch:
        # Of doctor the words that are no values are pools.
        why = "KEY is wrong" if command == "doctor" else "not expected here"
        assert why in refusal(READERS[command], flag.name, "false")
        return
    assert refusal(READERS[command], flag.name) == f"{flag.name} needs a value"
    for following in ("--log-format", "-1", "-", "--"):
        said = refusal(READERS[command], flag.name, following, "json")
        assert said == f"{flag.name} needs a value; one that begins with - is given after =, as in {flag.name}=-x"


@every_flag
def test_a_flag_that_is_no_list_is_refused_when_given_twice(command: str, flag: FlagInfo):
    twice = (f"{flag.name}=x", f"{flag.name}=x")
    if flag.many:
        twice = (*twice, "--qqqq")
    said = refusal(READERS[command], *twice)
    assert said.startswith("unknown flag --qqqq" if flag.many else f"{flag.name} is given twice: it takes one value")


@every_flag
def test_bytes_that_are_not_utf8_are_refused(command: str, flag: FlagInfo):
    assert refusal(READERS[command], f"{flag.name}=\udcff") == f"{flag.name} is not UTF-8 text"
    assert refusal(READERS[command], **{flag.variable: "\udcff"}) == f"{flag.variable} is not UTF-8 text"


WORDS = [
    (serve, ("--lisen", "x"), "unknown flag --lisen: did you mean --listen?"),
    (serve, ("--redis_url", "x"), "unknown flag --redis_url: did you mean --redis-url?"),
    (serve, ("--qqqq",), "unknown flag --qqqq: --help lists the flags"),
    (serve, ("--qqqq=secret",), "unknown flag --qqqq: --help lists the flags"),
    (serve, ("--log-format", "json", "secret"), "an argument after --log-format is not expected here: "
     "every value belongs to a flag"),
    (serve, ("secret",), "an argument at the start is not expected here: every value belongs to a flag"),
    (serve, ("--", "secret"), "an argument at the start is not expected here: every value belongs to a flag"),
    (serve, ("--p#a/s@s",), "an argument at the start is not expected here: every value belongs to a flag"),
    (serve, ("-x",), "unknown flag -x: --help lists the flags"),
    (pools, ("-o", "json", "--output", "name"), "--output is given twice: it takes one value"),
    (pools, ("-o=",), "--output has an empty value: give one, or leave the flag out"),
    (pools, ("--output", "xml"), "--output must be table, wide, json, yaml or name, not 'xml'"),
    (pools, ("--watch=perhaps",), "--watch must be true or false, not 'perhaps'"),
    (pools, ("c/n/d",), "an argument at the start is not expected here: every value belongs to a flag"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "words", "said"), WORDS)
def test_words_that_are_no_flags_are_refused_without_quoting_what_may_be_secret(
    read: Any, words: tuple[str, ...], said: str
):
    assert refusal(read, *words) == said


# ---- values that are refused

LISTEN = "must be host:port such as 0.0.0.0:8080, [::]:8080 or localhost:8080, the port from 0 to 65535"
BAD_ROUTER = "--router has an unusable URL: it "
ROUTER = "--router must be <id>=<url> such as router-0=http://10.0.1.5:9000"
ORIGIN = "--cors-origin must be * or one origin such as https://ui.example.com, without a path"
SUFFIX = "must be the end of a Kubernetes Service name: up to 62 characters out of a-z 0-9 -, the last no -"
CLUSTER = (
    "must be a cluster's name such as us-east-1: parts of up to 63 characters out of a-z 0-9 -, none of their ends "
    "a -, with . between them"
)
PREFIX = "--redis-prefix must be 1 to 64 characters out of A-Z a-z 0-9 . _ -"
NAMED = (
    "must be a table's name, 3 to 255 characters out of A-Z a-z 0-9 . _ -, or its ARN such as "
    "arn:aws:dynamodb:eu-west-1:111122223333:table/pools"
)
REGION = "must be a region such as eu-west-1: 1 to 63 characters out of a-z 0-9 -"

REFUSED_VALUES = [
    ("--listen", "8080", f"--listen {LISTEN}, not '8080'"),
    ("--listen", ":8080", f"--listen {LISTEN}, not ':8080'"),
    ("--listen", "::1:8080", f"--listen {LISTEN}, not '::1:8080'"),
    ("--listen", "[zz]:8080", f"--listen {LISTEN}, not '[zz]:8080'"),
    ("--listen", "1.2.3.400:8080", f"--listen {LISTEN}, not '1.2.3.400:8080'"),
    ("--listen", "h:65536", f"--listen {LISTEN}, not 'h:65536'"),
    ("--listen", "h:-1", f"--listen {LISTEN}, not 'h:-1'"),
    ("--health-listen", "h", f"--health-listen {LISTEN}, not 'h'"),
    ("--listen", "redis://:secret@h:1", f"--listen {LISTEN}"),
    ("--pool-discovery", "dns", "--pool-discovery must be registrations, mcs or karmada, not 'dns'"),
    ("--registration-storage", "etcd", "--registration-storage must be memory, redis or dynamodb, not 'etcd'"),
    ("--log-format", "xml", "--log-format must be text or json, not 'xml'"),
    ("--log-level", "INFO", "--log-level must be debug, info, warning or error, not 'INFO'"),
    ("--heartbeat-interval-secs", "0", "--heartbeat-interval-secs must be seconds above 0 and at most 86400, not '0'"),
    ("--lease-duration-secs", "86401", "--lease-duration-secs must be seconds above 0 and at most 86400, not '86401'"),
    ("--mass-loss-hold-secs", "-1", "--mass-loss-hold-secs must be seconds from 0 to 86400, not '-1'"),
    ("--drain-delay-secs", "3601", "--drain-delay-secs must be seconds from 0 to 3600, not '3601'"),
    ("--shutdown-grace-secs", "-0.1", "--shutdown-grace-secs must be seconds from 0 to 3600, not '-0.1'"),
    ("--request-timeout-secs", "0", "--request-timeout-secs must be seconds above 0 and at most 3600, not '0'"),
    ("--write-stall-timeout-secs", "0", "--write-stall-timeout-secs must be seconds above 0 and at most 3600, not '0'"),
    ("--transfer-timeout-secs", "0", "--transfer-timeout-secs must be seconds above 0 and at most 86400, not '0'"),
    ("--keep-alive-secs", "0", "--keep-alive-secs must be seconds above 0 and at most 3600, not '0'"),
    ("--rate-limit", "-1", "--rate-limit must be registrations per second from 0 to 1000000, not '-1'"),
    ("--max-body-bytes", "0", "--max-body-bytes must be a whole number of bytes from 1 to 1073741824, not '0'"),
    ("--max-body-bytes", "1.5", "--max-body-bytes must be a whole number of bytes from 1 to 1073741824, not '1.5'"),
    ("--max-streams", "-1", "--max-streams must be a whole number of streams from 0 to 1000000, not '-1'"),
    ("--store-timeout-ms", "0", "--store-timeout-ms must be a whole number of milliseconds from 1 to 600000, not '0'"),
    ("--max-pools", "0", "--max-pools must be a whole number of pools from 1 to 10000000, not '0'"),
    ("--max-connections", "0", "--max-connections must be a whole number of connections from 1 to 1000000, not '0'"),
    ("--max-header-bytes", "255", "--max-header-bytes must be a whole number of bytes from 256 to 1048576, not '255'"),
    ("--cors-origin", "ui.example.com", ORIGIN),
    ("--cors-origin", "https://ui.example.com/", ORIGIN),
    ("--cors-origin", "https://u:secret@ui.example.com", ORIGIN),
    ("--router", "http://10.0.1.5:9000", ROUTER),
    ("--router", "=http://10.0.1.5:9000", ROUTER),
    ("--router", "..=http://10.0.1.5:9000", ROUTER),
    ("--router", " a=http://10.0.1.5:9000", ROUTER),
    ("--router", "a\x07=http://10.0.1.5:9000", ROUTER),
    ("--router", "x" * 254 + "=http://h", ROUTER),
    ("--router", "a=ftp://h",
     BAD_ROUTER + "must be an http or https URL such as http://10.0.3.8:8000"),
    ("--router", "a=http://", BAD_ROUTER + "must be an http or https URL such as http://10.0.3.8:8000"),
    ("--router", "a=http://h\x7f/", BAD_ROUTER + "must be an http or https URL such as http://10.0.3.8:8000"),
    ("--router", "a=http://u:secret@h",
     BAD_ROUTER + "must be an http or https URL without a user name or a password"),
    ("--router", "a=http://h:0", BAD_ROUTER + "has a port outside 1 to 65535"),
    ("--router", "a=http://[1:2]:80", BAD_ROUTER + "has a host in brackets that is no IPv6 address"),
    ("--relay-service-suffix", "-Relay", f"--relay-service-suffix {SUFFIX}, not '-Relay'"),
    ("--relay-service-suffix", "relay-", f"--relay-service-suffix {SUFFIX}, not 'relay-'"),
    ("--relay-service-suffix", ".relay", f"--relay-service-suffix {SUFFIX}, not '.relay'"),
    ("--frontend-service-suffix", "x" * 63, f"--frontend-service-suffix {SUFFIX}"),
    *(("--local-cluster-id", text, f"--local-cluster-id {CLUSTER}, not {text!r}")
      for text in ("US-east", "us_east", "-us", "us-", ".us", "us.", "a..b", "a.-b", "..", "us\n", "é", "a b")),
    ("--local-cluster-id", "x" * 64, f"--local-cluster-id {CLUSTER}"),
    ("--local-cluster-id", "a." * 126 + "ab", f"--local-cluster-id {CLUSTER}"),
    ("--redis-prefix", "a/b", f"{PREFIX}, not 'a/b'"),
    ("--redis-prefix", "{a}", f"{PREFIX}, not '{{a}}'"),
    ("--redis-prefix", "a\n", f"{PREFIX}, not 'a\\n'"),
    ("--redis-prefix", "x" * 65, PREFIX),
    *(("--dynamodb-table", text, f"--dynamodb-table {NAMED}, not {text!r}")
      for text in ("ab", "a b", "a/b", "pools\n", "tafel-ä", "arn:aws:dynamodb:eu-west-1:111122223333:table/ab",
                   "arn:aws:s3:eu-west-1:111122223333:table/pools", "arn:aws:dynamodb:eu-west-1:1:table/pools")),
    ("--dynamodb-table", "x" * 256, f"--dynamodb-table {NAMED}"),
    ("--dynamodb-table", ARN + "/index/i", f"--dynamodb-table {NAMED}, not {ARN + '/index/i'!r}"),
    *(("--dynamodb-region", text, f"--dynamodb-region {REGION}, not {text!r}")
      for text in ("EU-WEST-1", "eu_west_1", "eu-west-1.", "eu-west-1\n", "-")),
    ("--dynamodb-region", "eu-west-1b",
     "--dynamodb-region must be a region, such as eu-west-1, and not a zone of it, not 'eu-west-1b'"),
    ("--dynamodb-endpoint-url", "dynamodb:8000",
     "--dynamodb-endpoint-url must be an http or https URL such as http://10.0.3.8:8000"),
    ("--dynamodb-endpoint-url", "http://u:secret@h",
     "--dynamodb-endpoint-url must be an http or https URL without a user name or a password"),
    ("--dynamodb-endpoint-url", "http://h/?a=b",
     "--dynamodb-endpoint-url must be the base URL of a service, without ? and #"),
]  # fmt: skip

NUMBERS = [flag.name for flag in settings.flags() if flag.metavar in ("SECONDS", "NUMBER", "RATE")]
NO_NUMBERS = ["nan", "inf", "-inf", "1e999", "9" * 5000, "abc", "1_0", "0x10", "1,5", "5s", "\u0663", "--1", "1 ", "+"]


@pytest.mark.parametrize(("name", "text", "said"), REFUSED_VALUES)
def test_a_bad_value_is_refused_naming_the_flag_and_what_it_must_be(name: str, text: str, said: str):
    assert refusal(serve, *company(name), f"{name}={text}") == said


@pytest.mark.parametrize(("name", "text", "said"), REFUSED_VALUES)
def test_a_bad_variable_is_refused_naming_the_variable(name: str, text: str, said: str):
    if text.strip() != text or (" " in text and flag_named(name).many):
        return  # white space separates or surrounds values in a variable
    variable = flag_named(name).variable
    others = company(name) if name != "--registration-storage" else ()
    assert refusal(serve, *others, **{variable: text}) == said.replace(name, variable, 1)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: text[:8])
def test_what_is_no_number_is_refused_naming_the_range(name: str, text: str):
    said = refusal(serve, f"{name}={text}")
    assert said.startswith(f"{name} must be ")
    assert " from " in said or " above " in said
    assert len(said) < 200


# ---- Redis URLs, and that nothing of a password is ever repeated (F23)

SECRETS = ("secret1", "p#a", "p#", "s@s", "w%rd", "%rd", "Secr3t")
BROKEN_REDIS_URLS = [
    ("redis://:p#a/s@s:w%rd@127.0.0.1:6379/0", "is not a usable Redis URL: write special characters"),
    ("redis://:secret1@[::1:6379/0", "has no usable host and port"),
    ("redis://:secret1@", "has no usable host and port"),
    ("redis://:secret1@host:99999", "has no usable host and port"),
    ("redis://:secret1@host:0", "has no usable host and port"),
    ("redis://:secret1@ho st", "must not contain white space"),
    ("redis://:secret1\n@host", "must not contain white space"),
    ("redis://:Secr3t/more@host", "is not a usable Redis URL"),
    ("redis://:Secr3t?more@host", "is not a usable Redis URL"),
    ("redis://:Secr3t#more@host", "is not a usable Redis URL"),
    ("redis://:Secr3t@more@host", "is not a usable Redis URL"),
    ("redis://:Secr3t%more@host", "is not a usable Redis URL"),
    ("redis://:Secr3t%ff@host", "is not a usable Redis URL"),
    ("redis://:Secr3t", "has no usable host and port"),
    ("redis://host:Secr3t", "has no usable host and port"),
    ("redis://host/Secr3t", "must name the database by its number"),
    ("redis://host/-1", "must name the database by its number"),
    ("redis://host/1?db=2", "must name the database once"),
    ("redis://host?Secr3t=1", "may have db=, username= and password= after ? and nothing else"),
    ("redis://host?password=", "may have db=, username= and password= after ? and nothing else"),
    ("redis://host?password=Secr3t%25", "before the host"),
    ("redis://host?socket_timeout=Secr3t", "nothing else"),
    (
        "http://:Secr3t@host",
        "must begin with redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or "
        "rediss+cluster://",
    ),
    ("Secr3t", "must begin with redis://"),
    ("unix://run/redis.sock", "must name the socket by its absolute path"),
    ("unix://:Secr3t@run/redis.sock", "must name the socket by its absolute path"),
    ("rediss://:Secr3t@ho/st:1", "must name the database by its number"),
    ("redis+sentinel://:Secr3t@h1:26379,h2:26379", "must name the Sentinel service"),
    ("redis+sentinel://:Secr3t@h1:26379,/main/0", "expected redis+sentinel://host:port,host:port"),
    ("redis+sentinel://h1/main/x", "must name the database by its number"),
    ("redis+cluster://:Secr3t@h1,h2/3", "must not name a database"),
    ("redis+cluster://:Secr3t@h1?db=3", "must not name a database"),
    ("rediss+sentinel://:Secr3t@h1", "must name the Sentinel service: rediss+sentinel://"),
    ("rediss+cluster://:Secr3t@h1:1,[::1", "expected rediss+cluster://host:port,host:port"),
    ("redis+cluster://Secr3t/more@h1", "is not a usable Redis URL"),
    ("redis+sentinel://:p,Secr3t@h 1/main", "must not contain white space"),
]


@pytest.mark.parametrize(("url", "said"), BROKEN_REDIS_URLS)
def test_f23_an_unusable_redis_url_is_refused_by_name_without_any_part_of_the_password(url: str, said: str):
    for source, text in (
        ("--redis-url", refusal(serve, "--redis-url", url)),
        ("DISCOVERY_REDIS_URL", refusal(serve, DISCOVERY_REDIS_URL=url)),
    ):
        assert text.startswith(f"{source} ")
        assert said in text
        assert not [secret for secret in SECRETS if secret in text]


@given(st.lists(st.sampled_from([*"#/@:%?[]&= \\", "Zq9", "\u00e9", "%41"]), min_size=1).map("".join))
def test_f23_whatever_the_password_is_made_of_no_refusal_repeats_it(password: str):
    for url in (
        f"redis://:{password}@host:6379/0",
        f"redis://host?password={password}",
        f"redis://{password}",
        f"redis+sentinel://:{password}@h1,h2/main/0",
        f"rediss+cluster://u:{password}@h1,h2",
    ):
        said = refusal_if_any("--redis-url", url)
        assert said is None or not [part for part in ("Zq9", "\u00e9", url) if part in said]


def test_f23_a_url_given_for_another_flag_is_not_repeated_either():
    for flag in settings.flags():
        for words in ((flag.name, "redis://:Zq9@h"), (flag.name, "x", "redis://:Zq9@h")):
            assert "Zq9" not in (refusal_if_any(*words) or "")


def test_a_misspelt_variable_is_named_without_its_value():
    assert "Zq9" not in "".join(serve(DISCOVERY_REDIS_URI="redis://:Zq9@h").warnings)


@pytest.fixture
def password_file(tmp_path: Any) -> Any:
    path = tmp_path / "password"
    path.write_text("p#a/s@s:w%rd\n")
    return path


def test_the_password_may_come_from_a_file(password_file: Any):
    read = serve(*REDIS, "--redis-password-path", str(password_file))
    assert read.redis_password_path == str(password_file)
    assert serve("--redis-url", "redis://user@h", "--redis-password-path", str(password_file)).redis_url


REDIS_URLS = [
    ("redis://h", RedisUrl(kind="server", hosts=(Address("h", 6379),)), "redis://h:6379/0"),
    ("rediss://u:p%40@[::1]:1/2",
     RedisUrl(kind="server", tls=True, hosts=(Address("::1", 1),), database=2, user="u", password="p@"),
     "rediss://[::1]:1/2"),
    ("redis://h?db=3&username=u&password=p",
     RedisUrl(kind="server", hosts=(Address("h", 6379),), database=3, user="u", password="p"), "redis://h:6379/3"),
    ("redis://:p%2Fq@h/", RedisUrl(kind="server", hosts=(Address("h", 6379),), password="p/q"), "redis://h:6379/0"),
    ("unix://u:p@/run/my%20redis.sock?db=4",
     RedisUrl(kind="socket", path="/run/my redis.sock", database=4, user="u", password="p"),
     "unix:///run/my redis.sock?db=4"),
    ("redis+sentinel://u:p,q@a,b:1/main/5",
     RedisUrl(kind="sentinel", hosts=(Address("a", 26379), Address("b", 1)), service="main", database=5,
              user="u", password="p,q"),
     "redis+sentinel://a:26379,b:1/main/5"),
    ("rediss+sentinel://a/main", RedisUrl(kind="sentinel", tls=True, hosts=(Address("a", 26379),), service="main"),
     "rediss+sentinel://a:26379/main/0"),
    ("rediss+cluster://:p@a:1,[fd00::1]",
     RedisUrl(kind="cluster", tls=True, hosts=(Address("a", 1), Address("fd00::1", 6379)), password="p"),
     "rediss+cluster://a:1,[fd00::1]:6379"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said", "shown"), REDIS_URLS)
def test_what_a_redis_url_says_and_what_people_are_shown_of_it(text: str, said: RedisUrl, shown: str):
    assert serve("--redis-url", text).redis_url == text
    assert parse_redis_url(text) == said
    assert (str(said), repr(said)) == (shown, shown)


REDIS_FILES = [
    ("redis_password_path", "redis://h"),
    ("redis_sentinel_password_path", "redis+sentinel://h/main"),
    ("redis_tls_ca_path", "rediss://h"),
    ("redis_tls_cert_path", "rediss+sentinel://h/main"),
    ("redis_tls_key_path", "rediss+cluster://h"),
]


@pytest.mark.parametrize(("field", "url"), REDIS_FILES)
def test_a_file_for_redis_that_cannot_be_used_is_refused_without_repeating_the_path(
    field: str, url: str, password_file: Any, tmp_path: Any
):
    pair = ("redis_tls_cert_path", "redis_tls_key_path")
    others = {f"DISCOVERY_{name.upper()}": __file__ for name in pair if field in pair and name != field}

    def variables(path: Any) -> dict[str, str]:
        return {f"DISCOVERY_{field.upper()}": str(path), **others}

    def said(path: Any) -> str:
        return refusal(serve, "--redis-url", url, **variables(path))

    assert getattr(serve("--redis-url", url, **variables(password_file)), field) == str(password_file)
    name = f"DISCOVERY_{field.upper()} names a file that"
    assert said("hunter2") == f"{name} cannot be found (No such file or directory)"
    assert said(tmp_path) == f"{name} is a directory"
    password_file.write_text("")
    assert said(password_file) == f"{name} is empty"
    assert said("a\x00b").startswith(f"{name} cannot be found")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:x@h",
        "redis://u:x@h/1",
        "redis://h?password=x",
        "unix://:x@/run/s",
        "redis+sentinel://:x@h/main",
        "rediss+cluster://u:x@h",
    ],
)
def test_two_passwords_are_refused(url: str, password_file: Any):
    said = refusal(serve, "--redis-url", url, "--redis-password-path", str(password_file))
    assert said == "--redis-url has a password and --redis-password-path another: give one of them"


# ---- flags of other modes and stores

VALID = {"--relay-service-suffix": "-r", "--frontend-service-suffix": "-f", "--redis-password-path": __file__,
         "--redis-url": "redis://h", "--router": "a=http://h", "--dynamodb-table": "pools",
         "--dynamodb-endpoint-url": "http://h"}  # fmt: skip

FOREIGN = [
    ("--pool-discovery registrations", MCS, "--pool-discovery is mcs"),
    ("--pool-discovery registrations", ("--pool-discovery=karmada",), "--pool-discovery is karmada"),
    ("--pool-discovery mcs or karmada", (), "--pool-discovery is registrations"),
    ("--registration-storage redis", ("--registration-storage=memory",), "--registration-storage is memory"),
    ("--registration-storage redis", DYNAMODB, "--registration-storage is dynamodb"),
    ("--registration-storage dynamodb", (), "--registration-storage is memory"),
    ("--registration-storage dynamodb", REDIS, "--registration-storage is redis"),
]


@pytest.mark.parametrize(("wanted", "mode", "chosen"), FOREIGN)
def test_a_flag_or_variable_of_another_mode_is_refused_naming_it_and_the_mode(
    wanted: str, mode: tuple[str, ...], chosen: str
):
    tried = [flag for flag in settings.flags() if flag.group == f"With {wanted}"]
    assert tried
    for flag in tried:
        text = VALID.get(flag.name, "x1")
        assert refusal(serve, *mode, f"{flag.name}={text}") == f"{flag.name} needs {wanted}, but {chosen}"
        assert refusal(serve, *mode, **{flag.variable: text}) == f"{flag.variable} needs {wanted}, but {chosen}"


def test_redis_flags_without_a_url_belong_to_another_store():
    said = "--redis-prefix needs --registration-storage redis, but --registration-storage is memory"
    assert refusal(serve, "--redis-prefix", "x") == said


# ---- contradictions

CONTRADICTIONS = [
    (("--lease-duration-secs", "5"), {}, "--lease-duration-secs (5) must be above --heartbeat-interval-secs (5)"),
    (("--heartbeat-interval-secs=15",), {}, "--lease-duration-secs (15) must be above --heartbeat-interval-secs (15)"),
    (("--heartbeat-interval-secs", "20.5"), {"DISCOVERY_LEASE_DURATION_SECS": "20"},
     "DISCOVERY_LEASE_DURATION_SECS (20) must be above --heartbeat-interval-secs (20.5)"),
    (("--heartbeat-interval-secs=0.0001", "--lease-duration-secs=0.0005"), {},
     "--lease-duration-secs must be at least a millisecond (0.001)"),
    (("--tls-cert-path", "c"), {}, "--tls-cert-path needs --tls-key-path too: both or neither"),
    (("--tls-key-path", "k"), {}, "--tls-key-path needs --tls-cert-path too: both or neither"),
    ((), {"DISCOVERY_TLS_KEY_PATH": "k"}, "DISCOVERY_TLS_KEY_PATH needs --tls-cert-path too: both or neither"),
    (("--tls-client-ca-path", "a"), {}, "--tls-client-ca-path needs --tls-cert-path too"),
    (("--tls-client-ca-path", "a", "--tls-cert-path", "c", "--tls-key-path", "k"), {},
     "--tls-client-ca-path needs --health-listen too"),
    (("--tls-cert-path=/none", f"--tls-key-path={__file__}"), {},
     "--tls-cert-path names a file that cannot be found (No such file or directory)"),
    (("--tls-cert-path", __file__, "--tls-key-path=/none"), {},
     "--tls-key-path names a file that cannot be found (No such file or directory)"),
    (("--tls-cert-path", __file__, "--tls-key-path", __file__, "--health-listen=h:1"),
     {"DISCOVERY_TLS_CLIENT_CA_PATH": "/"}, "DISCOVERY_TLS_CLIENT_CA_PATH names a file that is a directory"),
    (("--health-listen", "0.0.0.0:8080"), {}, "--health-listen must be another address than --listen (0.0.0.0:8080)"),
    (("--router", "a=http://h", "--router", "b=http://i", "--router", "a=http://j"), {},
     "--router has the id 'a' twice: each router has its own"),
    ((), {"DISCOVERY_ROUTER": "a=http://h a=http://h"},
     "DISCOVERY_ROUTER has the id 'a' twice: each router has its own"),
    (("--registration-storage", "redis"), {}, "--registration-storage redis needs --redis-url"),
    ((*REDIS, "--redis-tls-ca-path", "ca"), {},
     "--redis-tls-ca-path needs --redis-url with rediss://, rediss+sentinel:// or rediss+cluster://"),
    (("--redis-url", "redis+sentinel://h/main"), {"DISCOVERY_REDIS_TLS_KEY_PATH": "key"},
     "DISCOVERY_REDIS_TLS_KEY_PATH needs --redis-url with rediss://, rediss+sentinel:// or rediss+cluster://"),
    (("--redis-url", "rediss://h", "--redis-tls-cert-path", "c"), {},
     "--redis-tls-cert-path needs --redis-tls-key-path too: both or neither"),
    (("--redis-url", "rediss+cluster://h", "--redis-tls-key-path", "k"), {},
     "--redis-tls-key-path needs --redis-tls-cert-path too: both or neither"),
    ((*REDIS, "--redis-sentinel-user", "u"), {},
     "--redis-sentinel-user needs --redis-url with redis+sentinel:// or rediss+sentinel://"),
    (("--redis-sentinel-password-path", "p"), {"DISCOVERY_REDIS_URL": "rediss+cluster://h"},
     "--redis-sentinel-password-path needs DISCOVERY_REDIS_URL with redis+sentinel:// or rediss+sentinel://"),
    (("--redis-url", "redis+sentinel://h/main", "--redis-sentinel-user", "u"), {},
     "--redis-sentinel-user needs --redis-sentinel-password-path too"),
    ((*MCS, "--relay-service-suffix=-x", "--frontend-service-suffix=-x"), {},
     "--relay-service-suffix (-x) and --frontend-service-suffix (-x) must differ, "
     "and none may end in the other: a Service would be both"),
    ((*MCS, "--relay-service-suffix=-a-frontend"), {},
     "--relay-service-suffix (-a-frontend) and --frontend-service-suffix (-frontend) must differ, "
     "and none may end in the other: a Service would be both"),
    ((*MCS, "--frontend-service-suffix=-x-pool-relay"), {},
     "--relay-service-suffix (-pool-relay) and --frontend-service-suffix (-x-pool-relay) must differ, "
     "and none may end in the other: a Service would be both"),
    (MCS, {"DISCOVERY_FRONTEND_SERVICE_SUFFIX": "-relay"},
     "--relay-service-suffix (-pool-relay) and DISCOVERY_FRONTEND_SERVICE_SUFFIX (-relay) must differ, "
     "and none may end in the other: a Service would be both"),
    ((*MCS, "--kube-context", "a", "--kube-context=b", "--kube-context=a"), {},
     "--kube-context has 'a' twice: a cluster is watched once"),
    (MCS, {"DISCOVERY_KUBE_CONTEXT": "a b\n b"}, "DISCOVERY_KUBE_CONTEXT has 'b' twice: a cluster is watched once"),
    ((*MCS, "--kube-namespace", "a", "--kube-namespace=b", "--kube-namespace=a"), {},
     "--kube-namespace has 'a' twice: a namespace is watched once"),
    (MCS, {"DISCOVERY_KUBE_NAMESPACE": "a b\n b"},
     "DISCOVERY_KUBE_NAMESPACE has 'b' twice: a namespace is watched once"),
    ((*MCS, "--router-namespace=c", "--router-service=s"), {"DISCOVERY_KUBE_NAMESPACE": "b a"},
     "--router-namespace (c) must be one of DISCOVERY_KUBE_NAMESPACE (b, a): nothing else is watched"),
    ((*MCS, "--router-namespace", "n"), {}, "--router-namespace needs --router-service too: both or neither"),
    ((*MCS, "--router-service", "s"), {}, "--router-service needs --router-namespace too: both or neither"),
    (MCS, {"DISCOVERY_ROUTER_SERVICE": "s"}, "DISCOVERY_ROUTER_SERVICE needs --router-namespace too: both or neither"),
    ((*MCS, "--router-port-name", "p"), {},
     "--router-port-name needs --router-namespace and --router-service too"),
    ((*MCS, *DYNAMODB, "--kube-context=a", "--kube-context=a"), {},
     "--kube-context has 'a' twice: a cluster is watched once"),
    (DYNAMODB, {}, "--registration-storage dynamodb needs --dynamodb-table"),
    (("--dynamodb-region=eu-west-1",), {"DISCOVERY_REGISTRATION_STORAGE": "dynamodb"},
     "DISCOVERY_REGISTRATION_STORAGE dynamodb needs --dynamodb-table"),
    ((*DYNAMODB, "--dynamodb-table", ARN, "--dynamodb-region", "us-east-1"), {},
     "--dynamodb-table has an ARN of eu-west-1, and --dynamodb-region is us-east-1: a table is in its own region"),
    ((*DYNAMODB, "--dynamodb-table", ARN), {"DISCOVERY_DYNAMODB_REGION": "us-east-1"},
     "--dynamodb-table has an ARN of eu-west-1, and DISCOVERY_DYNAMODB_REGION is us-east-1: a table is in its own "
     "region"),
    ((*DYNAMODB, *TABLE), {"AWS_REGION": "eu-west-1a"},
     "AWS_REGION must be a region, such as eu-west-1, and not a zone of it"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "variables", "said"), CONTRADICTIONS)
def test_a_contradiction_is_refused(words: tuple[str, ...], variables: dict[str, str], said: str):
    assert refusal(serve, *words, **variables) == said


@pytest.mark.parametrize(
    "name",
    [
        "--relay-port-name",
        "--frontend-port-name",
        "--router-namespace",
        "--router-service",
        "--router-port-name",
        "--kube-namespace",
    ],
)
@pytest.mark.parametrize("text", ["A", "a_b", "-a", "a-", "a.b", "x" * 64])
def test_a_name_that_kubernetes_would_not_take_is_refused(name: str, text: str):
    said = refusal(serve, *MCS, f"{name}={text}")
    assert said.startswith(f"{name} must be a Kubernetes name: 1 to 63 characters")


@pytest.mark.parametrize("mode", ["mcs", "karmada"])
@pytest.mark.parametrize("store", [(), REDIS])
def test_contexts_are_kept_in_order_on_every_store(mode: str, store: tuple[str, ...]):
    words = ("--pool-discovery", mode, "--kube-context", "b", "--kube-context=a", "--local-cluster-id=east", *store)
    read = serve(*words)
    assert (read.pool_discovery, read.kube_context, read.local_cluster_id) == (mode, ("b", "a"), "east")
    by_variable = serve(*words[:2], *words[5:], DISCOVERY_KUBE_CONTEXT="b a")
    assert by_variable.kube_context == read.kube_context


@pytest.mark.parametrize("mode", ["mcs", "karmada"])
def test_namespaces_are_kept_in_order_with_that_of_the_routers_among_them(mode: str):
    words = ("--pool-discovery", mode, "--router-namespace=b", "--router-service=s")
    assert serve(*words, "--kube-namespace=c", "--kube-namespace", "b").kube_namespace == ("c", "b")
    assert serve(*words, DISCOVERY_KUBE_NAMESPACE=" c\n\tb ").kube_namespace == ("c", "b")


def test_the_help_says_whose_name_the_local_cluster_id_is_among_several_contexts():
    assert "With several --kube-context it is the name of the first." in flag_named("--local-cluster-id").help


def test_the_same_port_zero_is_no_contradiction():
    assert serve("--listen", "h:0", "--health-listen", "h:0").health_listen == Address("h", 0)


# ---- DynamoDB

REGIONS = [
    ((), {}, None),
    ((), {"AWS_REGION": " "}, None),
    ((), {"AWS_REGION": "eu-west-1\n"}, "eu-west-1"),
    (("--dynamodb-region", "us-east-1"), {"AWS_REGION": "eu-west-1"}, "us-east-1"),
    ((), {"AWS_REGION": "eu-west-1", "DISCOVERY_DYNAMODB_REGION": "us-east-1"}, "us-east-1"),
    (("--dynamodb-table", ARN), {}, "eu-west-1"),
    (("--dynamodb-table", ARN), {"AWS_REGION": "us-east-1"}, "eu-west-1"),
    (("--dynamodb-table", ARN, "--dynamodb-region", "eu-west-1"), {}, "eu-west-1"),
]


@pytest.mark.parametrize(("words", "variables", "region"), REGIONS)
def test_the_region_of_the_table_is_the_nearest_that_is_named(
    words: tuple[str, ...], variables: dict[str, str], region: str | None
):
    table = () if "--dynamodb-table" in words else TABLE
    assert serve(*DYNAMODB, *table, *words, **variables).dynamodb_region == region


@pytest.mark.parametrize("words", [(), REDIS])
def test_the_region_of_aws_is_nothing_to_other_stores(words: tuple[str, ...]):
    read = serve(*words, AWS_REGION="no region")
    assert read.dynamodb_region is None
    assert read.warnings == ()


def test_what_is_short_for_dynamodb_is_accepted_with_a_warning():
    lease = ("--lease-duration-secs=4.5", "--heartbeat-interval-secs=1")
    timeout = ("--store-timeout-ms=499",)
    assert serve(*DYNAMODB, *TABLE, *lease, *timeout).warnings == (
        "--lease-duration-secs (4.5) is short for dynamodb, where replicas see a renewal up to a second later: 5 s and "
        "more leave room",
        "--store-timeout-ms (499) is short for dynamodb: a call may have to open a connection and to renew credentials",
    )
    assert serve(*REDIS, *lease, *timeout).warnings == ()
    enough = ("--lease-duration-secs=5", "--heartbeat-interval-secs=1", "--store-timeout-ms=500")
    assert serve(*DYNAMODB, *TABLE, *enough).warnings == ()


@pytest.mark.parametrize("mode", ["registrations", "mcs", "karmada"])
def test_dynamodb_goes_with_every_way_to_find_addresses(mode: str):
    read = serve(*DYNAMODB, *TABLE, "--pool-discovery", mode)
    assert (read.pool_discovery, read.registration_storage, read.dynamodb_table) == (mode, "dynamodb", "pools")


@pytest.mark.parametrize(("read", "words"), [(pools, ()), (register, POOL), (doctor, ("c/n/d",))])
def test_every_command_that_asks_a_service_takes_a_token(read: Any, words: tuple[str, ...]):
    assert read(*words).token_path is None
    assert read(*words, "--token-path", "t").token_path == "t"
    assert read(*words, DISCOVERY_TOKEN_PATH="t").token_path == "t"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://discovery:8080", "discovery"),
        ("http://127.0.0.1:8080,HTTP://10.0.0.1/x", "10.0.0.1"),
        ("https://a,http://[fd00::1]:8080", "fd00::1"),
        ("http://127.0.0.1.example.com", "127.0.0.1.example.com"),
    ],
)
def test_a_token_that_travels_in_the_open_is_warned_about_once(url: str, host: str):
    said = f"the token goes to {host} unencrypted, and whoever reads it on its way can use it: use https"
    assert pools("--url", url, "--token-path", "t").warnings == (said,)
    assert pools("--url", url).warnings == ()


@pytest.mark.parametrize("url", ["https://discovery", "http://localhost:1", "http://127.0.0.2", "http://[::1]:8080"])
def test_a_token_that_nobody_can_read_on_its_way_needs_no_warning(url: str):
    assert pools("--url", url, "--token-path", "t").warnings == ()


def test_the_file_of_tokens_has_to_be_there(tmp_path: Path):
    assert refusal(serve, "--auth-tokens-path", str(tmp_path / "t")) == (
        "--auth-tokens-path names a file that cannot be found (No such file or directory)"
    )
    (tmp_path / "t").touch()
    assert refusal(serve, DISCOVERY_AUTH_TOKENS_PATH=str(tmp_path / "t")) == (
        "DISCOVERY_AUTH_TOKENS_PATH names a file that is empty"
    )
    (tmp_path / "t").write_text("tokens: []")
    assert serve("--auth-tokens-path", str(tmp_path / "t")).auth_tokens_path == str(tmp_path / "t")


# ---- https, for the commands that ask a service


HTTPS = ("--url", "http://a,https://b")
CLIENT_TLS = [
    ((*HTTPS, "--cert-path", __file__), {}, "--cert-path needs --key-path too: both or neither"),
    (HTTPS, {"DISCOVERY_KEY_PATH": __file__}, "DISCOVERY_KEY_PATH needs --cert-path too: both or neither"),
    (("--ca-path", __file__), {}, "--ca-path needs --url with https://"),
    (("--key-path", __file__, "--cert-path", __file__), {"DISCOVERY_URL": "http://a"},
     "--cert-path needs DISCOVERY_URL with https://"),
    ((*HTTPS, "--ca-path", "/none"), {},
     "--ca-path names a file that cannot be found (No such file or directory)"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "words"), [(pools, ()), (register, POOL), (doctor, ("c/n/d",))])
def test_the_files_for_https_go_together_and_need_it(read: Any, words: tuple[str, ...]):
    for more, variables, said in CLIENT_TLS:
        assert refusal(read, *words, *more, **variables) == said
    given = read(*words, *HTTPS, "--ca-path", __file__, "--cert-path", __file__, "--key-path", __file__)
    assert settings.access(given) == {
        "urls": ("http://a", "https://b"),
        "token_path": None,
        "ca_path": __file__,
        "cert_path": __file__,
        "key_path": __file__,
    }


# ---- warnings


def test_a_lease_below_twice_the_heartbeat_is_accepted_with_a_warning():
    read = serve("--lease-duration-secs", "9.5")
    assert read.lease_duration_secs == 9.5
    assert read.warnings == (
        "--lease-duration-secs (9.5) is below twice --heartbeat-interval-secs (5): "
        "one lost heartbeat drops a healthy pool",
    )
    assert serve("--lease-duration-secs", "10").warnings == ()


UNKNOWN = [
    ("DISCOVERY_LISTN", "the variable DISCOVERY_LISTN is unknown and ignored: did you mean DISCOVERY_LISTEN?"),
    (
        "DISCOVERY_REDIS_URI",
        "the variable DISCOVERY_REDIS_URI is unknown and ignored: did you mean DISCOVERY_REDIS_URL?",
    ),
    ("discovery_listen", "the variable discovery_listen is unknown and ignored: did you mean DISCOVERY_LISTEN?"),
    ("DISCOVERY_a\nb", "the variable DISCOVERY_a\\nb is unknown and ignored"),
]


@pytest.mark.parametrize(("name", "warning"), UNKNOWN)
def test_an_unknown_variable_is_ignored_with_one_warning_that_names_the_nearest(name: str, warning: str):
    for read in (serve, pools, doctor, lambda **variables: register(*POOL, **variables)):
        assert [text.removesuffix(text[len(warning) :]) for text in read(**{name: "x"}).warnings] == [warning]
        assert read(**{name: ""}).warnings == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DISCOVERY_URL", "http://h"),  # another command's
        ("DISCOVERY_SERVICE_HOST", "10.0.0.1"),  # the rest is what Kubernetes sets beside a Service named discovery
        ("DISCOVERY_SERVICE_PORT", "8080"),
        ("DISCOVERY_SERVICE_PORT_HTTP", "8080"),
        ("DISCOVERY_PORT", "tcp://10.0.0.1:8080"),
        ("DISCOVERY_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("DISCOVERY_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("DISCOVERY_REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("DISCOVERY_REDIS_SERVICE_HOST", "10.0.0.1"),
        ("HOME", "/"),
    ],
)
def test_a_variable_that_is_somebody_elses_is_no_mistake(name: str, text: str):
    assert serve(**{name: text}).warnings == ()


# ---- discovery pools


def test_pools_without_flags():
    assert pools() == PoolsSettings(url=("http://127.0.0.1:8080",), output="table", watch=False)


POOLS_VALUES = [
    (("--url", "http://a:1,https://b/x/"), "url", ("http://a:1", "https://b/x")),
    (("-o", "json"), "output", "json"),
    (("-ojson",), "output", "json"),
    (("-o=wide",), "output", "wide"),
    (("--output", "yaml"), "output", "yaml"),
    (("--watch",), "watch", True),
    (("--watch=false",), "watch", False),
    (("--model", "a", "--model", "b c"), "model", ("a", "b c")),
    (("--cluster-id", "c"), "cluster_id", ("c",)),
    (("--namespace", "n"), "namespace", ("n",)),
    (("--capability", "chat", "--capability=tools"), "capability", ("chat", "tools")),
    (("--region=-r",), "region", ("-r",)),
]


@pytest.mark.parametrize(("words", "field", "value"), POOLS_VALUES)
def test_pools_values(words: tuple[str, ...], field: str, value: Any):
    assert getattr(pools(*words), field) == value


def test_pools_from_variables():
    read = pools(
        DISCOVERY_URL="http://a, http://b", DISCOVERY_OUTPUT="name", DISCOVERY_WATCH="1", DISCOVERY_CAPABILITY="x y"
    )
    assert (read.url, read.output, read.watch, read.capability) == (("http://a", "http://b"), "name", True, ("x", "y"))
    assert pools("--watch=false", DISCOVERY_WATCH="true").watch is False


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a,", "--url must be an http or https URL such as http://10.0.3.8:8000"),
        ("ftp://a", "--url must be an http or https URL such as http://10.0.3.8:8000"),
        ("http://u:Zq9@a", "--url must be an http or https URL without a user name or a password"),
        ("http://a?x=1", "--url must be the base URL of a service, without ? and #"),
        ("http://a:70000", "--url has a port outside 1 to 65535"),
    ],
)
def test_a_bad_url_of_a_service_is_refused(url: str, said: str):
    assert refusal(pools, "--url", url) == said
    assert refusal(doctor, "--url", url) == said
    assert refusal(register, *POOL, "--url", url) == said


# ---- discovery doctor


def test_doctor_without_words_asks_about_every_pool():
    assert doctor() == DoctorSettings(url=("http://127.0.0.1:8080",), keys=(), output="table")


DOCTOR_VALUES = [
    (("c1/n1/p1",), "keys", (PoolKey("c1", "n1", "p1"),)),
    (("c1/n1/p1", "-o", "json", "c2/n2/p2"), "keys", (PoolKey("c1", "n1", "p1"), PoolKey("c2", "n2", "p2"))),
    (("-ojson", "c/n/p"), "output", "json"),
    (("eu%2Fwest/a%20b/%C3%A9%25",), "keys", (PoolKey("eu/west", "a b", "é%"),)),
    (("%2Dc/n/%2e%2E.",), "keys", (PoolKey("-c", "n", "..."),)),
    (("c=1/n+2/p",), "keys", (PoolKey("c=1", "n+2", "p"),)),
    (("KEY/KEY/KEY",), "keys", (PoolKey("KEY", "KEY", "KEY"),)),
    (("--url", "http://a:1,https://b/x/"), "url", ("http://a:1", "https://b/x")),
    (("--output", "wide"), "output", "wide"),
    (("--all-replicas", "c1/n1/p1"), "all_replicas", True),
]


@pytest.mark.parametrize(("words", "field", "value"), DOCTOR_VALUES)
def test_doctor_values(words: tuple[str, ...], field: str, value: Any):
    assert getattr(doctor(*words), field) == value


def test_doctor_from_variables_which_name_no_pools():
    read = doctor(DISCOVERY_URL="http://a", DISCOVERY_OUTPUT="name", DISCOVERY_KEYS="c/n/p")
    assert (read.url, read.output, read.keys) == (("http://a",), "name", ())
    (warning,) = read.warnings
    assert warning.startswith("the variable DISCOVERY_KEYS is unknown and ignored")


@given(st.lists(st.tuples(*[st.text("ab/%~+=.é -", min_size=1).map(lambda t: f"x{t}x")] * 3).map(PoolKey._make)))
def test_keys_are_read_as_paths_write_them(keys: list[PoolKey]):
    assert doctor(*map(key_path, keys)).keys == tuple(keys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("c/n",), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not 'c/n'"),
        (("c/n/p/x",), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not 'c/n/p/x'"),
        (("c/n/p", "c"), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not 'c'"),
        (("",), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not ''"),
        (("KEY",), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name, not 'KEY'"),
        (("c/n/p", "--", "-c/n/p"), "an argument after KEY is not expected here: every value belongs to a flag"),
        (("c//p",), "KEY is wrong: namespace must have 1 to 253 characters, has 0, not 'c//p'"),
        (("%FF/n/p",), "KEY is wrong: the percent-encoded bytes are not UTF-8, not '%FF/n/p'"),
        (("c/n/p%0A",), "KEY is wrong: dgd_name must not contain control characters, not 'c/n/p%0A'"),
        (("c/n/\udcff",), "KEY is not UTF-8 text"),
        (("http://u:Zq9@h/n",), "KEY is wrong: a pool is named by cluster_id/namespace/dgd_name"),
        (("-c/n/p",), "unknown flag -c: --help lists the flags"),
        (("--keys", "c/n/p"), "unknown flag --keys: --help lists the flags"),
        (("c/n/p", "--watch"), "unknown flag --watch: --help lists the flags"),
        (("--output", "xml"), "--output must be table, wide, json, yaml or name, not 'xml'"),
    ],
)
def test_what_names_no_pool_is_refused(words: tuple[str, ...], said: str):
    assert refusal(doctor, *words) == said


# ---- discovery register


def test_a_registration_from_flags():
    read = register(
        *POOL, "--relay=http://r:1", "--relay=http://r:2", "--frontend", "http://f:1", "--capability", "chat",
        "--capacity", "nvidia.com/gpu=16.0", "--capacity", "tokens=1.5e3:1/s", "--region", "eu", "--zone", "eu-1",
        "--latitude=-33.9", "--longitude", "18.4", "--instance-id", "i1", "--metadata", "a=b=c", "--metadata", "d=",
        "--keep-on-exit", "--url", "http://a", "--log-format", "json", "--log-level", "error",
    )  # fmt: skip
    assert read == RegisterSettings(
        registration=Registration(
            "c1", "n1", "p1", "m", relays=("http://r:1", "http://r:2"), frontends=("http://f:1",),
            capabilities=("chat",),
            capacity=(Capacity("nvidia.com/gpu", 16), Capacity("tokens", 1500, "1/s")),
            location=Location("eu", "eu-1", -33.9, 18.4), instance_id="i1", metadata={"a": "b=c", "d": ""},
        ),
        keep_on_exit=True, url=("http://a",), log_format="json", log_level="error",
    )  # fmt: skip
    assert isinstance(read.registration.capacity[0].quantity, int)


FILE = {
    "cluster_id": "c0",
    "namespace": "n0",
    "dgd_name": "p0",
    "model": "m0",
    "relays": ["http://r0"],
    "capacity": [{"resource": "gpu", "quantity": 1}],
    "location": {"region": "eu", "zone": "z"},
    "metadata": {"a": "b", "c": "d"},
}


@pytest.fixture
def pool_json(tmp_path: Any) -> Any:
    path = tmp_path / "pool.json"
    path.write_bytes(msgspec.json.encode(FILE))
    return path


def test_a_registration_from_a_file(pool_json: Any):
    read = register("--file", str(pool_json))
    assert read.registration == msgspec.convert(FILE, Registration)
    assert read == register(DISCOVERY_FILE=str(pool_json))


def test_each_flag_replaces_its_field_of_the_file(pool_json: Any):
    read = register(
        "--file", str(pool_json), "--model", "m1", "--relay=http://r1", "--zone", "z1", "--metadata", "e=f",
        "--capacity", "cpu=2",
    )  # fmt: skip
    assert read.registration == msgspec.convert(
        FILE | {"model": "m1", "relays": ["http://r1"], "location": {"region": "eu", "zone": "z1"},
                "metadata": {"e": "f"}, "capacity": [{"resource": "cpu", "quantity": 2}]},
        Registration,
    )  # fmt: skip


def test_a_field_of_the_file_that_no_registration_has_is_named_in_a_warning(pool_json: Any):
    pool_json.write_bytes(msgspec.json.encode(FILE | {"capabilites": ["chat"]}))
    assert register("--file", str(pool_json)).warnings == ("the field 'capabilites' of --file is unknown and ignored",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON: "),
        (b'{"cluster_id": "a\\ud800"}', "is not JSON: "),
        (b"\xff", "is not JSON: "),
        (b"[" * 20000, "is not JSON: "),
        (b"[]", "must hold one JSON object"),
        (b" " * (1 << 20) + b"{}", "is larger than a registration can be (1048576 bytes)"),
        (b'{"cluster_id": "c"}', "register needs --namespace, --dgd-name, --model, as a flag or in --file"),
        (msgspec.json.encode(FILE | {"relays": "http://r"}), "--file holds no registration: Expected `array`"),
        (msgspec.json.encode(FILE | {"capacity": [{"resource": "g", "quantity": "x"}]}), "at $.capacity[0].quantity"),
    ],
)
def test_a_file_that_holds_no_registration_is_refused(pool_json: Any, content: bytes, said: str):
    pool_json.write_bytes(content)
    assert said.replace("`", "") in refusal(register, "--file", str(pool_json))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Any):
    assert refusal(register, "--file", "/no/such") == "--file cannot be read: '/no/such': No such file or directory"
    assert "Is a directory" in refusal(register, "--file", str(tmp_path))


REFUSED_REGISTRATIONS = [
    ((), "register needs --cluster-id, --namespace, --dgd-name, --model, as a flag or in --file"),
    (POOL[:6], "register needs --model, as a flag or in --file"),
    ((*POOL, "--capacity", "gpu"), "--capacity must be resource=quantity or resource=quantity:unit, such as "
     "nvidia.com/gpu=16, not 'gpu'"),
    ((*POOL, "--capacity", "=1"), "--capacity must be resource=quantity or resource=quantity:unit, such as "
     "nvidia.com/gpu=16, not '=1'"),
    ((*POOL, "--capacity", "gpu=1:"), "--capacity must be resource=quantity or resource=quantity:unit, such as "
     "nvidia.com/gpu=16, not 'gpu=1:'"),
    ((*POOL, "--capacity", "gpu=nan"), "--capacity must have a finite number of at least 0 as quantity, such as "
     "nvidia.com/gpu=16, not 'gpu=nan'"),
    ((*POOL, "--capacity", "gpu=-1"), "--capacity must have a finite number of at least 0 as quantity, such as "
     "nvidia.com/gpu=16, not 'gpu=-1'"),
    ((*POOL, "--latitude=-90.1"), "--latitude must be degrees from -90 to 90, not '-90.1'"),
    ((*POOL, "--longitude=181"), "--longitude must be degrees from -180 to 180, not '181'"),
    ((*POOL, "--metadata", "secret"), "--metadata must be key=value"),
    ((*POOL, "--metadata", "a=1", "--metadata", "a=2"), "--metadata has the key 'a' twice"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), REFUSED_REGISTRATIONS)
def test_a_registration_that_flags_do_not_make_is_refused(words: tuple[str, ...], said: str):
    assert refusal(register, *words) == said


# ---- the other two, and the table of flags


def test_version_takes_nothing():
    assert settings.read_version([]) == settings.VersionSettings()
    assert refusal(lambda *words: settings.read_version(words), "--x") == "unknown flag --x: --help lists the flags"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_takes_a_shell(shell: str):
    assert settings.read_completion([shell]).shell == shell


@pytest.mark.parametrize("words", [(), ("tcsh",), ("bash", "zsh")])
def test_completion_refuses_anything_else(words: tuple[str, ...]):
    said = "completion needs the name of one shell: bash, zsh or fish"
    assert refusal(lambda *given: settings.read_completion(given), *words) == said


CONTRACT = """
access-log auth-tokens-path cors-origin drain-delay-secs dynamodb-endpoint-url dynamodb-region dynamodb-table
frontend-port-name frontend-service-suffix health-listen heartbeat-interval-secs keep-alive-secs kube-context
kube-namespace
kubeconfig lease-duration-secs listen local-cluster-id log-format log-level mass-loss-hold-secs max-body-bytes
max-connections max-header-bytes max-pools max-pools-per-cluster max-streams otlp-endpoint pool-discovery rate-limit
redis-password-path
redis-prefix redis-sentinel-password-path redis-sentinel-user redis-tls-ca-path redis-tls-cert-path redis-tls-key-path
redis-url registration-storage relay-port-name relay-service-suffix
request-timeout-secs router router-namespace router-port-name router-service shutdown-grace-secs
store-timeout-ms tls-cert-path tls-client-ca-path tls-key-path transfer-timeout-secs write-stall-timeout-secs
"""


def test_the_table_of_flags_is_that_of_the_contract():
    names = {flag.name.removeprefix("--") for flag in settings.flags()}
    assert names == set(CONTRACT.split())
    assert list(dict.fromkeys(flag.group for flag in settings.flags())) == [
        "All modes",
        "With --pool-discovery registrations",
        "With --pool-discovery mcs or karmada",
        "With --registration-storage redis",
        "With --registration-storage dynamodb",
    ]


@every_flag
def test_each_flag_says_its_variable_default_and_reason(command: str, flag: FlagInfo):
    assert flag.variable == "DISCOVERY_" + flag.name.removeprefix("--").replace("-", "_").upper()
    assert flag.default
    assert len(flag.help) > 15
    if flag.name.endswith("-secs"):
        assert "econds" in flag.help
    if flag.name.endswith(("-bytes", "-ms")):
        assert "ytes" in flag.help or "illiseconds" in flag.help


def test_the_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        serve().max_pools = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("address", "text"),
    [(Address("::", 80), "[::]:80"), (Address("h", 0), "h:0"), (Address("1.2.3.4", 5), "1.2.3.4:5")],
)
def test_an_address_prints_as_it_is_written(address: Address, text: str):
    assert str(address) == text
    assert serve("--listen", text).listen == address
