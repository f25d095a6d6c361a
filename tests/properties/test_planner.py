"""Plans, and who has which frontend, depend on the objects that there are, never on how they came to be there."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Service
from nodeproxy.kube.source import Change
from nodeproxy.model.frontends import Clash, Frontend, claims
from nodeproxy.model.service import ServicePortName, service_ports
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.rules import (
    FIREWALL_IPS,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    Element,
    ServiceRules,
)
from nodeproxy.sync.planner import Planner
from unit.sync.support import Cluster

from . import events
from .course import PRESENT, SETTINGS
from .kernels import renderers_kept
from .profiles import effort

families = st.sampled_from(Family)
some_settings = st.sampled_from(SETTINGS)
BY_ADDRESS = {SERVICE_IPS, NO_ENDPOINT_SERVICES, FIREWALL_IPS}
BY_NODE_PORT = {SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS}


@pytest.fixture(scope="module")
def kept() -> Iterator[None]:
    """Compiling the templates takes longer than an example."""
    with renderers_kept():
        yield


class Following:
    """A planner that is told of changes as they come; ``told`` is what it says changed, all in all."""

    def __init__(self, family: Family, settings: ProxySettings) -> None:
        self.family = family
        self.cluster = Cluster()
        self.cluster.store.take()
        self.planner = Planner(family, settings, self.cluster.store.view)
        self.planner.move(self.cluster.surroundings(family, PRESENT))
        self.told: dict[ServicePortName, ServiceRules] = {}

    def follow(self, changes: Iterable[Change]) -> None:
        taken = self.cluster.apply(*changes)
        updates = self.planner.update(taken.services)
        if taken.surroundings and self.planner.move(self.cluster.surroundings(self.family, PRESENT)):
            updates |= self.planner.update(self.cluster.store.everything())
        for name, rules in updates.items():
            assert rules != self.told.get(name)
            if rules is None:
                del self.told[name]
            else:
                self.told[name] = rules


@pytest.mark.usefixtures("kept")
@effort(100)
@given(
    families,
    some_settings,
    events.beginnings,
    st.lists(events.batches, max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_course_and_any_order_lead_to_the_same_plans(family, settings, beginning, batches, chance) -> None:
    following, scene = Following(family, settings), events.Scene()
    for batch in (beginning, *batches):
        following.follow(scene.changes(batch))
    at_once = Following(family, settings)
    at_once.follow(scene.everything(chance))
    one_by_one = Following(family, settings)
    for change in scene.everything(chance):
        one_by_one.follow([change])
    for other in (at_once, one_by_one):
        assert following.planner.plans == other.planner.plans
        assert following.planner.base == other.planner.base
        assert following.planner.clashes() == other.planner.clashes()
        assert following.planner.unmatched == other.planner.unmatched
        assert following.planner.ignored_hints == other.planner.ignored_hints
    for each in (following, at_once, one_by_one):
        assert each.told == each.planner.plans, "what it says changed adds up to what it has planned"


@pytest.mark.usefixtures("kept")
@effort(100)
@given(families, events.beginnings, st.lists(events.batches, max_size=6))
def test_frontend_is_the_oldest_claimants_and_nobody_else_leads_packets_from_it(family, beginning, batches) -> None:
    following, scene = Following(family, SETTINGS[0]), events.Scene()
    for batch in (beginning, *batches):
        following.follow(scene.changes(batch))
        asked = _claimants(following.cluster, family)
        assert set(following.planner.clashes()) == {
            Clash(frontend, names[0], tuple(names[1:])) for frontend, names in asked.items() if len(names) > 1
        }
        for frontend, names in asked.items():
            leading = {
                name
                for name, rules in following.planner.plans.items()
                if any(_frontend(element) == frontend for element in rules.elements)
            }
            assert leading == {names[0]}, frontend


def _claimants(cluster: Cluster, family: Family) -> dict[Frontend, list[ServicePortName]]:
    """Who asks for each frontend, the oldest first: by age, then by name; who does not know its age comes last."""
    found: dict[Frontend, list[tuple[bool, str, ServicePortName]]] = {}
    for view in cluster.store.everything().values():
        assert isinstance(view.service, Service)
        for port in service_ports(view.service, family):
            for frontend in claims(port):
                found.setdefault(frontend, []).append((not port.created, port.created, port.name))
    return {frontend: [rank[-1] for rank in sorted(ranks)] for frontend, ranks in found.items()}


def _frontend(element: Element) -> Frontend | None:
    if element.container in BY_ADDRESS:
        address, protocol, number = element.key
    elif element.container in BY_NODE_PORT:
        address, (protocol, number) = None, element.key
    else:
        return None
    return Frontend(address, str(protocol).upper(), number)  # type: ignore[arg-type]
