"""A whole table, or what belongs to one Service, as a person reads it and nft takes it."""

from collections.abc import Iterable, Sequence

from nodeproxy.ruleset.diff import BaseAndAddresses
from nodeproxy.ruleset.mirror import SlotUse
from nodeproxy.ruleset.operations import Rule
from nodeproxy.ruleset.render import Renderer
from nodeproxy.ruleset.rules import NODE_PORT_IPS, BalancingChain, Element, ServiceRules, Target
from nodeproxy.ruleset.slot_ledger import slot_pool
from nodeproxy.ruleset.slots import SlotPool

_SlotMapKey = tuple[str, int]  # name and size


def list_table(renderer: Renderer, base: BaseAndAddresses, plans: Sequence[ServiceRules], *, whole: bool = True) -> str:
    """The text of a table.

    Args:
        renderer: renders its objects.
        base: what does not depend on Services, and the addresses of ``nodeport-ips``.
        plans: the rules of each service port.
        whole: with the base; else only what the plans themselves need, which can be read but refers to the rest.
    """
    objects, node_port_ips = base
    elements: dict[str, dict[tuple[str | int, ...], str]] = {}
    for element in _elements(plans, node_port_ips if whole else ()):
        elements.setdefault(element.container, {})[element.key] = renderer.listed(element)
    containers: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
        (container.kind, container.name, container.lines, list(elements.get(container.name, {}).values()))
        for container in objects.containers
        if whole or container.name in elements
    ]
    chains: list[tuple[str, str, Sequence[Rule]]] = []
    pools: dict[str, SlotPool] = {}
    slots: dict[_SlotMapKey, list[str]] = {}
    for rules in plans:
        for affinity_set in rules.sets:
            container = renderer.affinity_set(affinity_set)
            containers.append((container.kind, container.name, container.lines, ()))
        for chain in rules.chains:
            use = None
            if isinstance(chain, BalancingChain) and chain.slots:
                pool = pools.setdefault(chain.slot_maps, slot_pool(chain.slot_maps))
                use = SlotUse(chain.slot_maps, pool.allocate(len(chain.slots))[0])
                listed = slots.setdefault((use.map_name, pool.capacity(use.slots.number)), [])
                listed += [_slot(renderer, use.slots.offset + i, value) for i, value in enumerate(chain.slots)]
            chains.append((chain.name, "", renderer.rules(chain, use)))
    for (name, size), listed in slots.items():
        container = renderer.slot_map(name, size)
        containers.append((container.kind, container.name, container.lines, listed))
    if whole:
        chains += [(chain.name, chain.hook, chain.rules) for chain in objects.chains]
    return renderer.listing(containers, chains)


def _elements(plans: Iterable[ServiceRules], node_port_ips: Iterable[str]) -> Iterable[Element]:
    for address in node_port_ips:
        yield Element(NODE_PORT_IPS, (address,))
    for rules in plans:
        yield from rules.shared
        yield from rules.elements


def _slot(renderer: Renderer, slot: int, value: Target | str) -> str:
    if isinstance(value, Target):
        return renderer.element((slot,), target=value)
    return renderer.element((slot,), value)
