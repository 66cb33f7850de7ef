"""What the first line of a replica's log says: what runs, where, and with which limits.

``commands.serve`` logs it. Nothing in it is a secret.
"""

from typing import NamedTuple

from discovery.logs import Fields
from discovery.serve_settings import ServeSettings


class Facts(NamedTuple):
    """What only the running process knows."""

    version: str
    replica: str
    port: int
    store: str
    """The kind of the store, and its address as the log may show it."""


def start_line(settings: ServeSettings, facts: Facts) -> tuple[str, Fields]:
    """The text, and the same as fields."""
    limits: dict[str, float] = {
        "lease_duration_secs": settings.lease_duration_secs,
        "heartbeat_interval_secs": settings.heartbeat_interval_secs,
        "max_pools": settings.max_pools,
        "max_streams": settings.max_streams,
        "max_connections": settings.max_connections,
    }
    listen = _listen(settings, facts.port)
    parts = [
        f"discovery {facts.version}, replica {facts.replica}, listens on {listen}",
        f"addresses come from {settings.pool_discovery}",
        f"registrations are kept in {facts.store}: {settings.registration_storage_reason}",
        f"lease {settings.lease_duration_secs:g} s, heartbeat every {settings.heartbeat_interval_secs:g} s",
        f"at most {settings.max_pools} pools, {settings.max_streams} streams, {settings.max_connections} connections",
        ", ".join(f"{name} {'on' if value else 'off'}" for name, value in _switches(settings).items()),
    ]
    fields: Fields = {
        "version": facts.version,
        "listen": listen,
        "mode": settings.pool_discovery,
        "store": facts.store,
        "limits": limits,
        "tls": settings.tls_cert_path is not None,
        "tokens": settings.auth_tokens_path is not None,
        "access_log": settings.access_log,
        "tracing": settings.otlp_endpoint is not None,
    }
    return "; ".join(parts), fields


def _listen(settings: ServeSettings, port: int) -> str:
    host = settings.listen.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _switches(settings: ServeSettings) -> dict[str, bool]:
    return {
        "TLS": settings.tls_cert_path is not None,
        "client certificates": settings.tls_client_ca_path is not None,
        "tokens": settings.auth_tokens_path is not None,
        "access log": settings.access_log,
        "tracing": settings.otlp_endpoint is not None,
    }
