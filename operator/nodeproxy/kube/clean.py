"""Cleaning: what stands between an object and the ruleset.

Takes a decoded object and returns it with valid names, canonical addresses and port numbers in range; what is not
is left out and noted. An object with nothing to clean is returned as it is, without a copy; none is ever changed.
"""

from collections.abc import Callable

import msgspec

from nodeproxy.kube import names
from nodeproxy.kube.addresses import canonical_address, canonical_cidr
from nodeproxy.kube.clean_service import clean_service
from nodeproxy.kube.clean_slice import clean_slice
from nodeproxy.kube.notes import Notes, Rejected, show
from nodeproxy.kube.objects import (
    Annotations,
    EndpointSlice,
    KubeObject,
    Labels,
    Node,
    NodeAddress,
    ObjectMeta,
    Service,
    ServiceCIDR,
)
from nodeproxy.kube.source import ObjectKey

NAMESPACED = frozenset({"Service", "EndpointSlice"})
_DEFAULT_NAMESPACE = "default"
_IP_ADDRESS_TYPES = frozenset({"InternalIP", "ExternalIP"})


def object_key(kind: str, name: object, namespace: object) -> ObjectKey:
    """The key of an object from its metadata.

    Args:
        kind: one of ``objects.KINDS``.
        name: ``metadata.name`` as given.
        namespace: ``metadata.namespace`` as given; absent or empty is ``default`` for namespaced kinds, and it is
            ignored for the others.

    Raises:
        Rejected: one of the two is missing or cannot be a name.
    """
    if name is None or name == "":
        raise Rejected("metadata.name", "is missing")
    if not isinstance(name, str) or not (names.is_label(name) if kind == "Service" else names.is_subdomain(name)):
        raise Rejected("metadata.name", f"{show(name)} is not a DNS {'label' if kind == 'Service' else 'subdomain'}")
    if kind not in NAMESPACED:
        return ObjectKey(kind, "", name)
    if namespace is None or namespace == "":
        return ObjectKey(kind, _DEFAULT_NAMESPACE, name)
    if not isinstance(namespace, str) or not names.is_label(namespace):
        raise Rejected("metadata.namespace", f"{show(namespace)} is not a DNS label")
    return ObjectKey(kind, namespace, name)


def clean_object(obj: KubeObject, key: ObjectKey, notes: Notes) -> KubeObject:
    """Clean a whole object, once: source ranges that cleaning closed would look like none at all the second time.

    Args:
        obj: as decoded; never changed.
        key: its key, from :func:`object_key`.
        notes: takes what was left out.

    Returns:
        The same object if there was nothing to clean, else a cleaned copy.

    Raises:
        Rejected: something the whole object depends on is not valid.
    """
    metadata = _clean_metadata(obj.metadata, key, notes)
    if metadata is not obj.metadata:
        obj = msgspec.structs.replace(obj, metadata=metadata)
    if isinstance(obj, Service):
        return clean_service(obj, notes)
    if isinstance(obj, EndpointSlice):
        return clean_slice(obj, notes)
    if isinstance(obj, Node):
        return _clean_node(obj, notes)
    return _clean_service_cidr(obj, notes)


# --- metadata --------------------------------------------------------------------------------------------------------


def _clean_metadata(metadata: ObjectMeta, key: ObjectKey, notes: Notes) -> ObjectMeta:
    changes: dict[str, object] = {}
    if metadata.namespace != key.namespace:
        changes["namespace"] = key.namespace
    if metadata.uid is not None and not names.is_uid(metadata.uid):
        notes.add("metadata.uid", f"{show(metadata.uid)} is not a uid")
        changes["uid"] = None
    for field, wire in (("creation_timestamp", "creationTimestamp"), ("deletion_timestamp", "deletionTimestamp")):
        given = getattr(metadata, field)
        if given is None or names.is_canonical_time(given):
            continue
        try:
            changes[field] = names.canonical_time(given)
        except ValueError as error:
            notes.add(f"metadata.{wire}", f"{show(given)} {error}")
            changes[field] = None
    if metadata.labels is not None:
        labels = _clean_labels(metadata.labels, notes)
        if labels is not metadata.labels:
            changes["labels"] = labels
    if metadata.annotations is not None:
        annotations = _clean_annotations(metadata.annotations, notes)
        if annotations is not metadata.annotations:
            changes["annotations"] = annotations
    return msgspec.structs.replace(metadata, **changes) if changes else metadata


