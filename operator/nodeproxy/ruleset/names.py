"""Names of chains, sets and maps, and comments: the same as in kube-proxy's nftables mode.

A name is a prefix, eight characters of hash, and the readable name. nft takes names of up to 255 bytes and comments
of up to 128 (tried with 1.0.6 and 1.1.3); one byte more and the kernel or nft refuses the whole transaction.
"""

import hashlib
from functools import lru_cache

from nodeproxy.model.service import ServicePortName

MAX_BASE = 240  # leaves room for the longest prefix
MAX_COMMENT = 128

SERVICE = "service-"
LOCAL = "local-"
EXTERNAL = "external-"
FIREWALL = "firewall-"
ENDPOINT = "endpoint-"
AFFINITY = "affinity-"

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]  # what ten bits are in base32

ENDPOINT_CHAIN_MAP = "endpoint-chains-"
_ENDPOINT_MAP = "endpoints-"
SLOT_MAPS = (f"{_ENDPOINT_MAP}tcp-", f"{_ENDPOINT_MAP}udp-", f"{_ENDPOINT_MAP}sctp-", ENDPOINT_CHAIN_MAP)
"""Prefixes of all slot maps."""


@lru_cache(maxsize=8)
def endpoint_map(protocol: str) -> str:
    """Prefix of the slot maps that hold addresses and ports of a protocol (lower case).

    A map a protocol, because nft types the port: 1.0.6 refuses one map to rules of different protocols.
    """
    return f"{_ENDPOINT_MAP}{protocol}-"


def base32(five: bytes) -> str:
    """Base32 (RFC 4648) of five bytes: eight characters. Ten times as fast as the standard library's, of any length."""
    bits = int.from_bytes(five, "big")
    pairs = _PAIRS
    return pairs[bits >> 30] + pairs[bits >> 20 & 1023] + pairs[bits >> 10 & 1023] + pairs[bits & 1023]


def base_name(full: str) -> str:
    """The hash of ``full``, a dash and ``full``, cut to 240 bytes; the hash is taken before cutting."""
    name = f"{base32(hashlib.sha256(full.encode()).digest()[:5])}-{full}"
    if len(name) <= MAX_BASE and name.isascii():
        return name
    raw = name.encode()
    return name if len(raw) <= MAX_BASE else raw[: MAX_BASE - 3].decode(errors="ignore") + "..."


def service_base(name: ServicePortName) -> str:
    """Base of the chains of a service port: ``HASH-ns/svc/tcp/port``."""
    return base_name(f"{name.namespace}/{name.service}/{name.protocol.lower()}/{name.port_name}")


def endpoint_base(name: ServicePortName, address: str, port: int) -> str:
    """Base of an endpoint's chain and affinity set: ``HASH-ns/svc/tcp/port__10.0.0.1/80``."""
    readable = address.replace(":", ".")
    service = f"{name.namespace}/{name.service}/{name.protocol.lower()}/{name.port_name}"
    return base_name(f"{service}__{readable}/{port}")


def is_dynamic(chain: str) -> bool:
    """Whether a chain belongs to a service port (their names hold a slash, the others' do not)."""
    return "/" in chain


def comment(text: str, limit: int = MAX_COMMENT) -> str:
    """``text`` cut to ``limit`` bytes of UTF-8, never within a character."""
    raw = text.encode()
    return text if len(raw) <= limit else raw[:limit].decode(errors="ignore")
