"""Frontends and who owns them when several service ports claim the same one.

Nothing in the API stops two Services from claiming one external IP, load-balancer address or (for a while) node port.
The kernel's maps hold one verdict per frontend, so one claimant has to win, the same on every node: the oldest
Service, then the least namespace and name, then the least port name and protocol.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from nodeproxy.kube.objects import Protocol
from nodeproxy.model.service import ServicePort, ServicePortName


class Frontend(NamedTuple):
    """What a client connects to: an address, or None for a node port (any node address), protocol and port."""

    address: str | None
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        if self.address is None:
            return f"NodePort {self.port}/{self.protocol}"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol}"


class Clash(NamedTuple):
    """A frontend that several service ports claim: who has it, and who does without, in order of succession."""

    frontend: Frontend
    winner: ServicePortName
    losers: tuple[ServicePortName, ...]


class _Entry(NamedTuple):
    claims: tuple[Frontend, ...]
    created: str


# A place in the order of claimants: whether the age is unknown, creation in microseconds, then the name.
_Rank = tuple[bool, int, ServicePortName]
_NOTHING: frozenset[Frontend] = frozenset()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def claims(port: ServicePort) -> tuple[Frontend, ...]:
    """The frontends that a service port asks for, each once."""
    protocol = port.name.protocol
    addresses = (port.cluster_ip, *port.external_ips, *port.load_balancer_vips)
    wanted = [Frontend(address, protocol, port.port) for address in addresses]
    if port.node_port:
        wanted.append(Frontend(None, protocol, port.node_port))
    return tuple(dict.fromkeys(wanted))


class FrontendIndex:
    """Who claims which frontend, kept up to date change by change; one index per family.

    The outcome depends only on what is claimed now, never on the order of the changes. A change costs what the
    service port's own claims cost; lists of claimants exist only for frontends that clash.
    """

    def __init__(self) -> None:
        self._entries: dict[ServicePortName, _Entry] = {}
        self._winners: dict[Frontend, ServicePortName] = {}
        self._clashes: dict[Frontend, list[_Rank]] = {}  # all claimants, the winner first
        self._lost: dict[ServicePortName, set[Frontend]] = {}

    def update(self, name: ServicePortName, claims: Iterable[Frontend], created: str) -> set[ServicePortName]:
        """Take what a service port claims now, in place of what it claimed before.

        Args:
            name: the service port.
            claims: all of its frontends.
            created: when its Service was created, RFC 3339. What cannot be read counts as youngest.

        Returns:
            The service ports, itself included, whose set of lost frontends is not what it was before this call.
        """
        entry = _Entry(tuple(dict.fromkeys(claims)), created)
        old = self._entries.get(name)
        if entry == old:
            return set()
        toggled: set[tuple[ServicePortName, Frontend]] = set()
        stale, fresh = _difference(old, entry)
        for frontend in stale:
            self._withdraw(name, frontend, toggled)
        self._entries[name] = entry
        for frontend in fresh:
            self._claim(name, frontend, toggled)
        return {loser for loser, _ in toggled}

    def remove(self, name: ServicePortName) -> set[ServicePortName]:
        """Forget a service port; it need not be known.

        Returns:
            The other service ports whose set of lost frontends changed: those that take over from it.
        """
        old = self._entries.get(name)
        if old is None:
            return set()
        toggled: set[tuple[ServicePortName, Frontend]] = set()
        for frontend in old.claims:
            self._withdraw(name, frontend, toggled)
        del self._entries[name]
        return {loser for loser, _ in toggled if loser != name}

    def lost(self, name: ServicePortName) -> frozenset[Frontend]:
        """The frontends that a service port claims, but another one has."""
        return frozenset(lost) if (lost := self._lost.get(name)) else _NOTHING

    def winner(self, frontend: Frontend) -> ServicePortName | None:
        """The service port that has a frontend; None if nobody claims it."""
        return self._winners.get(frontend)

    def clashes(self) -> tuple[Clash, ...]:
        """All frontends with more than one claimant, sorted: addresses as text, then node ports."""
        found = []
        for frontend in sorted(self._clashes, key=lambda f: (f.address is None, f.address or "", f.protocol, f.port)):
            names = [rank[-1] for rank in self._clashes[frontend]]
            found.append(Clash(frontend, names[0], tuple(names[1:])))
        return tuple(found)

    def _claim(self, name: ServicePortName, frontend: Frontend, toggled: set[tuple[ServicePortName, Frontend]]) -> None:
        holder = self._winners.setdefault(frontend, name)
        if holder == name:
            return
        if frontend not in self._clashes:
            self._clashes[frontend] = [self._rank(holder)]
        ranks = self._clashes[frontend]
        insort(ranks, self._rank(name))
        if ranks[0][-1] == name:
            self._winners[frontend] = name
            self._toggle(holder, frontend, toggled)
        else:
            self._toggle(name, frontend, toggled)

    def _withdraw(
        self, name: ServicePortName, frontend: Frontend, toggled: set[tuple[ServicePortName, Frontend]]
    ) -> None:
        ranks = self._clashes.get(frontend)
        if ranks is None:
            del self._winners[frontend]
            return
        at = bisect_left(ranks, self._rank(name))
        del ranks[at]
        if at == 0:
            self._winners[frontend] = ranks[0][-1]
            self._toggle(ranks[0][-1], frontend, toggled)
        else:
            self._toggle(name, frontend, toggled)
        if len(ranks) == 1:
            del self._clashes[frontend]

    def _toggle(
        self, name: ServicePortName, frontend: Frontend, toggled: set[tuple[ServicePortName, Frontend]]
    ) -> None:
        """Note that ``name`` lost the frontend, or no longer does; twice in one call is no change."""
        lost = self._lost.setdefault(name, set())
        lost ^= {frontend}
        if not lost:
            del self._lost[name]
        toggled ^= {(name, frontend)}

    def _rank(self, name: ServicePortName) -> _Rank:
        return (*_age(self._entries[name].created), name)


def _difference(old: _Entry | None, new: _Entry) -> tuple[Iterable[Frontend], Iterable[Frontend]]:
    """The claims to withdraw and those to make. Another age may change the order under every claim."""
    if old is None:
        return (), new.claims
    if old.created != new.created:
        return old.claims, new.claims
    before, after = set(old.claims), set(new.claims)
    return before - after, after - before


def _age(created: str) -> tuple[bool, int]:
    """Sorts older first. A time without an offset is taken as UTC."""
    try:
        instant = datetime.fromisoformat(created.upper())
    except ValueError:
        return (True, 0)
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (False, (instant - _EPOCH) // timedelta(microseconds=1))
