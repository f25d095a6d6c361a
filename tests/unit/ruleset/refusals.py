"""Operations that nftables refuses, and what has to be there for that.

Run as a module, in a network namespace of its own, it tries them on the real kernel, and prints as JSON, by name, what
the kernel made of each: ``refused`` is what it should say.
"""

import json
import sys
from typing import NamedTuple

from nodeproxy.kernel.errors import TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.ruleset.operations import (
    AddChain,
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    FlushChain,
    FreeSlots,
    Operation,
    Piece,
    RemoveChain,
    RemoveContainer,
    RemoveElement,
    Rule,
)
from nodeproxy.ruleset.rules import Element, Target
from unit.ruleset.build import renderer

KEY = ("10.0.0.1", "tcp", 80)
ELEMENT = AddElement("", Element("service-ips", KEY, "a/b"))
ONE, OTHER = Target("10.0.0.1", 1), Target("10.0.0.2", 2)
BASE: tuple[Operation, ...] = (
    AddContainer("", "map", "service-ips", "type ipv4_addr . inet_proto . inet_service : verdict"),
    AddContainer("", "set", "cluster-ips", "type ipv4_addr"),
    AddContainer("", "map", "endpoints-tcp-0", renderer().slot_map("endpoints-tcp-0", 2).body),
    AddChain("", "a/b"),
    AddChain("", "c/d"),
)


class Refusal(NamedTuple):
    """An operation that is refused after :data:`BASE` and ``setup``; ``why`` is what nftables says, or means."""

    name: str
    setup: tuple[Operation, ...]
    refused: Operation
    why: str


def rule(text: str) -> Rule:
    """A rule."""
    return Rule(text, "", "aaaaaaaa")


def _add(container: str, key: tuple[str | int, ...], verdict: str | None) -> AddElement:
    return AddElement("", Element(container, key, verdict))


_MISSING = "No such file"
REFUSALS = [
    Refusal("another verdict for a key", (ELEMENT,), _add("service-ips", KEY, "c/d"), "File exists"),
    Refusal("element to a missing chain", (), _add("service-ips", KEY, "no/such"), _MISSING),
    Refusal("element in a missing map", (), _add("nowhere", KEY, "a/b"), _MISSING),
    Refusal("verdict in a set", (), _add("cluster-ips", ("10.0.0.1",), "a/b"), "a verdict in a set"),
    Refusal("missing element", (), RemoveElement("", "service-ips", KEY), _MISSING),
    Refusal("rule to a missing chain", (), AddRule("", "a/b", rule("goto no/such")), _MISSING),
    Refusal("rule with a missing set", (), AddRule("", "a/b", rule("ip saddr @no-set drop")), _MISSING),
    Refusal("emptying a missing chain", (), FlushChain("", "no/such"), _MISSING),
    Refusal("deleting a missing chain", (), RemoveChain("", "no/such"), _MISSING),
    Refusal("deleting a chain that an element names", (ELEMENT,), RemoveChain("", "a/b"), "busy"),
    Refusal(
        "deleting a chain that a rule names", (AddRule("", "c/d", rule("goto a/b")),), RemoveChain("", "a/b"), "busy"
    ),
    Refusal(
        "deleting a chain that a slot names",
        (
            AddContainer("", "map", "endpoint-chains-0", renderer().slot_map("endpoint-chains-0", 2).body),
            FillSlots("", "endpoint-chains-0", 0, ("a/b",)),
        ),
        RemoveChain("", "a/b"),
        "busy",
    ),
    Refusal(
        "deleting a set that a rule uses",
        (AddRule("", "c/d", rule("ip daddr @cluster-ips drop")),),
        RemoveContainer("", "set", "cluster-ips"),
        "busy",
    ),
    Refusal("deleting a missing set", (), RemoveContainer("", "set", "nowhere"), _MISSING),
    Refusal("another type", (), AddContainer("", "set", "cluster-ips", "type ipv6_addr"), "File exists"),
    Refusal("slots of a missing map", (), FillSlots("", "endpoints-tcp-1", 0, (ONE,)), _MISSING),
    Refusal("a chain in a slot for addresses", (), FillSlots("", "endpoints-tcp-0", 0, ("a/b",)), "mismatch"),
    Refusal("more slots than there is room for", (), FillSlots("", "endpoints-tcp-0", 0, (ONE,) * 3), "Too many"),
    Refusal(
        "slots that are taken",
        (FillSlots("", "endpoints-tcp-0", 1, (ONE,)),),
        FillSlots("", "endpoints-tcp-0", 0, (OTHER, OTHER)),
        "taken",
    ),
    Refusal("slots that are empty already", (), FreeSlots("", "endpoints-tcp-0", 0, 1), _MISSING),
    Refusal(
        "another hook",
        (AddChain("", "base", "type filter hook input priority 0"),),
        AddChain("", "base", "type filter hook input priority 5"),
        "not supported",
    ),
]


def main() -> None:
    """Try all on the real kernel."""
    made, nft = renderer(), Nft()
    outcomes: dict[str, str] = {}
    for refusal in REFUSALS:
        nft.run(made.cleanup())
        try:
            nft.run(made.transaction(Piece([*BASE, *refusal.setup]).operations()))
        except TransactionError as error:
            outcomes[refusal.name] = f"the setup is refused already: {error}"
            continue
        try:
            nft.run(made.transaction([refusal.refused]))
            outcomes[refusal.name] = "taken"
        except TransactionError:
            outcomes[refusal.name] = "refused"
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
