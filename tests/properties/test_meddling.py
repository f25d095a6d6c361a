"""Somebody else takes things out of the table between changes: it comes back to what is planned, and nothing is left.

Deletions, since they are what a transaction that takes the table for known can trip over.
"""

import itertools
import json
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.settings import ProxySettings
from nodeproxy.ruleset.mirror import slot_map_number
from unit.sync.support import TABLE_FAMILY, Table, endpoints, expected, gone, run, service, sticky, view

from .profiles import FACTOR

CHANGES = 40 * FACTOR
SERVICES = 12
CIDRS = ("10.244.0.0/16", "fd00:244::/64")
WAYS = list(itertools.product(("WhenAffinity", "Always"), (True, False)))

pytestmark = pytest.mark.usefixtures("namespace")


def changes(chance: random.Random, family: Family) -> Iterator[Change]:
    """What happens to one Service."""
    number = chance.randrange(SERVICES)
    name, what = f"s{number}", chance.random()
    if what < 0.5:
        count = chance.choice([0, 1, 2, 3, 4, 5, 8, 20, 130])
        yield endpoints(name, chance.sample(range(1, 250), count), family=family)
    elif what < 0.6:
        yield gone("Service", name)
    else:
        # Now and then two claim the same ClusterIP.
        host = number + 1 if what < 0.95 else chance.randrange(1, SERVICES)
        if chance.random() < 0.5:
            yield sticky(name, host, seconds=chance.choice([10, 20, 30]), family=family)
        else:
            ports = [{"port": 80, "nodePort": 30000 + number}]
            yield service(name, host, family=family, type="NodePort", ports=ports)


def deletion(chance: random.Random, family: Family) -> str:
    """A statement that takes something out of the table; the kernel refuses some, and the table may be gone already."""
    where = f"{TABLE_FAMILY[family]} kube-proxy"
    listed = subprocess.run(
        ["nft", "-j", "list", "table", *where.split()], capture_output=True, text=True, timeout=60, check=False
    )
    objects = json.loads(listed.stdout)["nftables"] if listed.returncode == 0 else []
    rules = [item["rule"] for item in objects if "rule" in item]
    chains = [item["chain"]["name"] for item in objects if "chain" in item]
    sets = [(kind, item[kind]) for item in objects for kind in ("set", "map") if kind in item]
    filled = [(each["name"], each["elem"]) for _, each in sets if each.get("elem")]
    what = chance.choices(
        ["table", "chain", "rules", "rule", "set", "rules and set", "elements", "element"], [1, *[4] * 7]
    )
    if not (chains and rules and sets and filled) or what == ["table"]:
        return f"delete table {where}"
    chain, rule, (kind, some) = chance.choice(chains), chance.choice(rules), chance.choice(sets)
    name, content = chance.choice(filled)
    return chance.choice(
        [
            f"delete chain {where} {chain}",
            f"flush chain {where} {chain}",
            f"delete rule {where} {rule['chain']} handle {rule['handle']}",
            f"delete {kind} {where} {some['name']}",
            f"flush chain {where} {chain}; delete {kind} {where} {some['name']}",
            f"flush set {where} {name}",
            f"delete element {where} {name} {{ {_key(chance.choice(content))} }}",
        ]
    )


def _key(element: Any) -> str:
    """The key of an element that nft listed as JSON, as it is written."""
    if isinstance(element, list):
        return _key(element[0])
    if isinstance(element, dict):
        if "concat" in element:
            return " . ".join(map(_key, element["concat"]))
        return _key(element["elem"]["val"])
    return str(element)


def assert_as_planned(table: Table) -> None:
    """The table holds what it would after a first start, no slot or chain is left over, and a look finds nothing."""
    for _ in range(3):  # what a full sync finds out of use has to be deleted yet
        table.proxier.suspect(())
        table.sync()
        table.tidy()
    assert table.proxier.refused() == {}
    assert view(table.family) == expected(table)
    table.proxier.suspect(())
    assert table.sync() == []
    assert table.last.drift == ""
    objects = json.loads(run("nft", "-j", "list", "table", TABLE_FAMILY[table.family], "kube-proxy"))["nftables"]
    maps = [item["map"] for item in objects if "map" in item and slot_map_number(item["map"]["name"])]
    filled = {(each["name"], slot) for each in maps for slot, _ in each.get("elem", [])}
    state = table.proxier._state
    assert state is not None
    used = [use for use, _ in state.slots_in_use()]
    assert filled == {(use.map_name, slot) for use in used for slot in range(use.slots.offset, use.slots.end)}
    assert state.slots_taken() == len(filled)
    assert {each["name"] for each in maps} == {name for name, _ in filled}


@pytest.mark.parametrize("heard", [True, False], ids=["heard of", "not heard of"])
@pytest.mark.parametrize("family", Family, ids=lambda family: family.label)
def test_table_is_as_planned_whatever_is_taken_out_of_it_between_changes(
    family: Family, heard: bool, chance: random.Random
) -> None:
    """Each sync succeeds; one that is told of a deletion leaves nothing wrong, the others what a look finds."""
    chains, refill = chance.choice(WAYS)
    settings = [ProxySettings(cluster_cidrs=CIDRS, endpoint_chains=each) for each in ("WhenAffinity", "Always")]
    table = Table(family=family, settings=settings[chains == "Always"], refill=refill)
    table.sync()
    for step in range(CHANGES):
        statement = deletion(chance, family)
        print(statement)
        done = subprocess.run(["nft", statement], capture_output=True, timeout=60, check=False)
        if heard and done.returncode == 0:
            table.proxier.suspect(())
        some = [change for _ in range(chance.choice([1, 1, 1, 3])) for change in changes(chance, family)]
        if chance.random() < 0.05:
            table.cluster.apply(*some)
            after = Table(cluster=table.cluster, family=family, settings=chance.choice(settings), refill=refill)
            after.clock.time = table.clock.time
            table, some = after, []
        table.sync(*some)
        assert table.proxier.refused() == {}
        table.clock.time += chance.choice([0.0, 0.3, 1.1])
        if (due := table.proxier.tidy_due()) is not None and due <= table.clock.time:
            tidied = table.proxier.tidy()
            assert tidied or not heard
        if heard and step % 20 == 19:
            assert_as_planned(table)
    assert_as_planned(table)
