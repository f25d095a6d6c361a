"""Cleaning: what comes out is valid and canonical; what went is told; what was clean is not copied."""

import json

import msgspec
import pytest

from nodeproxy.kube.clean import clean_object, object_key
from nodeproxy.kube.decode import decode
from nodeproxy.kube.notes import Notes
from nodeproxy.kube.objects import EndpointSlice, Node, Service, ServiceCIDR
from nodeproxy.kube.source import ObjectKey

from .support import endpoint_slice, read, service


def node(spec=None, status=None, **metadata):
    metadata = {"name": "n1", **metadata}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec or {}, "status": status or {}}


CLEAN = {
    Service: {
        **service(
            type="LoadBalancer",
            clusterIPs=["10.96.0.10", "fd00::10"],
            ipFamilies=["IPv4", "IPv6"],
            externalIPs=["192.0.2.1"],
            loadBalancerSourceRanges=["10.0.0.0/8", "2001:db8::/32"],
            sessionAffinity="ClientIP",
            sessionAffinityConfig={"clientIP": {"timeoutSeconds": 86400}},
            healthCheckNodePort=30001,
        ),
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}, {"hostname": "a.example"}]}},
    },
    EndpointSlice: endpoint_slice(
        endpoints=[
            {
                "addresses": ["10.0.0.1"],
                "nodeName": "n1.example",
                "hints": {"forZones": [{"name": "Zone_A"}], "forNodes": [{"name": "n1"}]},
            }
        ]
    ),
    Node: node(
        {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "taints": [{"key": "node.kubernetes.io/unreachable"}]},
        {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "Host-1"}]},
        labels={"topology.kubernetes.io/zone": "a"},
        creationTimestamp="2024-05-01T10:00:00Z",
        uid="5b8e",
    ),
    ServiceCIDR: {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/16", "fd00::/108"]},
    },
}


@pytest.mark.parametrize("cls", CLEAN)
def test_an_object_that_is_clean_is_not_copied(cls):
    raw = CLEAN[cls]
    if cls in {Service, EndpointSlice}:
        raw["metadata"]["namespace"] = "shop"
    obj = msgspec.json.decode(json.dumps(raw), type=cls)
    key = object_key(raw["kind"], obj.metadata.name, obj.metadata.namespace)
    notes = Notes("x", str(key))
    assert clean_object(obj, key, notes) is obj
    assert notes.problems == []


# --- addresses -------------------------------------------------------------------------------------------------------


