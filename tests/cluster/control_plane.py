"""etcd, kube-apiserver and kube-controller-manager in a network namespace of their own."""

import contextlib
import http.client
import itertools
import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from cluster import commands
from cluster.api import Api, ApiError, Object
from cluster.commands import ADDRESS, DNS_NAME, ETCD, PORT
from cluster.identity import Identity
from cluster.processes import Deadline, Keeper, Program, Scratch
from cluster.programs import Programs, programs
from netns.addresses import Pair
from netns.namespaces import Namespace
from netns.world import Host

BRIDGE = "br0"
ADMINISTRATOR = "administrator"
AGENT = "nodeproxy"
"""ServiceAccount of the agents, in ``AGENT_NAMESPACE``, with the permissions that they need and no others."""
AGENT_NAMESPACE = "kube-system"
KUBE_PROXY = "kube-proxy"
"""The user that kube-proxy is; the API server itself binds its role, ``system:node-proxier``."""
MANAGER = "kube-controller-manager"

_SHORTEST_REQUEST = 600
_START = 90.0
_SHUTDOWN = 4.0
_AGENT_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["services", "nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["list", "watch"]},
]


class ControlNamespace(Namespace):
    """The network namespace of a control plane."""

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        stdout: int | IO[str] = subprocess.DEVNULL,
        stderr: int | IO[str] = subprocess.DEVNULL,
    ) -> "subprocess.Popen[str]":
        """Start a command here; whoever starts it ends it. It dies with the thread that starts it."""
        return self.start(*map(str, argv), stdout=stdout, stderr=stderr)


