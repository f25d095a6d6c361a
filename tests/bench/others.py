"""The same cluster in kube-proxy's layout: an anonymous map for each Service."""

import time
from collections.abc import Iterator
from typing import Any

from bench import cluster, memory
from layouts import kube_proxy
from layouts.services import Endpoint, Node, Service
from nodeproxy.kernel.nft import Nft

_PAUSE = 0.05  # seconds between changes
NODE = Node(address="192.0.2.1", pod_range=cluster.CLUSTER_CIDR, service_ranges=("10.96.0.0/12",))


def anonymous(services: int, endpoints: int = 10, piece: int = 0, changes: int = 0) -> dict[str, Any]:
    """Load it, then change Services one by one. No time but nft's is counted.

    Args:
        services: how many Services.
        endpoints: how many endpoints each has.
        piece: how many Services a transaction holds; 0: all of them.
        changes: how many Services are changed.
    """
    nft = Nft()
    every = [described(number, endpoints) for number in range(services)]
    nft.run("add table ip bench-warm-up; delete table ip bench-warm-up")
    texts = (
        list(kube_proxy.pieces(4, every, piece, node=NODE)) if piece else [kube_proxy.table_text(4, every, node=NODE)]
    )
    memory.trim()
    before = memory.resident()
    memory.reset_peak()
    taken = [_timed(nft, text) for text in texts]
    figures: dict[str, Any] = {"apply s": sum(seconds for seconds, _ in taken), "transactions": len(texts)}
    figures["apply CPU s"] = sum(cpu for _, cpu in taken)
    figures |= {"added KiB": memory.peak() - before, "text characters": sum(map(len, texts))}
    spent: list[tuple[float, float]] = []
    for number in range(changes):
        text = "\n".join(_change(described(number * 7919 % services, endpoints, version=number + 1)))
        time.sleep(_PAUSE)
        spent.append(_timed(nft, text))
    if spent:
        figures["change kernel s"] = [seconds for seconds, _ in spent]
        figures["change kernel CPU s"] = [cpu for _, cpu in spent]
    return figures


def described(number: int, endpoints: int, version: int = 0) -> Service:
    """A Service and its endpoints, as the layout wants them."""
    return Service(
        cluster.namespace(number),
        cluster.name(number),
        cluster.cluster_ip(number),
        80,
        tuple(
            Endpoint(address, 8080, local=cluster.node_of(number, index) == cluster.NODE)
            for index, address in enumerate(cluster.pods(number, endpoints, version))
        ),
        port_name="http",
    )


def _change(service: Service) -> Iterator[str]:
    """The transaction that brings a Service's chain to other endpoints: it is emptied and filled anew."""
    _, text = kube_proxy.pieces(4, [service], 1, node=NODE)
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if words[:2] == ["add", "rule"] and words[4].startswith("service-"):
            yield f"flush chain {' '.join(words[2:5])}"
            yield line


def _timed(nft: Nft, text: str) -> tuple[float, float]:
    """Seconds by the clock, and of a processor."""
    began, busy = time.perf_counter(), time.thread_time()
    nft.run(text)
    return time.perf_counter() - began, time.thread_time() - busy
