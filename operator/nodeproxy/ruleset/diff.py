"""What has to change in the kernel's table, from what it holds to what it should hold.

:class:`TableState` is the memory of one table: what the kernel holds, its base, what service ports have placed in it
(``placement.py``), and what is out of use. It turns new rules into operations and takes them for applied at once; so
when the kernel refuses one of its transactions, the state is thrown away and made anew from what the kernel really
holds.

What goes out of use is emptied at once, but deleted a little later: a packet on its way through the rules may still be
about to look a slot up, and kernels before 6.2 hold a chain busy for a moment after the element that named it is gone.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.mirror import Found, Mirror, SlotUse, slot_map_number
from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddRule,
    Client,
    FlushChain,
    Operation,
    Piece,
    RemoveChain,
    RemoveContainer,
    RemoveElement,
    ReplaceTable,
    add_clients,
    cut,
    cut_groups,
    free_slots,
    weight,
)
from nodeproxy.ruleset.placement import Pending, Placement, put
from nodeproxy.ruleset.render import Base, Container, Renderer, RenderError, digest_of
from nodeproxy.ruleset.rules import NODE_PORT_IPS, AffinitySet, Element, ElementKey, ServiceRules, Target
from nodeproxy.ruleset.slot_ledger import LONG_AGO, Freed, SlotLedger

PIECE_WEIGHT = 1500  # operations a transaction holds: about 120 Services of 10 endpoints
# What a transaction costs whatever it holds grows with the table, so a big one is brought up in bigger pieces.
_MANY_CHAINS, _MAX_SCALE = 10_000, 3

SLOT_GRACE = 1.0  # seconds from when nothing draws from a slot any more until it is emptied
CHAIN_GRACE = 2.0  # the same for a chain: longer, since slots may name it until they are emptied

BaseAndAddresses = tuple[Base, tuple[str, ...]]
"""The table's base, and the content of its set ``nodeport-ips``."""

_Unrenderable = Callable[[ServicePortName, RenderError], None]


