"""Objects that are almost right are read, or reported; what is read, the real kernel accepts."""

import json
from contextlib import ExitStack
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from netns.namespaces import Namespace
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.decode import Decoded, decode_json
from nodeproxy.kube.objects import EndpointSlice, Service
from nodeproxy.kube.source import Change
from unit.kube.test_decode_properties import check
from unit.sync.support import Cluster, Table

from . import events, objects
from .course import SETTINGS, agree
from .events import Event, Scene
from .kernels import Kernel
from .mutations import mutated
from .objects import Raw
from .profiles import effort


@effort(300)
@given(mutated())
def test_object_that_is_almost_right_is_read_or_reported(raw: Raw) -> None:
    """It never raises, what comes out is valid, and nothing is left out without a word."""
    decoded = check(raw)
    if decoded.object is not None and not decoded.problems:
        assert _counts_read(decoded) == _counts_given(raw)
    try:
        encoded = json.dumps(raw, allow_nan=False).encode()
    except ValueError:  # infinity is not JSON
        return
    from_json = decode_json(encoded, "o")
    assert (from_json.object, from_json.key) == (decoded.object, decoded.key)


def _given(raw: Any, *path: str) -> list[Any]:
    for name in path:
        raw = raw.get(name) if isinstance(raw, dict) else None
    return raw if isinstance(raw, list) else []


def _counts_given(raw: Raw) -> list[int]:
    """How many entries there are in the lists that matter; blank texts say nothing."""
    if raw["kind"] == "Service":
        return [
            len(_given(raw, "spec", "ports")),
            *(len([*filter(None, _given(raw, "spec", name))]) for name in ("externalIPs", "clusterIPs")),
            len(_given(raw, "status", "loadBalancer", "ingress")),
        ]
    if raw["kind"] == "EndpointSlice" and raw.get("addressType") != "FQDN":  # names are no proxy's business
        return [len(_given(raw, "endpoints")), len(_given(raw, "ports"))]
    return []


def _counts_read(decoded: Decoded) -> list[int]:
    found = decoded.object
    if isinstance(found, Service):
        balancer = found.status.load_balancer if found.status else None
        spec = found.spec
        lists = (spec.ports, spec.external_ips, spec.cluster_ips, balancer.ingress if balancer else None)
        return [len(each or ()) for each in lists]
    if isinstance(found, EndpointSlice) and found.address_type != "FQDN":
        return [len(found.endpoints or ()), len(found.ports or ())]
    return []


@effort(150)
@given(
    st.one_of(objects.services(), objects.slices()),
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from(["cut", "put", "flip"]), st.integers(0, 255)), max_size=3),
)
def test_bytes_that_are_almost_json_are_read_or_reported(raw: Raw, spoilt: list[tuple[int, str, int]]) -> None:
    data = bytearray(json.dumps(raw).encode())
    for place, how, byte in spoilt:
        at = place % (len(data) or 1)
        match how:
            case "cut":
                del data[at : at + 1 + byte]
            case "put":
                data.insert(at, byte)
            case _ if data:
                data[at] ^= byte
    decoded = decode_json(bytes(data), "o")
    assert decoded.object is not None or decoded.ignored or any(problem.fatal for problem in decoded.problems)


@effort(20)
@given(events.beginnings, st.lists(mutated(), min_size=4, max_size=20))
def test_real_kernel_accepts_whatever_is_read_of_objects_that_are_almost_right(
    beginning: list[Event], raws: list[Raw]
) -> None:
    """In both families, on top of a cluster that is there already."""
    changes = []
    for raw in raws:
        decoded = check(raw)
        if decoded.object is not None and decoded.key is not None:
            changes.append(Change(decoded.key, decoded.object))
    namespace = Namespace("objects")
    with ExitStack() as stack:
        stack.callback(namespace.close)
        stack.enter_context(namespace.enter())
        for family in Family:
            kernel = Kernel(real=True)
            with kernel.used():
                table = Table(cluster=Cluster(*Scene().changes(beginning)), family=family, settings=SETTINGS[0])
                table.sync()
                table.move(*changes)
                table.sync()
                agree(table, kernel)
                table.tidy()
                agree(table, kernel)
