"""What was planned is what the kernel holds: loaded through libnftables, read back through netlink, compared."""

import functools
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from nodeproxy.kube.addresses import Family
from unit.ruleset import namespaced
from unit.ruleset.kernel_worker import cases

CASES = [(family, case.name) for family in Family for case in cases(family)]


@functools.cache
def findings() -> dict[Family, dict[str, str]]:
    """What is wrong in each case; a process for each family goes through all of its cases."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(Family, pool.map(_findings_of, Family), strict=True))


def _findings_of(family: Family) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(namespaced.run_module("unit.ruleset.kernel_worker", str(int(family))))
    except AssertionError as error:  # kept, so that it is not run again for each case
        return defaultdict(functools.partial(str, error))
    return found


@pytest.mark.parametrize(("family", "case"), CASES, ids=[f"{family.label}, {case}" for family, case in CASES])
def test_kernel_holds_what_was_planned(family: Family, case: str) -> None:
    """After each of several changes in a row: maps are typed when they are made, and used when they are there."""
    assert findings()[family][case] == ""


def test_every_form_of_rule_is_among_the_cases() -> None:
    """Endpoints x affinity x protocol x endpoint chains, in both families, and every example."""
    for wanted in Family:
        names = [case for family, case in CASES if family is wanted]
        assert len(set(names)) == len(names)
        assert len([case for case in names if " endpoints, " in case]) == 4 * 2 * 3 * 2
        assert len([case for case in names if case.startswith("example ")]) == 14
