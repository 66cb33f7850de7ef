"""How each watched cluster is reached, and as whom: from the pod's service account or from a kubeconfig.

Kubernetes' own client reads the files and runs credential plugins. All of it is read again now and then, and after a
401, since tokens and certificates are rotated in place. Opens no connection, and knows nothing of slices.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import incluster_config, kube_config
from kubernetes.aio.config.config_exception import ConfigException

from discovery.errors import Misconfigured
from discovery.mcs.kube_answers import Failure

LOADING_SECS = 30.0

# The client logs what credential plugins write, and parts of the kubeconfig: either may hold secrets.
kube_config.logger.setLevel(logging.CRITICAL + 1)

# Besides its own error the client raises whatever an unexpected shape makes Python raise.
_BROKEN = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)


class Access(NamedTuple):
    """What one reading found: ``configuration`` for the transport, ``authorization`` as the header's value."""

    configuration: Configuration
    authorization: str | None


class InCluster:
    """The pod's own service account."""

    name = "in-cluster"

    async def read(self, *, anew: bool = False) -> Access:
        """Address, CA and token as they are now. Raises ``Failure``."""
        try:
            return self._read()
        except _BROKEN as error:
            raise Failure("credentials", f"{self.name}: the service account cannot be read: {_reason(error)}") from None

    def check(self) -> None:
        """Raise ``Misconfigured`` where nothing can come of it."""
        try:
            self._read()
        except _BROKEN as error:
            raise Misconfigured(f"the pod's service account cannot be used: {_reason(error)}") from None

    def _read(self) -> Access:
        configuration = Configuration()
        incluster_config.InClusterConfigLoader(  # type: ignore[no-untyped-call]
            token_filename=incluster_config.SERVICE_TOKEN_FILENAME,
            cert_filename=incluster_config.SERVICE_CERT_FILENAME,
            try_refresh_token=False,
        ).load_and_set(configuration)
        return _access(configuration)


class KubeContext:
    """One context of a kubeconfig, which may be several files with ``:`` between them."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        self._path = path
        self._plugin: tuple[Any, Configuration] | None = None

    async def read(self, *, anew: bool = False) -> Access:
        """Everything as it is now. Raises ``Failure``.

        Where a credential plugin gave the credentials, it alone is asked, and only when they ran out; with ``anew``
        all is read and asked again.
        """
        try:
            async with asyncio.timeout(LOADING_SECS):
                if self._plugin is None or anew:
                    return await self._load()
                return await self._renew(*self._plugin)
        except TimeoutError:
            reason = f"no credentials within {LOADING_SECS:.0f} s"
        except _BROKEN as error:
            reason = _reason(error)
        raise Failure("credentials", f"context {self.name} of {self._path} cannot be used: {reason}")

    def check(self) -> None:
        """Raise ``Misconfigured`` where nothing can come of it, without running a plugin."""
        content = _content(self._path)
        context = _entry(content, "contexts", self.name)
        cluster = _entry(content, "clusters", context.get("cluster"))
        server = str(cluster.get("server") or "")
        if not server.startswith(("http://", "https://")):
            raise Misconfigured(f"cluster {context.get('cluster')} of {self._path} has no server URL")
        if server.startswith("https://") or context.get("user"):
            _entry(content, "users", context.get("user"))

    async def _load(self) -> Access:
        _content(self._path)  # the client says far less of a file that is missing or broken
        configuration = Configuration()
        loader = await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=self._path, context=self.name, client_configuration=configuration, persist_config=False
        )
        user = loader._user
        if user is None or "exec" not in user:
            self._plugin = None
            return _access(configuration)
        if not (hasattr(loader, "token") or configuration.cert_file):
            raise ConfigException(_plugin_failed(user))
        self._plugin = (loader, configuration)
        return _access(configuration)

    async def _renew(self, loader: Any, configuration: Configuration) -> Access:
        if not await loader.load_from_exec_plugin():
            raise ConfigException(_plugin_failed(loader._user))
        loader._set_config(configuration)
        return _access(configuration)


def find_clusters(kubeconfig: str | None, contexts: tuple[str, ...]) -> list[InCluster | KubeContext]:
    """The clusters to watch, in the order given, each checked as far as that goes without talking to anyone.

    Without a file and a context it is the pod's own service account where there is one, else the current context.
    Raises ``Misconfigured``.
    """
    found: list[InCluster | KubeContext]
    if not kubeconfig and not contexts and _in_a_pod():
        found = [InCluster()]
    else:
        path = kubeconfig or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
        found = [KubeContext(path, name) for name in contexts or (_current(path),)]
    for cluster in found:
        cluster.check()
    return found


def _in_a_pod() -> bool:
    files = (incluster_config.SERVICE_TOKEN_FILENAME, incluster_config.SERVICE_CERT_FILENAME)
    return all(Path(file).is_file() for file in files)


def _current(path: str) -> str:
    content = _content(path)
    name = content.get("current-context")
    if not name:
        known = _names(content, "contexts")
        raise Misconfigured(f"{path} has no current context: choose with --kube-context from {known}")
    return str(name)


def _content(path: str) -> dict[str, Any]:
    separator = kube_config.ENV_KUBECONFIG_PATH_SEPARATOR
    if not any(Path(part).expanduser().is_file() for part in path.split(separator) if part):
        raise Misconfigured(f"there is no kubeconfig at {path}: give --kubeconfig, or run in a pod of the cluster")
    try:
        merged = kube_config.KubeConfigMerger(path).config  # type: ignore[no-untyped-call]
        return dict(merged.value)
    except _BROKEN as error:
        raise Misconfigured(f"kubeconfig {path} cannot be read: {_reason(error)}") from None


def _entry(content: dict[str, Any], kind: str, name: object) -> dict[str, Any]:
    for known, value in _entries(content, kind):
        if known == name and isinstance(value, dict):
            return value
    flag = f"--kube-context {name}: " if kind == "contexts" else ""
    raise Misconfigured(f"{flag}the kubeconfig has no {kind[:-1]} {name!r}; it has {_names(content, kind)}")


def _names(content: dict[str, Any], kind: str) -> str:
    return ", ".join(str(name) for name, _ in _entries(content, kind)) or "none"


def _entries(content: dict[str, Any], kind: str) -> list[tuple[object, object]]:
    entries = [entry.value for entry in content[kind]]
    return [(entry.get("name"), entry.get(kind[:-1])) for entry in entries if isinstance(entry, dict)]


def _access(configuration: Configuration) -> Access:
    # Go's clients accept the CA certificates without key identifiers that many clusters still have.
    configuration.disable_strict_ssl_verification = True
    # Each watch holds a connection, and there are some for each namespace: beyond a limit they would wait for ever.
    configuration.connection_pool_maxsize = 0
    token = configuration.api_key.get("BearerToken")
    # Files end in a line break, which no header may have.
    return Access(configuration, " ".join(token.split()) if token else None)


def _plugin_failed(user: Any) -> str:
    return f"its credential plugin {user['exec']['command']} gave no credentials: run it by hand to see why"


def _reason(error: Exception) -> str:
    """For people, without any content of the kubeconfig, which the client's own texts quote."""
    match error:
        case OSError(filename=str(filename), strerror=str(strerror)):
            return f"{filename}: {strerror}"
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark(line=line)):
            return f"line {line + 1} is not YAML"
        case ConfigException() if "{" not in str(error):
            return str(error).rstrip(".")
        case _:
            return "a part of it is missing or has the wrong form"
