"""Service ports: what one Service asks for in one family."""

from typing import Any

import msgspec
import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import (
    ClientIPConfig,
    Labels,
    LoadBalancerIngress,
    LoadBalancerStatus,
    ObjectMeta,
    Service,
    ServicePortSpec,
    ServiceSpec,
    ServiceStatus,
    SessionAffinityConfig,
)
from nodeproxy.model.service import ServicePort, ServicePortName, service_ports, why_not_served

HTTP = ServicePortSpec(port=80, name="http", protocol="TCP")


def service(
    labels: Labels | None = None, ingress: tuple[LoadBalancerIngress, ...] | None = None, **spec: Any
) -> Service:
    spec = {"cluster_ip": "10.96.0.1", "ports": (HTTP,)} | spec
    return Service(
        metadata=ObjectMeta(name="web", namespace="shop", labels=labels, creation_timestamp="2024-01-01T00:00:00Z"),
        spec=ServiceSpec(**spec),
        status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress)),
    )


def only(made: Service, family: Family = Family.IPV4) -> ServicePort:
    (port,) = service_ports(made, family)
    return port


def test_a_plain_service_has_a_cluster_ip_and_nothing_else() -> None:
    assert only(service()) == ServicePort(
        name=ServicePortName("shop", "web", "http", "TCP"),
        family=Family.IPV4,
        created="2024-01-01T00:00:00Z",
        cluster_ip="10.96.0.1",
        port=80,
    )


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (service(cluster_ip="None", cluster_ips=("None",)), "headless"),
        (service(cluster_ip=None, cluster_ips=("None",)), "headless"),
        (service(cluster_ip=None), "no ClusterIP"),
        (service(cluster_ip=""), "no ClusterIP"),
        (service(type="ExternalName"), "type ExternalName"),
        (service(type="ExternalName", external_ips=("192.0.2.1",)), "type ExternalName"),
        (service(labels=Labels(service_proxy_name="other")), "service-proxy-name"),
        (service(labels=Labels(service_proxy_name="")), "service-proxy-name"),
    ],
)
def test_a_service_that_is_not_served_has_no_ports_and_a_reason(made: Service, reason: str) -> None:
    said = why_not_served(made)
    assert said is not None
    assert reason in said
    for family in Family:
        assert service_ports(made, family) == ()


def test_labels_without_a_proxy_name_do_not_matter() -> None:
    made = service(labels=Labels(headless=""))
    assert why_not_served(made) is None
    assert only(made).cluster_ip == "10.96.0.1"


V4, V6 = "10.96.0.1", "fd00::1"


@pytest.mark.parametrize(
    ("spec", "v4", "v6"),
    [
        ({"cluster_ip": V4}, V4, ""),
        ({"cluster_ip": V6}, "", V6),
        ({"cluster_ip": V4, "cluster_ips": (V4,), "ip_families": ("IPv4",)}, V4, ""),
        ({"cluster_ip": V4, "cluster_ips": (V4, V6), "ip_families": ("IPv4", "IPv6")}, V4, V6),
        ({"cluster_ip": V6, "cluster_ips": (V6, V4), "ip_families": ("IPv6", "IPv4")}, V4, V6),
        ({"cluster_ip": V6, "cluster_ips": (V6,), "ip_families": ("IPv4", "IPv6")}, "", V6),
        ({"cluster_ip": V4, "cluster_ips": (V4, V6), "ip_families": ("IPv6",)}, "", V6),
        ({"cluster_ip": V4, "cluster_ips": None, "ip_families": ("IPv4",)}, V4, ""),
        ({"cluster_ip": V4, "cluster_ips": (), "ip_families": ()}, V4, ""),
        ({"cluster_ip": None, "cluster_ips": (V4, V6)}, V4, V6),
    ],
)
def test_each_family_has_its_own_cluster_ip(spec: dict[str, Any], v4: str, v6: str) -> None:
    for family, expected in ((Family.IPV4, v4), (Family.IPV6, v6)):
        ports = service_ports(service(**spec), family)
        assert [port.cluster_ip for port in ports] == ([expected] if expected else [])


