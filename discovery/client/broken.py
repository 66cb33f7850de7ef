"""What broke, in words: failures of the HTTP library and of TLS as our errors, in one line that says what to do."""

import os
import ssl

import aiohttp

from discovery.client.answers import NoAnswer, one_line

UNKNOWN_ISSUER = (18, 19, 20, 21)
"""Of OpenSSL's codes those that say: self-signed, or of a CA that is not known."""
NO_TLS = ("WRONG VERSION NUMBER", "HTTP REQUEST", "RECORD LAYER FAILURE")
ITS_WISH = ("CERTIFICATE REQUIRED", "HANDSHAKE FAILURE", "UNKNOWN CA", "BAD CERTIFICATE", "CERTIFICATE EXPIRED")
"""What a service says that wants a certificate, or another one; to TLS 1.2 it says no more than that it failed."""

BROKEN = (aiohttp.ClientError, OSError)
"""What means that no answer came."""


def no_answer(base: str, error: Exception) -> NoAnswer:
    """Why nobody answered there."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return NoAnswer(f"cannot connect to {base}: no answer in time", reached=False)
        case aiohttp.ClientConnectorDNSError():
            return NoAnswer(f"cannot connect to {base}: the name cannot be resolved", reached=False)
        case aiohttp.ClientConnectorCertificateError():
            return NoAnswer(f"cannot connect to {base}: {_distrust(error.certificate_error)}", reached=False)
        case aiohttp.ClientConnectorSSLError():
            return NoAnswer(f"cannot connect to {base}: {_tls_fault(error.os_error)}", reached=False)
        case aiohttp.ClientConnectorError():
            return NoAnswer(f"cannot connect to {base}: {_reason(error)}", reached=False)
        case TimeoutError():
            return NoAnswer(f"{base} did not answer in time", reached=True)
        case _ if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
            # A service that wants a certificate says so only after what the client takes for the handshake.
            return NoAnswer(f"{base} broke off: {_tls_fault(error.__cause__ or error.__context__)}", reached=True)
        case _:
            dropped = isinstance(error, aiohttp.ServerDisconnectedError | OSError)
            return NoAnswer(f"{base} broke the connection off", reached=True, dropped=dropped)


def _distrust(error: Exception) -> str:
    """Why the service's certificate is not taken; where its CA is not known, what to do."""
    reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
    unknown = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in UNKNOWN_ISSUER
    advice = " (ca_path, or --ca-path, names the CA to trust)" if unknown else ""
    return one_line(f"its certificate is not trusted: {reason.rstrip('.')}{advice}")


def _tls_fault(error: BaseException | None) -> str:
    reason = (getattr(error, "reason", None) or "unknown").replace("_", " ")
    if reason in NO_TLS:
        return "it speaks no TLS: use http://"
    said = reason.partition("ALERT ")[2]
    if not said:
        return one_line(f"TLS failed: {reason.lower()}")
    advice = "the client certificate that it wants is given by cert_path and key_path, or --cert-path and --key-path"
    return one_line(f"it refused the TLS handshake: {said.lower()}" + (f" ({advice})" if said in ITS_WISH else ""))


def _reason(error: OSError) -> str:
    known = error.errno is not None and error.errno > 0
    return os.strerror(error.errno or 0) if known else one_line(error.strerror or str(error))
