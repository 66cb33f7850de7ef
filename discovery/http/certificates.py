"""The certificate, key and client CA that the server shows and trusts, renewed while it runs.

From files to one ``ssl.SSLContext`` at a time, which every new connection takes; connections that are open keep theirs.
New files are tried before they are used: until certificate and key go together, are not encrypted and have not
expired, the context before stays. Knows nothing of connections.
"""

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from discovery.errors import Misconfigured
from discovery.logs import event

LOOK_SECS = 1.0
"""How often the files are read: a renewed certificate is used about a second later."""
VERIFY_WITHOUT_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""
ANY_LENGTH = 1 << 20

logger = logging.getLogger(__name__)

_first_certificate = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----[^-]+-----END [A-Z0-9 ]*CERTIFICATE-----"
).search

Contents = tuple[bytes | str, ...]
"""What each file holds, or in words why it cannot be read."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files; with ``client_ca`` clients must present a certificate that it signed."""

    certificate: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them."""
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)


class Loaded(NamedTuple):
    """A context, and the seconds since 1970 between which its certificate is valid."""

    context: ssl.SSLContext
    not_before: float
    not_after: float

    def fault(self) -> str | None:
        """Why clients refuse the certificate at this time, if they do."""
        now = time.time()
        if now < self.not_before:
            return f"is valid only from {_date(self.not_before)} on"
        return f"expired on {_date(self.not_after)}" if now > self.not_after else None


class Unusable(Exception):
    """What is wrong with the files, in one sentence that names the one at fault."""


class Certificates:
    """The context of the moment. Raises ``Misconfigured`` where there is none to begin with.

    An expired certificate is none: nobody would begin with it, while one that ends in use goes on until there is a
    better one. One that is not valid yet is used with a warning, since this machine's clock may be the one at fault.
    """

    def __init__(self, files: TlsFiles, *, on_refused: Callable[[], None] = lambda: None) -> None:
        self._files = files
        self._on_refused = on_refused
        self._refused: str | None = None
        self._trouble: str | None = None
        self._tried = _read(files)
        try:
            self._loaded = _load(files)
        except Unusable as error:
            raise Misconfigured(str(error)) from None
        if time.time() > self._loaded.not_after:
            raise Misconfigured(f"{self._fault()}: renew it")
        self._note(self._fault())

    @property
    def context(self) -> ssl.SSLContext:
        """What a connection that begins now has to use."""
        return self._loaded.context

    @property
    def not_after(self) -> float:
        """When the certificate in use ends, in seconds since 1970."""
        return self._loaded.not_after

    async def follow(self) -> None:
        """Look at the files for ever, beside the loop: a mounted file may be on a network."""
        while True:
            await asyncio.sleep(LOOK_SECS)
            await self.look()

    async def look(self) -> None:
        """Take what the files hold now, if it is new and can be used; else say so once."""
        contents = await asyncio.to_thread(_read, self._files)
        if contents == self._tried:
            # A certificate may end while it is used, and what was refused stays refused.
            self._note(self._refused or self._fault())
            return
        try:
            loaded = await asyncio.to_thread(_load, self._files)
            if await asyncio.to_thread(_read, self._files) != contents:
                return  # they change at this very moment: what was loaded may be half of it
            if (fault := loaded.fault()) and not self._loaded.fault():
                raise Unusable(f"the certificate {self._files.certificate} {fault}")
        except Unusable as error:
            self._tried, self._refused = contents, str(error)
            self._on_refused()
        else:
            self._tried, self._refused, self._loaded = contents, None, loaded
            text = "uses the certificate that ends on %s"
            event(logger, logging.INFO, "certificate.used", text, _date(loaded.not_after))
        self._note(self._refused or self._fault())

    def _fault(self) -> str | None:
        fault = self._loaded.fault()
        return f"the certificate {self._files.certificate} {fault}" if fault else None

    def _note(self, trouble: str | None) -> None:
        """One line when something is wrong, another one when something else is, and one when all is well again."""
        before, self._trouble = self._trouble, trouble
        if trouble == before:
            return
        if trouble is None:
            event(logger, logging.INFO, "file.accepted", "the certificate files can be used again")
        elif self._refused:
            text = "renewed certificate files are not used, those before stay in use: %s"
            event(logger, logging.WARNING, "file.refused", text, trouble, cause=trouble)
        else:
            event(logger, logging.WARNING, "certificate.doubtful", "%s: clients will refuse it", trouble, cause=trouble)


def _read(files: TlsFiles) -> Contents:
    return tuple(_content(path) for path in files.paths)


def _content(path: str) -> bytes | str:
    try:
        with Path(path).open("rb") as file:
            return file.read(ANY_LENGTH)
    except OSError as error:
        return error.strerror or "it cannot be read"


def _load(files: TlsFiles) -> Loaded:
    """A context from the files as they are now; raises ``Unusable``."""
    texts = _checked(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An encrypted key would otherwise be asked for on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except ssl.SSLError as error:
        raise Unusable(_pair_fault(files, error)) from None
    except OSError as error:
        raise Unusable(f"the certificate {files.certificate} cannot be used: {error.strerror}") from None
    not_before, not_after = _validity(context, files, texts[0])
    if files.client_ca is not None:
        _demand_certificates(context, files.client_ca)
    return Loaded(context, not_before, not_after)


def _checked(files: TlsFiles) -> tuple[bytes, ...]:
    """The files' contents as far as they look like what they should be."""
    texts = []
    kinds = (("certificate", b"CERTIFICATE-----"), ("key", b"PRIVATE KEY-----"), ("client CA", b"CERTIFICATE-----"))
    for path, (kind, mark) in zip(files.paths, kinds, strict=False):
        text = _content(path)
        if isinstance(text, str):
            raise Unusable(f"the {kind} {path} cannot be read: {text}")
        if mark not in text:
            what = "holds no private key" if kind == "key" else "holds no certificate"
            raise Unusable(f"the {kind} {path} {'is empty' if not text.strip() else f'{what} in PEM form'}")
        if kind == "key" and b"ENCRYPTED" in text:
            raise Unusable(f"the key {path} is encrypted: give it without a passphrase")
        texts.append(text)
    return tuple(texts)


