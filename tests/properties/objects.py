"""Objects that hypothesis makes up: few names and addresses, so that they meet; some of them odd.

Whatever a Service or a slice may say is said by some of them: every type, policy and protocol, both families,
affinity, source ranges, hints and conditions, claims to what another one has, and fields that have to be left out.
"""

from typing import Any

from hypothesis import strategies as st

from nodeproxy.kube.decode import API_VERSIONS, decode
from nodeproxy.kube.source import Change
from unit.sync.support import NODE

Raw = dict[str, Any]
Strategy = st.SearchStrategy[Any]

SERVICES = (("ns", "a"), ("ns", "b"), ("ns", "c"), ("ns", "d"), ("other", "a"))
_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
SLICES = (*(("ns", f"s{number}") for number in range(8)), ("other", "s0"))
CIDRS = ("kubernetes", "more")

_cluster_ips = {"IPv4": [f"10.96.0.{n}" for n in range(1, 6)], "IPv6": [f"fd00:96::{n}" for n in range(1, 6)]}
_pods = {"IPv4": [f"10.244.0.{n}" for n in range(1, 8)], "IPv6": [f"fd00:244::{n}" for n in range(1, 8)]}
_outside = ["198.51.100.1", "198.51.100.2", "2001:db8:1::1", "2001:db8:1::2"]
_odd_addresses = [
    "192.0.2.1",  # the node's own
    "2001:db8::1",
    "10.96.0.1",  # somebody's ClusterIP
    "fd00:96::1",
    "010.96.0.2",
    "::ffff:198.51.100.1",
    "127.0.0.1",
    "fe80::1",
    "0.0.0.0",  # noqa: S104 - not bound to
    "",
    "example.org",
]
_ranges = [
    "203.0.113.0/24",
    "203.0.113.64/26",
    "203.0.113.77/24",
    "192.0.2.0/24",  # holds the node
    "0.0.0.0/0",
    "2001:db8:2::/48",
    "2001:db8::/64",  # holds the node
    "::/0",
    "::ffff:203.0.113.0/120",
    "203.0.113.7/33",
    "junk",
]
_created = ["2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", "2024-01-02T00:00:00+01:00", None, "yesterday"]
_policies = st.sampled_from(["Cluster", "Cluster", "Local", None])
_protocols = st.sampled_from(["TCP", "UDP", "SCTP", None])
_port_names = st.sampled_from(["", "a", "b", None, "Not A Label"])
_ports = [("", "TCP"), (None, None), ("a", "TCP"), ("b", "UDP"), ("b", "SCTP")]
_STATES = (*["unset"] * 3, *["ready"] * 4, "leaving", "starting", "gone", "partly")
_CONDITIONS = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "leaving": {"ready": False, "serving": True, "terminating": True},
    "starting": {"ready": False, "serving": False, "terminating": False},
    "gone": {"ready": False, "serving": False, "terminating": True},
    "partly": {"ready": False, "terminating": True},
}


def rarely(odd: Strategy, usual: Strategy) -> Strategy:
    """Mostly ``usual``, once in a while ``odd``."""
    return st.integers(0, 15).flatmap(lambda roll: odd if roll == 15 else usual)


def put(into: Raw, name: str, value: Any) -> None:
    """Say something, unless there is nothing to say."""
    if value is not None:
        into[name] = value


_addresses = rarely(st.sampled_from(_odd_addresses), st.sampled_from(_outside))
_some_addresses = st.one_of(st.just([]), st.lists(_addresses, max_size=3))
_some_ranges = st.one_of(st.just([]), st.lists(st.sampled_from(_ranges), min_size=1, max_size=3))


@st.composite
def _service_ports(draw: st.DrawFn) -> Raw:
    name, protocol = draw(rarely(st.tuples(_port_names, _protocols), st.sampled_from(_ports)))
    port: Raw = {"port": draw(rarely(st.sampled_from([0, 65535, 65536, 70_000]), st.sampled_from([80, 80, 81])))}
    put(port, "name", name)
    put(port, "protocol", protocol)
    put(port, "nodePort", draw(rarely(st.sampled_from([-1, 65536]), st.sampled_from([None, 0, 30080, 30081]))))
    return port


@st.composite
def services(draw: st.DrawFn, key: tuple[str, str] | None = None) -> Raw:
    """A Service, as parsed from JSON; ``key``: its namespace and name."""
    namespace, name = key or draw(st.sampled_from(SERVICES))
    families = draw(st.sampled_from([["IPv4", "IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"], ["IPv4"], ["IPv6"]]))
    addresses = [draw(st.sampled_from(_cluster_ips[family])) for family in families]
    kind = draw(rarely(st.sampled_from(["Headless", "ExternalName"]), st.sampled_from(_TYPES)))
    spec: Raw = {"type": "ClusterIP" if kind == "Headless" else kind}
    if kind == "Headless":
        spec["clusterIP"] = "None"
    elif kind != "ExternalName" or draw(st.booleans()):
        spec |= {"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": families}
    spec["ports"] = draw(st.lists(_service_ports(), min_size=1, max_size=3))
    spec["externalIPs"] = draw(_some_addresses)
    put(spec, "externalTrafficPolicy", draw(_policies))
    put(spec, "internalTrafficPolicy", draw(_policies))
    if draw(st.integers(0, 2)) == 0:
        spec["sessionAffinity"] = "ClientIP"
        seconds = draw(rarely(st.sampled_from([0, 86_401]), st.sampled_from([None, 1, 100, 86_400])))
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": seconds}}
    spec["loadBalancerSourceRanges"] = draw(_some_ranges)
    metadata: Raw = {"name": name, "namespace": namespace}
    put(metadata, "creationTimestamp", draw(st.sampled_from(_created)))
    if draw(st.integers(0, 15)) == 15:
        metadata["labels"] = {"service.kubernetes.io/service-proxy-name": draw(st.sampled_from(["", "other"]))}
    if draw(st.integers(0, 15)) == 15:
        ranges = ", ".join(draw(_some_ranges))
        metadata["annotations"] = {"service.beta.kubernetes.io/load-balancer-source-ranges": ranges}
    ingress = [
        {"ip": address, **({"ipMode": mode} if mode else {})}
        for address in draw(_some_addresses)
        for mode in [draw(st.sampled_from([None, None, "VIP", "Proxy", "Odd"]))]
    ]
    return _raw("Service", metadata, spec=spec, status={"loadBalancer": {"ingress": ingress}})


