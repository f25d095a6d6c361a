"""A loopback API server of the tests, with faults to order, and a hostile TCP proxy.

It answers lists and watches of the kinds that a service proxy reads, over HTTP or HTTPS, in the way a Kubernetes API
server does (https://kubernetes.io/docs/reference/using-api/api-concepts/), and misbehaves when asked to:

    with ApiServer() as server:
        server.put(service)
        server.faults.append(Refuse(410, verb="watch", times=3))
        ...
        assert len(server.requests) < 10
"""

from .faults import (
    Alter,
    Before,
    Cut,
    NoFieldSelector,
    NoStreamingLists,
    Refuse,
    RequireToken,
    Reset,
    RetryAfter,
    Silence,
    Slow,
    SmallChunks,
    TruncatedChunk,
)
from .hostile import HostileProxy
from .server import ApiServer
from .store import Store

__all__ = [
    "Alter",
    "ApiServer",
    "Before",
    "Cut",
    "HostileProxy",
    "NoFieldSelector",
    "NoStreamingLists",
    "Refuse",
    "RequireToken",
    "Reset",
    "RetryAfter",
    "Silence",
    "Slow",
    "SmallChunks",
    "Store",
    "TruncatedChunk",
]
