"""What a table holds of service ports whose new rules are refused: it stays as it is.

It is told by names: each chain and affinity set says whose it is, and an element that leads to a chain is its owner's.
Elements that lead to no chain are told by what the service port had, or wants, as far as that is known.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.mirror import Mirror
from nodeproxy.ruleset.rules import (
    CLUSTER_IPS,
    DROP,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    REJECT_CHAIN,
    AffinitySet,
    Element,
    ElementKey,
    FirewallChain,
    ServiceRules,
)

_Key = tuple[str, ElementKey]


def remains(
    mirror: Mirror,
    refused: Mapping[ServicePortName, Iterable[ServiceRules]],
    wanted: Iterable[ServiceRules],
    since: Collection[str] | None = None,
) -> dict[ServicePortName, ServiceRules]:
    """What a table holds of service ports.

    Args:
        mirror: the table's content.
        refused: the service ports, and rules that each had, or wants.
        wanted: the rules of the others; what they claim is theirs.
        since: the chains and sets that were there before any of their new rules was tried; None: all that are there.

    Returns:
        chains (their names only), sets and elements of each; none for one of which the table holds nothing.
    """
    if not refused:
        return {}
    by_words = {_words(name): name for name in refused}
    owners: dict[str, ServicePortName] = {}
    chains: defaultdict[ServicePortName, list[FirewallChain]] = defaultdict(list)
    sets: defaultdict[ServicePortName, list[AffinitySet]] = defaultdict(list)
    for chain in mirror.chains:
        if (owner := by_words.get(_words_in(chain))) and (since is None or chain in since):
            owners[chain] = owner
            chains[owner].append(FirewallChain(chain, ()))
    for affinity_set, timeout in mirror.affinity.items():
        if (owner := by_words.get(_words_in(affinity_set))) and (since is None or affinity_set in since):
            sets[owner].append(AffinitySet(affinity_set, timeout))
    # A frontend is one service port's, whichever sets and maps its owner has it in.
    claimed = {element.key for rules in wanted for element in rules.elements}
    elements: defaultdict[ServicePortName, dict[_Key, Element]] = defaultdict(dict)
    for container, content in mirror.elements.items():
        for key, verdict in content.items():
            leads_to = owners.get(verdict) if verdict else None
            if leads_to is not None and key not in claimed:
                elements[leads_to][container, key] = Element(container, key, verdict)
    found: dict[ServicePortName, ServiceRules] = {}
    for name, every in refused.items():
        known = tuple(every)
        for element in _ends(mirror, known):
            if element.key not in claimed:
                elements[name].setdefault((element.container, element.key), element)
        if chains[name] or elements[name]:
            kept = tuple(elements[name].values())
            shared = tuple(_shared(mirror, known, kept))
            found[name] = ServiceRules(name, tuple(chains[name]), tuple(sets[name]), kept, shared)
    return found


def _words(name: ServicePortName) -> str:
    return f"{name.namespace}/{name.service}/{name.protocol.lower()}/{name.port_name}"


def _words_in(name: str) -> str:
    """The service port in a name as ``names.py`` makes them: a kind, a hash of eight characters, and this."""
    return name.partition("-")[2][9:].partition("__")[0]


def _ends(mirror: Mirror, known: Iterable[ServiceRules]) -> Iterable[Element]:
    """Elements of these frontends at which packets are dropped or rejected."""
    keys = dict.fromkeys(element.key for rules in known for element in rules.elements)
    for container in (NO_ENDPOINT_SERVICES, NO_ENDPOINT_NODE_PORTS):
        content = mirror.elements.get(container, {})
        for key in keys:
            if (verdict := content.get(key)) in {DROP, REJECT_CHAIN}:
                yield Element(container, key, verdict)


def _shared(mirror: Mirror, known: Iterable[ServiceRules], kept: Iterable[Element]) -> Iterable[Element]:
    """Shared elements that are there: those of rules that are known, and the ClusterIPs among what is kept."""
    wanted = {(element.container, element.key): None for rules in known for element in rules.shared}
    wanted.update({(CLUSTER_IPS, element.key[:1]): None for element in kept if len(element.key) == 3})
    for container, key in wanted:
        if key in mirror.elements.get(container, {}):
            yield Element(container, key)
