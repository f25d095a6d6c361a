"""IP addresses and CIDRs as Kubernetes reads them.

Kubernetes reads the octets of IPv4 addresses as decimal, leading zeros or not; the nft command reads a leading
zero as octal, and Python refuses it. So every address is parsed here, once, and only its canonical form goes on.
"""

import enum
import functools
import ipaddress
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton


class Family(enum.IntEnum):
    """An IP family. The value is the version in the header: 4 or 6."""

    IPV4 = 4
    IPV6 = 6

    @property
    def label(self) -> str:
        """The name used in the Kubernetes API and in metrics: ``IPv4`` or ``IPv6``."""
        return _LABELS[self]


_IPV4, _IPV6 = Family.IPV4, Family.IPV6  # a member of an enumeration takes several times as long to look up
_LABELS = {_IPV4: "IPv4", _IPV6: "IPv6"}

# Leading zeros of a decimal octet: the first (at the start, or after the colon of a mapped address), or a later one.
_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F.])0+(?=[0-9]+\.)|(?<=\.)0+(?=[0-9])")
_PERHAPS_SPECIAL = frozenset({0, 127, 169, *range(224, 256)})  # first octets
_MAX_LENGTH = 100  # no address is that long; a bound on the work that a line of zeros may cause
_MAPPED_BITS = 96  # length of ::ffff:0:0/96, which stands for all of IPv4 (RFC 4291, section 2.5.5.2)


def canonical_address(text: str) -> str:
    """The one spelling of an address that the rest of the program sees.

    Args:
        text: an address as an object holds it; blanks around it are ignored, ``010.0.0.1`` is ``10.0.0.1``,
            and ``::ffff:10.0.0.1`` is ``10.0.0.1``.

    Raises:
        ValueError: it is not an IP address, or it has a zone.
    """
    # The two calls to libc serve nearly every address, an order of magnitude faster than the ipaddress module.
    try:
        if ":" not in text:
            inet_pton(AF_INET, text)
            return text
        canonical = inet_ntop(AF_INET6, inet_pton(AF_INET6, text))
    except (OSError, ValueError):
        return _slow_canonical_address(text)
    return canonical if "." not in canonical else _slow_canonical_address(text)


def _parse(text: str) -> IPv4Address | IPv6Address:
    trimmed = text.strip()
    try:
        if "%" in trimmed or len(trimmed) > _MAX_LENGTH:
            raise ValueError
        return ipaddress.ip_address(_LEADING_ZEROS.sub("", trimmed))
    except ValueError:
        msg = f"{text!r} is not an IP address"
        raise ValueError(msg) from None


def _slow_canonical_address(text: str) -> str:
    address = _parse(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.compressed


def _is_ordinary(text: str) -> bool:
    """Whether it is the canonical spelling of an IPv4 address that is nothing special, as nearly every one is."""
    try:
        return ":" not in text and inet_pton(AF_INET, text)[0] not in _PERHAPS_SPECIAL
    except (OSError, ValueError):
        return False


def unicast_address(text: str) -> str:
    """:func:`canonical_address`, of an address that a Service may have.

    Raises:
        ValueError: it is no address, or one that no Service can have: unspecified, loopback, multicast or reserved.
    """
    if _is_ordinary(text):
        return text
    address = canonical_address(text)
    kind = _special(address)
    if kind and kind != "link-local":
        msg = f"{text!r} is {kind}"
        raise ValueError(msg)
    return address


def endpoint_address(text: str) -> str:
    """:func:`canonical_address`, of an address that an endpoint may have; the API server refuses the same.

    Raises:
        ValueError: it is no address, or unspecified, loopback, link-local, multicast or reserved.
    """
    if _is_ordinary(text):
        return text
    address = canonical_address(text)
    if kind := _special(address):
        msg = f"{text!r} is {kind}"
        raise ValueError(msg)
    return address


def _special(address: str) -> str:
    """What is special about a canonical address; empty if nothing is. Textual, since it is asked of every endpoint."""
    if ":" in address:
        if address in {"::", "::1"}:
            return "unspecified" if address == "::" else "loopback"
        if address.startswith("ff") and address.index(":") == 4:
            return "multicast"
        return "link-local" if address.startswith(("fe8", "fe9", "fea", "feb")) and address.index(":") == 4 else ""
    first = int(address[: address.index(".")])
    if first in {0, 127}:
        return "loopback" if first else "unspecified"
    if first >= 224:
        return "multicast" if first < 240 else "reserved"
    return "link-local" if address.startswith("169.254.") else ""


def canonical_cidr(text: str) -> str:
    """The one spelling of a CIDR: trimmed, leading zeros read as decimal, host bits cleared.

    ``::ffff:10.0.0.0/104`` is ``10.0.0.0/8``; a shorter prefix than 96 reaches beyond the mapped addresses, and so
    stays IPv6.

    Raises:
        ValueError: it is not an address, a slash and a prefix length.
    """
    address, slash, length = text.strip().partition("/")
    try:
        if not slash or not length.isascii() or not length.isdecimal():
            raise ValueError
        parsed, bits = _parse(address), int(length)
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None and bits >= _MAPPED_BITS:
            parsed, bits = parsed.ipv4_mapped, bits - _MAPPED_BITS
        return ipaddress.ip_network((parsed, bits), strict=False).compressed
    except ValueError:
        msg = f"{text!r} is not a CIDR"
        raise ValueError(msg) from None


def family_of(address_or_cidr: str) -> Family:
    """The family of an address or CIDR that is canonical already."""
    return _IPV6 if ":" in address_or_cidr else _IPV4


@functools.lru_cache(maxsize=4096)
def network(cidr: str) -> IPv4Network | IPv6Network:
    """A canonical CIDR as a network, for questions of containment."""
    return ipaddress.ip_network(cidr)


def contains(cidr: str, address: str) -> bool:
    """Whether a canonical CIDR contains a canonical address; of another family it does not."""
    return family_of(cidr) == family_of(address) and ipaddress.ip_address(address) in network(cidr)
