"""The address plan of a test world, IPv4 and IPv6 side by side."""

from typing import Literal, NamedTuple

Family = Literal[4, 6]
FAMILIES: tuple[Family, Family] = (4, 6)


class Pair(NamedTuple):
    """An address, or a range, of each family."""

    v4: str
    v6: str

    def of(self, family: Family) -> str:
        """The one of a family."""
        return self.v4 if family == 4 else self.v6


CLUSTER = Pair("10.180.0.0/16", "fd00:10:180::/48")
"""All pods."""
SERVICES = Pair("172.30.0.0/16", "fd00:172:30::/112")
"""ClusterIPs."""
VIPS = Pair("192.0.2.0/24", "2001:db8:2::/64")
"""Load balancers' addresses."""
EXTERNAL_IPS = Pair("192.168.99.0/24", "2001:db8:99::/64")
"""Services' externalIPs."""
INSIDE = Pair("203.0.113.0/24", "2001:db8:203::/64")
"""Addresses of the client outside the cluster; tests use them as a Service's source range."""
OUTSIDE = Pair("198.51.100.0/24", "2001:db8:198::/64")
"""More addresses of the same client, for what a source range leaves out."""
UNDERLAY = Pair("192.168.0.0/24", "fd00:192:168::/64")
"""The network that nodes, router and client share."""
ROUTER = Pair("192.168.0.1", "fd00:192:168::1")
"""The nodes' default gateway. It knows no way to any range above, and says so."""
CLIENT = Pair("192.168.0.100", "fd00:192:168::100")
"""The client's own address in the underlay."""


def host(ranges: Pair, number: int) -> Pair:
    """The ``number``-th address of a range in each family (1..250).

    The last digits read the same in both families: host(SERVICES, 41) is 172.30.0.41 and fd00:172:30::41.
    """
    if not 1 <= number <= 250:
        msg = f"no host {number} in {ranges}"
        raise ValueError(msg)
    v4, _, _ = ranges.v4.rpartition(".0/")
    v6, _, _ = ranges.v6.partition("/")
    return Pair(f"{v4}.{number}", f"{v6}{number}")


def node_address(index: int) -> Pair:
    """Primary address of node ``index`` (0 is node-a)."""
    return host(UNDERLAY, index + 2)


def node_secondary(index: int) -> Pair:
    """A second address of node ``index``, which it never chooses as source by itself."""
    return host(UNDERLAY, index + 12)


def pod_range(index: int) -> Pair:
    """The pod CIDRs of node ``index``."""
    return Pair(f"10.180.{index + 1}.0/24", f"fd00:10:180:{index + 1}::/64")


def pod_gateway(index: int) -> Pair:
    """The address of node ``index`` on its pods' bridge."""
    return host(pod_range(index), 1)


def pod_address(index: int, number: int) -> Pair:
    """The address of pod ``number`` (from 1) on node ``index``."""
    return host(pod_range(index), number + 9)