class ControlPlane:
    """A cluster without nodes. Use it in a ``with`` statement; it takes some seconds to start.

    Args:
        found: the programs; None: the usual ones, built if need be.
        apiserver_flags: more flags of kube-apiserver, such as ``--feature-gates=WatchList=false``.
        manager_flags: more flags of kube-controller-manager.

    Attributes:
        programs: the programs.
        server: the API server's URL, for its own namespace and all that is attached to it.
        namespace: its network namespace.
        folder: its files; removed when it is closed.
        ca: the certificate that the API server's is signed by.
        kubeconfig: the administrator's (group ``system:masters``).
        api: a client of the administrator's, for any thread of this process, whatever namespace it is in.
        etcd, apiserver, manager: the programs that run.
        started_in: seconds that starting took.
    """

    def __init__(
        self,
        found: Programs | None = None,
        *,
        apiserver_flags: Sequence[str] = (),
        manager_flags: Sequence[str] = (),
    ) -> None:
        self.programs = found or programs()
        began = time.monotonic()
        self.server = f"https://{ADDRESS.v4}:{PORT}"
        self._attached = itertools.count(10)
        self._named = itertools.count(1)
        self._lock = threading.Lock()
        self._apis: list[Api] = []
        with contextlib.ExitStack() as stack:
            scratch = Scratch()
            stack.callback(scratch.close)
            self.folder = scratch.path
            self.namespace = ControlNamespace("control plane")
            stack.callback(self.namespace.close)
            _wire(self.namespace)
            self._identity = self._make_identity()
            self.ca = self._identity.ca
            keeper = Keeper()
            stack.callback(keeper.close)
            self.etcd = Program("etcd", keeper, self.namespace, commands.etcd(self.programs, self.folder), self.folder)
            self.apiserver = Program(
                "kube-apiserver", keeper, self.namespace, self._apiserver_command(apiserver_flags), self.folder
            )
            config = self.kubeconfig_for(MANAGER)
            command = [*commands.manager(self.programs, self._identity, config), *manager_flags]
            self.manager = Program("kube-controller-manager", keeper, self.namespace, command, self.folder)
            for program in (self.etcd, self.apiserver, self.manager):
                stack.callback(program.stop, signal.SIGKILL)
            stack.callback(self._close_apis)
            self.kubeconfig = self.kubeconfig_for(ADMINISTRATOR)
            self.api = self.client(ADMINISTRATOR)
            self._start()
            self._stack = stack.pop_all()
        self.started_in = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the programs, remove their files, and let go of the namespace."""
        self._stack.close()

    # --- the network

    def attach(self, host: Host | Namespace, *, name: str = "control") -> tuple[str, str]:
        """Lay a veth from a host, or a bare namespace, to the API server's bridge.

        It goes with either end's namespace.

        Args:
            host: the host.
            name: the name of the interface there, at most 15 characters.

        Returns:
            The host's new IPv4 and IPv6 address, within 10.88.0.0/16 and fd00:88::/64.
        """
        with self._lock:
            number = next(self._attached)
        namespace = host.namespace if isinstance(host, Host) else host
        high, low = divmod(number, 250)
        pair = Pair(f"10.88.{high}.{low + 2}", f"fd00:88::{number:x}:0")
        self.namespace.ip([
            f"link add n{number} type veth peer name {name} netns {namespace.path}",
            f"link set n{number} master {BRIDGE} up",
        ])  # fmt: skip
        namespace.ip([
            f"addr add {pair.v4}/16 dev {name}",
            f"addr add {pair.v6}/64 dev {name} nodad",
            f"link set {name} up",
        ])  # fmt: skip
        return pair.v4, pair.v6

    # --- users

    def kubeconfig_for(self, user: str = AGENT, *, token: str | Path | None = None, server: str | None = None) -> Path:
        """Write a kubeconfig.

        Args:
            user: ``nodeproxy``, ``kube-proxy``, ``administrator``, or "NAMESPACE:NAME" for another ServiceAccount.
            token: another token of the user, or the file that it is in; None: one that lasts.
            server: another URL of the API server.
        """
        with self._lock:
            number = next(self._named)
        path = self.folder / f"kubeconfig-{number}"
        return self._identity.kubeconfig(path, server or self.server, user, token or self.token(user))

    def token(self, user: str = AGENT, *, seconds: float = 86_400) -> str:
        """A token of a user's.

        Args:
            user: as for :meth:`kubeconfig_for`.
            seconds: how long a ServiceAccount's is good. From 600 on it is asked for by TokenRequest, as kubelets do;
                below, where the API server gives none, it is made with the API server's own key. That it was good is
                remembered for up to 10 s.
        """
        with contextlib.suppress(KeyError):
            return self._identity.token_of(user.removeprefix("system:"))
        namespace, _, name = user.rpartition(":")
        namespace = namespace or AGENT_NAMESPACE
        if seconds < _SHORTEST_REQUEST:
            uid = self.api.get("ServiceAccount", name, namespace)["metadata"]["uid"]
            return self._identity.sign_token(namespace, name, uid, seconds)
        path = self.api.path("ServiceAccount", name, namespace) + "/token"
        spec = {"expirationSeconds": int(seconds)}
        request: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        code, body = self.api.request("POST", path, json.dumps(request).encode(), {"Content-Type": "application/json"})
        if code != 201:
            raise ApiError(f"POST {path}", code, body)
        token: str = json.loads(body)["status"]["token"]
        return token

    def client(self, user: str | None = AGENT, *, token: str | None = None) -> Api:
        """A client of a user's (None: anonymous), for any thread; closed with the control plane."""
        given = token or (None if user is None else self.token(user))
        api = Api(self.namespace, ADDRESS.v4, PORT, self.ca, given)
        with self._lock:
            self._apis.append(api)
        return api

    # --- work with it

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60) -> str:  # noqa: A002
        """Run kubectl as the administrator and return its output.

        Raises:
            CommandError: it failed.
        """
        home = (f"HOME={self.folder}", f"KUBECONFIG={self.kubeconfig}", "KUBERC=off")
        return self.namespace.run("env", *home, str(self.programs.kubectl), *args, text=input, timeout=timeout)

    @contextlib.contextmanager
    def new_namespace(self, prefix: str = "test") -> Iterator[str]:
        """A Kubernetes namespace for one test, ready for Pods; deleted at the end, without waiting for it."""
        item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": f"{prefix}-"}}
        made = self.api.create(item)
        name = made["metadata"]["name"]
        try:
            self._await_account(name)
            yield name
        finally:
            self.api.delete(made)

    def restart_apiserver(self, *, kill: bool = False, flags: Sequence[str] | None = None) -> None:
        """End the API server and start it anew, ready when this returns.

        Args:
            kill: by SIGKILL, so that connections just break.
            flags: other additional flags than before; None: the same.
        """
        self.stop_apiserver(kill=kill)
        if flags is not None:
            self.apiserver.argv = self._apiserver_command(flags)
        self.start_apiserver()

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """End the API server.

        Watches that are open would hold its end up for a minute, so that it is given some seconds.
        """
        self.apiserver.stop(signal.SIGKILL if kill else signal.SIGTERM, _SHUTDOWN)
        for api in self._apis:
            api.close()

    def start_apiserver(self) -> None:
        """Start the API server and wait until it is ready."""
        self.apiserver.start()
        self._await_ready()

    def compact_etcd(self) -> int:
        """Forget all but the newest version of everything: older resource versions are gone from etcd.

        The API server still knows what is in its watch cache, until it restarts.

        Returns:
            The revision that etcd is at.
        """
        answer = self._etcd_call("kv/range", {"key": "AA==", "limit": "1"})
        revision = int(answer["header"]["revision"])
        self._etcd_call("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def stop_controllers(self) -> None:
        """End the controller manager: nothing makes EndpointSlices, Pods, …"""
        self.manager.stop()

    def start_controllers(self) -> None:
        """Start the controller manager again."""
        self.manager.start()

    def check(self) -> None:
        """Make sure that all programs run.

        Raises:
            ProgramError: one does not; with the end of its log.
        """
        for program in (self.etcd, self.apiserver, self.manager):
            program.check()

    # --- how it is made

    def _make_identity(self) -> Identity:
        addresses = [*ADDRESS, "127.0.0.1", "::1", "10.96.0.1", "fd00:10:96::1"]
        names = [DNS_NAME, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        identity = Identity(self.folder, addresses, names)
        identity.add_user(ADMINISTRATOR, ADMINISTRATOR, "system:masters")
        for name in (MANAGER, KUBE_PROXY):
            identity.add_user(name, f"system:{name}")
        return identity

    def _apiserver_command(self, flags: Sequence[str]) -> list[str | Path]:
        return [*commands.apiserver(self.programs, self._identity), *flags]

    def _start(self) -> None:
        self.etcd.start()
        # It retries until etcd answers: both start at once.
        self.apiserver.start()
        self._await_ready()
        self.manager.start()
        self._make_agent()
        self._await_account("default")

    def _await_ready(self) -> None:
        deadline = Deadline(_START, "the API server is not ready", self.apiserver)
        while True:
            try:
                code, body = self.api.request("GET", "/readyz?verbose")
            except (OSError, http.client.HTTPException) as error:
                why: object = error
            else:
                if code == 200:
                    return
                lines = body.decode(errors="replace").splitlines()
                why = next((line for line in lines if line.startswith("[-]")), code)
            self.etcd.check()
            deadline.pause(why)

    def _await_account(self, namespace: str) -> None:
        deadline = Deadline(
            _START, f"the controllers have not made namespace {namespace}'s ServiceAccount", self.manager
        )
        while self.api.find("ServiceAccount", "default", namespace) is None:
            deadline.pause()

    def _make_agent(self) -> None:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT}
        account = {"kind": "ServiceAccount", "name": AGENT, "namespace": AGENT_NAMESPACE}
        version = "rbac.authorization.k8s.io/v1"
        named = {"metadata": {"name": AGENT}}
        deadline = Deadline(_START, f"there is no namespace {AGENT_NAMESPACE}", self.apiserver)
        while self.api.find("Namespace", AGENT_NAMESPACE) is None:
            deadline.pause()
        self.api.load([
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT, "namespace": AGENT_NAMESPACE}},
            {"apiVersion": version, "kind": "ClusterRole", **named, "rules": _AGENT_RULES},
            {"apiVersion": version, "kind": "ClusterRoleBinding", **named, "roleRef": role, "subjects": [account]},
        ])  # fmt: skip

    def _etcd_call(self, what: str, body: Object) -> Object:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with self.namespace.enter(), opener.open(f"{ETCD}/v3/{what}", json.dumps(body).encode(), 30) as answer:
            found: Object = json.loads(answer.read())
            return found

    def _close_apis(self) -> None:
        for api in self._apis:
            api.close()


def _wire(namespace: Namespace) -> None:
    namespace.sysctl({"ipv6/conf/all/accept_dad": 0, "ipv6/conf/default/accept_dad": 0})
    namespace.sysctl({"bridge/bridge-nf-call-iptables": 0, "bridge/bridge-nf-call-ip6tables": 0}, optional=True)
    namespace.ip([
        f"link add {BRIDGE} type bridge",
        f"addr add {ADDRESS.v4}/16 dev {BRIDGE}",
        f"addr add {ADDRESS.v6}/64 dev {BRIDGE} nodad",
        f"link set {BRIDGE} up",
        "link set lo up",
    ])  # fmt: skip
