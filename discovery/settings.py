"""Settings: what each command runs with, from its words and the environment; the only module that reads that.

The first stop of every command: words and variables come in, one frozen struct goes out, or ``Misconfigured`` with one
line. It opens no connection and must not know what the settings are used for; of files it reads the registration for
``register`` and looks whether the password file can be read. How flags are written is known by ``flags``; what they
mean stands in ``serve_settings``, ``registration_flags`` and here.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec

from discovery import addresses
from discovery.addresses import Address
from discovery.errors import Misconfigured
from discovery.flags import Choice, Flag, Group, Switch, Text, declared, given, unknown_variables, values
from discovery.model import PoolKey, Registration
from discovery.registration_flags import RegistrationFlags, registration
from discovery.serve_rules import check_client_tls, serve_settings
from discovery.serve_settings import (
    FILE,
    LOG_FORMAT,
    LOG_LEVEL,
    SERVE_GROUPS,
    WORD,
    LogFormat,
    LogLevel,
    ServeSettings,
)

__all__ = [
    "Address",
    "CompletionSettings",
    "DoctorSettings",
    "FlagInfo",
    "PoolsSettings",
    "RegisterSettings",
    "ServeSettings",
    "VersionSettings",
    "access",
    "arguments",
    "flags",
    "read_completion",
    "read_doctor",
    "read_pools",
    "read_register",
    "read_serve",
    "read_version",
]

SERVICE = Group("The service to talk to")
FILTERS = Group("Which pools")
SHOWN = Group("What is shown")
LOGGED = Group("What is logged")

SHELLS = ("bash", "zsh", "fish")

Output = Literal["table", "wide", "json", "yaml", "name"]


def _parse_service_urls(text: str) -> tuple[str, ...]:
    return tuple(addresses.service_url(part.strip()) for part in text.split(","))


URL_FLAG = Flag(
    SERVICE,
    Text("URL,...", _parse_service_urls),
    "The service's base URL; several by commas, of which any that answers is asked.",
    secret=True,
)


OUTPUT_FLAG = Flag(
    SHOWN,
    Choice(("table", "wide", "json", "yaml", "name")),
    "The form: a table that fits the terminal, one with all columns, or text for other programs.",
    short="-o",
)


def _parse_key(text: str) -> PoolKey:
    from discovery import registrations  # the other commands do without

    try:
        return registrations.key_from_path(text)
    except ValueError as error:
        raise ValueError(f"is wrong: {error}") from None


TOKEN_FLAG = Flag(
    SERVICE,
    FILE,
    "File with the token to send, for a service that asks for one; read again for each request, since mounted tokens "
    "are renewed.",
)


CA_FLAG = Flag(
    SERVICE,
    FILE,
    "CA (PEM) of the service's certificate, for https; no other is then trusted.",
    default="the CAs of the system",
)
CERT_FLAG = Flag(
    SERVICE,
    FILE,
    "Certificate chain (PEM) to show to a service that wants one from its clients; needs --key-path.",
)
KEY_FLAG = Flag(SERVICE, FILE, "Key (PEM, not encrypted) of that certificate; needs --cert-path.")


class PoolsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``discovery pools`` runs with. The filters are those of ``GET /pools``."""

    url: Annotated[tuple[str, ...], URL_FLAG] = ("http://127.0.0.1:8080",)
    token_path: Annotated[str | None, TOKEN_FLAG] = None
    ca_path: Annotated[str | None, CA_FLAG] = None
    cert_path: Annotated[str | None, CERT_FLAG] = None
    key_path: Annotated[str | None, KEY_FLAG] = None
    output: Annotated[Output, OUTPUT_FLAG] = "table"
    watch: Annotated[bool, Flag(SHOWN, Switch(), "Stay and show every change as it is published.")] = False
    model: Annotated[
        tuple[str, ...],
        Flag(FILTERS, WORD, "Only pools of this model; repeat it for alternatives.", many=True, default="all"),
    ] = ()
    cluster_id: Annotated[
        tuple[str, ...],
        Flag(FILTERS, WORD, "Only pools of this cluster; repeat it for alternatives.", many=True, default="all"),
    ] = ()
    namespace: Annotated[
        tuple[str, ...],
        Flag(FILTERS, WORD, "Only pools of this namespace; repeat it for alternatives.", many=True, default="all"),
    ] = ()
    capability: Annotated[
        tuple[str, ...],
        Flag(FILTERS, WORD, "Only pools with this capability; with all, if repeated.", many=True, default="all"),
    ] = ()
    region: Annotated[
        tuple[str, ...],
        Flag(FILTERS, WORD, "Only pools in this region; repeat it for alternatives.", many=True, default="all"),
    ] = ()

    warnings: tuple[str, ...] = ()
    """One sentence each: what was accepted and is likely not meant."""


class RegisterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``discovery register`` runs with; the registration is put together from its file and its flags."""

    registration: Registration
    url: Annotated[tuple[str, ...], URL_FLAG] = ("http://127.0.0.1:8080",)
    token_path: Annotated[str | None, TOKEN_FLAG] = None
    ca_path: Annotated[str | None, CA_FLAG] = None
    cert_path: Annotated[str | None, CERT_FLAG] = None
    key_path: Annotated[str | None, KEY_FLAG] = None
    keep_on_exit: Annotated[
        bool,
        Flag(
            SERVICE, Switch(), "Do not deregister at the end: for one of several relays of a pool, whose others go on."
        ),
    ] = False
    log_format: Annotated[
        LogFormat, Flag(LOGGED, LOG_FORMAT, "One line for people, or one JSON object a line for collectors.")
    ] = "text"
    log_level: Annotated[LogLevel, Flag(LOGGED, LOG_LEVEL, "The least important lines to log.")] = "info"

    warnings: tuple[str, ...] = ()
    """One sentence each: what was accepted and is likely not meant."""


class DoctorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``discovery doctor`` runs with; no key means every pool that the service knows of."""

    url: Annotated[tuple[str, ...], URL_FLAG] = ("http://127.0.0.1:8080",)
    token_path: Annotated[str | None, TOKEN_FLAG] = None
    ca_path: Annotated[str | None, CA_FLAG] = None
    cert_path: Annotated[str | None, CERT_FLAG] = None
    key_path: Annotated[str | None, KEY_FLAG] = None
    all_replicas: Annotated[
        bool,
        Flag(
            SERVICE,
            Switch(),
            "Ask every URL in place of any, and every address of a name that has several (as a headless Service does), "
            "and say whether the replicas agree.",
        ),
    ] = False
    keys: Annotated[
        tuple[PoolKey, ...],
        Flag(
            FILTERS,
            Text("KEY", _parse_key),
            "A pool to explain, as cluster_id/namespace/dgd_name with %2F for a / within a part.",
            many=True,
            positional=True,
            default="all that the service knows of",
        ),
    ] = ()
    output: Annotated[Output, OUTPUT_FLAG] = "table"

    warnings: tuple[str, ...] = ()
    """One sentence each: what was accepted and is likely not meant."""


class Access(TypedDict):
    """What a client of the service is made with."""

    urls: tuple[str, ...]
    token_path: str | None
    ca_path: str | None
    cert_path: str | None
    key_path: str | None


def access(given: PoolsSettings | RegisterSettings | DoctorSettings) -> Access:
    """How the service is reached, as whom, and whom to trust."""
    return Access(
        urls=given.url,
        token_path=given.token_path,
        ca_path=given.ca_path,
        cert_path=given.cert_path,
        key_path=given.key_path,
    )


class VersionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``discovery version`` takes no flags."""

    warnings: tuple[str, ...] = ()


class CompletionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``discovery completion`` prints a script for."""

    shell: Literal["bash", "zsh", "fish"]
    warnings: tuple[str, ...] = ()


_COMMANDS: dict[str, tuple[Flag, ...]] = {
    "serve": declared(ServeSettings),
    "pools": declared(PoolsSettings),
    "register": declared(RegistrationFlags) + declared(RegisterSettings),
    "doctor": declared(DoctorSettings),
}


class FlagInfo(NamedTuple):
    """One flag for help, completion and documents; ``help`` says unit and reason."""

    name: str
    variable: str
    group: str
    default: str
    help: str
    short: str
    metavar: str
    choices: tuple[str, ...]
    many: bool
    switch: bool


