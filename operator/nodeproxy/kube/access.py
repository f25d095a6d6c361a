"""How the API server is reached, and with which credentials: in the cluster, by a kubeconfig, or at a given address.

Finding and reading them is the ``kubernetes`` client's; what is added is that they are read again, since what is on
disk changes: tokens of service accounts are replaced within the hour.
"""

import copy
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import yaml
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import SERVICE_HOST_ENV_NAME, InClusterConfigLoader
from kubernetes.config.kube_config import load_kube_config

from nodeproxy import __version__
from nodeproxy.kube.addresses import canonical_address
from nodeproxy.kube.source import SourceError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a kubelet puts a pod's token and the API server's certificate authority."""

_TOKEN = "BearerToken"  # noqa: S105 -- the client's name for it
_POOL_SIZE = 16  # a connection for each watch, and some for lists beside them
# What a connection depends on besides the token; a client whose values differ has to be made anew.
_PLACE = (
    "host",
    "ssl_ca_cert",
    "ca_cert_data",
    "cert_file",
    "key_file",
    "verify_ssl",
    "tls_server_name",
    "proxy",
    "no_proxy",
)

_log = structlog.get_logger(__name__)


class Access:
    """A client for the API server whose credentials are up to date. May be used from several threads.

    The client, and with it the pool of connections, is made once, and again only when the address or certificates'
    places change.

    Args:
        load: fills in a configuration from what is on disk now.
        origin: where it is read: a file's path, or words.
        master: the address to use in place of the one that is read; empty: that one.
        costly: reading means running a program, so it is done only when credentials expire or are refused.
        through_service: the address is the ClusterIP of Service default/kubernetes.

    Raises:
        SourceError: there is no address, or nothing can be read.
    """

    def __init__(
        self,
        load: Callable[[Configuration], None],
        origin: str,
        master: str = "",
        *,
        costly: bool = False,
        through_service: bool = False,
    ) -> None:
        self._load = load
        self._master = master.rstrip("/")
        self._costly = costly
        self._lock = threading.Lock()
        self._trouble = ""
        self.origin = origin
        self.through_service = through_service and not master
        try:
            self._loaded = self._read()
        except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            msg = f"{origin}: {_told(error)}"
            raise SourceError(msg) from None
        _check(self._loaded.host, origin)
        self._client = _client(self._loaded)
        self._take_token()

    @property
    def server(self) -> str:
        """The API server's address, as ``https://host:port``."""
        return str(self._loaded.host)

    @property
    def host(self) -> str:
        """The host in :attr:`server`: a name, or an address without brackets."""
        return urlsplit(self.server).hostname or ""

    def client(self) -> ApiClient:
        """The client, with the credentials that are on disk now.

        If they cannot be read, say while they are being written, the ones before stay in use.
        """
        with self._lock:
            if not self._costly:
                self._reload()
            self._take_token()
            return self._client

    def renew(self) -> None:
        """Read everything again: the API server has refused the credentials."""
        with self._lock:
            self._reload()
            self._take_token()

    def close(self) -> None:
        """Close connections that are not in use."""
        with self._lock:
            self._client.close()

    def addresses(self) -> frozenset[str]:
        """The canonical addresses that :attr:`host` has; asks the resolver, and is empty if that does not know."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return frozenset()
        return frozenset(canonical_address(str(entry[4][0]).partition("%")[0]) for entry in found)

    def _read(self) -> Configuration:
        configuration = Configuration()
        self._load(configuration)
        if self._master:
            configuration.host = self._master
        return configuration

    def _reload(self) -> None:
        try:
            fresh = self._read()
            token = _token(fresh)
        except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            self._note(_told(error))
            return
        if not token and _token(self._loaded):
            self._note("there is no token any more")
            return
        self._note("")
        if _place(fresh) != _place(self._loaded):
            _log.info("the API server is reached another way", server=fresh.host, origin=self.origin)
            self._client.close()  # connections in use end by themselves
            self._client = _client(fresh)
        self._loaded = fresh

    def _take_token(self) -> None:
        """Hand the token over to the client; asks for a new one first if it has run out, where that is known."""
        try:
            token = _token(self._loaded)
        except (ConfigException, OSError) as error:
            self._note(_told(error))
            return
        self._client.configuration.api_key = {_TOKEN: token} if token else {}

    def _note(self, trouble: str) -> None:
        """Say once that credentials cannot be read, and once that they can be again."""
        if trouble and trouble != self._trouble:
            _log.warning(
                "credentials can't be read", origin=self.origin, error=trouble, effect="those of before stay in use"
            )
        elif self._trouble and not trouble:
            _log.info("credentials can be read again", origin=self.origin)
        self._trouble = trouble


def find_access(
    kubeconfig: str = "",
    master: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """How to reach the API server.

    Args:
        kubeconfig: path of a kubeconfig; empty: what a pod is given (``KUBERNETES_SERVICE_HOST``,
            ``KUBERNETES_SERVICE_PORT`` and the files of its service account).
        master: the API server's URL, in place of the one found; alone and outside of a cluster, it is used without
            credentials.
        environ: the environment.
        service_account: folder of the service account's ``token`` and ``ca.crt``.

    Raises:
        SourceError: nothing says where the API server is, or what says it can't be read.
    """
    if kubeconfig:
        path = Path(kubeconfig)
        try:
            costly = _runs_a_program(path)
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            msg = f"{kubeconfig}: {_told(error)}"
            raise SourceError(msg) from None
        return Access(
            lambda into: load_kube_config(str(path), client_configuration=into), kubeconfig, master, costly=costly
        )
    if environ.get(SERVICE_HOST_ENV_NAME):
        loader = (str(service_account / "token"), str(service_account / "ca.crt"))

        def load(into: Configuration) -> None:
            InClusterConfigLoader(*loader, try_refresh_token=False, environ=dict(environ)).load_and_set(into)

        return Access(
            load,
            f"{SERVICE_HOST_ENV_NAME} and {service_account}",
            master,
            through_service=_is_cluster_ip(environ[SERVICE_HOST_ENV_NAME], environ),
        )
    if master:
        return Access(lambda _: None, "--master", master)
    msg = (
        "nothing says where the API server is: give --kubeconfig or --master, run in a pod, or read manifests"
        " from a folder (--manifests)"
    )
    raise SourceError(msg)


def _is_cluster_ip(host: str, environ: Mapping[str, str]) -> bool:
    """Whether KUBERNETES_SERVICE_HOST is as the kubelet set it, which is the ClusterIP of Service default/kubernetes.

    A kubelet sets KUBERNETES_PORT and others like it to the same address. A pod's manifest that sends its pods around
    the Service gives the two variables of host and port only, so then they differ.
    """
    told = environ.get("KUBERNETES_PORT", "")
    try:
        return bool(told) and canonical_address(urlsplit(told).hostname or "") == canonical_address(host)
    except ValueError:
        return False


def _runs_a_program(path: Path) -> bool:
    """Whether a kubeconfig gets credentials from a program or a service, for any of its users."""
    config = yaml.safe_load(path.read_text())
    users = config.get("users") if isinstance(config, dict) else None
    details = [user.get("user") for user in users or () if isinstance(user, dict)]
    return any(isinstance(user, dict) and ("exec" in user or "auth-provider" in user) for user in details)


def _client(loaded: Configuration) -> ApiClient:
    configuration = copy.deepcopy(loaded)
    configuration.refresh_api_key_hook = None  # the token is handed over before each request
    configuration.retries = False  # whoever asks decides about that
    configuration.keep_alive = True
    configuration.connection_pool_maxsize = _POOL_SIZE
    client = ApiClient(configuration)
    client.user_agent = f"nodeproxy/{__version__}"
    return client


def _token(configuration: Configuration) -> str:
    """What goes into the Authorization header; empty if there is none."""
    host = configuration.host
    token = (configuration.get_api_key_with_prefix(_TOKEN, alias="authorization") or "").strip()
    configuration.host = host  # looking whether the token has run out sets everything to what was read
    return "" if token.lower() == "bearer" else token


def _place(configuration: Configuration) -> tuple[object, ...]:
    return tuple(getattr(configuration, name, None) for name in _PLACE)


def _check(server: str, origin: str) -> None:
    """Raises if this is no URL of a server."""
    try:
        parts = urlsplit(server)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        msg = f"{origin}: {server!r} is not the address of an API server, such as https://10.0.0.1:6443"
        raise SourceError(msg)


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return " ".join(str(error).split()) or type(error).__name__
