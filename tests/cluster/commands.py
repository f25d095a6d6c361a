"""The command lines of a control plane's programs, and the addresses in them."""

from pathlib import Path

from cluster.identity import ISSUER, Identity
from cluster.programs import Programs
from netns.addresses import Pair

ADDRESS = Pair("10.88.0.1", "fd00:88::1")
"""The API server's addresses, on the bridge that nodes are attached to."""
PORT = 6443
SERVICES = Pair("10.96.0.0/16", "fd00:10:96::/112")
"""ClusterIPs."""
DNS_NAME = "control-plane.test"
"""A name that the API server's certificate is good for; nothing resolves it."""
ETCD = "http://127.0.0.1:2379"

_PEER = "http://127.0.0.1:2380"
_SPACE = 4 << 30
# Nodes here have no kubelet that says it lives, and Pods may be on nodes that there are no objects of.
_NOT_RUN = ("node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller")


def etcd(programs: Programs, folder: Path) -> list[str | Path]:
    """etcd, with its data in a folder; on loopback, and never waiting for a disk."""
    return [
        programs.etcd,
        "--name=tests",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={_PEER}",
        f"--initial-advertise-peer-urls={_PEER}",
        f"--initial-cluster=tests={_PEER}",
        "--unsafe-no-fsync",
        f"--quota-backend-bytes={_SPACE}",
        "--log-level=warn",
    ]


def apiserver(programs: Programs, identity: Identity) -> list[str | Path]:
    """kube-apiserver: RBAC, tokens of ServiceAccounts, dual-stack, the admission plug-ins that are on by default."""
    return [
        programs.kube_apiserver,
        f"--etcd-servers={ETCD}",
        f"--advertise-address={ADDRESS.v4}",
        "--bind-address=::",
        f"--secure-port={PORT}",
        f"--tls-cert-file={identity.certificate}",
        f"--tls-private-key-file={identity.key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--token-auth-file={identity.tokens}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={identity.account_key}",
        f"--service-account-signing-key-file={identity.account_key}",
        "--service-account-extend-token-expiration=false",
        f"--service-cluster-ip-range={SERVICES.v4},{SERVICES.v6}",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
        "--profiling=false",
    ]


def manager(programs: Programs, identity: Identity, kubeconfig: Path) -> list[str | Path]:
    """kube-controller-manager: all that it runs by default, except what judges nodes by their kubelets."""
    return [
        programs.kube_controller_manager,
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={identity.account_key}",
        f"--root-ca-file={identity.ca}",
        f"--controllers=*,{','.join(f'-{name}' for name in _NOT_RUN)}",
        "--allocate-node-cidrs=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]
