"""Keys, certificates, tokens and kubeconfigs of a control plane, made with openssl."""

import base64
import json
import secrets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

ISSUER = "https://kubernetes.default.svc"
"""Who issues ServiceAccounts' tokens, and whom they are for."""

_LEEWAY = 60
_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,digitalSignature,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


class IdentityError(RuntimeError):
    """openssl failed; the message has its command and what it said."""


class Identity:
    """A cluster's keys.

    Args:
        folder: where the files go.
        addresses: IP addresses that the API server's certificate is good for.
        names: DNS names that it is good for.

    Attributes:
        ca: the certificate that signs the API server's.
        certificate: the API server's.
        key: its key.
        account_key: signs ServiceAccounts' tokens.
        tokens: file of the users that have a token of their own (``--token-auth-file``).
    """

    def __init__(self, folder: Path, addresses: Sequence[str], names: Sequence[str]) -> None:
        self._folder = folder
        self.ca = folder / "ca.crt"
        self.certificate = folder / "server.crt"
        self.key = folder / "server.key"
        self.account_key = folder / "accounts.key"
        self.tokens = folder / "tokens.csv"
        self._tokens: dict[str, str] = {}
        alternatives = [f"IP:{address}" for address in addresses] + [f"DNS:{name}" for name in names]
        config = folder / "openssl.cnf"
        config.write_text(_CONFIG.format(names=",".join(alternatives)))
        new = ("req", "-config", config, "-x509", "-sha256", "-nodes", "-days", "30", "-newkey", "ec")
        curve = ("-pkeyopt", "ec_paramgen_curve:prime256v1")
        authority = folder / "ca.key"
        _openssl(
            *new, *curve, "-subj", "/CN=tests CA", "-extensions", "authority", "-keyout", authority, "-out", self.ca
        )
        signed = ("-CA", self.ca, "-CAkey", authority, "-extensions", "server")
        _openssl(*new, *curve, "-subj", "/CN=kube-apiserver", *signed, "-keyout", self.key, "-out", self.certificate)
        _openssl("genrsa", "-out", self.account_key, "2048")

    def add_user(self, name: str, user: str, *groups: str) -> str:
        """Give a user a token that never expires; before the API server starts.

        Args:
            name: what it is asked for by.
            user: what the API server calls it.
            groups: the groups it is in.

        Returns:
            The token.
        """
        token = self._tokens[name] = secrets.token_hex(16)
        quoted = ",".join(groups)
        with self.tokens.open("a") as file:
            file.write(f'{token},{user},{name},"{quoted}"\n')
        return token

    def token_of(self, user: str) -> str:
        """The token that :meth:`add_user` gave.

        Raises:
            KeyError: there is no such user.
        """
        return self._tokens[user]

    def sign_token(self, namespace: str, name: str, uid: str, seconds: float) -> str:
        """A ServiceAccount's token, signed here: TokenRequest gives none for less than ten minutes.

        Args:
            namespace: the ServiceAccount's namespace.
            name: its name.
            uid: its uid.
            seconds: until the API server takes it no more; it may remember for 10 s longer that it was good. By its
                own claim it expires a minute earlier, which the API server forgives, for clocks that differ.
        """
        now = int(time.time())
        account = {"name": name, "uid": uid}
        claims = {
            "iss": ISSUER,
            "aud": [ISSUER],
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "iat": now,
            "nbf": now - 2 * _LEEWAY,
            "exp": int(now + seconds - _LEEWAY),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": account},
        }
        content = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
        signature = _openssl("dgst", "-sha256", "-sign", self.account_key, text=content.encode())
        return f"{content}.{_base64(signature)}"

    def kubeconfig(self, path: Path, server: str, user: str, token: str | Path) -> Path:
        """Write a kubeconfig for a user with a token, or with a file that holds it, and return its path."""
        credentials = {"tokenFile": str(token)} if isinstance(token, Path) else {"token": token}
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        path.write_bytes(msgspec.yaml.encode(content))
        return path


def _openssl(*words: str | Path, text: bytes = b"") -> bytes:
    try:
        done = subprocess.run(["openssl", *map(str, words)], input=text, capture_output=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise IdentityError("openssl is not installed") from error
    if done.returncode:
        raise IdentityError(f"openssl {' '.join(map(str, words))}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
