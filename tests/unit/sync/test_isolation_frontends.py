"""A frontend that leaves a service port whose new rules are refused is its new owner's, whatever that has to offer."""

from pathlib import Path

import pytest

from .spoiling import spoil
from .support import V4, V6, Family, Table, endpoints, gone, service, view

pytestmark = pytest.mark.usefixtures("namespace")

ADDRESS = {V4: "198.51.100.7", V6: "2001:db8:1::7"}


def leads_to(name: str, text: str) -> list[object]:
    """The verdicts of those elements of a map whose key holds a text."""
    return [verdict for key, verdict in view(V4 if "." in text else V6)[f"map {name}"][1] if text in key]


@pytest.mark.parametrize("family", [V4, V6], ids=str)
@pytest.mark.parametrize("at_once", [True, False], ids=["in one change", "later"])
def test_frontend_that_moves_from_a_refused_service_to_one_without_endpoints_is_rejected(
    tmp_path: Path, family: Family, at_once: bool
) -> None:
    """It no longer leads to the pods of the old owner, whose other frontends go on as before."""
    address = ADDRESS[family]
    found = Table(
        service("spoilt", 1, family=family, externalIPs=[address]),
        endpoints("spoilt", [1, 2], family=family),
        service("empty", 2, family=family),
        service("other", 3, family=family),
        endpoints("other", [5], family=family),
        family=family,
        templates=spoil(tmp_path / "templates", "missing chain", {"spoilt"}, "chain.targets | length == 3"),
    )
    found.sync()
    assert found.proxier.refused() == {}
    refused = endpoints("spoilt", [1, 2, 3], family=family)
    moved = service("spoilt", 1, family=family), service("empty", 2, family=family, externalIPs=[address])
    if at_once:
        found.sync(refused, *moved)
    else:
        found.sync(refused)
        found.sync(*moved)
    for turn in range(2):  # a restart
        found.tidy()
        assert {name.service for name in found.proxier.refused()} == {"spoilt"}, turn
        assert leads_to("service-ips", address) == []
        assert leads_to("no-endpoint-services", address) != []
        own = {V4: "10.96.0.1", V6: "fd00:96::1"}[family]
        assert ["/spoilt/" in str(verdict) for verdict in leads_to("service-ips", f'"{own}"')] == [True]
        found = found.again()
        found.sync()
    found.sync(gone("Service", "empty"))
    found.tidy()
    assert leads_to("no-endpoint-services", address) == []


@pytest.mark.parametrize("family", [V4, V6], ids=str)
def test_frontend_that_moves_from_a_refused_service_without_endpoints_is_served(tmp_path: Path, family: Family) -> None:
    """Nothing says any more that it is to be rejected."""
    address = ADDRESS[family]
    found = Table(
        service("spoilt", 1, family=family, externalIPs=[address]),
        service("taker", 2, family=family),
        endpoints("taker", [4], family=family),
        family=family,
        templates=spoil(tmp_path / "templates", "missing chain", {"spoilt"}),
    )
    found.sync()
    assert leads_to("no-endpoint-services", address) != []
    found.sync(endpoints("spoilt", [1], family=family))
    assert {name.service for name in found.proxier.refused()} == {"spoilt"}
    found.sync(service("spoilt", 1, family=family), service("taker", 2, family=family, externalIPs=[address]))
    found.tidy()
    assert {name.service for name in found.proxier.refused()} == {"spoilt"}
    assert ["/taker/" in str(verdict) for verdict in leads_to("service-ips", address)] == [True]
    assert leads_to("no-endpoint-services", address) == []
