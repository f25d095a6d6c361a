"""What the rules of each kind of service look like, for a person to read; and nft takes them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from unit.ruleset import namespaced
from unit.ruleset.examples import EXAMPLES, Example

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file.removesuffix(".nft"))


@every_example
def test_rules_are_as_recorded(example: Example, request: pytest.FixtureRequest) -> None:
    """If the rules are meant to change: ``pytest tests/unit/ruleset --update-golden``."""
    path = GOLDEN / example.file
    if request.config.getoption("--update-golden"):
        path.write_text(example.golden())
    assert example.golden() == path.read_text()


def test_every_golden_file_belongs_to_an_example() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {example.file for example in EXAMPLES}


@every_example
def test_nft_takes_the_golden_file(example: Example) -> None:
    """Checked alone and then loaded, on top of the base, and listed back with the same names and elements."""
    golden = (GOLDEN / example.file).read_text()
    base = Example("base", example.family, settings=example.settings).golden() if example.services else ""
    script = f"""
nft -c -f - <<'END'
{example.text(whole=True)}
END
nft -f - <<'END'
{base}{golden}
END
nft -j list table {example.renderer().ip} kube-proxy
"""
    listed = json.loads(namespaced.run(["sh", "-e"], stdin=script))["nftables"]
    chains = {entry["chain"]["name"] for entry in listed if "chain" in entry}
    planned = {chain.name for rules in example.plans() for chain in rules.chains}
    assert chains == planned | {chain.name for chain in example.base()[0].chains}
    assert {entry["rule"]["chain"] for entry in listed if "rule" in entry} == chains
    containers = [entry[kind] for entry in listed for kind in ("set", "map") if kind in entry]
    assert {found["name"]: len(found.get("elem", ())) for found in containers} == _sizes(example)


def _sizes(example: Example) -> dict[str, int]:
    """How many elements each set and map should have."""
    objects, node_port_ips = example.base()
    sizes = Counter({container.name: 0 for container in objects.containers})
    if node_port_ips:
        sizes["nodeport-ips"] = len(node_port_ips)
    for plan in example.plans():
        sizes.update(element.container for element in {*plan.elements, *plan.shared})
        sizes.update({affinity.name: 0 for affinity in plan.sets})
        for chain in plan.balancing():
            if chain.slots:
                sizes[f"{chain.slot_maps}0"] += len(chain.slots)
    return dict(sizes)
