"""A load in which some Services are refused: the templates are a copy that spoils their rules."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import cluster
from nodeproxy.ruleset.render import TEMPLATES

_TEMPLATE = "balancing.nft.j2"
_BY_NFT = "meta l4proto tcp dnat to numgen random mod 2 map @no-such-map"
_BY_THE_KERNEL = "goto services"  # a loop, from the moment that an element leads there


def numbers(services: int, count: int) -> list[int]:
    """Which Services are spoilt: ``count`` of them, spread over all."""
    return [(index * 2 + 1) * services // (count * 2) for index in range(count)]


def templates(spoilt: Sequence[int]) -> "tempfile.TemporaryDirectory[str]":
    """A copy of the templates, in which nft refuses every other of some Services, and the kernel the rest."""
    folder = tempfile.TemporaryDirectory(prefix="nodeproxy-bench-")
    copy = Path(folder.name) / "templates"
    shutil.copytree(TEMPLATES, copy)
    path = copy / _TEMPLATE
    path.write_text(_spoiling(spoilt[::2], _BY_NFT) + _spoiling(spoilt[1::2], _BY_THE_KERNEL) + path.read_text())
    return folder


def _spoiling(spoilt: Sequence[int], statement: str) -> str:
    names = [cluster.name(number) for number in spoilt]
    return f'{{% if chain.name.split("/")[1] in {names!r} %}}\n{statement}\n{{% endif %}}\n'