def test_every_list_holds_addresses_of_the_family_only_in_order_and_once() -> None:
    made = service(
        type="LoadBalancer",
        cluster_ips=(V4, V6),
        ip_families=("IPv4", "IPv6"),
        external_ips=("192.0.2.9", "2001:db8::9", "192.0.2.1", "192.0.2.9", ""),
        load_balancer_source_ranges=("10.0.0.0/8", "2001:db8::/32", "10.0.0.0/8"),
        ingress=(
            LoadBalancerIngress(ip="203.0.113.7"),
            LoadBalancerIngress(ip="2001:db8::7"),
            LoadBalancerIngress(ip="203.0.113.7"),
        ),
    )
    four, six = only(made), only(made, Family.IPV6)
    assert four.external_ips == ("192.0.2.9", "192.0.2.1")
    assert four.load_balancer_vips == ("203.0.113.7",)
    assert four.source_ranges == ("10.0.0.0/8",)
    assert six.external_ips == ("2001:db8::9",)
    assert six.load_balancer_vips == ("2001:db8::7",)
    assert six.source_ranges == ("2001:db8::/32",)


@pytest.mark.parametrize(
    ("ranges", "v4"),
    [(None, None), ((), ()), (("2001:db8::/32",), ()), (("10.0.0.0/8", "2001:db8::/32"), ("10.0.0.0/8",))],
)
def test_ranges_that_leave_nothing_of_a_family_close_it(
    ranges: tuple[str, ...] | None, v4: tuple[str, ...] | None
) -> None:
    assert only(service(load_balancer_source_ranges=ranges)).source_ranges == v4


@pytest.mark.parametrize(
    ("entry", "served"),
    [
        (LoadBalancerIngress(ip="203.0.113.1"), True),
        (LoadBalancerIngress(ip="203.0.113.1", ip_mode="VIP"), True),
        (LoadBalancerIngress(ip="203.0.113.1", ip_mode="Proxy"), False),
        (LoadBalancerIngress(ip="203.0.113.1", ip_mode="Future"), False),
        (LoadBalancerIngress(ip=""), False),
        (LoadBalancerIngress(), False),
    ],
)
def test_only_vips_of_the_load_balancer_are_served(entry: LoadBalancerIngress, served: bool) -> None:
    made = service(type="LoadBalancer", ingress=(entry, LoadBalancerIngress(ip="203.0.113.2")))
    assert only(made).load_balancer_vips == (("203.0.113.1",) if served else ()) + ("203.0.113.2",)


def test_addresses_and_node_ports_left_from_another_type_are_still_served() -> None:
    ports = (ServicePortSpec(port=80, node_port=30080),)
    port = only(service(type="ClusterIP", ports=ports, ingress=(LoadBalancerIngress(ip="203.0.113.1"),)))
    assert (port.node_port, port.load_balancer_vips) == (30080, ("203.0.113.1",))


@pytest.mark.parametrize(
    ("affinity", "config", "seconds"),
    [
        (None, None, 0),
        ("None", SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=5)), 0),
        ("ClientIP", None, 10800),
        ("ClientIP", SessionAffinityConfig(), 10800),
        ("ClientIP", SessionAffinityConfig(client_ip=ClientIPConfig()), 10800),
        ("ClientIP", SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=5)), 5),
    ],
)
def test_affinity_lasts_as_long_as_it_says_or_three_hours(
    affinity: str | None, config: SessionAffinityConfig | None, seconds: int
) -> None:
    for protocol in ("TCP", "UDP", "SCTP"):
        made = service(
            session_affinity=affinity,
            session_affinity_config=config,
            ports=(ServicePortSpec(port=53, protocol=protocol),),
        )
        assert only(made).affinity_seconds == seconds