def flags(command: str = "serve") -> list[FlagInfo]:
    """Every flag of a command, in the order of its groups."""
    found = [flag for flag in _COMMANDS.get(command, ()) if not flag.positional]
    groups = list(dict.fromkeys((*SERVE_GROUPS, *(flag.group for flag in found))))
    return [_info(flag) for flag in sorted(found, key=lambda flag: groups.index(flag.group))]


def arguments(command: str) -> list[FlagInfo]:
    """What a command takes without the name of a flag; no variable has it."""
    return [_info(flag) for flag in _COMMANDS.get(command, ()) if flag.positional]


def _info(flag: Flag) -> FlagInfo:
    return FlagInfo(
        flag.name,
        flag.variable,
        flag.group.title,
        flag.default,
        flag.help,
        flag.short,
        flag.kind.metavar,
        flag.kind.choices,
        flag.many,
        isinstance(flag.kind, Switch),
    )


# ---- from words and environment to settings


def read_serve(words: Sequence[str], variables: Mapping[str, str] | None = None) -> ServeSettings:
    """Settings of ``discovery serve``; ``Misconfigured`` for the first broken rule, before anything is opened."""
    variables = os.environ if variables is None else variables
    found = given(_COMMANDS["serve"], words, variables)
    read = values(_COMMANDS["serve"], found)
    aws_region = variables.get("AWS_REGION", "").strip()  # other libraries of AWS heed it, the one for Python does not
    return serve_settings(_COMMANDS["serve"], read, found, _variable_warnings(variables), aws_region)


def read_pools(words: Sequence[str], variables: Mapping[str, str] | None = None) -> PoolsSettings:
    """Settings of ``discovery pools``; ``Misconfigured`` where they are wrong."""
    read, warnings = _read_plain("pools", words, variables)
    return PoolsSettings(**read, warnings=warnings)


def read_register(words: Sequence[str], variables: Mapping[str, str] | None = None) -> RegisterSettings:
    """Settings of ``discovery register``, its file read; ``Misconfigured`` where they are wrong."""
    read, warnings = _read_plain("register", words, variables)
    own = {name: read.pop(name) for name in RegisterSettings.__struct_fields__ if name in read}
    built, more_warnings = registration(read)
    return RegisterSettings(registration=built, **own, warnings=warnings + more_warnings)


def read_doctor(words: Sequence[str], variables: Mapping[str, str] | None = None) -> DoctorSettings:
    """Settings of ``discovery doctor``; ``Misconfigured`` where they are wrong, such as a key that names no pool."""
    read, warnings = _read_plain("doctor", words, variables)
    return DoctorSettings(**read, warnings=warnings)


def read_version(words: Sequence[str], variables: Mapping[str, str] | None = None) -> VersionSettings:
    """Nothing to set; words are refused."""
    given((), words, {})
    return VersionSettings()


def read_completion(words: Sequence[str], variables: Mapping[str, str] | None = None) -> CompletionSettings:
    """The one word is the shell."""
    for shell in SHELLS:
        if list(words) == [shell]:
            return msgspec.convert({"shell": shell}, CompletionSettings)
    raise Misconfigured(f"completion needs the name of one shell: {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def _read_plain(
    command: str, words: Sequence[str], variables: Mapping[str, str] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    variables = os.environ if variables is None else variables
    found = given(_COMMANDS[command], words, variables)
    read = values(_COMMANDS[command], found)
    check_client_tls(read, found)
    return read, (*_variable_warnings(variables), *_token_warnings(read))


def _token_warnings(read: Mapping[str, Any]) -> tuple[str, ...]:
    hosts = [host for url in read.get("url", ()) if (host := addresses.unencrypted_host(url))]
    if "token_path" not in read or not hosts:
        return ()
    return (f"the token goes to {hosts[0]} unencrypted, and whoever reads it on its way can use it: use https",)


def _variable_warnings(variables: Mapping[str, str]) -> tuple[str, ...]:
    known = {flag.variable for found in _COMMANDS.values() for flag in found if flag.variable}
    return tuple(unknown_variables(known, variables))