class TableState:
    """The memory of one table.

    Args:
        found: what the kernel holds; None: no such table.
        renderer: renders its objects; may be replaced when the settings change.
        unrenderable: is told of a service port that a template fails for while the whole table is made or corrected;
            what there is of its operations must not be applied, and the state no longer holds for it. None: the error
            is raised, as it is by :meth:`change`.
        refill: whether endpoints may take the slots of others that are gone; else a change gets fresh slots.
    """

    def __init__(
        self,
        found: Found | None,
        renderer: Renderer,
        unrenderable: _Unrenderable | None = None,
        *,
        refill: bool = True,
    ) -> None:
        self.renderer = renderer
        self._unrenderable = unrenderable
        self.mirror = found.mirror if found else Mirror()
        self._found = found
        self._slots = SlotLedger()
        self._services = Placement(self.mirror, self._slots, refill=refill)
        self._base: BaseAndAddresses | None = None

    # --- questions -----------------------------------------------------------------------------------------------

    def placed(self, name: ServicePortName) -> ServiceRules | None:
        """The rules of a service port as they are in the table."""
        return self._services.rules(name)

    def slots_taken(self) -> int:
        """How many slots are taken in all slot maps."""
        return self._slots.taken()

    def slots_in_use(self) -> Iterator[tuple[SlotUse, tuple[Target | str, ...]]]:
        """The slots that chains draw from, and what they hold."""
        return self._services.slots_in_use()

    def slots_out_of_use(self) -> Iterator[SlotUse]:
        """Slots that nothing draws from any more, or not for long; and those of what is kept, whatever they hold."""
        yield from self._slots.retired()
        yield from self._services.slots_kept()

    def declared(self, name: str) -> Container | None:
        """How a set or map is declared; None: the table has no such one."""
        timeout = self.mirror.affinity.get(name)
        if timeout is not None:
            return self.renderer.affinity_set(AffinitySet(name, timeout))
        if (room := self._slots.room(name)) is not None:
            return self.renderer.slot_map(name, room)
        body = self.mirror.containers.get(name)
        return Container(self.mirror.kinds[name], name, (body,)) if body else None

    def next_tidy(self) -> float | None:
        """When (monotonic seconds) something that went out of use may be deleted; None: there is nothing."""
        slots = self._slots.retired_since()
        chains = [since + CHAIN_GRACE for since in self._services.retired_chains.values()]
        return min([*chains, slots + SLOT_GRACE] if slots is not None else chains, default=None)

    # --- changes -------------------------------------------------------------------------------------------------

    def change(
        self,
        updates: Mapping[ServicePortName, ServiceRules | None],
        now: float,
        base: BaseAndAddresses | None = None,
    ) -> Iterator[Piece]:
        """Operations that bring service ports to their new rules.

        Args:
            updates: the new rules by service port; None: it is gone.
            now: monotonic seconds.
            base: the table's base and node-port addresses, if they may have changed.

        Raises:
            RenderError: a template fails for one of them; the state no longer holds.
        """
        changed = self._change_base(base) if base is not None and base != self._base else []
        yield from self._change_services(updates, Pending(self.renderer, now), changed, self._limit)

    def replace(
        self,
        wanted: Mapping[ServicePortName, ServiceRules],
        now: float,
        base: BaseAndAddresses,
        clients: Mapping[str, Sequence[Client]] = MappingProxyType({}),
    ) -> Piece:
        """One transaction that deletes the table and makes it anew; for a state made without ``found``.

        Args:
            wanted: the rules of each service port.
            now: monotonic seconds.
            base: the table's base and node-port addresses.
            clients: those in the old table's affinity sets, by set; where a set of that name is wanted, they stay.
        """
        whole, changed = Piece([ReplaceTable()]), self._change_base(base)
        pending = Pending(self.renderer, now)
        for piece in self._change_services(wanted, pending, changed, _unlimited, self._unrenderable):
            whole.prepare += piece.prepare
            whole.switch += piece.switch
        for name, rules in wanted.items():
            for affinity_set in rules.sets:
                whole.switch.append([*add_clients(str(name), affinity_set, clients.get(affinity_set.name, ()))])
        return whole

    def correct(
        self,
        wanted: Mapping[ServicePortName, ServiceRules],
        now: float,
        base: BaseAndAddresses,
        kept: Mapping[ServicePortName, ServiceRules] = MappingProxyType({}),
        like: "TableState | None" = None,
    ) -> Iterator[Piece]:
        """Operations that bring a table that was found to what it should hold; none where nothing differs.

        Args:
            wanted: the rules of each service port.
            now: monotonic seconds.
            base: the table's base and node-port addresses.
            kept: what the table holds of other service ports, and is to stay as it is: names and elements only.
            like: a state in which most of ``wanted`` was rendered by the same templates, to save doing it again.
        """
        strays: list[Operation] = []
        before = like._services if like else None  # noqa: SLF001 -- one of its own kind
        pending = Pending(self.renderer, now, correcting=True, like=before)
        found = self._found is not None
        if self._found is not None:
            chains = (chain for rules in wanted.values() for chain in rules.balancing() if chain.choices > 1)
            staying = [chain.name for rules in kept.values() for chain in rules.chains]
            pending.adopted = self._slots.adopt(self._found, chains, now, staying)
            self._found = None
            for name in self._slots.forget_empty():
                strays.append(RemoveContainer("", self.mirror.forget_container(name), name))
            # First of all: should what follows fail again and again, its remains must not pile up.
            yield from cut(self._free_slots(self._slots.free(LONG_AGO)), [], PIECE_WEIGHT)
        for owner, rules in kept.items():
            self._services.keep(owner, rules, pending.adopted)
        yield from self._change_services(wanted, pending, self._change_base(base), self._limit, self._unrenderable)
        if found:
            self._remove_strays(itertools.chain(wanted.values(), kept.values()), base, now, strays)
        # May be cut anywhere: first what leads to stray chains, then what they do, then what that referred to.
        strays.sort(key=lambda stray: (not isinstance(stray, RemoveElement), stray.stage))
        yield from cut([], [[stray] for stray in strays], PIECE_WEIGHT)

    def settle(self, began: float, now: float) -> None:
        """Count the time of what a change took out of use from when all of it had been applied.

        Args:
            began: the moment that the change was given, monotonic seconds.
            now: the moment that its last piece had been applied.
        """
        self._slots.settle(began, now)
        retired = self._services.retired_chains
        for name, since in retired.items():
            if since == began:
                retired[name] = now

    def tidy(self, now: float) -> Iterator[Piece]:
        """Operations that delete what went out of use and is due."""
        freed = self._slots.free(now - SLOT_GRACE)
        operations = self._free_slots(freed)
        retired = self._services.retired_chains
        for name, since in list(retired.items()):
            if since + CHAIN_GRACE > now:
                continue
            if freed.oldest is not None and freed.oldest <= since:
                # The slots just freed may have named it; not so if all of them went out of use later than it did.
                retired[name] = now + SLOT_GRACE - CHAIN_GRACE
                continue
            del retired[name], self.mirror.chains[name]
            operations.append(RemoveChain("", name))
        yield from cut(operations, [], PIECE_WEIGHT)

    def _free_slots(self, freed: Freed) -> list[Operation]:
        operations: list[Operation] = []
        for use in freed.uses:
            operations += free_slots("", use.map_name, use.slots.offset, use.slots.size)
        operations += [RemoveContainer("", self.mirror.forget_container(name), name) for name in freed.maps]
        return operations

    # --- service ports -------------------------------------------------------------------------------------------

    def _change_services(
        self,
        updates: Mapping[ServicePortName, ServiceRules | None],
        pending: Pending,
        base: list[Operation],
        limit: Callable[[], int],
        unrenderable: _Unrenderable | None = None,
    ) -> Iterator[Piece]:
        """Pieces that change the base and service ports.

        Args:
            updates: the new rules by service port; None: it is gone.
            pending: collects the change.
            base: operations on what no service port owns; all else may refer to it.
            limit: how many operations a transaction holds.
            unrenderable: is told of a service port that a template fails for; None: the error is raised.
        """
        self._services.begin(updates, pending)
        big, filled, counted = False, 0, 0
        for name, rules in updates.items():
            try:
                self._services.change(name, rules, pending)
            except RenderError as error:
                if unrenderable is None:
                    raise
                unrenderable(name, error)
            filled += weight(pending.prepare[counted:])
            counted = len(pending.prepare)
            if filled >= limit():
                if base:
                    yield Piece(switch=[base])
                    base = []
                yield from cut(pending.prepare, [], limit())
                pending.prepare = []
                big, filled, counted = True, 0, 0
        self._services.unshare(pending)
        if big:
            yield from cut(pending.prepare, [], limit())
            yield from cut_groups(self._services.groups(pending), limit())
            return
        first, groups = [base] if base else [], [*self._services.groups(pending)]
        if weight(pending.prepare) + sum(map(weight, [*first, *groups])) <= limit():
            yield from cut(pending.prepare, [*first, *groups], limit())
        else:
            yield from cut([], first, limit())
            yield from cut(pending.prepare, [], limit())
            yield from cut([], groups, limit())

    def _limit(self) -> int:
        """How many operations a transaction holds."""
        return int(PIECE_WEIGHT * min(_MAX_SCALE, max(1.0, len(self.mirror.chains) / _MANY_CHAINS)))

    # --- the base ------------------------------------------------------------------------------------------------

    def _change_base(self, base: BaseAndAddresses) -> list[Operation]:
        """Operations that bring what no service port owns to ``base``."""
        group: list[Operation] = []
        mirror, (objects, node_port_ips) = self.mirror, base
        for container in objects.containers:
            if mirror.containers.get(container.name) != container.body:
                group.append(AddContainer("", container.kind, container.name, container.body))
                mirror.containers[container.name] = container.body
                mirror.kinds[container.name] = container.kind
            mirror.elements.setdefault(container.name, {})
        for chain in objects.chains:
            digest = digest_of(chain.rules)
            has = mirror.chains.get(chain.name)
            if has == digest:
                continue
            if has is None:
                group.append(AddChain("", chain.name, chain.hook))
            else:
                group.append(FlushChain("", chain.name))
            group += [AddRule("", chain.name, rule) for rule in chain.rules]
            mirror.chains[chain.name], mirror.hooks[chain.name] = digest, chain.hook
        if any(container.name == NODE_PORT_IPS for container in objects.containers):
            content = mirror.elements[NODE_PORT_IPS]
            for address in node_port_ips:
                put(mirror, Element(NODE_PORT_IPS, (address,)), "", group)
            for key in [key for key in content if key[0] not in node_port_ips]:
                group.append(RemoveElement("", NODE_PORT_IPS, key))
                del content[key]
        elif NODE_PORT_IPS in mirror.containers:
            group.append(RemoveContainer("", mirror.forget_container(NODE_PORT_IPS), NODE_PORT_IPS))
        self._base = base
        return group

    def _remove_strays(
        self,
        wanted: Iterable[ServiceRules],
        base: BaseAndAddresses,
        now: float,
        operations: list[Operation],
    ) -> None:
        """Whatever else the table was found with goes."""
        mirror = self.mirror
        chains = {chain.name for chain in base[0].chains}
        sets: set[str] = set()
        elements: defaultdict[str, set[ElementKey]] = defaultdict(set)
        elements[NODE_PORT_IPS] = {(address,) for address in base[1]}
        for rules in wanted:
            chains.update(chain.name for chain in rules.chains)
            sets.update(affinity_set.name for affinity_set in rules.sets)
            for element in itertools.chain(rules.elements, rules.shared):
                elements[element.container].add(element.key)
        for name in [name for name in mirror.chains if name not in chains]:
            self._services.retire_chain(name, "", operations, now)
        for name in [name for name in mirror.affinity if name not in sets]:
            operations.append(RemoveContainer("", mirror.forget_container(name), name))
        containers = {container.name for container in base[0].containers}
        for name in [name for name in mirror.containers if name not in containers and not slot_map_number(name)]:
            operations.append(RemoveContainer("", mirror.forget_container(name), name))
        for container, content in mirror.elements.items():
            for key in [key for key in content if key not in elements[container]]:
                operations.append(RemoveElement("", container, key))
                del content[key]


def _unlimited() -> int:
    """As for a change that must not be cut."""
    return sys.maxsize
