"""Tokens: who the bearer of each is, and what that one may do.

Pure. Nothing here holds a token: identities are known by digests. How they are read from the file is known by
``token_file``, where a request is let through by ``access``.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from discovery.model import PoolKey

READ = "read"
METRICS = "metrics"
REGISTER = "register"
ANY = "*"
REGISTER_SOMEWHERE = "register:<cluster_id>"
"""What is missing where a token may register nowhere: as the documents write it."""


class Right(NamedTuple):
    """Where a token may register: a cluster and a namespace, of which None is any."""

    cluster_id: str | None
    namespace: str | None


class Identity(msgspec.Struct, frozen=True):
    """The bearer of one token: a name for logs and limits, and what it may do.

    ``rights`` are asked for by exact text: no case is folded and nothing normalised, so what looks alike is not alike.
    """

    name: str
    digest: bytes
    may_read: bool = False
    may_see_metrics: bool = False
    rights: frozenset[Right] = frozenset()

    def may_register(self, key: PoolKey) -> bool:
        """Whether it may register and deregister this pool."""
        cluster_id, namespace, _ = key
        rights = self.rights
        return (
            (cluster_id, None) in rights
            or (cluster_id, namespace) in rights
            or (None, None) in rights
            or (None, namespace) in rights
        )


Identities = Mapping[bytes, Identity]
"""Who may ask, by the SHA-256 of the token."""


def identify(identities: Identities, token: bytes) -> Identity | None:
    """Whose token it is.

    The token is hashed first, and only digests are compared. How long that takes tells at most how far a digest agrees
    with a stored one; nobody can choose tokens by the digest that they will have, so it leads no step nearer to one
    that is valid. The token itself is compared with nothing and kept nowhere.
    """
    return identities.get(sha256(token).digest())


def scope_for(key: PoolKey) -> str:
    """The narrowest scope with which this pool can be registered, written as the file has it. Always ASCII."""
    return f"{REGISTER}:{quote(key.cluster_id, safe='')}/{quote(key.namespace, safe='')}"


def changes(before: Identities, after: Identities) -> str:
    """What is new and what is gone, by name; an identity whose rights changed is neither new nor gone."""
    said = [f"{len(after):,} valid"]
    held = {identity.name: identity for identity in before.values()}
    holds = {identity.name: identity for identity in after.values()}
    for what, names in (
        ("new", [name for name in holds if name not in held]),
        ("gone", [name for name in held if name not in holds]),
        ("changed", [name for name in holds if name in held and holds[name] != held[name]]),
    ):
        if names:
            said.append(f"{what}: {_some(names)}")
    return "; ".join(said)


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10:,} more" if len(names) > 10 else "")
