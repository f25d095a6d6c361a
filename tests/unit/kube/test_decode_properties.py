"""Whatever the input: decoding never raises, and what comes out is safe to write into a ruleset."""

import copy
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeproxy.kube.addresses import canonical_address, canonical_cidr
from nodeproxy.kube.decode import decode, decode_json
from nodeproxy.kube.objects import EndpointSlice, Node, Service, ServiceCIDR
from nodeproxy.kube.yaml_documents import YamlError, load_documents

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

texts = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [
            "",
            "None",
            "a",
            "a.b",
            "A",
            "a\n",
            'x" ; flush ruleset',
            "a" * 64,
            "TCP",
            "udp",
            "IPv4",
            "IPv6",
            "FQDN",
            "Local",
            "ClientIP",
            "LoadBalancer",
            "ExternalName",
            "10.0.0.1",
            " 10.00.0.010",
            "::ffff:10.0.0.1",
            "FD00::1",
            "fd00::1%lo",
            "10.0.0.0/8",
            "10.0.0.1/08",
            "10.0.0.0/8, junk",
            "fd00::/8",
            "0.0.0.0/0",
            "2024-05-01T10:00:00+02:00",
            "InternalIP",
            "Hostname",
            "VIP",
        ]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-1, 70_000), st.floats(allow_nan=False), texts)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)


def maybe(strategy):
    """Mostly what is right in kind, at times anything."""
    return st.one_of(strategy, strategy, strategy, anything)


def fields(**strategies):
    return maybe(st.fixed_dictionaries({}, optional={name: maybe(value) for name, value in strategies.items()}))


def lists(strategy):
    return maybe(st.lists(strategy, max_size=3))


ports = fields(name=texts, port=st.integers(-1, 66_000), protocol=texts, nodePort=st.integers(-1, 66_000))
labels = st.dictionaries(
    st.sampled_from(
        [
            "kubernetes.io/service-name",
            "service.kubernetes.io/service-proxy-name",
            "service.kubernetes.io/headless",
            "topology.kubernetes.io/zone",
        ]
    ),
    maybe(texts),
    max_size=2,
)
annotations = st.dictionaries(
    st.sampled_from(
        [
            "service.beta.kubernetes.io/load-balancer-source-ranges",
            "endpoints.kubernetes.io/last-change-trigger-time",
        ]
    ),
    maybe(texts),
    max_size=2,
)
metadata = st.fixed_dictionaries(
    {"name": st.one_of(st.just("web"), texts)},
    optional={
        "namespace": st.one_of(st.just("shop"), texts),
        "uid": maybe(texts),
        "creationTimestamp": maybe(texts),
        "labels": maybe(labels),
        "annotations": maybe(annotations),
    },
)
services = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Service"),
        "metadata": maybe(metadata),
        "spec": fields(
            type=st.sampled_from(["ClusterIP", "LoadBalancer", "NodePort", "ExternalName"]),
            clusterIP=texts,
            clusterIPs=st.lists(texts, max_size=3),
            ipFamilies=st.lists(texts, max_size=3),
            ports=lists(ports),
            externalIPs=lists(texts),
            sessionAffinity=texts,
            sessionAffinityConfig=fields(clientIP=fields(timeoutSeconds=st.integers())),
            externalTrafficPolicy=texts,
            loadBalancerSourceRanges=lists(texts),
            healthCheckNodePort=st.integers(),
        ),
    },
    optional={"status": fields(loadBalancer=fields(ingress=lists(fields(ip=texts, ipMode=texts))))},
)
hints = lists(fields(name=texts))
slices = st.fixed_dictionaries(
    {
        "apiVersion": st.just("discovery.k8s.io/v1"),
        "kind": st.just("EndpointSlice"),
        "metadata": maybe(metadata),
        "addressType": st.sampled_from(["IPv4", "IPv6", "FQDN"]),
    },
    optional={
        "ports": lists(ports),
        "endpoints": lists(
            fields(
                addresses=lists(texts),
                conditions=fields(ready=st.booleans()),
                nodeName=texts,
                hints=fields(forZones=hints, forNodes=hints),
            )
        ),
    },
)
nodes = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Node"), "metadata": maybe(metadata)},
    optional={
        "spec": fields(podCIDR=texts, podCIDRs=lists(texts), taints=lists(fields(key=texts))),
        "status": fields(addresses=lists(fields(type=texts, address=texts))),
    },
)
service_cidrs = st.fixed_dictionaries(
    {
        "apiVersion": st.just("networking.k8s.io/v1"),
        "kind": st.just("ServiceCIDR"),
        "metadata": maybe(metadata),
        "spec": fields(cidrs=lists(texts)),
    }
)


def check_address(text):
    assert canonical_address(text) == text


def check_cidr(text):
    assert canonical_cidr(text) == text


def check_ports(entries):
    for port in entries or ():
        assert not port.name or (LABEL.fullmatch(port.name) and len(port.name) <= 63)
        assert port.port is None or 1 <= port.port <= 65_535
        assert port.protocol in {None, "TCP", "UDP", "SCTP"}


