"""From plain values, as flags and files hold them, to validated settings."""

import re
import socket
from dataclasses import dataclass
from typing import cast, get_args

from nodeproxy.config.durations import parse_duration
from nodeproxy.kube.addresses import canonical_address, canonical_cidr, family_of
from nodeproxy.model.settings import DetectLocalMode, EndpointChains, ProxySettings
from nodeproxy.sync.runner import Intervals

NODE_PORT_KEYWORDS = ("primary", "all", "localhost")
_MAX_PREFIX = 14  # nft takes 15 characters, the asterisk included
_INTERFACE = re.compile(r"[A-Za-z0-9_.@:-]{1,15}")


class ConfigError(Exception):
    """Values that make no sense together; the message names all of them, a line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class RawConfig:
    """Values as they were given, with kube-proxy's defaults.

    Attributes:
        hostname_override: the Node's name; None: this host's.
        bind_address: an address of this node that stands for the one its Node states; ``0.0.0.0`` or ``::``: none.
        cluster_cidr: pod ranges, one or one of each family, separated by a comma.
        detect_local_mode: how traffic from local pods is told.
        bridge_interface: for mode BridgeInterface.
        interface_name_prefix: for mode InterfaceNamePrefix.
        node_port_addresses: CIDRs and keywords.
        masquerade_all: masquerade all traffic to ClusterIPs.
        masquerade_bit: bit of the packet mark.
        sync_period: how long after a failure to try again.
        min_sync_period: least time between syncs.
        endpoint_chains: a chain per endpoint, always or where affinity needs it.
    """

    hostname_override: str | None = None
    bind_address: str = "0.0.0.0"  # noqa: S104  means: look at the Node
    cluster_cidr: str = ""
    detect_local_mode: str = "ClusterCIDR"
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = ()
    masquerade_all: bool = False
    masquerade_bit: int = 14
    sync_period: str = "30s"
    min_sync_period: str = "1s"
    endpoint_chains: str = "WhenAffinity"


@dataclass(frozen=True, slots=True)
class Config:
    """Validated settings.

    Attributes:
        node_name: the Node that this is.
        settings: decisions about traffic.
        intervals: seconds between syncs.
    """

    node_name: str
    settings: ProxySettings
    intervals: Intervals


def validate(raw: RawConfig) -> Config:
    """Check all values, and bring them into the form that the rest of the program uses.

    Raises:
        ConfigError: names everything that is wrong at once.
    """
    problems: list[str] = []
    node_name = _node_name(raw, problems)
    settings = ProxySettings(
        detect_local_mode=_detect_local_mode(raw, problems),
        cluster_cidrs=_cluster_cidrs(raw, problems),
        bridge_interface=raw.bridge_interface,
        interface_name_prefix=raw.interface_name_prefix,
        node_port_addresses=_node_port_addresses(raw, problems),
        bind_address=_bind_address(raw, problems),
        masquerade_all=raw.masquerade_all,
        masquerade_bit=raw.masquerade_bit,
        endpoint_chains=_endpoint_chains(raw, problems),
    )
    if not 0 <= raw.masquerade_bit <= 31:
        problems.append(f"--masquerade-bit {raw.masquerade_bit}: must be within 0 and 31")
    intervals = _intervals(raw, problems)
    if problems:
        raise ConfigError(problems)
    return Config(node_name, settings, intervals)


def _node_name(raw: RawConfig, problems: list[str]) -> str:
    given = socket.gethostname() if raw.hostname_override is None else raw.hostname_override
    name = given.strip().lower()
    if not name:
        problems.append("--hostname-override: must not be blank, and must be given where the host has no name")
    return name


def _detect_local_mode(raw: RawConfig, problems: list[str]) -> DetectLocalMode:
    mode = raw.detect_local_mode or "ClusterCIDR"
    if mode not in get_args(DetectLocalMode):
        problems.append(f"--detect-local-mode {mode!r}: must be one of {', '.join(get_args(DetectLocalMode))}")
        return "ClusterCIDR"
    for needed_by, name, value in (
        ("BridgeInterface", "--pod-bridge-interface", raw.bridge_interface),
        ("InterfaceNamePrefix", "--pod-interface-name-prefix", raw.interface_name_prefix),
    ):
        if not value and mode == needed_by:
            problems.append(f"{name}: must be given for --detect-local-mode {mode}")
        elif value and not _INTERFACE.fullmatch(value):
            problems.append(f"{name} {value!r}: is not the name of an interface")
        elif len(value) > _MAX_PREFIX and needed_by == "InterfaceNamePrefix":
            problems.append(f"{name} {value!r}: must have {_MAX_PREFIX} characters at most")
    return cast("DetectLocalMode", mode)


def _endpoint_chains(raw: RawConfig, problems: list[str]) -> EndpointChains:
    if raw.endpoint_chains not in get_args(EndpointChains):
        choices = ", ".join(get_args(EndpointChains))
        problems.append(f"--endpoint-chains {raw.endpoint_chains!r}: must be one of {choices}")
        return "WhenAffinity"
    return cast("EndpointChains", raw.endpoint_chains)


def _cluster_cidrs(raw: RawConfig, problems: list[str]) -> tuple[str, ...]:
    if not raw.cluster_cidr.strip():
        return ()
    cidrs = []
    for text in raw.cluster_cidr.split(","):
        try:
            cidrs.append(canonical_cidr(text))
        except ValueError as error:
            problems.append(f"--cluster-cidr: {error}")
            return ()
    if len({family_of(cidr) for cidr in cidrs}) != len(cidrs):
        problems.append(f"--cluster-cidr {raw.cluster_cidr!r}: must be one CIDR, or one of each family")
    return tuple(cidrs)


def _node_port_addresses(raw: RawConfig, problems: list[str]) -> tuple[str, ...]:
    found = []
    for text in raw.node_port_addresses:
        if text.strip() in NODE_PORT_KEYWORDS:
            found.append(text.strip())
            continue
        try:
            found.append(canonical_cidr(text))
        except ValueError as error:
            problems.append(f"--nodeport-addresses: {error}, nor one of {', '.join(NODE_PORT_KEYWORDS)}")
    return tuple(dict.fromkeys(found))


def _bind_address(raw: RawConfig, problems: list[str]) -> str:
    try:
        address = canonical_address(raw.bind_address)
    except ValueError as error:
        problems.append(f"--bind-address: {error}")
        return ""
    return "" if address in {"0.0.0.0", "::"} else address  # noqa: S104


def _intervals(raw: RawConfig, problems: list[str]) -> Intervals:
    found = {}
    for name, text in (("--sync-period", raw.sync_period), ("--min-sync-period", raw.min_sync_period)):
        try:
            found[name] = parse_duration(text)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if len(found) < 2:
        return Intervals()
    retry, minimum = found["--sync-period"], found["--min-sync-period"]
    if retry <= 0:
        problems.append(f"--sync-period {raw.sync_period}: must be positive")
    if minimum < 0:
        problems.append(f"--min-sync-period {raw.min_sync_period}: must not be negative")
    if minimum > retry > 0:
        problems.append(f"--min-sync-period {raw.min_sync_period}: must not exceed --sync-period, {raw.sync_period}")
    return Intervals(minimum=minimum, retry=retry)
