"""The flags of ``discovery serve``: unit, default and reason of each, beside the field that it fills.

Declarations alone, read by ``settings``: ``--help``, shell completion and the tables in the documents come from here.
The rules between flags stand in ``serve_rules``.
"""

import re
from typing import Annotated, Literal

import msgspec

from discovery import addresses
from discovery.addresses import Address
from discovery.flags import Choice, Flag, Group, Number, Switch, Text
from discovery.model import Router

ALL = Group("All modes")
REGISTRATIONS = Group("With --pool-discovery registrations", "pool_discovery", ("registrations",))
WATCHED = Group("With --pool-discovery mcs or karmada", "pool_discovery", ("mcs", "karmada"))
REDIS = Group("With --registration-storage redis", "registration_storage", ("redis",))
DYNAMODB = Group("With --registration-storage dynamodb", "registration_storage", ("dynamodb",))

SERVE_GROUPS = (ALL, REGISTRATIONS, WATCHED, REDIS, DYNAMODB)

HOUR = 3600
DAY = 24 * HOUR

Secs = int | float
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
PoolDiscovery = Literal["registrations", "mcs", "karmada"]

_label = re.compile(r"(?=.{1,63}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?").fullmatch
_suffix = re.compile(r"(?=.{1,62}\Z)[-a-z0-9]*[a-z0-9]").fullmatch
_prefix = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_cluster = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.|\Z))+(?<!\.)").fullmatch
_table = re.compile(r"[A-Za-z0-9_.-]{3,255}").fullmatch
_table_arn = re.compile(
    r"arn:aws[a-z-]*:dynamodb:(?P<region>[a-z0-9-]{1,63}):[0-9]{12}:table/[A-Za-z0-9_.-]{3,255}"
).fullmatch
_zone = re.compile(r"(?P<region>[a-z]{2,}(?:-[a-z]+)+-[0-9]+)[a-z]").fullmatch
_identifier = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,253}").fullmatch


def _is_identifier(text: str) -> bool:
    return _identifier(text) is not None and text == text.strip() and text not in (".", "..")


def _parse_router(text: str) -> Router:
    router_id, equals, url = text.partition("=")
    if not equals or not _is_identifier(router_id):
        raise ValueError("must be <id>=<url> such as router-0=http://10.0.1.5:9000")
    try:
        return Router(router_id, addresses.http_url(url))
    except ValueError as error:
        raise ValueError(f"has an unusable URL: it {error}") from None


def _parse_prefix(text: str) -> str:
    if _prefix(text) is None:
        raise ValueError("must be 1 to 64 characters out of A-Z a-z 0-9 . _ -")
    return text


def _parse_label(text: str) -> str:
    if _label(text) is None:
        raise ValueError("must be a Kubernetes name: 1 to 63 characters out of a-z 0-9 -, none of the ends a -")
    return text


def _parse_suffix(text: str) -> str:
    if _suffix(text) is None:
        raise ValueError(
            "must be the end of a Kubernetes Service name: up to 62 characters out of a-z 0-9 -, the last no -"
        )
    return text


def _parse_cluster(text: str) -> str:
    if _cluster(text) is None:
        raise ValueError(
            "must be a cluster's name such as us-east-1: parts of up to 63 characters out of a-z 0-9 -, none of "
            "their ends a -, with . between them"
        )
    return text


def _parse_table(text: str) -> str:
    if _table(text) is None and _table_arn(text) is None:
        raise ValueError(
            "must be a table's name, 3 to 255 characters out of A-Z a-z 0-9 . _ -, or its ARN such as "
            "arn:aws:dynamodb:eu-west-1:111122223333:table/pools"
        )
    return text


def region(text: str) -> str:
    """A region of AWS, or what a local stand-in calls one."""
    if (zone := _zone(text)) is not None:
        raise ValueError(f"must be a region, such as {zone['region']}, and not a zone of it")
    if _label(text) is None:
        raise ValueError("must be a region such as eu-west-1: 1 to 63 characters out of a-z 0-9 -")
    return text


def region_of_table(text: str) -> str | None:
    """The region that a table's ARN names; None of a table's name."""
    arn = _table_arn(text)
    return None if arn is None else arn["region"]


LISTEN = Text("HOST:PORT", addresses.address)
REDIS_URL = Text("URL", addresses.redis_url)
ROUTER = Text("ID=URL", _parse_router)
ORIGIN = Text("ORIGIN", addresses.origin)
COLLECTOR = Text("URL", addresses.service_url)
PREFIX = Text("PREFIX", _parse_prefix)
TABLE = Text("TABLE", _parse_table)
REGION = Text("REGION", region)
ENDPOINT = Text("URL", addresses.service_url)
LABEL = Text("NAME", _parse_label)
SUFFIX = Text("SUFFIX", _parse_suffix)
CLUSTER = Text("NAME", _parse_cluster)
FILE = Text("PATH")
WORD = Text("TEXT")


