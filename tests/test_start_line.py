"""The first line of a replica's log: what runs, where, with which limits, and no secret."""

import msgspec

from discovery.addresses import Address
from discovery.serve_settings import ServeSettings
from discovery.start_line import Facts, start_line

FACTS = Facts("1.2.3", "8c31f0d2", 8080, "redis at redis://redis:6379")
REDIS = ServeSettings(
    redis_url="redis://user:Zq9@redis:6379",
    registration_storage="redis",
    registration_storage_reason="--redis-url is given",
)


def test_the_text_says_what_runs_where_and_with_which_limits() -> None:
    text, _ = start_line(REDIS, FACTS)
    assert text == (
        "discovery 1.2.3, replica 8c31f0d2, listens on 0.0.0.0:8080; addresses come from registrations; "
        "registrations are kept in redis at redis://redis:6379: --redis-url is given; lease 15 s, heartbeat every 5 s; "
        "at most 100000 pools, 10000 streams, 20000 connections; "
        "TLS off, client certificates off, tokens off, access log off, tracing off"
    )


def test_the_fields_say_the_same() -> None:
    _, fields = start_line(REDIS, FACTS)
    assert fields == {
        "version": "1.2.3", "listen": "0.0.0.0:8080", "mode": "registrations", "store": "redis at redis://redis:6379",
        "limits": {
            "lease_duration_secs": 15, "heartbeat_interval_secs": 5, "max_pools": 100000, "max_streams": 10000,
            "max_connections": 20000,
        },
        "tls": False, "tokens": False, "access_log": False, "tracing": False,
    }  # fmt: skip


def test_what_is_on_is_said() -> None:
    settings = msgspec.structs.replace(
        REDIS, listen=Address("::", 8443), tls_cert_path="c", tls_client_ca_path="ca", auth_tokens_path="t",
        access_log=True, otlp_endpoint="http://collector:4318",
    )  # fmt: skip
    text, fields = start_line(settings, FACTS)
    assert "listens on [::]:8080;" in text
    assert text.endswith("TLS on, client certificates on, tokens on, access log on, tracing on")
    assert (fields["tls"], fields["tokens"], fields["access_log"], fields["tracing"]) == (True, True, True, True)
    settings = msgspec.structs.replace(settings, tls_client_ca_path=None)
    assert "TLS on, client certificates off, tokens on" in start_line(settings, FACTS)[0]


def test_nothing_in_it_is_a_secret() -> None:
    text, fields = start_line(REDIS, FACTS)
    assert "Zq9" not in text + repr(fields)
