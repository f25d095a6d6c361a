"""Events that hypothesis makes up, and what becomes of objects under them."""

import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from nodeproxy.kube.objects import KubeObject
from nodeproxy.kube.source import Change, ObjectKey
from unit.sync.support import NODE

from .objects import CIDRS, SERVICES, SLICES, Raw, Strategy, nodes, put, read, service_cidrs, services, slices

_ASPECTS = {
    "Service": (
        *[("metadata", "creationTimestamp")] * 2,
        ("metadata", "labels"),
        ("spec", "type"),
        ("spec", "ports"),
        ("spec", "externalIPs"),
        ("spec", "externalTrafficPolicy"),
        ("spec", "internalTrafficPolicy"),
        ("spec", "sessionAffinity"),
        ("spec", "loadBalancerSourceRanges"),
        ("status", "loadBalancer"),
    ),
    "EndpointSlice": (*[("metadata", "labels")] * 2, ("ports",), *[("endpoints",)] * 2),
    "Node": (("metadata", "labels"), ("spec", "podCIDRs"), ("status", "addresses")),
    "ServiceCIDR": (("spec", "cidrs"),),
}
"""What may change of an object while all else stays: mostly an update is no more than that."""


@dataclass(frozen=True)
class Event:
    """An object comes, is replaced or revised, or goes.

    Attributes:
        raw: the object; None: one goes.
        key: which one goes.
        which: of those of its kind that are there, the one that gets an aspect of ``raw``; negative: none.
        aspect: which aspect.
    """

    raw: Raw | None = None
    key: ObjectKey | None = None
    which: int = -1
    aspect: int = 0


class Scene:
    """The objects that there are, as a source would know them.

    Attributes:
        objects: by their keys.
    """

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, KubeObject] = {}
        self._raws: dict[ObjectKey, Raw] = {}

    def changes(self, events: Iterable[Event]) -> list[Change]:
        """What a source hands over; nothing for an object that can't be read, since what was known of it stays."""
        return [change for event in events if (change := self._change(event)) is not None]

    def everything(self, chance: random.Random) -> list[Change]:
        """All objects, in any order."""
        found = [Change(key, each) for key, each in self.objects.items()]
        chance.shuffle(found)
        return found

    def _change(self, event: Event) -> Change | None:
        if event.raw is None:
            assert event.key is not None
            self.objects.pop(event.key, None)
            self._raws.pop(event.key, None)
            return Change(event.key, None)
        raw = self._revised(event) if event.which >= 0 else event.raw
        change = read(raw)
        if change is not None and change.object is not None:
            self.objects[change.key], self._raws[change.key] = change.object, raw
        return change

    def _revised(self, event: Event) -> Raw:
        assert event.raw is not None
        kind = event.raw["kind"]
        there = [raw for raw in self._raws.values() if raw["kind"] == kind]
        if not there:
            return event.raw
        revised: Raw = copy.deepcopy(there[event.which % len(there)])
        *path, last = _ASPECTS[kind][event.aspect % len(_ASPECTS[kind])]
        into, of = revised, event.raw
        for name in path:
            into, of = into.setdefault(name, {}), of.get(name, {})
        into.pop(last, None)
        put(into, last, copy.deepcopy(of.get(last)))
        return revised


def _same(found: Any) -> Any:
    """For a strategy to be counted twice."""
    return found


_deletions: Strategy = st.sampled_from(
    [
        *(ObjectKey("Service", *key) for key in SERVICES),
        *(ObjectKey("EndpointSlice", *key) for key in SLICES),
        *(ObjectKey("ServiceCIDR", "", name) for name in CIDRS),
        ObjectKey("Node", "", NODE),
    ]
).map(lambda key: Event(key=key))
_raws: Strategy = st.one_of(services(), slices(), services(), slices(), nodes(), service_cidrs())
_arrivals: Strategy = st.builds(Event, raw=_raws)
_revisions: Strategy = st.builds(
    Event,
    raw=_raws,
    which=st.integers(0, 15),
    aspect=st.integers(0, 10),
)

batches: Strategy = st.lists(
    st.one_of(_arrivals, _revisions, _revisions.map(_same), _deletions), min_size=1, max_size=8
)
"""Events that come together."""


@st.composite
def _beginnings(draw: st.DrawFn) -> list[Event]:
    """Nearly all Services, each with a slice of either family, and maybe a Node and ServiceCIDRs."""
    there = st.integers(0, 9)
    raws = [draw(services(key)) for key in SERVICES if draw(there)]
    for number, key in enumerate(SLICES):
        if draw(there):
            raws.append(draw(slices(key, "IPv6" if number in range(4, 8) else "IPv4")))
    raws += draw(st.lists(st.one_of(nodes(), service_cidrs()), max_size=3))
    return [Event(raw=raw) for raw in raws]


beginnings: Strategy = _beginnings()
"""What is there when the program starts."""

present: Strategy = st.sampled_from(
    [("192.0.2.1", "2001:db8::1"), ("192.0.2.1", "203.0.113.70"), ("203.0.113.70", "2001:db8:2::7", "198.18.0.9"), ()]
)
"""Addresses on the node's interfaces."""