def _pair_fault(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return f"the key {files.key} does not belong to the certificate {files.certificate}"
    return f"the certificate {files.certificate} with the key {files.key} cannot be used: {_words(error)}"


def _demand_certificates(context: ssl.SSLContext, path: str) -> None:
    """Every client must show a certificate of this CA, at each connection: none comes back on what it showed before."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise Unusable(f"the client CA {path} cannot be used: {_words(error)}") from None
    except OSError as error:
        raise Unusable(f"the client CA {path} cannot be read: {error.strerror}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may name the issuing CA without its root
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _validity(server: ssl.SSLContext, files: TlsFiles, certificate: bytes) -> tuple[float, float]:
    """From when to when the certificate is valid, as a client learns it: by a handshake in memory."""
    found = _first_certificate(certificate)
    if found is None:
        raise Unusable(f"the certificate {files.certificate} holds no whole certificate in PEM form")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | VERIFY_WITHOUT_TIME
    client.load_verify_locations(cadata=found[0].decode("ascii"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for end_of_it in (*ends, *ends, *ends):
            _step(end_of_it)
        shown = ends[0].getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        raise Unusable(f"the certificate {files.certificate} cannot be used: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise Unusable(f"the certificate {files.certificate} cannot be used: {_words(error)}") from None
    return tuple(ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))  # type: ignore[return-value]


def _step(one: ssl.SSLObject) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):
        one.do_handshake()


def _words(error: ssl.SSLError) -> str:
    return (error.reason or "IT_IS_NO_PEM").lower().replace("_", " ").replace(" pem", " PEM")


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
