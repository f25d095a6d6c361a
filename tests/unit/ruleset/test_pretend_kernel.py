"""The table that tests apply operations to refuses what nftables refuses."""

import pytest

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
    ReplaceTable,
    Rule,
)
from nodeproxy.ruleset.rules import Element, Target
from unit.ruleset.pretend_kernel import PretendKernel, RefusedError

DISPATCH = AddContainer("", "map", "service-ips", "type x : verdict")
SET = AddContainer("", "set", "cluster-ips", "type x")
SLOTS = AddContainer("", "map", "endpoints-tcp-0", "typeof x ; size 2")
KEY = ("10.0.0.1", "tcp", 80)


def rule(text: str) -> Rule:
    return Rule(text, "", "digest")


def kernel(*operations: Operation) -> PretendKernel:
    made = PretendKernel()
    if operations:
        made.apply(Piece(list(operations)))
    return made


BASE = (DISPATCH, SET, SLOTS, AddChain("", "a/b"), AddChain("", "c/d"))
ELEMENT = AddElement("", Element("service-ips", KEY, "a/b"))


@pytest.mark.parametrize(
    ("setup", "refused", "why"),
    [
        ((ELEMENT,), AddElement("", Element("service-ips", KEY, "c/d")), "File exists"),
        ((), AddElement("", Element("service-ips", KEY, "no/such")), "No such file"),
        ((), AddElement("", Element("nowhere", KEY, "a/b")), "No such file"),
        ((), AddElement("", Element("cluster-ips", KEY, "a/b")), "a verdict in a set"),
        ((), RemoveElement("", "service-ips", KEY), "No such file"),
        ((), AddRule("", "no/such", rule("drop")), "No such file"),
        ((), AddRule("", "a/b", rule("goto no/such")), "No such file"),
        ((), AddRule("", "a/b", rule("ip saddr @no-set drop")), "No such file"),
        ((), FlushChain("", "no/such"), "No such file"),
        ((), RemoveChain("", "no/such"), "No such file"),
        ((ELEMENT,), RemoveChain("", "a/b"), "busy"),
        ((AddRule("", "c/d", rule("goto a/b")),), RemoveChain("", "a/b"), "busy"),
        ((AddRule("", "c/d", rule("ip daddr @cluster-ips drop")),), RemoveContainer("", "set", "cluster-ips"), "busy"),
        ((), RemoveContainer("", "map", "cluster-ips"), "No such file"),
        ((), RemoveContainer("", "set", "nowhere"), "No such file"),
        ((), AddContainer("", "set", "cluster-ips", "type y"), "File exists"),
        ((), FillSlots("", "endpoints-tcp-1", 0, (Target("10.0.0.1", 1),)), "No such file"),
        ((), FillSlots("", "endpoints-tcp-0", 0, ("a/b",)), "mismatch"),
        ((), FillSlots("", "endpoints-tcp-0", 0, (Target("10.0.0.1", 1),) * 3), "Too many"),
        (
            (FillSlots("", "endpoints-tcp-0", 1, (Target("10.0.0.1", 1),)),),
            FillSlots("", "endpoints-tcp-0", 0, (Target("10.0.0.1", 1),) * 2),
            "taken",
        ),
        ((), FreeSlots("", "endpoints-tcp-0", 0, 1), "No such file"),
        ((AddChain("", "base", "type nat"),), AddChain("", "base", "type filter"), "not supported"),
    ],
)
def test_refuses_what_nftables_refuses_and_changes_nothing(
    setup: tuple[Operation, ...], refused: Operation, why: str
) -> None:
    table = kernel(*BASE, *setup)
    before = table.copy()
    with pytest.raises(RefusedError, match=why):
        table.apply(Piece([AddChain("", "new/chain"), refused]))
    assert table == before


def test_takes_what_nftables_takes() -> None:
    table = kernel(*BASE, ELEMENT)
    table.apply(Piece([ELEMENT]))  # the same element once more
    change = AddElement("", Element("service-ips", KEY, "c/d"))
    table.apply(Piece([change, RemoveElement("", "service-ips", KEY), RemoveChain("", "a/b")]))
    assert table.elements["service-ips"] == {KEY: "c/d"}
    assert "a/b" not in table.chains
    affinity = [AddContainer("", "set", "affinity-x", f"flags dynamic ; timeout {seconds}s") for seconds in (5, 9)]
    table.apply(Piece([affinity[0]]))
    table.apply(Piece([affinity[1]]))
    assert table.affinity() == {"affinity-x": 9}
    table.apply(Piece([ReplaceTable()]))
    assert table.chains == table.containers == {}


def test_two_chains_that_refer_to_each_other_go_together() -> None:
    table = kernel(*BASE, AddRule("", "a/b", rule("goto c/d")))
    table.apply(Piece([RemoveChain("", "c/d"), RemoveChain("", "a/b")]))
    assert table.chains == {}


def test_dispatch_to_an_empty_chain_or_slot_is_noticed() -> None:
    table = kernel(*BASE, ELEMENT)
    with pytest.raises(AssertionError, match="a/b, which is empty"):
        table.fates()
    table.apply(
        Piece(
            [
                FillSlots("", "endpoints-tcp-0", 0, (Target("10.0.0.1", 1),)),
                AddRule("", "a/b", rule("dnat ip to numgen random mod 2 offset 0 map @endpoints-tcp-0")),
            ]
        )
    )
    with pytest.raises(AssertionError, match="slot 1 of endpoints-tcp-0, which is empty"):
        table.fates()
    table.apply(Piece([FillSlots("", "endpoints-tcp-0", 1, (Target("10.0.0.2", 1),))]))
    [(verdict, fate)] = table.fates().values()
    assert verdict == "a/b"
    assert fate == (("dnat ip to ", Target("10.0.0.1", 1), Target("10.0.0.2", 1)),)
