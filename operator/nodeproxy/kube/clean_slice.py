"""Cleaning of EndpointSlices. Written for speed: 100,000 clean endpoints cost no copies."""

import msgspec

from nodeproxy.kube import names
from nodeproxy.kube.addresses import Family, endpoint_address, family_of
from nodeproxy.kube.notes import Notes, show
from nodeproxy.kube.objects import MAX_PORT, EndpointEntry, EndpointHints, EndpointPort, EndpointSlice, Hint


def clean_slice(endpoint_slice: EndpointSlice, notes: Notes) -> EndpointSlice:
    """Clean the ports and endpoints of a slice.

    A slice without the label ``kubernetes.io/service-name`` belongs to no Service; it is kept, so that it replaces
    what it said before, and noted. Endpoints of a slice of host names (addressType FQDN) are dropped without a word:
    a proxy has no use for them.

    Args:
        endpoint_slice: as decoded, its metadata cleaned.
        notes: takes what was left out.

    Returns:
        The same object if there was nothing to clean, else a cleaned copy.
    """
    labels = endpoint_slice.metadata.labels
    if labels is None or not labels.service_name:
        notes.add("metadata.labels[kubernetes.io/service-name]", "is missing: the slice belongs to no Service")
    changes: dict[str, object] = {}
    if endpoint_slice.ports:
        ports = tuple(
            port for index, port in enumerate(endpoint_slice.ports) if _port_is_good(port, f"ports[{index}]", notes)
        )
        if len(ports) != len(endpoint_slice.ports):
            changes["ports"] = ports
    if endpoint_slice.endpoints:
        if endpoint_slice.address_type == "FQDN":
            changes["endpoints"] = ()
        else:
            family = Family.IPV6 if endpoint_slice.address_type == "IPv6" else Family.IPV4
            endpoints = _clean_endpoints(endpoint_slice.endpoints, family, notes)
            if endpoints is not endpoint_slice.endpoints:
                changes["endpoints"] = endpoints
    return msgspec.structs.replace(endpoint_slice, **changes) if changes else endpoint_slice


def _port_is_good(port: EndpointPort, path: str, notes: Notes) -> bool:
    if port.name and not names.is_label(port.name):
        notes.add(f"{path}.name", f"{show(port.name)} is not a DNS label")
        return False
    if port.port is not None and not 1 <= port.port <= MAX_PORT:
        notes.add(f"{path}.port", f"{show(port.port)} is not in 1..{MAX_PORT}")
        return False
    return True


def _clean_endpoints(endpoints: tuple[EndpointEntry, ...], family: Family, notes: Notes) -> tuple[EndpointEntry, ...]:
    cleaned: list[EndpointEntry | None] | None = None
    for index, endpoint in enumerate(endpoints):
        if _is_clean(endpoint, family):
            continue
        if cleaned is None:
            cleaned = list(endpoints)
        cleaned[index] = _clean_endpoint(endpoint, family, f"endpoints[{index}]", notes)
    if cleaned is None:
        return endpoints
    return tuple(endpoint for endpoint in cleaned if endpoint is not None)


def _is_clean(endpoint: EndpointEntry, family: Family) -> bool:
    node_name = endpoint.node_name
    if node_name is not None and not names.is_subdomain(node_name):
        return False
    hints = endpoint.hints
    if hints is not None:
        for hint in hints.for_zones or ():
            if not names.is_label_value(hint.name):
                return False
        for hint in hints.for_nodes or ():
            if not names.is_subdomain(hint.name):
                return False
    for address in endpoint.addresses:
        try:
            if endpoint_address(address) != address or (":" in address) != (family is Family.IPV6):
                return False
        except ValueError:
            return False
    return True


def _clean_endpoint(endpoint: EndpointEntry, family: Family, path: str, notes: Notes) -> EndpointEntry | None:
    addresses = _clean_addresses(endpoint.addresses, family, f"{path}.addresses", notes)
    if endpoint.addresses and not addresses:
        return None
    node_name = endpoint.node_name
    if node_name is not None and not names.is_subdomain(node_name):
        if node_name:
            notes.add(f"{path}.nodeName", f"{show(node_name)} is not a DNS subdomain: the endpoint counts as remote")
        node_name = None
    hints = endpoint.hints and _clean_hints(endpoint.hints, f"{path}.hints", notes)
    return msgspec.structs.replace(endpoint, addresses=addresses, node_name=node_name, hints=hints)


def _clean_addresses(given: tuple[str, ...], family: Family, path: str, notes: Notes) -> tuple[str, ...]:
    addresses = []
    for index, text in enumerate(given):
        canonical = notes.read(endpoint_address, text, f"{path}[{index}]")
        if canonical is None:
            continue
        if family_of(canonical) != family:
            notes.add(f"{path}[{index}]", f"{show(text)} is not an {family.label} address, unlike the slice")
            continue
        addresses.append(canonical)
    return tuple(addresses)


def _clean_hints(hints: EndpointHints, path: str, notes: Notes) -> EndpointHints:
    zones: list[Hint] = []
    for index, hint in enumerate(hints.for_zones or ()):
        if names.is_label_value(hint.name):
            zones.append(hint)
        else:
            notes.add(f"{path}.forZones[{index}].name", f"{show(hint.name)} is not the name of a zone")
    nodes: list[Hint] = []
    for index, hint in enumerate(hints.for_nodes or ()):
        if names.is_subdomain(hint.name):
            nodes.append(hint)
        else:
            notes.add(f"{path}.forNodes[{index}].name", f"{show(hint.name)} is not a DNS subdomain")
    return EndpointHints(for_zones=tuple(zones), for_nodes=tuple(nodes))
