"""The flows of a seed: who dials which address and port of which Service."""

import ipaddress
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from cluster.differential.generate import NAMESPACE, UNUSED_PORT, Made, host_addresses, vip
from cluster.differential.ground import ALIASES, ORIGINS, Origin
from netns import addresses as plan
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import Manifest
from netns.servers import Protocol

A_SERVICE = 12
"""How many flows of a Service are sent at most; which ones is drawn, so that all kinds come up."""
_MISSED = 1e-6
_LOOPBACK = Pair("127.0.0.1", "::1")
_UNALLOCATED = Pair("10.96.0.99", "fd00:10:96::63")
"""Of the part of the range that is not handed out unasked."""


class Frontend(Enum):
    """What is dialled."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "external IP"
    VIP = "load balancer's address"
    PROXY_VIP = "load balancer's address in mode Proxy"
    NODE_PORT = "NodePort"
    NODE_PORT_SECONDARY = "NodePort on the node's second address"
    NODE_PORT_GATEWAY = "NodePort on the pods' bridge"
    NODE_PORT_LOOPBACK = "NodePort on loopback"
    NODE_PORT_CLUSTER_IP = "NodePort on a ClusterIP"
    OTHER_PORT = "unused port of a ClusterIP"
    VIP_OTHER_PORT = "unused port of a load balancer's address"
    EXTERNAL_OTHER_PORT = "unused port of an external IP"
    UNALLOCATED = "ClusterIP that no Service has"

    @property
    def node_port(self) -> bool:
        """Whether it is some NodePort."""
        return self.name.startswith("NODE_PORT")


@dataclass(frozen=True, slots=True)
class Question:
    """A flow: what becomes of it?

    Attributes:
        service: name of the Service; empty: of none.
        port_name: name of its port.
        origin: who dials.
        frontend: what kind of address.
        address: the address.
        port: its port.
        protocol: its protocol.
        source: the address it is dialled from; None: what routing chooses.
        sticky: whether the Service has session affinity.
        endpoints: how many endpoints could be reached at most, whatever their condition.
        first_client: with session affinity, the number of the first address to dial from: each flow has clients of its
            own, for those of another one may be bound to an endpoint already.
    """

    service: str
    port_name: str
    origin: str
    frontend: Frontend
    address: str
    port: int
    protocol: Protocol
    source: str | None
    sticky: bool
    endpoints: int
    first_client: int = 0

    @property
    def family(self) -> Family:
        """The family of the address."""
        return 6 if ":" in self.address else 4

    @property
    def tries(self) -> int:
        """How many connections find every endpoint, but for a chance of one in a million."""
        if self.endpoints < 2:
            return 3
        return math.ceil(math.log(self.endpoints / _MISSED) / -math.log(1 - 1 / self.endpoints))

    @property
    def lone(self) -> bool:
        """Whether session affinity meets a client that can't dial from other addresses: it finds one endpoint."""
        origin = ORIGINS[self.origin]
        own = origin.source.of(self.family) if origin.source else None
        return self.sticky and (origin.aliases is None or self.source != own)

    def __str__(self) -> str:
        origin = f"{self.origin} ({self.source})" if self.source else self.origin
        where = f"[{self.address}]:{self.port}" if self.family == 6 else f"{self.address}:{self.port}"
        return f"{origin} to {self.frontend.value} {where}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class _Port:
    """A port of a Service in one family."""

    made: Made
    service: Manifest
    entry: Manifest
    family: Family

    @property
    def endpoints(self) -> int:
        """How many different endpoints its slices have."""
        key = self.entry.get("name", ""), self.entry["protocol"]
        found = set()
        for one in self.made.slices:
            if one["addressType"] == f"IPv{self.family}":
                targets = [p["port"] for p in one["ports"] if (p.get("name", ""), p["protocol"]) == key]
                found |= {(e["addresses"][0], target) for e in one["endpoints"] for target in targets}
        return len(found)

    @property
    def hosts(self) -> set[str]:
        """The addresses of its endpoints."""
        return {e["addresses"][0] for one in self.made.slices for e in one["endpoints"]}

    def destinations(self) -> Iterator[tuple[Frontend, str, int]]:
        spec = self.service["spec"]
        number = self.entry["port"]
        cluster_ip = next((a for a in spec.get("clusterIPs", []) if a != "None" and _is_of(a, self.family)), None)
        if cluster_ip:
            yield Frontend.CLUSTER_IP, cluster_ip, number
            yield Frontend.OTHER_PORT, cluster_ip, UNUSED_PORT
        for address in spec.get("externalIPs", []):
            if _is_of(address, self.family):
                yield Frontend.EXTERNAL_IP, address, number
                yield Frontend.EXTERNAL_OTHER_PORT, address, UNUSED_PORT
        for entry in self.service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
            if "ip" in entry and _is_of(entry["ip"], self.family):
                proxied = entry.get("ipMode") == "Proxy"
                yield Frontend.PROXY_VIP if proxied else Frontend.VIP, entry["ip"], number
                yield Frontend.VIP_OTHER_PORT, entry["ip"], UNUSED_PORT
        if node_port := self.entry.get("nodePort"):
            yield Frontend.NODE_PORT, plan.node_address(0).of(self.family), node_port
            yield Frontend.NODE_PORT_SECONDARY, plan.node_secondary(0).of(self.family), node_port
            yield Frontend.NODE_PORT_GATEWAY, plan.pod_gateway(0).of(self.family), node_port
            yield Frontend.NODE_PORT_LOOPBACK, _LOOPBACK.of(self.family), node_port
            if cluster_ip:
                yield Frontend.NODE_PORT_CLUSTER_IP, cluster_ip, node_port