def test_leading_zeros_are_decimal_and_told():
    """The nft command would read 010 as 8."""
    raw = service(
        type="LoadBalancer",
        clusterIP="10.096.011.012",
        clusterIPs=["10.096.011.012"],
        externalIPs=["192.000.2.010"],
        loadBalancerSourceRanges=["10.010.0.0/16"],
    )
    obj, problems = read({**raw, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.08"}]}}})
    assert obj.spec.cluster_ip == "10.96.11.12"
    assert obj.spec.cluster_ips == ("10.96.11.12",)
    assert obj.spec.external_ips == ("192.0.2.10",)
    assert obj.spec.load_balancer_source_ranges == ("10.10.0.0/16",)
    assert obj.status.load_balancer.ingress[0].ip == "192.0.2.8"
    assert problems == {
        "spec.clusterIPs[0]": "'10.096.011.012' was read as 10.96.11.12",
        "spec.externalIPs[0]": "'192.000.2.010' was read as 192.0.2.10",
        "spec.loadBalancerSourceRanges[0]": "'10.010.0.0/16' was read as 10.10.0.0/16",
        "status.loadBalancer.ingress[0].ip": "'192.0.2.08' was read as 192.0.2.8",
    }
    obj, problems = read(endpoint_slice(endpoints=[{"addresses": [" 10.0.0.010"]}]))
    assert obj.endpoints[0].addresses == ("10.0.0.10",)
    assert problems == {"endpoints[0].addresses[0]": "' 10.0.0.010' was read as 10.0.0.10"}


def test_other_spellings_of_ipv6_addresses_are_taken_without_a_word():
    obj, problems = read(
        service(clusterIP="FD00:0::0a", externalIPs=["2001:DB8:0:0::1"], loadBalancerSourceRanges=["2001:DB8::/032"])
    )
    assert (obj.spec.cluster_ip, obj.spec.external_ips) == ("fd00::a", ("2001:db8::1",))
    assert obj.spec.load_balancer_source_ranges == ("2001:db8::/32",)
    assert problems == {}


def test_ipv4_mapped_addresses_and_host_bits_are_told():
    obj, problems = read(
        service(externalIPs=["::ffff:192.0.2.1"], loadBalancerSourceRanges=["10.1.2.3/8", "fd00::1/8"])
    )
    assert obj.spec.external_ips == ("192.0.2.1",)
    assert obj.spec.load_balancer_source_ranges == ("10.0.0.0/8", "fd00::/8")
    assert set(problems) == {
        "spec.externalIPs[0]",
        "spec.loadBalancerSourceRanges[0]",
        "spec.loadBalancerSourceRanges[1]",
    }


def test_external_ips_lose_bad_entries_and_empty_ones_silently():
    obj, problems = read(service(externalIPs=["", "192.0.2.1", "junk", "2001:db8::1%eth0", "2001:db8::1"]))
    assert obj.spec.external_ips == ("192.0.2.1", "2001:db8::1")
    assert problems == {
        "spec.externalIPs[2]": "'junk' is not an IP address",
        "spec.externalIPs[3]": "'2001:db8::1%eth0' is not an IP address",
    }


def test_one_bad_ingress_does_not_stop_the_others():
    ingress = [{"hostname": "x.example"}, {"ip": "192.0.2.1"}, {"ip": "junk"}, {"ip": "192.0.2.2", "ipMode": "Odd"}, {}]
    obj, problems = read({**service(), "status": {"loadBalancer": {"ingress": ingress}}})
    assert [entry.ip for entry in obj.status.load_balancer.ingress] == [None, "192.0.2.1", None]
    assert set(problems) == {"status.loadBalancer.ingress[2].ip", "status.loadBalancer.ingress[3].ipMode"}


# --- cluster IPs -----------------------------------------------------------------------------------------------------


def test_a_service_without_cluster_ip_is_delivered_and_told():
    for missing in (..., None, ""):
        obj, problems = read(service(clusterIP=missing))
        assert obj.spec.cluster_ip is None
        assert list(problems) == ["spec.clusterIP"]


def test_headless_and_external_services_need_no_cluster_ip():
    obj, problems = read(service(clusterIP="None", clusterIPs=["None"]))
    assert (obj.spec.cluster_ip, problems) == ("None", {})
    obj, problems = read(service(clusterIP=..., clusterIPs=["None"]))
    assert (obj.spec.cluster_ip, problems) == ("None", {})
    obj, problems = read(service(type="ExternalName", clusterIP="", externalName="x.example"))
    assert (obj.spec.type, obj.spec.cluster_ip, problems) == ("ExternalName", None, {})


def test_a_cluster_ip_that_cannot_be_read_costs_the_service_unless_there_is_another():
    decoded = decode(service(clusterIP="junk"), "x")
    assert decoded.object is None
    assert decoded.key == ObjectKey("Service", "shop", "web")
    assert (decoded.problems[-1].field, decoded.problems[-1].fatal) == ("spec.clusterIP", True)
    obj, problems = read(service(clusterIP="junk", clusterIPs=["junk", "fd00::1"], ipFamilies=["IPv4", "IPv6"]))
    assert (obj.spec.cluster_ip, obj.spec.cluster_ips, obj.spec.ip_families) == ("fd00::1", ("fd00::1",), ("IPv6",))
    assert list(problems) == ["spec.clusterIPs[0]"]


@pytest.mark.parametrize("families", [["IPv5", "IPv6"], ["IPv6", "IPv4"], ["IPv6"], ["IPv4", "IPv6", "IPv4"]])
def test_ip_families_stay_in_step_with_cluster_ips(families):
    """The address of a family is found by the family's index."""
    obj, _ = read(service(clusterIPs=["10.96.0.10", "fd00::1"], ipFamilies=families))
    assert obj.spec.ip_families == ("IPv4", "IPv6")


# --- source ranges ---------------------------------------------------------------------------------------------------


def test_source_ranges_are_trimmed_and_lose_bad_entries():
    obj, problems = read(service(loadBalancerSourceRanges=[" 10.0.0.0/8", "10.1.0.0/16 ", "junk", "", "10.0.0.1"]))
    assert obj.spec.load_balancer_source_ranges == ("10.0.0.0/8", "10.1.0.0/16")
    assert problems["spec.loadBalancerSourceRanges[2]"] == "'junk' is not a CIDR"
    assert problems["spec.loadBalancerSourceRanges[4]"] == "'10.0.0.1' is not a CIDR"


# --- ports and affinity ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [0, -1, 65536, 10**30])
def test_port_numbers_out_of_range_cost_the_port(port):
    obj, problems = read(service(ports=[{"port": port}, {"name": "b", "port": 81}]))
    assert [entry.port for entry in obj.spec.ports] == [81]
    assert list(problems) == ["spec.ports[0].port"]
    obj, problems = read(endpoint_slice(ports=[{"port": port}, {"port": 65535}]))
    assert [entry.port for entry in obj.ports] == [65535]
    assert list(problems) == ["ports[0].port"]


def test_a_bad_node_port_costs_the_node_port_only():
    obj, problems = read(service(type="NodePort", ports=[{"port": 80, "nodePort": 70000}], healthCheckNodePort=-5))
    assert (obj.spec.ports[0].port, obj.spec.ports[0].node_port) == (80, None)
    assert obj.spec.health_check_node_port is None
    assert set(problems) == {"spec.ports[0].nodePort", "spec.healthCheckNodePort"}


@pytest.mark.parametrize("name", ["HTTP", "a_b", "-a", "a" * 64, 'x"; flush ruleset', "a\n"])
def test_bad_port_names_cost_the_port(name):
    assert read(service(ports=[{"name": name, "port": 80}]))[0].spec.ports == ()
    assert read(endpoint_slice(ports=[{"name": name, "port": 80}]))[0].ports == ()


def test_the_later_of_two_equal_ports_is_dropped_and_told():
    ports = [{"port": 80}, {"port": 80, "protocol": "UDP"}, {"name": "", "port": 81, "protocol": "TCP"}]
    obj, problems = read(service(ports=ports))
    assert [(port.port, port.protocol) for port in obj.spec.ports] == [(80, None), (80, "UDP")]
    assert list(problems) == ["spec.ports[2]"]


@pytest.mark.parametrize("seconds", [0, -1, 86401])
def test_affinity_out_of_range_falls_back_to_the_default(seconds):
    config = {"clientIP": {"timeoutSeconds": seconds}}
    obj, problems = read(service(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    assert obj.spec.session_affinity == "ClientIP"
    assert obj.spec.session_affinity_config is None
    assert list(problems) == ["spec.sessionAffinityConfig.clientIP.timeoutSeconds"]


def test_problems_name_the_entry_as_it_was_given_when_others_before_it_are_gone():
    endpoints = [5, {"addresses": [None, "10.0.0.1"]}, 6, {"addresses": [7, "junk", "10.0.0.2"]}]
    obj, problems = read(endpoint_slice(endpoints=endpoints))
    assert [entry.addresses for entry in obj.endpoints] == [("10.0.0.1",), ("10.0.0.2",)]
    assert problems["endpoints[3].addresses[1]"] == "'junk' is not an IP address"
    assert len(problems) == 5


# --- slices, nodes, the rest -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels", [None, {}, {"kubernetes.io/service-name": ""}, {"kubernetes.io/service-name": "A b"}]
)
def test_a_slice_that_names_no_service_is_delivered_and_told(labels):
    obj, problems = read(endpoint_slice(metadata={"name": "s", "labels": labels}))
    assert not (obj.metadata.labels and obj.metadata.labels.service_name)
    assert "metadata.labels[kubernetes.io/service-name]" in problems


def test_names_in_endpoints_are_checked():
    entry = {
        "addresses": ["10.0.0.1"],
        "nodeName": "N 1",
        "hints": {"forZones": [{"name": "a b"}, {"name": "a"}], "forNodes": [{"name": "N"}, {"name": "n"}]},
    }
    obj, problems = read(endpoint_slice(endpoints=[{"addresses": ["10.0.0.2"], "nodeName": ""}, entry]))
    first, second = obj.endpoints
    assert (first.node_name, second.node_name) == (None, None)
    assert [hint.name for hint in second.hints.for_zones] == ["a"]
    assert [hint.name for hint in second.hints.for_nodes] == ["n"]
    assert len(problems) == 3


def test_endpoints_of_host_names_are_of_no_use_and_left_out_silently():
    obj, problems = read(endpoint_slice(addressType="FQDN", endpoints=[{"addresses": ["x.example"]}]))
    assert (obj.endpoints, problems) == ((), {})


def test_a_second_address_is_kept_when_the_first_cannot_be_read():
    """The addresses of an endpoint are interchangeable."""
    obj, problems = read(endpoint_slice(endpoints=[{"addresses": ["junk", "10.0.0.2"]}]))
    assert obj.endpoints[0].addresses == ("10.0.0.2",)
    assert list(problems) == ["endpoints[0].addresses[0]"]


def test_nodes_lose_what_cannot_be_read():
    obj, problems = read(
        node(
            {"podCIDR": "10.01.0.0/24", "podCIDRs": ["10.1.0.0/24", "junk"], "taints": [{"key": "a b"}, {"key": "c"}]},
            {
                "addresses": [
                    {"type": "InternalIP", "address": "192.0.2.09"},
                    {"type": "InternalIP", "address": "host"},
                    {"type": "Hostname", "address": "a b"},
                    {"type": "Hostname", "address": "2001:db8::1"},
                    {"type": "", "address": "192.0.2.1"},
                ]
            },
            labels={"topology.kubernetes.io/zone": "a b"},
            uid='"',
        )
    )
    assert (obj.spec.pod_cidr, obj.spec.pod_cidrs) == ("10.1.0.0/24", ("10.1.0.0/24",))
    assert [taint.key for taint in obj.spec.taints] == ["c"]
    assert [entry.address for entry in obj.status.addresses] == ["192.0.2.9", "2001:db8::1"]
    assert (obj.metadata.labels.zone, obj.metadata.uid) == (None, None)
    assert len(problems) == 9
    obj, problems = read({**CLEAN[ServiceCIDR], "spec": {"cidrs": ["10.96.0.1/16", 5, "x"]}})
    assert obj.spec.cidrs == ("10.96.0.0/16",)
    assert list(problems) == ["spec.cidrs[1]", "spec.cidrs[0]", "spec.cidrs[2]"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("2024-05-01T12:00:00+02:00", "2024-05-01T10:00:00Z"),
        ("2024-05-01T10:00:00.5Z", "2024-05-01T10:00:00Z"),
        ("yesterday", None),
        ("2024-13-01T10:00:00+00:00", None),
        ("0001-01-01T00:00:00+01:00", None),
    ],
)
def test_times_are_brought_to_one_form(given, kept):
    """So that the older of two can be told by comparing text."""
    obj, problems = read({**service(), "metadata": {"name": "web", "creationTimestamp": given}})
    assert obj.metadata.creation_timestamp == kept
    assert bool(problems) == (kept is None)


@pytest.mark.parametrize("label", ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"])
def test_a_bad_label_that_takes_a_service_away_costs_the_service(label):
    raw = service()
    raw["metadata"]["labels"] = {label: "a b"}
    assert decode(raw, "x").object is None
    raw["metadata"]["labels"] = {label: ""}
    assert decode(raw, "x").object is not None
