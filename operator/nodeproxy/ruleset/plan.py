"""From a service port and its endpoints to its rules: every traffic-policy decision, as a pure function.

The decisions are those of kube-proxy's nftables mode (Kubernetes 1.37). In short: no usable endpoint anywhere means
reject; usable endpoints, but none that a Local policy allows here, means drop (KEP-2086, KEP-1669); traffic from this
node and its pods to an external address may use every endpoint whatever externalTrafficPolicy says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nodeproxy.kube.addresses import contains
from nodeproxy.model.endpoints import Endpoint
from nodeproxy.model.frontends import Frontend
from nodeproxy.model.service import ServicePort
from nodeproxy.model.settings import EndpointChains
from nodeproxy.model.traffic import EndpointSets
from nodeproxy.ruleset import names
from nodeproxy.ruleset.rules import (
    CLUSTER_IPS,
    DROP,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    AffinitySet,
    BalancingChain,
    Chain,
    Element,
    EndpointChain,
    ExternalChain,
    FirewallChain,
    ServiceRules,
    StickyEndpoint,
    Target,
)

_Bases = dict[tuple[str, int], str]
"""By address and port of an endpoint, what the names of its chain and of its affinity set end in."""

_NONE_LOST: frozenset[Frontend] = frozenset()


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a plan depends on besides the service port.

    Attributes:
        node_name: this node's name; endpoints on it are local.
        node_address: this node's address in the plan's family; empty if unknown.
        endpoint_chains: whether every endpoint has a chain, or only where affinity needs one.
    """

    node_name: str
    node_address: str = ""
    endpoint_chains: EndpointChains = "WhenAffinity"


class _Verdicts(NamedTuple):
    """Verdicts for traffic that no endpoint may take; None where one may."""

    internal: str | None
    external: str | None


def plan(
    port: ServicePort,
    endpoints: EndpointSets,
    context: PlanContext,
    lost: frozenset[Frontend] = _NONE_LOST,
) -> ServiceRules:
    """Decide the rules of one service port in its family.

    Args:
        port: the service port.
        endpoints: its endpoints, sorted by what they are for on this node.
        context: the node and the settings.
        lost: its frontends that an older Service holds; they get no element.
    """
    base = names.service_base(port.name)
    counted = context.endpoint_chains == "Always"
    bases: _Bases | None = None
    chains: list[Chain] = []
    sets: list[AffinitySet] = []
    if counted or port.affinity_seconds:
        bases = {(e.address, e.port): names.endpoint_base(port.name, e.address, e.port) for e in endpoints.reachable}
        for (address, number), ending in bases.items():
            chain = _endpoint_chain(port, Target(address, number), ending, counter=counted)
            chains.append(chain)
            if chain.affinity_set:
                sets.append(AffinitySet(chain.affinity_set, port.affinity_seconds))
    cluster_chain, local_chain = names.SERVICE + base, names.LOCAL + base
    if endpoints.cluster and port.uses_cluster_endpoints:
        chains.append(_balancing_chain(cluster_chain, port, endpoints.cluster, bases))
    if endpoints.local and port.uses_local_endpoints:
        chains.append(_balancing_chain(local_chain, port, endpoints.local, bases))
    verdicts = _verdicts(port, endpoints)
    if endpoints.any_usable and port.externally_accessible:
        policy_chain = local_chain if port.external_policy_local else cluster_chain
        chains.append(
            ExternalChain(
                name=names.EXTERNAL + base,
                local=port.external_policy_local,
                cluster_chain=cluster_chain,
                policy_chain=None if verdicts.external else policy_chain,
            )
        )
    if port.load_balancer_vips and port.source_ranges is not None:
        chains.append(FirewallChain(names.FIREWALL + base, _allowed(port, context)))
    internal_chain = local_chain if port.internal_policy_local else cluster_chain
    return ServiceRules(
        name=port.name,
        chains=tuple(chains),
        sets=tuple(sets),
        elements=tuple(_dispatch(port, base, internal_chain, verdicts, lost, usable=endpoints.any_usable)),
        shared=tuple(_shared(port, endpoints, context)),
        lacks_local_internal=verdicts.internal == DROP,
        lacks_local_external=verdicts.external == DROP,
    )


