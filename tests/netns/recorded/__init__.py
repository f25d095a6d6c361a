"""The tables that kube-proxy itself left on node-a of a test world, and the objects that it had.

    recording("1.37").load(node.namespace)
    agent.folder.write("cluster", recorded_objects())

Behind the Services are pods of ``World(nodes=2, pods=3)`` that serve ``TARGET``. Clients of the Services ``sticky`` and
``ranges`` are remembered there: the first ``CLIENTS`` addresses of ``addresses.INSIDE``.

``make record-kube-proxy`` makes them anew (:mod:`cluster.record`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from netns import addresses as plan
from netns.addresses import Pair
from netns.manifests import Manifest
from netns.namespaces import Namespace

FOLDER = Path(__file__).parent
TARGET = 8080
"""The port that every pod behind a Service of the recordings serves."""
CLIENTS = 6
"""How many addresses outside of the cluster had used each Service with affinity."""
RANGES = (*plan.INSIDE, *plan.UNDERLAY, *plan.CLUSTER)
"""The source ranges of the Service ``balanced``."""

_REMOVALS = tuple(f"add table {family} kube-proxy\ndelete table {family} kube-proxy\n" for family in ("ip", "ip6"))

Release = Literal["1.31", "1.37"]
RELEASES: tuple[Release, ...] = ("1.31", "1.37")


@dataclass(frozen=True, slots=True)
class Recording:
    """What kube-proxy of a release left.

    Attributes:
        release: the release.
        tables: the table of each family, as ``nft list table`` printed it; ``nft -f`` loads it.
        about: the versions of what was at work.
    """

    release: Release
    tables: Pair
    about: dict[str, str]

    def load(self, namespace: Namespace) -> None:
        """Put both tables into a namespace, in place of any that are there, one transaction for each."""
        for removal, text in zip(_REMOVALS, self.tables, strict=True):
            namespace.nft(f"{removal}{text}")


def clear(namespace: Namespace) -> None:
    """Remove the tables of both families, if there are any."""
    namespace.nft("".join(_REMOVALS))


@cache
def recorded_objects() -> Sequence[Manifest]:
    """What kube-proxy had: Nodes, ServiceCIDRs, Services and EndpointSlices."""
    return tuple(yaml.safe_load_all((FOLDER / "objects.yaml").read_text()))


@cache
def recording(release: Release) -> Recording:
    """The recording of a release."""
    folder = FOLDER / release
    tables = Pair((folder / "ip.nft").read_text(), (folder / "ip6.nft").read_text())
    return Recording(release, tables, json.loads((folder / "about.json").read_text()))