def check_service(obj):
    spec = obj.spec
    for address in (*(spec.cluster_ips or ()), *((spec.cluster_ip,) if spec.cluster_ip else ())):
        if address != "None":
            check_address(address)
    check_ports(spec.ports)
    for port in spec.ports or ():
        assert not port.node_port or 1 <= port.node_port <= 65_535
    identities = [(port.name or "", port.protocol or "TCP") for port in spec.ports or ()]
    assert len(set(identities)) == len(identities)
    for address in spec.external_ips or ():
        check_address(address)
    for cidr in spec.load_balancer_source_ranges or ():
        check_cidr(cidr)
    if spec.session_affinity_config and spec.session_affinity_config.client_ip:
        assert spec.session_affinity_config.client_ip.timeout_seconds in {None, *range(1, 86_401)}
    if obj.status and obj.status.load_balancer:
        for entry in obj.status.load_balancer.ingress or ():
            assert entry.ip_mode in {None, "", "VIP", "Proxy"}
            if entry.ip:
                check_address(entry.ip)


def check_slice(obj):
    check_ports(obj.ports)
    for endpoint in obj.endpoints or ():
        for address in endpoint.addresses:
            check_address(address)
            assert (":" in address) == (obj.address_type == "IPv6")
        assert endpoint.node_name is None or NAME.fullmatch(endpoint.node_name)
        if endpoint.hints:
            for hint in endpoint.hints.for_zones or ():
                assert VALUE.fullmatch(hint.name)
            for hint in endpoint.hints.for_nodes or ():
                assert NAME.fullmatch(hint.name)


def check_node(obj):
    if obj.spec:
        for cidr in (*(obj.spec.pod_cidrs or ()), *((obj.spec.pod_cidr,) if obj.spec.pod_cidr else ())):
            check_cidr(cidr)
    for entry in (obj.status and obj.status.addresses) or ():
        if entry.type in {"InternalIP", "ExternalIP"}:
            check_address(entry.address)
        assert re.fullmatch(r"[-A-Za-z0-9_.:]+", entry.address)


def check_service_cidr(obj):
    for cidr in (obj.spec and obj.spec.cidrs) or ():
        check_cidr(cidr)


CHECKS = {Service: check_service, EndpointSlice: check_slice, Node: check_node, ServiceCIDR: check_service_cidr}


def check(raw):
    before = copy.deepcopy(raw)
    decoded = decode(raw, "o")
    assert raw == before
    if decoded.object is None:
        assert decoded.ignored or [problem.fatal for problem in decoded.problems].count(True) == 1
    else:
        assert not any(problem.fatal for problem in decoded.problems)
        assert type(decoded.object).__name__ == decoded.key.kind
        assert (decoded.object.metadata.name, decoded.object.metadata.namespace) == (
            decoded.key.name,
            decoded.key.namespace,
        )
        assert NAME.fullmatch(decoded.key.name)
        assert not decoded.key.namespace or LABEL.fullmatch(decoded.key.namespace)
        for value in (*(getattr(decoded.object.metadata.labels, name, None) for name in ("zone", "service_name")),):
            assert not value or VALUE.fullmatch(value)
        CHECKS[type(decoded.object)](decoded.object)
    for problem in decoded.problems:
        assert problem.origin == "o"
        assert problem.reason.isprintable()
        assert len(problem.reason) < 400
        assert problem.subject == (str(decoded.key) if decoded.key else "")
    return decoded


@given(st.one_of(anything, services, slices, nodes, service_cidrs))
@settings(max_examples=600, deadline=None)
def test_decoding_never_raises_and_what_comes_out_is_valid(raw):
    decoded = check(raw)
    try:
        encoded = json.dumps(raw, allow_nan=False).encode()
    except ValueError:  # Infinity and lone surrogates are not JSON.
        return
    from_json = decode_json(encoded, "o")
    assert (from_json.object, from_json.key) == (decoded.object, decoded.key)


@given(st.sampled_from(["Service", "EndpointSlice", "Node", "ServiceCIDR"]), anything, anything, anything)
@settings(max_examples=200, deadline=None)
def test_objects_made_of_anything_never_raise(kind, meta, spec, status):
    version = {"Service": "v1", "Node": "v1", "EndpointSlice": "discovery.k8s.io/v1"}.get(kind, "networking.k8s.io/v1")
    check(
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": meta,
            "spec": spec,
            "status": status,
            "endpoints": spec,
            "ports": status,
            "addressType": "IPv4",
        }
    )


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_decoded_or_reported(data):
    assert decode_json(data, "o").problems


@given(st.one_of(st.text(max_size=60), st.text(alphabet="&*a1:-?[]{}<!%|> \n'\"", max_size=40)))
@settings(max_examples=500, deadline=None)
def test_text_of_any_kind_is_yaml_or_refused(text):
    try:
        documents = list(load_documents(text))
    except YamlError as error:
        message = str(error)
        documents = []
    else:
        message = ""
    assert "\n" not in message
    for document in documents:
        decode(document, "o")
