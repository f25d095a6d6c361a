"""Connection tracking, which keeps sending packets of a known flow where its first one went."""

from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket

from netns.namespaces import Namespace


def forget_connections(namespace: Namespace) -> None:
    """Empty a namespace's connection tracking: whoever happens to use a port again is then a new client."""
    with namespace.enter(), NFCTSocket() as netlink:
        netlink.flush()
