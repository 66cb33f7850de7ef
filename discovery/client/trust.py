"""Whose certificates are trusted, and which one is shown to a service that wants one. Reads files; opens no connection.

The files are looked at for every request, since mounted certificates are renewed: new ones mean a new context, and so
new connections. While new ones cannot be used, as between the writing of a certificate and of its key, those before
stay in use.
"""

import os
import ssl
from pathlib import Path

from discovery.errors import Misconfigured

ANY_LENGTH = 1 << 20

File = str | os.PathLike[str]
Contents = tuple[bytes | str, ...]
"""What each file holds, or in words why it cannot be read."""


class Trust:
    """Paths of PEM files, each of which may be left out: the system's CAs are trusted, and no certificate is shown.

    Raises ``Misconfigured`` for files that cannot be used, and for a certificate or key alone.
    """

    def __init__(
        self, ca_path: File | None = None, cert_path: File | None = None, key_path: File | None = None
    ) -> None:
        if (cert_path is None) != (key_path is None):
            raise Misconfigured("a client certificate needs both its file and that of its key")
        self._ca, self._certificate, self._key = (
            None if path is None else os.fspath(path) for path in (ca_path, cert_path, key_path)
        )
        self._seen = self._contents()
        self._context = self._load() if self._seen else None

    @property
    def is_given(self) -> bool:
        """Whether there is any file, which matters to https alone."""
        return bool(self._seen)

    def context(self) -> ssl.SSLContext | bool:
        """What the next connection uses; true for what is usual."""
        if self._context is None:
            return True
        contents = self._contents()
        if contents != self._seen:
            try:
                self._context = self._load()
            except Misconfigured:
                return self._context
            self._seen = contents  # as read before they were loaded: a later change is seen the next time
        return self._context

    def _contents(self) -> Contents:
        return tuple(_content(path) for path in (self._ca, self._certificate, self._key) if path is not None)

    def _load(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except (OSError, ValueError) as error:
            raise Misconfigured(f"the CA file {self._ca} cannot be used: {_fault(error)}") from None
        if self._ca is not None:
            # Private CAs are often made by hand and lack what strictness wants, and may stand without their root.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self._certificate is not None:
            self._load_pair(context, self._certificate)
        return context

    def _load_pair(self, context: ssl.SSLContext, certificate: str) -> None:
        try:
            # An encrypted key would otherwise be asked for on the terminal.
            context.load_cert_chain(certificate, self._key, password=lambda: b"")
        except (OSError, ValueError) as error:
            pair = f"the certificate {certificate} with the key {self._key}"
            raise Misconfigured(f"{pair} cannot be used: {_fault(error)}") from None


def _content(path: str) -> bytes | str:
    try:
        with Path(path).open("rb") as file:
            return file.read(ANY_LENGTH)
    except OSError as error:
        return error.strerror or "it cannot be read"


def _fault(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            return "they do not belong together"
        return f"it is no PEM, or the key is encrypted ({(error.reason or 'no reason').lower().replace('_', ' ')})"
    return (error.strerror if isinstance(error, OSError) else None) or "it cannot be read"
