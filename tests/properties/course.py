"""A course of events, and the proxy of one table that lives through it."""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from netns.namespaces import Namespace
from nodeproxy.kernel.errors import KernelError
from nodeproxy.kube.addresses import Family
from nodeproxy.model.settings import EndpointChains, ProxySettings
from nodeproxy.ruleset.mirror import slot_map_number
from unit.ruleset.kernel_worker import HOOKS
from unit.sync.support import Cluster, Table, view

from . import events
from .kernels import Failure, Kernel, content, errors, leaks

PRESENT = ("192.0.2.1", "2001:db8::1")
CIDRS = ("10.244.0.0/16", "fd00:244::/64")
SETTINGS = [
    ProxySettings(cluster_cidrs=CIDRS),
    ProxySettings(cluster_cidrs=CIDRS, masquerade_all=True),
    ProxySettings(detect_local_mode="NodeCIDR", masquerade_bit=31),
    ProxySettings(detect_local_mode="BridgeInterface", bridge_interface="cni0", node_port_addresses=("all",)),
    ProxySettings(
        detect_local_mode="InterfaceNamePrefix",
        interface_name_prefix="veth",
        node_port_addresses=("198.18.0.0/15", "2001:db8:2::/48", "203.0.113.70/32"),
    ),
]


class Course(RuleBasedStateMachine):
    """Objects come, change and go; transactions fail; the program ends and starts anew; time passes.

    After each sync, what is remembered is what the kernel holds. Whenever all is tidied up, the table does what a first
    start would make of the objects as they are, holds nothing else, and neither a restart nor an audit writes a thing.

    Attributes:
        families: families that an example may be of.
        chains: values of ``endpointChains`` that an example may start with.
        real: whether the real kernel takes part.
    """

    families: Sequence[Family] = tuple(Family)
    chains: Sequence[EndpointChains] = ("WhenAffinity", "Always")
    real = False

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._scene = events.Scene()
        self._present: tuple[str, ...] = PRESENT
        self._kernel = Kernel(real=self.real)
        self._excused: set[str] = set()  # service ports that may be left out
        self._table: Table | None = None

    @initialize(data=st.data(), seed=st.integers(0, 1000))
    def start(self, data: st.DataObject, seed: int) -> None:
        """The program starts for the first time."""
        self._chance = random.Random(seed)  # noqa: S311 - the order of objects, nothing secret
        self._family = data.draw(st.sampled_from(self.families))
        self._settings = _settings(data.draw(st.sampled_from(SETTINGS)), data.draw(st.sampled_from(self.chains)))
        if self.real:
            self._enter_namespace(self._stack)
        self._stack.enter_context(self._kernel.used())
        self._table = self._made(Cluster(*self._scene.changes(data.draw(events.beginnings))))

    def teardown(self) -> None:
        """The table is as it should be, however the course ended."""
        try:
            if self._table is not None:
                self._settle()
        finally:
            self._stack.close()

    # --- events --------------------------------------------------------------------------------------------------

    @rule(batch=events.batches, sync=st.booleans())
    def change(self, batch: list[events.Event], sync: bool) -> None:
        """Objects change; a sync follows, or more changes do."""
        taken = self.table.cluster.apply(*self._scene.changes(batch))
        self.table.proxier.update(taken.services)
        if taken.surroundings:
            self.table.move()
        if sync:
            self._sync()

    @rule(present=events.present)
    def readdress(self, present: tuple[str, ...]) -> None:
        """The node's interfaces have other addresses."""
        self._present = present
        self.table.move(present=present)

    @rule()
    def sync(self) -> None:
        """It is time to sync."""
        self._sync()

    @rule(seconds=st.sampled_from([0.3, 1.0, 1.1, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, and what is due goes."""
        self.table.clock.time += seconds
        due = self.table.proxier.tidy_due()
        if due is not None and due <= self.table.clock.time:
            self.table.proxier.tidy()

    @rule()
    def audit(self) -> None:
        """The table is read back and compared, whatever is thought of it."""
        self.table.clock.time = max(self.table.clock.time, self.table.proxier.full_sync_due())
        self._sync()

    @rule(chains=st.sampled_from(["WhenAffinity", "Always"]), settings=st.sampled_from([None, None, *SETTINGS]))
    def restart(self, chains: EndpointChains, settings: ProxySettings | None) -> None:
        """The program ends at any moment, and starts anew; with other settings, maybe."""
        if chains in self.chains:
            self._settings = _settings(settings or self._settings, chains)
        self._table = self._made(self.table.cluster)

    @rule(what=st.sampled_from(range(len(errors()))), countdown=st.one_of(st.integers(1, 3), st.integers(1, 12)))
    def trip(self, what: int, countdown: int) -> None:
        """One of the next transactions will fail."""
        error, applied = errors()[what]
        self._kernel.failures.append(Failure(error, countdown, applied))

    @rule(which=st.integers(0, 30), named=st.booleans())
    def spoil(self, which: int, named: bool) -> None:
        """From now on the kernel refuses whatever is put into the table for some service port."""
        owners = sorted({str(name) for name in self.table.planner.plans})
        if owners:
            owner = owners[which % len(owners)]
            self._kernel.spoilt[owner] = named
            self._excused.add(owner)

    @rule(which=st.integers(0, 5))
    def mend(self, which: int) -> None:
        """The kernel no longer refuses one of the service ports; that shows when it is tried again."""
        owners = sorted(self._kernel.spoilt)
        if owners:
            del self._kernel.spoilt[owners[which % len(owners)]]

    @rule()
    def settle(self) -> None:
        """Nothing happens for a long while."""
        self._settle()

    # --- what always holds ---------------------------------------------------------------------------------------

    @property
    def table(self) -> Table:
        """The proxy that works at the moment."""
        assert self._table is not None
        return self._table

    def _sync(self) -> None:
        self._kernel.tripped = False
        try:
            self.table.proxier.sync()
        except KernelError:
            if not self._kernel.tripped:
                raise  # a service port that is refused stops no sync
            return
        finally:
            self.table.nft.taken()
        self._compare()
        self._check_refused()

    def _compare(self) -> None:
        agree(self.table, self._kernel)

    def _check_refused(self) -> None:
        """Only who is or was refused is left out; all others are served as planned."""
        proxier, state = self.table.proxier, self.table.proxier._state
        left_out = {str(name) for name in proxier.refused()}
        if self._kernel.tripped:
            self._excused |= left_out
        assert left_out <= self._excused
        for name, rules in self.table.planner.plans.items():
            assert state is None or str(name) in left_out or state.placed(name) == rules, name

    def _settle(self) -> None:
        """What is there does what the objects ask for, as if they had come at once; and nothing else is there."""
        self._kernel.mended()
        self._kernel.tripped = False
        table = self.table
        table.proxier.sync()  # all that is pending, in the way of a change
        self._compare()
        table.clock.time = max(table.clock.time, table.proxier.full_sync_due())
        table.proxier.sync()  # and whatever a failure left undone
        self._compare()
        self._excused.clear()
        self._check_refused()
        table.tidy()
        self._compare()
        assert leaks(self._kernel.pretended) == set()
        actual = self._view()
        with ExitStack() as stack:
            kernel = Kernel(real=self.real)
            if self.real:
                self._enter_namespace(stack)
            stack.enter_context(kernel.used())
            fresh = self._made(Cluster(*self._scene.everything(self._chance)))
            fresh.proxier.sync()
            assert fresh.planner.plans == table.planner.plans
            assert fresh.planner.clashes() == table.planner.clashes()
            assert actual == (content(kernel.pretended), view(self._family) if self.real else {})
        table.clock.time = table.proxier.full_sync_due()
        assert table.sync() == [], "an audit writes nothing"
        assert self._made(table.cluster).sync() == [], "a restart writes nothing"

    def _view(self) -> tuple[dict[str, Any], dict[str, Any]]:
        pretended = content(self._kernel.pretended)
        elements = {name: dict(found) for name, found in pretended["elements"].items()}
        return {**pretended, "elements": elements}, view(self._family) if self.real else {}

    # --- making --------------------------------------------------------------------------------------------------

    def _made(self, cluster: Cluster) -> Table:
        table = Table(cluster=cluster, family=self._family, settings=self._settings)
        table.journal.refused = lambda *_: None  # type: ignore[method-assign]
        table.move(present=self._present)
        return table

    def _enter_namespace(self, stack: ExitStack) -> None:
        namespace = Namespace("course")
        stack.callback(namespace.close)
        stack.enter_context(namespace.enter())


def agree(table: Table, kernel: Kernel) -> None:
    """What the proxy remembers of its table is what the kernel holds."""
    state = table.proxier._state
    if state is None:
        return
    found = kernel.read_back(table.family, table.planner.base[0])
    assert found is not None
    known, held = state.mirror, found.mirror
    for aspect in ("chains", "kinds", "affinity", "elements"):
        assert getattr(known, aspect) == getattr(held, aspect), aspect
    assert _hooks(known.hooks) == _hooks(held.hooks)
    # The size of a slot map is not for comparison, once it has been read back.
    assert _declared(known.containers) == _declared(held.containers)
    assert known.containers.keys() == held.containers.keys()
    if kernel.real:
        pretended = kernel.pretended.found()
        for aspect in ("uses", "slots", "capacities"):
            assert getattr(found, aspect) == getattr(pretended, aspect), aspect
    assert state.slots_taken() == sum(len(slots) for slots in found.slots.values())


def _settings(settings: ProxySettings, chains: EndpointChains) -> ProxySettings:
    return ProxySettings(
        **{name: getattr(settings, name) for name in ProxySettings.__slots__ if name != "endpoint_chains"},
        endpoint_chains=chains,
    )


def _hooks(declared: Mapping[str, str]) -> dict[str, tuple[str, int, int]]:
    """Type, number of the hook and priority of each base chain, as declared or as read back."""
    found = {}
    for name, text in declared.items():
        words = text.split()
        if len(words) == 6:
            found[name] = (words[1], HOOKS.index(words[3]), int(words[5]))
        elif words:
            found[name] = (words[0], int(words[1]), int(words[2]))
    return found


def _declared(containers: Mapping[str, str]) -> dict[str, str]:
    return {name: body for name, body in containers.items() if not slot_map_number(name)}
