"""``nodeproxy render``."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from nodeproxy.cli.flags import Parser, add_manifests, add_traffic, raw_config
from nodeproxy.config.settings import Config, ConfigError, validate
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.manifests import load
from nodeproxy.kube.objects import Node
from nodeproxy.kube.source import Change
from nodeproxy.model.node import node_view
from nodeproxy.model.service import ServicePortName, why_not_served
from nodeproxy.ruleset.listing import list_table
from nodeproxy.sync.advice import Situation, advice
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.store import ServiceKey, Store

_FAMILIES = {family.label: family for family in Family}


def add_command(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "render",
        help="print the rules for a folder of manifests",
        description="Print the rules that `nodeproxy run` would load on a node, as nft takes them (`nft -c -f FILE`\n"
        "checks them). The kernel is neither asked nor changed. NodePort addresses are chosen from those that the\n"
        "Node states. What is not as one would think is said on standard error. Exit code 1: something was left out.",
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
        0, or 1 if the Service that was asked for is not served, or something of the input was left out.

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
        subject = f" {problem.subject}:" if problem.subject else ""
        field = f" {problem.field}" if problem.field else ""
        _say(f"{problem.origin}:{subject}{field} {problem.reason}" + (" (left out)" if problem.fatal else ""))
    if loaded.ignored:
        _say(f"ignored, being of other kinds: {_counts(loaded.ignored)}")
    found = store.node(config.node_name)
    node = node_view(found, config.node_name, config.settings.bind_address)
    stated = _stated(found, config)
    families = list(Family) if arguments.family == "all" else [_FAMILIES[arguments.family]]
    planners = [Planner(family, config.settings, store.view, arguments.templates) for family in families]
    served = False
    for planner in planners:
        planner.move(Surroundings(node, store.service_cidrs(planner.family), stated))
        planner.update(store.everything())
        plans = [rules for name, rules in sorted(planner.plans.items()) if wanted in {None, _key(name)}]
        if wanted is None or plans:
            served = True
            sys.stdout.write(list_table(planner.renderer, planner.base, plans, whole=wanted is None))
    for sentence in _remarks(planners, wanted):
        _say(sentence)
    if wanted is None:
        for sentence in advice(
            Situation(config.settings, node, found is not None, families, stated, store.service_count())
        ):
            _say(sentence)
    elif not served:
        service = store.view(wanted).service
        reason = why_not_served(service) if service is not None else "there is no such Service"
        _say(f"no rules for Service {wanted}: {reason or 'it has no port, or no ClusterIP of this family'}")
        return 1
    return 1 if any(not problem.harmless for problem in loaded.problems) else 0


def _counts(ignored: Counter[str]) -> str:
    """``3 apps/v1 Deployment, 1 v1 Secret``."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))


def _remarks(planners: list[Planner], wanted: ServiceKey | None) -> Iterator[str]:
    """What is not as one would think, for one Service or all."""
    for planner in planners:
        for clash in planner.clashes():
            for loser in clash.losers:
                if wanted in {None, _key(loser)}:
                    yield f"{loser} does not get {clash.frontend}: {clash.winner} has it"
        for name, others in sorted(planner.unmatched.items()):
            if wanted in {None, _key(name)}:
                other = ", ".join(others)
                yield f"{name} has no {planner.family.label} endpoints: its slices have some for other ports: {other}"


def _key(name: ServicePortName) -> ServiceKey:
    return ServiceKey(name.namespace, name.service)


def _say(sentence: str) -> None:
    print(f"nodeproxy: {sentence}", file=sys.stderr)


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
