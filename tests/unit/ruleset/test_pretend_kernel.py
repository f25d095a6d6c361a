"""The table that tests apply operations to refuses what nftables refuses."""

import functools
import json

import pytest

from nodeproxy.ruleset.operations import (
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    Operation,
    Piece,
    RemoveChain,
    RemoveElement,
    ReplaceTable,
)
from nodeproxy.ruleset.rules import Element
from unit.ruleset import namespaced
from unit.ruleset.pretend_kernel import PretendKernel, RefusedError
from unit.ruleset.refusals import BASE, ELEMENT, KEY, ONE, OTHER, REFUSALS, Refusal, rule

every_refusal = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)


def kernel(*operations: Operation) -> PretendKernel:
    made = PretendKernel()
    made.apply(Piece(list(operations)))
    return made


@functools.cache
def outcomes() -> dict[str, str]:
    """What the real kernel makes of each."""
    found: dict[str, str] = json.loads(namespaced.run_module("unit.ruleset.refusals"))
    return found


@every_refusal
def test_refuses_and_changes_nothing(refusal: Refusal) -> None:
    table = kernel(*BASE, *refusal.setup)
    before = table.copy()
    with pytest.raises(RefusedError, match=refusal.why):
        table.apply(Piece([AddElement("", Element("cluster-ips", ("10.9.9.9",))), refusal.refused]))
    assert table == before


@every_refusal
def test_real_kernel_refuses_it_too(refusal: Refusal) -> None:
    assert outcomes()[refusal.name] == "refused"


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
    assert table.chains == {}
    assert table.containers == {}


def test_two_chains_that_refer_to_each_other_go_together() -> None:
    table = kernel(*BASE, AddRule("", "a/b", rule("goto c/d")))
    table.apply(Piece([RemoveChain("", "c/d"), RemoveChain("", "a/b")]))
    assert table.chains == {}


def test_dispatch_to_an_empty_chain_or_slot_is_noticed() -> None:
    table = kernel(*BASE, ELEMENT)
    with pytest.raises(AssertionError, match="a/b, which is empty"):
        table.fates()
    draw = "dnat ip to numgen random mod 2 offset 0 map @endpoints-tcp-0"
    table.apply(Piece([FillSlots("", "endpoints-tcp-0", 0, (ONE,)), AddRule("", "a/b", rule(draw))]))
    with pytest.raises(AssertionError, match="slot 1 of endpoints-tcp-0, which is empty"):
        table.fates()
    table.apply(Piece([FillSlots("", "endpoints-tcp-0", 1, (OTHER,))]))
    assert table.fates() == {("service-ips", KEY): ("a/b", (("dnat ip to ", ONE, OTHER),))}
