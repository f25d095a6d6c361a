"""Service ports, endpoints, plans and renderers, made with few words."""

from typing import Any

from nodeproxy.kube.addresses import Family, family_of
from nodeproxy.kube.objects import Protocol
from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.frontends import Frontend
from nodeproxy.model.node import LocalDetector, NodeView
from nodeproxy.model.service import ServicePort, ServicePortName
from nodeproxy.model.settings import EndpointChains
from nodeproxy.model.traffic import categorize
from nodeproxy.ruleset.plan import PlanContext, plan
from nodeproxy.ruleset.render import RenderContext, Renderer
from nodeproxy.ruleset.rules import Chain, ElementKey, ServiceRules

V4, V6 = Family.IPV4, Family.IPV6
NODE = "test-node"
NODE_ADDRESS = {V4: "192.168.0.2", V6: "fd00:192:168::2"}
POD_CIDR = {V4: "10.0.0.0/8", V6: "fd00:10::/32"}
SERVICE_CIDR = {V4: "172.30.0.0/16", V6: "fd00:172:30::/112"}

_STATES = {
    "ready": (True, True, False),
    "leaving": (False, True, True),
    "gone": (False, False, True),
    "starting": (False, True, False),
    "refusing": (False, False, False),
}


def name(service: str = "ns1/svc1", port_name: str = "p80", protocol: Protocol = "TCP") -> ServicePortName:
    """The name of a service port; ``service`` is ``namespace/name``."""
    namespace, _, svc = service.partition("/")
    return ServicePortName(namespace, svc, port_name, protocol)


def port(
    service: str = "ns1/svc1",
    cluster_ip: str = "172.30.0.41",
    protocol: Protocol = "TCP",
    port_name: str = "p80",
    number: int = 80,
    **fields: Any,
) -> ServicePort:
    """A service port; its family is that of its ClusterIP."""
    return ServicePort(
        name=name(service, port_name, protocol),
        family=family_of(cluster_ip),
        created="",
        cluster_ip=cluster_ip,
        port=number,
        **fields,
    )


def ep(address: str, node: str = NODE, state: str = "ready", number: int = 80, **fields: Any) -> Endpoint:
    """An endpoint, on this node unless said otherwise."""
    ready, serving, terminating = _STATES[state]
    return Endpoint(address, number, node, ready, serving, terminating, **fields)


def planned(
    port: ServicePort,
    *endpoints: Endpoint,
    lost: frozenset[Frontend] = frozenset(),
    endpoint_chains: EndpointChains = "WhenAffinity",
    node: str = NODE,
    node_address: str | None = None,
) -> ServiceRules:
    """The plan of a service port with these endpoints on this node."""
    ordered = sorted(endpoints, key=lambda endpoint: endpoint.sort_key)
    sets = categorize(ordered, port, NodeView(node))
    address = NODE_ADDRESS[port.family] if node_address is None else node_address
    return plan(port, sets, PlanContext(node, address, endpoint_chains), lost)


def elements(rules: ServiceRules, container: str) -> dict[ElementKey, str | None]:
    """The elements that a plan has in one container, own and shared; each key once."""
    found = [e for e in (*rules.elements, *rules.shared) if e.container == container]
    content = {e.key: e.verdict for e in found}
    assert len(content) == len(found), f"a key occurs twice in {container}"
    return content


def chains(rules: ServiceRules) -> dict[str, Chain]:
    """A plan's chains by name; each name once, and each chain behind those that it refers to."""
    content: dict[str, Chain] = {}
    for chain in rules.chains:
        assert chain.name not in content
        content[chain.name] = chain
    return content


def renderer(family: Family = V4, **fields: Any) -> Renderer:
    """A renderer with the project's own templates and the usual test cluster."""
    fields.setdefault("detector", LocalDetector("cidr", POD_CIDR[family]))
    fields.setdefault("service_cidrs", (SERVICE_CIDR[family],))
    return Renderer(RenderContext(family=family, **fields))
