"""Endpoints of a Service, merged over its endpoint slices."""

from dataclasses import dataclass

_NO_HINTS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address and port that serves a service port.

    Attributes:
        address: canonical address.
        port: 1..65535.
        node_name: the node it runs on; empty if unknown.
        ready: may take new traffic (unset in the API: true).
        serving: is able to answer (unset: true).
        terminating: is about to go (unset: false).
        zone_hints: zones that should use it.
        node_hints: nodes that should use it.
    """

    address: str
    port: int
    node_name: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone_hints: frozenset[str] = _NO_HINTS
    node_hints: frozenset[str] = _NO_HINTS

    @property
    def sort_key(self) -> str:
        """``ip:port`` or ``[ip]:port``: endpoints are ordered by this text."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
