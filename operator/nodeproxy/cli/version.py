"""``nodeproxy version``."""

import argparse
import os
import platform

from nodeproxy import __version__
from nodeproxy.cli.flags import Parser
from nodeproxy.kernel.errors import KernelError
from nodeproxy.kernel.nft import Nft


def add_command(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "version",
        help="print versions",
        description="Print the versions of nodeproxy and of what it depends on.",
    )
    parser.set_defaults(command=command)


def command(_: argparse.Namespace) -> int:
    """Print the versions."""
    print(f"nodeproxy {__version__}")
    print(f"python {platform.python_version()}")
    print(f"linux {os.uname().release}")
    print(f"libnftables {_libnftables()}")
    return 0


def _libnftables() -> str:
    try:
        return Nft().version() or "unknown (CAP_NET_ADMIN is needed to ask)"
    except (KernelError, OSError) as error:
        return f"unknown ({error})"
