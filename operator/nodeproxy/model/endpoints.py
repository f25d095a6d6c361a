"""Endpoints of a Service, merged over its endpoint slices."""

import functools
from collections.abc import Iterable

import msgspec

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import EndpointConditions, EndpointEntry, EndpointSlice, Hint, Protocol

_NO_HINTS: frozenset[str] = frozenset()
_UNSET = EndpointConditions()


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One address and port that serves a service port.

    Attributes:
        address: canonical address.
        port: 1..65535.
        node_name: the node it runs on; empty if unknown.
        ready: may take new traffic (unset in the API: true).
        serving: is able to answer (unset: true).
        terminating: is about to go (unset: false).
        zone_hints: zones that should use it.
        node_hints: nodes that should use it.
    """

    address: str
    port: int
    node_name: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone_hints: frozenset[str] = _NO_HINTS
    node_hints: frozenset[str] = _NO_HINTS

    @property
    def sort_key(self) -> str:
        """``ip:port`` or ``[ip]:port``: endpoints are ordered by this text."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def is_local(self, node_name: str) -> bool:
        """Whether it runs on the node of that name. Compared exactly; an empty name is no node's."""
        return bool(node_name) and self.node_name == node_name


PortKey = tuple[str, Protocol]
"""Name (may be empty) and protocol of a port: what service ports and endpoint ports are matched by."""


def owner(endpoint_slice: EndpointSlice) -> tuple[str, str] | None:
    """Namespace and name of the Service that a slice belongs to; None without the label that says so.

    Slices labelled ``service.kubernetes.io/headless``, whatever the value, are no proxy's business.
    """
    labels = endpoint_slice.metadata.labels
    if labels is None or not labels.service_name or labels.headless is not None:
        return None
    return endpoint_slice.metadata.namespace, labels.service_name


def merge_slices(slices: Iterable[EndpointSlice], family: Family) -> dict[PortKey, tuple[Endpoint, ...]]:
    """The endpoints in the slices of one Service, by port, for one family.

    Slices of another address type are left out, as are ports without a number and endpoints without an address of
    the family; of several addresses the first counts (discovery/v1: they are interchangeable). The API leaves the
    meaning of unset conditions to consumers: unset ``ready`` and ``serving`` are true, each on its own, unset
    ``terminating`` is false.

    The endpoints of a port are sorted by :attr:`Endpoint.sort_key`. When one address and port occurs several times
    (a dead Pod's address was given to a new one), the most usable entry wins: ready, then serving and terminating,
    then the rest. Equals are told apart by their content, so the order of slices and entries never matters.
    """
    found: dict[PortKey, dict[str, Endpoint]] = {}
    for endpoint_slice in slices:
        if endpoint_slice.address_type != family.label or not endpoint_slice.endpoints:
            continue
        for port in endpoint_slice.ports or ():
            if port.port:
                by_text = found.setdefault((port.name or "", port.protocol or "TCP"), {})
                _collect(endpoint_slice.endpoints, port.port, family, by_text)
    return {key: tuple([by_text[text] for text in sorted(by_text)]) for key, by_text in found.items() if by_text}


def _collect(entries: Iterable[EndpointEntry], port: int, family: Family, by_text: dict[str, Endpoint]) -> None:
    """Add one endpoint per entry to ``by_text``, which is keyed by the text to sort by."""
    is_ipv6 = family is Family.IPV6
    before, after = ("[", f"]:{port}") if is_ipv6 else ("", f":{port}")
    for entry in entries:
        if not entry.addresses:
            continue
        address = entry.addresses[0]
        if (":" in address) is not is_ipv6:
            continue  # ::ffff:10.0.0.1 in an IPv6 slice is an IPv4 address, and no IPv6 rule can hold it
        state = entry.conditions or _UNSET
        hints = entry.hints
        endpoint = Endpoint(
            address,
            port,
            entry.node_name or "",
            state.ready is not False,
            state.serving is not False,
            state.terminating is True,
            _names(hints.for_zones) if hints is not None and hints.for_zones else _NO_HINTS,
            _names(hints.for_nodes) if hints is not None and hints.for_nodes else _NO_HINTS,
        )
        text = before + address + after
        other = by_text.setdefault(text, endpoint)
        if other is not endpoint and _preference(endpoint) < _preference(other):
            by_text[text] = endpoint


@functools.lru_cache(maxsize=4096)
def _names(hints: tuple[Hint, ...]) -> frozenset[str]:
    """The names in hints. Few combinations occur, and a set is bigger than an endpoint, so sets are shared."""
    return frozenset(hint.name for hint in hints)


def _preference(endpoint: Endpoint) -> tuple[object, ...]:
    """A total order on the content of endpoints with one address and port; the least is preferred."""
    usability = 0 if endpoint.ready else 1 if endpoint.serving and endpoint.terminating else 2
    return (
        usability,
        endpoint.terminating,
        not endpoint.serving,
        not endpoint.node_name,
        endpoint.node_name,
        sorted(endpoint.node_hints),
        sorted(endpoint.zone_hints),
    )
