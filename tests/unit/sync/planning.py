"""A planner, and a cluster that it plans for."""

from collections.abc import Sequence

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.service import ServicePortName
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.rules import ServiceRules
from nodeproxy.sync.planner import Planner

from .support import Cluster, node

V4 = Family.IPV4
SETTINGS = ProxySettings(cluster_cidrs=("10.244.0.0/16",))

Updates = dict[ServicePortName, ServiceRules | None]


class Planning:
    """A planner and the cluster that it plans for."""

    def __init__(self, *changes: Change, proxy_settings: ProxySettings = SETTINGS) -> None:
        self.cluster = Cluster(node(), *changes)
        self.settings = proxy_settings
        self.planner = Planner(V4, proxy_settings, self.cluster.store.view)
        self.present: Sequence[str] = ("192.0.2.1",)
        self.cluster.store.take()
        self.move()
        self.planner.update(self.cluster.store.everything())

    def update(self, *changes: Change) -> Updates:
        return self.planner.update(self.cluster.apply(*changes).services)

    def move(self, *changes: Change) -> Updates | None:
        """Take new surroundings; what changed, or None if nothing of a Service can have."""
        self.planner.update(self.cluster.apply(*changes).services)
        if not self.planner.move(self.cluster.surroundings(V4, self.present)):
            return None
        return self.planner.update(self.cluster.store.everything())

    def fresh(self) -> Planner:
        """A planner that sees everything at once, as it is now."""
        other = Planner(V4, self.settings, self.cluster.store.view)
        other.move(self.cluster.surroundings(V4, self.present))
        other.update(self.cluster.store.everything())
        return other

    def chain(self, name: str) -> tuple[str, ...]:
        """The rules of one of the base chains."""
        return next(
            tuple(rule.text for rule in chain.rules) for chain in self.planner.base[0].chains if chain.name == name
        )
