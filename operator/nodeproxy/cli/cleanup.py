"""``nodeproxy cleanup``."""

import argparse

from nodeproxy.cli.flags import Parser
from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import check_steady, ipv6_usable
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import cleanup_text


def add_command(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "cleanup",
        help="remove the rules",
        description="Remove the tables kube-proxy of both IP families, and nothing else; twice is fine.\n"
        "Services do not work on this node afterwards, until a service proxy runs again. Stop the one that runs first\n"
        "(nodeproxy, kube-proxy): it puts its rules back at once.",
    )
    parser.set_defaults(command=command)


def command(_: argparse.Namespace) -> int:
    """Remove the tables.

    Raises:
        TransactionError: the kernel refused.
        PermissionDeniedError: CAP_NET_ADMIN is missing.
        UnsupportedError: libnftables crashes on what other programs keep in nftables.
    """
    nft = Nft()
    check_steady(nft.version(), cleanup_text(Family.IPV4))
    for family in Family:
        try:
            nft.run(cleanup_text(family))
        except TransactionError:
            if family is Family.IPV4 or ipv6_usable():
                raise
    print("The rules are removed. A proxy that still runs (nodeproxy, kube-proxy) puts its own back: stop it first.")
    return 0
