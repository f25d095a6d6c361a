"""``nodeproxy render``."""

import argparse
import sys

from nodeproxy.cli.flags import HelpFormatter, add_manifests, add_traffic, raw_config
from nodeproxy.config.settings import Config, ConfigError, validate
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.manifests import load
from nodeproxy.kube.objects import Node
from nodeproxy.kube.source import Change
from nodeproxy.model.node import node_view
from nodeproxy.ruleset.listing import list_table
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.store import ServiceKey, Store

_FAMILIES = {family.label: family for family in Family}


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "render",
        help="print the rules for a folder of manifests",
        description="Print the rules that `nodeproxy run` would load on a node, as nft prints and takes them\n"
        "(`nft -c -f FILE` checks them). The kernel is neither asked nor changed. NodePort addresses are chosen from\n"
        "those that the Node states.",
        formatter_class=HelpFormatter,
    )
    add_manifests(parser)
    parser.add_argument(
        "--family", choices=("all", *_FAMILIES), default="all", help="the table of one IP family, or both"
    )
    parser.add_argument(
        "--service",
        metavar="NAMESPACE/NAME",
        default=argparse.SUPPRESS,
        help="only what belongs to one Service (default: everything)",
    )
    add_traffic(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Print the rules.

    Returns:
        0, or 1 if the Service that was asked for is not served.

    Raises:
        ConfigError: a flag makes no sense.
        SourceError: the folder cannot be read.
        TemplateError: a template is broken.
    """
    config = validate(raw_config(arguments))
    wanted = _service_key(getattr(arguments, "service", ""))
    store = Store(lambda: None, lambda _: None)
    loaded = load(arguments.manifests)
    store.apply([Change(key, item) for key, item in loaded.objects.items()])
    for problem in loaded.problems:
        subject = f" {problem.subject}" if problem.subject else ""
        field = f" {problem.field}:" if problem.field else ""
        print(f"nodeproxy: {problem.origin}:{subject}{field} {problem.reason}", file=sys.stderr)
    families = list(Family) if arguments.family == "all" else [_FAMILIES[arguments.family]]
    shown = False
    for family in families:
        text = _render(store, family, config, arguments, wanted)
        shown = shown or bool(text)
        sys.stdout.write(text)
    if not shown:
        print(f"nodeproxy: no rules for Service {wanted} on this node", file=sys.stderr)
        return 1
    return 0


def _render(
    store: Store, family: Family, config: Config, arguments: argparse.Namespace, wanted: ServiceKey | None
) -> str:
    found = store.node(config.node_name)
    node = node_view(found, config.node_name, config.settings.bind_address)
    planner = Planner(family, config.settings, store.view, arguments.templates)
    planner.move(Surroundings(node, store.service_cidrs(family), _stated(found, config)))
    planner.update(store.everything())
    plans = [
        rules
        for name, rules in sorted(planner.plans.items())
        if wanted is None or (name.namespace, name.service) == wanted
    ]
    if wanted is not None and not plans:
        return ""
    return list_table(planner.renderer, planner.base, plans, whole=wanted is None)


def _stated(node: Node | None, config: Config) -> tuple[str, ...]:
    """The addresses that the Node states, and the one that the flags give."""
    entries = (node.status.addresses if node is not None and node.status is not None else None) or ()
    return tuple(entry.address for entry in entries if entry.type in {"InternalIP", "ExternalIP"}) + (
        (config.settings.bind_address,) if config.settings.bind_address else ()
    )


def _service_key(text: str) -> ServiceKey | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name:
        raise ConfigError([f"--service {text!r}: must be NAMESPACE/NAME"])
    return ServiceKey(namespace, name)
