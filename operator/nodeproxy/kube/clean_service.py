"""Cleaning of Services."""

import msgspec

from nodeproxy.kube import names
from nodeproxy.kube.addresses import Family, canonical_cidr, endpoint_address, family_of, unicast_address
from nodeproxy.kube.notes import Notes, Rejected, show
from nodeproxy.kube.objects import MAX_PORT, LoadBalancerIngress, Service, ServicePortSpec, ServiceSpec, ServiceStatus

MAX_AFFINITY_SECONDS = 86_400
HEADLESS = "None"
_IP_MODES = frozenset({"VIP", "Proxy"})
_RANGES_FIELD = "spec.loadBalancerSourceRanges"
_RANGES_ANNOTATION = "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]"


def clean_service(service: Service, notes: Notes) -> Service:
    """Clean a Service's ports, addresses and source ranges.

    The annotation ``service.beta.kubernetes.io/load-balancer-source-ranges`` is moved to where the field is, so that
    nobody after this has to know of it.

    Args:
        service: as decoded, its metadata cleaned.
        notes: takes what was left out.

    Returns:
        The same object if there was nothing to clean, else a cleaned copy.

    Raises:
        Rejected: it has cluster IPs, and none can be read.
    """
    spec = service.spec
    changes: dict[str, object] = {
        **_cluster_ips(spec, notes),
        **_ports(spec, notes),
        **_external_ips(spec, notes),
        **_affinity(spec, notes),
        **_source_ranges(service, notes),
    }
    check_port = spec.health_check_node_port
    if check_port and not 1 <= check_port <= MAX_PORT:
        notes.add("spec.healthCheckNodePort", f"{show(check_port)} is not in 1..{MAX_PORT}")
        changes["health_check_node_port"] = None
    replaced: dict[str, object] = {}
    if changes:
        replaced["spec"] = msgspec.structs.replace(spec, **changes)
    status = service.status and _clean_status(service.status, notes)
    if status is not service.status:
        replaced["status"] = status
    annotations = service.metadata.annotations
    if annotations is not None and annotations.load_balancer_source_ranges is not None:
        annotations = msgspec.structs.replace(annotations, load_balancer_source_ranges=None)
        replaced["metadata"] = msgspec.structs.replace(service.metadata, annotations=annotations)
    return msgspec.structs.replace(service, **replaced) if replaced else service


def _cluster_ips(spec: ServiceSpec, notes: Notes) -> dict[str, object]:
    given = spec.cluster_ips or ()
    first = spec.cluster_ip
    if first == HEADLESS or HEADLESS in given:
        only = (HEADLESS,)
        changes: dict[str, object] = {} if first == HEADLESS else {"cluster_ip": HEADLESS}
        return changes if given in {(), only} else {**changes, "cluster_ips": only}
    changes = {}
    read = tuple(
        canonical
        for index, text in enumerate(given)
        if text and (canonical := notes.read(unicast_address, text, f"spec.clusterIPs[{index}]")) is not None
    )
    if read != given:
        changes["cluster_ips"] = read
    # The first of the list repeats the single field: say once what is wrong with both.
    repeated = bool(given) and first == given[0]
    if repeated and read == given:
        canonical_first = first
    else:
        quiet = Notes("", "") if repeated else notes
        canonical_first = quiet.read(unicast_address, first, "spec.clusterIP") if first else None
    canonical_first = canonical_first or (read[0] if read else None)
    if canonical_first != first:
        changes["cluster_ip"] = canonical_first
    if spec.type != "ExternalName" and canonical_first is None:
        if first or any(given):
            field = "spec.clusterIP" if first else "spec.clusterIPs"
            raise Rejected(field, f"{_why_not(first or next(filter(None, given)))}, and there is no other cluster IP")
        notes.add("spec.clusterIP", "is missing: the Service cannot be served")
    changes.update(_families(spec, read, notes))
    return changes


def _why_not(text: str) -> str:
    """What is wrong with an address that was refused."""
    told = Notes("", "")
    told.read(unicast_address, text, "")
    return told.problems[0].reason


def _families(spec: ServiceSpec, cluster_ips: tuple[str, ...], notes: Notes) -> dict[str, object]:
    """Keep ``ipFamilies`` in step with ``clusterIPs``: readers find the address of a family by its index."""
    families = spec.ip_families
    if not families or not cluster_ips:
        return {}
    actual = tuple(family_of(address).label for address in cluster_ips)
    if actual == families:
        return {}
    if len(cluster_ips) == len(spec.cluster_ips or ()) == len(families):
        read = f"{', '.join(families)} was read as {', '.join(actual)}, as in spec.clusterIPs"
        notes.add("spec.ipFamilies", read, harmless=True)
    return {"ip_families": actual}


