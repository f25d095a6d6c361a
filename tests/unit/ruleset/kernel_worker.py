"""Loads changes into a real kernel and compares what is read back with what is remembered.

Run as a module, in a network namespace of its own; argument: the family, 4 or 6. Prints one JSON object: what is wrong,
by case; an empty text where nothing is.
"""

import functools
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nodeproxy.kernel.errors import KernelError, TooLongError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.readback import read_back
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.objects import Protocol
from nodeproxy.model.node import LocalDetector
from nodeproxy.model.service import ServicePort, ServicePortName
from nodeproxy.ruleset.diff import BaseAndAddresses, TableState
from nodeproxy.ruleset.mirror import Found, slot_map_number
from nodeproxy.ruleset.operations import Piece
from nodeproxy.ruleset.render import Renderer
from nodeproxy.ruleset.rules import ServiceRules
from unit.ruleset.build import NODE, NODE_ADDRESS, V4, ep, planned, port, renderer
from unit.ruleset.examples import EXAMPLES
from unit.ruleset.pretend_kernel import PretendKernel

Plans = dict[ServicePortName, ServiceRules]
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")  # in the order of their numbers in the kernel
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP", "SCTP")


@dataclass(frozen=True)
class Case:
    """States of a table, one after the other: the settings it is rendered with, and the plans."""

    name: str
    states: tuple[tuple[dict[str, Any], Plans], ...]


class MismatchError(Exception):
    """The kernel holds something else than is remembered."""


def cases(family: Family) -> Iterator[Case]:
    """All cases of a family."""
    yield from _matrix(family)
    for example in EXAMPLES:
        if example.family is family:
            plans = {rules.name: rules for rules in example.plans()}
            states: tuple[tuple[dict[str, Any], Plans], ...] = (({}, {}), (example.settings, plans), ({}, {}))
            yield Case(f"example {example.name}", states)
    yield from _settings(family)
    yield from _extremes(family)


def _service(family: Family, protocol: Protocol = "TCP", **fields: Any) -> ServicePort:
    cluster_ip = "172.30.0.9" if family is V4 else "fd00:172:30::9"
    return port("shop/web", cluster_ip, protocol=protocol, **fields)


def _pods(family: Family, numbers: Iterable[int]) -> list[Any]:
    pods = []
    for number in numbers:
        address = f"10.180.{number >> 8}.{number & 255}" if family is V4 else f"fd00:10:180::{number:x}"
        pods.append(ep(address, NODE if number % 2 else "other"))
    return pods


def _case(name: str, rules: Iterable[ServiceRules]) -> Case:
    """A case of one service port under the usual settings."""
    return Case(name, tuple(({}, {each.name: each}) for each in rules))


def _matrix(family: Family) -> Iterator[Case]:
    """Endpoints x affinity x protocol x endpoint chains; each grows, changes its endpoints, and loses them all."""
    for count, affinity, protocol, chains in itertools.product(
        range(4), (0, 10800), PROTOCOLS, ("WhenAffinity", "Always")
    ):
        shape = _service(family, protocol, affinity_seconds=affinity, node_port=30080, external_policy_local=True)
        rules = [
            planned(shape, *_pods(family, numbers), endpoint_chains=chains)  # type: ignore[arg-type]
            for numbers in (range(1, count + 1), range(2, count + 3), range(1, count + 1), ())
        ]
        yield _case(f"{count} endpoints, {'affinity' if affinity else 'no affinity'}, {protocol}, {chains}", rules)


def _settings(family: Family) -> Iterator[Case]:
    """Other bases and rules, each reached from the usual ones and left for them again."""
    shape = _service(family, node_port=30080, external_policy_local=True, affinity_seconds=5)
    rules = planned(shape, *_pods(family, (1, 2)))
    plans = {rules.name: rules}
    cidrs = ("172.30.0.0/16", "172.31.0.0/24") if family is V4 else ("fd00:1::/112", "fd00:2::/112")
    settings: dict[str, dict[str, Any]] = {
        "masquerade all": {"masquerade_all": True},
        "another mark": {"masquerade_bit": 31},
        "no detector": {"detector": None},
        "a bridge": {"detector": LocalDetector("interface", "cni0")},
        "an interface prefix": {"detector": LocalDetector("interface-prefix", "veth")},
        "node ports everywhere": {"node_ports_everywhere": True},
        "no service CIDR": {"service_cidrs": ()},
        "two service CIDRs": {"service_cidrs": cidrs},
    }
    for name, values in settings.items():
        yield Case(name, (({}, plans), (values, plans), ({}, plans)))


