"""What endpoints a Service may have: how many, where, in which condition, with which hints."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

HERE, ZONES = "zone-a", ("zone-a", "zone-b", "zone-c")
"""The zone of the node of the proxies, and all zones: one for each node."""
LOCAL_PODS = ("pod-a1", "pod-a2", "pod-a3")
REMOTE_PODS = ("pod-b1", "pod-b2", "pod-c1")
NODES = ("node-a", "node-b")
"""Nodes that may be endpoints themselves: pods on the host's network."""

Conditions = tuple[bool | None, bool | None, bool | None]
"""ready, serving, terminating; None: not set."""
READY: Conditions = (True, True, False)
DRAINING: Conditions = (False, True, True)
UNREADY: Conditions = (False, False, False)
FINISHED: Conditions = (False, False, True)


@dataclass(frozen=True, slots=True)
class Backend:
    """An endpoint.

    Attributes:
        host: the pod or node that answers.
        conditions: as the slice states them.
        zones: its hints for zones.
        nodes: its hints for nodes.
        nodeless: whether the slice leaves its node out.
    """

    host: str
    conditions: Conditions = READY
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    nodeless: bool = False

    @property
    def node(self) -> str:
        """The node it is on."""
        return self.host if self.host.startswith("node-") else f"node-{self.host[4]}"


def _some(rng: Random, names: tuple[str, ...], least: int = 1) -> list[Backend]:
    return [Backend(name) for name in rng.sample(names, rng.randint(least, len(names)))]


def _with(backends: list[Backend], conditions: Conditions) -> list[Backend]:
    return [replace(backend, conditions=conditions) for backend in backends]


def _own_zone(backend: Backend) -> str:
    return ZONES["abc".index(backend.node[-1])]


def _local(rng: Random) -> list[Backend]:
    return _some(rng, LOCAL_PODS)


def _remote(rng: Random) -> list[Backend]:
    return _some(rng, REMOTE_PODS)


def _mixed(rng: Random) -> list[Backend]:
    return _local(rng) + _remote(rng)


def _implied(rng: Random) -> list[Backend]:
    return [
        replace(backend, conditions=rng.choice([(None, None, None), (True, None, None), (None, True, None)]))
        for backend in _mixed(rng)
    ]


def _published(rng: Random) -> list[Backend]:
    """As publishNotReadyAddresses has it: ready is said of all, whether they serve or not."""
    return [
        replace(backend, conditions=rng.choice([(True, False, False), (True, False, True), (True, True, True)]))
        for backend in _mixed(rng)
    ]


def _partly_ready(rng: Random) -> list[Backend]:
    kinds = [READY, UNREADY, DRAINING, FINISHED]
    mixed = _some(rng, LOCAL_PODS, 2) + _some(rng, REMOTE_PODS, 2)
    rng.shuffle(mixed)
    return [replace(backend, conditions=kinds[number % 4]) for number, backend in enumerate(mixed)]


def _by_zone(rng: Random) -> list[Backend]:
    return [replace(backend, zones=(_own_zone(backend),)) for backend in _some(rng, LOCAL_PODS) + _remote(rng)]


def _by_zone_across(rng: Random) -> list[Backend]:
    """A remote endpoint serves this zone, those here another: traffic policies and hints pull apart."""
    others = tuple(zone for zone in ZONES if zone != HERE)
    local = [replace(backend, zones=(rng.choice(others),)) for backend in _local(rng)]
    first, *rest = _remote(rng)
    return [*local, replace(first, zones=(HERE, others[0])), *(replace(one, zones=(others[1],)) for one in rest)]


def _by_zone_elsewhere(rng: Random) -> list[Backend]:
    return [replace(backend, zones=("zone-b",)) for backend in _mixed(rng)]


def _partly_hinted(rng: Random) -> list[Backend]:
    hinted = _by_zone(rng)
    bare = rng.randrange(len(hinted))
    hinted[bare] = replace(hinted[bare], zones=())
    return hinted


def _by_node(rng: Random) -> list[Backend]:
    return [
        replace(backend, zones=(_own_zone(backend),), nodes=(backend.node,))
        for backend in _some(rng, LOCAL_PODS) + _remote(rng)
    ]


def _by_node_across(rng: Random) -> list[Backend]:
    """Only a remote endpoint is meant for this node."""
    local = [replace(backend, zones=(HERE,), nodes=("node-b",)) for backend in _local(rng)]
    first, *rest = _remote(rng)
    return [
        *local,
        replace(first, zones=("zone-b",), nodes=("node-a", "node-c")),
        *(replace(one, zones=("zone-b",), nodes=("node-c",)) for one in rest),
    ]


