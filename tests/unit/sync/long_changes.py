"""Changes that are too long for one message in a user namespace; each function makes one and says what came of it."""

import json
from collections.abc import Iterable
from typing import Any

from nodeproxy.kernel.errors import TooLongError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.settings import ProxySettings

from .support import NODE, Table, change, expected, gone, listing, service, sticky, view

V4 = Family.IPV4
ALWAYS = ProxySettings(cluster_cidrs=("10.244.0.0/16",), endpoint_chains="Always")


class Counting:
    """Counts the messages that were too long, from when it is made on."""

    def __init__(self, table: Table) -> None:
        self.too_long = 0
        nft = table.nft
        inner = nft._run_once

        def run_once(text: str) -> None:
            try:
                inner(text)
            except TooLongError:
                self.too_long += 1
                raise

        nft._run_once = run_once  # type: ignore[method-assign]
        assert isinstance(nft, Nft)


def slices(of: str, numbers: Iterable[int], size: int = 500) -> list[Change]:
    """Slices of a Service with an endpoint for each number, always the same number of slices."""
    every = [*numbers]
    return [
        change(
            "EndpointSlice",
            f"{of}-{part}",
            "ns",
            metadata={"labels": {"kubernetes.io/service-name": of}},
            addressType="IPv4",
            ports=[{"name": "", "port": 8080, "protocol": "TCP"}],
            endpoints=[
                {"addresses": [f"10.244.{number >> 8}.{number & 255}"], "nodeName": NODE}
                for number in every[part * size : (part + 1) * size]
            ],
        )
        for part in range(-(-len(every) // size))
    ]


def many(count: int) -> list[Change]:
    """Services with ten endpoints each."""
    found: list[Change] = []
    for number in range(count):
        name = f"s{number}"
        found.append(service(name, clusterIP=f"10.96.{number // 250}.{number % 250 + 1}"))
        found += slices(name, range(number * 10 + 1, number * 10 + 11))
    return found


def result(table: Table, counting: Counting) -> dict[str, Any]:
    """What the kernel holds, compared with what it should hold."""
    table.tidy()
    maps = [item["map"] for item in json.loads(listing(V4, "-j"))["nftables"] if "map" in item]
    return {
        "too long": counting.too_long,
        "warnings": table.journal.warned,
        "as planned": view(V4) == expected(table),
        "slots": sum(len(found.get("elem", ())) for found in maps if found["name"].startswith("endpoint")),
        "slots planned": sum(
            len(chain.slots) for rules in table.planner.plans.values() for chain in rules.balancing() if chain.slots
        ),
        "again": len(table.again().sync()),
    }


def affinity_with_many_endpoints_loses_one() -> dict[str, Any]:
    """All its rules change, in one group; a small service that is new comes with it."""
    table = Table(sticky("big", 1), *slices("big", range(1, 701)))
    table.sync()
    counting = Counting(table)
    table.sync(*slices("big", range(1, 700)), service("small", 2), *slices("small", [5, 6]))
    return result(table, counting)


def chains_of_many_endpoints_are_replaced() -> dict[str, Any]:
    """Each has a chain: as many are retired as are made."""
    table = Table(service("big", 1), *slices("big", range(1, 2501)), settings=ALWAYS)
    table.sync()
    counting = Counting(table)
    table.sync(*slices("big", range(4001, 7001)))
    return result(table, counting)


def service_with_chains_of_many_endpoints_is_deleted() -> dict[str, Any]:
    """All its chains are emptied, then deleted."""
    table = Table(service("big", 1), *slices("big", range(1, 2501)), settings=ALWAYS)
    table.sync()
    counting = Counting(table)
    table.sync(gone("Service", "big"))
    return result(table, counting)


def many_services_are_deleted() -> dict[str, Any]:
    """All in one change."""
    table = Table(*many(2000))
    table.sync()
    counting = Counting(table)
    table.sync(*(gone("Service", f"s{number}") for number in range(2000)))
    return result(table, counting)


def many_services_were_deleted_meanwhile() -> dict[str, Any]:
    """All are strays to the run that finds them."""
    table = Table(*many(1500))
    table.sync()
    later = table.again()
    counting = Counting(later)
    later.sync(*(gone("Service", f"s{number}") for number in range(1500)))
    return result(later, counting)


def service_with_many_endpoints_was_deleted_meanwhile() -> dict[str, Any]:
    """Its chains and affinity sets are strays, and chains refer to the sets."""
    table = Table(sticky("big", 1), *slices("big", range(1, 2001)))
    table.sync()
    later = table.again()
    counting = Counting(later)
    later.sync(gone("Service", "big"))
    return result(later, counting)
