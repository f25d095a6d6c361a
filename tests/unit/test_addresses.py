"""Addresses and CIDRs: one canonical spelling, read as Kubernetes reads them."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeproxy.kube.addresses import Family, canonical_address, canonical_cidr, contains, family_of, network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        (" 10.0.0.1\n", "10.0.0.1"),
        ("010.0.0.1", "10.0.0.1"),
        ("10.096.011.012", "10.96.11.12"),
        ("000.00.0.000", "0.0.0.0"),  # noqa: S104 - read, not bound to
        ("100.100.0.10", "100.100.0.10"),
        ("FD00:0:0:0::0001", "fd00::1"),
        ("0:0:0:0:0:0:0:0", "::"),
        ("1:0:0:2:0:0:0:3", "1:0:0:2::3"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:0A00:0001", "10.0.0.1"),
        ("::ffff:010.096.011.012", "10.96.11.12"),
        ("64:ff9b::192.0.2.1", "64:ff9b::c000:201"),
        ("64:ff9b::192.000.02.1", "64:ff9b::c000:201"),
        ("::10.0.0.1", "::a00:1"),
    ],
)
def test_an_address_has_one_canonical_spelling(text: str, expected: str) -> None:
    assert canonical_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1",
        "1.2.3",
        "1.2.3.4.",
        "1.2.3.4.5",
        "256.0.0.1",
        "0x0a.0.0.1",
        "10.0.0.1/32",
        "10. 0.0.1",
        "\u0661.0.0.1",
        "1.2.3.4\0",
        "fe80::1%eth0",
        "::ffff:10.0.0.1%1",
        ":::",
        "12345::",
        "example.org",
        "0" * 200_000 + ".0.0.1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address"):
        canonical_address(text)


@given(st.ip_addresses())
def test_canonical_spellings_agree_with_the_standard_library(address: ipaddress.IPv4Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    expected = str(mapped or address)
    assert canonical_address(str(address)) == expected
    assert canonical_address(address.exploded) == expected
    assert canonical_address(expected) == expected


@given(st.ip_addresses(v=4), st.tuples(*[st.integers(0, 3)] * 4))
def test_leading_zeros_never_change_an_address(address: ipaddress.IPv4Address, zeros: tuple[int, ...]) -> None:
    padded = ".".join("0" * n + octet for n, octet in zip(zeros, str(address).split("."), strict=True))
    assert canonical_address(padded) == str(address)
    assert canonical_address("::ffff:" + padded) == str(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        (" 10.1.2.3/8 ", "10.0.0.0/8"),
        ("10.010.0.0/16", "10.10.0.0/16"),
        ("10.0.0.0/08", "10.0.0.0/8"),
        ("192.0.2.1/32", "192.0.2.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("FD00::1/64", "fd00::/64"),
        ("::/0", "::/0"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:10.0.0.0/24", "::/24"),
    ],
)
def test_a_cidr_has_one_canonical_spelling(text: str, expected: str) -> None:
    assert canonical_cidr(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "junk",
        "10.0.0.0",
        "10.0.0.0/",
        "/8",
        "10.0.0.0/33",
        "fd00::/129",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/\u00b2",
        "10.0.0.0/" + "9" * 10_000,
        "fe80::%eth0/64",
    ],
)
def test_what_is_no_cidr_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a CIDR"):
        canonical_cidr(text)


def test_the_family_is_told_from_the_canonical_text() -> None:
    assert family_of("10.0.0.1") is Family.IPV4
    assert family_of("10.0.0.0/8") is Family.IPV4
    assert family_of("fd00::1") is Family.IPV6
    assert family_of("::/0") is Family.IPV6
    assert [family.label for family in Family] == ["IPv4", "IPv6"]


@pytest.mark.parametrize(
    ("cidr", "address", "expected"),
    [
        ("10.0.0.0/8", "10.255.255.255", True),
        ("10.0.0.0/8", "11.0.0.0", False),
        ("fd00::/64", "fd00::1", True),
        ("fd00::/64", "fd00:0:0:1::", False),
        ("0.0.0.0/0", "fd00::1", False),
        ("::/0", "10.0.0.1", False),
    ],
)
def test_a_cidr_contains_addresses_of_its_own_family_only(cidr: str, address: str, expected: bool) -> None:
    assert contains(cidr, address) is expected


def test_a_network_is_read_from_a_canonical_cidr() -> None:
    assert network("10.0.0.0/8") == ipaddress.ip_network("10.0.0.0/8")