def _ports(spec: ServiceSpec, notes: Notes) -> dict[str, object]:
    given = spec.ports
    if not given:
        headless = spec.cluster_ip == HEADLESS or HEADLESS in (spec.cluster_ips or ())
        if spec.type != "ExternalName" and not headless and not notes.about("spec.ports"):
            notes.add("spec.ports", "is missing: the Service cannot be served")
        return {}
    seen: set[tuple[str, str]] = set()
    ports: list[ServicePortSpec] = []
    changed = False
    for index, port in enumerate(given):
        if spec.type == "NodePort" and not port.node_port:
            notes.add(f"spec.ports[{index}].nodePort", "is missing: the port has no node port")
        cleaned = _clean_port(port, f"spec.ports[{index}]", notes)
        changed |= cleaned is not port
        if cleaned is None:
            continue
        identity = (cleaned.name or "", cleaned.protocol or "TCP")
        if identity in seen:
            notes.add(f"spec.ports[{index}]", f"a port {show(identity[0])} of protocol {identity[1]} is there already")
            changed = True
            continue
        seen.add(identity)
        ports.append(cleaned)
    return {"ports": tuple(ports)} if changed else {}


def _clean_port(port: ServicePortSpec, path: str, notes: Notes) -> ServicePortSpec | None:
    if port.name and not names.is_label(port.name):
        notes.add(f"{path}.name", f"{show(port.name)} is not a DNS label")
        return None
    if not 1 <= port.port <= MAX_PORT:
        notes.add(f"{path}.port", f"{show(port.port)} is not in 1..{MAX_PORT}")
        return None
    if port.node_port and not 1 <= port.node_port <= MAX_PORT:
        notes.add(f"{path}.nodePort", f"{show(port.node_port)} is not in 1..{MAX_PORT}")
        return msgspec.structs.replace(port, node_port=None)
    return port


def _external_ips(spec: ServiceSpec, notes: Notes) -> dict[str, object]:
    given = spec.external_ips
    if not given:
        return {}
    read = tuple(
        canonical
        for index, text in enumerate(given)
        if text and (canonical := notes.read(endpoint_address, text, f"spec.externalIPs[{index}]")) is not None
    )
    return {"external_ips": read} if read != given else {}


def _affinity(spec: ServiceSpec, notes: Notes) -> dict[str, object]:
    config = spec.session_affinity_config
    seconds = None if config is None or config.client_ip is None else config.client_ip.timeout_seconds
    if seconds is None or 1 <= seconds <= MAX_AFFINITY_SECONDS:
        return {}
    field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    notes.add(field, f"{show(seconds)} is not in 1..{MAX_AFFINITY_SECONDS}; the default is used")
    return {"session_affinity_config": None}


def _source_ranges(service: Service, notes: Notes) -> dict[str, object]:
    given = service.spec.load_balancer_source_ranges
    annotations = service.metadata.annotations
    annotated = annotations and annotations.load_balancer_source_ranges
    if given:
        fields = [(text, f"{_RANGES_FIELD}[{index}]") for index, text in enumerate(given)]
    elif service.spec.type == "LoadBalancer" and annotated and annotated.strip():
        # Blanks after the commas are how people write it, and no reason for a word.
        fields = [(text.strip(), _RANGES_ANNOTATION) for text in annotated.split(",")]
    else:
        return {} if given is None else {"load_balancer_source_ranges": None}
    read = tuple(
        canonical
        for text, field in fields
        if text and (canonical := notes.read(canonical_cidr, text, field)) is not None
    )
    whole = fields[0][1].removesuffix("[0]")
    if not read:
        notes.add(whole, "no range could be read: closed to all")
    else:
        for family in sorted(_vip_families(service) - {family_of(cidr) for cidr in read}):
            notes.add(
                whole, f"no range is of {family.label}: the {family.label} load-balancer address is closed to all"
            )
    return {"load_balancer_source_ranges": read} if read != given else {}


def _vip_families(service: Service) -> set[Family]:
    """Families of the load-balancer addresses."""
    balancer = service.status.load_balancer if service.status else None
    return {family_of(entry.ip) for entry in (balancer.ingress if balancer else None) or () if entry.ip}


def _clean_status(status: ServiceStatus, notes: Notes) -> ServiceStatus:
    balancer = status.load_balancer
    if balancer is None or not balancer.ingress:
        return status
    ingress = tuple(
        cleaned
        for index, entry in enumerate(balancer.ingress)
        if (cleaned := _clean_ingress(entry, f"status.loadBalancer.ingress[{index}]", notes)) is not None
    )
    if len(ingress) == len(balancer.ingress) and all(map(_same, ingress, balancer.ingress)):
        return status
    return msgspec.structs.replace(status, load_balancer=msgspec.structs.replace(balancer, ingress=ingress))


def _same(one: object, other: object) -> bool:
    return one is other


def _clean_ingress(entry: LoadBalancerIngress, path: str, notes: Notes) -> LoadBalancerIngress | None:
    if entry.ip_mode and entry.ip_mode not in _IP_MODES:
        notes.add(f"{path}.ipMode", f"{show(entry.ip_mode)} is neither VIP nor Proxy")
        return None
    if not entry.ip:  # A host name, which is for DNS.
        return entry
    canonical = notes.read(unicast_address, entry.ip, f"{path}.ip")
    if canonical is None or canonical == entry.ip:
        return entry if canonical else None
    return msgspec.structs.replace(entry, ip=canonical)
