"""Services that a person wrote: what was hardly meant so is told, and never opens more than was asked for."""

import pytest

from nodeproxy.kube.decode import decode

from .support import read, service

RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"


# --- source ranges ---------------------------------------------------------------------------------------------------


def test_no_source_ranges_mean_open_and_none_that_can_be_read_closed():
    assert read(service(type="LoadBalancer"))[0].spec.load_balancer_source_ranges is None
    assert read(service(type="LoadBalancer", loadBalancerSourceRanges=[]))[0].spec.load_balancer_source_ranges is None
    obj, problems = read(service(type="LoadBalancer", loadBalancerSourceRanges=["junk"]))
    assert obj.spec.load_balancer_source_ranges == ()
    assert "closed to all" in problems["spec.loadBalancerSourceRanges"]


@pytest.mark.parametrize(
    ("vips", "ranges", "closed"),
    [
        (["192.0.2.7"], ["2001:db8::/32"], ["IPv4"]),
        (["2001:db8::7"], ["10.0.0.0/8", "172.16.0.0/12"], ["IPv6"]),
        (["192.0.2.7", "2001:db8::7"], ["10.0.0.0/8"], ["IPv6"]),
        (["192.0.2.7", "2001:db8::7"], ["2001:db8::/32"], ["IPv4"]),
        (["192.0.2.7", "2001:db8::7"], ["10.0.0.0/8", "junk"], ["IPv6"]),
        (["192.0.2.7", "2001:db8::7"], ["2001:db8::/32", "10.0.0.0/8"], []),
        (["192.0.2.7"], ["10.0.0.0/8"], []),
        (["192.0.2.7"], ["10.0.0.0/8", "2001:db8::/32"], []),
        ([None], ["2001:db8::/32"], []),
        ([], ["2001:db8::/32"], []),
    ],
)
def test_source_ranges_none_of_which_is_of_the_family_of_a_vip_are_kept_and_told(vips, ranges, closed):
    """Nobody may use that address then, which is hardly what was meant."""
    raw = service(type="LoadBalancer", loadBalancerSourceRanges=ranges)
    ingress = [{"ip": vip} if vip else {"hostname": "a.example"} for vip in vips]
    obj, problems = read({**raw, "status": {"loadBalancer": {"ingress": ingress}}})
    assert obj.spec.load_balancer_source_ranges == tuple(text for text in ranges if text != "junk")
    told = problems.get("spec.loadBalancerSourceRanges", "")
    assert told == "".join(
        f"no range is of {family}: the {family} load-balancer address is closed to all" for family in closed
    )


def test_source_ranges_of_the_old_annotation_are_told_by_its_name():
    raw = service(type="LoadBalancer")
    raw["metadata"]["annotations"] = {RANGES: "10.0.0.0/8"}
    _, problems = read({**raw, "status": {"loadBalancer": {"ingress": [{"ip": "2001:db8::7"}]}}})
    ((field, reason),) = problems.items()
    assert RANGES in field
    assert "no range is of IPv6" in reason


@pytest.mark.parametrize(
    ("annotation", "spec", "ranges"),
    [
        ("10.0.0.0/8, 192.0.2.0/24", {}, ("10.0.0.0/8", "192.0.2.0/24")),
        ("10.0.0.0/8", {"loadBalancerSourceRanges": ["192.0.2.0/24"]}, ("192.0.2.0/24",)),
        ("10.0.0.0/8", {"loadBalancerSourceRanges": []}, ("10.0.0.0/8",)),
        ("10.0.0.0/8", {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}, None),
        ("junk, ", {}, ()),
        (",", {}, ()),
        (" ", {}, None),
        ("", {}, None),
    ],
)
def test_the_old_annotation_counts_when_the_field_is_empty(annotation, spec, ranges):
    raw = service(**{"type": "LoadBalancer", **spec})
    raw["metadata"]["annotations"] = {RANGES: annotation, "other": "x"}
    obj, problems = read(raw)
    assert obj.spec.load_balancer_source_ranges == ranges
    assert obj.metadata.annotations.load_balancer_source_ranges is None
    assert bool(problems) == (ranges == ())


def test_an_annotation_that_is_no_text_does_not_open_the_service():
    raw = service(type="LoadBalancer")
    raw["metadata"]["annotations"] = {RANGES: ["10.0.0.0/8"]}
    assert decode(raw, "x").object is None


# --- ports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ports", [..., None, []])
def test_service_without_ports_is_told_once(ports):
    _, problems = read(service(ports=ports))
    assert problems == {"spec.ports": "is missing: the Service cannot be served"}


@pytest.mark.parametrize("ports", ["80", [{"port": "80"}], [{"port": "80"}, "http"], [{"port": 0}]])
def test_service_whose_ports_cannot_be_read_is_told_what_is_wrong_with_them_and_not_that_they_are_missing(ports):
    cleaned, problems = read(service(ports=ports))
    assert not cleaned.spec.ports
    assert problems
    assert not any("missing" in reason for reason in problems.values())


@pytest.mark.parametrize("spec", [{"clusterIP": "None"}, {"clusterIP": ..., "type": "ExternalName"}])
def test_service_that_needs_no_ports_is_not_told_of_them(spec):
    _, problems = read(service(ports=..., **spec))
    assert problems == {}


# --- node ports ------------------------------------------------------------------------------------------------------


def test_a_port_of_type_node_port_without_a_node_port_is_kept_and_told():
    """An API server assigns one; a manifest written by hand may lack it, and is reachable by ClusterIP only."""
    ports = [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 81}, {"name": "c", "port": 82}]
    ports[2]["nodePort"] = 0
    obj, problems = read(service(type="NodePort", ports=ports))
    assert [port.port for port in obj.spec.ports] == [80, 81, 82]
    assert problems == {
        "spec.ports[1].nodePort": "is missing: the port has no node port",
        "spec.ports[2].nodePort": "is missing: the port has no node port",
    }


@pytest.mark.parametrize("type_", ["ClusterIP", "LoadBalancer", "ExternalName"])
def test_a_port_of_another_type_needs_no_node_port(type_):
    """A load balancer may do without (KEP-1864)."""
    assert read(service(type=type_))[1] == {}
