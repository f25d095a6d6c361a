"""Names, keys and a service port with every kind of frontend, for the tests of plans."""

from nodeproxy.model.service import ServicePort
from unit.ruleset.build import port

BASE = "ULMVA6XW-ns1/svc1/tcp/p80"
SERVICE_CHAIN, LOCAL_CHAIN = f"service-{BASE}", f"local-{BASE}"
EXTERNAL_CHAIN, FIREWALL_CHAIN = f"external-{BASE}", f"firewall-{BASE}"

CLUSTER_IP, EXTERNAL_IP, VIP, NODE_PORT = "172.30.0.41", "192.168.99.22", "1.2.3.4", 3001
CLUSTER_KEY, EXTERNAL_KEY, VIP_KEY = ((a, "tcp", 80) for a in (CLUSTER_IP, EXTERNAL_IP, VIP))
NODE_PORT_KEY = ("tcp", NODE_PORT)

LOCAL, REMOTE = "10.180.0.1", "10.180.0.2"


def full(*, internal: bool = False, external: bool = False, **fields: object) -> ServicePort:
    """A service port with every kind of frontend."""
    values: dict[str, object] = {
        "node_port": NODE_PORT,
        "external_ips": (EXTERNAL_IP,),
        "load_balancer_vips": (VIP,),
        "internal_policy_local": internal,
        "external_policy_local": external,
    }
    return port(**{**values, **fields})  # type: ignore[arg-type]
