"""The objects as a source last described them, and which of them changed since they were last looked at."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nodeproxy.kube.addresses import Family, family_of
from nodeproxy.kube.objects import KINDS, EndpointSlice, Node, Service, ServiceCIDR
from nodeproxy.kube.source import Change, Problem
from nodeproxy.model.endpoints import owner
from nodeproxy.model.service import service_addresses


class ServiceKey(NamedTuple):
    """Namespace and name of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServiceView(NamedTuple):
    """A Service and its endpoint slices; ``service`` None: there is none of that name."""

    service: Service | None
    slices: tuple[EndpointSlice, ...]


@dataclass(slots=True)
class Changes:
    """What changed since the last look.

    Attributes:
        services: Services that changed themselves or through their slices, as they are now.
        surroundings: the Node or a ServiceCIDR changed.
    """

    services: dict[ServiceKey, ServiceView] = field(default_factory=dict)
    surroundings: bool = False


class Store:
    """Takes changes from a source's threads (it is a Sink), and hands them to the syncing thread.

    Args:
        wake: called when there is something to sync, from the source's threads.
        problems: called with the whole list of problems when it changes, from the source's threads.
    """

    def __init__(self, wake: Callable[[], None], problems: Callable[[Sequence[Problem]], None]) -> None:
        self._wake = wake
        self._problems = problems
        self._lock = threading.Lock()
        self._services: dict[ServiceKey, Service] = {}
        self._slices: dict[ServiceKey, dict[str, EndpointSlice]] = {}
        self._owners: dict[ServiceKey, ServiceKey] = {}
        self._nodes: dict[str, Node] = {}
        self._cidrs: dict[str, ServiceCIDR] = {}
        self._changed: dict[ServiceKey, None] = {}
        self._surroundings = True
        self._incomplete = set(KINDS)

    # --- the source's side ---------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> None:
        """Take a batch of changes that belong together."""
        with self._lock:
            for change in changes:
                self._take(change)
            ready = not self._incomplete
        if changes and ready:
            self._wake()

    def complete(self, kind: str) -> None:
        """Note that all objects of a kind are there."""
        with self._lock:
            self._incomplete.discard(kind)
            ready = not self._incomplete
        if ready:
            self._wake()

    def report(self, problems: Sequence[Problem]) -> None:
        """Pass on the list of what was left out."""
        self._problems(problems)

    # --- the syncing side ----------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the initial state of every kind is there."""
        with self._lock:
            return not self._incomplete

    def take(self) -> Changes:
        """What changed since the last call."""
        with self._lock:
            changes = Changes({key: self._view(key) for key in self._changed}, self._surroundings)
            self._changed, self._surroundings = {}, False
            return changes

    def view(self, key: ServiceKey) -> ServiceView:
        """A Service as it is now."""
        with self._lock:
            return self._view(key)

    def everything(self) -> dict[ServiceKey, ServiceView]:
        """Every Service."""
        with self._lock:
            return {key: self._view(key) for key in self._services}

    def serving(self, addresses: Collection[str], among: Iterable[ServiceKey] | None = None) -> ServiceKey | None:
        """A Service that has one of these canonical addresses as ClusterIP, external or load balancer address.

        Args:
            addresses: to look for.
            among: where to look; None: everywhere.
        """
        wanted = frozenset(addresses)
        if not wanted:
            return None
        with self._lock:
            keys = self._services if among is None else [key for key in among if key in self._services]
            return next((key for key in keys if not wanted.isdisjoint(service_addresses(self._services[key]))), None)

    def service_count(self) -> int:
        """How many Services there are."""
        with self._lock:
            return len(self._services)

    def node(self, name: str) -> Node | None:
        """The Node of this name."""
        with self._lock:
            return self._nodes.get(name)

    def service_cidrs(self, family: Family) -> tuple[str, ...]:
        """The CIDRs of a family that ClusterIPs come from, sorted."""
        with self._lock:
            found = {cidr for item in self._cidrs.values() for cidr in (item.spec.cidrs if item.spec else None) or ()}
        return tuple(sorted(cidr for cidr in found if family_of(cidr) is family))

    def _view(self, key: ServiceKey) -> ServiceView:
        return ServiceView(self._services.get(key), tuple(self._slices.get(key, {}).values()))

    def _take(self, change: Change) -> None:
        key, item = change.key, change.object
        match key.kind:
            case "Service":
                service_key = ServiceKey(key.namespace, key.name)
                if isinstance(item, Service):
                    self._services[service_key] = item
                else:
                    self._services.pop(service_key, None)
                self._changed[service_key] = None
            case "EndpointSlice":
                self._take_slice(ServiceKey(key.namespace, key.name), item if isinstance(item, EndpointSlice) else None)
            case "Node":
                if isinstance(item, Node):
                    self._nodes[key.name] = item
                else:
                    self._nodes.pop(key.name, None)
                self._surroundings = True
            case "ServiceCIDR":
                if isinstance(item, ServiceCIDR):
                    self._cidrs[key.name] = item
                else:
                    self._cidrs.pop(key.name, None)
                self._surroundings = True

    def _take_slice(self, key: ServiceKey, item: EndpointSlice | None) -> None:
        for service_key in self._forget_slice(key):
            self._changed[service_key] = None
        named = owner(item) if item is not None else None
        if item is None or named is None:
            return
        service_key = ServiceKey(*named)
        self._owners[key] = service_key
        self._slices.setdefault(service_key, {})[key.name] = item
        self._changed[service_key] = None

    def _forget_slice(self, key: ServiceKey) -> Iterator[ServiceKey]:
        """Take a slice from the Service it was of; yields that Service."""
        service_key = self._owners.pop(key, None)
        if service_key is None:
            return
        slices = self._slices[service_key]
        del slices[key.name]
        if not slices:
            del self._slices[service_key]
        yield service_key