def _extremes(family: Family) -> Iterator[Case]:
    longest = port(
        "n" * 63 + "/" + "s" * 63,
        "172.30.0.9" if family is V4 else "fd00:172:30::9",
        "SCTP",
        "p" * 63,
        affinity_seconds=86400,
        internal_policy_local=True,
        node_port=32767,
        external_policy_local=True,
    )
    beginning = "10.180.255.25" if family is V4 else "fd00:1111:2222:3333:4444:5555:6666:777"
    some = [ep(f"{beginning}{last}", number=65535) for last in (4, 5)]
    yield _case("longest names", [planned(longest, *found) for found in ((), some[:1], some, ())])
    yield _case(
        "more endpoints than a shared map holds",
        [planned(_service(family, "UDP"), *_pods(family, range(1, count + 1))) for count in (2, 1030, 1500, 3)],
    )
    vip = "1.2.3.4" if family is V4 else "2001:db8::4"
    overlapping = ("10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0") if family is V4 else ("fd00::/8", "fd00:1::/32", "::/0")
    yield _case(
        "source ranges that overlap, then let nobody in",
        [
            planned(_service(family, load_balancer_vips=(vip,), source_ranges=ranges), *_pods(family, (1,)))
            for ranges in (overlapping, (), overlapping[:1], None)
        ],
    )


@functools.cache
def _renderer(family: Family, settings: tuple[tuple[str, Any], ...] = ()) -> Renderer:
    """Compiling the templates takes longer than any case."""
    return renderer(family, **dict(settings))


def check(case: Case, family: Family, nft: Nft) -> None:
    """Go through the states of a case; compare after each, before and after tidying up.

    Raises:
        MismatchError: what is read back is not what is remembered, or would be corrected though it is right.
        KernelError: the kernel refused a transaction.
    """
    pretended = PretendKernel()
    state = TableState(None, _renderer(family))
    now, placed = 100.0, Plans()
    for settings, plans in case.states:
        made = _renderer(family, tuple(settings.items()))
        base = (made.base(), () if made.context.node_ports_everywhere else (NODE_ADDRESS[family],))
        state.renderer = made
        gone: dict[ServicePortName, ServiceRules | None] = dict.fromkeys(set(placed) - set(plans))
        _apply(state.change({**gone, **plans}, now, base), state, nft, pretended)
        _compare(_read(family, base), state, pretended.found())
        while (due := state.next_tidy()) is not None:
            now = due
            _apply(state.tidy(now), state, nft, pretended)
        found = _read(family, base)
        _compare(found, state, pretended.found())
        if list(TableState(found, made).correct(plans, now, base)):
            msg = "what was read back would be corrected, though it is right"
            raise MismatchError(msg)
        placed = plans


def _apply(pieces: Iterable[Piece], state: TableState, nft: Nft, pretended: PretendKernel) -> None:
    for piece in pieces:
        try:
            nft.run(state.renderer.transaction(piece.operations(), state.declared))
        except TooLongError:  # only in a user namespace, where a message must fit into the socket's buffer
            halves = piece.halves()
            if halves is None:
                raise
            _apply(halves, state, nft, pretended)
        else:
            pretended.apply(piece)


def _read(family: Family, base: BaseAndAddresses) -> Found:
    found = read_back(family, base[0])
    if found is None:
        msg = "there is no table"
        raise MismatchError(msg)
    return found


def _compare(found: Found, state: TableState, pretended: Found) -> None:
    for aspect, actual, expected in _aspects(found, state, pretended):
        if actual != expected:
            msg = f"{aspect}: {actual!r} was read back, {expected!r} is remembered"
            raise MismatchError(msg)


def _aspects(found: Found, state: TableState, pretended: Found) -> Iterator[tuple[str, object, object]]:
    actual, remembered = found.mirror, state.mirror
    yield "chains", actual.chains, remembered.chains
    words = {name: hook.split() for name, hook in remembered.hooks.items() if hook}
    yield "hooks", actual.hooks, {name: f"{w[1]} {HOOKS.index(w[3])} {w[5]}" for name, w in words.items()}
    yield "affinity", actual.affinity, remembered.affinity
    yield "kinds", actual.kinds, remembered.kinds
    yield "elements", actual.elements, remembered.elements
    yield "containers", set(actual.containers), set(remembered.containers)
    declared = {name: body for name, body in remembered.containers.items() if not slot_map_number(name)}
    yield "declarations", {name: actual.containers[name] for name in declared}, declared
    yield "uses", found.uses, pretended.uses
    yield "slots", found.slots, pretended.slots
    yield "capacities", found.capacities, pretended.capacities


def main() -> None:
    """Check all cases of the family that is asked for."""
    family = Family(int(sys.argv[1]))
    nft = Nft()
    findings: dict[str, str] = {}
    for case in cases(family):
        findings[case.name] = ""
        try:
            check(case, family, nft)
        except (MismatchError, KernelError, AssertionError) as error:
            findings[case.name] = f"{type(error).__name__}: {error}"
        nft.run(_renderer(family).cleanup())
    json.dump(findings, sys.stdout)


if __name__ == "__main__":
    main()
