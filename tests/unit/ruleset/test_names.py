"""Names of chains, sets and maps are those that kube-proxy gives, and always fit."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.model.service import ServicePortName
from nodeproxy.ruleset import names
from unit.ruleset.build import name

SERVICE_VECTORS = [
    (name("ns1/svc1"), "ULMVA6XW-ns1/svc1/tcp/p80"),
    (name("ns2/svc2"), "42NFTM6N-ns2/svc2/tcp/p80"),
    (name("ns3/svc3"), "4AT6LBPK-ns3/svc3/tcp/p80"),
    (name("ns4/svc4"), "LAUZTJTB-ns4/svc4/tcp/p80"),
    (name("ns5/svc5"), "HVFWP5L3-ns5/svc5/tcp/p80"),
    (name("ns6/svc6"), "Y3O5BOQO-ns6/svc6/tcp/p80"),
    (name("ns1/svc1", ""), "6KJ5P52A-ns1/svc1/tcp/"),
    (name("default/kubernetes", "https"), "2QRHZV4L-default/kubernetes/tcp/https"),
    (name("kube-system/kube-dns", "dns", "UDP"), "FY5PMXPG-kube-system/kube-dns/udp/dns"),
]

ENDPOINT_VECTORS = [
    ("ns1/svc1", "10.180.0.1", "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"),
    ("ns2/svc2", "10.180.0.2", "SGOXE6O3-ns2/svc2/tcp/p80__10.180.0.2/80"),
    ("ns3/svc3", "10.180.0.3", "UEIP74TE-ns3/svc3/tcp/p80__10.180.0.3/80"),
    ("ns4/svc4", "10.180.0.4", "UNZV3OEC-ns4/svc4/tcp/p80__10.180.0.4/80"),
    ("ns4/svc4", "10.180.0.5", "5RFCDDV7-ns4/svc4/tcp/p80__10.180.0.5/80"),
    ("ns5/svc5", "10.180.0.3", "GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80"),
    ("ns1/svc1", "fd00:10:180::1", "ZVRFLKHO-ns1/svc1/tcp/p80__fd00.10.180..1/80"),
]

LONGEST = ServicePortName("n" * 63, "s" * 63, "p" * 63, "SCTP")
LONGEST_ADDRESS = "fd00:1111:2222:3333:4444:5555:6666:7777"
PREFIXES = [names.SERVICE, names.LOCAL, names.EXTERNAL, names.FIREWALL, names.ENDPOINT, names.AFFINITY]


@pytest.mark.parametrize(("port_name", "base"), SERVICE_VECTORS)
def test_service_ports_have_kube_proxys_names(port_name: ServicePortName, base: str) -> None:
    assert names.service_base(port_name) == base


@pytest.mark.parametrize(("service", "address", "base"), ENDPOINT_VECTORS)
def test_endpoints_have_kube_proxys_names(service: str, address: str, base: str) -> None:
    """Colons, which nft would not take in a name, become dots."""
    assert names.endpoint_base(name(service), address, 80) == base


def test_unnamed_port_leaves_a_trailing_slash() -> None:
    assert names.service_base(name("a/b", "")).endswith("-a/b/tcp/")
    assert "-a/b/tcp/__10.0.0.1/80" in names.endpoint_base(name("a/b", ""), "10.0.0.1", 80)


def test_protocols_of_one_port_have_different_names() -> None:
    found = {names.service_base(name("a/b", "p", protocol)) for protocol in ("TCP", "UDP", "SCTP")}
    assert len(found) == 3
    assert sorted(base[9:] for base in found) == ["a/b/sctp/p", "a/b/tcp/p", "a/b/udp/p"]


def test_names_of_up_to_240_bytes_are_whole_and_longer_ones_end_in_dots() -> None:
    whole = "x" * (240 - 9)
    assert names.base_name(whole).endswith(f"-{whole}")
    assert len(names.base_name(whole)) == 240
    cut = names.base_name(whole + "x")
    assert len(cut) == 240
    assert cut.endswith("x...")
    assert cut[9:237] == "x" * 228


@given(st.binary(min_size=5, max_size=5))
def test_base32_of_five_bytes_is_that_of_rfc_4648(five: bytes) -> None:
    assert names.base32(five) == base64.b32encode(five).decode()


def test_hash_is_taken_before_cutting_so_cut_names_differ() -> None:
    one, other = names.base_name("x" * 300 + "1"), names.base_name("x" * 300 + "2")
    assert one[8:] == other[8:]
    assert one != other
    expected = base64.b32encode(hashlib.sha256(("x" * 300 + "1").encode()).digest())[:8].decode()
    assert one[:8] == expected


@pytest.mark.parametrize("prefix", PREFIXES)
def test_longest_names_fit_into_255_bytes(prefix: str) -> None:
    """A longer name would make the kernel refuse the whole transaction."""
    service = names.service_base(LONGEST)
    endpoint = names.endpoint_base(LONGEST, LONGEST_ADDRESS, 65535)
    assert len(service) == 9 + 63 + 1 + 63 + 1 + 4 + 1 + 63  # never cut
    assert not service.endswith("...")
    assert len(endpoint) == 240
    assert endpoint.endswith("...")
    assert len(prefix + service) <= 255
    assert len(prefix + endpoint) <= 255


def test_longest_endpoint_names_differ_though_they_are_cut_before_the_address() -> None:
    found = {
        names.endpoint_base(LONGEST, f"{LONGEST_ADDRESS[:-4]}{last:04x}", number)
        for last in range(0x1000, 0x1010)
        for number in (80, 65535)
    }
    assert len(found) == 32


@given(st.text(min_size=1, max_size=400))
def test_any_name_is_at_most_240_bytes_and_starts_with_its_hash(full: str) -> None:
    found = names.base_name(full)
    assert len(found.encode()) <= names.MAX_BASE
    digest = hashlib.sha256(full.encode()).digest()
    assert found.startswith(base64.b32encode(digest)[:8].decode() + "-")


def test_chains_of_service_ports_are_told_from_the_rest_by_their_slash() -> None:
    assert names.is_dynamic(names.SERVICE + names.service_base(name("a/b", "")))
    assert not names.is_dynamic("nat-prerouting")


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_each_protocol_has_slot_maps_of_its_own(protocol: str) -> None:
    prefix = names.endpoint_map(protocol)
    assert prefix == f"endpoints-{protocol}-"
    assert [known for known in names.SLOT_MAPS if known.startswith(prefix)] == [prefix]


def test_comments_keep_128_bytes() -> None:
    assert names.comment("c" * 128) == "c" * 128
    assert names.comment("c" * 129) == "c" * 128


def test_comment_is_cut_between_characters() -> None:
    assert names.comment("c" * 127 + "é") == "c" * 127
    assert names.comment("c" * 126 + "é") == "c" * 126 + "é"
    assert names.comment("€" * 43) == "€" * 42  # 42 * 3 = 126, and no part of the next


@given(st.text(max_size=300), st.integers(min_value=0, max_value=128))
def test_any_comment_is_a_prefix_within_the_limit(text: str, limit: int) -> None:
    found = names.comment(text, limit)
    assert text.startswith(found)
    assert len(found.encode()) <= limit
    following = text[len(found) : len(found) + 1]
    assert not following or len((found + following).encode()) > limit


def test_longest_service_port_name_makes_a_comment_that_fits() -> None:
    assert len(str(LONGEST)) == 191
    assert len(names.comment(str(LONGEST)).encode()) == 128
