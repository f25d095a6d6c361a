"""A certificate authority of a test, and what it signs, by the openssl command."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "2"
_EXTENSIONS = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost\nextendedKeyUsage=serverAuth\n"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: the authority's certificate, the server's certificate and its key."""

    authority: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """What a server needs to answer with them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificates(folder: Path) -> Certificates:
    """An authority and a certificate for 127.0.0.1, ::1 and localhost, as files in a folder."""
    authority, authority_key = folder / "ca.crt", folder / "ca.key"
    certificate, key, request = folder / "server.crt", folder / "server.key", folder / "server.csr"
    extensions = folder / "server.ext"
    extensions.write_text(_EXTENSIONS)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl("req", "-x509", *new_key, "-subj", "/CN=test authority", "-days", _DAYS,
             "-keyout", authority_key, "-out", authority)  # fmt: skip
    _openssl("req", *new_key, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    _openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial",
             "-days", _DAYS, "-extfile", extensions, "-out", certificate)  # fmt: skip
    return Certificates(authority, certificate, key)


def _openssl(*argv: str | Path) -> None:
    subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True, timeout=30)