def _verdicts(port: ServicePort, endpoints: EndpointSets) -> _Verdicts:
    if not endpoints.any_usable:
        return _Verdicts(REJECT_CHAIN, REJECT_CHAIN)
    no_local = not endpoints.local
    return _Verdicts(
        internal=DROP if port.internal_policy_local and no_local else None,
        external=DROP if port.external_policy_local and no_local else None,
    )


def _endpoint_chain(port: ServicePort, target: Target, base: str, *, counter: bool) -> EndpointChain:
    return EndpointChain(
        name=names.ENDPOINT + base,
        protocol=port.name.protocol.lower(),
        target=target,
        affinity_set=names.AFFINITY + base if port.affinity_seconds else None,
        counter=counter,
    )


def _balancing_chain(
    name: str, port: ServicePort, endpoints: Sequence[Endpoint], bases: _Bases | None
) -> BalancingChain:
    protocol = port.name.protocol.lower()
    if bases is None:
        return BalancingChain.of_targets(name, protocol, endpoints)
    found = [bases[e.address, e.port] for e in endpoints]
    sticky = (
        tuple([StickyEndpoint(names.AFFINITY + base, names.ENDPOINT + base) for base in found])
        if port.affinity_seconds
        else ()
    )
    return BalancingChain(name, protocol, chains=tuple([names.ENDPOINT + base for base in found]), sticky=sticky)


def _allowed(port: ServicePort, context: PlanContext) -> tuple[str, ...]:
    """Source ranges, and the VIPs themselves where the node may use them.

    When the node dials a VIP that is also an address of its own, the packet's source is the VIP.
    """
    ranges = port.source_ranges or ()
    if context.node_address and any(contains(cidr, context.node_address) for cidr in ranges):
        return (*ranges, *port.load_balancer_vips)
    return ranges


def _dispatch(
    port: ServicePort,
    base: str,
    internal_chain: str,
    verdicts: _Verdicts,
    lost: frozenset[Frontend],
    *,
    usable: bool,
) -> Iterator[Element]:
    """Elements that lead from the port's frontends to its chains, or to the end of the packet."""
    protocol = port.name.protocol.lower()
    external_chain, firewall_chain = names.EXTERNAL + base, names.FIREWALL + base
    note = names.comment(str(port.name)) if verdicts.internal or verdicts.external else ""

    def held(address: str | None, number: int) -> bool:
        return not lost or Frontend(address, port.name.protocol, number) not in lost

    if held(port.cluster_ip, port.port):
        key = (port.cluster_ip, protocol, port.port)
        if verdicts.internal:
            yield Element(NO_ENDPOINT_SERVICES, key, verdicts.internal, note)
        else:
            yield Element(SERVICE_IPS, key, internal_chain)
    # One element a key: an address may be both external IP and VIP, or even the ClusterIP, which then comes first.
    for address in dict.fromkeys((*port.external_ips, *port.load_balancer_vips)):
        if not held(address, port.port):
            continue
        key = (address, protocol, port.port)
        if address in port.load_balancer_vips and port.source_ranges is not None:
            yield Element(FIREWALL_IPS, key, firewall_chain)
        if address == port.cluster_ip:
            continue
        if usable:
            yield Element(SERVICE_IPS, key, external_chain)
        if verdicts.external:
            yield Element(NO_ENDPOINT_SERVICES, key, verdicts.external, note)
    if port.node_port and held(None, port.node_port):
        node_port_key = (protocol, port.node_port)
        if usable:
            yield Element(SERVICE_NODE_PORTS, node_port_key, external_chain)
        if verdicts.external:
            yield Element(NO_ENDPOINT_NODE_PORTS, node_port_key, verdicts.external, note)


def _shared(port: ServicePort, endpoints: EndpointSets, context: PlanContext) -> Iterator[Element]:
    protocol = port.name.protocol.lower()
    yield Element(CLUSTER_IPS, (port.cluster_ip,))
    # Only a pod of this node can reach itself through this node.
    for endpoint in [e for e in endpoints.reachable if e.node_name == context.node_name and context.node_name]:
        yield Element(HAIRPIN, (endpoint.address, endpoint.address, protocol, endpoint.port))
