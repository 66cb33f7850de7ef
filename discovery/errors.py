"""The errors that may cross a seam between rooms. Each door translates what its library raises into one of these.

    DiscoveryError
    ├── Rejected        the caller is wrong, and sending the same again stays wrong (4xx)
    ├── Unavailable     not now: try again a little later (503)
    ├── Gone            a feed's position can no longer be continued: list again
    └── Misconfigured   flags, variables or files are wrong: one line, exit 2

The tree exists so that a caller decides by kind what to do and never looks into a library's error.
"""

from typing import Literal, NamedTuple


class DiscoveryError(Exception):
    """Root of all errors of this project."""


class Fault(NamedTuple):
    """One thing that is wrong in a request: a JSON path such as ``$.capacity[0].quantity``, and what is wrong there."""

    path: str
    message: str


class Rejected(DiscoveryError):
    """A request that can never succeed as it is.

    ``status`` is the HTTP status (4xx), ``title`` a short fixed phrase, ``detail`` one sentence for the person who sent
    it, ``faults`` every single fault that was found.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        faults: tuple[Fault, ...] = (),
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.faults = faults
        self.headers = headers


class Unavailable(DiscoveryError):
    """Something behind us does not answer or refuses for now; ``str(error)`` says what, without any secret.

    ``extent`` is how much is out of order: the whole ``source``; its ``writes``, while it can be read; or only the
    one ``item`` that was asked for. Who asked comes back after 1 to 1 + ``retry_after_secs`` seconds.
    """

    def __init__(
        self, detail: str, *, retry_after_secs: int = 1, extent: Literal["source", "writes", "item"] = "source"
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_secs = retry_after_secs
        self.extent = extent


class Gone(DiscoveryError):
    """A feed cannot go on from its position; ``cause`` is a short fixed word for counters, the text is for people."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class Misconfigured(DiscoveryError):
    """The process cannot start as it was asked to; the text is one line that names the flag and what to do."""
