"""What service ports have placed in a table: chains, slots and elements, and how they come to others.

Each part of a change is sorted by when it may take effect: ahead of all (nothing refers to it yet), together with the
other parts of the same service port, or after all (nothing leads to it any more).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset.mirror import Mirror, SlotUse
from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddElement,
    AddRule,
    FlushChain,
    Operation,
    RemoveContainer,
    RemoveElement,
    fill_slots,
    refill_slots,
)
from nodeproxy.ruleset.render import Renderer, digest_of
from nodeproxy.ruleset.rules import BalancingChain, Element, ElementKey, ServiceRules, Target
from nodeproxy.ruleset.slot_ledger import Drawn, SlotLedger

_REFILLED = 100  # slots whose content is replaced where they are; a change of more must be able to be cut

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
class Pending:
    """A change of service ports while it is collected.

    Attributes:
        renderer: renders what they get.
        now: monotonic seconds.
        correcting: whether the table has just been read back.
        adopted: slots that the table was found with and that are right as they are, by chain.
        like: what was placed when most of the same rules were rendered by the same templates, to save doing it again.
        prepare: operations that nothing refers to yet.
        switch: a group of operations per service port, that puts its new rules into force; or only the rules of a
            service port all of whose elements are to be put, so that a first load does not hold all operations at once.
        retire: operations that empty what service ports no longer need; after all of ``switch``, since until
            then an element that moves to another service port still leads to the old owner's chain.
        taken: elements that some service port of this change wants for itself.
        released: shared elements that some service port of this change no longer wants.
    """

    renderer: Renderer
    now: float
    correcting: bool = False
    adopted: Mapping[str, Drawn] = field(default_factory=dict)
    like: "Placement | None" = None
    prepare: list[Operation] = field(default_factory=list)
    switch: list[list[Operation] | ServiceRules] = field(default_factory=list)
    retire: list[list[Operation]] = field(default_factory=list)
    taken: set[_Key] = field(default_factory=set)
    released: set[_Key] = field(default_factory=set)


class Placement:
    """What the service ports of one table have placed in it.

    Args:
        mirror: what the table holds; kept up to date.
        slots: the account of its slots; kept up to date.
        refill: whether endpoints may take the slots of others that are gone; else a change gets fresh slots.

    Attributes:
        retired_chains: chains that are empty now, and since when (monotonic seconds) they are out of use.
    """

    def __init__(self, mirror: Mirror, slots: SlotLedger, *, refill: bool = True) -> None:
        self.retired_chains: dict[str, float] = {}
        self._mirror = mirror
        self._slots = slots
        self._refill = refill
        self._placed: dict[ServicePortName, _Placed] = {}
        self._shared: defaultdict[str, Counter[ElementKey]] = defaultdict(Counter)  # by container

    # --- questions -----------------------------------------------------------------------------------------------

    def rules(self, name: ServicePortName) -> ServiceRules | None:
        """The rules of a service port as they are in the table."""
        placed = self._placed.get(name)
        return placed.rules if placed else None

    def slots_in_use(self) -> Iterator[tuple[SlotUse, tuple[Target | str, ...]]]:
        """The slots that chains draw from, and what they hold."""
        for placed in self._placed.values():
            for drawn, chain in placed.choices():
                yield drawn.use, drawn.order or chain.slots

    def slots_kept(self) -> Iterator[SlotUse]:
        """The slots of service ports that stay as they were found; what they hold is not known."""
        for placed in self._placed.values():
            if placed.drawn and not any(placed.rules.balancing()):
                yield from (drawn.use for drawn in placed.drawn)

    def rendered(self, rules: ServiceRules, chain: str, use: SlotUse | None) -> str | None:
        """The digest of a chain as it was rendered for these very rules and slots; None if it was not."""
        placed = self._placed.get(rules.name)
        if placed is None or placed.rules is not rules:
            return None
        drawn = placed.drawn_by(chain)
        if (drawn.use if drawn is not None else None) != use:
            return None
        return self._mirror.chains.get(chain)

    # --- changes -------------------------------------------------------------------------------------------------

    def begin(self, updates: Mapping[ServicePortName, ServiceRules | None], pending: Pending) -> None:
        """Take note of what service ports are about to want; to be called before any of them is changed.

        A frontend may move from one service port to another in the same change: then the new owner's operation
        replaces the element, and the old owner's must not remove it.
        """
        if not self._placed.keys().isdisjoint(updates):
            pending.taken = {(e.container, e.key) for rules in updates.values() if rules for e in rules.elements}

    def keep(self, name: ServicePortName, rules: ServiceRules, adopted: Mapping[str, Drawn]) -> None:
        """Leave a service port as the table was found with it; its rules are names and elements only."""
        names = [chain.name for chain in rules.chains if chain.name in adopted]
        self._placed[name] = _Placed(rules, tuple(adopted[name] for name in names))
        self._share(rules)

    def change(self, name: ServicePortName, rules: ServiceRules | None, pending: Pending) -> None:
        """Bring a service port to ``rules`` (None: to nothing).

        Raises:
            RenderError: a template fails for it; what there is of its operations must not be applied.
        """
        old = self._placed.pop(name, None)
        group: list[Operation] = []
        try:
            if rules is not None:
                self._place(name, old, rules, pending, group)
            elif old is not None:
                self._withdraw(old, None, (), pending, group)
        finally:
            if group:
                pending.switch.append(group)

    def groups(self, pending: Pending) -> Iterator[list[Operation]]:
        """The groups of all that service ports put into force, and of what goes out of use, in order.

        To be asked for when all service ports have been changed.
        """
        for entry in pending.switch:
            if isinstance(entry, ServiceRules):
                group: list[Operation] = []
                self._put_all(entry, frozenset(), group, correcting=pending.correcting)
                if group:
                    yield group
            else:
                yield entry
        yield from pending.retire

    def unshare(self, pending: Pending) -> None:
        """Remove those shared elements that nobody wants any more, after all service ports have been changed."""
        for key in sorted(pending.released, key=str):
            container, element_key = key
            if self._shared[container][element_key] > 0:
                continue
            del self._shared[container][element_key]
            if element_key in self._mirror.elements[container]:
                del self._mirror.elements[container][element_key]
                pending.switch.append([RemoveElement("", container, element_key)])

    def retire_chain(self, name: str, owner: str, group: list[Operation], now: float) -> None:
        """Empty a chain that nothing is to lead to any more; it is deleted later."""
        if self._mirror.chains[name]:
            group.append(FlushChain(owner, name))
        self._mirror.chains[name] = ""
        self.retired_chains[name] = now

    def _place(
        self,
        name: ServicePortName,
        old: _Placed | None,
        rules: ServiceRules,
        pending: Pending,
        switch: list[Operation],
    ) -> None:
        """Bring a service port to ``rules``; what has no effect before something refers to it goes ahead."""
        owner = str(name)
        mirror, prepare = self._mirror, pending.prepare
        for affinity_set in rules.sets:
            have = mirror.affinity.get(affinity_set.name)
            if have != affinity_set.timeout:
                body = pending.renderer.affinity_set(affinity_set).body
                (prepare if have is None else switch).append(AddContainer(owner, "set", affinity_set.name, body))
                mirror.affinity[affinity_set.name] = affinity_set.timeout
                mirror.kinds[affinity_set.name] = "set"
        slots: list[Drawn] = []
        for chain in rules.chains:
            use = None
            if isinstance(chain, BalancingChain) and chain.choices > 1:
                slots.append(self._slots_for(chain, old, owner, pending, switch))
                use = slots[-1].use
            has = mirror.chains.get(chain.name)
            if has is not None and pending.like is not None and pending.like.rendered(rules, chain.name, use) == has:
                continue
            text = pending.renderer.rules(chain, use)
            digest = digest_of(text)
            if has is None:
                prepare.append(AddChain(owner, chain.name))
                prepare += [AddRule(owner, chain.name, rule) for rule in text]
            elif has != digest:
                switch.append(FlushChain(owner, chain.name))
                switch += [AddRule(owner, chain.name, rule) for rule in text]
            mirror.chains[chain.name] = digest
            self.retired_chains.pop(chain.name, None)
        self._share(rules)
        self._placed[name] = _Placed(rules, tuple(slots))
        if old is None and not switch:
            pending.switch.append(rules)
            return
        own = frozenset((e.container, e.key) for e in old.rules.elements) if old is not None else frozenset()
        self._put_all(rules, own, switch, correcting=pending.correcting)
        if old is not None:
            self._withdraw(old, rules, slots, pending, switch)

    def _put_all(self, rules: ServiceRules, own: frozenset[_Key], switch: list[Operation], *, correcting: bool) -> None:
        """Put all elements of a service port; ``own``: those that are its already."""
        owner = str(rules.name)
        for element in rules.elements:
            # One that was another's names that one in its comment; a table just read back is taken as it is.
            inherited = not correcting and bool(element.comment) and (element.container, element.key) not in own
            put(self._mirror, element, owner, switch, anew=inherited)
        for element in rules.shared:
            put(self._mirror, element, owner, switch)

    def _withdraw(
        self,
        old: _Placed,
        rules: ServiceRules | None,
        slots: Sequence[Drawn],
        pending: Pending,
        switch: list[Operation],
    ) -> None:
        """Take out of use what ``old`` has and ``rules``, drawing from ``slots``, do not."""
        mirror, owner = self._mirror, str(old.rules.name)
        retire: list[Operation] = []
        kept_chains = {chain.name for chain in rules.chains} if rules else set()
        for chain in old.rules.chains:
            if chain.name not in kept_chains:
                self.retire_chain(chain.name, owner, retire, pending.now)
        kept_sets = {affinity_set.name for affinity_set in rules.sets} if rules else set()
        for affinity_set in old.rules.sets:
            if affinity_set.name not in kept_sets:
                kind = mirror.forget_container(affinity_set.name)
                retire.append(RemoveContainer(owner, kind, affinity_set.name))
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

    def _share(self, rules: ServiceRules) -> None:
        for element in rules.shared:
            self._shared[element.container][element.key] += 1

    # --- slots ---------------------------------------------------------------------------------------------------

    def _slots_for(
        self,
        chain: BalancingChain,
        old: _Placed | None,
        owner: str,
        pending: Pending,
        switch: list[Operation],
    ) -> Drawn:
        """The slots a chain draws from: those it has if they hold the same, or nearly, else fresh ones."""
        if old is not None:
            for drawn, before in old.choices():
                if before.name != chain.name:
                    continue
                if before.chooses_like(chain):
                    return drawn
                if self._refill and (refilled := _refilled(drawn, before, chain)) is not None:
                    offset = drawn.use.slots.offset
                    switch += refill_slots(owner, drawn.use.map_name, offset, drawn.order or before.slots, refilled)
                    return Drawn(chain.name, drawn.use, refilled if refilled != chain.slots else None)
        elif chain.name in pending.adopted:
            return pending.adopted[chain.name]
        use, capacity = self._slots.take(chain)
        if capacity is not None:
            container = pending.renderer.slot_map(use.map_name, capacity)
            pending.prepare.append(AddContainer("", container.kind, container.name, container.body))
            self._mirror.containers[container.name] = container.body
            self._mirror.kinds[container.name] = container.kind
        pending.prepare += fill_slots(owner, use.map_name, use.slots.offset, chain.slots)
        return Drawn(chain.name, use)


def put(mirror: Mirror, element: Element, owner: str, operations: list[Operation], *, anew: bool = False) -> None:
    """Add an element unless it is there already; ``anew``: also then, in its place."""
    content = mirror.elements[element.container]
    if element.key in content:
        if content[element.key] == element.verdict and not anew:
            return
        operations.append(RemoveElement(owner, element.container, element.key))
    operations.append(AddElement(owner, element))
    content[element.key] = element.verdict


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
