"""How the proxies are configured: alike on both sides, and in another way for each seed of a round."""

from dataclasses import dataclass

from netns import addresses as plan
from netns.manifests import Manifest
from netns.world import BRIDGE

_PODS = ",".join(plan.CLUSTER)
_SECONDARY = tuple(f"{address}/{length}" for address, length in zip(plan.node_secondary(0), (32, 128), strict=True))
_GATEWAY = tuple(f"{address}/{length}" for address, length in zip(plan.pod_gateway(0), (32, 128), strict=True))


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration.

    Attributes:
        detector: detectLocalMode.
        cluster_cidr: clusterCIDR.
        node_ports: nodePortAddresses.
        masquerade_all: whether to masquerade all traffic to ClusterIPs.
        masquerade_bit: bit of the packet mark.
        zoned: whether the node has a zone.
        own_flags: flags of nodeproxy alone, which must not change any packet's fate.
    """

    detector: str = "ClusterCIDR"
    cluster_cidr: str = _PODS
    node_ports: tuple[str, ...] = ()
    masquerade_all: bool = False
    masquerade_bit: int = 14
    zoned: bool = True
    own_flags: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        """As nodeproxy's command line."""
        return [
            f"--detect-local-mode={self.detector}",
            *([f"--cluster-cidr={self.cluster_cidr}"] if self.cluster_cidr else []),
            *([f"--pod-bridge-interface={BRIDGE}"] if self.detector == "BridgeInterface" else []),
            f"--nodeport-addresses={','.join(self.node_ports)}",
            f"--masquerade-all={str(self.masquerade_all).lower()}",
            f"--masquerade-bit={self.masquerade_bit}",
            *self.own_flags,
        ]

    def kube_proxy(self, kubeconfig: str, node: str) -> Manifest:
        """As kube-proxy's configuration file, which leaves the machine's conntrack limits and OOM scores alone."""
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 100, "burst": 200},
            "hostnameOverride": node,
            "detectLocalMode": self.detector,
            "detectLocal": {"bridgeInterface": BRIDGE if self.detector == "BridgeInterface" else ""},
            "clusterCIDR": self.cluster_cidr,
            "nodePortAddresses": list(self.node_ports),
            "nftables": {
                "masqueradeAll": self.masquerade_all,
                "masqueradeBit": self.masquerade_bit,
                "minSyncPeriod": "100ms",
                "syncPeriod": "30s",
            },
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "oomScoreAdj": 0,
        }

    def names_node_ports_of(self, family: int) -> bool:
        """Whether nodePortAddresses names an address of a family."""
        keywords = {"primary", "all", "localhost"}
        return not self.node_ports or any(one in keywords or (":" in one) == (family == 6) for one in self.node_ports)


SETTINGS: tuple[Settings, ...] = (
    Settings(),
    Settings(detector="NodeCIDR", cluster_cidr="", node_ports=("all",)),
    Settings(detector="BridgeInterface", cluster_cidr="", node_ports=_SECONDARY),
    Settings(masquerade_all=True, node_ports=("primary", *_SECONDARY), zoned=False),
    Settings(cluster_cidr="", node_ports=("all",), masquerade_bit=0),
    Settings(cluster_cidr=plan.CLUSTER.v4, node_ports=tuple(plan.UNDERLAY)),
    Settings(node_ports=("primary",), own_flags=("--endpoint-chains=Always",)),
    Settings(detector="NodeCIDR", cluster_cidr="", node_ports=(plan.UNDERLAY.v4,), masquerade_bit=31),
    Settings(detector="BridgeInterface", cluster_cidr="", node_ports=("localhost", *_GATEWAY), masquerade_all=True),
    Settings(cluster_cidr=f"{plan.CLUSTER.v6},{plan.CLUSTER.v4}", node_ports=("0.0.0.0/0", "::/0")),
)
"""One for each seed of a round."""


def settings_of(seed: int) -> Settings:
    """The configuration of a seed."""
    return SETTINGS[seed % len(SETTINGS)]
