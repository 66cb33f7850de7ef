"""The rules between the flags of ``discovery serve``: which store, whose flags, what contradicts what.

From checked single values to ``ServeSettings``, or ``Misconfigured`` with one line that names the flag or variable.
Beside them the few rules of the commands that ask a service. Called by ``settings``; must not know the environment.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from discovery import addresses
from discovery.addresses import RedisUrl
from discovery.errors import Misconfigured
from discovery.flags import Flag, Given, refuse_foreign
from discovery.serve_settings import Secs, ServeSettings, region, region_of_table

_DEFAULT = ServeSettings()

CLIENT_FILES = ("ca_path", "cert_path", "key_path")
TLS_FILES = ("tls_cert_path", "tls_key_path", "tls_client_ca_path")
REDIS_FILES = (
    "redis_password_path",
    "redis_sentinel_password_path",
    "redis_tls_ca_path",
    "redis_tls_cert_path",
    "redis_tls_key_path",
)


SHORT_DYNAMODB_LEASE_SECS = 5
SHORT_DYNAMODB_TIMEOUT_MS = 500


def serve_settings(
    flags: Sequence[Flag],
    read: Mapping[str, Any],
    found: Mapping[str, Given],
    warnings: tuple[str, ...],
    aws_region: str = "",
) -> ServeSettings:
    """The settings that follow from single values ``read``; ``found`` says where each came from.

    ``aws_region`` is what the variable ``AWS_REGION`` says, which belongs to no flag.
    """
    storage, reason = _choose_storage(read, found)
    mode = read.get("pool_discovery", _DEFAULT.pool_discovery)
    refuse_foreign(flags, found, {"pool_discovery": mode, "registration_storage": storage})
    _check_times(read, found)
    _check_tls(read, found)
    _check_routers(read, found)
    _check_watched(read, found)
    _check_redis(read, found, storage)
    _check_files(read, found, ("auth_tokens_path",))
    fields = dict(read) | {"registration_storage": storage, "registration_storage_reason": reason}
    if storage == "dynamodb":
        fields["dynamodb_region"] = _dynamodb_region(read, found, aws_region)
        warnings = (*_dynamodb_warnings(read), *warnings)
    return ServeSettings(**fields, warnings=(*_time_warnings(read), *warnings))


def _choose_storage(read: Mapping[str, Any], found: Mapping[str, Given]) -> tuple[str, str]:
    if storage := read.get("registration_storage"):
        return storage, f"{found['registration_storage'].source} says so"
    if "redis_url" in found:
        return "redis", f"{found['redis_url'].source} is given"
    return "memory", "no --redis-url is given, so no other replica will know them"


def _check_times(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    heartbeat, lease = _times(read)
    if lease <= heartbeat:
        raise Misconfigured(
            f"{_source('lease_duration_secs', found)} ({lease}) must be above "
            f"{_source('heartbeat_interval_secs', found)} ({heartbeat})"
        )
    if lease < 0.001:
        raise Misconfigured(f"{_source('lease_duration_secs', found)} must be at least a millisecond (0.001)")


def _time_warnings(read: Mapping[str, Any]) -> tuple[str, ...]:
    heartbeat, lease = _times(read)
    if lease >= 2 * heartbeat:
        return ()
    return (
        f"--lease-duration-secs ({lease}) is below twice --heartbeat-interval-secs ({heartbeat}): "
        "one lost heartbeat drops a healthy pool",
    )


def _times(read: Mapping[str, Any]) -> tuple[Secs, Secs]:
    return (
        read.get("heartbeat_interval_secs", _DEFAULT.heartbeat_interval_secs),
        read.get("lease_duration_secs", _DEFAULT.lease_duration_secs),
    )


def _check_tls(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    for one, other in (("tls_cert_path", "tls_key_path"), ("tls_key_path", "tls_cert_path")):
        if one in found and other not in found:
            raise Misconfigured(f"{found[one].source} needs {_source(other, found)} too: both or neither")
    if "tls_client_ca_path" in found:
        for other in ("tls_cert_path", "health_listen"):
            if other not in found:
                raise Misconfigured(f"{found['tls_client_ca_path'].source} needs {_source(other, found)} too")
    _check_files(read, found, TLS_FILES)
    listen = read.get("listen", _DEFAULT.listen)
    if listen.port and read.get("health_listen") == listen:
        raise Misconfigured(f"{found['health_listen'].source} must be another address than --listen ({listen})")


def check_client_tls(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    """The rules of the commands that ask a service: certificate and key go together, and are for https."""
    for one, other in (("cert_path", "key_path"), ("key_path", "cert_path")):
        if one in found and other not in found:
            raise Misconfigured(f"{found[one].source} needs {_source(other, found)} too: both or neither")
    given = [field for field in CLIENT_FILES if field in found]
    if given and not any(url.lower().startswith("https:") for url in read.get("url", ())):
        raise Misconfigured(f"{found[given[0]].source} needs {_source('url', found)} with https://")
    _check_files(read, found, CLIENT_FILES)


def _check_routers(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    if router_id := _first_twice([router.id for router in read.get("router", ())]):
        raise Misconfigured(f"{found['router'].source} has the id {router_id!r} twice: each router has its own")
    for one, other in (("router_namespace", "router_service"), ("router_service", "router_namespace")):
        if one in found and other not in found:
            raise Misconfigured(f"{found[one].source} needs {_source(other, found)} too: both or neither")
    if "router_port_name" in found and "router_service" not in found:
        raise Misconfigured(f"{found['router_port_name'].source} needs --router-namespace and --router-service too")


def _check_watched(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    relay = read.get("relay_service_suffix", _DEFAULT.relay_service_suffix)
    frontend = read.get("frontend_service_suffix", _DEFAULT.frontend_service_suffix)
    if relay.endswith(frontend) or frontend.endswith(relay):
        raise Misconfigured(
            f"{_source('relay_service_suffix', found)} ({relay}) and {_source('frontend_service_suffix', found)} "
            f"({frontend}) must differ, and none may end in the other: a Service would be both"
        )
    if context := _first_twice(read.get("kube_context", ())):
        raise Misconfigured(f"{found['kube_context'].source} has {context!r} twice: a cluster is watched once")
    _check_namespaces(read, found)


def _check_namespaces(read: Mapping[str, Any], found: Mapping[str, Given]) -> None:
    namespaces, routers = read.get("kube_namespace", ()), read.get("router_namespace")
    if namespace := _first_twice(namespaces):
        raise Misconfigured(f"{found['kube_namespace'].source} has {namespace!r} twice: a namespace is watched once")
    if namespaces and routers and routers not in namespaces:
        raise Misconfigured(
            f"{found['router_namespace'].source} ({routers}) must be one of {found['kube_namespace'].source} "
            f"({', '.join(namespaces)}): nothing else is watched"
        )


def _first_twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _check_redis(read: Mapping[str, Any], found: Mapping[str, Given], storage: str) -> None:
    if storage == "redis" and "redis_url" not in read:
        raise Misconfigured(f"{found['registration_storage'].source} redis needs --redis-url")
    if "redis_url" not in read:
        return
    url = addresses.parse_redis_url(read["redis_url"])
    if "redis_password_path" in read and url.password:
        source = found["redis_password_path"].source
        raise Misconfigured(f"{found['redis_url'].source} has a password and {source} another: give one of them")
    _check_redis_tls(found, url)
    _check_sentinel(found, url)
    _check_files(read, found, REDIS_FILES)


def _check_redis_tls(found: Mapping[str, Given], url: RedisUrl) -> None:
    given = [field for field in ("redis_tls_ca_path", "redis_tls_cert_path", "redis_tls_key_path") if field in found]
    if given and not url.tls:
        raise Misconfigured(
            f"{found[given[0]].source} needs {_source('redis_url', found)} with rediss://, rediss+sentinel:// or "
            "rediss+cluster://"
        )
    for one, other in (
        ("redis_tls_cert_path", "redis_tls_key_path"),
        ("redis_tls_key_path", "redis_tls_cert_path"),
    ):
        if one in found and other not in found:
            raise Misconfigured(f"{found[one].source} needs {_source(other, found)} too: both or neither")


def _check_sentinel(found: Mapping[str, Given], url: RedisUrl) -> None:
    given = [field for field in ("redis_sentinel_user", "redis_sentinel_password_path") if field in found]
    if given and url.kind != "sentinel":
        raise Misconfigured(
            f"{found[given[0]].source} needs {_source('redis_url', found)} with redis+sentinel:// or rediss+sentinel://"
        )
    if given == ["redis_sentinel_user"]:
        raise Misconfigured(
            f"{found['redis_sentinel_user'].source} needs {_source('redis_sentinel_password_path', found)} too"
        )


def _dynamodb_region(read: Mapping[str, Any], found: Mapping[str, Given], aws_region: str) -> str | None:
    """The table's region as it is given; None where the AWS configuration has to say it. Needs the table, too."""
    if "dynamodb_table" not in read:
        raise Misconfigured(f"{found['registration_storage'].source} dynamodb needs --dynamodb-table")
    given, of_table = read.get("dynamodb_region"), region_of_table(read["dynamodb_table"])
    if given and of_table and given != of_table:
        raise Misconfigured(
            f"{found['dynamodb_table'].source} has an ARN of {of_table}, and {found['dynamodb_region'].source} is "
            f"{given}: a table is in its own region"
        )
    if given or of_table or not aws_region:
        return given or of_table
    try:
        return region(aws_region)
    except ValueError as error:
        raise Misconfigured(f"AWS_REGION {error}") from None