@pytest.mark.parametrize(
    ("kind", "policy", "external_ips", "local"),
    [
        ("LoadBalancer", "Local", (), True),
        ("NodePort", "Local", (), True),
        ("ClusterIP", "Local", ("192.0.2.1",), True),
        ("ClusterIP", "Local", (), False),
        ("ClusterIP", "Local", None, False),
        ("LoadBalancer", "Cluster", (), False),
        ("LoadBalancer", None, (), False),
        ("ClusterIP", "Cluster", ("192.0.2.1",), False),
    ],
)
def test_external_policy_local_needs_external_traffic(
    kind: str, policy: str | None, external_ips: tuple[str, ...] | None, local: bool
) -> None:
    made = service(type=kind, external_traffic_policy=policy, external_ips=external_ips)
    assert only(made).external_policy_local is local


@pytest.mark.parametrize(("policy", "local"), [(None, False), ("Cluster", False), ("Local", True)])
def test_internal_policy_local_is_taken_over(policy: str | None, local: bool) -> None:
    assert only(service(internal_traffic_policy=policy)).internal_policy_local is local


@pytest.mark.parametrize(
    ("kind", "policy", "expected"),
    [("LoadBalancer", "Local", 32000), ("LoadBalancer", "Cluster", 0), ("NodePort", "Local", 0)],
)
def test_the_health_check_port_is_for_load_balancers_with_local_policy(kind: str, policy: str, expected: int) -> None:
    made = service(type=kind, external_traffic_policy=policy, health_check_node_port=32000)
    assert only(made).health_check_node_port == expected


def test_a_load_balancer_with_local_policy_may_lack_a_health_check_port() -> None:
    assert only(service(type="LoadBalancer", external_traffic_policy="Local")).health_check_node_port == 0


def test_ports_of_one_number_and_two_protocols_are_two_service_ports() -> None:
    ports = (
        ServicePortSpec(port=53, name="dns", protocol="UDP", node_port=30053),
        ServicePortSpec(port=53, name="dns-tcp", protocol="TCP", node_port=30053),
    )
    made = service_ports(service(ports=ports), Family.IPV4)
    assert [(p.name.port_name, p.name.protocol, p.port, p.node_port) for p in made] == [
        ("dns", "UDP", 53, 30053),
        ("dns-tcp", "TCP", 53, 30053),
    ]


def test_a_port_without_name_and_protocol_is_unnamed_tcp() -> None:
    port = only(service(ports=(ServicePortSpec(port=80),)))
    assert port.name == ServicePortName("shop", "web", "", "TCP")
    assert str(port.name) == "shop/web"


def test_of_two_ports_with_one_name_and_protocol_the_first_counts() -> None:
    ports = (ServicePortSpec(port=80, name="a"), ServicePortSpec(port=81, name="a", protocol="TCP"))
    assert only(service(ports=ports)).port == 80


def test_lists_may_be_missing_altogether() -> None:
    bare = Service(metadata=ObjectMeta(name="x", namespace="y"), spec=ServiceSpec(cluster_ip="10.96.0.1"))
    assert service_ports(bare, Family.IPV4) == ()
    with_port = msgspec.structs.replace(bare, spec=msgspec.structs.replace(bare.spec, ports=(HTTP,)))
    assert only(with_port).created == ""
    for status in (ServiceStatus(), ServiceStatus(load_balancer=LoadBalancerStatus())):
        assert only(msgspec.structs.replace(with_port, status=status)).load_balancer_vips == ()


def test_a_change_of_type_follows_from_the_new_object_alone() -> None:
    external = service(type="ExternalName", cluster_ip=None)
    assert service_ports(external, Family.IPV4) == ()
    assert only(service(type="ClusterIP")).cluster_ip == "10.96.0.1"


def test_the_service_is_not_changed() -> None:
    made = service(external_ips=("192.0.2.9", "192.0.2.1"), ports=(HTTP, ServicePortSpec(port=22, name="a")))
    before = msgspec.json.encode(made)
    service_ports(made, Family.IPV4)
    assert msgspec.json.encode(made) == before
