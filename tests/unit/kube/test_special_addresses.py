"""Addresses that no endpoint or Service can have, as the API server's validation sees them, are left out and told."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.addresses import canonical_address, endpoint_address, unicast_address
from nodeproxy.kube.decode import decode

from .support import endpoint_slice, read, service

SPECIAL = {
    "0.0.0.0": "unspecified",  # noqa: S104
    "0.1.2.3": "unspecified",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "0:0:0:0:0:0:0:0": "unspecified",
    "::1": "loopback",
    "0:0::0001": "loopback",
    "ff02::1": "multicast",
    "FF05::2": "multicast",
    "ffff::1": "multicast",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:224.0.0.1": "multicast",
    "127.000.000.001": "loopback",
}
LINK_LOCAL = ("169.254.0.1", "169.254.255.255", "fe80::1", "FE80::1", "febf:ffff::1", "fe90::", "::ffff:169.254.1.1")
ORDINARY = (
    "1.0.0.1",
    "10.0.0.1",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.1",
    "192.0.2.255",
    "223.255.255.255",
    "::2",
    "::1:0",
    "ff::1",
    "ff0::1",
    "fe8::1",
    "fe7f::1",
    "fec0::1",
    "fd00::1",
    "feff::1",
    "::102:304",
)


def family_label(address: str) -> str:
    return "IPv6" if ":" in address and not address.startswith("::ffff:") else "IPv4"


@pytest.mark.parametrize(("address", "kind"), SPECIAL.items())
def test_special_address_is_refused_everywhere(address, kind):
    for parse in (endpoint_address, unicast_address):
        with pytest.raises(ValueError, match=f"is {kind}$"):
            parse(address)


@pytest.mark.parametrize("address", LINK_LOCAL)
def test_link_local_address_is_a_service_s_but_no_endpoint_s(address):
    """Some clusters serve DNS at such a ClusterIP on every node."""
    assert unicast_address(address) == address.lower().removeprefix("::ffff:")
    with pytest.raises(ValueError, match=r"is link-local$"):
        endpoint_address(address)


@pytest.mark.parametrize("address", ORDINARY)
def test_ordinary_address_is_taken_as_it_is(address):
    assert unicast_address(address) == endpoint_address(address) == address


octets = st.sampled_from([0, 1, 9, 126, 127, 128, 168, 169, 170, 223, 224, 239, 240, 254, 255, 256]) | st.integers(
    0, 255
)
nearly_addresses = st.one_of(
    st.lists(octets.map(str), min_size=3, max_size=5).map(".".join),
    st.tuples(octets, octets).map("{0[0]}.{0[1]}.2.3".format),
    st.text(alphabet="0123456789.: \0é", max_size=16),
    st.ip_addresses().map(str),
)


@given(nearly_addresses)
def test_address_is_judged_as_the_ipaddress_module_does(text):
    """What is quick for nearly all addresses gives no other answer than going the long way."""
    try:
        address = ipaddress.ip_address(canonical_address(text))
    except ValueError:
        address = None
    loose = address is None or address.is_unspecified or address.is_loopback or address.is_multicast
    if not loose and address.version == 4:
        loose = address.packed[0] == 0 or address.packed[0] >= 240
    strict = loose or address in ipaddress.ip_network("169.254.0.0/16" if address.version == 4 else "fe80::/10")
    for parse, refused in ((unicast_address, loose), (endpoint_address, strict)):
        if refused:
            with pytest.raises(ValueError, match=r" is "):
                parse(text)
        else:
            assert parse(text) == address.compressed


@pytest.mark.parametrize(("address", "kind"), [*SPECIAL.items(), *((address, "link-local") for address in LINK_LOCAL)])
def test_endpoint_with_a_special_address_is_left_out_alone(address, kind):
    family = family_label(address)
    good = {"IPv4": "10.0.0.1", "IPv6": "fd00::1"}[family]
    endpoints = [{"addresses": [address]}, {"addresses": [good]}]
    obj, problems = read(endpoint_slice(addressType=family, endpoints=endpoints))
    assert [endpoint.addresses for endpoint in obj.endpoints if endpoint.addresses] == [(good,)]
    assert problems["endpoints[0].addresses[0]"] == f"{address!r} is {kind}"


@pytest.mark.parametrize(("address", "kind"), [*SPECIAL.items(), *((address, "link-local") for address in LINK_LOCAL)])
def test_external_ip_that_is_special_is_left_out_alone(address, kind):
    obj, problems = read(service(externalIPs=["192.0.2.1", address, "192.0.2.2"]))
    assert obj.spec.external_ips == ("192.0.2.1", "192.0.2.2")
    assert problems == {"spec.externalIPs[1]": f"{address!r} is {kind}"}


@pytest.mark.parametrize(("address", "kind"), SPECIAL.items())
def test_load_balancer_address_that_is_special_is_left_out_alone(address, kind):
    raw = {
        **service(type="LoadBalancer"),
        "status": {"loadBalancer": {"ingress": [{"ip": address}, {"ip": "9.9.9.9"}]}},
    }
    obj, problems = read(raw)
    assert [entry.ip for entry in obj.status.load_balancer.ingress] == ["9.9.9.9"]
    assert problems == {"status.loadBalancer.ingress[0].ip": f"{address!r} is {kind}"}


@pytest.mark.parametrize("address", ["169.254.20.10", "fe80::10"])
def test_link_local_address_is_allowed_as_cluster_ip_and_load_balancer_address(address):
    raw = service(clusterIP=address, clusterIPs=[address], type="LoadBalancer")
    obj, problems = read({**raw, "status": {"loadBalancer": {"ingress": [{"ip": address}]}}})
    assert (obj.spec.cluster_ip, obj.spec.cluster_ips) == (address, (address,))
    assert obj.status.load_balancer.ingress[0].ip == address
    assert problems == {}


@pytest.mark.parametrize(("address", "kind"), SPECIAL.items())
@pytest.mark.parametrize("listed", [False, True], ids=["field", "list"])
def test_service_whose_only_cluster_ip_is_special_is_refused(address, kind, listed):
    """Its ClusterIP rules would take the node's own traffic; the reason says what the address is."""
    decoded = decode(service(clusterIP=address, **({"clusterIPs": [address]} if listed else {})), "x")
    assert decoded.object is None
    (fatal,) = [problem for problem in decoded.problems if problem.fatal]
    assert fatal.subject == "Service shop/web"
    assert fatal.field == "spec.clusterIP"
    assert fatal.reason == f"{address!r} is {kind}, and there is no other cluster IP"


def test_service_with_one_special_cluster_ip_of_two_is_served_at_the_other():
    obj, problems = read(service(clusterIP="127.0.0.1", clusterIPs=["127.0.0.1", "fd00::10"]))
    assert obj.spec.cluster_ips == ("fd00::10",)
    assert obj.spec.cluster_ip == "fd00::10"
    assert problems["spec.clusterIPs[0]"] == "'127.0.0.1' is loopback"
