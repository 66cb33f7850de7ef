"""Certificate authorities and certificates for tests, made by ``openssl``."""

import ssl
import subprocess
from pathlib import Path

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """A CA, and what it signs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self.certificate = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        self._make(self.certificate, self._key, name, "basicConstraints=critical,CA:TRUE")

    def sign(self, name: str, subject: str = "IP:127.0.0.1") -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, another ``subject`` such as ``DNS:host``, or for a client; and its key."""
        certificate, key = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        mine = ("-CA", str(self.certificate), "-CAkey", str(self._key))
        self._make(certificate, key, name, f"subjectAltName={subject}", *mine)
        return certificate, key

    def _make(self, certificate: Path, key: Path, name: str, extension: str, *more: str) -> None:
        # Of its own nothing is added: no key identifiers, as in the certificates of many clusters.
        plain = self._directory / "openssl.cnf"
        plain.write_text("[req]\ndistinguished_name = name\n[name]\n")
        command = ["openssl", "req", "-x509", "-config", str(plain), "-days", "2", "-subj", f"/CN={name}", *KEY]
        command += ["-keyout", str(key), "-out", str(certificate), "-addext", extension, *more]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    def server_side(self, name: str, clients: "Authority | None" = None) -> ssl.SSLContext:
        """A server's context; with ``clients`` it wants a certificate that those signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.sign(name))
        if clients is not None:
            context.load_verify_locations(clients.certificate)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


EXPIRING = """
[ca]
default_ca = here
[here]
database = index.txt
new_certs_dir = .
default_md = sha256
rand_serial = yes
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def expired(directory: Path, subject: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that signed itself and ended years ago; and its key."""
    directory.mkdir()
    (directory / "index.txt").touch()
    (directory / "ca.cnf").write_text(EXPIRING)
    ask = ["openssl", "req", "-new", "-subj", "/CN=expired", *KEY, "-keyout", "key", "-out", "request"]
    ask += ["-addext", f"subjectAltName={subject}"]
    sign = ["openssl", "ca", "-config", "ca.cnf", "-selfsign", "-batch", "-notext", "-in", "request", "-keyfile", "key"]
    sign += ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z", "-out", "certificate"]
    for command in (ask, sign):
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=30)
    return directory / "certificate", directory / "key"
