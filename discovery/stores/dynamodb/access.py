"""Where DynamoDB is and who asks: region, endpoint and credentials, found as all programs on AWS find them.

The only place that knows aiobotocore. It is asked for what makes it worth having (profiles, roles, web identities,
instances, partitions); requests are signed and sent elsewhere, many times as fast.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiobotocore.session  # type: ignore[import-untyped]
import botocore.exceptions  # type: ignore[import-untyped]
import botocore.httpsession  # type: ignore[import-untyped]
import botocore.utils  # type: ignore[import-untyped]

from discovery.errors import Misconfigured, Unavailable
from discovery.stores.dynamodb.signing import Credentials

log = logging.getLogger(__name__)

LOOK_AGAIN_SECS = 1.0
DOUBT_SECS = (1.0, 30.0)
# At its lower levels the library tells whole requests, and answers with credentials in them.
for _name in ("aiobotocore", "botocore"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Endpoint(NamedTuple):
    """Where requests go: the URL, the HTTP proxy before it, and the file of trusted certificates."""

    url: str
    proxy: str | None
    ca_path: str


class _NoCache(dict[Any, Any]):
    """What a role was given before is never given again."""

    def __contains__(self, key: object) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Nothing."""
        return default


class Access:
    """One way to DynamoDB. ``table_secs`` gives the table's clock, None before it is known.

    Raises ``Misconfigured`` where no region is named.
    """

    def __init__(
        self,
        region: str | None,
        endpoint_url: str | None,
        table_secs: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint_url = endpoint_url
        self._table_secs = table_secs
        self._clock = clock
        try:
            found = region or aiobotocore.session.get_session().get_config_variable("region")
        except botocore.exceptions.BotoCoreError as error:
            raise Misconfigured(f"--registration-storage dynamodb: {error}") from None
        if not found:
            raise Misconfigured(
                "--registration-storage dynamodb needs a region: give --dynamodb-region, or set AWS_REGION"
                " or a region in the AWS profile"
            )
        self.region: str = found
        self._session = self._new_session()
        self._credentials: Credentials | None = None
        self._look_again_at = float("-inf")
        self._doubted_at = float("-inf")
        self._doubt_pause_secs = DOUBT_SECS[0]
        self._looking: asyncio.Task[Credentials] | None = None
        self._searches: set[asyncio.Task[Credentials]] = set()

    def _new_session(self) -> Any:
        session = aiobotocore.session.get_session()
        session.set_config_variable("region", self.region)  # roles are asked for there, too
        return session

    # ---- where

    async def endpoint(self) -> Endpoint:
        """Where requests go: what the flag says, else what the environment and the profile say, else the region's."""
        try:
            url = self._endpoint_url or await self._usual_url()
            ca_path = self._session.get_config_variable("ca_bundle") or botocore.httpsession.where()
            proxies = botocore.utils.get_environ_proxies(url)
        except (botocore.exceptions.BotoCoreError, OSError, ValueError) as error:
            raise Unavailable(f"where DynamoDB is cannot be told: {error}") from None
        proxy = proxies.get(url.partition(":")[0])
        return Endpoint(url, f"http://{proxy}" if proxy and "://" not in proxy else proxy, ca_path)

    async def _usual_url(self) -> str:
        # The client resolves it and is not used for more. It needs no credentials, and would wait for them.
        client = self._session.create_client(
            "dynamodb",
            region_name=self.region,
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106
        )
        async with client as opened:
            return str(opened.meta.endpoint_url)

    # ---- who

    async def credentials(self) -> Credentials:
        """Who asks, at this time. Those that are known are given at once, and newer ones looked for beside."""
        known = self._credentials
        if known is not None and self._clock() < self._look_again_at:
            return known
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._searches.add(self._looking)
            self._looking.add_done_callback(self._looked)
        if known is not None:
            return known
        return await asyncio.shield(self._looking)  # whoever waits has a deadline; the search goes on without it

    def doubt(self, used: Credentials) -> bool:
        """These were refused. True where others are known by now, or are looked for, as at the start.

        That is dear, so it is done the less often the longer what is found is refused.
        """
        if self._credentials not in (None, used):
            return True
        silent_secs = self._clock() - self._doubted_at
        if silent_secs < self._doubt_pause_secs:
            return False
        first, limit = DOUBT_SECS
        self._doubt_pause_secs = first if silent_secs > 2 * limit else min(self._doubt_pause_secs * 2, limit)
        self._doubted_at = self._clock()
        self._session = self._new_session()  # the one before would give what it found before
        self._credentials = self._looking = None
        return True

    async def _look(self) -> Credentials:
        try:
            source = await self._session.get_credentials()
            if source is None:
                raise Unavailable(
                    "there are no AWS credentials: give the pod a role (IRSA, Pod Identity), or set AWS_ACCESS_KEY_ID"
                    " and AWS_SECRET_ACCESS_KEY, or a profile"
                )
            if hasattr(source, "_time_fetcher"):
                # Whether they have ended is asked of our wall clock otherwise: an hour ahead, and all have; an hour
                # behind, and those that a role gave are taken from its cache long after their end.
                source._time_fetcher = self._now
                role: Any = getattr(getattr(source, "_refresh_using", None), "__self__", None)
                if hasattr(role, "_cache"):
                    role._cache = _NoCache()
            found = await source.get_frozen_credentials()
        except Unavailable:
            raise
        except Exception as error:  # many kinds of sources, files and answers of others, each with errors of its own
            said = " ".join(str(error).split())[:300]
            raise Unavailable(f"AWS credentials could not be had: {type(error).__name__}: {said}") from None
        return Credentials(found.access_key, found.secret_key, found.token)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._table_secs() or 0.0, UTC)

    def _looked(self, task: "asyncio.Task[Credentials]") -> None:
        self._searches.discard(task)
        found = not task.cancelled() and task.exception() is None
        if task is not self._looking:
            return  # doubted meanwhile
        self._looking = None
        if found:
            self._credentials = task.result()
        self._look_again_at = self._clock() + LOOK_AGAIN_SECS

    async def close(self) -> None:
        """End the searches that run."""
        searches = list(self._searches)
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
