"""What has to change in the kernel's table, from what it holds to what it should hold.

:class:`TableState` is the memory of one table: the mirror of what the kernel holds, which service port owns what, and
which slots are taken. It turns new rules into operations and takes them for applied at once; so when the kernel refuses
one of its transactions, the state is thrown away and made anew from what the kernel really holds.

What goes out of use is emptied at once, but deleted a little later: a packet on its way through the rules may still be
about to look a slot up, and kernels before 6.2 hold a chain busy for a moment after the element that named it is gone.
"""

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.mirror import Found, Mirror, SlotUse, slot_map_number
from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddElement,
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
    fill_slots,
    free_slots,
    refill_slots,
    weight,
)
from nodeproxy.ruleset.render import Base, Renderer, RenderError, digest_of
from nodeproxy.ruleset.rules import NODE_PORT_IPS, BalancingChain, Element, ElementKey, ServiceRules, Target
from nodeproxy.ruleset.slot_ledger import LONG_AGO, Drawn, Freed, SlotLedger

PIECE_WEIGHT = 2500  # operations a transaction holds: about 200 Services of 10 endpoints
# libnftables before 1.1 reads all chains before each transaction, so a table with many is brought up in bigger pieces.
_MANY_CHAINS, _MAX_SCALE = 10_000, 3

_REFILLED = 100  # slots whose content is replaced where they are; a change of more must be able to be cut

SLOT_GRACE = 1.0  # seconds from when nothing draws from a slot any more until it is emptied
CHAIN_GRACE = 2.0  # the same for a chain: longer, since slots may name it until they are emptied

BaseAndAddresses = tuple[Base, tuple[str, ...]]
"""The table's base, and the content of its set ``nodeport-ips``."""

_Key = tuple[str, ElementKey]


@dataclass(slots=True)
class _Placed:
    """A service port as it is in the table: its rules, and the slots that its chains draw from."""

    rules: ServiceRules
    drawn: tuple[Drawn, ...]

    def drawn_by(self, chain_name: str) -> Drawn | None:
        """The slots that a chain draws from."""
        return next((drawn for drawn in self.drawn if drawn.chain == chain_name), None)

    def choices(self) -> Iterator[tuple[Drawn, BalancingChain]]:
        """Slots, and the chain that draws from them."""
        for chain in self.rules.balancing():
            if (drawn := self.drawn_by(chain.name)) is not None:
                yield drawn, chain


@dataclass(slots=True)
class _Pending:
    """A change while it is collected.

    Attributes:
        now: monotonic seconds.
        correcting: whether the table has just been read back.
        whole: whether it must not be cut.
        base: operations on what no service port owns; all else may refer to it.
        prepare: operations that nothing refers to yet.
        switch: a group of operations per service port, that puts its new rules into force; or only the rules of a
            service port all of whose elements are to be put, so that a first load does not hold all operations at once.
        retire: operations that empty what service ports no longer need; after all of ``switch``, since until
            then an element that moves to another service port still leads to the old owner's chain.
        taken: elements that some service port of this change wants for itself.
        released: shared elements that some service port of this change no longer wants.
    """

    now: float
    correcting: bool = False
    whole: bool = False
    base: list[Operation] = field(default_factory=list)
    prepare: list[Operation] = field(default_factory=list)
    switch: list[list[Operation] | ServiceRules] = field(default_factory=list)
    retire: list[list[Operation]] = field(default_factory=list)
    taken: set[_Key] = field(default_factory=set)
    released: set[_Key] = field(default_factory=set)


