"""Flags that several commands share, with kube-proxy's names wherever it has one."""

import argparse
from pathlib import Path
from typing import Any

from nodeproxy.config.settings import RawConfig
from nodeproxy.ruleset.render import TEMPLATES

_DEFAULTS = RawConfig()


_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def parse_bool(text: str) -> bool:
    """A boolean as Go's flags take it; the flag alone means true.

    Raises:
        argparse.ArgumentTypeError: it is neither true nor false.
    """
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        msg = f"{text!r} is neither true nor false"
        raise argparse.ArgumentTypeError(msg) from None


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults where there is something to show, and keeps the description's lines."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default or action.default == 0 else action.help


class Parser(argparse.ArgumentParser):
    """Takes flags by their whole names only, and says of an unknown one how its own command is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As the class above does, but an unknown argument is an error here already."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def parse_level(text: str) -> int:
    """How much to log, as ``-v`` takes it.

    Raises:
        argparse.ArgumentTypeError: it is not a whole number from 0 on.
    """
    if not text.isascii() or not text.isdigit():
        msg = f"{text!r} is not a whole number from 0 on"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


_MANIFESTS = "folder of YAML or JSON manifests: Services, EndpointSlices, Nodes, ServiceCIDRs; others are ignored"


def add_manifests(parser: argparse.ArgumentParser) -> None:
    """``--manifests``, where nothing else says where objects come from."""
    parser.add_argument("--manifests", metavar="DIR", type=Path, required=True, help=_MANIFESTS)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Flags that say where objects come from: the API server, or a folder."""
    group = parser.add_argument_group(
        "where objects come from",
        "The API server, as a pod is told (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, service account), unless"
        " a flag says otherwise.",
    )
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="kubeconfig that says where the API server is, and as whom to ask",
    )
    group.add_argument(
        "--master",
        metavar="URL",
        default="",
        help="address of the API server, in place of the one in the kubeconfig or the environment",
    )
    group.add_argument("--manifests", metavar="DIR", type=Path, default=None, help=f"no API server, but a {_MANIFESTS}")


def add_traffic(parser: argparse.ArgumentParser) -> None:
    """Flags that shape the rules."""
    group = parser.add_argument_group("this node")
    group.add_argument(
        "--hostname-override",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="name of this Node, as endpoint slices have it in nodeName (default: the host name)",
    )
    group.add_argument(
        "--bind-address",
        metavar="IP",
        default=_DEFAULTS.bind_address,
        help="an address of this node to use in place of the one that its Node states",
    )
    group.add_argument(
        "--nodeport-addresses",
        metavar="LIST",
        default="",
        help="CIDRs and keywords (primary, all, localhost), separated by commas: which of the node's addresses"
        " accept NodePort traffic (default: primary)",
    )
    group = parser.add_argument_group("telling local pods' traffic")
    group.add_argument(
        "--detect-local-mode",
        metavar="MODE",
        default=_DEFAULTS.detect_local_mode,
        help="ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
    )
    group.add_argument(
        "--cluster-cidr",
        metavar="CIDR[,CIDR]",
        default=_DEFAULTS.cluster_cidr,
        help="the pods' addresses, one range or one of each family; without it, mode ClusterCIDR tells nothing,"
        " and traffic to ClusterIPs is not masqueraded",
    )
    group.add_argument(
        "--pod-bridge-interface", metavar="NAME", default="", help="the pods' bridge, for mode BridgeInterface"
    )
    group.add_argument(
        "--pod-interface-name-prefix",
        metavar="PREFIX",
        default="",
        help="how the pods' interfaces begin, for mode InterfaceNamePrefix",
    )
    group = parser.add_argument_group("rules")
    group.add_argument(
        "--masquerade-all",
        metavar="true|false",
        nargs="?",
        const=True,
        type=parse_bool,
        default=_DEFAULTS.masquerade_all,
        help="masquerade all traffic to ClusterIPs",
    )
    group.add_argument(
        "--masquerade-bit",
        "--iptables-masquerade-bit",
        metavar="BIT",
        type=int,
        default=_DEFAULTS.masquerade_bit,
        help="bit of the packet mark that asks for masquerading, 0 to 31",
    )
    group.add_argument(
        "--endpoint-chains",
        metavar="WHEN",
        default=_DEFAULTS.endpoint_chains,
        help="WhenAffinity: a chain per endpoint only where session affinity needs it; Always: for every endpoint,"
        " with a counter of new connections",
    )
    group.add_argument(
        "--templates", metavar="DIR", type=Path, default=TEMPLATES, help="run with a changed copy of the templates"
    )


def add_periods(parser: argparse.ArgumentParser) -> None:
    """Flags that say how often to sync."""
    group = parser.add_argument_group("timing")
    group.add_argument(
        "--sync-period",
        "--iptables-sync-period",
        metavar="DURATION",
        default=_DEFAULTS.sync_period,
        help="how long after a failure to try again",
    )
    group.add_argument(
        "--min-sync-period",
        "--iptables-min-sync-period",
        metavar="DURATION",
        default=_DEFAULTS.min_sync_period,
        help="least time between two syncs; the first one after a quiet time starts at once",
    )


def add_logging(parser: argparse.ArgumentParser) -> None:
    """Flags of the log."""
    group = parser.add_argument_group("log")
    group.add_argument(
        "--logging-format", choices=("text", "json"), default="text", help="how log lines look, on standard error"
    )
    group.add_argument(
        "-v",
        "--v",
        metavar="LEVEL",
        type=parse_level,
        default=0,
        help="how much to log; from 2 on also syncs that had nothing to do",
    )


def raw_config(arguments: argparse.Namespace) -> RawConfig:
    """The values that the flags gave."""
    listed = (text for text in arguments.nodeport_addresses.split(",") if text.strip())
    return RawConfig(
        hostname_override=getattr(arguments, "hostname_override", None),
        bind_address=arguments.bind_address,
        cluster_cidr=arguments.cluster_cidr,
        detect_local_mode=arguments.detect_local_mode,
        bridge_interface=arguments.pod_bridge_interface,
        interface_name_prefix=arguments.pod_interface_name_prefix,
        node_port_addresses=tuple(listed),
        masquerade_all=arguments.masquerade_all,
        masquerade_bit=arguments.masquerade_bit,
        sync_period=getattr(arguments, "sync_period", _DEFAULTS.sync_period),
        min_sync_period=getattr(arguments, "min_sync_period", _DEFAULTS.min_sync_period),
        endpoint_chains=arguments.endpoint_chains,
    )
