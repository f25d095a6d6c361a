"""Copies of the templates that spoil the rules of chosen Services, each in a way that nft or the kernel refuses."""

import shutil
from collections.abc import Collection
from pathlib import Path

from nodeproxy.ruleset.render import TEMPLATES

RULES = {
    "unknown statement": "no such words",
    "missing chain": "goto nowhere",
    "missing set": "ip saddr @nowhere accept",
    "incomplete statement": "meta mark { 1, 2",
    "statement for another hook": "masquerade",
    "value out of range": "meta mark 0x1ffffffff accept",
    "value that is not there": "{{ no_such_value }}",
}
"""Lines for a chain's template, none of which is taken."""

ELEMENTS = {
    "comment that is too long": '{{ word.element(o.element.key, "x" * 200, o.element.verdict) }}',
    "element that leads nowhere": "{{ word.element(o.element.key, o.element.comment, 'nowhere') }}",
    "element that is no element": "nonsense . nonsense",
    "element that cannot be spelled": "{{ no_such_value }}",
}
"""Elements for the template of transactions, none of which is taken."""

WAYS = (*RULES, *ELEMENTS)
_ELEMENT = """{{ element.key | join(" . ") }}{% if element.comment %} comment "{{ element.comment }}"{% endif -%}
{%- if element.verdict == "drop" %} : drop{% elif element.verdict %} : goto {{ element.verdict }}{% endif %}"""


def spoil(folder: Path, way: str, names: Collection[str], when: str = "true") -> Path:
    """Make a copy of the templates that spoils Services, or make it anew.

    Args:
        folder: where; made if it is not there.
        way: one of :data:`WAYS`.
        names: the Services, without their namespace.
        when: a condition in the template, besides.
    """
    mend(folder)
    listed = "[" + ", ".join(f'"{name}"' for name in names) + "]"
    if way in RULES:
        balancing = folder / "balancing.nft.j2"
        guard = f"{{%- if chain.name.split('/')[1] in {listed} and {when} %}}"
        balancing.write_text(f"{balancing.read_text()}\n{guard}\n{RULES[way]}\n{{%- endif %}}\n")
        return folder
    transaction = folder / "transaction.nft.j2"
    text = transaction.read_text()
    assert text.count(_ELEMENT) == 1
    # The elements of ClusterIPs and of hairpin connections are left as they are: they may be others' as well.
    chosen = f"o.owner.split('/')[-1] in {listed} and o.element.container == 'service-ips' and {when}"
    guard = f"{{% if {chosen} %}}"
    transaction.write_text(text.replace(_ELEMENT, f"{guard}{ELEMENTS[way]}{{% else %}}{_ELEMENT}{{% endif %}}"))
    return folder


def mend(folder: Path) -> None:
    """Make the copy as the templates are."""
    shutil.copytree(TEMPLATES, folder, dirs_exist_ok=True)