_RARE = {Frontend.OTHER_PORT, Frontend.EXTERNAL_OTHER_PORT, Frontend.VIP_OTHER_PORT, Frontend.NODE_PORT_CLUSTER_IP}


def questions(seed: int, made: Iterable[tuple[Made, Manifest]]) -> list[Question]:
    """The flows of a seed.

    Args:
        seed: draws which of all possible ones.
        made: the Services, each with what the API server made of it.
    """
    rng = Random(f"questions {seed}")  # noqa: S311 - which flows, nothing secret
    found: list[Question] = []
    for one, service in made:
        entries = service["spec"].get("ports", [])
        ports = [_Port(one, service, entry, family) for entry in entries for family in FAMILIES]
        possible = [question for port in ports for question in _of(port)]
        found += _with_clients(_draw(rng, possible))
    found += _unallocated(rng)
    return found


def _of(port: _Port) -> Iterator[Question]:
    for frontend, address, number in port.destinations():
        for origin, source in _askers(port, frontend, address):
            yield Question(
                service=f"{NAMESPACE}/{port.made.name}",
                port_name=port.entry.get("name", ""),
                origin=origin.name,
                frontend=frontend,
                address=address,
                port=number,
                protocol=port.entry["protocol"],
                source=source,
                sticky=port.service["spec"].get("sessionAffinity") == "ClientIP",
                endpoints=port.endpoints,
            )


def _askers(port: _Port, frontend: Frontend, address: str) -> Iterator[tuple[Origin, str | None]]:
    for origin in ORIGINS.values():
        at_home = origin.name == "the node"
        if frontend is Frontend.NODE_PORT_LOOPBACK and not at_home:
            continue
        if origin.name.startswith("pod-") and host_addresses(origin.name).of(port.family) not in port.hosts:
            continue
        yield origin, origin.source.of(port.family) if origin.source else None
        if at_home and frontend is Frontend.VIP and is_bound(address):
            yield origin, address


def is_bound(address: str) -> bool:
    """Whether a load balancer's address is also the node's."""
    return any(address in vip(number) for number in range(2, 251, 2))


def _with_clients(drawn: Iterable[Question]) -> list[Question]:
    """The same, without those of session affinity for which there are no clients left."""
    taken: Counter[tuple[str, str, Family, str]] = Counter()
    found = []
    for question in drawn:
        key = question.port_name, question.protocol, question.family, question.origin
        needed = ALIASES if question.lone else question.tries
        if not question.sticky:
            found.append(question)
        elif taken[key] + needed <= ALIASES:
            found.append(replace(question, first_client=taken[key]))
            taken[key] += needed
    return found


def _draw(rng: Random, possible: Sequence[Question]) -> list[Question]:
    """Some of them: of each kind of destination at least one, and as many kinds of origin as there is room for."""
    rest = list(possible)
    rng.shuffle(rest)
    rest.sort(key=lambda question: question.frontend in _RARE)
    drawn: list[Question] = []
    seen: set[tuple[Frontend, Family]] = set()
    for question in rest:
        kind = question.frontend, question.family
        if kind not in seen and (question.frontend not in _RARE or rng.random() < 0.3):
            seen.add(kind)
            drawn.append(question)
    others = [question for question in rest if question not in drawn and question.frontend not in _RARE]
    drawn += others[: max(0, A_SERVICE - len(drawn))]
    return drawn[:A_SERVICE]


def _unallocated(rng: Random) -> list[Question]:
    return [
        Question(
            service="",
            port_name="",
            origin=origin.name,
            frontend=Frontend.UNALLOCATED,
            address=_UNALLOCATED.of(family),
            port=80,
            protocol=rng.choice(["TCP", "UDP"]),
            source=origin.source.of(family) if origin.source else None,
            sticky=False,
            endpoints=0,
        )
        for origin in ORIGINS.values()
        if not origin.name.startswith("pod-")
        for family in FAMILIES
    ]


def _is_of(address: str, family: Family) -> bool:
    return ipaddress.ip_address(address).version == family
