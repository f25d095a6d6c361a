"""What one table should hold, kept up to date change by change. No clock, no kernel: used by `render` as well."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from nodeproxy.kube.addresses import Family
from nodeproxy.model.endpoints import Endpoint, PortKey, merge_slices
from nodeproxy.model.frontends import Clash, FrontendIndex, claims
from nodeproxy.model.node import NodeView, local_detector, node_port_addresses, select_node_port_addresses
from nodeproxy.model.service import ServicePort, ServicePortName, service_ports
from nodeproxy.model.settings import ProxySettings
from nodeproxy.model.traffic import categorize
from nodeproxy.ruleset.diff import BaseAndAddresses
from nodeproxy.ruleset.plan import PlanContext, plan
from nodeproxy.ruleset.render import TEMPLATES, RenderContext, Renderer
from nodeproxy.ruleset.rules import ServiceRules
from nodeproxy.sync.store import ServiceKey, ServiceView

_Note = TypeVar("_Note", str, tuple[str, ...])


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rules of every Service depend on.

    Attributes:
        node: the own node.
        service_cidrs: CIDRs of the family that ClusterIPs come from.
        present: the canonical addresses of the node's interfaces.
    """

    node: NodeView
    service_cidrs: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


class Planner:
    """The plan of one table.

    Args:
        family: the table's family.
        settings: the administrator's decisions.
        lookup: finds a Service and its endpoint slices.
        templates: folder of the templates.

    Attributes:
        family: the table's family.
        plans: the rules of each service port.
        ignored_hints: why the hints of a service port's endpoints are not used, where they are not.
        unmatched: service ports without endpoints though the slices of their Service have some, and the ports
            (name and protocol) that those are for.

    Raises:
        TemplateError: a template is broken (also from the methods).
    """

    def __init__(
        self,
        family: Family,
        settings: ProxySettings,
        lookup: Callable[[ServiceKey], ServiceView],
        templates: Path = TEMPLATES,
    ) -> None:
        self.family = family
        self.plans: dict[ServicePortName, ServiceRules] = {}
        self.ignored_hints: dict[ServicePortName, str] = {}
        self.unmatched: dict[ServicePortName, tuple[str, ...]] = {}
        self._settings = settings
        self._lookup = lookup
        self._templates = templates
        self._ports: dict[ServiceKey, tuple[ServicePort, ...]] = {}
        self._frontends = FrontendIndex()
        self._surroundings: Surroundings | None = None
        self._context = PlanContext("")
        self.renderer = Renderer(RenderContext(family), templates)
        self.base: BaseAndAddresses = (self.renderer.base(), ())

    def clashes(self) -> tuple[Clash, ...]:
        """Frontends that several service ports claim."""
        return self._frontends.clashes()

    def move(self, surroundings: Surroundings) -> bool:
        """Take new surroundings.

        Returns:
            whether every Service has to be planned and rendered again: call :meth:`update` with all of them, and
            take all of :attr:`plans` for changed.
        """
        node, family, settings = surroundings.node, self.family, self._settings
        node_ports = node_port_addresses(settings, node, family)
        context = RenderContext(
            family=family,
            masquerade_bit=settings.masquerade_bit,
            masquerade_all=settings.masquerade_all,
            detector=local_detector(settings, node, family),
            node_ports_everywhere=node_ports.match_all,
            service_cidrs=surroundings.service_cidrs,
        )
        same = context == self.renderer.context
        renderer = self.renderer if same else Renderer(context, self._templates)
        self.base = (renderer.base(), select_node_port_addresses(node_ports, surroundings.present))
        # Only now that nothing can fail any more: else the next call would take this one for done.
        before, self._surroundings, self.renderer = self._surroundings, surroundings, renderer
        self._context = PlanContext(node.name, node.addresses.get(family, ""), settings.endpoint_chains)
        return not same or before is None or before.node != node

    def reload(self) -> None:
        """Read all templates anew; when that fails, the ones that were read before stay in use.

        Raises:
            TemplateError: one of them is broken.
        """
        renderer = Renderer(self.renderer.context, self._templates)
        renderer.preload()
        self.base = (renderer.base(), self.base[1])
        self.renderer = renderer

    def update(self, views: Mapping[ServiceKey, ServiceView]) -> dict[ServicePortName, ServiceRules | None]:
        """Plan Services anew.

        Returns:
            the service ports whose rules changed, in order of their names; None: it is gone.
        """
        touched: dict[ServicePortName, None] = {}
        for key, view in views.items():
            wanted = service_ports(view.service, self.family) if view.service is not None else ()
            if before := self._ports.pop(key, ()):
                for gone in {port.name for port in before}.difference(port.name for port in wanted):
                    touched[gone] = None
                    touched.update(dict.fromkeys(self._frontends.remove(gone)))
            if wanted:
                self._ports[key] = wanted
            for port in wanted:
                touched[port.name] = None
                touched.update(dict.fromkeys(self._frontends.update(port.name, claims(port), port.created)))
        changed: dict[ServicePortName, ServiceRules | None] = {}
        # A Service at a time, so that the endpoints of few are in memory at once.
        for (namespace, service), group in itertools.groupby(sorted(touched), itemgetter(0, 1)):
            key = ServiceKey(namespace, service)
            # Not in `views`: it changed because another Service gave up, or took, one of its frontends.
            view = views.get(key) or self._lookup(key)
            ports = {port.name: port for port in self._ports.get(key, ())}
            endpoints = merge_slices(view.slices, self.family) if ports else {}
            for name in group:
                rules = self._plan(name, ports.get(name), endpoints)
                if rules == self.plans.get(name):
                    continue
                changed[name] = rules
                if rules is None:
                    del self.plans[name]
                else:
                    self.plans[name] = rules
        return changed

    def _plan(
        self, name: ServicePortName, port: ServicePort | None, endpoints: Mapping[PortKey, tuple[Endpoint, ...]]
    ) -> ServiceRules | None:
        if port is None:
            _note(self.unmatched, name, ())
            _note(self.ignored_hints, name, "")
            return None
        found = endpoints.get((name.port_name, name.protocol), ())
        others = () if found else sorted(f"{other or 'the unnamed port'} {protocol}" for other, protocol in endpoints)
        _note(self.unmatched, name, tuple(others))
        sets = categorize(found, port, self._node)
        _note(self.ignored_hints, name, sets.topology.ignored)
        return plan(port, sets, self._context, self._frontends.lost(name))

    @property
    def _node(self) -> NodeView:
        return self._surroundings.node if self._surroundings is not None else NodeView("")


def _note(notes: dict[ServicePortName, _Note], name: ServicePortName, note: _Note) -> None:
    """Keep a note about a service port, or forget it if it is empty."""
    if note:
        notes[name] = note
    else:
        notes.pop(name, None)