def _dynamodb_warnings(read: Mapping[str, Any]) -> Iterator[str]:
    _, lease = _times(read)
    if lease < SHORT_DYNAMODB_LEASE_SECS:
        yield (
            f"--lease-duration-secs ({lease}) is short for dynamodb, where replicas see a renewal up to a second "
            f"later: {SHORT_DYNAMODB_LEASE_SECS} s and more leave room"
        )
    timeout = read.get("store_timeout_ms", _DEFAULT.store_timeout_ms)
    if timeout < SHORT_DYNAMODB_TIMEOUT_MS:
        yield (
            f"--store-timeout-ms ({timeout}) is short for dynamodb: a call may have to open a connection and to renew "
            "credentials"
        )


def _check_files(read: Mapping[str, Any], found: Mapping[str, Given], fields: Sequence[str]) -> None:
    for field in fields:
        # Without the path: people have given the secret itself in its place.
        if field in read and (fault := _file_fault(read[field])):
            raise Misconfigured(f"{found[field].source} names a file that {fault}")


def _file_fault(path: str) -> str | None:
    """What keeps a file from being read, found without reading it: a pipe can be read only once."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        return f"cannot be found ({getattr(error, 'strerror', None) or error})"
    if S_ISDIR(status.st_mode):
        return "is a directory"
    if S_ISREG(status.st_mode) and status.st_size == 0:
        return "is empty"
    return None if os.access(path, os.R_OK) else "cannot be read (permission denied)"


def _source(field: str, found: Mapping[str, Given]) -> str:
    return found[field].source if field in found else "--" + field.replace("_", "-")