class TableState:
    """The memory of one table.

    Args:
        found: what the kernel holds; None: no such table.
        renderer: renders its objects; may be replaced when the settings change.
        unrenderable: is told of a service port that a template fails for; what there is of its operations must not
            be applied, and the state no longer holds for it. None: the error is raised.
    """

    def __init__(
        self,
        found: Found | None,
        renderer: Renderer,
        unrenderable: Callable[[ServicePortName, RenderError], None] | None = None,
    ) -> None:
        self.renderer = renderer
        self._unrenderable = unrenderable
        self.mirror = found.mirror if found else Mirror()
        self._found = found
        self._adopted: Mapping[str, Drawn] = {}
        self._like: TableState | None = None
        self._slots = SlotLedger()
        self._placed: dict[ServicePortName, _Placed] = {}
        self._shared: defaultdict[str, Counter[ElementKey]] = defaultdict(Counter)  # by container
        self._retired_chains: dict[str, float] = {}  # and since when (monotonic seconds) they are out of use
        self._base: BaseAndAddresses | None = None

    # --- questions -----------------------------------------------------------------------------------------------

    def placed(self, name: ServicePortName) -> ServiceRules | None:
        """The rules of a service port as they are in the table."""
        placed = self._placed.get(name)
        return placed.rules if placed else None

    def rendered(self, rules: ServiceRules, chain: str, use: SlotUse | None) -> str | None:
        """The digest of a chain as it was rendered for these very rules and slots; None if it was not."""
        placed = self._placed.get(rules.name)
        if placed is None or placed.rules is not rules:
            return None
        drawn = placed.drawn_by(chain)
        if (drawn.use if drawn is not None else None) != use:
            return None
        return self.mirror.chains.get(chain)

    def slots_taken(self) -> int:
        """How many slots are taken in all slot maps."""
        return self._slots.taken()

    def slots_in_use(self) -> Iterator[tuple[SlotUse, tuple[Target | str, ...]]]:
        """The slots that chains draw from, and what they hold."""
        for placed in self._placed.values():
            for drawn, chain in placed.choices():
                yield drawn.use, drawn.order or chain.slots

    def slots_out_of_use(self) -> Iterator[SlotUse]:
        """Slots that hold something which nothing draws from any more, or not for long."""
        return self._slots.retired()

    def next_tidy(self) -> float | None:
        """When (monotonic seconds) something that went out of use may be deleted; None: there is nothing."""
        slots = self._slots.retired_since()
        chains = [since + CHAIN_GRACE for since in self._retired_chains.values()]
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
        """
        pending = _Pending(now)
        if base is not None and base != self._base:
            self._change_base(base, pending.base)
        yield from self._change_services(updates, pending)

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
        pending = _Pending(now, whole=True)
        self._change_base(base, pending.base)
        whole = Piece([ReplaceTable()])
        for piece in self._change_services(wanted, pending):
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
        found = self._found is not None
        if self._found is not None:
            chains = (chain for rules in wanted.values() for chain in rules.balancing() if chain.choices > 1)
            staying = [chain.name for rules in kept.values() for chain in rules.chains]
            self._adopted = self._slots.adopt(self._found, chains, now, staying)
            self._found = None
            for name in self._slots.forget_empty():
                strays.append(RemoveContainer("", self._forget_container(name), name))
            # First of all: should what follows fail again and again, its remains must not pile up.
            yield from cut(self._free_slots(self._slots.free(LONG_AGO)), [], PIECE_WEIGHT)
        for owner, rules in kept.items():
            names = [chain.name for chain in rules.chains if chain.name in self._adopted]
            self._placed[owner] = _Placed(rules, tuple(self._adopted[name] for name in names))
            for element in rules.shared:
                self._shared[element.container][element.key] += 1
        self._like = like
        pending = _Pending(now, correcting=True)
        self._change_base(base, pending.base)
        yield from self._change_services(wanted, pending)
        self._adopted, self._like = {}, None
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
        for name, since in self._retired_chains.items():
            if since == began:
                self._retired_chains[name] = now

    def tidy(self, now: float) -> Iterator[Piece]:
        """Operations that delete what went out of use and is due."""
        freed = self._slots.free(now - SLOT_GRACE)
        operations = self._free_slots(freed)
        for name, since in list(self._retired_chains.items()):
            if since + CHAIN_GRACE > now:
                continue
            if freed.oldest is not None and freed.oldest <= since:
                # The slots just freed may have named it; not so if all of them went out of use later than it did.
                self._retired_chains[name] = now + SLOT_GRACE - CHAIN_GRACE
                continue
            del self._retired_chains[name], self.mirror.chains[name]
            operations.append(RemoveChain("", name))
        yield from cut(operations, [], PIECE_WEIGHT)

    def _free_slots(self, freed: Freed) -> list[Operation]:
        operations: list[Operation] = []
        for use in freed.uses:
            operations += free_slots("", use.map_name, use.slots.offset, use.slots.size)
        operations += [RemoveContainer("", self._forget_container(name), name) for name in freed.maps]
        return operations

    # --- service ports -------------------------------------------------------------------------------------------

    def _change_services(
        self,
        updates: Mapping[ServicePortName, ServiceRules | None],
        pending: _Pending,
    ) -> Iterator[Piece]:
        # A frontend may move from one service port to another in the same change: then the new owner's operation
        # replaces the element, and the old owner's must not remove it.
        pending.taken = self._taken(updates)
        big, filled, counted = False, 0, 0
        for name, rules in updates.items():
            old = self._placed.pop(name, None)
            group: list[Operation] = []
            if rules is not None:
                try:
                    self._place(name, old, rules, pending, group)
                except RenderError as error:
                    if self._unrenderable is None:
                        raise
                    self._unrenderable(name, error)
            elif old is not None:
                self._withdraw(old, None, (), pending, group)
            if group:
                pending.switch.append(group)
            filled += weight(pending.prepare[counted:])
            counted = len(pending.prepare)
            if filled >= (limit := self._limit(pending)):
                if pending.base:
                    yield Piece(switch=[pending.base])
                    pending.base = []
                yield from cut(pending.prepare, [], limit)
                pending.prepare = []
                big, filled, counted = True, 0, 0
        limit = self._limit(pending)
        pending.switch += [[operation] for operation in self._unshare(pending.released)]
        base = [pending.base] if pending.base else []
        if big:
            yield from cut(pending.prepare, [], limit)
            yield from cut_groups(self._groups(pending), limit)
            return
        groups = [*base, *self._groups(pending)]
        if weight(pending.prepare) + sum(map(weight, groups)) <= limit:
            yield from cut(pending.prepare, groups, limit)
        else:
            yield from cut([], base, limit)
            yield from cut(pending.prepare, [], limit)
            yield from cut([], groups[len(base) :], limit)

    def _limit(self, pending: _Pending) -> int:
        """How many operations a transaction holds."""
        if pending.whole:
            return sys.maxsize
        return int(PIECE_WEIGHT * min(_MAX_SCALE, max(1.0, len(self.mirror.chains) / _MANY_CHAINS)))

    def _groups(self, pending: _Pending) -> Iterator[list[Operation]]:
        """The groups of all that service ports put into force, and of what goes out of use, in order."""
        for entry in pending.switch:
            if isinstance(entry, ServiceRules):
                group: list[Operation] = []
                self._put_all(entry, frozenset(), group, correcting=pending.correcting)
                if group:
                    yield group
            else:
                yield entry
        yield from pending.retire

    def _taken(self, updates: Mapping[ServicePortName, ServiceRules | None]) -> set[_Key]:
        """Elements that some service port wants for itself, and that another might give up in the same change."""
        if self._placed.keys().isdisjoint(updates):
            return set()
        return {(e.container, e.key) for rules in updates.values() if rules for e in rules.elements}

    def _place(
        self,
        name: ServicePortName,
        old: _Placed | None,
        rules: ServiceRules,
        pending: _Pending,
        switch: list[Operation],
    ) -> None:
        """Bring a service port to ``rules``; what has no effect before something refers to it goes ahead."""
        owner = str(name)
        mirror, prepare, correcting = self.mirror, pending.prepare, pending.correcting
        for affinity_set in rules.sets:
            have = mirror.affinity.get(affinity_set.name)
            if have != affinity_set.timeout:
                body = self.renderer.affinity_set(affinity_set).body
                (prepare if have is None else switch).append(AddContainer(owner, "set", affinity_set.name, body))
                mirror.affinity[affinity_set.name] = affinity_set.timeout
                mirror.kinds[affinity_set.name] = "set"
        slots: list[Drawn] = []
        for chain in rules.chains:
            use = None
            if isinstance(chain, BalancingChain) and chain.choices > 1:
                slots.append(self._slots_for(chain, old, owner, prepare, switch))
                use = slots[-1].use
            has = mirror.chains.get(chain.name)
            if has is not None and self._like is not None and self._like.rendered(rules, chain.name, use) == has:
                continue
            text = self.renderer.rules(chain, use)
            digest = digest_of(text)
            if has is None:
                prepare.append(AddChain(owner, chain.name))
                prepare += [AddRule(owner, chain.name, rule) for rule in text]
            elif has != digest:
                switch.append(FlushChain(owner, chain.name))
                switch += [AddRule(owner, chain.name, rule) for rule in text]
            mirror.chains[chain.name] = digest
            self._retired_chains.pop(chain.name, None)
        for element in rules.shared:
            self._shared[element.container][element.key] += 1
        self._placed[name] = _Placed(rules, tuple(slots))
        if old is None and not switch:
            pending.switch.append(rules)
            return
        own = frozenset((e.container, e.key) for e in old.rules.elements) if old is not None else frozenset()
        self._put_all(rules, own, switch, correcting=correcting)
        if old is not None:
            self._withdraw(old, rules, slots, pending, switch)

    def _put_all(self, rules: ServiceRules, own: frozenset[_Key], switch: list[Operation], *, correcting: bool) -> None:
        """Put all elements of a service port; ``own``: those that are its already."""
        owner = str(rules.name)
        for element in rules.elements:
            # One that was another's names that one in its comment; a table just read back is taken as it is.
            inherited = not correcting and bool(element.comment) and (element.container, element.key) not in own
            self._put(element, owner, switch, anew=inherited)
        for element in rules.shared:
            self._put(element, owner, switch)

    def _withdraw(
        self,
        old: _Placed,
        rules: ServiceRules | None,
        slots: Sequence[Drawn],
        pending: _Pending,
        switch: list[Operation],
    ) -> None:
        """Take out of use what ``old`` has and ``rules``, drawing from ``slots``, do not."""
        mirror, owner = self.mirror, str(old.rules.name)
        retire: list[Operation] = []
        kept_chains = {chain.name for chain in rules.chains} if rules else set()
        for chain in old.rules.chains:
            if chain.name not in kept_chains:
                self._retire_chain(chain.name, owner, retire, pending.now)
        kept_sets = {affinity_set.name for affinity_set in rules.sets} if rules else set()
        for affinity_set in old.rules.sets:
            if affinity_set.name not in kept_sets:
                retire.append(RemoveContainer(owner, self._forget_container(affinity_set.name), affinity_set.name))
        # May be cut anywhere: chains come before the sets that they refer to.
        pending.retire += [[operation] for operation in retire]
        for element in old.rules.elements:
            if (element.container, element.key) in pending.taken:
                continue
            if element.key in mirror.elements[element.container]:
                switch.append(RemoveElement(owner, element.container, element.key))
                del mirror.elements[element.container][element.key]
        for element in old.rules.shared:
            self._shared[element.container][element.key] -= 1
            pending.released.add((element.container, element.key))
        kept_uses = {drawn.use for drawn in slots}
        self._slots.retire((drawn.use for drawn in old.drawn if drawn.use not in kept_uses), pending.now)

    def _retire_chain(self, name: str, owner: str, group: list[Operation], now: float) -> None:
        if self.mirror.chains[name]:
            group.append(FlushChain(owner, name))
        self.mirror.chains[name] = ""
        self._retired_chains[name] = now

    def _put(self, element: Element, owner: str, switch: list[Operation], *, anew: bool = False) -> None:
        content = self.mirror.elements[element.container]
        if element.key in content:
            if content[element.key] == element.verdict and not anew:
                return
            switch.append(RemoveElement(owner, element.container, element.key))
        switch.append(AddElement(owner, element))
        content[element.key] = element.verdict

    def _unshare(self, released: set[_Key]) -> list[Operation]:
        """Remove those shared elements that nobody wants any more."""
        operations: list[Operation] = []
        for key in sorted(released, key=str):
            container, element_key = key
            if self._shared[container][element_key] > 0:
                continue
            del self._shared[container][element_key]
            if element_key in self.mirror.elements[container]:
                del self.mirror.elements[container][element_key]
                operations.append(RemoveElement("", container, element_key))
        return operations

    def _forget_container(self, name: str) -> str:
        """Take a set or map out of the mirror; its kind."""
        self.mirror.containers.pop(name, None)
        self.mirror.affinity.pop(name, None)
        self.mirror.elements.pop(name, None)
        return self.mirror.kinds.pop(name)

    # --- slots ---------------------------------------------------------------------------------------------------

    def _slots_for(
        self,
        chain: BalancingChain,
        old: _Placed | None,
        owner: str,
        prepare: list[Operation],
        switch: list[Operation],
    ) -> Drawn:
        """The slots a chain draws from: those it has if they hold the same, or nearly, else fresh ones."""
        if old is not None:
            for drawn, before in old.choices():
                if before.name == chain.name and before.chooses_like(chain):
                    return drawn
                if before.name == chain.name and (refilled := _refilled(drawn, before, chain)) is not None:
                    offset = drawn.use.slots.offset
                    values = drawn.order or before.slots
                    switch += refill_slots(owner, drawn.use.map_name, offset, values, refilled)
                    return Drawn(chain.name, drawn.use, refilled if refilled != chain.slots else None)
        elif chain.name in self._adopted:
            return self._adopted[chain.name]
        use, capacity = self._slots.take(chain)
        if capacity is not None:
            container = self.renderer.slot_map(use.map_name, capacity)
            prepare.append(AddContainer("", container.kind, container.name, container.body))
            self.mirror.containers[container.name] = container.body
            self.mirror.kinds[container.name] = container.kind
        prepare += fill_slots(owner, use.map_name, use.slots.offset, chain.slots)
        return Drawn(chain.name, use)

    # --- the base ------------------------------------------------------------------------------------------------

    def _change_base(self, base: BaseAndAddresses, group: list[Operation]) -> None:
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
                self._put(Element(NODE_PORT_IPS, (address,)), "", group)
            for key in [key for key in content if key[0] not in node_port_ips]:
                group.append(RemoveElement("", NODE_PORT_IPS, key))
                del content[key]
        elif NODE_PORT_IPS in mirror.containers:
            group.append(RemoveContainer("", self._forget_container(NODE_PORT_IPS), NODE_PORT_IPS))
        self._base = base

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
            self._retire_chain(name, "", operations, now)
        for name in [name for name in mirror.affinity if name not in sets]:
            operations.append(RemoveContainer("", self._forget_container(name), name))
        containers = {container.name for container in base[0].containers}
        for name in [name for name in mirror.containers if name not in containers and not slot_map_number(name)]:
            operations.append(RemoveContainer("", self._forget_container(name), name))
        for container, content in mirror.elements.items():
            for key in [key for key in content if key not in elements[container]]:
                operations.append(RemoveElement("", container, key))
                del content[key]


def _refilled(drawn: Drawn, before: BalancingChain, chain: BalancingChain) -> tuple[Target | str, ...] | None:
    """What slots hold once the targets in them that are gone have made room for as many new ones.

    The rule stays as it is then. No slot that it leads to is ever empty, since a commit replaces what an element holds
    in one step; and the kernel need not go through the whole table to see that a new rule is fit for it.

    Returns:
        None: the number differs, or they lead to chains, or too many are new to be replaced in one transaction.
    """
    if before.choices != chain.choices or not before.addresses or not chain.addresses:
        return None
    wanted, held = set(chain.targets), drawn.order or before.targets
    fresh = iter(sorted(wanted.difference(held)))
    values = tuple(value if value in wanted else next(fresh, value) for value in held)
    differing = sum(one is not other for one, other in zip(values, held, strict=True))
    return values if differing <= _REFILLED and set(values) == wanted else None