def _clean_labels(labels: Labels, notes: Notes) -> Labels:
    # Any value of these two takes the object away from this proxy, so a bad one cannot simply be dropped.
    for value, name in (
        (labels.service_proxy_name, "service.kubernetes.io/service-proxy-name"),
        (labels.headless, "service.kubernetes.io/headless"),
    ):
        if value and not names.is_label_value(value):
            raise Rejected(f"metadata.labels[{name}]", f"{show(value)} is not the value of a label")
    changes: dict[str, None] = {}
    if labels.service_name and not names.is_label(labels.service_name):
        notes.add("metadata.labels[kubernetes.io/service-name]", f"{show(labels.service_name)} is not a DNS label")
        changes["service_name"] = None
    if labels.zone and not names.is_label_value(labels.zone):
        notes.add("metadata.labels[topology.kubernetes.io/zone]", f"{show(labels.zone)} is not the value of a label")
        changes["zone"] = None
    return msgspec.structs.replace(labels, **changes) if changes else labels


def _clean_annotations(annotations: Annotations, notes: Notes) -> Annotations:
    time = annotations.last_change_trigger_time
    if time is None or names.is_time(time):
        return annotations
    field = "metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]"
    notes.add(field, f"{show(time)} is not an RFC 3339 time")
    return msgspec.structs.replace(annotations, last_change_trigger_time=None)


# --- Node and ServiceCIDR --------------------------------------------------------------------------------------------


def _clean_node(node: Node, notes: Notes) -> Node:
    spec, status = node.spec, node.status
    if spec is not None:
        changes: dict[str, object] = {}
        if spec.pod_cidr:
            pod_cidr = notes.read(canonical_cidr, spec.pod_cidr, "spec.podCIDR")
            if pod_cidr != spec.pod_cidr:
                changes["pod_cidr"] = pod_cidr
        pod_cidrs = _read_all(canonical_cidr, spec.pod_cidrs, "spec.podCIDRs", notes)
        if pod_cidrs != spec.pod_cidrs:
            changes["pod_cidrs"] = pod_cidrs
        taints = tuple(taint for taint in spec.taints or () if names.is_label_key(taint.key))
        if len(taints) != len(spec.taints or ()):
            for index, taint in enumerate(spec.taints or ()):
                if not names.is_label_key(taint.key):
                    notes.add(f"spec.taints[{index}].key", f"{show(taint.key)} is not the key of a taint")
            changes["taints"] = taints
        if changes:
            spec = msgspec.structs.replace(spec, **changes)
    if status is not None and status.addresses:
        addresses = tuple(
            cleaned
            for index, address in enumerate(status.addresses)
            if (cleaned := _clean_node_address(address, f"status.addresses[{index}]", notes)) is not None
        )
        if addresses != status.addresses:
            status = msgspec.structs.replace(status, addresses=addresses)
    if spec is node.spec and status is node.status:
        return node
    return msgspec.structs.replace(node, spec=spec, status=status)


def _clean_node_address(address: NodeAddress, path: str, notes: Notes) -> NodeAddress | None:
    if not names.is_label_value(address.type):
        notes.add(f"{path}.type", f"{show(address.type)} is not a type of address")
        return None
    if address.type not in _IP_ADDRESS_TYPES:
        if names.is_host_name(address.address) or _is_canonical(address.address):
            return address
        notes.add(f"{path}.address", f"{show(address.address)} is not a host name")
        return None
    canonical = notes.read(canonical_address, address.address, f"{path}.address")
    if canonical is None or canonical == address.address:
        return address if canonical else None
    return msgspec.structs.replace(address, address=canonical)


def _is_canonical(text: str) -> bool:
    try:
        return canonical_address(text) == text
    except ValueError:
        return False


def _clean_service_cidr(service_cidr: ServiceCIDR, notes: Notes) -> ServiceCIDR:
    spec = service_cidr.spec
    if spec is None:
        return service_cidr
    cidrs = _read_all(canonical_cidr, spec.cidrs, "spec.cidrs", notes)
    if cidrs == spec.cidrs:
        return service_cidr
    return msgspec.structs.replace(service_cidr, spec=msgspec.structs.replace(spec, cidrs=cidrs))


def _read_all(
    parse: Callable[[str], str], given: tuple[str, ...] | None, path: str, notes: Notes
) -> tuple[str, ...] | None:
    if given is None:
        return None
    read = (notes.read(parse, text, f"{path}[{index}]") for index, text in enumerate(given))
    return tuple(canonical for canonical in read if canonical is not None)