def _by_node_elsewhere(rng: Random) -> list[Backend]:
    """No hint names this node, so those for zones decide."""
    return [replace(backend, nodes=("node-c",)) for backend in _by_zone(rng)]


def _hinted_and_draining(rng: Random) -> list[Backend]:
    ready = [replace(backend, zones=(HERE,)) for backend in _remote(rng)]
    return ready + [replace(backend, zones=("zone-b",), conditions=DRAINING) for backend in _local(rng)]


def _anything(rng: Random) -> list[Backend]:
    yes = (True, False, None)
    return [
        replace(
            backend,
            conditions=(rng.choice(yes), rng.choice(yes), rng.choice(yes)),
            zones=tuple(rng.sample(ZONES, rng.choice([0, 1, 2]))),
            nodes=tuple(rng.sample(("node-a", "node-b", "node-c"), rng.choice([0, 0, 1]))),
            nodeless=rng.random() < 0.2,
        )
        for backend in _mixed(rng)
    ]


class State(Enum):
    """A Service's endpoints."""

    NONE = "no slice"
    EMPTY = "a slice without endpoints"
    LOCAL = "ready here"
    REMOTE = "ready elsewhere"
    MIXED = "ready here and elsewhere"
    IMPLIED = "ready because nothing is said"
    PUBLISHED = "published though not ready"
    UNREADY = "none ready"
    FINISHED = "none serves any more"
    DRAINING_LOCAL = "only terminating ones that serve, here"
    DRAINING_REMOTE = "only terminating ones that serve, elsewhere"
    DRAINING_MIXED = "only terminating ones that serve, here and elsewhere"
    READY_AWAY = "terminating ones that serve here, ready ones elsewhere"
    PARTLY_READY = "in every condition"
    NODELESS = "on no node"
    HOST_NETWORK = "on the network of nodes"
    BY_ZONE = "hinted for their own zones"
    BY_ZONE_ACROSS = "hinted for other zones than their own"
    BY_ZONE_ELSEWHERE = "hinted for another zone than this one"
    PARTLY_HINTED = "hinted but for one"
    BY_NODE = "hinted for their own nodes"
    BY_NODE_ACROSS = "hinted for other nodes than their own"
    BY_NODE_ELSEWHERE = "hinted for another node than this one"
    HINTED_AND_DRAINING = "hinted elsewhere, terminating ones that serve here"
    ANYTHING = "anything"

    def backends(self, rng: Random) -> list[Backend] | None:
        """Endpoints in this state; None: no slice at all."""
        return _MAKERS[self](rng)


_MAKERS: dict[State, Callable[[Random], list[Backend] | None]] = {
    State.NONE: lambda _: None,
    State.EMPTY: lambda _: [],
    State.LOCAL: _local,
    State.REMOTE: _remote,
    State.MIXED: _mixed,
    State.IMPLIED: _implied,
    State.PUBLISHED: _published,
    State.UNREADY: lambda rng: _with(_mixed(rng), UNREADY),
    State.FINISHED: lambda rng: _with(_mixed(rng), FINISHED),
    State.DRAINING_LOCAL: lambda rng: _with(_local(rng), DRAINING) + _with(_remote(rng), UNREADY),
    State.DRAINING_REMOTE: lambda rng: _with(_remote(rng), DRAINING),
    State.DRAINING_MIXED: lambda rng: _with(_mixed(rng), DRAINING),
    State.READY_AWAY: lambda rng: _remote(rng) + _with(_local(rng), DRAINING),
    State.PARTLY_READY: _partly_ready,
    State.NODELESS: lambda rng: [replace(backend, nodeless=rng.random() < 0.6) for backend in _mixed(rng)],
    State.HOST_NETWORK: lambda rng: _some(rng, NODES),
    State.BY_ZONE: _by_zone,
    State.BY_ZONE_ACROSS: _by_zone_across,
    State.BY_ZONE_ELSEWHERE: _by_zone_elsewhere,
    State.PARTLY_HINTED: _partly_hinted,
    State.BY_NODE: _by_node,
    State.BY_NODE_ACROSS: _by_node_across,
    State.BY_NODE_ELSEWHERE: _by_node_elsewhere,
    State.HINTED_AND_DRAINING: _hinted_and_draining,
    State.ANYTHING: _anything,
}