@st.composite
def _entries(draw: st.DrawFn, family: str) -> Raw:
    address = draw(rarely(st.sampled_from(_odd_addresses), st.sampled_from(_pods.get(family, ["example.org"]))))
    entry: Raw = {"addresses": [address]}
    state = draw(st.sampled_from(_STATES))
    if state in _CONDITIONS:
        entry["conditions"] = _CONDITIONS[state]
    put(entry, "nodeName", draw(st.sampled_from([NODE, NODE, "node-b", None])))
    hints: Raw = {}
    zone, host = draw(st.sampled_from([None, None, None, "zone-a", "zone-b"])), None
    if zone:
        hints["forZones"], host = [{"name": zone}], draw(st.sampled_from([None, NODE, "node-b"]))
    if host:
        hints["forNodes"] = [{"name": host}]
    put(entry, "hints", hints or None)
    return entry


@st.composite
def _slice_ports(draw: st.DrawFn) -> list[Raw]:
    """Mostly a number for each port that Services have; they may differ between slices."""
    ports = draw(rarely(st.lists(st.tuples(_port_names, _protocols), max_size=3), st.just(_ports)))
    number = draw(st.sampled_from([8080, 8080, 8081]))
    found: list[Raw] = []
    for name, protocol in ports:
        port: Raw = {}
        put(port, "port", draw(rarely(st.sampled_from([None, 0, 65_536, 8082]), st.just(number))))
        put(port, "name", name)
        put(port, "protocol", protocol)
        found.append(port)
    return found


@st.composite
def slices(draw: st.DrawFn, key: tuple[str, str] | None = None, family: str = "") -> Raw:
    """An EndpointSlice, as parsed from JSON; ``key``: its namespace and name.

    A slice of one name may be of another Service, or another family, the next time.
    """
    namespace, name = key or draw(st.sampled_from(SLICES))
    family = family or draw(rarely(st.just("FQDN"), st.sampled_from(["IPv4", "IPv6"])))
    labels: Raw = {
        "kubernetes.io/service-name": draw(st.sampled_from([of for where, of in SERVICES if where == namespace]))
    }
    oddity = draw(st.integers(0, 23))
    if oddity == 23:
        labels = {}
    elif oddity == 22:
        labels["service.kubernetes.io/headless"] = ""
    return _raw(
        "EndpointSlice",
        {"name": name, "namespace": namespace, "labels": labels},
        addressType=family,
        ports=draw(_slice_ports()),
        endpoints=draw(rarely(st.just([]), st.lists(_entries(family), min_size=1, max_size=6))),
    )


@st.composite
def nodes(draw: st.DrawFn) -> Raw:
    """The own Node, or another one; as parsed from JSON."""
    zone = draw(st.sampled_from([None, "zone-a", "zone-b"]))
    addresses = draw(
        st.sampled_from(
            [["192.0.2.1", "2001:db8::1"], ["2001:db8::1", "192.0.2.1"], ["203.0.113.70"], ["2001:db8:2::7"], []]
        )
    )
    metadata: Raw = {"name": draw(st.sampled_from([NODE, NODE, NODE, "node-b"]))}
    put(metadata, "labels", zone and {"topology.kubernetes.io/zone": zone})
    pod_cidrs = draw(st.sampled_from([[], ["10.244.0.0/24", "fd00:244::/80"], ["10.245.0.0/24"], ["junk"]]))
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    return _raw("Node", metadata, spec={"podCIDRs": pod_cidrs}, status=status)


@st.composite
def service_cidrs(draw: st.DrawFn) -> Raw:
    """A ServiceCIDR, as parsed from JSON."""
    cidrs = draw(st.lists(st.sampled_from(["10.96.0.0/16", "10.0.0.0/8", "fd00:96::/112", "junk"]), max_size=3))
    return _raw("ServiceCIDR", {"name": draw(st.sampled_from(CIDRS))}, spec={"cidrs": cidrs})


def _raw(kind: str, metadata: Raw, **fields: Any) -> Raw:
    return {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **fields}


def read(raw: Raw) -> Change | None:
    """An object as a source hands it over; None if nothing of it can be read, and a source keeps what was before."""
    decoded = decode(raw, "made up")
    if decoded.object is None or decoded.key is None:
        assert any(problem.fatal for problem in decoded.problems)
        return None
    return Change(decoded.key, decoded.object)