LOG_FORMAT = Choice(("text", "json"))
LOG_LEVEL = Choice(("debug", "info", "warning", "error"))


def _secs(highest: int, *, above: bool = True) -> Number:
    return Number("seconds", 0, highest, above=above)


def _count(what: str, lowest: int, highest: int) -> Number:
    return Number(f"a whole number of {what}", lowest, highest, whole=True, metavar="NUMBER")


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``discovery serve`` runs with. Durations are seconds unless the name says ``ms``."""

    listen: Annotated[
        Address,
        Flag(ALL, LISTEN, "Where to listen. The default is every IPv4 address of the pod; [::]:8080 is IPv6 and IPv4."),
    ] = Address("0.0.0.0", 8080)  # noqa: S104  # a service in a pod is reached from outside
    health_listen: Annotated[
        Address | None,
        Flag(
            ALL,
            LISTEN,
            "A second address, plain HTTP, with only /healthz, /readyz and /metrics: for probes that cannot "
            "present a certificate.",
        ),
    ] = None
    tls_cert_path: Annotated[
        str | None,
        Flag(
            ALL,
            FILE,
            "Certificate chain (PEM) to serve HTTPS with; needs --tls-key-path. Renewed files are taken at once.",
        ),
    ] = None
    tls_key_path: Annotated[
        str | None, Flag(ALL, FILE, "Key (PEM, not encrypted) of the certificate; needs --tls-cert-path.")
    ] = None
    tls_client_ca_path: Annotated[
        str | None,
        Flag(
            ALL,
            FILE,
            "CA (PEM) of the certificates that clients must present; needs --health-listen, since probes have none.",
        ),
    ] = None
    pool_discovery: Annotated[
        PoolDiscovery,
        Flag(
            ALL,
            Choice(("registrations", "mcs", "karmada")),
            "Where the addresses of pools come from: from the registrations themselves, or from the "
            "EndpointSlices that multi-cluster services (mcs) or Karmada import from other clusters.",
        ),
    ] = "registrations"
    registration_storage: Annotated[
        Literal["memory", "redis", "dynamodb"],
        Flag(
            ALL,
            Choice(("memory", "redis", "dynamodb")),
            "Where registrations live. Memory is this process alone; several replicas need redis, or dynamodb (an "
            "extra) where they run in several regions or without a Redis.",
            default="redis with --redis-url, else memory",
        ),
    ] = "memory"
    heartbeat_interval_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(DAY),
            "Seconds between two heartbeats of a relay, as told to relays; below the lease. A third of the "
            "lease, so that two may be lost.",
        ),
    ] = 5
    lease_duration_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(DAY),
            "Seconds that a registration lives without another heartbeat; above the heartbeat interval. Short, "
            "since until its end requests are sent to a dead pool.",
        ),
    ] = 15
    mass_loss_hold_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(DAY, above=False),
            "Seconds for which ended pools are kept when most pools of all clusters end at once, since the fault "
            "is then likely on this side; 0 switches it off.",
        ),
    ] = 60
    log_format: Annotated[
        LogFormat, Flag(ALL, LOG_FORMAT, "One line for people, or one JSON object a line for collectors.")
    ] = "text"
    log_level: Annotated[
        LogLevel, Flag(ALL, LOG_LEVEL, "The least important lines to log. Info is one line for each change of state.")
    ] = "info"
    access_log: Annotated[
        bool,
        Flag(
            ALL,
            Switch(),
            "One line (info) for each request when it has ended: what was asked, by whom, status, bytes, time. A line "
            "costs half as much as a heartbeat, so it is for looking closer.",
        ),
    ] = False
    otlp_endpoint: Annotated[
        str | None,
        Flag(
            ALL,
            COLLECTOR,
            "Base URL of an OpenTelemetry collector (OTLP/HTTP), which gets the spans of registrations; needs the "
            "tracing extra. The OTEL_ variables of that library say the rest, such as headers and sampling.",
            secret=True,
        ),
    ] = None
    max_body_bytes: Annotated[
        int,
        Flag(ALL, _count("bytes", 1, 1 << 30), "Largest body of a request in bytes; a registration has some hundred."),
    ] = 65536
    max_streams: Annotated[
        int,
        Flag(
            ALL,
            _count("streams", 0, 1_000_000),
            "Streams and long polls at a time; more get 503. Each holds a connection and some kilobytes.",
        ),
    ] = 10000
    drain_delay_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(HOUR, above=False),
            "Seconds between not ready and the end of streams at shutdown, so that load balancers have looked away.",
        ),
    ] = 5
    shutdown_grace_secs: Annotated[
        Secs,
        Flag(ALL, _secs(HOUR, above=False), "Seconds that requests in flight have at shutdown after the drain delay."),
    ] = 10
    store_timeout_ms: Annotated[
        int,
        Flag(
            ALL,
            _count("milliseconds", 1, 600_000),
            "Milliseconds for one call to the store; a heartbeat not confirmed by then is a 503 and sent again. "
            "Raise it for a store in another region.",
        ),
    ] = 1500
    max_pools: Annotated[
        int,
        Flag(
            ALL,
            _count("pools", 1, 10_000_000),
            "Pools that can be registered at a time, so that a broken sender cannot fill the memory.",
        ),
    ] = 100000
    max_pools_per_cluster: Annotated[
        int,
        Flag(
            ALL,
            _count("pools", 0, 10_000_000),
            "Pools that can be registered at a time for one cluster_id, so that one cluster leaves room for others; a "
            "new one above it gets 429, renewals never. 0 is no limit but --max-pools.",
        ),
    ] = 50000
    max_connections: Annotated[
        int,
        Flag(
            ALL,
            _count("connections", 1, 1_000_000),
            "Open connections at a time; keep it below the limit of open files.",
        ),
    ] = 20000
    max_header_bytes: Annotated[
        int, Flag(ALL, _count("bytes", 256, 1 << 20), "Largest head of a request in bytes, request line included.")
    ] = 16384
    request_timeout_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(HOUR),
            "Seconds within which head and body of a request have arrived, however slowly they trickle in.",
        ),
    ] = 10
    write_stall_timeout_secs: Annotated[
        Secs, Flag(ALL, _secs(HOUR), "Seconds after which a client that takes nothing of its answer is cut off.")
    ] = 30
    transfer_timeout_secs: Annotated[
        Secs, Flag(ALL, _secs(DAY), "Seconds for a whole answer that is no stream, however slowly it is read.")
    ] = 300
    keep_alive_secs: Annotated[
        Secs,
        Flag(
            ALL,
            _secs(HOUR),
            "Seconds that an idle connection stays open; above the 60 of common load balancers, so that they "
            "never meet a closed one.",
        ),
    ] = 75
    rate_limit: Annotated[
        Secs,
        Flag(
            ALL,
            Number("registrations per second", 0, 1_000_000, metavar="RATE"),
            "Registrations per second that one identity may send, a token or, without tokens, a peer's address; ten "
            "seconds' worth may come at once. More get 429; 0 is no limit. About as much as one replica can take.",
        ),
    ] = 10000
    auth_tokens_path: Annotated[
        str | None,
        Flag(
            ALL,
            FILE,
            "File (YAML or JSON) with the tokens and their scopes, read again when it changes; without it everyone may "
            "do everything.",
        ),
    ] = None
    cors_origin: Annotated[
        str | None,
        Flag(
            ALL,
            ORIGIN,
            "The origin whose pages may use this service in a browser, or * for all; without it only its own.",
            secret=True,
        ),
    ] = None
    router: Annotated[
        tuple[Router, ...],
        Flag(
            REGISTRATIONS,
            ROUTER,
            "A Global Router that /routers names to relays; repeat it for each. Each id once.",
            many=True,
            secret=True,
        ),
    ] = ()
    relay_service_suffix: Annotated[
        str, Flag(WATCHED, SUFFIX, "What follows the DGD's name in the name of its relay Service.")
    ] = "-pool-relay"
    frontend_service_suffix: Annotated[
        str, Flag(WATCHED, SUFFIX, "What follows the DGD's name in the name of its frontend Service.")
    ] = "-frontend"
    relay_port_name: Annotated[
        str | None,
        Flag(
            WATCHED,
            LABEL,
            "Port of the relay Service to list. Without it a Service with several TCP ports lists none.",
            default="its only TCP port",
        ),
    ] = None
    frontend_port_name: Annotated[str, Flag(WATCHED, LABEL, "Port of the frontend Service to list.")] = "http"
    local_cluster_id: Annotated[
        str | None,
        Flag(
            WATCHED,
            CLUSTER,
            "The watched cluster's own name in the cluster set, for implementations that never hand a cluster its own "
            "exports back: its own Services then count as pools of that name. With several --kube-context it is the "
            "name of the first.",
        ),
    ] = None
    router_namespace: Annotated[
        str | None, Flag(WATCHED, LABEL, "Namespace of the Global Routers' Service; needs --router-service.")
    ] = None
    router_service: Annotated[
        str | None,
        Flag(
            WATCHED,
            LABEL,
            "Name of the Global Routers' Service, whose endpoints /routers lists; needs --router-namespace.",
        ),
    ] = None
    router_port_name: Annotated[
        str | None,
        Flag(WATCHED, LABEL, "Port of the Global Routers' Service to list.", default="its only TCP port"),
    ] = None
    kubeconfig: Annotated[
        str | None,
        Flag(
            WATCHED,
            FILE,
            "File with the clusters to watch.",
            default="the pod's own credentials, else $KUBECONFIG or ~/.kube/config",
        ),
    ] = None
    kube_context: Annotated[
        tuple[str, ...],
        Flag(
            WATCHED,
            WORD,
            "Context of a cluster to watch, of Karmada the control plane or a member; repeat it for each. Each once.",
            many=True,
            default="the pod's own credentials, else the current context",
        ),
    ] = ()
    kube_namespace: Annotated[
        tuple[str, ...],
        Flag(
            WATCHED,
            LABEL,
            "Namespace to watch in every context, where there are Roles and no ClusterRole; repeat it for each. Each "
            "once; that of --router-namespace has to be among them.",
            many=True,
            default="all, with one ClusterRole",
        ),
    ] = ()
    redis_url: Annotated[
        str | None,
        Flag(
            REDIS,
            REDIS_URL,
            "redis://user:password@host:6379/0, unix:///path, redis+sentinel://host:26379,host:26379/service/0 or "
            "redis+cluster://host:6379,host:6379; rediss for TLS; special characters of a password percent-encoded.",
            secret=True,
        ),
    ] = None
    redis_password_path: Annotated[
        str | None,
        Flag(
            REDIS,
            FILE,
            "A file with the password, such as a mounted Secret: used as it is, without the newline at its end.",
        ),
    ] = None
    redis_sentinel_user: Annotated[
        str | None,
        Flag(
            REDIS,
            WORD,
            "The user for the Sentinels themselves, which know other users than the servers; needs "
            "--redis-sentinel-password-path.",
            default="their default user",
        ),
    ] = None
    redis_sentinel_password_path: Annotated[
        str | None,
        Flag(
            REDIS, FILE, "A file with the password for the Sentinels themselves; without it they are asked as nobody."
        ),
    ] = None
    redis_tls_ca_path: Annotated[
        str | None,
        Flag(
            REDIS,
            FILE,
            "CA (PEM) of the certificates that Redis presents, and no other is then trusted. The names in them must be "
            "those that are connected to.",
            default="the CAs of the system",
        ),
    ] = None
    redis_tls_cert_path: Annotated[
        str | None,
        Flag(
            REDIS,
            FILE,
            "Certificate chain (PEM) to show to Redis where it wants one from its clients; needs --redis-tls-key-path.",
        ),
    ] = None
    redis_tls_key_path: Annotated[
        str | None, Flag(REDIS, FILE, "Key (PEM, not encrypted) of that certificate; needs --redis-tls-cert-path.")
    ] = None
    redis_prefix: Annotated[
        str,
        Flag(
            REDIS,
            PREFIX,
            "Everything of one deployment lies under {prefix}: in Redis; two deployments on one Redis need two.",
        ),
    ] = "discovery"
    dynamodb_table: Annotated[
        str | None,
        Flag(
            DYNAMODB,
            TABLE,
            "Table with the registrations, by its name or ARN; it is made beforehand, and may be a Global Table.",
            default="required",
        ),
    ] = None
    dynamodb_region: Annotated[
        str | None,
        Flag(
            DYNAMODB,
            REGION,
            "Region of the table; that of these replicas, where a Global Table has it.",
            default="that of the ARN, else AWS_REGION, AWS_DEFAULT_REGION or the AWS profile",
        ),
    ] = None
    dynamodb_endpoint_url: Annotated[
        str | None,
        Flag(
            DYNAMODB,
            ENDPOINT,
            "Where DynamoDB answers, for a local stand-in or a VPC endpoint with a name of its own.",
            default="that of the region",
            secret=True,
        ),
    ] = None

    registration_storage_reason: str = "it is the default"
    """Why this store, for the log."""

    warnings: tuple[str, ...] = ()
    """One sentence each, for the log: what was accepted and is likely not meant."""
